"""Several devices: how many there are, their properties, what is on which, the current one.

By hand, a single test:

    HOLOGRAM_CPU_DEVICES=2 python test/test_devices.py TestEnumeration.test_count
"""

from __future__ import annotations

import itertools
import os
import threading

import torch
from common import run_python, several_devices
from multi_device import BOTH_WAYS, ONE, ZERO, SeveralDevicesTestCase, in_processes_of_their_own
from torch import nn
from torch.nn.parallel import comm
from torch.testing._internal.common_utils import parametrize, run_tests

hologram = torch.hologram


class TestEnumeration(SeveralDevicesTestCase):
    def test_count(self):
        self.assertTrue(hologram.is_available())
        self.assertEqual(torch.accelerator.device_count(), 2)
        self.assertEqual(len(hologram.default_generators), 2)

    def test_properties(self):
        zero, one = (hologram.get_device_properties(index) for index in range(2))
        self.assertEqual(hologram.get_device_properties("hologram:1"), one)
        self.assertEqual(hologram.get_device_properties(ONE), one)
        with hologram.device(1):
            self.assertEqual(hologram.get_device_properties(), one)
            self.assertEqual(hologram.get_device_name(), one.name)
        if (zero.backend, one.backend) != ("cpu", "cpu"):
            alike = zero.backend == one.backend != "sim"  # whose names have numbers
            self.assertEqual(zero.name == one.name, alike)
            return
        self.assertIn("(1 of 2 parts)", zero.name)
        self.assertIn("(2 of 2 parts)", one.name)
        self.assertEqual(zero.total_memory, one.total_memory)
        whole = run_python(
            "import torch; print(torch.hologram.get_device_properties().total_memory)",
            env=several_devices(1),
        )
        self.assertEqual(one.total_memory, int(whole.stdout) // 2)
        self.assertEqual(one.multi_processor_count, max(len(os.sched_getaffinity(0)) // 2, 1))

    def test_peers(self):
        zero, one = (hologram.get_device_properties(index) for index in range(2))
        alike = zero.backend == one.backend or (zero.host_addressable and one.host_addressable)
        for device, peer in itertools.product(range(2), range(2)):
            reached = device == peer or alike
            self.assertIs(hologram.can_device_access_peer(device, peer), reached)
        self.assertIs(hologram.can_device_access_peer(ZERO, "hologram:1"), alike)

    @parametrize("index", [2, 100, -1])
    def test_index_out_of_range(self, index):
        x = torch.ones(2)
        uses = [
            lambda: hologram.get_device_properties(index),
            lambda: hologram.get_device_name(index),
            lambda: hologram.get_device_capability(index),
            lambda: hologram.can_device_access_peer(index, 0),
            lambda: hologram.can_device_access_peer(0, index),
            lambda: hologram.memory_stats(index),
            lambda: hologram.mem_get_info(index),
            lambda: hologram.reset_peak_memory_stats(index),
            lambda: hologram.set_per_process_memory_fraction(0.5, index),
            lambda: hologram.current_stream(index),
            lambda: hologram.default_stream(index),
            lambda: hologram.get_rng_state(index),
            lambda: hologram.set_rng_state(torch.get_rng_state(), index),
            lambda: hologram.synchronize(index),
        ]
        if index >= 0:  # a negative index means "no change", or torch refuses it
            where = f"hologram:{index}"
            uses += [
                lambda: hologram.set_device(index),
                lambda: hologram.device(index).__enter__(),
                lambda: hologram.Stream(index),
                lambda: torch.accelerator.set_device_index(index),
                lambda: torch.accelerator.current_stream(index),
                lambda: torch.accelerator.memory_stats(index),
                lambda: torch.accelerator.synchronize(index),
                lambda: torch.Generator(where),
                lambda: torch.empty(2, device=where),
                lambda: torch.rand(2, device=where),
                lambda: torch.tensor([1], device=where),
                lambda: x.to(where),
                lambda: x.hologram(index),
                lambda: x.hologram().to(where),
                lambda: nn.Linear(2, 2).to(where),
                lambda: torch.empty(2, 2, layout=torch.sparse_coo, device=where),
            ]
        for use in uses:
            with self.assertRaisesRegex(
                RuntimeError, rf"index {index} is out of range: 2 device\(s\) available"
            ):
                use()

    def test_index_that_torch_wraps(self):
        # torch keeps indices in 8 bits; "hologram:200" must not mean the current device.
        with self.assertRaisesRegex(RuntimeError, "is out of range"):
            torch.ones(1, device="hologram:200")

    def test_factories(self):
        for device in (ZERO, ONE, "hologram:1"):
            like = torch.ones(2, 3, device=device)
            made = {
                "empty": torch.empty(2, device=device),
                "empty_strided": torch.empty_strided((2, 2), (1, 2), device=device),
                "zeros": torch.zeros(2, device=device),
                "full": torch.full((2,), 3, device=device),
                "arange": torch.arange(3, device=device),
                "linspace": torch.linspace(0, 1, 3, device=device),
                "eye": torch.eye(2, device=device),
                "tensor": torch.tensor([1.0, 2.0], device=device),
                "asarray": torch.asarray([1, 2], device=device),
                "scalar_tensor": torch.scalar_tensor(2.0, device=device),
                "rand": torch.rand(2, device=device),
                "randperm": torch.randperm(4, device=device),
                "tril_indices": torch.tril_indices(2, 2, device=device),
                "hann_window": torch.hann_window(4, device=device),
                "fftfreq": torch.fft.fftfreq(4, device=device),
                "complex": torch.complex(like, like),
                "like": torch.randn_like(like),
                "new": like.new_tensor([1]),
                "new_zeros": like.new_zeros(2),
                "module": nn.Linear(2, 2, device=device).weight,
                "sparse": torch.zeros(2, 2, layout=torch.sparse_coo, device=device),
            }
            for name, value in made.items():
                self.assertEqual(value.device, torch.device(device), name)
            self.assertEqual(made["arange"].tolist(), [0, 1, 2])
            self.assertEqual(made["full"].tolist(), [3, 3])

    def test_results_are_where_the_arguments_are(self):
        for current, (device, _) in itertools.product(range(2), BOTH_WAYS):
            x = torch.rand(4, 4, device=device)
            with hologram.device(current):
                results = {
                    "native": x + x,
                    "delegated": torch.linalg.svd(x),
                    "views": (x.t(), x[1:], x.unfold(0, 2, 1)),
                    "scalars": x.sum(),
                    "indices": (x.sort().indices, (x > 0.5).nonzero()),
                    "random": (x.bernoulli(), torch.multinomial(x, 2), nn.functional.dropout(x)),
                    "composite": (
                        nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
                        nn.LSTM(4, 4, device=device)(x[None]),
                        nn.functional.conv2d(x[None, None], x[None, None, :2, :2]),
                        torch.stft(x.flatten(), 4, window=x[0], return_complex=True),
                    ),
                    "lists": torch._foreach_norm([x, x]),
                    "sparse": (x.to_sparse(), x.to_sparse() * 2, x.to_sparse_csr()),
                    "members": (x.to_sparse()._values(), x.to_sparse().coalesce().indices()),
                }
                for name, value in results.items():
                    for leaf in torch.utils._pytree.tree_leaves(value):
                        self.assertEqual(leaf.device, device, name)


class TestCurrentDevice(SeveralDevicesTestCase):
    def test_context(self):
        for one in (1, "hologram:1", ONE):
            with hologram.device(one):
                self.assertEqual(hologram.current_device(), 1)
                self.assertEqual(torch.empty(1, device="hologram").device, ONE)
                self.assertEqual(torch.ones(1).hologram().device, ONE)
                self.assertEqual(torch.Generator("hologram").device, ONE)
                self.assertEqual(hologram.current_stream().device, ONE)
                for nothing in (None, -1, "hologram"):
                    with hologram.device(nothing):
                        self.assertEqual(hologram.current_device(), 1)
                with hologram.device(0):
                    self.assertEqual(hologram.current_device(), 0)
                self.assertEqual(hologram.current_device(), 1)
            self.assertEqual(hologram.current_device(), 0)

    def test_restored_after_exceptions(self):
        guards = {
            "device": lambda: hologram.device(1),
            "device_of": lambda: hologram.device_of(torch.ones(1, device=ONE)),
            "stream": lambda: hologram.stream(hologram.Stream(1)),
            "torch.Stream": lambda: torch.Stream(ONE),
            "accelerator": lambda: torch.accelerator.device_index(1),
        }
        for name, guard in guards.items():
            with self.assertRaisesRegex(KeyError, "inside"), guard():
                self.assertEqual(hologram.current_device(), 1, name)
                raise KeyError("inside")
            self.assertEqual(hologram.current_device(), 0, name)
        # An operator that fails on another device than the current one leaves the current one.
        x = torch.ones(2, 3, device=ONE)
        for wrong in (lambda: x @ x, lambda: x.sum(7), lambda: x + x.t(), lambda: x.view(5)):
            with self.assertRaises((RuntimeError, IndexError)):
                wrong()
            self.assertEqual(hologram.current_device(), 0)

    def test_entering_fails(self):
        with self.assertRaisesRegex(RuntimeError, "out of range"), hologram.device(9):
            self.fail("entered")
        with hologram.device(1), self.assertRaisesRegex(RuntimeError, "out of range"):
            hologram.set_device(2)
        with (
            self.assertRaisesRegex(ValueError, "Expected a hologram device, but got: cpu"),
            hologram.stream(torch.Stream(device="cpu")),
        ):
            self.fail("entered")
        with (
            hologram.device(1),
            self.assertRaisesRegex(RuntimeError, "expected a hologram stream, got a cpu stream"),
        ):
            hologram.set_stream(torch.Stream(device="cpu"))

    def test_device_of(self):
        for device, _ in BOTH_WAYS:
            x = torch.ones(2, device=device)
            for owner in (x, x.untyped_storage(), x.to_sparse()):
                with hologram.device_of(owner):
                    self.assertEqual(hologram.current_device(), device.index)
        with hologram.device(1), hologram.device_of(torch.ones(1)):
            self.assertEqual(hologram.current_device(), 1)

    def test_set_device(self):
        self.addCleanup(hologram.set_device, 0)
        for one in (1, "hologram:1", ONE):
            hologram.set_device(one)
            self.assertEqual(hologram.current_device(), 1)
            hologram.set_device(-1)
            self.assertEqual(hologram.current_device(), 1)
            hologram.set_device("hologram:0")
            self.assertEqual(hologram.current_device(), 0)
        for wrong in ("hologram", "cpu", None):
            with self.assertRaisesRegex(ValueError, "Expected a"):
                hologram.set_device(wrong)
        torch.accelerator.set_device_index(1)
        self.assertEqual(hologram.current_device(), 1)
        self.assertEqual(torch.accelerator.current_device_index(), 1)
        with torch.accelerator.device_index(0):
            self.assertEqual(hologram.current_device(), 0)
        hologram.set_device(0)

    def test_default_device(self):
        with torch.device("hologram:1"):
            self.assertEqual(torch.zeros(2).device, ONE)
            self.assertEqual(nn.Linear(2, 2).weight.device, ONE)
        # Without an index it is the current one at each call.
        with torch.device("hologram"), hologram.device(1):
            self.assertEqual(torch.zeros(2).device, ONE)

    def test_per_thread(self):
        seen = {}
        barrier = threading.Barrier(2)

        def run(index: int) -> None:
            seen["start", index] = hologram.current_device()
            hologram.set_device(index)
            barrier.wait(30)
            seen["set", index] = hologram.current_device()
            seen["made", index] = torch.ones(1, device="hologram").device.index

        with hologram.device(1):
            threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            self.assertEqual(hologram.current_device(), 1)
        for index in range(2):
            self.assertEqual(seen["start", index], 0)
            self.assertEqual(seen["set", index], index)
            self.assertEqual(seen["made", index], index)


class TestMoreDevicesThanCores(SeveralDevicesTestCase):
    DEVICES = 64

    def test_each_has_a_core_and_memory(self):
        names = set()
        for index in range(64):
            properties = hologram.get_device_properties(index)
            self.assertGreaterEqual(properties.multi_processor_count, 1)
            self.assertGreater(properties.total_memory, 0)
            # GPUs of one kind have one name.
            names.add((properties.name, index if properties.backend == "cuda" else None))
        self.assertEqual(len(names), 64)

    def test_autograd_on_all(self):
        x = torch.ones(3, device="hologram:0", requires_grad=True)
        y = x
        for index in range(64):
            y = y.to(f"hologram:{index}") + index
        y.sum().backward()
        self.assertEqual(y.device.index, 63)
        self.assertEqual(y.tolist(), [1.0 + 63 * 32] * 3)
        self.assertSame(x.grad, torch.ones(3), ZERO)

    def test_random_and_lists_on_all(self):
        torch.manual_seed(5)
        drawn = [torch.rand(3, device=f"hologram:{index}") for index in range(64)]
        self.assertEqual(len({tuple(x.tolist()) for x in drawn}), 1)
        for index, x in enumerate(torch._foreach_mul(drawn, 2)):
            self.assertEqual(x.device.index, index)
        chunks = comm.scatter(torch.arange(64, device=ZERO), range(64))
        self.assertEqual(comm.gather(chunks, 0, 63).tolist(), list(range(64)))


TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__)

if __name__ == "__main__":
    run_tests()
