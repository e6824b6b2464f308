"""Layouts other than strided: sparse, compressed sparse, quantized and nested, against the CPU."""

from __future__ import annotations

import torch
from common import HologramTestCase
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

COMPRESSED = {
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 2)),
}

# Of each layout, the names of its three members.
MEMBERS = {
    "csr": ("crow_indices", "col_indices", "values"),
    "csc": ("ccol_indices", "row_indices", "values"),
    "bsr": ("crow_indices", "col_indices", "values"),
    "bsc": ("ccol_indices", "row_indices", "values"),
}


def matrix(rows: int = 4, columns: int = 6) -> torch.Tensor:
    """A CPU matrix with zeros, and with no zero row."""
    x = torch.rand(rows, columns) + 0.5
    x[torch.rand(rows, columns) < 0.4] = 0.0
    x[:, 0] = 1.0
    return x


class LayoutTestCase(HologramTestCase):
    def assertSameBits(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """The device tensor holds the bits of the CPU tensor, in the same layout."""
        self.assertEqual(actual.device.type, "hologram")
        self.assertEqual(actual.layout, expected.layout)
        self.assertEqual(actual.cpu(), expected, rtol=0, atol=0)

    def assertSharesMemory(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.assertNotEqual(a.data_ptr(), 0)
        self.assertEqual(a.data_ptr(), b.data_ptr())
        self.assertEqual(a.untyped_storage()._cdata, b.untyped_storage()._cdata)


class TestCoo(LayoutTestCase):
    def test_there_and_back(self):
        plain = matrix().to_sparse()
        there = plain.to("hologram")
        self.assertTrue(there.is_sparse and there.is_hologram)
        self.assertTrue(there.is_coalesced())
        self.assertSameBits(there, plain)
        self.assertSameBits(there.to_dense(), plain.to_dense())
        self.assertTrue(there.cpu().is_cpu)
        self.assertSameBits(plain.to_dense().hologram().to_sparse(), plain)
        self.assertSameBits(there.clone(), plain)
        self.assertSameBits(there.to(torch.float64), plain.to(torch.float64))

    def test_hybrid(self):
        plain = torch.rand(3, 4, 2).to_sparse(sparse_dim=1)
        there = plain.to("hologram")
        self.assertEqual((there.sparse_dim(), there.dense_dim()), (1, 2))
        self.assertSameBits(there, plain)

    def test_factories(self):
        indices, values = [[0, 1, 1], [2, 0, 0]], [1.0, 2.0, 3.0]
        plain = torch.sparse_coo_tensor(indices, values, (2, 3))
        there = torch.sparse_coo_tensor(indices, values, (2, 3), device="hologram")
        self.assertTrue(there.is_hologram and there._values().is_hologram)
        self.assertFalse(there.is_coalesced())
        self.assertSameBits(there.to_dense(), plain.to_dense())

        inferred = torch.sparse_coo_tensor(
            torch.tensor(indices, device="hologram"), torch.tensor(values, device="hologram")
        )
        self.assertEqual(inferred.device, there.device)
        self.assertSameBits(inferred.to_dense(), plain.to_dense())

        empty = torch.sparse_coo_tensor((2, 3), device="hologram")
        self.assertEqual(empty._nnz(), 0)
        self.assertSameBits(empty.to_dense(), torch.zeros(2, 3))

    def test_factory_checks(self):
        with torch.sparse.check_sparse_tensor_invariants():
            with self.assertRaisesRegex(RuntimeError, "size is inconsistent with indices"):
                torch.sparse_coo_tensor([[0, 5], [1, 0]], [1.0, 2.0], (2, 2), device="hologram")

    def test_coalesce(self):
        there = torch.sparse_coo_tensor(
            [[1, 0, 1], [2, 0, 2]], [1.0, 2.0, 3.0], (2, 3), device="hologram"
        )
        with self.assertRaisesRegex(RuntimeError, "uncoalesced"):
            there.indices()
        joined = there.coalesce()
        self.assertTrue(joined.is_coalesced())
        self.assertSameBits(joined.indices(), torch.tensor([[0, 1], [0, 2]]))
        self.assertSameBits(joined.values(), torch.tensor([2.0, 4.0]))
        self.assertEqual(there._nnz(), 3)
        self.assertFalse(there.is_coalesced())

    def test_members_share_memory(self):
        plain = matrix().to_sparse()
        there = plain.to("hologram")
        for name in ("indices", "values", "_indices", "_values"):
            member = getattr(there, name)()
            self.assertTrue(member.is_hologram, name)
            self.assertSharesMemory(member, getattr(there, name)())
        self.assertSharesMemory(there.values(), there._values())
        there.values().mul_(2)
        self.assertSameBits(there.to_dense(), plain.to_dense() * 2)

        indices, values = plain.indices().hologram(), plain.values().hologram()
        made = torch.sparse_coo_tensor(indices, values, plain.shape)
        self.assertSharesMemory(made._indices(), indices)
        self.assertSharesMemory(made._values(), values)
        values.zero_()
        self.assertSameBits(made.to_dense(), torch.zeros(plain.shape))

    def test_in_place(self):
        a, b = matrix().to_sparse(), matrix().to_sparse()
        there = a.to("hologram")
        self.assertIs(there.add_(b.to("hologram"), alpha=2), there)
        expected = a.clone().add_(b, alpha=2)
        self.assertSameBits(there.coalesce(), expected.coalesce())
        there.mul_(3.0)
        self.assertSameBits(there.to_dense(), expected.mul_(3.0).to_dense())

        dense = torch.ones(4, 6)
        device_dense = dense.hologram()
        pointer = device_dense.data_ptr()
        device_dense.add_(b.to("hologram"))
        self.assertEqual(device_dense.data_ptr(), pointer)
        self.assertSameBits(device_dense, dense.add_(b))

        there.copy_(a)
        self.assertSameBits(there, a)
        there.zero_()
        self.assertEqual(there._nnz(), 0)

    def test_in_place_is_seen_through_other_references(self):
        there = matrix().to_sparse().to("hologram")
        module = nn.Module()
        module.register_buffer("weight", there)
        there.add_(torch.eye(4, 6).to_sparse().to("hologram"))
        self.assertEqual(module.weight._nnz(), there._nnz())
        self.assertSameBits(module.weight.to_dense(), there.to_dense().cpu())

    def test_operators(self):
        a, b = matrix().to_sparse(), matrix().to_sparse()
        for name, use in {
            "add": lambda a, b: a + b,
            "multiply": lambda a, b: a * b,
            "transpose": lambda a, b: a.t().coalesce(),
            "sum": lambda a, b: torch.sparse.sum(a, 1),
            "softmax": lambda a, b: torch.sparse.softmax(a, 1),
            "cat": lambda a, b: torch.cat([a, b]).coalesce(),
            "index_select": lambda a, b: a.index_select(0, b.indices()[0, :2]).coalesce(),
            "abs": lambda a, b: a.neg().abs(),
            "mask": lambda a, b: torch.ones(4, 6, device=a.device).sparse_mask(a),
        }.items():
            actual = use(a.to("hologram"), b.to("hologram"))
            self.assertTrue(actual.is_sparse, name)
            self.assertSameBits(actual.coalesce(), use(a, b).coalesce())

    def test_products(self):
        a, b, c = matrix().to_sparse(), torch.rand(6, 3), torch.rand(4, 3)
        there = a.to("hologram")
        self.assertSameBits(torch.sparse.mm(there, b.hologram()), torch.sparse.mm(a, b))
        self.assertSameBits(there @ b.hologram(), a @ b)
        self.assertSameBits(
            torch.sparse.addmm(c.hologram(), there, b.hologram(), beta=2.0),
            torch.sparse.addmm(c, a, b, beta=2.0),
        )
        square = torch.sparse.mm(there, there.t())
        self.assertTrue(square.is_sparse)
        self.assertSameBits(square.to_dense(), torch.sparse.mm(a, a.t()).to_dense())
        self.assertSameBits(torch.mv(there, b[:, 0].hologram()), torch.mv(a, b[:, 0]))

    @parametrize("use", ["mm", "sum", "to_dense", "add", "softmax"])
    def test_gradients(self, use):
        values, weight = matrix(), torch.rand(6, 3)
        gradients = {}
        for device in ("cpu", "hologram"):
            a = values.to_sparse().to(device).requires_grad_()
            w = weight.to(device, copy=True).requires_grad_()
            result = {
                "mm": lambda a, w: torch.sparse.mm(a, w),
                "sum": lambda a, w: torch.sparse.sum(a, 1).to_dense() * w.sum(),
                "to_dense": lambda a, w: a.to_dense() @ w,
                "add": lambda a, w: (a + a).to_dense() @ w,
                "softmax": lambda a, w: torch.sparse.softmax(a, 1).to_dense() @ w,
            }[use](a, w)
            result.pow(2).sum().backward()
            self.assertEqual(a.grad.device, a.device)
            gradients[device] = (a.grad, w.grad)
        (a, w), (there_a, there_w) = gradients["cpu"], gradients["hologram"]
        self.assertEqual(there_a.layout, a.layout)
        self.assertEqual(there_a.to_dense().cpu(), a.to_dense())
        self.assertEqual(there_w.cpu(), w)

    def test_gradient_through_the_factory_and_values(self):
        gradients = []
        for device in ("cpu", "hologram"):
            values = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
            made = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 1]], values, (2, 3), device=device)
            made.coalesce().values().pow(2).sum().backward()
            gradients.append(values.grad.cpu())
        self.assertEqual(gradients[0], torch.tensor([2.0, 4.0, 6.0]))
        self.assertEqual(gradients[1], gradients[0])

    def test_embedding_with_sparse_gradient(self):
        weights = []
        for device in ("cpu", "hologram"):
            torch.manual_seed(0)
            embedding = nn.Embedding(5, 3, sparse=True).to(device)
            optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
            embedding(torch.tensor([1, 3, 1], device=device)).pow(2).sum().backward()
            self.assertTrue(embedding.weight.grad.is_sparse)
            self.assertEqual(embedding.weight.grad.device, embedding.weight.device)
            optimizer.step()
            weights.append(embedding.weight.detach().cpu())
        self.assertEqual(weights[1], weights[0])


class TestCompressed(LayoutTestCase):
    @parametrize("layout", list(COMPRESSED))
    def test_there_and_back(self, layout):
        dense = matrix()
        plain = COMPRESSED[layout](dense)
        there = plain.to("hologram")
        self.assertTrue(there.is_hologram)
        self.assertSameBits(there, plain)
        self.assertSameBits(there.to_dense(), dense)
        self.assertSameBits(COMPRESSED[layout](dense.hologram()), plain)
        self.assertSameBits(there.clone(), plain)
        self.assertSameBits(there.to_sparse(), plain.to_sparse())

    @parametrize("layout", list(COMPRESSED))
    def test_members_share_memory(self, layout):
        plain = COMPRESSED[layout](matrix())
        there = plain.to("hologram")
        for name in MEMBERS[layout]:
            member = getattr(there, name)()
            self.assertSameBits(member, getattr(plain, name)())
            self.assertSharesMemory(member, getattr(there, name)())
        there.values().mul_(2)
        self.assertSameBits(there.to_dense(), plain.to_dense() * 2)

    @parametrize("layout", list(COMPRESSED))
    def test_factory(self, layout):
        plain = COMPRESSED[layout](matrix())
        compressed, indices, values = (getattr(plain, name)() for name in MEMBERS[layout])
        factory = getattr(torch, f"sparse_{layout}_tensor")
        made = factory(compressed.tolist(), indices.tolist(), values.tolist(), device="hologram")
        self.assertSameBits(made, factory(compressed.tolist(), indices.tolist(), values.tolist()))

        device_values = values.hologram()
        shared = factory(compressed.hologram(), indices.hologram(), device_values, plain.shape)
        self.assertSharesMemory(shared.values(), device_values)
        self.assertSameBits(shared, plain)

        with torch.sparse.check_sparse_tensor_invariants():
            with self.assertRaises(RuntimeError):
                factory(compressed.hologram() - 1, indices.hologram(), device_values, plain.shape)

    @parametrize("layout", list(COMPRESSED))
    def test_matmul(self, layout):
        plain, right = COMPRESSED[layout](matrix()), torch.rand(6, 2)
        if layout == "bsc":
            # The CPU has no product of this layout, and neither has the device.
            for a, b in ((plain, right), (plain.to("hologram"), right.hologram())):
                with self.assertRaisesRegex(RuntimeError, "SparseBsc"):
                    a @ b
            return
        there = plain.to("hologram")
        self.assertSameBits(there @ right.hologram(), plain @ right)
        self.assertSameBits(torch.mv(there, right[:, 0].hologram()), torch.mv(plain, right[:, 0]))

    @parametrize("layout", ["csr", "csc"])
    def test_in_place(self, layout):
        plain = COMPRESSED[layout](matrix())
        there = plain.to("hologram")
        values = there.values()
        there.mul_(2.0)
        self.assertSharesMemory(there.values(), values)
        self.assertSameBits(there, plain.mul_(2.0))
        there.copy_(COMPRESSED[layout](plain.to_dense() * 3))
        self.assertSameBits(there, plain * 3)

    @parametrize("layout", ["csr", "csc"])
    def test_gradient_of_matmul(self, layout):
        dense, right = matrix(), torch.rand(6, 2)
        gradients = []
        for device in ("cpu", "hologram"):
            a = COMPRESSED[layout](dense).to(device)
            b = right.to(device, copy=True).requires_grad_()
            (a @ b).pow(2).sum().backward()
            self.assertEqual(b.grad.device, b.device)
            gradients.append(b.grad.cpu())
        self.assertEqual(gradients[1], gradients[0])
        reference = right.clone().requires_grad_()
        (dense @ reference).pow(2).sum().backward()
        self.assertEqual(gradients[1], reference.grad)

    @parametrize("reduce", ["sum", "mean", "amax", "amin"])
    def test_reducing_product(self, reduce):
        dense, right = matrix(), torch.rand(6, 3)
        results = []
        for device in ("cpu", "hologram"):
            a = dense.to_sparse_csr().to(device).requires_grad_()
            b = right.to(device, copy=True).requires_grad_()
            result = torch.sparse.mm(a, b, reduce)
            result.pow(2).sum().backward()
            self.assertEqual(a.grad.layout, torch.sparse_csr)
            self.assertEqual((a.grad.device, b.grad.device), (a.device, a.device))
            results.append([x.detach().cpu() for x in (result, a.grad.values(), b.grad)])
        for expected, actual in zip(*results, strict=True):
            self.assertEqual(actual, expected, rtol=0, atol=0)

    def test_sampled_addmm(self):
        plain, a, b = matrix().to_sparse_csr(), torch.rand(4, 5), torch.rand(5, 6)
        self.assertSameBits(
            torch.sparse.sampled_addmm(plain.to("hologram"), a.hologram(), b.hologram()),
            torch.sparse.sampled_addmm(plain, a, b),
        )


class TestQuantized(LayoutTestCase):
    def quantized(self, scheme: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The same quantized (3, 4) matrix on the CPU and, quantized there, on the device."""
        x = torch.rand(3, 4) * 4 - 2
        made = []
        for device in ("cpu", "hologram"):
            y = x.to(device)
            if scheme == "tensor":
                made.append(torch.quantize_per_tensor(y, 0.05, 20, dtype))
            else:
                scales = torch.tensor([0.05, 0.1, 0.02], dtype=torch.float64, device=device)
                zeros = torch.tensor([20, 0, 5], device=device)
                made.append(torch.quantize_per_channel(y, scales, zeros, 0, dtype))
        return made[0], made[1]

    @parametrize("dtype", [torch.quint8, torch.qint8, torch.qint32])
    @parametrize("scheme", ["tensor", "channel"])
    def test_quantize(self, scheme, dtype):
        plain, there = self.quantized(scheme, dtype)
        self.assertTrue(there.is_quantized and there.is_hologram)
        self.assertEqual((there.dtype, there.qscheme()), (plain.dtype, plain.qscheme()))
        self.assertSameBits(there.int_repr(), plain.int_repr())
        self.assertSameBits(there.dequantize(), plain.dequantize())
        if scheme == "tensor":
            self.assertEqual((there.q_scale(), there.q_zero_point()), (0.05, 20))
        else:
            self.assertEqual(there.q_per_channel_axis(), 0)
            self.assertSameBits(there.q_per_channel_scales(), plain.q_per_channel_scales())
            self.assertSameBits(
                there.q_per_channel_zero_points(), plain.q_per_channel_zero_points()
            )

    @parametrize("scheme", ["tensor", "channel"])
    def test_to_the_cpu(self, scheme):
        plain, there = self.quantized(scheme, torch.qint8)
        back = there.cpu()
        self.assertTrue(back.is_cpu and back.is_quantized)
        self.assertEqual(back.qscheme(), plain.qscheme())
        self.assertEqual(back.int_repr(), plain.int_repr())
        self.assertEqual(back.dequantize(), plain.dequantize(), rtol=0, atol=0)

    @parametrize("scheme", ["tensor", "channel"])
    def test_from_the_cpu(self, scheme):
        plain, _ = self.quantized(scheme, torch.qint8)
        there = plain.to("hologram")
        self.assertTrue(there.is_hologram and there.is_quantized)
        self.assertEqual(there.qscheme(), plain.qscheme())
        self.assertSameBits(there.int_repr(), plain.int_repr())
        self.assertSameBits(there.dequantize(), plain.dequantize())

    @parametrize("scheme", ["tensor", "channel"])
    def test_clone_is_independent(self, scheme):
        plain, there = self.quantized(scheme, torch.quint8)
        other = there.clone()
        self.assertNotEqual(other.data_ptr(), there.data_ptr())
        self.assertSameBits(other.dequantize(), plain.dequantize())

    def test_copy(self):
        plain, there = self.quantized("tensor", torch.quint8)
        target = torch.quantize_per_tensor(
            torch.zeros(3, 4, device="hologram"), 1.0, 0, torch.quint8
        )
        for source in (there, plain):
            target.copy_(source)
            self.assertEqual((target.q_scale(), target.q_zero_point()), (0.05, 20))
            self.assertSameBits(target.int_repr(), plain.int_repr())
        x = torch.rand(3, 4)
        target.copy_(x.hologram())
        self.assertSameBits(
            target.int_repr(), torch.quantize_per_tensor(x, 0.05, 20, torch.quint8).int_repr()
        )

    def test_views_share_memory(self):
        plain, there = self.quantized("tensor", torch.quint8)
        self.assertEqual(there[1].data_ptr(), there.data_ptr() + 4)
        self.assertSameBits(there.t().dequantize(), plain.t().dequantize())
        self.assertSameBits(there.reshape(2, 6).int_repr(), plain.reshape(2, 6).int_repr())

    def test_operators(self):
        plain, there = self.quantized("tensor", torch.quint8)
        for use in (
            lambda q: torch.relu(q),
            lambda q: torch.cat([q, q]),
            lambda q: torch.nn.functional.max_pool2d(q[None], 2),
        ):
            actual = use(there)
            self.assertTrue(actual.is_quantized and actual.is_hologram)
            self.assertSameBits(actual.dequantize(), use(plain).dequantize())
        self.assertEqual(str(there).splitlines()[0], str(plain).splitlines()[0])

    def test_fake_quantize_gradient(self):
        values = torch.rand(3, 4) * 4 - 2
        gradients = []
        for device in ("cpu", "hologram"):
            x = values.to(device, copy=True).requires_grad_()
            torch.fake_quantize_per_tensor_affine(x, 0.01, 0, -100, 100).pow(2).sum().backward()
            gradients.append(x.grad.cpu())
        self.assertEqual(gradients[1], gradients[0], rtol=0, atol=0)
        self.assertTrue((gradients[0] == 0).any(), "no value was outside of the range")


class TestNested(HologramTestCase):
    LAYOUTS = (torch.strided, torch.jagged)

    def parts(self) -> list[torch.Tensor]:
        return [torch.rand(length, 3) for length in (2, 4, 1)]

    def assertSameParts(self, nested, expected):
        self.assertTrue(nested.is_nested)
        self.assertEqual(nested.device.type, "hologram")
        actual = nested.unbind()
        self.assertEqual(len(actual), len(expected))
        for part, plain in zip(actual, expected, strict=True):
            self.assertEqual(part.device.type, "hologram")
            self.assertEqual(part.cpu(), plain)

    @parametrize("layout", LAYOUTS)
    def test_from_the_cpu(self, layout):
        parts = self.parts()
        plain = torch.nested.nested_tensor(parts, layout=layout)
        there = plain.to("hologram")
        self.assertEqual(there.layout, layout)
        self.assertSameParts(there, parts)

    @parametrize("layout", LAYOUTS)
    def test_to_the_cpu(self, layout):
        parts = self.parts()
        back = torch.nested.nested_tensor(parts, layout=layout, device="hologram").cpu()
        self.assertTrue(back.is_nested and back.is_cpu)
        for part, plain in zip(back.unbind(), parts, strict=True):
            self.assertTrue(part.is_cpu)
            self.assertEqual(part, plain)

    @parametrize("layout", LAYOUTS)
    def test_factories(self, layout):
        parts = self.parts()
        self.assertSameParts(
            torch.nested.nested_tensor(parts, layout=layout, device="hologram"), parts
        )
        device_parts = [part.hologram() for part in parts]
        self.assertSameParts(torch.nested.as_nested_tensor(device_parts, layout=layout), parts)

    @parametrize("layout", LAYOUTS)
    def test_to_padded_tensor(self, layout):
        parts = self.parts()
        there = torch.nested.nested_tensor(parts, layout=layout, device="hologram")
        padded = there.to_padded_tensor(-1.0)
        self.assertEqual(padded.device.type, "hologram")
        self.assertEqual(
            padded.cpu(),
            torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=-1.0),
        )

    @parametrize("layout", LAYOUTS)
    def test_unbind_shares_memory(self, layout):
        parts = self.parts()
        there = torch.nested.nested_tensor(parts, layout=layout, device="hologram")
        there.unbind()[1].zero_()
        parts[1].zero_()
        self.assertSameParts(there, parts)

    @parametrize("layout", LAYOUTS)
    def test_linear(self, layout):
        parts, linear = self.parts(), nn.Linear(3, 2)
        expected = [linear(part) for part in parts]
        torch.cat(expected).pow(2).sum().backward()
        gradients = [parameter.grad.clone() for parameter in linear.parameters()]
        linear.zero_grad()

        linear.hologram()
        there = torch.nested.nested_tensor(parts, layout=layout, device="hologram")
        result = linear(there)
        self.assertSameParts(result, expected)
        torch.cat(result.unbind()).pow(2).sum().backward()
        for parameter, gradient in zip(linear.parameters(), gradients, strict=True):
            self.assertEqual(parameter.grad.cpu(), gradient)

    @parametrize("layout", LAYOUTS)
    def test_operators(self, layout):
        parts = self.parts()
        there = torch.nested.nested_tensor(parts, layout=layout, device="hologram")
        self.assertSameParts(there + there, [part + part for part in parts])
        self.assertSameParts(there.relu(), [part.relu() for part in parts])
        self.assertSameParts(torch.softmax(there, -1), [part.softmax(-1) for part in parts])
        self.assertSameParts(there.clone(), parts)

    @parametrize("layout", LAYOUTS)
    def test_gradient_of_the_parts(self, layout):
        parts = [part.hologram().requires_grad_() for part in self.parts()]
        nested = torch.nested.as_nested_tensor(parts, layout=layout)
        nested.to_padded_tensor(0.0).pow(2).sum().backward()
        for part in parts:
            self.assertEqual(part.grad, 2 * part.detach())


class TestTransformerFastPath(HologramTestCase):
    @parametrize("norm_first", [False, True])
    @parametrize("padding", [False, True])
    def test_encoder(self, padding, norm_first):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
        x = torch.rand(3, 5, 8)
        mask = torch.arange(5) >= torch.tensor([[5], [3], [1]]) if padding else None
        with torch.no_grad():
            expected = encoder(x, src_key_padding_mask=mask)
            encoder.hologram()
            with torch.profiler.profile() as profile:
                actual = encoder(
                    x.hologram(), src_key_padding_mask=None if mask is None else mask.hologram()
                )
        self.assertIn(
            "aten::_transformer_encoder_layer_fwd", {event.key for event in profile.key_averages()}
        )
        self.assertEqual(actual.device.type, "hologram")
        self.assertEqual(actual.cpu(), expected)

        # The slow path, taken for its gradients, computes the same.
        slow = encoder(
            x.hologram().requires_grad_(),
            src_key_padding_mask=None if mask is None else mask.hologram(),
        )
        keep = torch.ones(3, 5, dtype=torch.bool) if mask is None else ~mask
        self.assertEqual(slow.cpu()[keep], expected[keep])


instantiate_parametrized_tests(TestCoo)
instantiate_parametrized_tests(TestCompressed)
instantiate_parametrized_tests(TestQuantized)
instantiate_parametrized_tests(TestNested)
instantiate_parametrized_tests(TestTransformerFastPath)

if __name__ == "__main__":
    run_tests()
