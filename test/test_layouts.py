"""Sparse, quantized and nested tensors of the device: torch's kernels over the same memory."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from common import CUDA_KERNELS, OWN_PRODUCTS, HologramTestCase, as_torch
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.utils._pytree import tree_leaves, tree_map

COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def members(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that a tensor of another layout consists of."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_nested:
        return list(tensor.unbind())
    return [tensor]


class LayoutTestCase(HologramTestCase):
    def check(self, function, *arguments, raises=False, exact=True):
        """function gives on the device what it gives on the CPU: values and layouts.

        Or what it gives or raises on torch's own CUDA device, where its kernels run.

        Args:
            function: called with the arguments on one device and on the other.
            *arguments: tensors are moved.
            raises: whether it is an error on the CPU, and so on the device; None if that depends.
            exact: bit for bit, else to torch's tolerance: the device has functions of its own.
        """

        def run(device):
            moved = tree_map(
                lambda a: a.to(device, copy=True) if isinstance(a, torch.Tensor) else a, arguments
            )
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # "in beta", "is deprecated"
                    return function(*moved), None
            except Exception as error:
                return None, error

        actual, error = run("hologram")

        def compare(device):
            expected, expected_error = run(device)
            if raises is not None and device == "cpu":
                self.assertEqual(expected_error is not None, raises, msg=str(expected_error))
            self.assertIs(type(error), type(expected_error), f"{error} != {expected_error}")
            if error is not None:
                return
            for mine, wanted in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
                if isinstance(wanted, torch.Tensor):
                    self.assert_equal_on_device(mine, wanted, exact)
                else:
                    self.assertEqual(mine, wanted)

        as_torch(compare)

    def assert_equal_on_device(self, mine, wanted, exact=True):
        tolerance = {"rtol": 0, "atol": 0} if exact and not (CUDA_KERNELS or OWN_PRODUCTS) else {}
        self.assertEqual(mine.device, torch.device("hologram", 0))
        self.assertEqual(mine.layout, wanted.layout)
        self.assertEqual(mine.is_quantized, wanted.is_quantized)
        self.assertEqual(mine.is_nested, wanted.is_nested)
        for part in members(mine):
            self.assertEqual(part.device, torch.device("hologram", 0))
        if mine.layout == torch.sparse_coo:
            self.assertEqual(mine.is_coalesced(), wanted.is_coalesced())
        if mine.is_nested:
            for part, wanted_part in zip(mine.unbind(), wanted.unbind(), strict=True):
                self.assertEqual(part.cpu(), wanted_part.cpu(), **tolerance)
        else:
            self.assertEqual(mine.cpu(), wanted.cpu(), **tolerance, equal_nan=True)


def coo(device: str = "cpu", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """4 x 5 with a duplicate entry."""
    return torch.sparse_coo_tensor(
        torch.tensor([[0, 3, 1, 3], [4, 2, 0, 2]]),
        torch.tensor([1.0, -2.0, 3.0, 4.0]).to(dtype),
        (4, 5),
        device=device,
    )


def hybrid() -> torch.Tensor:
    """Two sparse dimensions and a dense one."""
    return torch.sparse_coo_tensor(
        [[0, 2, 0], [1, 1, 1]], torch.arange(6.0).reshape(3, 2) - 2, (3, 4, 2)
    )


COO = {
    "neg": lambda x: -x,
    "add": lambda x: x + x,
    "add, scaled": lambda x: torch.add(x, x, alpha=3),
    "add_": lambda x: x.add_(x.clone()),
    "sub": lambda x: x - x.coalesce() * 2,
    "mul": lambda x: x * x,
    "mul, number": lambda x: x * 2.5,
    "mul, dense": lambda x: x.coalesce() * torch.ones(x.shape, device=x.device),
    "div": lambda x: x / 4,
    "div_": lambda x: x.coalesce().div_(4),
    "abs": lambda x: x.coalesce().abs(),
    "sqrt": lambda x: x.coalesce().abs().sqrt(),
    "sin_": lambda x: x.coalesce().sin_(),
    "pow": lambda x: x.coalesce().pow(2),
    "sign": lambda x: x.coalesce().sign(),
    "coalesce": lambda x: x.coalesce(),
    "coalesced": lambda x: (x.is_coalesced(), x.coalesce().is_coalesced(), x._nnz()),
    "members": lambda x: (x._indices(), x._values()),
    "coalesced members": lambda x: (x.coalesce().indices(), x.coalesce().values()),
    "dimensions": lambda x: (x.sparse_dim(), x.dense_dim(), x.shape),
    "to_dense": lambda x: x.to_dense(),
    "wrong, dtype": lambda x: x.to_dense(dtype=torch.float64),
    "transpose": lambda x: x.transpose(0, 1),
    "transpose_": lambda x: x.transpose_(0, 1),
    "t": lambda x: x.t(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "wrong, no kernel": lambda x: x.as_strided((2,), (1,)),
    "permute": lambda x: x.permute(1, 0),
    "select": lambda x: x[1],
    "narrow_copy": lambda x: x.narrow_copy(0, 1, 2),
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 4], device=x.device)),
    "sum": lambda x: torch.sparse.sum(x),
    "sum over a dimension": lambda x: torch.sparse.sum(x, 0),
    "sum, dense": lambda x: x.sum(),
    "norm": lambda x: x.norm(),
    "any": lambda x: x.any(),
    "isnan": lambda x: x.coalesce().isnan(),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "deepcopy": lambda x: copy.deepcopy(x),
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: torch.zeros_like(x).copy_(x),
    "resize_as_sparse_": lambda x: torch.empty(0, device=x.device).to_sparse().resize_as_sparse_(x),
    "sparse_resize_": lambda x: x.clone().sparse_resize_((6, 7), 2, 0),
    "sparse_mask": lambda x: torch.ones(x.shape, device=x.device).sparse_mask(x.coalesce()),
    "zeros_like": lambda x: torch.zeros_like(x),
    "empty_like": lambda x: torch.empty_like(x)._nnz(),
    "double": lambda x: x.double(),
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x]),
    "mm, dense": lambda x: torch.sparse.mm(x, torch.arange(10.0, device=x.device).view(5, 2)),
    "mm, sparse": lambda x: torch.sparse.mm(x, x.t()),
    "matmul": lambda x: x @ torch.ones(5, 3, device=x.device),
    "mv": lambda x: x @ torch.arange(5.0, device=x.device),
    "addmm": lambda x: torch.sparse.addmm(
        torch.ones(4, 2, device=x.device), x, torch.ones(5, 2, device=x.device), beta=2, alpha=3
    ),
    "softmax": lambda x: torch.sparse.softmax(x, 1),
    "log_softmax": lambda x: torch.sparse.log_softmax(x, 0),
    "equal": lambda x: torch.equal(x.to_dense(), (x + 0 * x).to_dense()),
    "item": lambda x: x.coalesce().values()[0].item(),
    "out": lambda x: torch.mul(x, 2, out=torch.empty_like(x)),
    "dense + sparse": lambda x: torch.ones(4, 5, device=x.device) + x,
    "dense += sparse": lambda x: torch.ones(4, 5, device=x.device).add_(x),
    "to_sparse_csr": lambda x: x.to_sparse_csr(),
    "to_sparse_csc": lambda x: x.to_sparse_csc(),
    "save": lambda x: round_trip(x),
    "wrong": lambda x: x + torch.zeros(2, 2, device=x.device).to_sparse(),
    "wrong, index": lambda x: torch.sparse_coo_tensor([[9]], [1.0], (4,), device=x.device),
}  # fmt: skip


def round_trip(tensor: torch.Tensor) -> torch.Tensor:
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    return torch.load(buffer)


class TestSparseCoo(LayoutTestCase):
    @parametrize("name", list(COO))
    def test_operator(self, name):
        self.check(COO[name], coo(), raises=name.startswith("wrong"))

    def test_hybrid(self):
        for function in (
            lambda x: x.coalesce(),
            lambda x: x.to_dense(),
            lambda x: x.transpose(0, 1),
            lambda x: x * 2 + x,
            lambda x: torch.sparse.sum(x, 2),
            lambda x: x.coalesce().values(),
            lambda x: x.to_dense().to_sparse(2),
            lambda x: x.index_select(2, torch.tensor([1], device=x.device)),
        ):
            self.check(function, hybrid())

    @parametrize("dtype", [torch.float64, torch.int64, torch.complex64, torch.bool, torch.bfloat16])
    def test_dtypes(self, dtype):
        self.check(lambda x: (x.coalesce(), x.to_dense(), x.t()), coo(dtype=dtype))

    def test_making(self):
        for function in (
            lambda v: torch.sparse_coo_tensor([[0, 1], [1, 0]], v, device=v.device),
            lambda v: torch.sparse_coo_tensor(torch.tensor([[0, 1]], device=v.device), v, (3,)),
            lambda v: torch.sparse_coo_tensor((2, 3), device=v.device),
            lambda v: torch.zeros(2, 3, layout=torch.sparse_coo, device=v.device),
            lambda v: torch.empty(2, 3, layout=torch.sparse_coo, device=v.device)._nnz(),
            lambda v: v.to_sparse(),
            lambda v: torch.diag(v).to_sparse(1),
            lambda v: v.new_zeros(2, 2).to_sparse(),
            lambda v: torch.sparse.spdiags(v[None], torch.tensor([1], device=v.device), (3, 3)),
        ):
            self.check(function, torch.tensor([1.0, 2.0]))

    @pytest.mark.host_memory
    def test_no_copies(self):
        values = torch.tensor([1.0, 2.0], device="hologram")
        indices = torch.tensor([[0, 2]], device="hologram")
        x = torch.sparse_coo_tensor(indices, values, (4,))
        self.assertEqual(x._values().data_ptr(), values.data_ptr())
        self.assertEqual(x._indices().data_ptr(), indices.data_ptr())
        x._values().mul_(5)
        self.assertEqual(x.to_dense().cpu(), torch.tensor([5.0, 0, 10, 0]))
        alias = torch.hologram.alias_as_cpu(x)
        self.assertEqual(alias._values().data_ptr(), values.data_ptr())
        self.assertEqual(alias.to_dense(), torch.tensor([5.0, 0, 10, 0]))

    def test_in_place_changes_the_tensor(self):
        """New members come back into the tensor that was given."""
        x, y = coo("hologram"), coo("hologram")
        same = x
        x.add_(y)
        self.assertIs(x, same)
        self.assertEqual(x.to_dense().cpu(), coo().to_dense() * 2)
        x.sparse_resize_and_clear_((2, 2), 2, 0)
        self.assertEqual((x.shape, x._nnz()), ((2, 2), 0))
        self.assertEqual(x.to_dense().cpu(), torch.zeros(2, 2))

    def test_gradients(self):
        def gradients(values, dense):
            values, dense = (t.detach().requires_grad_() for t in (values, dense))
            x = torch.sparse_coo_tensor(
                [[0, 1, 1], [2, 0, 2]], values, (2, 3), device=values.device
            )
            (torch.sparse.mm(x, dense).sin() * torch.sparse.sum(x * 2)).sum().backward()
            return values.grad, dense.grad

        self.check(gradients, torch.tensor([1.0, 2.0, 3.0]), torch.rand(3, 2), exact=False)

    def test_sparse_gradients_train(self):
        def train(weight, index):
            table = torch.nn.Embedding(10, 3, sparse=True, _weight=weight.clone())
            optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
            adam = torch.optim.SparseAdam(table.parameters(), lr=0.1)
            for step in range(3):
                optimizer.zero_grad()
                (table(index) ** 2).sum().backward()
                (optimizer, adam)[step % 2].step()
            return table.weight.grad, table.weight.detach()

        self.check(train, torch.rand(10, 3), torch.tensor([1, 3, 3, 9]))

    def test_moves(self):
        x = coo().hologram()
        self.assertEqual(x.device.type, "hologram")
        self.assertEqual(x.cpu().to_dense(), coo().to_dense())
        self.assertEqual(x.to("cpu", torch.float64).to_dense(), coo().to_dense().double())
        self.assertIn("device='hologram:0'", repr(x))
        self.assertIn("layout=torch.sparse_coo", repr(x))

    def test_mixed_devices(self):
        x, plain = coo("hologram"), coo()
        for use in (
            lambda: x + plain,
            lambda: torch.sparse.mm(x, torch.ones(5, 2)),
            lambda: torch.sparse.mm(plain, torch.ones(5, 2, device="hologram")),
            lambda: torch.cat([x, plain]),
            lambda: torch.ones(4, 5, device="hologram").add_(plain),
        ):
            with self.assertRaisesRegex(RuntimeError, "device"):
                use()

    def test_invariants_are_checked(self):
        with torch.sparse.check_sparse_tensor_invariants():
            for device in ("cpu", "hologram"):
                torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device=device)
                with self.assertRaisesRegex(RuntimeError, "size is inconsistent|bounds"):
                    torch.sparse_coo_tensor([[0, 7]], [1.0, 2.0], (3,), device=device)


def compressed(layout: torch.layout) -> torch.Tensor:
    dense = torch.zeros(4, 6)
    dense[0, 1], dense[1, 4], dense[3, 0], dense[3, 5] = 1.0, -2.0, 3.0, 4.0
    if layout in (torch.sparse_bsr, torch.sparse_bsc):
        return dense.to_sparse(layout=layout, blocksize=(2, 2))
    return dense.to_sparse(layout=layout)


ANY_COMPRESSED = {
    "members": lambda x: members(x),
    "to_dense": lambda x: x.to_dense(),
    "to_sparse": lambda x: x.to_sparse(),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "neg": lambda x: -x,
    "mul": lambda x: x * 3,
    "mul_": lambda x: x.mul_(3),
    "abs": lambda x: x.abs(),
    "sin": lambda x: x.sin(),
    "sqrt_": lambda x: x.abs().sqrt_(),
    "add": lambda x: x + x,
    "sum": lambda x: x.sum(),
    "transpose": lambda x: x.transpose(0, 1),
    "double": lambda x: x.double(),
    "zeros_like": lambda x: torch.zeros_like(x),
    "copy_": lambda x: (x * 0).copy_(x),
    "select": lambda x: x[3],
    "mm": lambda x: x @ torch.arange(12.0, device=x.device).reshape(6, 2),
    "mv": lambda x: x @ torch.arange(6.0, device=x.device),
    "addmm": lambda x: torch.addmm(
        torch.ones(4, 2, device=x.device), x, torch.ones(6, 2, device=x.device), alpha=2
    ),
    "mm, sparse": lambda x: x @ x.transpose(0, 1),
    "mm, out": lambda x: torch.mm(
        x, torch.ones(6, 2, device=x.device), out=torch.empty(4, 2, device=x.device)
    ),
    "linear": lambda x: torch.nn.functional.linear(torch.ones(3, 6, device=x.device), x),
    "nnz": lambda x: x._nnz(),
    "save": lambda x: round_trip(x),
    "wrong": lambda x: x @ torch.ones(5, 2, device=x.device),
}  # fmt: skip


NOT_BLOCKED = ("addmm", "linear", "mm", "mm, out", "mm, sparse", "mv", "select")


class TestSparseCompressed(LayoutTestCase):
    @parametrize("layout", COMPRESSED)
    @parametrize("name", list(ANY_COMPRESSED))
    def test_operator(self, layout, name):
        # torch has no block-sparse kernel for some of them.
        raises = name.startswith("wrong") or (
            name in NOT_BLOCKED and layout in (torch.sparse_bsr, torch.sparse_bsc) and None
        )
        self.check(ANY_COMPRESSED[name], compressed(layout), raises=raises)

    @parametrize("layout", COMPRESSED)
    def test_conversions(self, layout):
        for target in (*COMPRESSED, torch.sparse_coo):
            blocks = (2, 2) if target in (torch.sparse_bsr, torch.sparse_bsc) else None
            self.check(
                lambda x, t=target, b=blocks: x.to_dense().to_sparse(layout=t, blocksize=b),
                compressed(layout),
            )

    def test_making(self):
        for function in (
            lambda v: torch.sparse_csr_tensor([0, 1, 2], [1, 0], v, (2, 2), device=v.device),
            lambda v: torch.sparse_csc_tensor([0, 1, 2], [1, 0], v, (2, 2), device=v.device),
            lambda v: torch.sparse_bsr_tensor(
                [0, 1], [0], v.view(1, 1, 2), (1, 2), device=v.device
            ),
            lambda v: torch.sparse_compressed_tensor(
                torch.tensor([0, 2], device=v.device),
                torch.tensor([0, 1], device=v.device),
                v,
                (1, 2),
                layout=torch.sparse_csr,
            ),
            lambda v: torch.zeros(2, 3, layout=torch.sparse_csr, device=v.device),
        ):
            self.check(function, torch.tensor([1.0, 2.0]))

    @pytest.mark.host_memory
    def test_no_copies(self):
        x = compressed(torch.sparse_csr).hologram()
        alias = torch.hologram.alias_as_cpu(x)
        for mine, other in zip(members(x), members(alias), strict=True):
            self.assertEqual(mine.data_ptr(), other.data_ptr())
        x.values().mul_(2)
        self.assertEqual(alias.to_dense(), compressed(torch.sparse_csr).to_dense() * 2)

    def test_gradients(self):
        def gradients(values, dense):
            values, dense = (t.detach().requires_grad_() for t in (values, dense))
            x = torch.sparse_csr_tensor(
                torch.tensor([0, 1, 3], device=values.device),
                torch.tensor([2, 0, 2], device=values.device),
                values,
                (2, 3),
            )
            (x @ dense).sin().sum().backward()
            return values.grad, dense.grad

        self.check(gradients, torch.tensor([1.0, 2.0, 3.0]), torch.rand(3, 2), exact=False)

    @parametrize("layout", COMPRESSED)
    def test_deepcopy(self, layout):
        x = compressed(layout).hologram()  # torch cannot do this on the CPU
        clone = copy.deepcopy(x)
        x.values().zero_()
        self.assert_equal_on_device(clone, compressed(layout))

    def test_sampled_addmm(self):
        self.check(
            lambda x: torch.sparse.sampled_addmm(
                x, torch.ones(4, 3, device=x.device), torch.ones(3, 6, device=x.device)
            ),
            compressed(torch.sparse_csr),
        )

    def test_batches(self):
        x = torch.stack([compressed(torch.sparse_csr).to_dense()] * 2).to_sparse_csr()
        self.check(lambda x: (x.to_dense(), x * 2, members(x)), x)


QUANTIZED = {
    "dequantize": lambda q: q.dequantize(),
    "int_repr": lambda q: q.int_repr(),
    "parameters": lambda q: (
        (q.q_scale(), q.q_zero_point())
        if q.qscheme() == torch.per_tensor_affine
        else (q.q_per_channel_scales(), q.q_per_channel_zero_points(), q.q_per_channel_axis())
    ),
    "clone": lambda q: q.clone(),
    "view": lambda q: q.view(4, 3),
    "transpose": lambda q: q.transpose(0, 1).int_repr(),
    "slice": lambda q: q[:, 1:].int_repr(),
    "contiguous": lambda q: q.transpose(0, 1).contiguous().int_repr(),
    "reshape": lambda q: q.reshape(-1),
    "copy_": lambda q: torch.empty_like(q).copy_(q),
    "copy_ from float": lambda q: q.clone().copy_(torch.full((3, 4), 0.3, device=q.device)),
    "fill_": lambda q: q.clone().fill_(0.4),
    "relu": lambda q: torch.relu(q),
    "max": lambda q: q.max(),
    "sort": lambda q: q.sort().values,
    "cat": lambda q: torch.cat([q, q]),
    "mean": lambda q: q.mean(),
    "clamp": lambda q: q.clamp(-0.2, 0.5),
    "eq": lambda q: q == q,
    "index_select": lambda q: q.index_select(0, torch.tensor([2, 0], device=q.device)),
    "max_pool": lambda q: torch.max_pool2d(q[None, None], 2),
    "interpolate": lambda q: torch.nn.functional.interpolate(q[None, None], scale_factor=2),
    "add": lambda q: torch.ops.quantized.add(q, q, 0.1, 3),
    "mul": lambda q: torch.ops.quantized.mul(q, q, 0.1, 3),
    "sigmoid": lambda q: torch.sigmoid(q),
    "save": lambda q: round_trip(q),
    "deepcopy": lambda q: copy.deepcopy(q),
    "set_data_type": lambda q: q.dequantize().double(),
    "wrong": lambda q: q + q,
}  # fmt: skip


def quantize(dtype: torch.dtype) -> torch.Tensor:
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    return torch.quantize_per_tensor(x, 0.1, 0 if dtype == torch.qint32 else 10, dtype)


class TestQuantized(LayoutTestCase):
    @parametrize("name", list(QUANTIZED))
    @parametrize("dtype", [torch.quint8, torch.qint8, torch.qint32])
    def test_per_tensor(self, name, dtype):
        self.check(QUANTIZED[name], quantize(dtype), raises=name == "wrong")

    @parametrize(
        "name", ["dequantize", "int_repr", "parameters", "clone", "copy_", "save", "deepcopy"]
    )
    def test_per_channel(self, name):
        x = torch.linspace(-1, 1, 12).reshape(3, 4)
        quantized = torch.quantize_per_channel(
            x, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2]), 0, torch.qint8
        )
        self.check(QUANTIZED[name], quantized)

    def test_quantizing(self):
        for function in (
            lambda x: torch.quantize_per_tensor(x, 0.1, 2, torch.quint8),
            lambda x: torch.quantize_per_tensor(
                x, torch.tensor(0.1, device=x.device), torch.tensor(2, device=x.device), torch.qint8
            ),
            lambda x: torch.quantize_per_tensor_dynamic(x, torch.quint8, False),
            lambda x: torch.quantize_per_channel(
                x,
                torch.tensor([0.1, 0.2, 0.3], device=x.device),
                torch.tensor([0, 1, 2], device=x.device),
                0,
                torch.qint8,
            ),
            lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 2, 0, 255),
            lambda x: torch._make_per_tensor_quantized_tensor(x.to(torch.uint8), 0.5, 1),
            lambda x: torch._empty_affine_quantized(
                (3, 4), scale=0.1, zero_point=2, dtype=torch.quint8, device=x.device
            ).copy_(x),
            lambda x: torch.quantize_per_tensor(x, 0.1, 2, torch.quint8).dequantize() * 2,
        ):
            self.check(function, torch.linspace(-1, 1, 12).reshape(3, 4))

    @pytest.mark.host_memory
    def test_no_copies(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "is deprecated"
            q = torch.quantize_per_tensor(torch.ones(4, device="hologram"), 0.5, 1, torch.qint8)
        alias = torch.hologram.alias_as_cpu(q)
        self.assertEqual(alias.data_ptr(), q.data_ptr())
        self.assertEqual((alias.q_scale(), alias.q_zero_point()), (0.5, 1))
        self.assertEqual(alias.int_repr(), torch.full((4,), 3, dtype=torch.int8))

    def test_fake_quantized_training(self):
        def train(x):
            layer = torch.nn.Linear(4, 2)
            torch.nn.init.constant_(layer.weight, 0.3)
            torch.nn.init.zeros_(layer.bias)
            layer = layer.to(x.device)
            observer = torch.ao.quantization.FakeQuantize(quant_min=0, quant_max=255).to(x.device)
            out = layer(observer(x))
            out.sum().backward()
            return out.detach(), layer.weight.grad, observer.scale

        self.check(train, torch.linspace(-1, 1, 12).reshape(3, 4))


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor(
            [torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3) - 5]
        )


NESTED = {
    "unbind": lambda n: n.unbind(),
    "to_padded": lambda n: torch.nested.to_padded_tensor(n, -1.0),
    "size": lambda n: (n.size(0), n.size(2), n.dim(), n.numel()),
    "clone": lambda n: n.clone(),
    "neg": lambda n: -n,
    "add": lambda n: n + n,
    "mul": lambda n: n * 2,
    "mul_": lambda n: n.mul_(2),
    "relu": lambda n: torch.relu(n),
    "gelu": lambda n: torch.nn.functional.gelu(n),
    "tanh_": lambda n: torch.tanh_(n),
    "softmax": lambda n: torch.softmax(n, -1),
    "layer_norm": lambda n: torch.nn.functional.layer_norm(
        n, (3,), torch.ones(3, device=n.device), torch.zeros(3, device=n.device)
    ),
    "linear": lambda n: torch.nn.functional.linear(
        n, torch.ones(2, 3, device=n.device), torch.ones(2, device=n.device)
    ),
    "bmm": lambda n: torch.bmm(n, n.transpose(1, 2)),
    "matmul": lambda n: n @ n.transpose(-1, -2),
    "select": lambda n: n[1],
    "dropout": lambda n: torch.nn.functional.dropout(n, 0.0),
    "sum": lambda n: n.sum(-1, keepdim=True),
    "values": lambda n: n.values(),
    "detach": lambda n: n.detach(),
    "zeros_like": lambda n: torch.zeros_like(n),
    "fill_": lambda n: n.clone().fill_(3),
    "double": lambda n: n.double(),
    "chunk": lambda n: n.chunk(3, -1),
    "as_nested": lambda n: torch.nested.as_nested_tensor(list(n.unbind())),
    "wrong": lambda n: n + torch.ones(7, 7, device=n.device),
}  # fmt: skip


class TestNested(LayoutTestCase):
    @parametrize("name", list(NESTED))
    def test_operator(self, name):
        self.check(NESTED[name], nested(), raises=name == "wrong")

    def test_making(self):
        for function in (
            lambda x: torch.nested.nested_tensor([x, x[:1]], device=x.device),
            lambda x: torch.nested.nested_tensor([[1.0], [2.0, 3.0]], device=x.device),
            lambda x: torch.nested.as_nested_tensor([x, x[:1]]),
            lambda x: torch._nested_tensor_from_mask(
                x[None], torch.tensor([[True, True, False]], device=x.device)
            ),
            lambda x: torch._nested_from_padded(x[None], torch.tensor([[2, 4]])),
        ):
            self.check(function, torch.arange(12.0).reshape(3, 4))

    def test_gradients(self):
        def gradients(x, weight):
            x, weight = (t.detach().requires_grad_() for t in (x, weight))
            n = torch.nested.as_nested_tensor([x, x[:2] * 3])
            out = torch.nn.functional.linear(n, weight)
            torch.nested.to_padded_tensor(out, 0.0).sin().sum().backward()
            return x.grad, weight.grad

        self.check(gradients, torch.rand(3, 4), torch.rand(2, 4), exact=False)

    @pytest.mark.host_memory
    def test_no_copies(self):
        n = nested().hologram()
        alias = torch.hologram.alias_as_cpu(n)
        n.mul_(2)
        for mine, other, plain in zip(n.unbind(), alias.unbind(), nested().unbind(), strict=True):
            self.assertEqual(mine.data_ptr(), other.data_ptr())
            self.assertEqual(other, plain * 2)

    def test_jagged(self):
        def use(x, weight):
            x, weight = (t.detach().requires_grad_() for t in (x, weight))
            n = torch.nested.as_nested_tensor([x, x[:2] * 3], layout=torch.jagged)
            out = torch.nn.functional.linear(n, weight).sin() * 2
            out.values().sum().backward()
            return [*out.detach().unbind(), x.grad, weight.grad, n.offsets()]

        self.check(use, torch.rand(3, 4), torch.rand(2, 4), exact=False)

    def test_jagged_operators(self):
        for function in (
            lambda n: n.to_padded_tensor(0.0),
            lambda n: list((n + n).unbind()),
            lambda n: n.sum(-1).values(),
            lambda n: n.sum(1),
            lambda n: torch.softmax(n, -1).values(),
            lambda n: torch.nn.functional.layer_norm(n, (4,)).values(),
            lambda n: list(n.transpose(1, 2).unbind()),
        ):

            def use(x, function=function):
                return function(
                    torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged, device=x.device)
                )

            # Sums are made in an order of their own.
            self.check(use, torch.arange(12.0).reshape(3, 4), exact=False)

    def test_transformer_fast_path(self):
        """The encoder packs a padded batch into a nested tensor and runs one fused kernel."""

        def encode(x, mask):
            torch.manual_seed(0)
            layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            model = torch.nn.TransformerEncoder(layer, 2).eval().to(x.device)
            with torch.no_grad():
                return model(x, src_key_padding_mask=mask)

        mask = torch.tensor([[False, False, True], [False, False, False]])
        torch.manual_seed(1)
        self.check(encode, torch.rand(2, 3, 8), mask)


class TestUnsupported(LayoutTestCase):
    def test_mkldnn(self):
        with self.assertRaisesRegex(RuntimeError, "layout Mkldnn is not supported on the hologram"):
            torch.ones(2, 2, device="hologram").to_mkldnn()

    def test_operator_without_a_kernel_for_the_layout(self):
        with self.assertRaisesRegex(
            NotImplementedError,
            "'aten::linalg_cholesky_ex' on the hologram device: .* for sparse COO tensors",
        ):
            torch.linalg.cholesky(coo("hologram"))
        with self.assertRaisesRegex(NotImplementedError, "'aten::.*' .* for quantized tensors"):
            torch.sin(quantize(torch.quint8).hologram())


instantiate_parametrized_tests(TestSparseCoo)
instantiate_parametrized_tests(TestSparseCompressed)
instantiate_parametrized_tests(TestQuantized)
instantiate_parametrized_tests(TestNested)

if __name__ == "__main__":
    run_tests()
