"""Models split over two devices: training, optimizers, GradScaler, clipping, a pipeline.

By hand, a single test:

    HOLOGRAM_CPU_DEVICES=2 python test/test_model_parallel.py TestTraining.test_pipeline
"""

from __future__ import annotations

import copy
import queue
import threading

import torch
from multi_device import ONE, ZERO, SeveralDevicesTestCase, alike, in_processes_of_their_own
from torch import nn
from torch.testing._internal.common_utils import parametrize, run_tests

hologram = torch.hologram


class Halves(nn.Module):
    """A model whose second half may be on another device."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(144, 16),
        )
        self.second = nn.Sequential(nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).to(self.second[2].weight.device))


def train(model: Halves, device: torch.device, there: torch.device, steps: int = 5, **options):
    """Trains on fixed data.

    Returns:
        the losses, and the parameters and buffers at the end, on the CPU.
    """
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, **options)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 1, 8, 8, generator=generator).to(device)
        labels = torch.randint(0, 5, (8,), generator=generator).to(there)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, True),
    "Adam": (torch.optim.Adam, {"lr": 0.1}, True),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1, "amsgrad": True}, True),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}, True),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.5}, False),
    "Adadelta": (torch.optim.Adadelta, {}, False),
}


class TestTraining(SeveralDevicesTestCase):
    def model(self) -> Halves:
        torch.manual_seed(0)
        return Halves()

    def split(self) -> Halves:
        model = self.model()
        model.first.to(ZERO)
        model.second.to(ONE)
        return model

    @parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
    def test_split_model(self, options):
        cpu = torch.device("cpu")
        losses, wanted = train(self.model(), cpu, cpu, **options)
        split_losses, state = train(self.split(), ZERO, ONE, **options)
        # The clipped norm is a sum over two devices, taken in another order than on one.
        self.assertEqual(split_losses, losses)
        self.assertEqual(state, wanted)
        self.assertLess(losses[-1], losses[0] * 2)

    def test_split_model_is_the_same_bit_for_bit(self):
        # Of a GPU and a CPU the products are those of two libraries.
        same = self.assertSame if alike() else self.assertClose
        x = torch.randn(8, 1, 8, 8)
        model, split = self.model().to(ZERO), self.split()
        y = model(x.to(ZERO))
        z = split(x.to(ZERO))
        same(z.detach(), y.detach().cpu(), ONE)
        y.square().sum().backward()
        z.square().sum().backward()
        for a, b in zip(split.parameters(), model.parameters(), strict=True):
            same(a.grad, b.grad.cpu(), a.device)

    @parametrize("name", list(OPTIMIZERS))
    def test_optimizers(self, name):
        make, options, fused = OPTIMIZERS[name]
        for mode in ({}, {"foreach": True}, {"foreach": False}, {"fused": True})[
            : 4 if fused else 3
        ]:
            torch.manual_seed(0)
            values = [torch.randn(3, 4), torch.randn(5), torch.randn(2, 2), torch.randn(7)]
            places = (ZERO, ONE, ONE, ZERO)
            ours = [nn.Parameter(v.to(d)) for v, d in zip(values, places, strict=True)]
            theirs = [nn.Parameter(v.clone()) for v in values]
            pair = make(ours, **options, **mode), make(theirs, **options, **mode)
            for _ in range(3):
                for p, q in zip(ours, theirs, strict=True):
                    q.grad = torch.randn_like(q)
                    p.grad = q.grad.to(p.device)
                for optimizer in pair:
                    optimizer.step()
                pair[0].load_state_dict(copy.deepcopy(pair[0].state_dict()))
            for p, q, device in zip(ours, theirs, places, strict=True):
                self.assertClose(p.detach(), q.detach(), device)
                for key, value in pair[0].state[p].items():
                    if isinstance(value, torch.Tensor) and value.dim() > 0:
                        self.assertEqual(value.device, device, key)

    @parametrize("fused", [False, True])
    def test_grad_scaler(self, fused):
        model = self.split()
        parameters = list(model.parameters())
        optimizer = torch.optim.Adam(parameters, lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("hologram", init_scale=8.0, growth_interval=100)

        def backward() -> None:
            optimizer.zero_grad()
            with torch.autocast("hologram", dtype=torch.float16):
                y = model(torch.randn(4, 1, 8, 8).to(ZERO))
            self.assertEqual((y.dtype, y.device), (torch.float16, ONE))
            scaler.scale(y.float().square().mean()).backward()

        for _ in range(2):
            before = [p.detach().clone() for p in parameters]
            backward()
            if not fused:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            self.assertEqual(scaler.get_scale(), 8.0)
            for p, old in zip(parameters, before, strict=True):
                self.assertTrue(p.isfinite().all())
                self.assertFalse(torch.equal(p, old))
        # An infinity on one device skips the step on both.
        for bad in (parameters[0], parameters[-1]):
            before = [p.detach().clone() for p in parameters]
            scale = scaler.get_scale()
            backward()
            bad.grad.view(-1)[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            self.assertEqual(scaler.get_scale(), scale / 2)
            for p, old in zip(parameters, before, strict=True):
                self.assertTrue(torch.equal(p, old))

    def test_clipping(self):
        for foreach in (None, True, False):
            for clip in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
                pair = [
                    [nn.Parameter(torch.ones(3, device=d)) for d in (ZERO, ONE)] for _ in range(2)
                ]
                pair[1] = [nn.Parameter(p.detach().cpu()) for p in pair[1]]
                for parameters in pair:
                    for n, p in enumerate(parameters):
                        p.grad = torch.full_like(p, 2.0 + n)
                norms = [clip(parameters, 0.5, foreach=foreach) for parameters in pair]
                if norms[1] is not None:
                    self.assertEqual(norms[0].device, ZERO)
                    self.assertEqual(norms[0].cpu(), norms[1])
                for p, q in zip(*pair, strict=True):
                    self.assertEqual(p.grad.device, p.device)
                    self.assertEqual(p.grad.cpu(), q.grad)

    def test_pipeline(self):
        # Two stages in two threads, joined by a queue; micro-batches; gradients add up.
        model, split = self.model().eval(), self.split().eval()
        batches = torch.randn(6, 4, 1, 8, 8)
        between: queue.Queue = queue.Queue(maxsize=2)
        outputs, errors = [], []

        def first() -> None:
            try:
                for batch in batches:
                    between.put(split.first(batch.to(ZERO)).to(ONE))
            except BaseException as error:
                errors.append(error)
            between.put(None)

        def second() -> None:
            try:
                while (hidden := between.get(timeout=60)) is not None:
                    outputs.append(split.second(hidden))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=stage) for stage in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(errors, [])
        sum(y.square().sum() for y in outputs).backward()
        wanted = [model(batch) for batch in batches]
        sum(y.square().sum() for y in wanted).backward()
        for y, other in zip(outputs, wanted, strict=True):
            self.assertClose(y.detach(), other.detach(), ONE)
        for p, q in zip(split.parameters(), model.parameters(), strict=True):
            self.assertEqual(p.grad.cpu(), q.grad)


TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__)

if __name__ == "__main__":
    run_tests()
