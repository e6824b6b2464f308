"""What autograd sees of delegated calls: versions, leaves, inference mode, saved tensors."""

from __future__ import annotations

import gc

import torch
from common import DEVICES, HologramTestCase
from torch.autograd import forward_ad
from torch.testing._internal.common_utils import run_tests
from torch.utils._python_dispatch import TorchDispatchMode


class TestAutograd(HologramTestCase):
    def test_versions(self):
        """Writes through the delegate bump the tensor's counter, once, as on the CPU."""
        for function in (
            lambda x: x.sigmoid_(),
            lambda x: x.add_(1),
            lambda x: torch.sin(x, out=x),
            lambda x: x[1:].sigmoid_(),
            lambda x: x.unfold(0, 2, 2).sigmoid_(),
            lambda x: x.fill_(2),
            lambda x: x.copy_(torch.ones(4)),
            lambda x: x.index_put_((torch.tensor([0]),), x.new_tensor(1.0)),
            lambda x: torch._foreach_add_([x, x[1:]], 1),
            lambda x: x.detach().sigmoid_(),
            lambda x: x.data.sigmoid_(),
            lambda x: x.resize_(9),
            lambda x: x.normal_(),
            lambda x: torch.sort(
                torch.ones(4, device=x.device), out=(x, torch.ones(4).long().to(x.device))
            ),
            lambda x: x.sort(),
        ):
            versions = []
            for device in DEVICES:
                x = torch.rand(4, device=device)
                function(x)
                versions.append(x._version)
            self.assertEqual(versions[1], versions[0])

    def test_changed_before_backward(self):
        for forward, change in (
            (lambda x: x.sigmoid(), lambda x, y: y.mul_(2)),
            (lambda x: x.sin(), lambda x, y: x.add_(1)),
            (lambda x: x.exp(), lambda x, y: y.unfold(0, 2, 1)[0].zero_()),
            (lambda x: x.prod(), lambda x, y: torch.sort(x.clone(), out=(x, x.long()))),
            (lambda x: x.max(), lambda x, y: torch._foreach_neg_([x])),
        ):
            messages = []
            for device in DEVICES:
                x = torch.rand(3, device=device, requires_grad=True) * 1
                y = forward(x)
                with torch.no_grad():
                    try:
                        change(x, y)
                    except RuntimeError as error:
                        self.fail(str(error))
                try:
                    y.sum().backward()
                    messages.append("")
                except RuntimeError as error:
                    messages.append(str(error).replace("hologramFloatType", "torch.FloatTensor"))
            self.assertEqual(messages[1], messages[0])

    def test_leaves_and_views(self):
        for device in DEVICES:
            leaf = torch.rand(3, device=device, requires_grad=True)
            with self.assertRaisesRegex(RuntimeError, "a leaf Variable that requires grad"):
                leaf.sigmoid_()
            with self.assertRaisesRegex(RuntimeError, "view of a leaf Variable"):
                leaf[1:].sigmoid_()
            with self.assertRaisesRegex(RuntimeError, "don't support automatic differentiation"):
                torch.sin(leaf, out=torch.empty(3, device=device))

    def test_inference_mode(self):
        with torch.inference_mode():
            x = torch.rand(3, 3, device="hologram")
            y = torch.linalg.inv(x)
            torch.sort(x, out=(y, torch.zeros(3, 3).long().hologram()))
            y[1:].sigmoid_()
            self.assertTrue(x.is_inference() and y.is_inference() and y[1:].is_inference())
        normal = torch.rand(3, 3, device="hologram")
        with torch.inference_mode():
            normal.sigmoid_()
            self.assertFalse(normal.is_inference())
            self.assertEqual(normal._version, 1)
        for device in DEVICES:
            with torch.inference_mode():
                x = torch.rand(3, device=device)
            with self.assertRaisesRegex(RuntimeError, "Inplace update to inference tensor"):
                x.sigmoid_()

    def test_results_of_integers_need_no_gradient(self):
        x = torch.rand(4, device="hologram", requires_grad=True)
        values, indices = x.sort()
        self.assertEqual((values.requires_grad, indices.requires_grad), (True, False))
        self.assertFalse((x > 0).requires_grad)

    def test_tangents_without_gradients(self):
        """Under no_grad, a call goes past torch's kernels of autograd, but not with a tangent."""
        for function in (
            lambda x, t: x * t,
            lambda x, t: t.clone().mul_(x),
            lambda x, t: torch.softmax(x, 0) + t.sum(),
            lambda x, t: torch.mm(x, t),
            lambda x, t: t.clone().copy_(x),
            lambda x, t: torch.nn.functional.gelu(x),
        ):
            tangents = []
            x, t = torch.rand(3, 3), torch.rand(3, 3)
            for device in DEVICES:
                with forward_ad.dual_level(), torch.no_grad():
                    dual = forward_ad.make_dual(x.to(device), t.to(device))
                    tangents.append(forward_ad.unpack_dual(function(dual, t.to(device))).tangent)
            self.assertEqual(tangents[1].cpu(), tangents[0])

    def test_modes_and_transforms_without_gradients(self):
        class Names(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                names.append(str(func))
                return func(*args, **(kwargs or {}))

        names: list[str] = []
        x = torch.rand(3, 4, device="hologram")
        with torch.no_grad(), Names():
            x.add_(x * 2).sum(1)
        self.assertEqual(names, ["aten.mul.Tensor", "aten.add_.Tensor", "aten.sum.dim_IntList"])

        def sums(row):
            with torch.no_grad():
                return (row * 2).sum()

        self.assertEqual(torch.vmap(sums)(x), (x * 2).sum(1))
        gradient = torch.func.grad(lambda row: (row * sums(row)).sum())(x[0])
        self.assertEqual(gradient, sums(x[0]).expand(4))

    def test_kernels_of_autograd(self):
        """Where torch has kernels in Python, or a composition, there is none of the device's."""
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        of_all = torch._C.DispatchKey.Autograd
        found = set()
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("aten::") and has_kernel(name, "AutogradPrivateUse1"):
                base, _, overload = name.removeprefix("aten::").partition(".")
                op = getattr(getattr(torch.ops.aten, base), overload or "default", None)
                in_python = op is not None and of_all in op.py_kernels
                if in_python or has_kernel(name, "CompositeImplicitAutograd"):
                    found.add(base)
        # Networks of one call and a loss, which make their own graphs.
        networks = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        self.assertEqual(found, {*networks, "cross_entropy_loss"})

    def test_lists_of_leaves(self):
        for device in DEVICES:
            leaves = [torch.rand(3, device=device, requires_grad=True) for _ in range(2)]
            with self.assertRaisesRegex(RuntimeError, "a leaf Variable that requires grad"):
                torch._foreach_add_(leaves, 1)
            with torch.no_grad():
                torch._foreach_add_(leaves, 1)
            self.assertEqual([leaf._version for leaf in leaves], [1, 1])
            self.assertTrue(all(leaf.is_leaf and leaf.requires_grad for leaf in leaves))

    def test_saved_tensors(self):
        """What a node keeps for backward is the device's, and survives the alias."""
        x = torch.rand(3, 3, device="hologram", requires_grad=True)
        y = torch.linalg.inv(x)
        self.assertEqual(y.grad_fn._saved_inverse.device, x.device)
        gc.collect()
        (gradient,) = torch.autograd.grad(y.sum(), x)
        plain = x.detach().cpu().requires_grad_()
        (wanted,) = torch.autograd.grad(torch.linalg.inv(plain).sum(), plain)
        self.assertEqual(gradient.cpu(), wanted)


if __name__ == "__main__":
    run_tests()
