"""Operators of torch.library that have a kernel for the CPU only: the device runs that."""

from __future__ import annotations

import torch
from common import CUDA_KERNELS, DELEGATED, HOST_MEMORY, HologramTestCase
from torch.testing._internal.common_utils import run_tests
from torch.utils._pytree import tree_leaves


class TestOtherPeoplesOperators(HologramTestCase):
    """Operators outside aten: registered for the CPU, in Python or in C++."""

    def library(self):
        library = torch.library.Library("hologram_test_library", "DEF")
        self.addCleanup(library._destroy)
        return library

    def test_python_kernel(self):
        library, seen = self.library(), []
        library.define("scale(Tensor x, float by, Tensor? shift=None) -> Tensor")

        def scale(x, by, shift=None):
            seen.append((x.device.type, x.data_ptr()))
            return x * by if shift is None else x * by + shift

        library.impl("scale", scale, "CPU")
        x = torch.arange(3.0, device="hologram")
        torch.hologram.reset_fallback_report()
        result = torch.ops.hologram_test_library.scale(x, 2.0)
        self.assertEqual(seen, [("cpu", x.data_ptr() if HOST_MEMORY else seen[0][1])])
        self.assertEqual((result.device, result.cpu()), (x.device, torch.tensor([0.0, 2, 4])))
        shifted = torch.ops.hologram_test_library.scale(x, 2.0, shift=x)
        self.assertEqual(shifted.cpu(), torch.tensor([0.0, 3, 6]))
        # Another vendor's device has no such kernel: the CPU's has copies.
        report = torch.hologram.fallback_report().operators("copied" if CUDA_KERNELS else DELEGATED)
        self.assertEqual(report["hologram_test_library::scale"], 2)
        with self.assertRaisesRegex(RuntimeError, "Expected all tensors to be on the same device"):
            torch.ops.hologram_test_library.scale(x, 2.0, torch.ones(3))

    def test_results_and_arguments(self):
        """A result that is an argument, a view of one, two of one new storage, a list, nothing."""
        library = self.library()
        library.define("itself(Tensor(a) x) -> Tensor(a)")
        library.define("view(Tensor(a) x) -> Tensor(a)")
        library.define("pair(Tensor x) -> (Tensor, Tensor)")
        library.define("several(Tensor[] x) -> Tensor[]")
        library.define("write_(Tensor(a!) x) -> Tensor(a!)")
        library.define("grow(Tensor(a!) x) -> ()")
        library.define("mixed(Tensor x) -> (Tensor, int, str, Tensor[])")
        implementations = {
            "itself": lambda x: x,
            "view": lambda x: x[1:].t(),
            "pair": lambda x: (lambda fresh: (fresh, fresh[1:]))(x * 2),
            "several": lambda x: [x[0], x[1] * 2, x[0][:1], x[1] * 2],
            "write_": lambda x: x.mul_(3),
            "grow": lambda x: [x.resize_(20).fill_(4)].clear(),
            "mixed": lambda x: (x + 1, 7, "seven", [x - 1]),
        }
        for name, function in implementations.items():
            library.impl(name, function, "CPU")
        ops = torch.ops.hologram_test_library
        x = torch.arange(6.0, device="hologram").reshape(3, 2)
        self.assertEqual(ops.itself(x).data_ptr(), x.data_ptr())
        view = ops.view(x)
        self.assertEqual(view.untyped_storage()._cdata, x.untyped_storage()._cdata)
        self.assertEqual((view.stride(), view.storage_offset()), ((1, 2), 2))
        first, second = ops.pair(x)
        self.assertEqual(first.untyped_storage()._cdata, second.untyped_storage()._cdata)
        first[2] = -1
        self.assertEqual(second[1].cpu(), torch.tensor([-1.0, -1.0]))
        results = ops.several([x, x + 1])
        self.assertEqual([r.device for r in results], [x.device] * 4)
        self.assertEqual(results[0].data_ptr(), x.data_ptr())
        self.assertEqual(results[2].untyped_storage()._cdata, x.untyped_storage()._cdata)
        self.assertNotEqual(results[1].data_ptr(), results[3].data_ptr())
        y = torch.ones(2, device="hologram")
        self.assertIs(ops.write_(y), y)
        self.assertEqual((y.cpu(), y._version), (torch.full((2,), 3.0), 1))
        ops.grow(y)
        self.assertEqual(y.cpu(), torch.full((20,), 4.0))
        plus, seven, text, (minus,) = ops.mixed(x)
        self.assertEqual((seven, text), (7, "seven"))
        self.assertEqual((plus - minus).cpu(), torch.full((3, 2), 2.0))

    def test_kept_tensors_stay_on_the_cpu(self):
        """A result that the operator keeps is aliased, not relabelled under its feet."""
        library, kept = self.library(), torch.arange(3.0)
        library.define("cached(Tensor x) -> Tensor")
        library.impl("cached", lambda x: kept, "CPU")
        result = torch.ops.hologram_test_library.cached(torch.ones(1, device="hologram"))
        self.assertEqual((result.device.type, kept.device.type), ("hologram", "cpu"))
        if HOST_MEMORY:
            self.assertEqual(result.data_ptr(), kept.data_ptr())
        self.assertEqual(result.cpu(), kept)

    def test_defined_anew(self):
        """The same name with another signature, as in a notebook."""
        x = torch.ones(3, device="hologram")
        for schema, function, arguments in (
            ("again(Tensor x) -> Tensor", lambda x: x * 2, (x,)),
            ("again(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y, (x, x)),
            ("again(int n, Tensor x) -> Tensor", lambda n, x: x * n, (2, x)),
        ):
            with torch.library._scoped_library("hologram_test_library", "DEF") as library:
                library.define(schema)
                library.impl("again", function, "CPU")
                result = torch.ops.hologram_test_library.again(*arguments)
                self.assertEqual(result.cpu(), torch.full((3,), 2.0))

    def test_custom_op(self):
        @torch.library.custom_op("hologram_test_library::cube", mutates_args=(), device_types="cpu")
        def cube(x: torch.Tensor) -> torch.Tensor:
            return x**3

        cube.register_autograd(
            lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        )
        x = torch.arange(3.0, device="hologram", requires_grad=True)
        result = cube(x)
        self.assertEqual(result.device, x.device)
        result.sum().backward()
        self.assertEqual(x.grad.cpu(), torch.tensor([0.0, 3, 12]))

        @cube.register_kernel("hologram")
        def native(x):
            return x * 100

        self.assertEqual(cube(x).detach().cpu(), torch.tensor([0.0, 100, 200]))

    def test_no_kernel_at_all(self):
        library = self.library()
        library.define("nothing(Tensor x) -> Tensor")
        library.define("cuda_only(Tensor x) -> Tensor")
        library.impl("cuda_only", lambda x: x, "CUDA")
        x = torch.ones(1, device="hologram")
        if CUDA_KERNELS:  # then it is for the device's memory
            self.assertEqual(torch.ops.hologram_test_library.cuda_only(x).device, x.device)
        for name in ("nothing",) if CUDA_KERNELS else ("nothing", "cuda_only"):
            with self.assertRaisesRegex(
                NotImplementedError,
                f"'hologram_test_library::{name}' on the hologram device: it has neither a "
                "hologram kernel nor a CPU kernel for strided tensors",
            ):
                getattr(torch.ops.hologram_test_library, name)(x)
        if CUDA_KERNELS:
            return
        with self.assertRaisesRegex(NotImplementedError, "aten::_cudnn_rnn_flatten_weight"):
            torch.ops.aten._cudnn_rnn_flatten_weight([x], 1, 1, 2, 1, 0, 1, False, False)

    def test_with_modes(self):
        """Above the device, function and dispatch modes see the device's tensors."""
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                tensors = [a for a in tree_leaves(args) if isinstance(a, torch.Tensor)]
                seen.append((str(function), {t.device.type for t in tensors}))
                return function(*args, **(kwargs or {}))

        x = torch.rand(3, 3, device="hologram")
        with Mode():
            torch.linalg.inv(x).sort()
        names = [name for name, _ in seen]
        self.assertEqual((names[0], names[-1]), ("aten.linalg_inv_ex.default", "aten.sort.default"))
        self.assertEqual({device for _, devices in seen for device in devices}, {"hologram"})


if __name__ == "__main__":
    run_tests()
