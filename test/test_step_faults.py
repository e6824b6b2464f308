"""What goes wrong in the middle of a training step: the step says so, and the next one is right."""

from __future__ import annotations

import copy
import signal
import threading

import pytest
import torch
import torch.nn.functional as F
from common import HologramTestCase
from torch import nn
from torch.testing._internal.common_utils import run_tests


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 5),
    )  # fmt: skip


class Run:
    """A net with its optimizer and data on a device."""

    def __init__(self, device: str) -> None:
        self.net = copy.deepcopy(make_net()).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(1)
        self.x = torch.rand(6, 1, 8, 8, generator=generator).to(device)
        self.target = (torch.arange(6) % 5).to(device)

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> list[torch.Tensor]:
        return [value.detach().cpu() for value in self.net.state_dict().values()]


class TestStepFaults(HologramTestCase):
    def setUp(self):
        super().setUp()
        self.mine, self.wanted = Run("hologram"), Run("cpu")
        for _ in range(2):
            self.assert_same_step()

    def assert_same_step(self):
        self.assertEqual(self.mine.step(), self.wanted.step())
        self.assertEqual(self.mine.state(), self.wanted.state())

    def test_a_hook_that_raises(self):
        def refuse(*_):
            raise ValueError("not today")

        for net in (self.mine.net, self.wanted.net):
            for where in ("register_forward_hook", "register_full_backward_hook"):
                handle = getattr(net[5], where)(refuse)
                with self.assertRaisesRegex(ValueError, "not today"):
                    (self.mine if net is self.mine.net else self.wanted).step()
                handle.remove()
        # Batch norm has seen the data of the steps that failed, on both sides.
        self.assertEqual(self.mine.state(), self.wanted.state())
        self.assert_same_step()

    def test_no_memory(self):
        before = self.mine.state()
        wide = torch.rand(64, 1 << 16, device="hologram")
        torch.hologram.synchronize()
        torch.hologram.empty_cache()
        total = torch.hologram.mem_get_info()[1]
        held = torch.hologram.memory_reserved()
        torch.hologram.set_per_process_memory_fraction((held + (24 << 20)) / total)
        try:
            with self.assertRaisesRegex(torch.OutOfMemoryError, "MiB"):
                torch.mm(wide.t(), wide[:, :1024]).sum().item()  # 256 MiB
                self.mine.step()
        finally:
            torch.hologram.set_per_process_memory_fraction(1.0)
        del wide
        self.assertEqual(self.mine.state(), before)
        self.assert_same_step()

    def test_a_class_that_there_is_not(self):
        good = self.mine.target
        self.mine.target = good + 3
        with self.assertRaisesRegex(IndexError, "Target .* is out of bounds"):
            self.mine.step()
            torch.hologram.synchronize()
        self.mine.target = good

    @pytest.mark.device_assert
    def test_an_index_out_of_range_in_a_program(self):
        table = nn.Embedding(8, 4).to("hologram")
        for words in ([1, 2, 3], [3, 2, 1]):
            table(torch.tensor(words).to("hologram")).sum().backward()
        gradient = table.weight.grad.cpu()
        with self.assertRaisesRegex(IndexError, "index out of range"):
            table(torch.tensor([1, 8, 3]).to("hologram")).sum().item()
        self.assertEqual(table.weight.grad, gradient)
        table(torch.tensor([1, 2, 3]).to("hologram")).sum().backward()
        self.assertEqual(table.weight.grad, gradient * 1.5)

    def test_interrupted_while_a_program_runs(self):
        """Ctrl-C is raised when the program has run; its results are there."""
        x = torch.ones(1 << 20, device="hologram")
        torch.hologram.synchronize()
        main = threading.main_thread().ident
        assert main is not None
        y = x
        for _ in range(400):
            y = (y * 0.5 + 0.5).sin().add(x).cos()
        timer = threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGINT))
        # In the background of a shell Ctrl-C is ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with self.assertRaises(KeyboardInterrupt):
            timer.start()
            torch.hologram.synchronize()
            timer.join()
            for _ in range(1000):
                pass
        timer.join()
        wanted = torch.ones(1)
        for _ in range(400):
            wanted = (wanted * 0.5 + 0.5).sin().add(1).cos()
        self.assertEqual(y[:1], wanted, atol=1e-4, rtol=1e-4)  # 1,600 roundings
        self.assert_same_step()


if __name__ == "__main__":
    run_tests()
