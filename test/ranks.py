"""Runs a program in several processes that are the ranks of a process group."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def free_port() -> int:
    """A port of this machine that nobody listens to now.

    Not one of those that the system hands out: another process's engine would have it before the
    ranks do.
    """
    for _ in range(100):
        with socket.socket() as free, contextlib.suppress(OSError):
            port = random.SystemRandom().randrange(20_000, 32_000)
            free.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port from 20000 to 32000")


def start_ranks(
    program: str | Path, *arguments: str, ranks: int = 2, env: dict[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    """Starts the processes, in whose environment is what torchrun puts there.

    Args:
        program: its text, or a file.
        *arguments: its ``sys.argv[1:]``.
        ranks: how many processes.
        env: variables set in addition.
    """
    path = [str(ROOT), str(ROOT / "test"), os.environ.get("PYTHONPATH", "")]
    shared = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "HOLOGRAM_CPU_DEVICES": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        **(env or {}),
    }
    what = [str(program)] if isinstance(program, Path) else ["-c", textwrap.dedent(program)]
    return [
        subprocess.Popen(
            [sys.executable, *what, *arguments],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def finish_ranks(
    processes: list[subprocess.Popen[str]], timeout: float = 120, check: bool = True
) -> list[subprocess.CompletedProcess[str]]:
    """Waits for them; at the end none of them is left.

    Raises:
        AssertionError: with `check`, one has not exited with 0. With what it printed.
        subprocess.TimeoutExpired: one is still running.
    """
    until = time.monotonic() + timeout
    done = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=max(until - time.monotonic(), 0.1))
            done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if check and any(its.returncode != 0 for its in done):
        raise AssertionError(
            "\n".join(
                f"rank {rank} exited with {its.returncode}\n{its.stdout}\n{its.stderr}"
                for rank, its in enumerate(done)
            )
        )
    return done


def run_ranks(
    program: str | Path,
    *arguments: str,
    ranks: int = 2,
    env: dict[str, str] | None = None,
    timeout: float = 120,
    check: bool = True,
) -> list[subprocess.CompletedProcess[str]]:
    """Both: see start_ranks and finish_ranks."""
    return finish_ranks(start_ranks(program, *arguments, ranks=ranks, env=env), timeout, check)
