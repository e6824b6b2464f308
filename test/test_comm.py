"""torch.nn.parallel.comm: copies and sums between devices, and what it refuses.

By hand, a single test:

    HOLOGRAM_CPU_DEVICES=2 python test/test_comm.py TestComm.test_gather
"""

from __future__ import annotations

import warnings

import torch
import torch.cuda.comm
from multi_device import ONE, ZERO, SeveralDevicesTestCase, in_processes_of_their_own
from torch.nn.parallel import comm
from torch.testing._internal.common_utils import run_tests

hologram = torch.hologram


class TestComm(SeveralDevicesTestCase):
    """torch.nn.parallel.comm, under the name that torch.cuda has for it."""

    def test_names(self):
        self.assertEqual(sorted(hologram.comm.__all__), sorted(torch.cuda.comm.__all__))
        for name in hologram.comm.__all__:
            self.assertIs(getattr(hologram.comm, name), getattr(torch.cuda.comm, name))

    def test_broadcast(self):
        x = torch.arange(6.0, device=ONE)
        zero, one = hologram.comm.broadcast(x, [0, "hologram:1"])
        self.assertIs(one, x)
        self.assertSame(zero, x.cpu(), ZERO)
        source = x.cpu()
        for copied, device in zip(comm.broadcast(source, [0, 1]), (ZERO, ONE), strict=True):
            self.assertSame(copied, source, device)
        out = [torch.zeros(6, device=d) for d in (ZERO, ONE)]
        for given, filled in zip(out, comm.broadcast(x, out=out), strict=True):
            self.assertIs(filled, given)
            self.assertEqual(filled.cpu(), x.cpu())

    def test_broadcast_coalesced(self):
        x = [torch.rand(3, device=ZERO), torch.rand(2, 2, device=ZERO).double()]
        same, copies = comm.broadcast_coalesced(x, [0, 1])
        for a, b, c in zip(x, same, copies, strict=True):
            self.assertIs(b, a)
            self.assertSame(c, a.cpu(), ONE)
        with self.assertRaisesRegex(RuntimeError, r"All tensors must be on devices\[0\]: 1"):
            comm.broadcast_coalesced(x, [1, 0])

    def test_scatter(self):
        x = torch.arange(10.0).reshape(5, 2)
        for source in (x, x.to(ZERO), x.to(ONE)):
            chunks = comm.scatter(source, [0, 1])
            self.assertSame(chunks[0], x[:3], ZERO)
            self.assertSame(chunks[1], x[3:], ONE)
            chunks = comm.scatter(source, [ONE, ZERO], chunk_sizes=[1, 1], dim=-1)
            self.assertSame(chunks[0], x[:, :1], ONE)
            streams = [hologram.Stream(0), None]
            self.assertSame(comm.scatter(source, [0, 1], streams=streams)[1], x[3:], ONE)
            out = [torch.zeros(4, 2, device=ONE), torch.zeros(1, 2, device=ZERO)]
            comm.scatter(source, out=out)
            self.assertSame(out[0], x[:4], ONE)
            self.assertSame(out[1], x[4:], ZERO)
        self.assertEqual(
            len(comm.scatter(x[:1].to(ONE), [0, 1])), 1
        )  # no more chunks than there are rows
        chunk = comm.scatter(z := x.to(ZERO), [0, 1])[0]
        self.assertEqual(chunk.data_ptr(), z.data_ptr())

    def test_gather(self):
        x = torch.rand(4, 3)
        parts = [x[:1].to(ONE), x[1:].to(ZERO)]
        self.assertSame(comm.gather(parts), x, ZERO)
        with hologram.device(1):
            self.assertSame(comm.gather(parts), x, ONE)
        for where in (1, "hologram:1", ONE):
            self.assertSame(comm.gather(parts, 0, where), x, ONE)
        self.assertSame(comm.gather(parts, 0, "cpu"), x, torch.device("cpu"))
        self.assertSame(comm.gather([p.t() for p in parts], -1, 1), x.t(), ONE)
        for device in (ZERO, ONE, "cpu"):
            out = torch.empty(4, 3, device=device)
            self.assertIs(comm.gather(parts, out=out), out)
            self.assertSame(out, x, torch.device(device))
        images = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
        joined = comm.gather([images[:1].to(ZERO), images[1:].to(ONE)], 0, 1)
        self.assertTrue(joined.is_contiguous(memory_format=torch.channels_last))
        self.assertSame(joined, images, ONE)

    def test_reduce_add(self):
        x = [torch.rand(3, device=d) for d in (ZERO, ONE)]
        wanted = x[0].cpu() + x[1].cpu()
        for destination, device in ((0, ZERO), (1, ONE), (None, ZERO)):
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # nothing about NCCL
                self.assertSame(comm.reduce_add(x, destination), wanted, device)
        sparse = [torch.eye(3, device=d).to_sparse() for d in (ZERO, ONE)]
        pairs = [[x[0], sparse[0]], [x[1], sparse[1]]]
        dense, added = comm.reduce_add_coalesced(pairs, 1)
        self.assertSame(dense, wanted, ONE)
        self.assertSame(added.to_dense(), 2 * torch.eye(3), ONE)

    def test_complex(self):
        # torch's functions return the real view of a complex tensor.
        x = torch.randn(4, dtype=torch.complex64)
        chunks = comm.scatter(x.to(ZERO), [0, 1])
        self.assertSame(torch.view_as_complex(chunks[1]), x[2:], ONE)

    def test_wrong_arguments(self):
        x = torch.ones(4, 2, device=ZERO)
        parts = [x, x.to(ONE)]
        wrong = {
            "non-negative device index, but got -1": lambda: comm.broadcast(x, [-1]),
            "index 2 is out of range": lambda: comm.broadcast(x, [0, 2]),
            "Exactly one of": lambda: comm.broadcast(x),
            r"output tensors to be hologram.*index 1 has device 'cpu'": lambda: comm.broadcast(
                x, out=[x.clone(), x.cpu()]
            ),
            "same shape as the source.*index 0": lambda: comm.broadcast(x, out=[x[1:].clone()]),
            "at least one device": lambda: comm.scatter(x, []),
            "len.chunk_sizes. = 1": lambda: comm.scatter(x, [0, 1], chunk_sizes=[4]),
            "split_with_sizes": lambda: comm.scatter(x, [0, 1], chunk_sizes=[1, 1]),
            r"stream at index 1 \(was 0\)": lambda: comm.scatter(
                x, [0, 1], streams=[None, hologram.Stream(0)]
            ),
            "at least one output tensor": lambda: comm.scatter(x, out=[]),
            "incorrect shape.*scatter dim 0": lambda: comm.scatter(x, out=[x[:, :1].clone()]),
            "Total size.*Expected 4, but got total size 3": lambda: comm.scatter(
                x, out=[x[1:].clone()]
            ),
            "input tensor at index 1 has device 'cpu'": lambda: comm.gather([x, x.cpu()]),
            "same number of dimensions": lambda: comm.gather([x, parts[1][0]]),
            "index 1 has invalid shape": lambda: comm.gather([x, parts[1][:, :1]]),
            r"shape \[8, 2\], but got \[7, 2\]": lambda: comm.gather(
                parts, out=torch.empty(7, 2, device=ONE)
            ),
        }
        for message, call in wrong.items():
            with self.assertRaisesRegex(RuntimeError, message):
                call()
        for call in (lambda: comm.scatter(x, [0], dim=2), lambda: comm.gather(parts, 2)):
            with self.assertRaisesRegex(IndexError, "Dimension out of range"):
                call()


TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__)

if __name__ == "__main__":
    run_tests()
