"""torchrun as on several machines: an agent for each, which find each other over TCP.

Both agents are on this machine, and everything goes over the loopback interface.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from common import ROOT
from ranks import finish_ranks, free_port

# A loss per step, which each process prints; and what the process thinks of where it is.
PROGRAM = """
import os
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
place = [os.environ[name] for name in ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]

torch.manual_seed(0)
x, wanted = torch.randn(8, 6), torch.randn(8, 3)


def losses(model, x, wanted, mean):
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    out = []
    for _ in range(5):
        loss = nn.functional.mse_loss(model(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        out.append(mean(loss.detach()).item())
    return out


def mean_of_all(loss):
    dist.all_reduce(loss)
    return loss / ranks


net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to("hologram")
start = {name: value.clone() for name, value in net.state_dict().items()}
alone = losses(net, x.to("hologram"), wanted.to("hologram"), lambda loss: loss)
net.load_state_dict(start)
mine = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
together = losses(
    nn.parallel.DistributedDataParallel(net),
    x[mine].to("hologram"), wanted[mine].to("hologram"), mean_of_all,
)
torch.testing.assert_close(together, alone)
assert together[4] < together[0]

sums = torch.arange(3.0, device="hologram") + rank
dist.all_reduce(sums)
print(f"rank {rank} of {ranks}", *place, sums.tolist(), flush=True)
dist.destroy_process_group()
"""


def agents(program: Path, *how: list[str]) -> list[subprocess.CompletedProcess[str]]:
    """Runs torchrun once for each list of options, at the same time."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = os.environ | {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "HOLOGRAM_CPU_DEVICES": "2",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return finish_ranks(
        [
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *options, str(program)],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for options in how
        ],
        check=True,
    )


@pytest.mark.parametrize("meeting", ["c10d", pytest.param("static", marks=pytest.mark.full)])
def test_two_machines(tmp_path: Path, meeting: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    port = free_port()
    if meeting == "c10d":
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id=7"]
    else:
        where = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    each = ["--nnodes", "2", "--nproc-per-node", "1", "--local-addr", "127.0.0.1", *where]
    done = agents(program, *([*each, "--node-rank", str(node)] for node in range(2)))
    lines = sorted(line for its in done for line in its.stdout.splitlines())
    assert lines == [f"rank {r} of 2 {r} 0 1 [1.0, 3.0, 5.0]" for r in range(2)], lines
