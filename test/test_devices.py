"""Several devices: HOLOGRAM_CPU_DEVICES splits the CPU, so that multi-device code runs anywhere.

The environment is read once, so TestInProcessesOfTheirOwn starts a process for each number of
devices, and the test cases for that number run there. By hand, a single one:

    HOLOGRAM_CPU_DEVICES=2 python test/test_devices.py TestCopies.test_sparse
"""

from __future__ import annotations

import copy
import io
import itertools
import os
import pickle
import queue
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
import torch
import torch.cuda.comm
import torch.multiprocessing as mp
from common import DTYPES, HologramTestCase, run_python, several_devices
from torch import nn
from torch.nn import parallel
from torch.nn.parallel import comm
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.utils.checkpoint import checkpoint

from torch_hologram import _C

if TYPE_CHECKING:
    from collections.abc import Callable

hologram = torch.hologram
ZERO, ONE = torch.device("hologram", 0), torch.device("hologram", 1)
BOTH_WAYS = ((ZERO, ONE), (ONE, ZERO))
SAME_DEVICE = "Expected all tensors to be on the same device"


class SeveralDevicesTestCase(HologramTestCase):
    """Runs with HOLOGRAM_CPU_DEVICES = DEVICES only. Every test ends with work on every device."""

    DEVICES = 2
    __test__ = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Other processes must not collect it; unittest, which runs it in its own, does not ask.
        cls.__test__ = hologram.device_count() == cls.DEVICES

    def setUp(self) -> None:
        super().setUp()
        self.assertEqual(hologram.device_count(), self.DEVICES)
        self.assertEqual(hologram.current_device(), 0, "left by another test")

    def tearDown(self) -> None:
        self.assertEqual(hologram.current_device(), 0, "not restored")
        for index in range(self.DEVICES):
            x = torch.arange(6.0, device=f"hologram:{index}").reshape(2, 3)
            self.assertEqual((x @ x.t()).tolist(), [[5.0, 14.0], [14.0, 50.0]])
        super().tearDown()

    def assertSame(self, value: torch.Tensor, wanted: torch.Tensor, device: torch.device) -> None:
        """Asserts that a tensor is on a device and has the bits of a CPU tensor."""
        self.assertEqual(value.device, device)
        self.assertEqual(value.cpu(), wanted, rtol=0, atol=0, exact_dtype=True)

    def assertClose(self, value: torch.Tensor, wanted: torch.Tensor, device: torch.device) -> None:
        """Asserts that a tensor is on a device and has a CPU tensor's values, up to rounding."""
        self.assertEqual(value.device, device)
        self.assertEqual(value.cpu(), wanted, exact_dtype=True)


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
            self.assertNotEqual(zero.name, one.name)
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


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements, in order."""
    plain = tensor.cpu().contiguous().reshape(-1)
    return plain if plain.dtype == torch.bool else plain.view(torch.uint8)


class TestCopies(SeveralDevicesTestCase):
    @parametrize("dtype", DTYPES)
    def test_dtypes(self, dtype):
        # Every byte a value can have, NaNs included: copies keep them.
        torch.manual_seed(0)
        size = max(torch.empty((), dtype=dtype).element_size(), 1)
        raw = torch.randint(0, 256, (8, 8 * size), dtype=torch.uint8)
        x = raw > 127 if dtype == torch.bool else raw.view(dtype)
        for here, there in BOTH_WAYS:
            y = x.to(here)
            for name, part in {
                "whole": y,
                "transposed": y.t(),
                "sliced": y[1:, ::3],
                "element": y[3, 5],
                "empty": y[:0],
            }.items():
                for non_blocking in (False, True):
                    z = part.to(there, non_blocking=non_blocking)
                    self.assertEqual(z.device, there)
                    self.assertEqual(z.dtype, dtype)
                    self.assertEqual(bits(z), bits(part), name)
            into = torch.zeros(8, 8, dtype=dtype, device=there)
            self.assertIs(into.t().copy_(y.t(), non_blocking=True)._base, into)
            self.assertEqual(bits(into), bits(x))
            into[2:4, 1] = y[0, 0]
            self.assertEqual(bits(into[2, 1]), bits(x[0, 0]))

    def test_conversion(self):
        x = torch.arange(-6, 6).reshape(3, 4)
        for here, there in BOTH_WAYS:
            y = x.to(here)
            self.assertSame(y.to(there, torch.float16), x.half(), there)
            into = torch.empty(2, 3, 4, device=there)
            into.copy_(y)  # broadcasts
            self.assertSame(into, x.float().expand(2, 3, 4), there)

    def test_format_is_preserved(self):
        x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
        for here, there in BOTH_WAYS:
            y = x.to(here).to(there)
            self.assertTrue(y.is_contiguous(memory_format=torch.channels_last))
            self.assertSame(y, x, there)
            self.assertEqual(
                x.to(here).permute(3, 1, 0, 2).to(there).stride(), x.permute(3, 1, 0, 2).stride()
            )

    def test_copies_are_independent(self):
        for here, there in BOTH_WAYS:
            x = torch.arange(4.0, device=here)
            self.assertIs(x.to(here), x)
            y = x.to(there)
            y += 1
            self.assertEqual(x.tolist(), [0, 1, 2, 3])
            self.assertEqual(y.tolist(), [1, 2, 3, 4])
            z = x.to(there)[2:]
            z.zero_()
            self.assertEqual(x.tolist(), [0, 1, 2, 3])

    def test_large(self):
        x = torch.rand(300, 1000)
        for here, there in BOTH_WAYS:
            self.assertSame(x.to(here).to(there), x, there)
            self.assertSame(x.to(here).t().to(there), x.t(), there)

    def test_lazy_bits(self):
        x = torch.randn(4, dtype=torch.complex64)
        for here, there in BOTH_WAYS:
            y = x.to(here)
            self.assertSame(y.conj().to(there), x.conj().resolve_conj(), there)
            self.assertSame(y.conj().imag.to(there), x.conj().imag.resolve_neg(), there)
            into = torch.zeros(4, dtype=torch.complex64, device=there)
            into.conj().copy_(y)
            self.assertSame(into, x.conj().resolve_conj(), there)
            zeros = torch._efficientzerotensor((3,), device=here)
            self.assertSame(torch.ones(3, device=there).copy_(zeros), torch.zeros(3), there)

    def test_sparse(self):
        x = torch.tensor([[0.0, 2, 0], [3, 0, 4]])
        for (here, there), current in itertools.product(BOTH_WAYS, range(2)):
            with hologram.device(current):
                y = x.to(here).to_sparse()
                z = y.to(there)
                self.assertEqual(z._indices().device, there)
                self.assertEqual(z._values().device, there)
                self.assertTrue(z.is_coalesced())
                self.assertSame(z.to_dense(), x, there)
                into = torch.zeros(2, 3, layout=torch.sparse_coo, device=there)
                self.assertSame(into.copy_(y).to_dense(), x, there)
                self.assertEqual(z._values().data_ptr() == y._values().data_ptr(), False)
                self.assertEqual((z * 2).device, there)
                self.assertSame((z @ torch.ones(3, 1, device=there)), x.sum(1, True), there)

    @parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
    def test_compressed_sparse(self, layout):
        blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
        x = torch.eye(4) * 3
        for (here, there), current in itertools.product(BOTH_WAYS, range(2)):
            with hologram.device(current):
                y = x.to(here).to_sparse(layout=layout, **blocks)
                z = y.to(there)
                self.assertEqual((z.layout, z.values().device), (layout, there))
                self.assertSame(z.to_dense(), x, there)

    def test_quantized(self):
        x = torch.rand(3, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch is about to drop the quantized dtypes
            for here, there in BOTH_WAYS:
                y = torch.quantize_per_tensor(x.to(here), 0.1, 3, torch.quint8)
                z = y.to(there)
                self.assertEqual((z.q_scale(), z.q_zero_point()), (0.1, 3))
                self.assertSame(z.int_repr(), y.int_repr().cpu(), there)
                scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.int64)
                y = torch.quantize_per_channel(
                    x.to(here), scales.to(here), zeros.to(here), 0, torch.qint8
                )
                self.assertSame(y.to(there).dequantize(), y.dequantize().cpu(), there)

    @parametrize("layout", [torch.strided, torch.jagged])
    def test_nested(self, layout):
        parts = [torch.rand(2, 3), torch.rand(4, 3)]
        for here, there in BOTH_WAYS:
            y = torch.nested.nested_tensor(parts, layout=layout, device=here).to(there)
            for part, wanted in zip(y.unbind(), parts, strict=True):
                self.assertSame(part, wanted, there)

    def test_storages(self):
        x = torch.arange(4.0)
        for here, there in BOTH_WAYS:
            storage = x.to(here).untyped_storage()
            moved = storage.to(device=there)
            self.assertEqual(moved.device, there)
            self.assertEqual(moved.tolist(), x.untyped_storage().tolist())
            other = torch.UntypedStorage(16, device=there)
            other.copy_(storage)
            self.assertEqual(other.tolist(), x.untyped_storage().tolist())
            self.assertEqual(storage.hologram(there.index).device, there)

    def test_modules(self):
        for here, there in BOTH_WAYS:
            module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to(here)
            before = [value.clone() for value in module.state_dict().values()]
            weight = module[0].weight
            module(torch.ones(4, 2, device=here)).square().sum().backward()
            self.assertIs(module.to(there)[0].weight, weight)
            self.assertEqual({p.device for p in module.parameters()}, {there})
            self.assertEqual({p.grad.device for p in module.parameters()}, {there})
            self.assertEqual({b.device for b in module.buffers()}, {there})
            self.assertSame(weight.detach(), before[0].cpu(), there)
            other = nn.Linear(2, 3, device=here)
            other.load_state_dict(module[0].state_dict())
            self.assertSame(other.weight.detach(), before[0].cpu(), here)


# A call that mixes two devices: (tensors and modules there, the operand that is here).
MIXED: dict[str, Callable] = {
    "add": lambda x, d: x + x.to(d),
    "add_": lambda x, d: x.add_(x.to(d)),
    "mul_scalar_tensor": lambda x, d: x * x.sum().to(d),
    "add_out": lambda x, d: torch.add(x, x, out=torch.empty(3, 3, device=d)),
    "exp_out": lambda x, d: torch.exp(x, out=torch.empty(3, 3, device=d)),
    "where": lambda x, d: torch.where(x > 0, x, x.to(d)),
    "cat": lambda x, d: torch.cat([x, x.to(d)]),
    "stack": lambda x, d: torch.stack([x, x.to(d)]),
    "matmul": lambda x, d: x @ x.to(d),
    "addmm": lambda x, d: torch.addmm(x, x.to(d), x),
    "bmm": lambda x, d: torch.bmm(x[None], x[None].to(d)),
    "linear": lambda x, d: nn.Linear(3, 3, device=d)(x),
    "conv2d": lambda x, d: nn.Conv2d(1, 1, 2, device=d)(x[None, None]),
    "lstm": lambda x, d: nn.LSTM(3, 3, device=d)(x),
    "gru_cell": lambda x, d: nn.GRUCell(3, 3, device=d)(x),
    "attention": lambda x, d: nn.functional.scaled_dot_product_attention(
        x[None], x[None].to(d), x[None]
    ),
    "multihead": lambda x, d: nn.MultiheadAttention(3, 1, device=d)(x, x, x),
    "embedding": lambda x, d: nn.functional.embedding(x.long(), x.to(d)),
    "cross_entropy": lambda x, d: nn.functional.cross_entropy(x, x[0].long().to(d)),
    "layer_norm": lambda x, d: nn.functional.layer_norm(x, (3,), x[0].to(d)),
    "batch_norm": lambda x, d: nn.functional.batch_norm(x, x[0].to(d), x[0].to(d)),
    "index": lambda x, d: x[torch.tensor([0], device=d)],
    "index_add": lambda x, d: x.index_add(0, torch.arange(3, device=d), x),
    "gather": lambda x, d: x.gather(0, x.long().to(d)),
    "scatter": lambda x, d: x.scatter(0, x.long().to(d), x),
    "masked_fill": lambda x, d: x.masked_fill((x > 0).to(d), 1.0),
    "lerp": lambda x, d: x.lerp(x.to(d), 0.5),
    "solve": lambda x, d: torch.linalg.solve(x, x.to(d)),
    "equal": lambda x, d: torch.equal(x, x.to(d)),
    "isin": lambda x, d: torch.isin(x, x.to(d)),
    "grid_sample": lambda x, d: nn.functional.grid_sample(
        x[None, None], torch.zeros(1, 2, 2, 2, device=d), align_corners=False
    ),
    "foreach": lambda x, d: torch._foreach_add([x], [x.to(d)]),
    "set_": lambda x, d: torch.empty(0, device=d).set_(x),
    "sparse": lambda x, d: x.to_sparse() + x.to_sparse().to(d),
    "sparse_mm": lambda x, d: torch.sparse.mm(x.to_sparse(), x.to(d)),
    "generator": lambda x, d: torch.bernoulli(x, generator=torch.Generator(d)),
    "generator_native": lambda x, d: torch.rand(3, device=x.device, generator=torch.Generator(d)),
}


class TestMixedDevices(SeveralDevicesTestCase):
    """test_mixed_devices.py asks every operator; this is what the errors name, both ways round."""

    @parametrize("name", list(MIXED))
    def test_both_devices_are_named(self, name):
        for (here, there), current in itertools.product(BOTH_WAYS, range(2)):
            x = torch.zeros(3, 3, device=here)
            with hologram.device(current), self.assertRaises((RuntimeError, ValueError)) as raised:
                MIXED[name](x, there)
            text = str(raised.exception)
            self.assertIn("hologram:0", text)
            self.assertIn("hologram:1", text)
            self.assertNotIn("INTERNAL ASSERT", text)
            self.assertEqual(x.tolist(), [[0.0] * 3] * 3, "changed by a call that was refused")

    def test_cudas_words(self):
        x = torch.ones(2, device=ONE)
        for call in (lambda: x + x.to(ZERO), lambda: torch.dot(x, x.to(ZERO))):
            with self.assertRaisesRegex(RuntimeError, SAME_DEVICE):
                call()

    def test_gradient_of_another_device(self):
        x = torch.ones(2, device=ONE, requires_grad=True)
        # torch's own words; the first prints the index as a character.
        with self.assertRaisesRegex(RuntimeError, "assign a gradient located on device with index"):
            x.grad = torch.ones(2, device=ZERO)
        with self.assertRaisesRegex(RuntimeError, "expected device hologram:1 but got hologram:0"):
            (x * 2).backward(torch.ones(2, device=ZERO))
        self.assertIsNone(x.grad)


class TestStreams(SeveralDevicesTestCase):
    def test_streams_belong_to_a_device(self):
        stream = hologram.Stream(1)
        self.assertEqual(stream.device, ONE)
        self.assertNotEqual(stream, hologram.Stream(0))
        with hologram.stream(stream):
            self.assertEqual(hologram.current_device(), 1)
            self.assertEqual(hologram.current_stream(), stream)
            self.assertEqual(hologram.current_stream(0), hologram.default_stream(0))
            with hologram.stream(hologram.default_stream(0)):
                self.assertEqual(hologram.current_device(), 0)
                self.assertEqual(hologram.current_stream(1), stream)
            self.assertEqual(hologram.current_stream(), stream)
        self.assertEqual(hologram.current_stream(1), hologram.default_stream(1))
        with hologram.device(1):
            self.assertEqual(hologram.Stream().device, ONE)

    def test_current_stream_of_a_device_stays(self):
        stream = hologram.Stream(1)
        hologram.set_stream(stream)
        self.addCleanup(hologram.set_stream, hologram.default_stream(0))
        self.addCleanup(hologram.set_stream, hologram.default_stream(1))
        hologram.set_device(0)
        self.assertEqual(hologram.current_stream(1), stream)
        self.assertEqual(torch.accelerator.current_stream(1).stream_id, stream.stream_id)
        torch.accelerator.set_stream(hologram.default_stream(1))
        self.assertEqual(hologram.current_device(), 1)
        hologram.set_device(0)

    def test_stream_of_another_device_is_refused(self):
        stream = hologram.Stream(1)  # its id is one that device 0 has not handed out
        wrong = hologram.Stream(
            stream_id=stream.stream_id, device_index=0, device_type=stream.device_type
        )
        with self.assertRaisesRegex(RuntimeError, "hologram:0 has no stream with id"):
            hologram.set_stream(wrong)

    def test_events_wait_across_devices(self):
        first, second = hologram.Stream(0), hologram.Stream(1)
        start = hologram.Event(enable_timing=True)
        end = hologram.Event(enable_timing=True)
        with hologram.stream(first):
            x = torch.full((1000,), 2.0, device=ZERO).exp_()
            start.record()
        self.assertEqual(start.device, ZERO)
        with hologram.stream(second):
            second.wait_event(start)
            start.wait()
            second.wait_stream(first)
            y = x.to(ONE) * 2
            y.record_stream(second)
            end.record()
        self.assertEqual(end.device, ONE)
        end.synchronize()
        first.wait_event(end)
        self.assertTrue(start.query() and end.query() and first.query() and second.query())
        self.assertGreaterEqual(start.elapsed_time(end), 0)
        self.assertSame(y, torch.full((1000,), 2.0).exp() * 2, ONE)

    def test_event_is_recorded_on_one_device(self):
        event = hologram.Event()
        event.record(hologram.Stream(1))
        with self.assertRaisesRegex(RuntimeError, "index 1 does not match.* index 0"):
            event.record(hologram.Stream(0))
        event.record(hologram.Stream(1))
        self.assertEqual(event.device, ONE)

    def test_synchronize(self):
        for device in (0, 1, ONE, "hologram:1", None):
            hologram.synchronize(device)
            torch.accelerator.synchronize(device)


class TestMemory(SeveralDevicesTestCase):
    def tearDown(self) -> None:
        for index in range(2):
            hologram.set_per_process_memory_fraction(1.0, index)
        super().tearDown()

    def test_statistics(self):
        before = [hologram.memory_allocated(index) for index in range(2)]
        x = torch.empty(1 << 20, dtype=torch.uint8, device=ONE)
        after = [hologram.memory_allocated(index) for index in range(2)]
        self.assertEqual(after[0], before[0])
        self.assertGreaterEqual(after[1] - before[1], 1 << 20)
        self.assertEqual(hologram.memory_allocated("hologram:1"), after[1])
        with hologram.device(1):
            self.assertEqual(hologram.memory_allocated(), after[1])
        self.assertEqual(torch.accelerator.memory_allocated(1), after[1])
        # A copy counts where it is, delegated results too.
        y = x.to(ZERO)
        self.assertGreaterEqual(hologram.memory_allocated(0) - before[0], 1 << 20)
        z = x.flip(0)
        self.assertGreaterEqual(hologram.memory_allocated(1) - before[1], 2 << 20)
        del x, y, z
        self.assertEqual([hologram.memory_allocated(index) for index in range(2)], before)

    def test_peaks(self):
        torch.empty(3 << 20, dtype=torch.uint8, device=ZERO)
        zero = hologram.max_memory_allocated(0)
        hologram.reset_peak_memory_stats(1)
        now = hologram.memory_allocated(1)
        self.assertEqual(hologram.max_memory_allocated(1), now)
        self.assertEqual(hologram.max_memory_allocated(0), zero)
        torch.empty(2 << 20, dtype=torch.uint8, device=ONE)
        self.assertGreaterEqual(hologram.max_memory_allocated(1), now + (2 << 20))
        self.assertEqual(hologram.max_memory_allocated(0), zero)
        torch.accelerator.reset_peak_memory_stats(1)
        self.assertEqual(hologram.max_memory_allocated(1), now)

    def test_limits(self):
        total = hologram.get_device_properties(1).total_memory
        hologram.set_per_process_memory_fraction(
            (hologram.memory_reserved(1) + (8 << 20)) / total, 1
        )
        big = 64 << 20
        for make in (
            lambda: torch.empty(big, dtype=torch.uint8, device=ONE),
            lambda: torch.empty(big, dtype=torch.uint8, device=ZERO).to(ONE),
        ):
            with self.assertRaisesRegex(
                torch.OutOfMemoryError, r"out of memory. Tried to allocate 64.*hologram:1"
            ):
                make()
        self.assertEqual(hologram.memory_stats(1)["num_ooms"], 2)
        self.assertEqual(hologram.memory_stats(0)["num_ooms"], 0)
        torch.empty(big, dtype=torch.uint8, device=ZERO)
        torch.empty(1 << 20, dtype=torch.uint8, device=ONE)

    def test_snapshot_and_summary(self):
        x = [torch.empty(1 << 21, dtype=torch.uint8, device=d) for d in (ZERO, ONE)]
        for tensor in x:
            segment = next(
                segment
                for segment in hologram.memory_snapshot()
                if 0 <= tensor.data_ptr() - segment["address"] < segment["total_size"]
            )
            self.assertEqual(segment["device"], tensor.device.index)
        self.assertIn("hologram:1 memory", hologram.memory_summary(1))

    def test_empty_cache(self):
        for device in (ZERO, ONE):
            torch.empty(16 << 20, dtype=torch.uint8, device=device)
        before = [hologram.memory_reserved(index) for index in range(2)]
        hologram.empty_cache()
        for index in range(2):
            self.assertLessEqual(hologram.memory_reserved(index), before[index] - (16 << 20))

    def test_total(self):
        for index in range(2):
            free, total = hologram.mem_get_info(index)
            self.assertEqual(total, hologram.get_device_properties(index).total_memory)
            self.assertTrue(0 < free <= total)


class TestRandom(SeveralDevicesTestCase):
    def draw(self) -> list[list[float]]:
        return [torch.rand(4, device=device).tolist() for device in (ZERO, ONE)]

    def test_seeds(self):
        for seed in (torch.manual_seed, hologram.manual_seed_all):
            seed(7)
            zero, one = self.draw()
            self.assertEqual(zero, one)
            self.assertEqual(
                zero, torch.rand(4, generator=torch.Generator().manual_seed(7)).tolist()
            )
        with hologram.device(1):
            hologram.manual_seed(7)  # of the current device only
            self.assertEqual(hologram.initial_seed(), 7)
        again = self.draw()
        self.assertEqual(again[1], one)
        self.assertNotEqual(again[0], zero)
        hologram.seed_all()
        zero, one = self.draw()
        self.assertEqual(zero, one)
        hologram.seed()
        zero, one = self.draw()
        self.assertNotEqual(zero, one)

    def test_states(self):
        hologram.manual_seed_all(7)
        torch.rand(3, device=ONE)
        states = hologram.get_rng_state_all()
        self.assertEqual(len(states), 2)
        self.assertNotEqual(states[0].tolist(), states[1].tolist())
        drawn = self.draw()
        hologram.set_rng_state_all(states)
        self.assertEqual(self.draw(), drawn)
        hologram.set_rng_state(states[1], ONE)
        hologram.set_rng_state(states[0], "hologram:0")
        self.assertEqual(self.draw(), drawn)
        self.assertEqual(hologram.get_rng_state(1), hologram.default_generators[1].get_state())

    def test_fork_rng(self):
        for devices in ([0, 1], ["hologram:0", "hologram:1"], range(2)):
            with torch.random.fork_rng(devices, device_type="hologram"):
                inside = self.draw()
            self.assertEqual(self.draw(), inside)
        with torch.random.fork_rng([1], device_type="hologram"):
            inside = self.draw()
        outside = self.draw()
        self.assertEqual(outside[1], inside[1])
        self.assertNotEqual(outside[0], inside[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that all devices are meant
            with self.assertRaises(KeyError), torch.random.fork_rng(device_type="hologram"):
                inside = self.draw()
                raise KeyError
        self.assertEqual(self.draw(), inside)

    def test_generators(self):
        generators = [torch.Generator(device).manual_seed(3) for device in (ZERO, ONE)]
        wanted = torch.rand(4, generator=torch.Generator().manual_seed(3))
        for generator, (device, _) in zip(generators, BOTH_WAYS, strict=True):
            self.assertEqual(generator.device, device)
            self.assertSame(torch.rand(4, device=device, generator=generator), wanted, device)
            copied = generator.clone_state()
            self.assertEqual(copied.device, device)
        for generator, (_, other) in zip(generators, BOTH_WAYS, strict=True):
            state = generator.get_state()
            for call in (
                lambda g, d: torch.rand(2, device=d, generator=g),
                lambda g, d: torch.ones(2, device=d).normal_(generator=g),
                lambda g, d: torch.randperm(4, device=d, generator=g),
                lambda g, d: torch.multinomial(torch.ones(3, device=d), 1, generator=g),
            ):
                with self.assertRaisesRegex(RuntimeError, f"{other}.*{generator.device}"):
                    call(generator, other)
            self.assertEqual(generator.get_state(), state, "drawn from by a call that was refused")

    def test_wrong_seed(self):
        for wrong in (2**64, -(2**63) - 1):
            for seed in (torch.manual_seed, hologram.manual_seed, hologram.manual_seed_all):
                with self.assertRaisesRegex((ValueError, RuntimeError), "Overflow"):
                    seed(wrong)
                hologram.init()  # would apply what was kept of it
        hologram.manual_seed_all(-1)
        self.assertEqual(hologram.initial_seed(), 2**64 - 1)

    def test_checkpoint(self):
        # Of the devices of the arguments, torch restores the generators.
        for reentrant in (True, False):
            x = [torch.ones(50, device=d, requires_grad=True) for d in (ZERO, ONE)]
            y = checkpoint(
                lambda a, b: (nn.functional.dropout(a) * 2, nn.functional.dropout(b) * 3),
                *x,
                use_reentrant=reentrant,
            )
            # On one thread: torch recomputes for the first that asks, and takes no lock for it.
            with torch.autograd.set_multithreading_enabled(False):
                (y[0].sum().to(ONE) + y[1].sum()).backward()
            self.assertEqual(x[0].grad, y[0].detach())
            self.assertEqual(x[1].grad, y[1].detach())


class CurrentDeviceInBackward(torch.autograd.Function):
    """Identity, which notes the device and the thread of its backward."""

    seen: ClassVar[list[tuple[int, int, int]]] = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        CurrentDeviceInBackward.seen.append(
            (grad.device.index, hologram.current_device(), threading.get_ident())
        )
        return grad


class TestAutograd(SeveralDevicesTestCase):
    def test_gradients_cross_devices(self):
        x = torch.ones(3, device=ZERO, requires_grad=True)
        w = torch.arange(3.0, device=ONE, requires_grad=True)
        y = (x * 2).to(ONE) * w
        z = y.to(ZERO).sum() + x.sum()
        z.backward()
        self.assertSame(x.grad, torch.tensor([1.0, 3, 5]), ZERO)
        self.assertSame(w.grad, torch.full((3,), 2.0), ONE)
        (grad,) = torch.autograd.grad((x.to(ONE) ** 3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.sum(), x)
        self.assertSame(second, torch.full((3,), 6.0), ZERO)

    @parametrize("device_threads", (False, True))
    def test_threads(self, device_threads):
        """The thread that calls, or one for each device where torch is told so."""
        CurrentDeviceInBackward.seen.clear()
        note = CurrentDeviceInBackward.apply
        x = torch.ones(3, device=ZERO, requires_grad=True)
        with torch.autograd.set_multithreading_enabled(device_threads):
            note(note(note(x * 2).to(ONE) * 3).to(ZERO) * 4).sum().backward()
        self.assertEqual(
            [row[:2] for row in CurrentDeviceInBackward.seen], [(0, 0), (1, 1), (0, 0)]
        )
        threads = [row[2] for row in CurrentDeviceInBackward.seen]
        self.assertEqual(threads[0], threads[2])
        expected = 3 if device_threads else 1
        self.assertEqual(len({*threads, threading.get_ident()}), expected)

    def test_error_in_a_device_thread(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                raise KeyError("in the backward")

        x = torch.ones(3, device=ZERO, requires_grad=True)
        with self.assertRaisesRegex(KeyError, "in the backward"):
            Fails.apply(x.to(ONE)).sum().backward()
        x.to(ONE).sum().backward()
        self.assertSame(x.grad, torch.ones(3), ZERO)

    def test_backward_in_several_threads(self):
        def run(device: torch.device, other: torch.device) -> None:
            for _ in range(20):
                x = torch.ones(100, device=device, requires_grad=True)
                (x.to(other) * 3).sum().backward()
                results.append((x.grad.device == device, x.grad.sum().item()))

        results = []
        threads = [threading.Thread(target=run, args=BOTH_WAYS[n % 2]) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(results, [(True, 300.0)] * 80)

    def test_transforms_and_hooks(self):
        x = torch.rand(3, 3)
        for device, _ in BOTH_WAYS:
            y = x.to(device)
            self.assertSame(torch.func.vmap(torch.sum)(y), torch.func.vmap(torch.sum)(x), device)
            self.assertSame(torch.func.grad(lambda t: (t * t).sum())(y), 2 * x, device)
            tangent = torch.func.jvp(torch.square, (y,), (y,))[1]
            self.assertSame(tangent, torch.func.jvp(torch.square, (x,), (x,))[1], device)
            leaf = y.clone().requires_grad_()
            with torch.autograd.graph.save_on_cpu():
                out = (leaf * 2).square().sum()
            out.backward()
            self.assertSame(leaf.grad, 8 * x, device)


class Halves(nn.Module):
    """A model whose second half may be on another device."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(144, 16),
        )
        self.second = nn.Sequential(nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).to(self.second[2].weight.device))


def train(model: Halves, device: torch.device, there: torch.device, steps: int = 5, **options):
    """Trains on fixed data.

    Returns:
        the losses, and the parameters and buffers at the end, on the CPU.
    """
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, **options)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 1, 8, 8, generator=generator).to(device)
        labels = torch.randint(0, 5, (8,), generator=generator).to(there)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, True),
    "Adam": (torch.optim.Adam, {"lr": 0.1}, True),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1, "amsgrad": True}, True),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}, True),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.5}, False),
    "Adadelta": (torch.optim.Adadelta, {}, False),
}


class TestTraining(SeveralDevicesTestCase):
    def model(self) -> Halves:
        torch.manual_seed(0)
        return Halves()

    def split(self) -> Halves:
        model = self.model()
        model.first.to(ZERO)
        model.second.to(ONE)
        return model

    @parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
    def test_split_model(self, options):
        cpu = torch.device("cpu")
        losses, wanted = train(self.model(), cpu, cpu, **options)
        split_losses, state = train(self.split(), ZERO, ONE, **options)
        # The clipped norm is a sum over two devices, taken in another order than on one.
        self.assertEqual(split_losses, losses)
        self.assertEqual(state, wanted)
        self.assertLess(losses[-1], losses[0] * 2)

    def test_split_model_is_the_same_bit_for_bit(self):
        x = torch.randn(8, 1, 8, 8)
        model, split = self.model().to(ZERO), self.split()
        y = model(x.to(ZERO))
        z = split(x.to(ZERO))
        self.assertSame(z.detach(), y.detach().cpu(), ONE)
        y.square().sum().backward()
        z.square().sum().backward()
        for a, b in zip(split.parameters(), model.parameters(), strict=True):
            self.assertSame(a.grad, b.grad.cpu(), a.device)

    @parametrize("name", list(OPTIMIZERS))
    def test_optimizers(self, name):
        make, options, fused = OPTIMIZERS[name]
        for mode in ({}, {"foreach": True}, {"foreach": False}, {"fused": True})[
            : 4 if fused else 3
        ]:
            torch.manual_seed(0)
            values = [torch.randn(3, 4), torch.randn(5), torch.randn(2, 2), torch.randn(7)]
            places = (ZERO, ONE, ONE, ZERO)
            ours = [nn.Parameter(v.to(d)) for v, d in zip(values, places, strict=True)]
            theirs = [nn.Parameter(v.clone()) for v in values]
            pair = make(ours, **options, **mode), make(theirs, **options, **mode)
            for _ in range(3):
                for p, q in zip(ours, theirs, strict=True):
                    q.grad = torch.randn_like(q)
                    p.grad = q.grad.to(p.device)
                for optimizer in pair:
                    optimizer.step()
                pair[0].load_state_dict(copy.deepcopy(pair[0].state_dict()))
            for p, q, device in zip(ours, theirs, places, strict=True):
                self.assertClose(p.detach(), q.detach(), device)
                for key, value in pair[0].state[p].items():
                    if isinstance(value, torch.Tensor) and value.dim() > 0:
                        self.assertEqual(value.device, device, key)

    @parametrize("fused", [False, True])
    def test_grad_scaler(self, fused):
        model = self.split()
        parameters = list(model.parameters())
        optimizer = torch.optim.Adam(parameters, lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("hologram", init_scale=8.0, growth_interval=100)

        def backward() -> None:
            optimizer.zero_grad()
            with torch.autocast("hologram", dtype=torch.float16):
                y = model(torch.randn(4, 1, 8, 8).to(ZERO))
            self.assertEqual((y.dtype, y.device), (torch.float16, ONE))
            scaler.scale(y.float().square().mean()).backward()

        for _ in range(2):
            before = [p.detach().clone() for p in parameters]
            backward()
            if not fused:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            self.assertEqual(scaler.get_scale(), 8.0)
            for p, old in zip(parameters, before, strict=True):
                self.assertTrue(p.isfinite().all())
                self.assertFalse(torch.equal(p, old))
        # An infinity on one device skips the step on both.
        for bad in (parameters[0], parameters[-1]):
            before = [p.detach().clone() for p in parameters]
            scale = scaler.get_scale()
            backward()
            bad.grad.view(-1)[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            self.assertEqual(scaler.get_scale(), scale / 2)
            for p, old in zip(parameters, before, strict=True):
                self.assertTrue(torch.equal(p, old))

    def test_clipping(self):
        for foreach in (None, True, False):
            for clip in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
                pair = [
                    [nn.Parameter(torch.ones(3, device=d)) for d in (ZERO, ONE)] for _ in range(2)
                ]
                pair[1] = [nn.Parameter(p.detach().cpu()) for p in pair[1]]
                for parameters in pair:
                    for n, p in enumerate(parameters):
                        p.grad = torch.full_like(p, 2.0 + n)
                norms = [clip(parameters, 0.5, foreach=foreach) for parameters in pair]
                if norms[1] is not None:
                    self.assertSame(norms[0], norms[1], ZERO)
                for p, q in zip(*pair, strict=True):
                    self.assertSame(p.grad, q.grad, p.device)

    def test_pipeline(self):
        # Two stages in two threads, joined by a queue; micro-batches; gradients add up.
        model, split = self.model().eval(), self.split().eval()
        batches = torch.randn(6, 4, 1, 8, 8)
        between: queue.Queue = queue.Queue(maxsize=2)
        outputs, errors = [], []

        def first() -> None:
            try:
                for batch in batches:
                    between.put(split.first(batch.to(ZERO)).to(ONE))
            except BaseException as error:
                errors.append(error)
            between.put(None)

        def second() -> None:
            try:
                while (hidden := between.get(timeout=60)) is not None:
                    outputs.append(split.second(hidden))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=stage) for stage in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(errors, [])
        sum(y.square().sum() for y in outputs).backward()
        wanted = [model(batch) for batch in batches]
        sum(y.square().sum() for y in wanted).backward()
        for y, other in zip(outputs, wanted, strict=True):
            self.assertClose(y.detach(), other.detach(), ONE)
        for p, q in zip(split.parameters(), model.parameters(), strict=True):
            self.assertEqual(p.grad.cpu(), q.grad)


class Net(nn.Module):
    """Parameters and buffers of several kinds, for replicas of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.output = nn.Linear(8, 3)
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.register_buffer("shift", torch.randn(3))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        y = self.output(self.norm(self.hidden(x)).relu()) * scale
        return y * self.phase.abs() + self.shift


class TestComm(SeveralDevicesTestCase):
    """torch.nn.parallel.comm, under the name that torch.cuda has for it."""

    def test_names(self):
        self.assertEqual(sorted(hologram.comm.__all__), sorted(torch.cuda.comm.__all__))
        for name in hologram.comm.__all__:
            self.assertIs(getattr(hologram.comm, name), getattr(torch.cuda.comm, name))

    def test_broadcast(self):
        x = torch.arange(6.0, device=ONE)
        zero, one = hologram.comm.broadcast(x, [0, "hologram:1"])
        self.assertIs(one, x)
        self.assertSame(zero, x.cpu(), ZERO)
        for copied, device in zip(comm.broadcast(x.cpu(), [0, 1]), (ZERO, ONE), strict=True):
            self.assertSame(copied, x.cpu(), device)
        out = [torch.zeros(6, device=d) for d in (ZERO, ONE)]
        for given, filled in zip(out, comm.broadcast(x, out=out), strict=True):
            self.assertIs(filled, given)
            self.assertEqual(filled.cpu(), x.cpu())

    def test_broadcast_coalesced(self):
        x = [torch.rand(3, device=ZERO), torch.rand(2, 2, device=ZERO).double()]
        same, copies = comm.broadcast_coalesced(x, [0, 1])
        for a, b, c in zip(x, same, copies, strict=True):
            self.assertIs(b, a)
            self.assertSame(c, a.cpu(), ONE)
        with self.assertRaisesRegex(RuntimeError, r"All tensors must be on devices\[0\]: 1"):
            comm.broadcast_coalesced(x, [1, 0])

    def test_scatter(self):
        x = torch.arange(10.0).reshape(5, 2)
        for source in (x, x.to(ZERO), x.to(ONE)):
            chunks = comm.scatter(source, [0, 1])
            self.assertSame(chunks[0], x[:3], ZERO)
            self.assertSame(chunks[1], x[3:], ONE)
            chunks = comm.scatter(source, [ONE, ZERO], chunk_sizes=[1, 1], dim=-1)
            self.assertSame(chunks[0], x[:, :1], ONE)
            streams = [hologram.Stream(0), None]
            self.assertSame(comm.scatter(source, [0, 1], streams=streams)[1], x[3:], ONE)
            out = [torch.zeros(4, 2, device=ONE), torch.zeros(1, 2, device=ZERO)]
            comm.scatter(source, out=out)
            self.assertSame(out[0], x[:4], ONE)
            self.assertSame(out[1], x[4:], ZERO)
        self.assertEqual(len(comm.scatter(x[:1], [0, 1])), 1)  # no more chunks than there are rows
        chunk = comm.scatter(z := x.to(ZERO), [0, 1])[0]
        self.assertEqual(chunk.data_ptr(), z.data_ptr())

    def test_gather(self):
        x = torch.rand(4, 3)
        parts = [x[:1].to(ONE), x[1:].to(ZERO)]
        self.assertSame(comm.gather(parts), x, ZERO)
        with hologram.device(1):
            self.assertSame(comm.gather(parts), x, ONE)
        for where in (1, "hologram:1", ONE):
            self.assertSame(comm.gather(parts, 0, where), x, ONE)
        self.assertSame(comm.gather(parts, 0, "cpu"), x, torch.device("cpu"))
        self.assertSame(comm.gather([p.t() for p in parts], -1, 1), x.t(), ONE)
        for device in (ZERO, ONE, "cpu"):
            out = torch.empty(4, 3, device=device)
            self.assertIs(comm.gather(parts, out=out), out)
            self.assertSame(out, x, torch.device(device))
        images = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
        joined = comm.gather([images[:1].to(ZERO), images[1:].to(ONE)], 0, 1)
        self.assertTrue(joined.is_contiguous(memory_format=torch.channels_last))
        self.assertSame(joined, images, ONE)

    def test_reduce_add(self):
        x = [torch.rand(3, device=d) for d in (ZERO, ONE)]
        wanted = x[0].cpu() + x[1].cpu()
        for destination, device in ((0, ZERO), (1, ONE), (None, ZERO)):
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # nothing about NCCL
                self.assertSame(comm.reduce_add(x, destination), wanted, device)
        sparse = [torch.eye(3, device=d).to_sparse() for d in (ZERO, ONE)]
        pairs = [[x[0], sparse[0]], [x[1], sparse[1]]]
        dense, added = comm.reduce_add_coalesced(pairs, 1)
        self.assertSame(dense, wanted, ONE)
        self.assertSame(added.to_dense(), 2 * torch.eye(3), ONE)

    def test_complex(self):
        # torch's functions return the real view of a complex tensor.
        x = torch.randn(4, dtype=torch.complex64)
        chunks = comm.scatter(x.to(ZERO), [0, 1])
        self.assertSame(torch.view_as_complex(chunks[1]), x[2:], ONE)

    def test_wrong_arguments(self):
        x = torch.ones(4, 2, device=ZERO)
        parts = [x, x.to(ONE)]
        wrong = {
            "non-negative device index, but got -1": lambda: comm.broadcast(x, [-1]),
            "index 2 is out of range": lambda: comm.broadcast(x, [0, 2]),
            "Exactly one of": lambda: comm.broadcast(x),
            r"output tensors to be hologram.*index 1 has device 'cpu'": lambda: comm.broadcast(
                x, out=[x.clone(), x.cpu()]
            ),
            "same shape as the source.*index 0": lambda: comm.broadcast(x, out=[x[1:].clone()]),
            "at least one device": lambda: comm.scatter(x, []),
            "len.chunk_sizes. = 1": lambda: comm.scatter(x, [0, 1], chunk_sizes=[4]),
            "split_with_sizes": lambda: comm.scatter(x, [0, 1], chunk_sizes=[1, 1]),
            r"stream at index 1 \(was 0\)": lambda: comm.scatter(
                x, [0, 1], streams=[None, hologram.Stream(0)]
            ),
            "at least one output tensor": lambda: comm.scatter(x, out=[]),
            "incorrect shape.*scatter dim 0": lambda: comm.scatter(x, out=[x[:, :1].clone()]),
            "Total size.*Expected 4, but got total size 3": lambda: comm.scatter(
                x, out=[x[1:].clone()]
            ),
            "input tensor at index 1 has device 'cpu'": lambda: comm.gather([x, x.cpu()]),
            "same number of dimensions": lambda: comm.gather([x, parts[1][0]]),
            "index 1 has invalid shape": lambda: comm.gather([x, parts[1][:, :1]]),
            r"shape \[8, 2\], but got \[7, 2\]": lambda: comm.gather(
                parts, out=torch.empty(7, 2, device=ONE)
            ),
        }
        for message, call in wrong.items():
            with self.assertRaisesRegex(RuntimeError, message):
                call()
        for call in (lambda: comm.scatter(x, [0], dim=2), lambda: comm.gather(parts, 2)):
            with self.assertRaisesRegex(IndexError, "Dimension out of range"):
                call()


class TestParallel(SeveralDevicesTestCase):
    """torch.nn.parallel, with torch's own code above comm."""

    def reference(self, net: Net, x: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, Net]:
        """The result, with gradients of the sum of its squares, of a copy on the CPU."""
        copied = copy.deepcopy(net).cpu()
        copied.zero_grad()
        y = copied(x, scale)
        y.square().sum().backward()
        return y.detach(), copied

    @parametrize("place", ["cpu", "hologram:0", "hologram:1"])
    def test_data_parallel(self, place):
        x = torch.randn(9, 6)
        net = Net().to(ZERO).eval()
        model = nn.DataParallel(net)
        self.assertEqual(model.device_ids, [0, 1])
        y = model(x.to(place), scale=2.0)
        wanted, copied = self.reference(net, x, 2.0)
        self.assertEqual(y.device, ZERO)
        self.assertEqual(y.detach().cpu(), wanted)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            y.square().sum().backward()
        for p, q in zip(net.parameters(), copied.parameters(), strict=True):
            self.assertEqual(p.grad.device, ZERO)
            self.assertEqual(p.grad.cpu(), q.grad)
        with torch.no_grad():
            self.assertEqual(model(x.to(place), scale=2.0).cpu(), wanted)

    def test_other_devices(self):
        x = torch.randn(5, 6)
        net = Net().to(ONE).eval()
        wanted, _ = self.reference(net, x)
        model = nn.DataParallel(net, device_ids=[ONE, ZERO], output_device=0)
        self.assertEqual(model(x).device, ZERO)
        self.assertEqual(model(x).cpu(), wanted)
        y = parallel.data_parallel(net, x, [1, 0], ONE)
        self.assertEqual(y.device, ONE)
        self.assertEqual(y.cpu(), wanted)
        self.assertEqual(nn.DataParallel(net, device_ids=[1])(x.to(ONE)).cpu(), wanted)
        with self.assertRaisesRegex(RuntimeError, r"hologram:0 \(device_ids\[0\]\).*hologram:1"):
            nn.DataParallel(net)(x)

    def test_training(self):
        torch.manual_seed(3)
        data = torch.randn(4, 8, 6)
        nets = [Net().to(ZERO), Net()]
        nets[0].norm, nets[1].norm = nn.LayerNorm(8, device=ZERO), nn.LayerNorm(8)
        models = [nn.DataParallel(nets[0]), nets[1]]
        for model, net in zip(models, nets, strict=True):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
            for batch in data:
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
        for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            self.assertEqual(p.detach().cpu(), q.detach())

    def test_buffers_of_the_first_replica(self):
        # As on CUDA, the replica on device_ids[0] shares the module's buffers.
        net = Net().to(ZERO).train()
        x = torch.randn(8, 6)
        nn.DataParallel(net)(x)
        self.assertEqual(net.norm.num_batches_tracked.item(), 1)
        alone = Net().train()
        alone(x[:4])
        self.assertEqual(net.norm.running_mean.cpu(), alone.norm.running_mean)

    def test_replicate_and_apply(self):
        x = torch.randn(4, 6)
        net = Net().to(ZERO).eval()
        wanted, _ = self.reference(net, x)
        for devices in ([0, 1], [ZERO, ONE], ["hologram:0", "hologram:1"]):
            replicas = parallel.replicate(net, devices)
            self.assertEqual(replicas[1].hidden.weight.device, ONE)
            self.assertEqual(replicas[1].phase.dtype, torch.complex64)
            inputs = parallel.scatter((x, {"key": [x, 3]}), devices)
            self.assertEqual(inputs[1][1]["key"][1], 3)
            self.assertSame(inputs[1][1]["key"][0], x[2:], ONE)
            outputs = parallel.parallel_apply(
                replicas, [part[0] for part in inputs], devices=devices
            )
            self.assertEqual([y.device for y in outputs], [ZERO, ONE])
            self.assertEqual(parallel.gather(outputs, ONE).device, ONE)
            self.assertEqual(parallel.gather(outputs, "cpu").detach(), wanted)

    def test_scatter_and_gather_have_gradients(self):
        x = torch.randn(4, dtype=torch.complex64).to(ZERO).requires_grad_()
        chunks = parallel.scatter(x, [0, 1])
        self.assertEqual([c.device for c in chunks], [ZERO, ONE])
        joined = parallel.gather([chunks[0] * 2, chunks[1] * 3], 1)
        self.assertEqual(joined.device, ONE)
        joined.abs().sum().backward()
        wanted = x.detach().cpu().requires_grad_()
        torch.cat([wanted[:2] * 2, wanted[2:] * 3]).abs().sum().backward()
        self.assertEqual(x.grad.cpu(), wanted.grad)
        zeros = [torch.tensor(1.0, device=d, requires_grad=True) for d in (ZERO, ONE)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that scalars become a vector
            parallel.gather(zeros, 0).prod().backward()
        self.assertEqual(zeros[1].grad.device, ONE)

    def test_error_in_a_replica(self):
        class Fails(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if x.device == ONE:
                    raise KeyError("on the second device")
                return super().forward(x)

        with self.assertRaisesRegex(KeyError, "in replica 1 on device 1"):
            nn.DataParallel(Fails(6, 2, device=ZERO))(torch.ones(4, 6))


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


class TestMoreDevicesThanCores(SeveralDevicesTestCase):
    DEVICES = 64

    def test_each_has_a_core_and_memory(self):
        names = set()
        for index in range(64):
            properties = hologram.get_device_properties(index)
            self.assertGreaterEqual(properties.multi_processor_count, 1)
            self.assertGreater(properties.total_memory, 0)
            names.add(properties.name)
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
        chunks = comm.scatter(torch.arange(64), range(64))
        self.assertEqual(comm.gather(chunks, 0, 63).tolist(), list(range(64)))


SEVERAL = SeveralDevicesTestCase.__subclasses__()


class TestInProcessesOfTheirOwn(HologramTestCase):
    @parametrize("devices", sorted({case.DEVICES for case in SEVERAL} - {hologram.device_count()}))
    def test_several(self, devices):
        process = run_python(
            """
            import sys, pytest
            sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[1:]]))
            """,
            *(f"{__file__}::{case.__name__}" for case in SEVERAL if devices == case.DEVICES),
            env=several_devices(devices) | {"HOLOGRAM_TEST_SHARD": "1/1"},
            timeout=300,
        )
        self.assertRegex(process.stdout, r"\n[1-9]\d* passed")
        self.assertNotIn("skipped", process.stdout)


WRONG_ENVIRONMENTS = {
    ("HOLOGRAM_CPU_DEVICES", "0"): "must be a number from 1 to 64, not '0'",
    ("HOLOGRAM_CPU_DEVICES", "65"): "must be a number from 1 to 64, not '65'",
    ("HOLOGRAM_POISON_FREED", "yes"): "must be 0 or 1, not 'yes'",
    ("HOLOGRAM_CPU_DEVICES", "abc"): "must be a number from 1 to 64, not 'abc'",
    ("HOLOGRAM_BACKENDS", "cuda"): "names 'cuda', which this build does not have (available: cpu); "
    "libhologram_cuda.so is in no folder of HOLOGRAM_BACKEND_PATH (which is not set)",
    ("HOLOGRAM_BACKENDS", "cpu,cpu"): "names 'cpu' twice",
    ("HOLOGRAM_BACKENDS", ""): "is empty",
    ("HOLOGRAM_EAGER", "yes"): "must be 0 or 1, not 'yes'",
    ("HOLOGRAM_CPU_ISA", "sse"): "is 'sse', but the instruction sets of this processor are: "
    + ", ".join(_C.instruction_sets()),
    (
        "HOLOGRAM_MEMORY_LIMIT",
        "lots",
    ): "must be a positive number of bytes with an optional suffix K, M, G or T, not 'lots'",
}


class TestEnvironment(HologramTestCase):
    """Variables that leave no device: CPU work goes on, and each use says what is wrong."""

    @parametrize("variable,value", list(WRONG_ENVIRONMENTS))
    def test_wrong(self, variable, value):
        message = f"{variable} {WRONG_ENVIRONMENTS[variable, value]}"
        process = run_python(
            """
            import sys, warnings
            warnings.simplefilter("error")
            import torch
            import torch_hologram

            message = "no hologram device is available: " + sys.argv[1]
            hologram = torch.hologram

            def on_the_cpu():
                torch.manual_seed(0)
                model = torch.nn.Linear(3, 2)
                model(torch.ones(4, 3)).sum().backward()
                assert model.weight.grad.tolist() == [[4.0] * 3] * 2
                with torch.random.fork_rng():
                    torch.rand(2)

            on_the_cpu()
            uses = [
                lambda: torch.ones(1, device="hologram"),
                lambda: torch.ones(1).to("hologram:0"),
                lambda: torch.ones(1).hologram(),
                lambda: torch.nn.Linear(2, 2).to("hologram"),
                lambda: torch.Generator("hologram"),
                lambda: hologram.init(),
                lambda: hologram.set_device(0),
                lambda: hologram.device(0).__enter__(),
                lambda: hologram.synchronize(),
                lambda: hologram.get_device_properties(),
                lambda: hologram.get_rng_state(),
                lambda: hologram.Stream(),
                lambda: hologram.Event(),
                lambda: hologram.mem_get_info(),
                lambda: hologram.alias_from_cpu(torch.ones(2)),
                lambda: torch.accelerator.set_device_index(0),
                lambda: torch.accelerator.current_stream(),
            ]
            for _ in range(2):
                for number, use in enumerate(uses):
                    try:
                        use()
                    except RuntimeError as error:
                        assert str(error).split("\\n")[0] == message, (number, str(error))
                    else:
                        raise AssertionError(f"use {number} was accepted")
                assert not hologram.is_initialized()
                on_the_cpu()

            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert hologram.device_count() == 0 and not hologram.is_available()
                assert not torch.accelerator.is_available()
                loader = torch.utils.data.DataLoader(torch.arange(4), pin_memory=True)
                assert [batch.item() for batch in loader] == [0, 1, 2, 3]
            # A device that was taken away on purpose is no mistake; a wrong value is, once.
            ours = [str(w.message) for w in caught if "hologram" in str(w.message)]
            assert ours == ([] if "is empty" in message else [message]), ours
            """,
            message,
            env={"HOLOGRAM_BACKENDS": "cpu", "HOLOGRAM_BACKEND_PATH": "", variable: value},
        )
        self.assertEqual(process.stderr, "")

    @parametrize(
        "variable,value,message",
        [
            (
                "HOLOGRAM_BACKENDS",
                "cuda,cpu",
                "HOLOGRAM_BACKENDS names 'cuda', which this build does not have (available: cpu); "
                "libhologram_cuda.so is in no folder of HOLOGRAM_BACKEND_PATH (which is not set)",
            ),
            (
                "HOLOGRAM_CPU_DEVICE",
                "2",
                "HOLOGRAM_CPU_DEVICE is no setting of torch_hologram: "
                "did you mean HOLOGRAM_CPU_DEVICES?",
            ),
        ],
    )
    def test_not_as_asked_for(self, variable, value, message):
        for first in ("torch.hologram.is_available()", 'torch.ones(1, device="hologram")'):
            run_python(
                """
                import sys, warnings
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    import torch
                    import torch_hologram
                    assert not caught, caught[0].message  # the CPU is all that was used
                    for _ in range(2):
                        assert eval(sys.argv[1])
                        assert torch.hologram.is_available()
                        assert torch.ones(2, device="hologram").sum().item() == 2
                assert [str(w.message) for w in caught] == [sys.argv[2]], caught
                assert caught[0].category is RuntimeWarning
                properties = torch.hologram.get_device_properties()
                assert (torch.hologram.device_count(), properties.backend) == (1, "cpu")
                """,
                first,
                message,
                env={"HOLOGRAM_BACKENDS": "cpu", "HOLOGRAM_BACKEND_PATH": "", variable: value},
            )

    def test_file_of_a_device_that_was_taken_away(self):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "tensor.pt")
            torch.save(torch.arange(3, device="hologram"), path)
            run_python(
                """
                import sys, torch
                try:
                    torch.load(sys.argv[1], weights_only=True)
                except RuntimeError as error:
                    assert "torch.hologram.is_available() is False" in str(error), error
                else:
                    raise AssertionError("loaded")
                x = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
                assert x.tolist() == [0, 1, 2]
                """,
                path,
                env={"HOLOGRAM_BACKENDS": ""},
            )


for case in (*SEVERAL, TestInProcessesOfTheirOwn, TestEnvironment):
    instantiate_parametrized_tests(case)
del case

if __name__ == "__main__":
    run_tests()
