"""Every collective of torch.distributed, with every operation and dtype: on tensors of the CPU and
of the device, in one process group. Where the device's memory is CUDA's, on those of torch's own
CUDA device, not the CPU.

A program of a rank (ranks.py runs one for each): prints, as JSON, what both said. tools/
collectives.py writes it into the documentation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from torch_hologram import _C

DTYPES = "float32 float64 float16 bfloat16 complex64 int8 uint8 int16 int32 int64 bool".split()
OPERATIONS = "SUM AVG PRODUCT MIN MAX BAND BOR BXOR".split()
N = 5


class Call:
    """A call's tensors: numbers that say which rank, which tensor and which element."""

    def __init__(self, device: str, dtype: torch.dtype, operation: str = "SUM") -> None:
        self.device, self.dtype = device, dtype
        self.op = getattr(dist.ReduceOp, operation)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def numbers(self, seed: int = 0, count: int = N) -> torch.Tensor:
        values = torch.arange(count) + self.rank * 3 + seed * 2 + 1
        # An operation whose result is recorded when the collective comes.
        return values.to(self.dtype).to(self.device).view(-1).clone()

    def empty(self, count: int = N) -> torch.Tensor:
        return torch.zeros(count, dtype=self.dtype, device=self.device)

    def each(self) -> list[torch.Tensor]:
        return [self.numbers(i) for i in range(self.size)]

    def empties(self) -> list[torch.Tensor]:
        return [self.empty() for _ in range(self.size)]


def broadcast(call: Call) -> list[torch.Tensor]:
    x = call.numbers()
    dist.broadcast(x, call.size - 1)
    return [x]


def all_gather(call: Call) -> list[torch.Tensor]:
    out = call.empties()
    dist.all_gather(out, call.numbers())
    return out


def all_gather_into_tensor(call: Call) -> list[torch.Tensor]:
    out = call.empty(N * call.size)
    dist.all_gather_into_tensor(out, call.numbers())
    return [out]


def all_gather_coalesced(call: Call) -> list[torch.Tensor]:
    outs = [call.empties(), call.empties()]
    dist.all_gather_coalesced(outs, [call.numbers(), call.numbers(1)])
    return [x for out in outs for x in out]


def gather(call: Call) -> list[torch.Tensor]:
    out = call.empties() if call.rank == 0 else None
    dist.gather(call.numbers(), out, 0)
    return out or []


def scatter(call: Call) -> list[torch.Tensor]:
    out = call.empty()
    root = call.size - 1
    dist.scatter(out, call.each() if call.rank == root else None, root)
    return [out]


def all_to_all(call: Call) -> list[torch.Tensor]:
    out = call.empties()
    dist.all_to_all(out, call.each())
    return out


def all_to_all_single(call: Call) -> list[torch.Tensor]:
    out = call.empty(2 * call.size)
    dist.all_to_all_single(out, call.numbers(count=2 * call.size))
    # Rank r gets r + 1 elements of rank 0 and one of each other.
    to = [1 if call.rank else i + 1 for i in range(call.size)]
    of = [call.rank + 1 if i == 0 else 1 for i in range(call.size)]
    uneven = call.empty(sum(of))
    dist.all_to_all_single(uneven, call.numbers(count=sum(to)), of, to)
    return [out, uneven]


def send_and_recv(call: Call) -> list[torch.Tensor]:
    x = call.numbers() if call.rank == 0 else call.empty()
    if call.rank == 0:
        dist.send(x, 1)
    elif call.rank == 1:
        dist.recv(x, 0)
    return [x]


def batch_isend_irecv(call: Call) -> list[torch.Tensor]:
    out, after, before = call.empty(), call.rank + 1, call.rank - 1
    operations = [
        dist.P2POp(dist.isend, call.numbers(), after % call.size),
        dist.P2POp(dist.irecv, out, before % call.size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [out]


def functional_all_gather(call: Call) -> list[torch.Tensor]:
    return [functional.all_gather_tensor(call.numbers(), 0, dist.group.WORLD).clone()]


def functional_broadcast(call: Call) -> list[torch.Tensor]:
    return [functional.broadcast(call.numbers(), call.size - 1, dist.group.WORLD).clone()]


def functional_all_to_all(call: Call) -> list[torch.Tensor]:
    x = call.numbers(count=2 * call.size)
    return [functional.all_to_all_single(x, None, None, dist.group.WORLD).clone()]


def all_reduce(call: Call) -> list[torch.Tensor]:
    x = call.numbers()
    dist.all_reduce(x, call.op)
    return [x]


def all_reduce_later(call: Call) -> list[torch.Tensor]:
    x = call.numbers()
    work = dist.all_reduce(x, call.op, async_op=True)
    work.wait()
    torch.get_device_module(call.device).synchronize()  # NCCL's wait is the stream's
    assert work.is_completed() and work.is_success()
    shown = work.get_future().wait()[0]  # of complex numbers the parts
    return [x.clone(), torch.view_as_complex(shown) if call.dtype.is_complex else shown]


def all_reduce_coalesced(call: Call) -> list[torch.Tensor]:
    xs = [call.numbers(), call.numbers(1, 7)]
    dist.all_reduce_coalesced(xs, call.op)
    return xs


def reduce(call: Call) -> list[torch.Tensor]:
    x = call.numbers()
    dist.reduce(x, call.size - 1, call.op)
    return [x] if call.rank == call.size - 1 else []


def reduce_scatter(call: Call) -> list[torch.Tensor]:
    out = call.empty()
    dist.reduce_scatter(out, call.each(), call.op)
    return [out]


def reduce_scatter_tensor(call: Call) -> list[torch.Tensor]:
    out = call.empty()
    dist.reduce_scatter_tensor(out, call.numbers(count=N * call.size), call.op)
    return [out]


def functional_all_reduce(call: Call) -> list[torch.Tensor]:
    return [functional.all_reduce(call.numbers(), call.op.name, dist.group.WORLD).clone()]


def functional_reduce_scatter(call: Call) -> list[torch.Tensor]:
    x = call.numbers(count=N * call.size)
    return [functional.reduce_scatter_tensor(x, call.op.name, 0, dist.group.WORLD).clone()]


PLAIN: tuple[Callable[[Call], list[torch.Tensor]], ...] = (
    broadcast,
    all_gather,
    all_gather_into_tensor,
    all_gather_coalesced,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
    send_and_recv,
    batch_isend_irecv,
    functional_all_gather,
    functional_broadcast,
    functional_all_to_all,
)
REDUCING: tuple[Callable[[Call], list[torch.Tensor]], ...] = (
    all_reduce,
    all_reduce_later,
    all_reduce_coalesced,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    functional_all_reduce,
    functional_reduce_scatter,
)


def outcome(function: Callable[[Call], list[torch.Tensor]], call: Call) -> tuple[str, list]:
    """What it says, "" for a result, and the result's elements."""
    try:
        results = function(call)
        for x in results:
            assert x.device.type == call.device and x.dtype == call.dtype, x
        values = [torch.view_as_real(x) if x.is_complex() else x for x in results]
        return "", [x.to(torch.float64).tolist() for x in values]
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        # Torch's own says where in its source it comes from, and has numbers among the letters.
        line = "".join(filter(str.isprintable, lines[0].split("] ", 1)[-1]))
        return f"{type(error).__name__}: {line}", []


def main() -> None:
    dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else None)
    devices = "cuda" if _C.delegate_target(0)[1].startswith("cuda") else "cpu", "hologram"
    calls = [
        (function, operation, name)
        for function in PLAIN + REDUCING
        for operation in (OPERATIONS if function in REDUCING else [""])
        for name in DTYPES
    ]
    if devices[0] == "cuda":
        # NCCL has no such numbers. When torch finds out, it leaves some calls in the middle of a
        # group of NCCL's, where whatever comes next would never begin.
        calls.sort(key=lambda call: call[2] == "int16")
    rows = []
    for function, operation, name in calls:
        here, there = (
            outcome(function, Call(device, getattr(torch, name), operation or "SUM"))
            for device in devices
        )
        rows.append((function.__name__, operation, name, here, there))
    if dist.get_rank() == 0:
        print(json.dumps(rows))
    else:
        print(json.dumps([row for row in rows if row[3] != row[4]]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
