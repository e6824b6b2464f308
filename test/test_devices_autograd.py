"""Gradients that cross devices: values, threads, errors, transforms.

By hand, a single test:

    HOLOGRAM_CPU_DEVICES=2 python test/test_devices_autograd.py TestAutograd
"""

from __future__ import annotations

import threading
from typing import ClassVar

import torch
from multi_device import BOTH_WAYS, ONE, ZERO, SeveralDevicesTestCase, in_processes_of_their_own
from torch.testing._internal.common_utils import parametrize, run_tests

hologram = torch.hologram


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


TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__)

if __name__ == "__main__":
    run_tests()
