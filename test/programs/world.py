"""The world in which a program runs: its helpers, on one device, and what it leaves."""

from __future__ import annotations

import os
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from common import CUDA_KERNELS

from programs.sharing import is_undefined

hologram = torch.hologram
DEVICE = "hologram"


class Worker:
    """A thread that runs what it is given, in order."""

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            task, done = self.tasks.get()
            task()
            del task
            done.set()

    def start(self, task: Callable[[], object]) -> threading.Event:
        done = threading.Event()
        self.tasks.put((task, done))
        return done


_worker: Worker | None = None
_streams: list = []
# The generator that dropout draws from is the device's, not a thread's.
_seeding = threading.Lock()

# Around zero, powers of two, and beyond what the dtypes can hold.
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 1e-40, -1e-7, 65520.0, -1e38, 1e39)
SPECIAL_INTEGERS = (0, 1, -1, 2, 7, -128, 2**31, -(2**63), 2**63 - 1, 3)


class World:
    """The helpers of a program, on one device. On "cpu" what flushes does nothing."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.mine = device != "cpu"
        self.seen: list[Any] = []  # what the program read on its way, and its errors
        self.events: list = []
        self.views: list[torch.Tensor] = []
        self.waiting: list[threading.Event] = []
        self._generator = torch.Generator(device).manual_seed(1)

    def names(self) -> dict[str, Any]:
        """The global variables of a program."""
        helpers = (name for name in vars(World) if not name.startswith("_"))
        return {"torch": torch, **{name: getattr(self, name) for name in helpers}}

    def data(
        self, seed: int, shape: tuple[int, ...], dtype: torch.dtype, mild: bool = False
    ) -> torch.Tensor:
        """Random numbers, unless mild a few of them special, of any count in cycles of 97.

        On the CPU first: the same on every device.
        """
        choose = random.Random(seed)
        count = 1
        for size in shape:
            count *= size
        if dtype == torch.bool:
            values: list = [choose.random() < 0.5 for _ in range(min(count, 97))]
        elif dtype == torch.int64:
            values = [choose.randint(-9, 9) for _ in range(min(count, 97))]
        else:
            values = [choose.gauss(0, 2) for _ in range(min(count, 97))]
        if values and choose.random() < 0.5 and not mild:
            special: tuple = (True, False)
            if dtype != torch.bool:
                special = SPECIAL_INTEGERS if dtype == torch.int64 else SPECIAL
            for _ in range(1 + len(values) // 8):
                values[choose.randrange(len(values))] = choose.choice(special)
            if dtype.is_floating_point and choose.random() < 0.3:
                values[0] = choose.choice([torch.nan, torch.inf, -torch.inf])
        if count > len(values):
            values = (values * (count // max(len(values), 1) + 1))[:count]
        wide = torch.float64 if dtype.is_floating_point else dtype
        return torch.tensor(values, dtype=wide).reshape(shape).to(dtype).to(self.device)

    def classes(self, seed: int, count: int, classes: int) -> torch.Tensor:
        """Targets of a loss, a few of them ignored."""
        choose = random.Random(seed)
        values = [choose.randrange(classes) for _ in range(count)]
        if choose.random() < 0.5:
            values[choose.randrange(count)] = -100
        return torch.tensor(values).to(self.device)

    def indices(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values).to(self.device)

    def draw(self, x: torch.Tensor, method: str, *parameters: float) -> torch.Tensor:
        """Fills a tensor with random numbers."""
        return getattr(x, method)(*parameters, generator=self._generator)

    def dropout(self, x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
        """The result and the mask as one tensor."""
        with _seeding:
            if self.mine:
                hologram.manual_seed(seed)
            result, mask = torch.native_dropout(x, p, True)
        return result + mask

    def attempt(
        self, call: Callable[[], object], target: torch.Tensor, *operands: torch.Tensor
    ) -> None:
        """Calls what may be refused; an error counts as a result.

        It writes to `target`. What is neither refused nor defined is left out where torch's CUDA
        kernels would do it: what they make of that depends on which of their threads is first.
        """
        if CUDA_KERNELS and is_undefined(target, *operands):
            self.seen.append("undefined")
            return
        try:
            call()
            self.seen.append("no error")
        except (RuntimeError, NotImplementedError, TypeError) as error:
            self.seen.append(f"{type(error).__name__}: {error}".replace(DEVICE, "cpu"))

    def gradient(
        self, function: Callable, x: torch.Tensor, grad: torch.Tensor | None = None
    ) -> torch.Tensor:
        """d function(x) / dx * grad, on autograd's thread of the device."""
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, grad)[0]

    # Collectives, of the two ranks of the default process group.

    def all_reduce(self, x: torch.Tensor, operation: str) -> None:
        """In place, where the elements lie as an engine wants them."""
        if x.is_contiguous():
            dist.all_reduce(x, getattr(dist.ReduceOp, operation))

    def reduced(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of what is different in each rank."""
        y = x.contiguous().clone()
        if y.dtype != torch.bool:
            y = y * (dist.get_rank() + 1)
        dist.all_reduce(y)
        return y

    def beside(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Something that is recorded while a collective is on its way."""
        x = x.contiguous().clone()
        work = dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
        result = y.neg() if y.dtype != torch.bool else ~y
        work.wait()
        self.read(x)
        return result

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous().reshape(-1) if x.dim() == 0 else x.contiguous()
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    def sent(self, x: torch.Tensor) -> torch.Tensor:
        """From one rank to the other."""
        x = x.contiguous().clone()
        dist.broadcast(x, 1)
        return x

    # What makes a window run.

    def flush(self) -> None:
        if self.mine:
            hologram.flush()

    def synchronize(self) -> None:
        if self.mine:
            hologram.synchronize()

    def event(self) -> None:
        if self.mine:
            self.events.append(hologram.Event())
            self.events[-1].record()

    def wait_event(self) -> None:
        if self.mine and self.events:
            self.events[-1].wait()

    def read(self, x: torch.Tensor) -> None:
        """A copy on the host."""
        self.seen.append(x.cpu() if self.mine else x.clone())

    def item(self, x: torch.Tensor) -> None:
        """One number on the host."""
        self.seen.append(x.flatten()[:1].tolist())

    def delegated(self, x: torch.Tensor) -> None:
        """An operation of torch's own CPU kernels, which order their sums by addresses' alignment:
        one whose result does not depend on the order."""
        self.seen.append(torch.flip(x, [0] if x.dim() else []).cpu())

    def address(self, x: torch.Tensor) -> None:
        x.data_ptr()

    def storage_address(self, x: torch.Tensor) -> None:
        x.untyped_storage().data_ptr()

    # Others that may look at the memory at any time.

    def look(self, x: torch.Tensor) -> None:
        """A CPU tensor over the memory, until look_away()."""
        if not self.mine:
            return
        if hologram.get_device_properties(x.device).host_addressable:
            self.views.append(hologram.alias_as_cpu(x))
        else:
            x.cpu()

    def look_away(self) -> None:
        self.views.clear()

    def give_address(self, x: torch.Tensor) -> None:
        """The memory is shared for good: another storage may be made over it."""
        if self.mine:
            torch.utils.dlpack.to_dlpack(x)

    def fill_window(self, x: torch.Tensor) -> None:
        """More instructions than a window holds; together they do nothing."""
        if self.mine:
            for _ in range(4098):
                x.neg_()

    def step(self, x: torch.Tensor) -> None:
        """An optimizer takes a step while a product waits; together they do nothing."""
        if self.mine:
            row = x.detach().reshape(1, -1).float()
            product = row @ row.t()  # noqa: F841 waits
            weight = torch.zeros(1, device=x.device).requires_grad_()
            weight.grad = torch.zeros(1, device=x.device)
            torch.optim.SGD([weight], lr=0.1).step()

    def flush_denormals(self, x: torch.Tensor) -> None:
        """Instructions in another mode of the thread; together they do nothing."""
        if self.mine:
            torch.set_flush_denormal(True)
            x.neg_()
            torch.set_flush_denormal(False)
            x.neg_()

    def run_out_of_memory(self) -> None:
        if not self.mine:
            return
        # What is recorded may need memory for a value between two of its passes: it would be told
        # that there is none, as it should be, and the program would differ from eager mode.
        # So only an operation in place, which needs none, waits when there is no room.
        pending = torch.ones(8, device=DEVICE)
        hologram.synchronize()
        hologram.set_per_process_memory_fraction(1e-9)
        pending.add_(1)
        try:
            torch.empty(1 << 26, device=DEVICE)
        except torch.OutOfMemoryError:
            pass
        finally:
            hologram.set_per_process_memory_fraction(1.0)

    def fork(self) -> None:
        """A child that ends at once."""
        if self.mine:
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)

    def use_stream(self, index: int) -> None:
        if self.mine:
            while len(_streams) <= index:
                _streams.append(hologram.Stream())
            hologram.set_stream(_streams[index])

    def wait_stream(self, index: int) -> None:
        if self.mine and index < len(_streams):
            hologram.current_stream().wait_stream(_streams[index])

    # Other threads.

    def elsewhere(self, task: Callable[[], object], wait: bool) -> None:
        """Runs a task on another thread; at the end of the program at the latest it is done."""
        global _worker
        if _worker is None:
            _worker = Worker()
        done = _worker.start(task)
        if wait:
            done.wait()
        else:
            self.waiting.append(done)

    def finish(self) -> None:
        for done in self.waiting:
            done.wait()
        if self.mine and _streams:
            hologram.set_stream(hologram.default_stream())


@dataclass
class Result:
    """What is left of a program: its tensors on the CPU, and what it read on the way."""

    tensors: dict[str, torch.Tensor]
    seen: list[Any]


def finals(names: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a program's variables, on the CPU."""
    return {
        name: value.cpu()
        for name, value in names.items()
        if name[0] == "t" and isinstance(value, torch.Tensor)
    }


def run(code: Any) -> Result:
    """Runs a compiled program on the device."""
    world = World(DEVICE)
    names = world.names()
    try:
        exec(code, names)
    finally:
        world.finish()
    return Result(finals(names), world.seen)
