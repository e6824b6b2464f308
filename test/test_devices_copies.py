"""Copies between devices: every dtype and layout, storages, modules.

By hand, a single test:

    HOLOGRAM_CPU_DEVICES=2 python test/test_devices_copies.py TestCopies.test_sparse
"""

from __future__ import annotations

import itertools
import warnings

import torch
from about_torch import DTYPES
from multi_device import BOTH_WAYS, SeveralDevicesTestCase, in_processes_of_their_own
from torch import nn
from torch.testing._internal.common_utils import parametrize, run_tests

hologram = torch.hologram


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements, in order."""
    plain = tensor.cpu().contiguous().reshape(-1)
    return plain if plain.dtype == torch.bool else plain.view(torch.uint8)


class TestCopies(SeveralDevicesTestCase):
    @parametrize("dtype", DTYPES)
    def test_dtypes(self, dtype):
        # Every byte a value can have, NaNs included: copies keep them.
        torch.manual_seed(0)
        size = max(torch.empty((), dtype=dtype).element_size(), 1)
        raw = torch.randint(0, 256, (8, 8 * size), dtype=torch.uint8)
        x = raw > 127 if dtype == torch.bool else raw.view(dtype)
        for here, there in BOTH_WAYS:
            y = x.to(here)
            for name, part in {
                "whole": y,
                "transposed": y.t(),
                "sliced": y[1:, ::3],
                "element": y[3, 5],
                "empty": y[:0],
            }.items():
                for non_blocking in (False, True):
                    z = part.to(there, non_blocking=non_blocking)
                    self.assertEqual(z.device, there)
                    self.assertEqual(z.dtype, dtype)
                    self.assertEqual(bits(z), bits(part), name)
            into = torch.zeros(8, 8, dtype=dtype, device=there)
            self.assertIs(into.t().copy_(y.t(), non_blocking=True)._base, into)
            self.assertEqual(bits(into), bits(x))
            into[2:4, 1] = y[0, 0]
            self.assertEqual(bits(into[2, 1]), bits(x[0, 0]))

    def test_conversion(self):
        x = torch.arange(-6, 6).reshape(3, 4)
        for here, there in BOTH_WAYS:
            y = x.to(here)
            self.assertSame(y.to(there, torch.float16), x.half(), there)
            into = torch.empty(2, 3, 4, device=there)
            into.copy_(y)  # broadcasts
            self.assertSame(into, x.float().expand(2, 3, 4), there)

    def test_format_is_preserved(self):
        x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
        for here, there in BOTH_WAYS:
            y = x.to(here).to(there)
            self.assertTrue(y.is_contiguous(memory_format=torch.channels_last))
            self.assertSame(y, x, there)
            self.assertEqual(
                x.to(here).permute(3, 1, 0, 2).to(there).stride(), x.permute(3, 1, 0, 2).stride()
            )

    def test_copies_are_independent(self):
        for here, there in BOTH_WAYS:
            x = torch.arange(4.0, device=here)
            self.assertIs(x.to(here), x)
            y = x.to(there)
            y += 1
            self.assertEqual(x.tolist(), [0, 1, 2, 3])
            self.assertEqual(y.tolist(), [1, 2, 3, 4])
            z = x.to(there)[2:]
            z.zero_()
            self.assertEqual(x.tolist(), [0, 1, 2, 3])

    def test_large(self):
        x = torch.rand(300, 1000)
        for here, there in BOTH_WAYS:
            self.assertSame(x.to(here).to(there), x, there)
            self.assertSame(x.to(here).t().to(there), x.t(), there)

    def test_lazy_bits(self):
        x = torch.randn(4, dtype=torch.complex64)
        for here, there in BOTH_WAYS:
            y = x.to(here)
            self.assertSame(y.conj().to(there), x.conj().resolve_conj(), there)
            self.assertSame(y.conj().imag.to(there), x.conj().imag.resolve_neg(), there)
            into = torch.zeros(4, dtype=torch.complex64, device=there)
            into.conj().copy_(y)
            self.assertSame(into, x.conj().resolve_conj(), there)
            zeros = torch._efficientzerotensor((3,), device=here)
            self.assertSame(torch.ones(3, device=there).copy_(zeros), torch.zeros(3), there)

    def test_sparse(self):
        x = torch.tensor([[0.0, 2, 0], [3, 0, 4]])
        for (here, there), current in itertools.product(BOTH_WAYS, range(2)):
            with hologram.device(current):
                y = x.to(here).to_sparse()
                z = y.to(there)
                self.assertEqual(z._indices().device, there)
                self.assertEqual(z._values().device, there)
                self.assertTrue(z.is_coalesced())
                self.assertSame(z.to_dense(), x, there)
                into = torch.zeros(2, 3, layout=torch.sparse_coo, device=there)
                self.assertSame(into.copy_(y).to_dense(), x, there)
                self.assertEqual(z._values().data_ptr() == y._values().data_ptr(), False)
                self.assertEqual((z * 2).device, there)
                self.assertSame((z @ torch.ones(3, 1, device=there)), x.sum(1, True), there)

    @parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
    def test_compressed_sparse(self, layout):
        blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
        x = torch.eye(4) * 3
        for (here, there), current in itertools.product(BOTH_WAYS, range(2)):
            with hologram.device(current):
                y = x.to(here).to_sparse(layout=layout, **blocks)
                z = y.to(there)
                self.assertEqual((z.layout, z.values().device), (layout, there))
                self.assertSame(z.to_dense(), x, there)

    def test_quantized(self):
        x = torch.rand(3, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch is about to drop the quantized dtypes
            for here, there in BOTH_WAYS:
                y = torch.quantize_per_tensor(x.to(here), 0.1, 3, torch.quint8)
                z = y.to(there)
                self.assertEqual((z.q_scale(), z.q_zero_point()), (0.1, 3))
                self.assertSame(z.int_repr(), y.int_repr().cpu(), there)
                scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.int64)
                y = torch.quantize_per_channel(
                    x.to(here), scales.to(here), zeros.to(here), 0, torch.qint8
                )
                self.assertSame(y.to(there).dequantize(), y.dequantize().cpu(), there)

    @parametrize("layout", [torch.strided, torch.jagged])
    def test_nested(self, layout):
        parts = [torch.rand(2, 3), torch.rand(4, 3)]
        for here, there in BOTH_WAYS:
            y = torch.nested.nested_tensor(parts, layout=layout, device=here).to(there)
            for part, wanted in zip(y.unbind(), parts, strict=True):
                self.assertSame(part, wanted, there)

    def test_storages(self):
        x = torch.arange(4.0)
        for here, there in BOTH_WAYS:
            storage = x.to(here).untyped_storage()
            moved = storage.to(device=there)
            self.assertEqual(moved.device, there)
            self.assertEqual(moved.tolist(), x.untyped_storage().tolist())
            other = torch.UntypedStorage(16, device=there)
            other.copy_(storage)
            self.assertEqual(other.tolist(), x.untyped_storage().tolist())
            self.assertEqual(storage.hologram(there.index).device, there)

    def test_modules(self):
        for here, there in BOTH_WAYS:
            module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to(here)
            before = [value.clone() for value in module.state_dict().values()]
            weight = module[0].weight
            module(torch.ones(4, 2, device=here)).square().sum().backward()
            self.assertIs(module.to(there)[0].weight, weight)
            self.assertEqual({p.device for p in module.parameters()}, {there})
            self.assertEqual({p.grad.device for p in module.parameters()}, {there})
            self.assertEqual({b.device for b in module.buffers()}, {there})
            self.assertSame(weight.detach(), before[0].cpu(), there)
            other = nn.Linear(2, 3, device=here)
            other.load_state_dict(module[0].state_dict())
            self.assertSame(other.weight.detach(), before[0].cpu(), here)


TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__)

if __name__ == "__main__":
    run_tests()
