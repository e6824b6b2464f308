"""Calls of torch's kernels that are recorded once their results are known."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from common import ASYNCHRONOUS, CUDA_KERNELS, OWN_PRODUCTS, ROOT, HologramTestCase
from torch import Tensor
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_hologram import _C


def randn(*sizes: int) -> Tensor:
    return torch.randn(sizes)


def indices(*sizes: int, below: int = 6) -> Tensor:
    return torch.randint(below, sizes)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def put(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x = x.clone()
    x[i] = v
    return x


def filled(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1:3].fill_(2)
    x[1:, ::2].zero_()
    return x


# What is called, and what makes its arguments. Each call is of the same shapes and other values.
CASES: dict[str, tuple[Callable[..., object], Callable[[], tuple[Tensor, ...]]]] = {
    "index_select": (lambda x, i: x.index_select(0, i), lambda: (randn(6, 4), indices(5))),
    "index": (lambda x, i, j: x[i, j], lambda: (randn(6, 6), indices(5), indices(2, 1))),
    "index with a gap": (lambda x, i: x[:, i], lambda: (randn(3, 6, 2), indices(4))),
    "index_put": (put, lambda: (randn(6, 4), torch.randperm(6)[:3], randn(3, 4))),
    "gather": (lambda x, i: x.gather(1, i), lambda: (randn(4, 6), indices(4, 3))),
    "scatter": (
        lambda x, i, v: x.scatter(1, i, v),
        lambda: (randn(2, 6), torch.stack([torch.randperm(6), torch.randperm(6)]), randn(2, 6)),
    ),
    "scatter_add": (
        lambda x, i, v: x.scatter_add(0, i, v),
        lambda: (randn(6, 3), indices(4, 3), randn(4, 3)),
    ),
    "index_add": (
        lambda x, i, v: x.index_add(0, i, v),
        lambda: (randn(6, 3), indices(4), randn(4, 3)),
    ),
    "embedding": (lambda i, w: F.embedding(i, w), lambda: (indices(2, 5), randn(6, 4))),
    "cat": (lambda x, y: torch.cat([x, y, x], 1), lambda: (randn(3, 2), randn(3, 4))),
    "cat behind nothing": (
        lambda x: torch.cat([x.new_empty(0), x], -2),
        lambda: (randn(2, 3, 4),),
    ),
    "cat channels last": (
        lambda x: torch.cat([x, x], 1),
        lambda: (randn(2, 3, 4, 5).to(memory_format=torch.channels_last),),
    ),
    "copy": (lambda x: x.permute(2, 0, 1).contiguous(), lambda: (randn(3, 4, 5),)),
    "copy of another dtype": (
        lambda x: x.new_empty(5, 4, dtype=torch.bfloat16).copy_(x.t()),
        lambda: (randn(4, 5),),
    ),
    "fill": (filled, lambda: (randn(4, 6),)),
    "tril": (lambda x: x.tril(-1), lambda: (randn(5, 5),)),
    "flip": (lambda x: x.flip(0), lambda: (randn(5, 2),)),
    "sort": (lambda x: x.sort(1), lambda: (randn(3, 7),)),
    "topk": (lambda x: x.topk(2), lambda: (randn(3, 7),)),
    "pad": (lambda x: F.pad(x, (1, 2), mode="reflect"), lambda: (randn(2, 3, 8),)),
    "baddbmm": (
        lambda x, a, b: torch.baddbmm(x, a, b),
        lambda: (randn(2, 3, 5), randn(2, 3, 4), randn(2, 4, 5)),
    ),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        lambda: (randn(2, 3, 8, 8), randn(4, 3, 3, 3), randn(4)),
    ),
    "convolution channels last": (
        lambda x, w: F.conv2d(x, w, stride=2),
        lambda: (randn(2, 8, 9, 9).to(memory_format=torch.channels_last), randn(4, 8, 3, 3)),
    ),
    "convolution in groups": (
        lambda x, w: F.conv1d(x, w, groups=2),
        lambda: (randn(2, 4, 9), randn(4, 2, 3)),
    ),
    "transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2),
        lambda: (randn(1, 3, 4, 4), randn(3, 2, 2, 2)),
    ),
    "attention": (attention, lambda: (randn(2, 2, 8, 4), randn(2, 2, 8, 4), randn(2, 2, 8, 4))),
    "max_pool": (
        lambda x: F.max_pool2d(x, 2, return_indices=True),
        lambda: (randn(2, 3, 8, 8),),
    ),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), lambda: (randn(2, 3, 8, 8),)),
    "upsample": (
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
        lambda: (randn(1, 2, 4, 4),),
    ),
}  # fmt: skip


def to_device(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [tensor.to("hologram") for tensor in tensors]


def flushes() -> int:
    stats = torch.hologram.stream_stats()
    return sum(count for name, count in stats.items() if name.startswith("flushes."))


class TestLearnedCalls(HologramTestCase):
    @parametrize("name", CASES)
    def test_as_on_the_cpu(self, name):
        """The first call, the one that is recorded, and those after it."""
        function, make = CASES[name]
        torch.manual_seed(0)
        for _ in range(4):
            given = make()
            wanted = function(*given)
            mine = function(*to_device(given))
            self.assertEqual(mine, wanted)
            if isinstance(wanted, Tensor) and not CUDA_KERNELS:  # whose layouts are their choice
                self.assertEqual(mine.stride(), wanted.stride())

    @parametrize("name", [name for name in CASES if name != "index_put"])
    def test_gradients(self, name):
        function, make = CASES[name]
        torch.manual_seed(0)
        for _ in range(4):
            given = make()
            sides = []
            for device in ("cpu", "hologram"):
                leaves = [
                    x.detach().to(device).requires_grad_(x.is_floating_point()) for x in given
                ]
                result = function(*leaves)
                outputs = [result] if isinstance(result, Tensor) else list(result)
                loss = sum((y.float() * y.float()).sum() for y in outputs if y.requires_grad)
                loss.backward()
                sides.append([x.grad for x in leaves if x.grad is not None])
            # Gradients of a convolution are long sums, in an order of cuDNN's.
            rough = {"rtol": 1e-4, "atol": 1e-4} if CUDA_KERNELS and "convolution" in name else {}
            self.assertEqual(sides[1], sides[0], **rough)

    @pytest.mark.cpu_kernels  # a vendor's are launched behind the program, and are no part of it
    @parametrize("name", CASES)
    def test_ends_no_program(self, name):
        if OWN_PRODUCTS and name == "attention":
            self.skipTest("the queue's own kernels are launched behind the program as well")
        function, make = CASES[name]
        torch.manual_seed(0)
        for _ in range(3):
            given = to_device(make())
            torch.hologram.synchronize()
            torch.hologram.reset_stream_stats()
            result = function(*given)
            ended = flushes()
            torch.hologram.synchronize()
            del result
        self.assertEqual(ended, 0)
        # A strided copy is the queue's own where that goes on by itself.
        if not (name == "copy" and ASYNCHRONOUS):
            self.assertGreater(torch.hologram.stream_stats()["calls"], 0)

    def test_in_eager_mode(self):
        x = randn(3, 4, 5)
        mine = x.to("hologram")
        with torch.hologram.eager():
            for _ in range(3):
                self.assertEqual(mine.permute(2, 0, 1).contiguous(), x.permute(2, 0, 1))

    def test_other_shapes(self):
        for rows in (2, 3, 2, 5, 3):
            x, i = randn(6, rows), indices(rows)
            self.assertEqual(x.to("hologram").index_select(0, i.to("hologram")), x[i])

    def test_numbers_are_part_of_what_is_known(self):
        x = randn(4, 4)
        mine = x.to("hologram")
        for diagonal in (0, 1, 0, -1, 1):
            self.assertEqual(mine.tril(diagonal), x.tril(diagonal))

    def test_what_is_written_may_be_shared(self):
        x = randn(4, 6).to("hologram")
        seen = torch.from_dlpack(x)
        for value in (1, 2, 3):
            x[:, 1:3].fill_(value)
            self.assertEqual(seen[:, 1:3], torch.full((4, 2), float(value)).to(seen.device))

    def test_onto_itself(self):
        x = torch.arange(12.0)
        mine = x.to("hologram")
        for _ in range(3):
            mine[1:].copy_(mine[:-1].clone())
            x[1:].copy_(x[:-1].clone())
            square, own = x[:9].view(3, 3), mine[:9].view(3, 3)
            square.copy_(square.t().clone())
            own.copy_(own.t().clone())
        self.assertEqual(mine, x)

    def test_a_later_write_comes_later(self):
        x, i = randn(6, 4), indices(3)
        mine, where = x.to("hologram"), i.to("hologram")
        for _ in range(3):
            rows = mine.index_select(0, where)
            mine.mul_(2)
            self.assertEqual(rows, x.index_select(0, i))
            x.mul_(2)

    def test_masks_are_counted_at_once(self):
        x = randn(8)
        mine = x.to("hologram")
        for cut in (0.0, 0.5, 10.0):
            self.assertEqual(mine[mine > cut], x[x > cut])

    def test_deterministic_algorithms(self):
        x, i, v = (t.to("hologram") for t in (randn(6, 3), indices(4, 3), randn(4, 3)))
        before = x.scatter_add(0, i, v)
        torch.use_deterministic_algorithms(True)
        try:
            self.assertEqual(x.scatter_add(0, i, v), before)
        finally:
            torch.use_deterministic_algorithms(False)


class TestTable(HologramTestCase):
    def test_rows_are_of_operators_that_reach_it(self):
        """Every one has an overload with a kernel for the device, or is called by such a one."""
        source = (ROOT / "csrc/aten/learned_call.cpp").read_text()
        table = source.partition("learnable() {")[2].partition("return *names;")[0]
        rows = set(re.findall(r'"(\w+)"', table))
        self.assertGreater(len(rows), 60)
        served = {name.removeprefix("aten::").split(".")[0] for name, _ in _C.operator_table()}
        self.assertEqual(rows - served, {"convolution", "convolution_backward"})


class TestBadInput(HologramTestCase):
    @pytest.mark.device_assert
    def test_index_out_of_range(self):
        x = randn(6, 4).to("hologram")
        good, bad = (torch.tensor(i).to("hologram") for i in ([0, 5], [0, 6]))
        for _ in range(2):
            self.assertEqual(x.index_select(0, good).cpu(), x.cpu()[[0, 5]])
        with self.assertRaisesRegex(IndexError, "index out of range"):
            x.index_select(0, bad).cpu()
        self.assertEqual(x.index_select(0, good), x.cpu()[[0, 5]])

    @pytest.mark.device_assert
    def test_what_depends_on_it_fails_and_the_rest_is_done(self):
        x = randn(6, 4).to("hologram")
        bad = torch.tensor([0, 6]).to("hologram")
        for _ in range(2):
            x.index_select(0, bad.clamp(max=5)).cpu()
        rows = x.index_select(0, bad)
        after = rows + 1
        other = x + 1
        with self.assertRaisesRegex(IndexError, "aten::index_select: index out of range"):
            torch.hologram.synchronize()
        with self.assertRaisesRegex(IndexError, "aten::index_select: index out of range"):
            after.cpu()
        self.assertEqual(other, x.cpu() + 1)

    def test_shapes_are_refused_at_the_call(self):
        x, w = randn(1, 3, 8, 8).to("hologram"), randn(4, 2, 3, 3).to("hologram")
        for _ in range(3):
            with self.assertRaisesRegex(RuntimeError, "expected input.* to have 2 channels"):
                F.conv2d(x, w)
            kind = RuntimeError if CUDA_KERNELS else IndexError
            with self.assertRaisesRegex(kind, "supposed to be (an empty tensor or )?a vector"):
                x.index_select(0, x)

    def test_of_another_device(self):
        x = randn(6, 4).to("hologram")
        for _ in range(3):
            with self.assertRaisesRegex(RuntimeError, "same device|on cpu|cpu"):
                x.index_select(0, torch.tensor([0, 1]))


instantiate_parametrized_tests(TestLearnedCalls)

if __name__ == "__main__":
    run_tests()
