"""The unboxed delegates: which operators have one, and that they do what the boxed one does.

That each gives the CPU's numbers is the conformance suite's business; here is one operator of each
kind of signature, and what the quick path hands over to the boxed one.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from common import DELEGATED, GPUS, OWN_PRODUCTS, ROOT, HologramTestCase
from torch.testing._internal.common_utils import run_tests

from torch_hologram import _C

QUICK = set(_C.quick_operators())
LISTED = {
    f"aten::{line.split()[0]}"
    for line in Path(ROOT, "csrc/aten/quick_calls.tsv").read_text().splitlines()
    if line and not line.startswith("#")
}


class TestTable(HologramTestCase):
    def test_rows_are_of_the_list(self):
        self.assertEqual(QUICK - LISTED, set())

    def test_the_others_are_native(self):
        """Or composed by hand; products are a library's, or recorded where they can be."""
        native = {name for name, kind in _C.operator_table() if kind == "native"}
        others = {"mm", "mm.out", "bmm", "addmm", "baddbmm", "histc"}
        others |= {"triu_indices", "tril_indices", "__lshift__.Scalar", "__rshift__.Scalar"}
        attention = "_scaled_dot_product_flash_attention_for_cpu"
        others |= {attention, f"{attention}_backward"}
        self.assertEqual(LISTED - QUICK - native, {f"aten::{name}" for name in others})

    def test_reports_count_them_as_delegated(self):
        kinds = dict(_C.operator_table())
        self.assertEqual({kinds[name] for name in QUICK}, {"delegated"})

    def test_modes_hold(self):
        x = torch.rand(3, device="hologram")
        self.assertIn("aten::signbit", QUICK)
        torch.hologram.set_fallback_mode("error")
        try:
            with self.assertRaisesRegex(NotImplementedError, "aten::signbit has no native"):
                torch.signbit(x)
        finally:
            torch.hologram.set_fallback_mode("allow")
        torch.hologram.reset_fallback_report()
        torch.signbit(x)
        self.assertEqual(torch.hologram.fallback_report().operators(DELEGATED)["aten::signbit"], 1)


class TestSignatures(HologramTestCase):
    """name -> (a call of it, on device or CPU)."""

    def check(self, name, call, native=False):
        """`native`: a native kernel hands its calls over, so that the table does not have it."""
        self.assertEqual(name in QUICK, not native)
        torch.hologram.reset_fallback_report()
        torch.manual_seed(0)
        wanted = call("cpu")
        torch.hologram.manual_seed(0)
        mine = call("hologram")
        report = torch.hologram.fallback_report()
        # On GPUs a product is the device's own, by a library.
        own = report.operators("native") if native and (GPUS or OWN_PRODUCTS) else {}
        self.assertIn(name, {**report.operators(DELEGATED), **own})
        self.assertEqual(
            torch.utils._pytree.tree_map(lambda t: t.cpu(), mine), wanted, rtol=0, atol=0
        )
        for tensor in torch.utils._pytree.tree_leaves(mine):
            self.assertTrue(tensor.is_hologram)

    def test_tensor_to_tensor(self):
        self.check("aten::signbit", lambda d: torch.signbit(torch.ones(5, device=d)))

    def test_in_place(self):
        def call(d):
            x = torch.ones(5, 5, device=d)
            self.assertIs(x.tril_(), x)
            return x

        self.check("aten::tril_", call)

    def test_list_of_tensors(self):
        def call(d):
            return torch.cat([torch.ones(2, 1, device=d), torch.zeros(2, 3, device=d)], 1)

        self.check("aten::cat", call, native=True)

    def test_same_tensor_twice(self):
        def call(d):
            x = torch.eye(3, device=d) + 1
            return torch.mm(x, x)

        self.check("aten::mm", call, native=True)

    def test_optional_tensors(self):
        self.check(
            "aten::bincount", lambda d: torch.bincount(torch.tensor([0, 2, 2], device=d), None)
        )

    def test_optional_tensors_in_a_list(self):
        def call(d):
            x = torch.arange(12.0, device=d).reshape(3, 4)
            return x[:, torch.tensor([3, 0], device=d)]

        self.check("aten::index.Tensor", call)

    def test_several_results(self):
        self.check("aten::topk", lambda d: tuple(torch.topk(torch.arange(5.0, device=d), 2)))

    def test_views(self):
        def call(d):
            x = torch.zeros(5, device=d)
            x.unfold(0, 2, 3).fill_(1)
            return x

        self.check("aten::unfold", call)

    def test_generator(self):
        """What decides nothing: numbers of rate 0, of the device's generator."""
        state = torch.hologram.get_rng_state()
        self.check("aten::poisson", lambda d: torch.poisson(torch.zeros(3, device=d)))
        self.assertNotEqual(torch.hologram.get_rng_state(), state)

    def test_written_lists(self):
        def call(d):
            y = torch.ones(3, device=d)
            found, scale = torch.zeros(1, device=d), torch.full((1,), 0.5, device=d)
            lists = [torch.ones(2, 4, device=d)[:, ::2], y]  # with gaps
            torch._amp_foreach_non_finite_check_and_unscale_(lists, found, scale)
            return *lists, found

        self.check("aten::_amp_foreach_non_finite_check_and_unscale_", call, native=True)


class TestHandedOver(HologramTestCase):
    """What a quick kernel leaves to the boxed delegate, which decides and words the errors."""

    def test_mixed_devices(self):
        x, y = torch.rand(3, 3, device="hologram"), torch.rand(3, 3)
        for call in (
            lambda: torch.mm(x, y),
            lambda: torch.cat([x, y]),
            lambda: torch.mm(x, x, out=y),
        ):
            with self.assertRaisesRegex(RuntimeError, "Expected all tensors to be on the same"):
                call()

    def test_cpu_scalars(self):
        x = torch.rand(3, device="hologram")
        wanted = torch.where(x.cpu() > 0.5, x.cpu(), torch.tensor(0.0))
        self.assertEqual(torch.where(x > 0.5, x, torch.tensor(0.0)).cpu(), wanted)

    def test_cpu_indices(self):
        x = torch.rand(3, device="hologram")
        self.assertEqual(x[torch.tensor([2, 0])].cpu(), x.cpu()[torch.tensor([2, 0])])

    def test_generator_of_another_device(self):
        with self.assertRaisesRegex(RuntimeError, "generator"):
            torch.poisson(torch.ones(3, device="hologram"), generator=torch.Generator())

    def test_other_layouts(self):
        x = torch.eye(3, device="hologram").to_sparse()
        self.assertEqual(torch.mm(x, torch.ones(3, 2, device="hologram")).cpu(), torch.ones(3, 2))


class TestFailures(HologramTestCase):
    def test_error_of_the_kernel(self):
        x, out = torch.rand(2, 3, device="hologram"), torch.empty(5, device="hologram")
        with self.assertRaisesRegex(RuntimeError, "cannot be multiplied"):
            torch.mm(x, x, out=out)
        self.assertEqual(out.shape, (5,))

    def test_resized_results(self):
        x, out = torch.rand(2, 2, device="hologram"), torch.empty(0, device="hologram")
        self.assertIs(torch.mm(x, x, out=out), out)
        self.assertEqual(out.cpu(), torch.mm(x.cpu(), x.cpu()))
        self.assertTrue(out.untyped_storage().nbytes() >= 16)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            wrong = torch.ones(7, device="hologram")
            torch.mm(x, x, out=wrong)
        self.assertIn("was resized", str(caught[0].message))
        self.assertEqual(wrong.cpu(), torch.mm(x.cpu(), x.cpu()))

    def test_versions(self):
        x = torch.rand(3, 3, device="hologram")
        before = x._version
        x.tril_()
        self.assertEqual(x._version, before + 1)


if __name__ == "__main__":
    run_tests()
