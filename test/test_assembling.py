"""Tensors put together of others, and assignments under a mask, are recorded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import DELEGATED, HologramTestCase, as_torch
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

hologram = torch.hologram
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class AssemblingTestCase(HologramTestCase):
    def check(self, function, *arguments, delegated=()):
        """The CPU's values and layout, with nothing delegated but what is said."""
        mine = [argument.to("hologram") for argument in arguments]
        hologram.reset_fallback_report()
        result = function(*mine)
        self.assertEqual(set(hologram.fallback_report().operators(DELEGATED)), set(delegated))
        expected = function(*arguments)
        self.assertEqual(result.stride(), expected.stride())
        self.assertEqual(result.cpu(), expected, rtol=0, atol=0)
        for argument, given in zip(mine, arguments, strict=True):
            self.assertEqual(argument.cpu(), given, rtol=0, atol=0)


class TestCat(AssemblingTestCase):
    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
    def test_one_after_the_other(self, dtype):
        x, y = torch.arange(12).reshape(3, 4).to(dtype), torch.arange(8).reshape(2, 4).to(dtype)
        self.check(lambda x, y: torch.cat([x, y]), x, y)
        self.check(lambda x, y: torch.cat([x, y, x], -2), x, y)
        self.check(lambda x, y: torch.cat([x[None, :2], y[None]], 1), x, y)
        self.check(lambda x, y: torch.cat([x[0], y[1, 1:]]), x, y)
        self.check(lambda x, y: torch.stack([x[0, 0], y[1, 1]]), x, y)
        self.check(lambda x, y: torch.stack([x[:2], y]), x, y)
        self.check(lambda x: torch.cat([x]), x)

    def test_left_to_torch(self):
        x, y = torch.rand(2, 3), torch.rand(2, 3)
        cat = ["aten::cat"]
        self.check(lambda x, y: torch.cat([x, y], 1), x, y, delegated=cat)
        self.check(lambda x, y: torch.cat([x.t(), y.t()]), x, y, delegated=cat)
        self.check(lambda x: torch.cat([x, x[:0]]), x, delegated=cat)
        z = y.double()
        self.check(lambda x, z: torch.cat([x, z]), x, z, delegated=cat)
        last = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
        self.check(lambda x: torch.cat([x, x]), last, delegated=cat)

    def test_of_what_is_pending(self):
        def norms(*tensors):
            return torch.stack([(t * t).sum() for t in tensors]).sum()

        tensors = [torch.rand(n, device="hologram") for n in range(20, 30)]
        hologram.synchronize()
        explained = hologram.explain(norms, *tensors)
        self.assertEqual([flush.reason for flush in explained.flushes], ["end"])
        self.assertEqual(explained.passes, 2)
        self.assertEqual(explained.result.cpu(), norms(*[t.cpu() for t in tensors]))

    def test_gradients(self):
        gradients = {}
        for device in ("cpu", "hologram"):
            x = torch.arange(6.0, device=device).reshape(2, 3).requires_grad_()
            (torch.cat([x, 2 * x]) ** 2).sum().backward()
            gradients[device] = x.grad.cpu()
        self.assertEqual(gradients["hologram"], gradients["cpu"])


class TestMasks(AssemblingTestCase):
    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
    def test_a_number(self, dtype):
        x = (torch.arange(12) - 6).reshape(3, 4).to(dtype)

        def assign(x):
            y = x * 1
            y[y > 2] = 7
            y[y.eq(0)] = -1
            y.t()[(y < -4).t()] = 3
            y[y > 100] = 5
            return y

        self.check(assign, x)

    def test_one_pass(self):
        def assign(x):
            x = x * 2
            x[x > 0] = 0.5
            x[x < 0] = torch.nan
            return x

        x = torch.randn(100)
        mine = x.to("hologram")
        explained = hologram.explain(assign, mine)
        self.assertEqual(explained.passes, 1)
        self.assertEqual(explained.result.cpu(), assign(x))

    def test_left_to_torch(self):
        x = torch.arange(6.0).reshape(2, 3)

        def of_rows(x):
            x = x * 1
            x[torch.tensor([True, False], device=x.device)] = 2
            return x

        def several(x):
            x = x * 1
            x[x > 3] = torch.tensor([7.0, 8.0], device=x.device)
            return x

        def added(x):
            x = x * 1
            x.index_put_([x > 3], torch.tensor(1.0, device=x.device), accumulate=True)
            return x

        for function in (of_rows, several, added):
            self.check(function, x, delegated=["aten::_index_put_impl_"])

    def test_refused_as_on_the_cpu(self):
        for device in ("cpu", "hologram"):
            x = torch.ones(3, device=device)
            with self.assertRaisesRegex(IndexError, "shape of the mask"):
                x[torch.ones(4, dtype=torch.bool, device=device)] = 1
            with self.assertRaises(RuntimeError):
                x[x > 0] = torch.ones(2, device=device)


class TestMaskedFill(AssemblingTestCase):
    @parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.bool])
    def test_a_number(self, dtype):
        x = (torch.arange(12) - 6).reshape(3, 4).to(dtype)
        number = True if dtype is torch.bool else 3
        for mask in (x > 0, (x > 0)[:1], (x > 0)[:, :1], torch.tensor(True)):
            self.check(lambda x, m: x.masked_fill(m, number), x, mask)
            self.check(lambda x, m: x.clone().masked_fill_(m, number), x, mask)
            self.check(lambda x, m: (x * 1).t().masked_fill_(m.t(), number).t(), x, mask)
            value = torch.tensor(number, dtype=dtype)
            self.check(lambda x, m, v: x.masked_fill(m, v), x, mask, value)
            self.check(lambda x, m: x.masked_fill(~m, number), x, mask)

    def test_special_numbers(self):
        x = torch.randn(3, 4)
        for dtype in FLOATS:
            for number in (float("-inf"), float("nan"), 0.1, -0.0, 1):
                self.check(
                    lambda x: x.masked_fill(x > 0, number),  # noqa: B023
                    x.to(dtype),
                )

    def test_one_pass(self):
        x = torch.randn(30, 40).to("hologram")
        mask = x > 0
        hologram.synchronize()

        def attend(x):
            return F.softmax(x.masked_fill(~mask, float("-inf")), -1)

        explained = hologram.explain(attend, x)
        self.assertEqual(explained.passes, 1)
        expected = F.softmax(x.cpu().masked_fill(~mask.cpu(), float("-inf")), -1)
        self.assertEqual(explained.result.cpu(), expected)

    def test_left_to_torch(self):
        x = torch.arange(6).reshape(2, 3)
        fill = ["aten::masked_fill_.Scalar"]
        for dtype in (torch.int8, torch.uint8, torch.complex64):
            self.check(
                lambda x, m: x.clone().masked_fill_(m, 2), x.to(dtype), x > 2, delegated=fill
            )
        self.check(lambda x: ~x, x, delegated=["aten::bitwise_not"])

    def test_refused_as_on_the_cpu(self):
        mask = torch.tensor([True, False, True])
        for call in (
            lambda x, m: x.masked_fill_(m.to(torch.uint8), 1),
            lambda x, m: x.masked_fill_(m[:2], 1),
            lambda x, m: x[:1].expand(3).masked_fill_(m, 1),
            lambda x, m: x.masked_fill_(m, torch.ones(2, device=x.device)),
            lambda x, m: x.long().masked_fill_(m, 2.5),
            lambda x, m: x.masked_fill_(m, 1j),
            lambda x, m: x.long().masked_fill_(m, torch.tensor(1.5, device=x.device)),
            lambda x, m: (x > 0).masked_fill_(m, 2.5),
            lambda x, m: x.half().masked_fill_(m, 1e6),
            lambda x, m: x.masked_fill_(m[None], 1),
        ):

            def outcome(device, call=call):
                try:
                    return call(torch.ones(3, device=device), mask.to(device)).cpu()
                except Exception as error:
                    return type(error), str(error).splitlines()[0]

            mine = outcome("hologram")
            as_torch(lambda device, mine=mine, of=outcome: self.assertEqual(mine, of(device)))

    def test_gradients(self):
        x, mask = torch.randn(3, 4), torch.randn(3, 4) > 0
        gradients = []
        for device in ("cpu", "hologram"):
            leaf, value = (t.detach().to(device).requires_grad_() for t in (x, torch.tensor(2.0)))
            (leaf.masked_fill(mask.to(device), value) ** 3).sum().backward()
            gradients.append((leaf.grad.cpu(), value.grad.cpu()))
        self.assertEqual(*gradients)


instantiate_parametrized_tests(TestCat)
instantiate_parametrized_tests(TestMasks)
instantiate_parametrized_tests(TestMaskedFill)

if __name__ == "__main__":
    run_tests()
