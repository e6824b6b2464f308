"""What the delegate does around a call of a CPU kernel: arguments, results, failures, memory.

Views and storages are in test_views_and_storage.py, mixed devices in test_mixed_devices.py, the
report and its modes in test_fallback.py.
"""

from __future__ import annotations

import gc
import os
import warnings

import pytest
import torch
import torch.nn.functional as F
from common import DEVICES, DelegateTestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)


class TestArguments(DelegateTestCase):
    def test_one_tensor_twice(self):
        x = torch.rand(6, 6) + torch.eye(6)
        for function in (
            lambda x: x.atan2_(x),
            lambda x: torch.cdist(x, x),
            lambda x: torch.mm(x, x),
            lambda x: x.addmm_(x.clone(), x),
            lambda x: x.lerp_(x, x),
            lambda x: torch.cat([x, x, x]),
            lambda x: torch.stack([x, x]),
            lambda x: torch.einsum("ij,jk,kl->il", x, x, x),
            lambda x: torch.where(x > 0.5, x, x),
            lambda x: x.copysign_(x),
            lambda x: torch.hypot(x, x, out=x),
            lambda x: torch.maximum(x, x, out=x),
            lambda x: torch.linalg.solve(x, x),
            lambda x: torch._foreach_add([x, x], [x, x]),
            lambda x: (torch._foreach_mul_([x, x], 2), x)[1],
            lambda x: torch.nn.functional.bilinear(x, x, x[None], x[0, :1]),
        ):
            self.check(function, x, exact=False)

    def test_identity_is_kept(self):
        """In-place and out= calls return the tensor they were given."""
        x, index = torch.rand(3, 3, device="hologram"), torch.zeros(3, 3).long().hologram()
        for call in (
            lambda: x.sigmoid_(),
            lambda: x.add_(x),
            lambda: x.clamp_(0, 1),
            lambda: torch.sin(x, out=x),
            lambda: x.index_fill_(0, index[0, :1], 0.5),
            lambda: x.masked_fill_(x > 2, 0),
            lambda: x.scatter_(0, index, x.clone()),
            lambda: x.normal_(),
            lambda: x.resize_(3, 3),
            lambda: x.copy_(x.clone()),
            lambda: x.requires_grad_(False),
            lambda: F.relu(x, inplace=True),
        ):
            self.assertIs(call(), x)
        values = torch.empty(3, 3, device="hologram")
        result = torch.sort(x, out=(values, index))
        self.assertIs(result.values, values)
        self.assertIs(result.indices, index)

    def test_overlap_is_seen_across_arguments(self):
        for device in DEVICES:
            x = torch.arange(8.0, device=device)
            with self.assertRaisesRegex(RuntimeError, "refer to a single memory location"):
                x[1:].atan2_(x[:-1])
            with self.assertRaisesRegex(RuntimeError, "refer to a single memory location"):
                torch.hypot(x[:-1], x[:-1], out=x[1:])
            with self.assertRaisesRegex(RuntimeError, "refers to a single memory location"):
                x[:1].expand(4).sigmoid_()
            with self.assertRaisesRegex(RuntimeError, "memory location"):
                torch.cat([x[:4], x[4:]], out=x)
            torch.sin(x, out=x)

    def test_optional_arguments(self):
        x = torch.rand(2, 3, 4, 4)
        for function in (
            lambda x: torch.clamp(x, max=x * 0.5),
            lambda x: torch.bincount((x * 5).long().flatten()),
            lambda x: torch.histc(x, 4),
            lambda x: x[:, None, 1:],
            lambda x: torch.searchsorted(x[0, 0].sort().values, x[0, 1]),
        ):
            self.check(function, x)

    def test_python_numbers_do_not_promote(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.uint8):
            x = torch.arange(5).to(dtype)
            for function in (
                lambda x: torch.atan2(x, torch.tensor(2.0, device=x.device)),
                lambda x: x**2,
                lambda x: 2**x,
                lambda x: x % 2,
                lambda x: torch.where(x > 1, x, 0),
                lambda x: torch.where(x > 1, 2.5, x),
                lambda x: torch.fmod(x, 2),
                lambda x: x > 1.5,
            ):
                self.check(function, x)

    def test_results_of_several_kinds(self):
        x = torch.rand(4, 4)
        for function in (
            lambda x: torch.equal(x, x),
            lambda x: torch.allclose(x, x),
            lambda x: x.is_same_size(x),
            lambda x: x.sum().item(),
            lambda x: x.tolist(),
            lambda x: torch.unique(x, return_inverse=True, return_counts=True),
            lambda x: x.max(0),
            lambda x: torch.linalg.lu_factor_ex(x),
            lambda x: torch.linalg.eigh(x + x.mT)[0],  # vectors have either sign
            lambda x: torch.aminmax(x),
            lambda x: torch.frexp(x),
            lambda x: torch.nonzero(x > 0.5, as_tuple=True),
            lambda x: torch.histogram(x, 3),
            lambda x: torch.std_mean(x),
            lambda x: torch.triu_indices(3, 3, device=x.device),
            lambda x: torch.split_with_sizes_copy(x, [1, 3]),
            lambda x: torch.nn.utils.rnn.pad_sequence([x, x[:2]]),
            lambda x: torch.is_nonzero(x[0, 0]),
            lambda x: torch.result_type(x, 1.0) == torch.float32,
        ):
            self.check(function, x, exact=False)


class TestFailures(DelegateTestCase):
    """A kernel that fails midway leaves its arguments usable, and what the CPU's would hold."""

    def outcome(self, function, *arguments, bytes_of_out=True):
        states = []
        for device in DEVICES:
            tensors = [a.clone().to(device) for a in arguments]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that out= is resized
                with self.assertRaises((RuntimeError, IndexError)) as caught:
                    function(*tensors)
            for tensor in tensors:
                # Usable: computes, resizes and is one storage with its alias.
                self.assertEqual((tensor + tensor).shape, tensor.shape)
                if device == "hologram":
                    alias = torch.hologram.alias_as_cpu(tensor)
                    self.assertEqual(alias.data_ptr(), tensor.data_ptr())
                    self.assertEqual(
                        alias.untyped_storage().nbytes(), tensor.untyped_storage().nbytes()
                    )
            states.append(([t.to("cpu", copy=True) for t in tensors], str(caught.exception)))
        (wanted, wanted_error), (mine, error) = states
        if not bytes_of_out:  # the kernel made room there and wrote nothing
            self.assertEqual(mine.pop().shape, wanted.pop().shape)
        self.assertEqual(mine, wanted)
        self.assertEqual(error.replace("hologram", "cpu"), wanted_error)

    @pytest.mark.host_memory
    def test_after_resizing(self):
        singular = torch.zeros(3, 3)
        self.outcome(lambda a, o: torch.linalg.inv(a, out=o), singular, torch.empty(0))
        self.outcome(lambda a, o: torch.linalg.cholesky(a, out=o), -torch.eye(3), torch.empty(1))
        self.outcome(
            lambda a, b, o: torch.mm(a, b, out=o), singular, torch.ones(2, 2), torch.ones(5)
        )
        self.outcome(
            lambda x, i, o: torch.gather(x, 0, i, out=o),
            torch.rand(3),
            torch.tensor([0, 9]),
            torch.empty(0),
            bytes_of_out=False,
        )

    @pytest.mark.host_memory
    def test_after_writing(self):
        index = torch.tensor([0, 1, 7])
        self.outcome(lambda x, i, y: x.index_copy_(0, i, y), torch.zeros(3), index, torch.ones(3))
        self.outcome(lambda x, i, y: x.scatter_(0, i, y), torch.zeros(3), index, torch.ones(3))
        self.outcome(lambda x, i, y: x.put_(i, y), torch.zeros(3), index, torch.ones(3))
        self.outcome(lambda x: x.random_(5, 2), torch.zeros(3))
        self.outcome(lambda x: torch._foreach_add_([x[0], x[1]], [x[0], x]), torch.zeros(3, 2))

    def test_of_an_operator_that_resizes_and_raises(self):
        with torch.library._scoped_library("hologram_test_delegate", "DEF") as library:
            library.define("grow(Tensor x, Tensor(a!) out) -> ()")

            def grow(x, out):
                out.resize_(50)
                out.fill_(3)
                raise ValueError("after the resize")

            library.impl("grow", grow, "CPU")
            x, out = torch.ones(2, device="hologram"), torch.empty(0, device="hologram")
            view = out[:0]
            for _ in range(2):
                with self.assertRaisesRegex(ValueError, "after the resize"):
                    torch.ops.hologram_test_delegate.grow(x, out)
                self.assertEqual(out.cpu(), torch.full((50,), 3.0))
                self.assertEqual(view.untyped_storage().nbytes(), 200)

    def test_nothing_is_left_behind(self):
        gc.collect()
        before = torch.hologram.memory_allocated()
        for _ in range(20):
            with self.assertRaises(RuntimeError):
                torch.linalg.inv(torch.zeros(64, 64, device="hologram"))
            with self.assertRaises(RuntimeError):
                torch.ones(64, device="hologram") @ torch.ones(63, device="hologram")
        gc.collect()
        self.assertEqual(torch.hologram.memory_allocated(), before)


class TestMemory(DelegateTestCase):
    WORK = (
        ("native", lambda x: (x + x).mul_(2).neg()),
        ("delegated", lambda x: torch.linalg.inv(x).sort().values),
        ("views", lambda x: x.unfold(0, 3, 1).transpose(0, 1)[1:]),
        ("out grows", lambda x: torch.mm(x, x, out=torch.empty(0, device=x.device))),
        ("storage", lambda x: x.clone().untyped_storage().resize_(10).resize_(0)),
        ("alias", lambda x: torch.hologram.alias_from_cpu(torch.hologram.alias_as_cpu(x) + 1)),
        ("convolution", lambda x: F.conv2d(x[None, None], x[None, None, :3, :3])),
        ("list", lambda x: torch._foreach_exp([x, x[1:]])),
        ("random", lambda x: torch.randn_like(x).bernoulli_(0.5)),
        ("copies", lambda x: x.cpu().hologram().to(torch.float64)),
        ("sparse", lambda x: (x.to_sparse() * 2).to_dense()),
        ("failure", lambda x: fails(lambda: torch.linalg.inv(x * 0))),
        ("backward", lambda x: x.clone().requires_grad_().sin().sum().backward()),
    )

    @pytest.mark.host_memory
    @parametrize("name", [name for name, _ in WORK])
    def test_everything_is_given_back(self, name):
        work, x = dict(self.WORK)[name], torch.rand(32, 32, device="hologram") + 0.1
        work(x)
        gc.collect()
        before = torch.hologram.memory_stats()
        for _ in range(30):
            work(x)
        gc.collect()
        after = torch.hologram.memory_stats()
        for counter in (
            "allocated_bytes.all.current",
            "allocation.all.current",
            "foreign_bytes.all.current",
        ):
            self.assertEqual(after[counter], before[counter], msg=f"{name} {counter}")

    @pytest.mark.host_memory
    def test_resident_memory_is_flat(self):
        x = torch.rand(64, 64, device="hologram")

        def resident() -> int:
            gc.collect()
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        def work():
            for _, step in self.WORK:
                step(x)

        if not os.path.exists("/proc/self/statm"):
            self.skipTest("needs /proc")
        for _ in range(50):
            work()
        before = resident()
        for _ in range(300):
            work()
        # 300 times 13 kinds of work, each on tensors of 16 KiB: one leaked tensor of one kind
        # would be 4.7 MiB.
        self.assertLess(resident() - before, 3 << 20)

    def test_peak_counts_results_of_kernels(self):
        x = torch.rand(256, 256, device="hologram")
        torch.hologram.reset_peak_memory_stats()
        before = torch.hologram.memory_allocated()
        kept = [x.sort().values for _ in range(4)]
        self.assertGreaterEqual(torch.hologram.memory_allocated() - before, 4 * x.nbytes)
        del kept
        self.assertEqual(torch.hologram.memory_allocated(), before)
        self.assertGreaterEqual(torch.hologram.max_memory_allocated() - before, 4 * x.nbytes)


def fails(call) -> None:
    try:
        call()
    except RuntimeError:
        return
    raise AssertionError("did not fail")


instantiate_parametrized_tests(TestMemory)

if __name__ == "__main__":
    run_tests()
