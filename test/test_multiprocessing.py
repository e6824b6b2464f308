"""Fork guard, spawn, queues of device tensors, shared memory, DataLoader."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch
import torch.multiprocessing as mp
from common import HologramTestCase, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.utils.data import DataLoader, Dataset, TensorDataset


def compute(rank: int, results: mp.Queue) -> None:
    results.put((rank, (torch.ones(4, device="hologram") * rank).sum().item()))


def add_in_place(requests: mp.Queue, replies: mp.Queue) -> None:
    tensors = requests.get()
    facts = [
        (str(tensor.device), tuple(tensor.stride()), tensor.requires_grad) for tensor in tensors
    ]
    with torch.no_grad():
        for tensor in tensors:
            tensor += 1
    one_storage = tensors[0].untyped_storage()._cdata == tensors[-1].untyped_storage()._cdata
    replies.put((facts, one_storage))
    requests.get()  # keep the tensors until the parent has looked


def send(replies: mp.Queue, done: mp.Event) -> None:
    module = torch.nn.Linear(3, 2).hologram()
    torch.nn.init.constant_(module.weight, 2.0)
    replies.put({"weight": module.weight, "empty": torch.empty(0, device="hologram")})
    replies.put(torch.arange(1000, device="hologram"))
    done.wait(60)


def train_shared(module: torch.nn.Module) -> None:
    with torch.no_grad():
        module.weight.add_(1)


def raise_out_of_memory(index: int) -> None:
    raise ValueError(f"process {index}: {torch.ones(1, device='hologram').item()}")


class TestFork(HologramTestCase):
    def test_use_after_fork_raises(self):
        run_python(
            """
            import os, torch
            x = torch.ones(3, device="hologram")
            pid = os.fork()
            if pid == 0:
                uses = [
                    lambda: torch.empty(2, device="hologram"),
                    lambda: torch.ones(2).to("hologram"),
                    lambda: torch.hologram.synchronize(),
                    lambda: torch.hologram.Stream(),
                    lambda: torch.hologram.set_device(0),
                    lambda: torch.hologram.get_rng_state(),
                    lambda: x + x,
                    lambda: torch.linalg.inv(torch.eye(2, device="hologram")),
                ]
                for number, use in enumerate(uses):
                    try:
                        use()
                    except RuntimeError as error:
                        text = str(error)
                        good = "Cannot re-initialize hologram in forked subprocess" in text
                        good = good and "'spawn' start method" in text
                        if not good:
                            print(number, text, flush=True)
                            os._exit(1)
                    else:
                        print(number, "did not raise", flush=True)
                        os._exit(2)
                # What only asks, and the CPU, go on working.
                torch.manual_seed(0)
                assert torch.hologram.is_available()
                assert not torch.hologram.is_initialized()
                assert torch.hologram._is_in_bad_fork()
                weight = torch.ones(2, requires_grad=True)
                (weight * 3).sum().backward()
                assert weight.grad.tolist() == [3, 3]
                del x
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
            assert (x + 1).sum().item() == 6
            """
        )

    def test_a_forked_child_exits_normally(self):
        # It inherits tensors, and Python runs its exit handlers. Without the parent's autograd
        # threads torch would wait 10 s for them to end.
        run_python(
            """
            import os, sys, time, torch
            x = torch.ones(1000, device="hologram", requires_grad=True)
            (x * x).sum().backward()
            start = time.monotonic()
            pid = os.fork()
            if pid == 0:
                sys.exit(0)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
            assert time.monotonic() - start < 8
            """
        )

    def test_fork_before_the_first_use(self):
        run_python(
            """
            import os, torch
            torch.manual_seed(0)
            pid = os.fork()
            value = torch.ones(3, device="hologram").sum().item()
            if pid == 0:
                os._exit(0 if value == 3 else 1)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0 and value == 3
            """
        )

    def test_subprocess_is_no_fork(self):
        torch.ones(1, device="hologram")
        self.assertEqual(subprocess.run(["true"], check=False).returncode, 0)
        self.assertFalse(torch.hologram._is_in_bad_fork())


class TestSpawn(HologramTestCase):
    def test_children_compute(self):
        context = mp.get_context("spawn")
        results = context.Queue()
        children = [context.Process(target=compute, args=(rank, results)) for rank in (1, 2)]
        for child in children:
            child.start()
        self.assertEqual(dict(results.get(timeout=120) for _ in children), {1: 4.0, 2: 8.0})
        for child in children:
            child.join(60)
            self.assertEqual(child.exitcode, 0)

    def test_errors_come_back(self):
        with self.assertRaisesRegex(mp.ProcessRaisedException, "process 0: 1.0"):
            mp.spawn(raise_out_of_memory, nprocs=1)


@pytest.mark.host_memory
class TestQueues(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.context = mp.get_context("spawn")

    @parametrize("strategy", ["file_descriptor", "file_system"])
    def test_memory_is_shared(self, strategy):
        before = mp.get_sharing_strategy()
        self.addCleanup(mp.set_sharing_strategy, before)
        mp.set_sharing_strategy(strategy)
        requests, replies = self.context.Queue(), self.context.Queue()
        child = self.context.Process(target=add_in_place, args=(requests, replies))
        child.start()

        base = torch.zeros(3, 4, device="hologram")
        alone = torch.zeros(5, device="hologram", requires_grad=True)
        kept = base[1]  # made before the bytes move to shared memory
        requests.put([base, alone, base.t()[1:]])
        facts, one_storage = replies.get(timeout=120)
        self.assertEqual(
            facts,
            [
                ("hologram:0", (4, 1), False),
                ("hologram:0", (1,), True),
                ("hologram:0", (1, 4), False),
            ],
        )
        self.assertTrue(one_storage)
        expected = torch.ones(3, 4)
        expected[:, 1:] += 1
        self.assertEqual(base.cpu(), expected)
        self.assertEqual(kept.cpu(), expected[1])
        self.assertEqual(alone.detach().cpu(), torch.ones(5))
        self.assertTrue(base.is_shared())
        self.assertEqual((base @ base.t()).cpu(), expected @ expected.t())
        requests.put(None)
        child.join(60)
        self.assertEqual(child.exitcode, 0)

    def test_receiving(self):
        replies, done = self.context.Queue(), self.context.Event()
        child = self.context.Process(target=send, args=(replies, done))
        child.start()
        first = replies.get(timeout=120)
        second = replies.get(timeout=120)
        done.set()
        child.join(60)
        # The bytes outlive their sender.
        self.assertIsInstance(first["weight"], torch.nn.Parameter)
        self.assertTrue(first["weight"].requires_grad)
        self.assertEqual(first["weight"].detach().cpu(), torch.full((2, 3), 2.0))
        self.assertEqual((first["empty"].device.type, first["empty"].numel()), ("hologram", 0))
        self.assertEqual(second.sum().item(), 499500)
        del first, second

    def test_sharing_twice_moves_once(self):
        tensor = torch.arange(10.0, device="hologram")
        tensor.share_memory_()
        address = tensor.data_ptr()
        self.assertTrue(tensor.is_shared())
        tensor.share_memory_()
        self.assertEqual(tensor.data_ptr(), address)
        self.assertEqual(tensor.cpu(), torch.arange(10.0))

    def test_share_memory(self):
        foreign = "foreign_bytes.all.current"
        before = torch.hologram.memory_stats()[foreign]
        tensor = torch.empty(200, 300, device="hologram").fill_(5)
        view = tensor.t()
        self.assertFalse(tensor.is_shared())
        self.assertIs(tensor.share_memory_(), tensor)
        self.assertTrue(view.is_shared())
        self.assertEqual(torch.hologram.memory_stats()[foreign] - before, 200 * 300 * 4)
        tensor += 1
        self.assertEqual(view.cpu(), torch.full((300, 200), 6.0))
        self.assertFalse(torch.ones(1).is_shared())
        self.assertFalse(torch.empty(0, device="hologram").share_memory_().is_shared())

    def test_shared_module(self):
        module = torch.nn.Linear(2, 2, bias=False).hologram().share_memory()
        before = module.weight.detach().clone()
        child = self.context.Process(target=train_shared, args=(module,))
        child.start()
        child.join(120)
        self.assertEqual(child.exitcode, 0)
        self.assertEqual(module.weight.detach(), before + 1)

    def test_non_leaf(self):
        tensor = torch.ones(1, device="hologram", requires_grad=True) * 2
        from multiprocessing.reduction import ForkingPickler

        with self.assertRaisesRegex(RuntimeError, "non-leaf tensor"):
            ForkingPickler.dumps(tensor)

    def test_cpu_tensors_as_before(self):
        from multiprocessing.reduction import ForkingPickler

        tensor = torch.arange(3)
        self.assertEqual(ForkingPickler.loads(ForkingPickler.dumps(tensor)), tensor)
        self.assertTrue(tensor.is_shared())


class Rows(Dataset):
    """Row i is (i, i, i); remembers which process made it."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        torch.rand(1)
        return torch.full((3,), float(index)), os.getpid()


class DeviceRows(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index), device="hologram")


class TestDataLoader(HologramTestCase):
    @parametrize("context", ["fork", "spawn"])
    def test_workers_and_pinned_memory(self, context):
        torch.ones(1, device="hologram")  # the device is in use before the workers start
        loader = DataLoader(
            Rows(), batch_size=4, num_workers=2, pin_memory=True, multiprocessing_context=context
        )
        processes, total = set(), torch.zeros(3, device="hologram")
        for rows, made_by in loader:
            self.assertTrue(rows.is_pinned())
            processes.update(made_by.tolist())
            total += rows.to("hologram", non_blocking=True).sum(0)
        self.assertEqual(total.cpu(), torch.full((3,), 120.0))
        self.assertEqual(len(processes), 2)
        self.assertNotIn(os.getpid(), processes)

    def test_persistent_workers(self):
        loader = DataLoader(
            Rows(), batch_size=8, num_workers=2, pin_memory=True, persistent_workers=True
        )
        for _ in range(2):
            self.assertEqual(sum(rows.to("hologram").sum().item() for rows, _ in loader), 360.0)

    def test_device_tensors_in_forked_workers_are_refused(self):
        torch.ones(1, device="hologram")
        loader = DataLoader(DeviceRows(), num_workers=1, multiprocessing_context="fork")
        with self.assertRaisesRegex(RuntimeError, "hologram in forked subprocess"):
            next(iter(loader))

    @pytest.mark.host_memory
    def test_device_tensors_from_spawned_workers(self):
        loader = DataLoader(
            DeviceRows(), batch_size=8, num_workers=1, multiprocessing_context="spawn"
        )
        for number, rows in enumerate(loader):
            self.assertTrue(rows.is_hologram)
            self.assertEqual(rows[:, 0].cpu(), torch.arange(8.0) + 8 * number)

    def test_dataset_on_the_device(self):
        dataset = TensorDataset(torch.arange(10.0, device="hologram"))
        batches = [batch for (batch,) in DataLoader(dataset, batch_size=5)]
        self.assertTrue(batches[0].is_hologram)
        self.assertEqual(torch.cat(batches).cpu(), torch.arange(10.0))

    def test_shuffling_with_a_device_as_default(self):
        with torch.device("hologram"):
            generator = torch.Generator(device="hologram")
            loader = DataLoader(Rows(), batch_size=16, shuffle=True, generator=generator)
            (rows, _), *_ = loader
        self.assertEqual(rows.sum().item(), 360.0)


instantiate_parametrized_tests(TestQueues)
instantiate_parametrized_tests(TestDataLoader)

if __name__ == "__main__":
    run_tests()
