"""What torch does otherwise off the CPU: histc of integers, bincount, mode, composites."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import DelegateTestCase
from torch.testing._internal.common_utils import run_tests


class TestOnlyOffTheCpu(DelegateTestCase):
    """What client code calls on devices only, since the CPU has no kernel for it."""

    def test_histc_of_integers(self):
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
            x = torch.tensor([0, 1, 1, 5, 9, 9, 9, 10, 120], dtype=dtype)
            for options in ((10, 0, 10), (4, 0, 0), (3, 1, 9)):
                wanted = torch.histc(x.double(), *options).to(dtype)
                mine = torch.histc(x.hologram(), *options)
                self.assertEqual((mine.device.type, mine.dtype), ("hologram", dtype))
                self.assertEqual(mine.cpu(), wanted)
                out = torch.empty(0, dtype=dtype, device="hologram")
                self.assertIs(torch.histc(x.hologram(), *options, out=out), out)
                self.assertEqual(out.cpu(), wanted)
        self.check(lambda x: torch.histc(x, 7, -1, 1), torch.randn(100))
        self.check(
            lambda x: torch.histc(x, 7, out=torch.empty(0, device=x.device)), torch.randn(100)
        )

    def test_bincount(self):
        for dtype in (torch.uint8, torch.int32, torch.int64):
            x = torch.tensor([3, 0, 3, 1], dtype=dtype)
            self.check(lambda x: torch.bincount(x), x)
            self.check(lambda x: torch.bincount(x, minlength=9), x)
            self.check(lambda x, w: torch.bincount(x, w), x, torch.rand(4))
        self.check(torch.bincount, torch.zeros(0, dtype=torch.int64))

    def test_mode(self):
        for dtype in (torch.float32, torch.int64, torch.bool):
            x = torch.tensor([[1, 0, 1, 3], [0, 0, 3, 1]]).to(dtype)
            self.check(lambda x: x.mode(), x)
            self.check(lambda x: x.mode(0, keepdim=True), x)
            self.check(lambda x: x.t().mode(0), x)
        values, indices = torch.empty(0).hologram(), torch.empty(0).long().hologram()
        result = torch.mode(torch.rand(3, 4).hologram(), out=(values, indices))
        self.assertIs(result.values, values)

    def test_composites_that_look_at_the_device(self):
        x = torch.rand(3, 8, 8)
        for function in (
            lambda x: F.interpolate(x[None], scale_factor=2, mode="bilinear", antialias=True),
            lambda x: F.grid_sample(
                x[None], x[:1, ..., None].expand(1, 8, 8, 2), align_corners=True
            ),
            lambda x: F.channel_shuffle(x.reshape(1, 4, 6, 8), 2),
            lambda x: F.pixel_shuffle(x.reshape(1, 12, 4, 4), 2),
            lambda x: F.mish(x),
            lambda x: F.layer_norm(x, (8, 8)),
            lambda x: F.group_norm(x[None], 3),
            lambda x: F.batch_norm(
                x, torch.zeros(8, device=x.device), torch.ones(8, device=x.device)
            ),
            lambda x: torch.addr(x[0], x[0, 0], x[0, 1]),
            lambda x: x.all(dim=(0, 1)),
            lambda x: torch.stack([x, x]),
            lambda x: torch.cdist(x, x),
            lambda x: F.embedding_bag(torch.tensor([[0, 2]], device=x.device), x[0]),
            lambda x: F.ctc_loss(
                x.log_softmax(-1),
                torch.ones(8, 2, dtype=torch.int64, device=x.device),
                torch.full((8,), 3),
                torch.full((8,), 1),
            ),
            lambda x: torch.linalg.vector_norm(x, 3),
            lambda x: torch.special.polygamma(1, x + 1),
            lambda x: torch.logit(x, 1e-3),
        ):
            self.check(function, x, exact=False)


if __name__ == "__main__":
    run_tests()
