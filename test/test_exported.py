"""Memory that somebody else may look at: the same kernels and bits, run at once and in order."""

from __future__ import annotations

import ctypes
import gc
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from common import BACKEND, HologramTestCase
from rows import ROWS
from test_pointwise_native import OTHER_NATIVE
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

import torch_hologram as hg
from torch_hologram import _C
from torch_hologram.custom.rows import NO_FUNCTIONS

hologram = torch.hologram
aten = torch.ops.aten
N = 999  # a whole number of vectors and a rest
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int64, torch.bool)
# The operators that are several rows, each in its forms. Operands: x, y, a third one, a condition.
COMPOSITES: dict[str, list[Callable[..., torch.Tensor]]] = {
    "addcmul": [lambda x, y, z: torch.addcmul(x, y, z, value=0.3)],
    "addcmul_": [lambda x, y, z: x.addcmul_(y, z)],
    "addcdiv": [lambda x, y, z: torch.addcdiv(x, y, z, value=0.3)],
    "addcdiv_": [lambda x, y, z: x.addcdiv_(y, z)],
    "lerp": [lambda x, y, z: torch.lerp(x, y, 0.3), lambda x, y, z: torch.lerp(x, y, 0.7)],
    "lerp_": [lambda x, y, z: x.lerp_(y, 0.3)],
    "silu": [lambda x, y, z: F.silu(x)],
    "silu_": [lambda x, y, z: F.silu(x, inplace=True)],
    "silu_backward": [lambda x, y, z: aten.silu_backward(x, y)],
    "sigmoid_backward": [lambda x, y, z: aten.sigmoid_backward(x, y)],
    "tanh_backward": [lambda x, y, z: aten.tanh_backward(x, y)],
    "threshold_backward": [lambda x, y, z: aten.threshold_backward(x, y, 0.1)],
    "gelu": [lambda x, y, z: F.gelu(x), lambda x, y, z: F.gelu(x, approximate="tanh")],
    "gelu_": [lambda x, y, z: aten.gelu_(x)],
    "gelu_backward": [
        lambda x, y, z: aten.gelu_backward(x, y),
        lambda x, y, z: aten.gelu_backward(x, y, approximate="tanh"),
    ],
    "clamp": [
        lambda x, y, z: x.clamp(-0.5, 0.5),
        lambda x, y, z: x.clamp(min=0.1),
        lambda x, y, z: x.clamp(max=0.1),
    ],
    "clamp_": [lambda x, y, z: x.clamp_(-0.5, 0.5)],
    "clamp_min": [lambda x, y, z: x.clamp_min(0.1)],
    "clamp_min_": [lambda x, y, z: x.clamp_min_(0.1)],
    "clamp_max": [lambda x, y, z: x.clamp_max(0.1)],
    "clamp_max_": [lambda x, y, z: x.clamp_max_(0.1)],
    "hardswish": [lambda x, y, z: F.hardswish(x)],
    "hardswish_": [lambda x, y, z: F.hardswish(x, inplace=True)],
    "hardswish_backward": [lambda x, y, z: aten.hardswish_backward(x, y)],
    "hardsigmoid": [lambda x, y, z: F.hardsigmoid(x)],
    "hardsigmoid_": [lambda x, y, z: F.hardsigmoid(x, inplace=True)],
    "hardsigmoid_backward": [lambda x, y, z: aten.hardsigmoid_backward(x, y)],
    "elu": [lambda x, y, z: F.elu(x, 0.7)],
    "elu_": [lambda x, y, z: F.elu(x, 0.7, inplace=True)],
    "rsub": [lambda x, y, z: torch.rsub(x, y, alpha=3), lambda x, y, z: 2 - x],
    "_fused_adagrad_": [lambda x, y, z: _step(torch.optim.Adagrad, x, y)],
    "_fused_adam_": [lambda x, y, z: _step(torch.optim.Adam, x, y)],
    "_fused_adamw_": [lambda x, y, z: _step(torch.optim.AdamW, x, y)],
    "_fused_sgd_": [lambda x, y, z: _step(torch.optim.SGD, x, y, momentum=0.9)],
}
# Forms of rows that are composites, and what is recorded without being either.
OTHERS: list[Callable[..., torch.Tensor]] = [
    *(lambda x, y, z, e=e: x**e for e in (2, 3, -2, 0.5, -0.5, -1, 1.7)),
    lambda x, y, z: torch.add(x, y, alpha=2),
    lambda x, y, z: x.sub_(y, alpha=2),
    lambda x, y, z: x * 2.5,
    lambda x, y, z: x.mul_(3),
    lambda x, y, z: x + y[:1],
    lambda x, y, z: x.view(3, -1).t() * y.view(-1, 3),
    lambda x, y, z: x.fill_(2),
    lambda x, y, z: x.zero_(),
    lambda x, y, z: x.copy_(y),
    lambda x, y, z: x.to(torch.float32),
    lambda x, y, z: x.to(torch.bfloat16),
    lambda x, y, z: torch.where(x > y, x, z),
    lambda x, y, z: hg.pointwise("exported_case", "tanh(x * y) + z / 3")(x, y, z),
]


def _step(optimizer: type, x: torch.Tensor, grad: torch.Tensor, **options: Any) -> torch.Tensor:
    x.requires_grad_(True).grad = grad
    optimizer([x], lr=0.1, fused=True, weight_decay=0.1, **options).step()
    return x.detach()


def _row(name: str) -> list[Callable[..., torch.Tensor]]:
    arity, function = ROWS[name]["arity"], getattr(torch, name)
    if name == "where":
        return [lambda x, y, z: torch.where(x != 0, y, z)]
    if name == "clamp":
        return []  # a composite
    cases = [lambda x, y, z: function(*(x, y, z)[:arity])]
    if hasattr(torch.Tensor, name + "_"):
        cases.append(lambda x, y, z: getattr(x, name + "_")(*(y, z)[: arity - 1]))
    if name not in ("relu",):
        cases.append(
            lambda x, y, z: function(
                *(x, y, z)[:arity], out=torch.empty_like(function(*(x, y, z)[:arity]))
            )
        )
    return cases


CASES = {
    **{name: _row(name) for name in ROWS if name not in NO_FUNCTIONS},
    **COMPOSITES,
    "others": OTHERS,
}


def data(dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (N,), generator=generator).bool()
    if not dtype.is_floating_point:
        return torch.randint(-9, 10, (N,), generator=generator)
    return (torch.randn(N, generator=generator) * 2).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().view(torch.uint8)


# Each gives a tensor of the device over the data that somebody else sees, and what sees it.


def _numpy(cpu: torch.Tensor) -> tuple[torch.Tensor, Any]:
    x = cpu.to("hologram")
    return x, np.from_dlpack(x.view(torch.uint8))


def _capsule(cpu: torch.Tensor) -> tuple[torch.Tensor, Any]:
    x = cpu.to("hologram")
    return x, hg.to_dlpack(x)


def _device_capsule(cpu: torch.Tensor) -> tuple[torch.Tensor, Any]:
    x = cpu.to("hologram")
    return x, torch.utils.dlpack.to_dlpack(x)


def _imported(cpu: torch.Tensor) -> tuple[torch.Tensor, Any]:
    x = cpu.to("hologram")
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)), x


def _alias(cpu: torch.Tensor) -> tuple[torch.Tensor, Any]:
    x = cpu.to("hologram")
    return x, hologram.alias_as_cpu(x)


def _buffer(cpu: torch.Tensor) -> tuple[torch.Tensor, Any]:
    x = cpu.to("hologram")
    buffer = hg.Executor(BACKEND).allocate(N * x.itemsize, "uint8")
    buffer.as_ptr()
    return buffer._data().view(x.dtype).copy_(x), buffer


def _foreign(cpu: torch.Tensor) -> tuple[torch.Tensor, Any]:
    array = cpu.view(torch.uint8).numpy().copy()
    return hg.from_numpy(array).view(cpu.dtype), array


def _slice(cpu: torch.Tensor) -> tuple[torch.Tensor, Any]:
    x = torch.cat([cpu, cpu]).to("hologram")
    half = x.untyped_storage()[N * x.itemsize :]
    return torch.empty(0, dtype=x.dtype, device="hologram").set_(half), x


HOLDERS = {
    "numpy": _numpy,
    "capsule": _capsule,
    "device_capsule": _device_capsule,
    "imported": _imported,
    "alias": _alias,
    "buffer": _buffer,
    "foreign": _foreign,
    "slice": _slice,
}


class TestBits(HologramTestCase):
    def test_every_recorded_operator_has_a_case(self):
        native = {
            name.removeprefix("aten::").split(".")[0]
            for name, kind in _C.operator_table()
            if kind == "native"
        }
        rows = {name + end for name in ROWS for end in ("", "_")}
        self.assertEqual(native - rows - OTHER_NATIVE - COMPOSITES.keys(), set())

    def run_case(self, case, tensors) -> tuple[torch.Tensor, ...] | type:
        """The result and the operands as the call leaves them; the exception where it raises."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = case(*tensors)
            except Exception as error:
                return type(error)
        return (bits(result), *(bits(tensor) for tensor in tensors))

    @pytest.mark.host_memory
    @parametrize("dtype", DTYPES)
    @parametrize("holder", HOLDERS)
    def test_bits_do_not_depend_on_who_looks(self, holder, dtype):
        values = [data(dtype, seed) for seed in range(3)]
        if dtype.is_floating_point:
            values[1] += 0.5  # not all of them around 0
        recorded = 0
        for name, cases in CASES.items():
            for number, case in enumerate(cases):
                alone = [value.to("hologram") for value in values]
                expected = self.run_case(case, alone)
                seen = [HOLDERS[holder](value) for value in values]
                hologram.synchronize()
                hologram.reset_fallback_report()
                hologram.reset_stream_stats()
                actual = self.run_case(case, [tensor for tensor, _ in seen])
                self.assertEqual(actual, expected, f"{name}, form {number}")
                counts = hologram.stream_stats()
                if counts["recorded"]:
                    recorded += 1
                    self.assertGreaterEqual(counts["flushes.exported"], 1, f"{name} {number}")
        # Of bool and int64 most go to torch's kernels with and without a view.
        self.assertGreater(recorded, 80 if dtype.is_floating_point else 20)

    def test_what_was_delegated_before(self):
        x = torch.randn(4096).to("hologram")
        expected = [x.exp().cpu(), x.sigmoid().cpu(), F.gelu(x).cpu()]
        y = x.clone()
        view = torch.utils.dlpack.to_dlpack(y)
        self.assertEqual(
            [y.exp().cpu(), y.sigmoid().cpu(), F.gelu(y).cpu()], expected, atol=0, rtol=0
        )
        del view

    @pytest.mark.host_memory
    def test_a_chain_over_fresh_results_is_still_fused(self):
        x = torch.randn(N).to("hologram")
        expected = ((x * 2 + 1).tanh() * 3).cpu()
        view = np.from_dlpack(x)
        hologram.reset_stream_stats()
        y = (x * 2 + 1).tanh() * 3
        self.assertEqual(hologram.stream_stats()["flushes.exported"], 1)
        self.assertEqual(y.cpu(), expected, atol=0, rtol=0)
        self.assertEqual(hologram.stream_stats()["passes"], 2)
        del view

    def test_a_reader_in_another_thread(self):
        x = torch.randn(50_000).to("hologram")
        expected, total = x.tanh().cpu(), x.sum().item()
        stop, wrong = threading.Event(), []

        def read():
            while not stop.is_set():
                if x.sum().item() != total:
                    wrong.append("sum")

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(300):
                if not torch.equal(x.tanh().cpu(), expected):
                    wrong.append("tanh")
        finally:
            stop.set()
            reader.join()
        self.assertEqual(wrong, [])

    @pytest.mark.host_memory
    def test_a_view_that_another_thread_makes(self):
        """What one thread records of the memory while another exports it is not left waiting."""
        for _ in range(200):
            x = torch.zeros(N, device="hologram")
            hologram.synchronize()
            started = threading.Barrier(2)
            views = []

            def export(x=x, started=started, views=views):
                started.wait()
                views.append(np.from_dlpack(x))

            thread = threading.Thread(target=export)
            thread.start()
            started.wait()
            for _ in range(20):
                x.add_(1)
            thread.join()
            self.assertEqual(views[0][-1], 20)


class TestOrder(HologramTestCase):
    @pytest.mark.host_memory
    def test_writes_of_both_sides(self):
        x = torch.arange(4.0, device="hologram")
        view = np.from_dlpack(x)
        y = x + 1  # before the write
        view[:] = 7
        z = x + 1
        x.mul_(2)
        self.assertEqual(view.tolist(), [14.0] * 4)
        self.assertEqual(y.tolist(), [1.0, 2, 3, 4])
        self.assertEqual(z.tolist(), [8.0] * 4)

    @pytest.mark.host_memory
    def test_a_view_that_is_gone(self):
        x = torch.arange(4.0, device="hologram")
        view = np.from_dlpack(x)
        x.add_(1)
        del view
        gc.collect()
        hologram.synchronize()
        hologram.reset_stream_stats()
        x.add_(1)
        self.assertEqual(hologram.stream_stats()["flushes.exported"], 0)
        self.assertEqual(x.tolist(), [2.0, 3, 4, 5])

    @pytest.mark.host_memory
    def test_an_alias_that_was_resized(self):
        """The CPU tensor has taken its memory elsewhere, which the device's tensor follows."""
        x = torch.arange(4.0, device="hologram")
        alias = hologram.alias_as_cpu(x)
        alias.resize_(100_000)[:4] = 5
        x.add_(1)
        self.assertEqual(x.tolist(), [6.0] * 4)
        self.assertEqual(alias[:4].tolist(), [6.0] * 4)


class TestSlicesOfStorages(HologramTestCase):
    def test_slice_is_synchronised(self):
        y = torch.arange(8.0, device="hologram") * 2
        t = torch.empty(0, device="hologram").set_(y.untyped_storage()[0:16])
        self.assertEqual(t.tolist(), [0.0, 2, 4, 6])

    @parametrize("offset", (0, 16))
    def test_writes_to_either_in_order(self, offset):
        first = offset // 4
        y = torch.arange(8.0, device="hologram") * 2
        model = torch.arange(8.0) * 2
        t = torch.empty(0, device="hologram").set_(y.untyped_storage()[offset : offset + 16])
        part = model[first : first + 4]
        for step in range(1, 5):
            y.add_(step)
            model.add_(step)
            t.mul_(2)
            part.mul_(2)
            z = t + y[first : first + 4]
            self.assertEqual(z.cpu(), part * 2)
            y.copy_(y * 0.5)
            model.copy_(model * 0.5)
            self.assertEqual(t.cpu(), part)
            self.assertEqual(y.cpu(), model)

    def test_delegated_calls_on_both(self):
        y = torch.arange(8.0, device="hologram") * 2
        t = torch.empty(0, device="hologram").set_(y.untyped_storage()[0:16])
        y.add_(1)
        self.assertEqual(t.flip(0).tolist(), [7.0, 5, 3, 1])
        t.sub_(1)
        self.assertEqual(y.sum().item(), 56 + 4)

    def test_the_slice_outlives_the_storage(self):
        y = torch.arange(8.0, device="hologram") * 2
        t = torch.empty(0, device="hologram").set_(y.untyped_storage()[16:])
        del y
        gc.collect()
        t.add_(1)
        self.assertEqual(t.tolist(), [9.0, 11, 13, 15])

    def test_a_slice_that_is_gone_costs_nothing(self):
        y = torch.arange(8.0, device="hologram")
        t = torch.empty(0, device="hologram").set_(y.untyped_storage()[0:16])
        self.assertEqual(t.tolist(), [0.0, 1, 2, 3])
        y.add_(1)
        del t
        gc.collect()
        hologram.synchronize()
        hologram.reset_stream_stats()
        y.add_(1)
        self.assertEqual(hologram.stream_stats()["executed"], 0)
        self.assertEqual(y.tolist(), [2.0 + i for i in range(8)])

    def test_other_memory_is_recorded_as_before(self):
        y = torch.arange(8.0, device="hologram")
        t = torch.empty(0, device="hologram").set_(y.untyped_storage()[0:16])
        self.assertEqual(t.tolist(), [0.0, 1, 2, 3])
        other = torch.arange(8.0, device="hologram")
        hologram.synchronize()
        hologram.reset_stream_stats()
        other.add_(1)
        self.assertEqual(hologram.stream_stats()["executed"], 0)
        self.assertEqual(other.sum().item(), 36)
        del t

    def test_statistics(self):
        y = torch.arange(8.0, device="hologram")  # of a vendor's kernels it is foreign itself
        gc.collect()
        before = hologram.memory_stats()["foreign_bytes.all.current"]
        t = torch.empty(0, device="hologram").set_(y.untyped_storage()[0:16])
        t.tolist()
        self.assertEqual(hologram.memory_stats()["foreign_bytes.all.current"], before + 16)
        del t
        gc.collect()
        self.assertEqual(hologram.memory_stats()["foreign_bytes.all.current"], before)

    def test_of_another_threads_flush(self):
        y = torch.zeros(N, device="hologram")
        t = torch.empty(0, device="hologram").set_(y.untyped_storage()[0 : 4 * N])
        done = []

        def work():
            for _ in range(200):
                y.add_(1)
            done.append(True)

        thread = threading.Thread(target=work)
        thread.start()
        while not done:
            t.cpu()
        thread.join()
        self.assertEqual(t.cpu(), torch.full((N,), 200.0))


def pending(value: float = 1.0) -> torch.Tensor:
    """Memory that holds zeros, and an instruction not yet executed that makes them `value`."""
    x = torch.zeros(N, device="hologram")
    hologram.synchronize()
    x.add_(value)
    return x


def _addressed(address: int) -> float:
    return (ctypes.c_float * N).from_address(address)[N - 1]


class TestBelowThePublicNames(HologramTestCase):
    """Ways to memory that torch's own public methods go, and programs now and then take."""

    @pytest.mark.host_memory
    def test_data_ptr_of_the_base_class(self):
        self.assertEqual(_addressed(torch._C.TensorBase.data_ptr(pending())), 1.0)
        self.assertEqual(_addressed(torch.Tensor.data_ptr(pending())), 1.0)
        if hasattr(torch._C.TensorBase, "const_data_ptr"):
            self.assertEqual(_addressed(torch._C.TensorBase.const_data_ptr(pending())), 1.0)
        x = torch.ones(3)
        self.assertEqual(torch._C.TensorBase.data_ptr(x), x.untyped_storage().data_ptr())

    @parametrize("name", ("_to_dlpack", "_to_dlpack_versioned"))
    def test_capsules(self, name):
        x = pending()
        capsule = getattr(torch._C, name)(x)
        x.add_(1)
        self.assertEqual(torch._C._from_dlpack(capsule).cpu()[-1].item(), 2.0)
        cpu = torch.ones(3)
        self.assertEqual(torch._C._from_dlpack(getattr(torch._C, name)(cpu)), cpu)

    def test_byteswap(self):
        x = pending()
        x.untyped_storage().byteswap(torch.float32)
        expected = torch.ones(N)
        expected.untyped_storage().byteswap(torch.float32)
        self.assertEqual(x.cpu(), expected)
        y = x * 1  # pending, of the swapped values
        x.untyped_storage().byteswap(torch.float32)
        self.assertEqual(x.cpu(), torch.ones(N))
        self.assertEqual(y.cpu(), expected)

    def test_write_file_and_set_from_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "storage")
            with path.open("wb") as file:
                pending().untyped_storage()._write_file(file, True, True, 1)
            self.assertEqual(np.fromfile(path, np.float32, offset=8).tolist(), [1.0] * N)
            x = pending(5.0)
            y = x * 2
            with path.open("rb") as file:
                x.untyped_storage()._set_from_file(file, 0, True, 1)
            self.assertEqual(x.cpu(), torch.ones(N))
            self.assertEqual(y.cpu(), torch.full((N,), 10.0))

    def test_items_of_slices(self):
        x = pending()
        whole = x.cpu().view(torch.uint8).tolist()
        x.add_(0)
        self.assertEqual(x.untyped_storage()[0:16].tolist(), whole[:16])
        x.add_(0)
        self.assertEqual(x.untyped_storage()[8:16][7], whole[15])

    @pytest.mark.host_memory
    def test_address_of_a_slice(self):
        x = pending()
        self.assertEqual(
            (ctypes.c_float * 4).from_address(x.untyped_storage()[0:16].data_ptr())[3], 1.0
        )


instantiate_parametrized_tests(TestBits)
instantiate_parametrized_tests(TestSlicesOfStorages)
instantiate_parametrized_tests(TestBelowThePublicNames)

if __name__ == "__main__":
    run_tests()
