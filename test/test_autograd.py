"""What autograd sees of delegated calls: versions, leaves, inference mode, saved tensors."""

from __future__ import annotations

import gc

import torch
from common import DEVICES, HologramTestCase
from torch.testing._internal.common_utils import run_tests


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
