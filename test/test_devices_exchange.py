"""Tensors of several devices in files, pickles, capsules, other processes, compiled code.

By hand, a single test:

    HOLOGRAM_CPU_DEVICES=2 python test/test_devices_exchange.py TestExchange.test_safetensors
"""

from __future__ import annotations

import copy
import io
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from common import run_python, several_devices
from multi_device import ONE, ZERO, SeveralDevicesTestCase, in_processes_of_their_own
from torch import nn
from torch.testing._internal.common_utils import parametrize, run_tests

hologram = torch.hologram


def double(requests: mp.Queue, replies: mp.Queue) -> None:
    tensors = requests.get()
    for tensor in tensors:
        tensor *= 2
    replies.put(
        ([str(t.device) for t in tensors], hologram.device_count(), torch.ones(2, device=ONE) * 3)
    )
    requests.get()  # keeps the reply's memory until the parent has it


class TestExchange(SeveralDevicesTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tensors = {"a": torch.ones(3, device=ZERO), "b": torch.arange(3.0, device=ONE)[1:]}

    def test_map_location(self):
        buffer = io.BytesIO()
        torch.save(self.tensors, buffer)

        def places(location: object = None) -> list[int | None]:
            buffer.seek(0)
            loaded = torch.load(buffer, map_location=location, weights_only=True)
            self.assertEqual(loaded["b"].tolist(), [1, 2])
            return [loaded[key].device.index for key in "ab"]

        self.assertEqual(places(), [0, 1])
        self.assertEqual(places({"hologram:1": "hologram:0"}), [0, 0])
        self.assertEqual(places({"hologram:0": "hologram:1", "hologram:1": "hologram:0"}), [1, 0])
        self.assertEqual(places("hologram:1"), [1, 1])
        self.assertEqual(places(ONE), [1, 1])
        self.assertEqual(places(lambda storage, _: storage.hologram(1)), [1, 1])
        self.assertEqual(places("cpu"), [None, None])
        with hologram.device(1):
            self.assertEqual(places(), [0, 1])
            self.assertEqual(places("hologram"), [1, 1])
        with self.assertRaisesRegex(
            RuntimeError, "device 2 but torch.hologram.device_count.. is 2"
        ):
            places("hologram:2")

    def test_file_where_there_is_one_device(self):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "tensors.pt")
            torch.save(self.tensors, path)
            run_python(
                """
                import sys, torch
                path = sys.argv[1]
                assert torch.hologram.device_count() == 1
                try:
                    torch.load(path, weights_only=True)
                except RuntimeError as error:
                    assert "device 1 but torch.hologram.device_count() is 1" in str(error), error
                else:
                    raise AssertionError("loaded")
                for where in ({"hologram:1": "hologram:0"}, "hologram", "hologram:0"):
                    loaded = torch.load(path, map_location=where, weights_only=True)
                    assert loaded["b"].device == torch.device("hologram:0"), where
                    assert (loaded["b"] + loaded["a"][1:]).tolist() == [2, 3]
                """,
                path,
                env=several_devices(1),
            )

    def test_safetensors(self):
        from safetensors.torch import load_file, save_file

        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "tensors.safetensors")
            save_file({key: value.contiguous() for key, value in self.tensors.items()}, path)
            for device in (ZERO, ONE):
                loaded = load_file(path, device=str(device))
                self.assertEqual({t.device for t in loaded.values()}, {device})

    def test_pickle_and_deepcopy(self):
        for other in (copy.deepcopy(self.tensors), pickle.loads(pickle.dumps(self.tensors))):
            self.assertEqual([t.device for t in other.values()], [ZERO, ONE])
            self.assertEqual(other["b"].tolist(), [1, 2])
            other["b"].zero_()
        self.assertEqual(self.tensors["b"].tolist(), [1, 2])
        module = copy.deepcopy(nn.Linear(2, 2, device=ONE))
        self.assertEqual(module.weight.device, ONE)

    @pytest.mark.host_memory
    def test_dlpack(self):
        x = torch.arange(4.0, device=ONE)
        for y in (
            torch.from_dlpack(x),
            torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
            torch.from_dlpack(np.from_dlpack(x), device="hologram:1"),
            hologram.alias_from_cpu(hologram.alias_as_cpu(x), "hologram:1"),
        ):
            self.assertEqual((y.device, y.data_ptr()), (ONE, x.data_ptr()))
        moved = torch.from_dlpack(x, device=ZERO)
        self.assertEqual(moved.device, ZERO)
        self.assertNotEqual(moved.data_ptr(), x.data_ptr())
        self.assertEqual(moved.tolist(), x.tolist())

    @pytest.mark.host_memory
    def test_multiprocessing(self):
        context = mp.get_context("spawn")
        requests, replies = context.Queue(), context.Queue()
        process = context.Process(target=double, args=(requests, replies), daemon=True)
        process.start()
        sent = [torch.ones(3, device=ZERO), torch.ones(3, device=ONE)]
        requests.put(sent)
        devices, count, reply = replies.get(timeout=60)
        self.assertEqual(devices, ["hologram:0", "hologram:1"])
        self.assertEqual(count, 2)
        self.assertSame(reply, torch.full((2,), 3.0), ONE)
        self.assertSame(sent[1], torch.full((3,), 2.0), ONE)
        requests.put(None)
        process.join(60)
        self.assertEqual(process.exitcode, 0)

    @parametrize("backend", ["eager", "hologram"])
    def test_compile(self, backend):
        def crossing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return ((a * 2).to("hologram:1") + b).sum() + torch.ones((), device=b.device)

        def inside(x: torch.Tensor) -> torch.Tensor:
            with torch.device("hologram:1"):
                return x + torch.arange(3)

        a, b = torch.rand(3, device=ZERO), torch.rand(3, device=ONE)
        for function, arguments in ((crossing, (a, b)), (inside, (b,))):
            compiled = torch.compile(function, backend=backend)
            wanted = function(*arguments)
            self.assertEqual(wanted.device, ONE)
            self.assertSame(compiled(*arguments), wanted.cpu(), ONE)
        leaf = a.clone().requires_grad_()
        torch.compile(crossing, backend=backend)(leaf, b).backward()
        self.assertSame(leaf.grad, torch.full((3,), 2.0), ZERO)


TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__)

if __name__ == "__main__":
    run_tests()
