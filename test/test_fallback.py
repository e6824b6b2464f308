"""fallback_report() and the fallback modes."""

from __future__ import annotations

import math
import warnings

import torch
from common import CUDA_KERNELS, DELEGATED, OWN_PRODUCTS, HologramTestCase
from torch.testing._internal.common_utils import run_tests


class TestReport(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.x = torch.rand(16, device="hologram")
        self.matrix = torch.eye(4, device="hologram")
        torch.hologram.reset_fallback_report()

    def test_counts_native_and_delegated(self):
        for _ in range(3):
            torch.linalg.inv(self.matrix)
        for _ in range(5):
            self.x + self.x
        report = torch.hologram.fallback_report()
        (inverse,) = (row for row in report if "linalg_inv_ex" in row.operator)
        self.assertEqual((inverse.kind, inverse.calls), (DELEGATED, 3))
        self.assertEqual(report.operators("native")["aten::add.Tensor"], 5)
        self.assertEqual(report.calls({"delegated": "copied", "copied": "delegated"}[DELEGATED]), 0)
        self.assertEqual(report.calls(DELEGATED), sum(report.operators(DELEGATED).values()))

    def test_wrappers_of_cpu_kernels_count_as_delegated(self):
        lstm = torch.nn.LSTM(4, 4).hologram()
        convolution = torch.nn.Conv1d(1, 1, 3).hologram()
        torch.hologram.reset_fallback_report()
        lstm(torch.rand(2, 1, 4, device="hologram"))
        convolution(torch.rand(1, 1, 8, device="hologram"))
        query = torch.rand(1, 2, 8, 4, device="hologram")
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
        delegated = " ".join(torch.hologram.fallback_report().operators(DELEGATED))
        # For heads of 4 elements CUDA may have no fused kernel.
        attention = "scaled_dot_product" + ("|bmm" if CUDA_KERNELS else "")
        # Metal has its own.
        for operator in ("lstm", "convolution", *([] if OWN_PRODUCTS else [attention])):
            self.assertRegex(delegated, operator)

    def test_rows_are_sorted(self):
        torch.linalg.inv(self.matrix)
        torch.sort(self.x)
        torch.sort(self.x)
        self.x.mul(2)
        report = torch.hologram.fallback_report()
        order = {"copied": 0, "delegated": 1, "native": 2}
        keys = [(order[row.kind], -row.calls, row.operator) for row in report]
        self.assertEqual(keys, sorted(keys))
        self.assertEqual(len(report), len(report.rows))

    def test_reset(self):
        torch.sort(self.x)
        self.assertGreater(torch.hologram.fallback_report().calls(DELEGATED), 0)
        torch.hologram.reset_fallback_report()
        report = torch.hologram.fallback_report()
        self.assertEqual(report.rows, ())
        self.assertEqual(str(report), "operator calls: native 0 delegated 0 copied 0")

    def test_table(self):
        torch.sort(self.x)
        lines = str(torch.hologram.fallback_report()).splitlines()
        self.assertRegex(lines[0], r"operator +kind +calls")
        self.assertEqual(repr(torch.hologram.fallback_report()), "\n".join(lines))
        html = torch.hologram.fallback_report()._repr_html_()
        self.assertRegex(html, rf"<td>aten::sort\S*</td><td>{DELEGATED}</td><td>1</td>")
        self.assertIn("<caption>operator calls: native", html)
        (row,) = (line for line in lines if line.startswith("aten::sort"))
        self.assertRegex(row, rf"aten::sort\S* +{DELEGATED} +1$")
        self.assertRegex(lines[-1], r"native .* delegated \d+ copied \d+$")


class TestMode(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.x = torch.rand(16, device="hologram")
        self.addCleanup(torch.hologram.set_fallback_mode, "allow")
        torch.hologram.reset_fallback_report()

    def tearDown(self) -> None:
        torch.hologram.set_fallback_mode("allow")
        super().tearDown()

    def test_allow_is_silent(self):
        self.assertEqual(torch.hologram.get_fallback_mode(), "allow")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.sort(self.x)

    def test_warn_names_the_operator_once(self):
        torch.hologram.set_fallback_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.sort(self.x)
            torch.sort(self.x)
            self.x + self.x
        (warning,) = caught
        self.assertIn("aten::sort", str(warning.message))

    def test_error_names_the_operator_and_calls_nothing(self):
        torch.hologram.set_fallback_mode("error")
        with self.assertRaisesRegex(NotImplementedError, r"aten::sort.*set_fallback_mode\('error'"):
            torch.sort(self.x)
        self.assertEqual((self.x + self.x).device.type, "hologram")
        self.assertEqual(torch.hologram.fallback_report().calls(DELEGATED), 0)

    def test_printing_is_no_call(self):
        """torch asks a tensor's numbers for what it prints of them, such as the largest."""
        x = torch.tensor([[1.5, -2e-7], [math.nan, 4e8]], device="hologram")
        tensors = [x, x.t(), x[0], x.double(), x > 0, x.long(), x.to(torch.complex64).conj()]
        tensors += [torch.nn.Parameter(x), torch.zeros(0, 3, device="hologram"), x.bfloat16()]
        tensors += [torch.arange(5000.0, device="hologram"), torch.tensor(2.5, device="hologram")]
        shown = [repr(tensor.cpu().detach()) for tensor in tensors]
        torch.hologram.set_fallback_mode("error")
        torch.hologram.reset_fallback_report()
        for tensor, expected in zip(tensors, shown, strict=True):
            text = repr(tensor)
            self.assertIn("device='hologram:0'", text)
            start = expected.split("tensor(")[1].split("]")[0].rstrip(")")
            self.assertIn("".join(start.split()), "".join(text.split()))
        f"{x}", str(x)
        self.assertEqual(len(torch.hologram.fallback_report()), 0)

    def test_unknown_mode(self):
        with self.assertRaisesRegex(ValueError, "'allow', 'warn' or 'error', but got 'maybe'"):
            torch.hologram.set_fallback_mode("maybe")
        self.assertEqual(torch.hologram.get_fallback_mode(), "allow")


if __name__ == "__main__":
    run_tests()
