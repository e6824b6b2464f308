"""torch.nn.parallel above comm: DataParallel, replicas, scatter and gather with gradients.

By hand, a single test:

    HOLOGRAM_CPU_DEVICES=2 python test/test_data_parallel.py TestParallel.test_training
"""

from __future__ import annotations

import copy
import unittest.mock
import warnings

import torch
from common import GPUS
from multi_device import ONE, ZERO, SeveralDevicesTestCase, in_processes_of_their_own
from torch import nn
from torch.nn import parallel
from torch.testing._internal.common_utils import parametrize, run_tests

hologram = torch.hologram


class Net(nn.Module):
    """Parameters and buffers of several kinds, for replicas of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.output = nn.Linear(8, 3)
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.register_buffer("shift", torch.randn(3))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        y = self.output(self.norm(self.hidden(x)).relu()) * scale
        return y * self.phase.abs() + self.shift


class TestParallel(SeveralDevicesTestCase):
    """torch.nn.parallel, with torch's own code above comm."""

    def reference(self, net: Net, x: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, Net]:
        """The result, with gradients of the sum of its squares, of a copy on the CPU."""
        copied = copy.deepcopy(net).cpu()
        copied.zero_grad()
        y = copied(x, scale)
        y.square().sum().backward()
        return y.detach(), copied

    @parametrize("place", ["cpu", "hologram:0", "hologram:1"])
    def test_data_parallel(self, place):
        x = torch.randn(9, 6)
        net = Net().to(ZERO).eval()
        model = nn.DataParallel(net)
        self.assertEqual(model.device_ids, [0, 1])
        y = model(x.to(place), scale=2.0)
        wanted, copied = self.reference(net, x, 2.0)
        self.assertEqual(y.device, ZERO)
        self.assertEqual(y.detach().cpu(), wanted)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            y.square().sum().backward()
        for p, q in zip(net.parameters(), copied.parameters(), strict=True):
            self.assertEqual(p.grad.device, ZERO)
            self.assertEqual(p.grad.cpu(), q.grad)
        with torch.no_grad():
            self.assertEqual(model(x.to(place), scale=2.0).cpu(), wanted)

    def test_cuda_does_not_come_first(self):
        x, net = torch.randn(4, 6), Net().to(ZERO).eval()
        wanted, _ = self.reference(net, x)
        with unittest.mock.patch("torch.cuda.is_available", return_value=True):
            self.assertEqual(nn.DataParallel(net)(x).cpu(), wanted)

    def test_other_devices(self):
        x = torch.randn(5, 6)
        net = Net().to(ONE).eval()
        wanted, _ = self.reference(net, x)
        model = nn.DataParallel(net, device_ids=[ONE, ZERO], output_device=0)
        self.assertEqual(model(x).device, ZERO)
        self.assertEqual(model(x).cpu(), wanted)
        y = parallel.data_parallel(net, x, [1, 0], ONE)
        self.assertEqual(y.device, ONE)
        self.assertEqual(y.cpu(), wanted)
        self.assertEqual(nn.DataParallel(net, device_ids=[1])(x.to(ONE)).cpu(), wanted)
        with self.assertRaisesRegex(RuntimeError, r"hologram:0 \(device_ids\[0\]\).*hologram:1"):
            nn.DataParallel(net)(x)

    def test_training(self):
        torch.manual_seed(3)
        data = torch.randn(4, 8, 6)
        nets = [Net().to(ZERO), Net()]
        nets[0].norm, nets[1].norm = nn.LayerNorm(8, device=ZERO), nn.LayerNorm(8)
        models = [nn.DataParallel(nets[0]), nets[1]]
        for model, net in zip(models, nets, strict=True):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
            for batch in data:
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
        for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            self.assertEqual(p.detach().cpu(), q.detach())

    def test_buffers_of_the_first_replica(self):
        # As on CUDA, the replica on device_ids[0] shares the module's buffers.
        net = Net().to(ZERO).train()
        x = torch.randn(8, 6)
        nn.DataParallel(net)(x)
        self.assertEqual(net.norm.num_batches_tracked.item(), 1)
        alone = Net().train()
        alone(x[:4])
        self.assertEqual(net.norm.running_mean.cpu(), alone.norm.running_mean)

    def test_replicate_and_apply(self):
        x = torch.randn(4, 6)
        net = Net().to(ZERO).eval()
        wanted, _ = self.reference(net, x)
        for devices in ([0, 1], [ZERO, ONE], ["hologram:0", "hologram:1"]):
            replicas = parallel.replicate(net, devices)
            self.assertEqual(replicas[1].hidden.weight.device, ONE)
            self.assertEqual(replicas[1].phase.dtype, torch.complex64)
            inputs = parallel.scatter((x, {"key": [x, 3]}), devices)
            self.assertEqual(inputs[1][1]["key"][1], 3)
            self.assertSame(inputs[1][1]["key"][0], x[2:], ONE)
            outputs = parallel.parallel_apply(
                replicas, [part[0] for part in inputs], devices=devices
            )
            self.assertEqual([y.device for y in outputs], [ZERO, ONE])
            self.assertEqual(parallel.gather(outputs, ONE).device, ONE)
            self.assertEqual(parallel.gather(outputs, "cpu").detach(), wanted)

    def test_scatter_and_gather_have_gradients(self):
        x = torch.randn(4, dtype=torch.complex64).to(ZERO).requires_grad_()
        chunks = parallel.scatter(x, [0, 1])
        self.assertEqual([c.device for c in chunks], [ZERO, ONE])
        joined = parallel.gather([chunks[0] * 2, chunks[1] * 3], 1)
        self.assertEqual(joined.device, ONE)
        joined.abs().sum().backward()
        wanted = x.detach().cpu().requires_grad_()
        torch.cat([wanted[:2] * 2, wanted[2:] * 3]).abs().sum().backward()
        self.assertEqual(x.grad.cpu(), wanted.grad)
        zeros = [torch.tensor(1.0, device=d, requires_grad=True) for d in (ZERO, ONE)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that scalars become a vector
            parallel.gather(zeros, 0).prod().backward()
        self.assertEqual(zeros[1].grad.device, ONE)

    def test_error_in_a_replica(self):
        class Fails(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if x.device == ONE:
                    raise KeyError("on the second device")
                return super().forward(x)

        with self.assertRaisesRegex(KeyError, "in replica 1 on device 1"):
            nn.DataParallel(Fails(6, 2, device=ZERO))(torch.ones(4, 6))


# Where torch finds a GPU, DataParallel is for CUDA.
HIDDEN = {"HOLOGRAM_BACKENDS": "cpu", "HOLOGRAM_CPU_DEVICES": "2", "CUDA_VISIBLE_DEVICES": ""}
TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__, **(HIDDEN if GPUS else {}))

if __name__ == "__main__":
    run_tests()
