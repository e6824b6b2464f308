"""Views stay views, and one storage stays one storage, whoever reads, writes or resizes it."""

from __future__ import annotations

import copy
import gc
import itertools
import warnings

import numpy
import pytest
import torch
from common import DELEGATED, HOST_MEMORY, HologramTestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

# Every kind of view: name -> (shape and dtype of the base, call giving one tensor).
REAL, COMPLEX = torch.float32, torch.complex64
VIEWS = {
    "view": (REAL, lambda x: x.view(6, 4)),
    "view, one dimension": (REAL, lambda x: x.view(-1)),
    "view_as": (REAL, lambda x: x.view_as(x)),
    "view, int32": (REAL, lambda x: x.view(torch.int32)),
    "view, narrower dtype": (REAL, lambda x: x.view(torch.int16)),
    "view, wider dtype": (REAL, lambda x: x.view(torch.float64)),
    "reshape": (REAL, lambda x: x.reshape(2, 12)),
    "flatten": (REAL, lambda x: x.flatten(1)),
    "ravel": (REAL, lambda x: x.ravel()),
    "unflatten": (REAL, lambda x: x.unflatten(2, (2, 2))),
    "transpose": (REAL, lambda x: x.transpose(0, 2)),
    "swapaxes": (REAL, lambda x: x.swapaxes(0, 1)),
    "permute": (REAL, lambda x: x.permute(2, 0, 1)),
    "movedim": (REAL, lambda x: x.movedim(0, -1)),
    "mT": (REAL, lambda x: x.mT),
    "t": (REAL, lambda x: x[0].t()),
    "squeeze": (REAL, lambda x: x[:1].squeeze()),
    "squeeze, dimension": (REAL, lambda x: x[:, :1].squeeze(1)),
    "unsqueeze": (REAL, lambda x: x.unsqueeze(1)),
    "expand": (REAL, lambda x: x[:, :1].expand(2, 5, 4)),
    "broadcast_to": (REAL, lambda x: x.broadcast_to(3, 2, 3, 4)),
    "select": (REAL, lambda x: x.select(1, 2)),
    "index with a number": (REAL, lambda x: x[1, -1]),
    "narrow": (REAL, lambda x: x.narrow(2, 1, 2)),
    "slice": (REAL, lambda x: x[:, ::2, 1:]),
    "empty slice": (REAL, lambda x: x[:, 3:]),
    "ellipsis": (REAL, lambda x: x[..., None, 0]),
    "diagonal": (REAL, lambda x: x.diagonal(dim1=1, dim2=2)),
    "diagonal, offset": (REAL, lambda x: x.diagonal(1, 0, 2)),
    "linalg.diagonal": (REAL, torch.linalg.diagonal),
    "unfold": (REAL, lambda x: x.unfold(2, 2, 1)),
    "unfold, step": (REAL, lambda x: x.flatten().unfold(0, 5, 7)),
    "as_strided": (REAL, lambda x: x.as_strided((3, 2), (1, 5), 2)),
    "split": (REAL, lambda x: x.split(2, dim=1)[1]),
    "split, sizes": (REAL, lambda x: x.split((1, 3), dim=2)[1]),
    "chunk": (REAL, lambda x: x.chunk(2, 2)[1]),
    "tensor_split": (REAL, lambda x: x.tensor_split(3, 2)[2]),
    "hsplit": (REAL, lambda x: x.hsplit(3)[1]),
    "unbind": (REAL, lambda x: x.unbind(1)[2]),
    "atleast_3d": (REAL, lambda x: torch.atleast_3d(x[0])),
    "detach": (REAL, lambda x: x.detach()),
    "alias": (REAL, lambda x: torch.ops.aten.alias(x)),
    "view_as_complex": (REAL, torch.view_as_complex),
    "view_as_real": (COMPLEX, torch.view_as_real),
    "real": (COMPLEX, lambda x: x.real),
    "imag": (COMPLEX, lambda x: x.imag),
    "conj": (COMPLEX, lambda x: x.conj()),
    "conj, real": (COMPLEX, lambda x: x.conj().real),
    "conj, imag": (COMPLEX, lambda x: x.conj().imag),
    "mH": (COMPLEX, lambda x: x.mH),
    "adjoint": (COMPLEX, lambda x: x.adjoint()),
    "view of a view": (REAL, lambda x: x[1].t().unfold(0, 2, 1).diagonal(dim1=1, dim2=2)),
}


SHARES_ELEMENTS = ("expand", "broadcast_to", "unfold", "as_strided")
SEVERAL_OUTPUTS = ("split", "split, sizes", "chunk", "tensor_split", "hsplit", "unbind")


def base_for(name: str, device: str) -> torch.Tensor:
    x = torch.arange(24.0).reshape(2, 3, 4)
    if VIEWS[name][0] is COMPLEX:
        x = torch.complex(x, x.flip(0) + 0.5)
    elif name == "view_as_complex":
        x = x[..., :2]
    return x.clone(memory_format=torch.contiguous_format).to(device)


def storage_of(tensor: torch.Tensor) -> int:
    """Identifies a storage object, not its bytes."""
    return tensor.untyped_storage()._cdata


class TestViews(HologramTestCase):
    @parametrize("name", list(VIEWS))
    def test_geometry(self, name):
        """The same storage, sizes, strides and offset as on the CPU; a view of the same base."""
        view_of = VIEWS[name][1]
        plain, base = base_for(name, "cpu"), base_for(name, "hologram")
        expected, view = view_of(plain), view_of(base)
        self.assertEqual(view.device, base.device)
        self.assertEqual(storage_of(view), storage_of(base))
        self.assertEqual(view._is_view(), expected._is_view())
        self.assertEqual(view._base is base, expected._base is plain)
        for fact in (
            "size",
            "stride",
            "storage_offset",
            "is_contiguous",
            "is_conj",
            "is_neg",
            "element_size",
        ):
            self.assertEqual(getattr(view, fact)(), getattr(expected, fact)(), msg=fact)
        self.assertEqual(view.dtype, expected.dtype)
        if view.numel():  # the address of no element is null
            offset = expected.data_ptr() - plain.data_ptr()
            self.assertEqual(view.data_ptr() - base.data_ptr(), offset)
        self.assertEqual(view.cpu(), expected)

    @parametrize("name", list(VIEWS))
    @parametrize("native", [True, False])
    def test_writes(self, name, native):
        """A write to either is seen in the other, by native kernels and by delegated ones."""

        def written(device):
            base = base_for(name, device)
            view = VIEWS[name][1](base)
            if name in SHARES_ELEMENTS:  # the part that does not
                view = view.select({"expand": 1, "unfold": -1}.get(name, 0), 0)
            if native:
                view.zero_()
            elif view.dtype.is_complex or view.dtype.is_floating_point:
                view.cos_().mul_(3)
            else:
                view.bitwise_not_()
            state = [base.clone(), view.clone()]
            base.flatten()[1::2].copy_(torch.tensor(7.0))
            return [*state, base, view]

        for actual, expected in zip(written("hologram"), written("cpu"), strict=True):
            self.assertEqual(actual.cpu().resolve_conj(), expected.resolve_conj())

    @parametrize("name", list(VIEWS))
    def test_gradients(self, name):
        """Through the view, and through a write to it."""

        def gradient(device):
            leaf = base_for(name, device).requires_grad_()
            view = VIEWS[name][1](leaf * 1)
            if not (view.dtype.is_floating_point or view.dtype.is_complex):
                return None
            if name not in (*SHARES_ELEMENTS, *SEVERAL_OUTPUTS, "detach"):
                view.mul_(2)
            if not view.requires_grad:
                return None
            total = (view * view).abs().sum() if view.dtype.is_complex else (view**3).sum()
            return torch.autograd.grad(total, leaf)[0]

        actual, expected = gradient("hologram"), gradient("cpu")
        self.assertEqual(actual is None, expected is None)
        if expected is not None:
            self.assertEqual(actual.cpu().resolve_conj(), expected.resolve_conj())

    def test_delegated_views_are_views(self):
        """Views that have no kernel of ours come from the CPU kernel's view of the alias."""
        torch.hologram.reset_fallback_report()
        x = torch.arange(10.0, device="hologram")
        windows = x.unfold(0, 3, 2)
        self.assertEqual(torch.hologram.fallback_report().operators(DELEGATED)["aten::unfold"], 1)
        windows[2, 1] = -1
        self.assertEqual(x[5].item(), -1)
        self.assertEqual(storage_of(windows), storage_of(x))

    def test_multi_output_views_cannot_be_written(self):
        for device in ("cpu", "hologram"):
            x = torch.ones(4, 2, device=device, requires_grad=True) * 1
            first, _ = x.unbind(1)
            with self.assertRaisesRegex(RuntimeError, "is a view and is being modified inplace"):
                first.mul_(2)

    def test_views_outlive_their_base(self):
        view = torch.arange(1000.0, device="hologram")[5:].unfold(0, 3, 1)
        gc.collect()
        torch.empty(1000, device="hologram").fill_(-1)
        self.assertEqual(view[1].cpu(), torch.tensor([6.0, 7, 8]))

    def test_contiguous_and_reshape_copy_only_when_they_must(self):
        x = torch.rand(3, 4, device="hologram")
        self.assertIs(x.contiguous(), x)
        self.assertEqual(storage_of(x.reshape(4, 3)), storage_of(x))
        for copied in (
            x.t().contiguous(),
            x.t().reshape(12),
            x.clone(),
            x[0].expand(2, 4).flatten(),
        ):
            self.assertNotEqual(storage_of(copied), storage_of(x))

    def test_to_and_cpu_copy_only_when_they_must(self):
        x = torch.rand(3, device="hologram")
        for same in (x.to("hologram"), x.to("hologram:0"), x.hologram(), x.float(), x.to(x)):
            self.assertIs(same, x)
        for other in (x.to("hologram", copy=True), x.double(), x.cpu()):
            self.assertNotEqual(other.data_ptr(), x.data_ptr())

    def test_forward_mode_views(self):
        for device in ("cpu", "hologram"):
            with torch.autograd.forward_ad.dual_level():
                x = torch.arange(6.0, device=device)
                dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
                view = dual.unfold(0, 2, 1)[3]
                tangent = torch.autograd.forward_ad.unpack_dual(view * view).tangent
                self.assertEqual(tangent.cpu(), torch.tensor([6.0, 8.0]))


class TestAliases(HologramTestCase):
    """The CPU tensors that the delegate hands to torch's kernels, as alias_as_cpu() shows them."""

    def alias(self, tensor):
        alias = torch.hologram.alias_as_cpu(tensor)
        self.assertEqual(alias.data_ptr(), tensor.data_ptr())
        self.assertEqual(alias.size(), tensor.size())
        self.assertEqual(alias.stride(), tensor.stride())
        self.assertEqual(alias.storage_offset(), tensor.storage_offset())
        self.assertEqual(alias.dtype, tensor.dtype)
        self.assertEqual(alias.is_conj(), tensor.is_conj())
        self.assertEqual(alias.is_neg(), tensor.is_neg())
        self.assertFalse(alias.requires_grad)
        return alias

    @pytest.mark.host_memory
    def test_no_result_is_copied(self):
        """Factories, native and delegated operators: the CPU's bytes are the device's."""
        x = torch.rand(40, 40, device="hologram")
        torch.hologram.reset_fallback_report()
        results = [
            x,
            x + x,
            x @ x,
            x.sort().values,
            x.sum(),
            torch.linalg.inv(x),
            torch.fft.fft(x),
            x.to(torch.float16),
            x.nonzero(),
            torch.cat([x, x]),
            torch.nn.functional.conv2d(x[None, None], x[None, None, :3, :3]),
            torch.arange(10, device="hologram"),
            torch.randperm(10, device="hologram"),
            torch.tensor([1.0, 2.0], device="hologram"),
            *torch.linalg.svd(x),
            *torch._foreach_exp([x, x[0]]),
        ]
        for result in results:
            self.assertEqual(result.device.type, "hologram")
            alias = self.alias(result)
            if alias.numel():
                first = (0,) * alias.dim()
                alias[first] = 1
                self.assertEqual(result[first].item(), 1)
        self.assertEqual(torch.hologram.fallback_report().calls("copied"), 0)

    @pytest.mark.host_memory
    def test_one_twin_per_storage(self):
        for x in (torch.ones(8, device="hologram"), torch.ones(8, device="hologram").sort().values):
            aliases = [self.alias(x), self.alias(x[2:]), self.alias(x.view(2, 4).t())]
            self.assertEqual(len({storage_of(alias) for alias in aliases}), 1)
            self.assertEqual(self.alias(torch.hologram.alias_from_cpu(aliases[0])), aliases[0])

    @pytest.mark.host_memory
    def test_alias_outlives_the_tensor(self):
        for make in (
            lambda: torch.arange(1000.0, device="hologram"),
            lambda: torch.arange(1000.0, device="hologram").sort(descending=True).values.flip(0),
        ):
            alias = torch.hologram.alias_as_cpu(make())
            gc.collect()
            torch.empty(1000, device="hologram").fill_(-1)
            self.assertEqual(alias, torch.arange(1000.0))
            alias += 1  # still writable

    @pytest.mark.host_memory
    def test_tensor_outlives_its_cpu_owner(self):
        memory = numpy.arange(100.0)
        tensor = torch.hologram.alias_from_cpu(torch.from_numpy(memory))
        expected = torch.from_numpy(memory.copy())
        del memory
        gc.collect()
        self.assertEqual(tensor.cpu(), expected)
        self.assertEqual((tensor + tensor).cpu(), expected * 2)

    @pytest.mark.host_memory
    def test_special_tensors(self):
        complex_base = torch.randn(6, dtype=torch.complex64, device="hologram")
        for tensor in (
            complex_base.conj(),
            complex_base.conj().imag,
            torch.empty(0, device="hologram"),
            torch.empty(3, 0, device="hologram"),
            torch.tensor(2.0, device="hologram"),
            torch.ones(1, device="hologram").expand(5),
            torch.ones(3, device="hologram", requires_grad=True),
            torch.ones(3, 4, device="hologram").t()[1:],
            torch.ones(2, dtype=torch.bfloat16, device="hologram"),
        ):
            self.assertEqual(self.alias(tensor), tensor.cpu())

    @pytest.mark.host_memory
    def test_cpu_tensor_that_is_written_on_the_device(self):
        plain = torch.zeros(4)
        torch.hologram.alias_from_cpu(plain).add_(3).sqrt_()
        self.assertEqual(plain, torch.full((4,), 3.0).sqrt())

    def test_complex_half_is_warned_of(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            half = torch.zeros(2, dtype=torch.complex32, device="hologram")
        before = torch.is_warn_always_enabled()
        torch.set_warn_always(True)  # else once in a process
        self.addCleanup(torch.set_warn_always, before)
        for make in (
            lambda: torch.empty(2, dtype=torch.complex32, device="hologram"),
            lambda: torch.zeros(2, dtype=torch.complex32, device="hologram"),
            lambda: torch.empty_strided((2,), (1,), dtype=torch.complex32, device="hologram"),
            lambda: torch.empty(2, device="hologram").to(torch.complex32),
            lambda: torch.zeros_like(torch.empty(2, device="hologram"), dtype=torch.complex32),
            lambda: half.clone(),
            lambda: torch.empty_like(half),
            lambda: half.cpu().to("hologram"),
        ):
            with self.assertWarnsRegex(UserWarning, "ComplexHalf support is experimental"):
                make()

    def test_lazy_clone_is_recorded(self):
        here = torch.arange(4.0, device="hologram")
        torch.hologram.synchronize()
        torch.hologram.reset_stream_stats()
        lazy = torch._lazy_clone(here)
        counts = torch.hologram.stream_stats()
        self.assertEqual((counts["recorded"], counts["executed"]), (1, 0))
        here.add_(1)
        self.assertEqual(lazy.cpu(), torch.arange(4.0))

    @pytest.mark.host_memory
    def test_copy_on_write(self):
        """A lazily cloned CPU tensor is made real before the device looks at it."""
        plain = torch.arange(4.0)
        clone = torch._lazy_clone(plain)
        torch.hologram.alias_from_cpu(clone).mul_(2)
        self.assertEqual(plain, torch.arange(4.0))
        self.assertEqual(clone, torch.arange(4.0) * 2)
        here = torch.arange(4.0, device="hologram")
        lazy = torch._lazy_clone(here)
        lazy.mul_(2)
        self.assertEqual(here.cpu(), torch.arange(4.0))


class TestOutGrows(HologramTestCase):
    """out= of another size: the CPU kernel reallocates, and the device's storage follows."""

    OPERATORS = (
        ("delegated", lambda x, out: torch.sort(x, out=(out, torch.empty_like(x).long()))),
        ("native row", lambda x, out: torch.add(x, x, out=out)),
        ("matrix", lambda x, out: torch.mm(x, x.t(), out=out)),
        ("cat", lambda x, out: torch.cat([x, x], out=out)),
        ("random", lambda x, out: torch.randint(7, 8, x.shape, out=out)),
        ("range", lambda x, out: torch.arange(x.numel(), out=out)),
    )

    @parametrize("name", [name for name, _ in OPERATORS])
    @parametrize("start", [0, 3, 5000])
    def test_storage_follows(self, name, start):
        operator = dict(self.OPERATORS)[name]
        states = {}
        for device in ("cpu", "hologram"):
            torch.manual_seed(1)
            x = torch.arange(64.0).reshape(8, 8).flip(1).to(device)
            out = torch.zeros(start, device=device)
            storage, whole = storage_of(out), out.untyped_storage()
            view = out[:1]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that out= is resized
                operator(x, out)
            self.assertEqual(storage_of(out), storage)
            self.assertEqual(out.data_ptr(), whole.data_ptr())
            if start:
                # The view looks at the storage's new bytes.
                self.assertEqual(view.data_ptr(), out.data_ptr())
                self.assertEqual(view[0].item(), out.flatten()[0].item())
            states[device] = [out.to("cpu", copy=True), whole.nbytes(), out.stride()]
            # Everything goes on over the new bytes.
            out.mul_(2).abs_()
            states[device] += [out.cpu(), out.nan_to_num().sum().cpu()]
            if device == "hologram" and HOST_MEMORY:
                alias = torch.hologram.alias_as_cpu(out)
                self.assertEqual(alias.data_ptr(), out.data_ptr())
                self.assertEqual(alias.untyped_storage().nbytes(), whole.nbytes())
        self.assertEqual(states["hologram"], states["cpu"], rtol=0, atol=0)

    def test_growing_many_times(self):
        out = torch.empty(0, device="hologram")
        storage = storage_of(out)
        before = torch.hologram.memory_allocated()
        for n in (1, 10, 100, 1000, 100_000, 10):
            torch.arange(n, out=out.resize_(0))
            self.assertEqual(out.cpu(), torch.arange(float(n)))
            self.assertEqual(storage_of(out), storage)
        del out
        self.assertEqual(torch.hologram.memory_allocated(), before)

    @pytest.mark.host_memory
    def test_foreign_memory_does_not_grow(self):
        memory = numpy.zeros(4, dtype=numpy.float32)
        plain = torch.from_numpy(memory)
        out = torch.hologram.alias_from_cpu(plain)
        torch.arange(3, out=out.resize_(3))
        self.assertEqual(memory.tolist(), [0, 1, 2, 0])
        for grow in (
            lambda: out.resize_(100),
            lambda: torch.arange(100, out=out),
            lambda: torch.sort(
                torch.rand(100).hologram(), out=(out, torch.ones(0).long().hologram())
            ),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that out= is resized
                with self.assertRaisesRegex(RuntimeError, "not resizable"):
                    grow()
            # torch's CPU tensors keep the new size here, beyond their memory.
            self.assertEqual(out.shape, (3,))
        self.assertEqual(out.cpu(), torch.arange(3.0))

    def test_too_large_to_grow(self):
        out = torch.ones(3, device="hologram")
        for grow in (
            lambda: out.resize_(1 << 50),
            lambda: torch.cat([out[:1].expand(1 << 50)], out=out),
            lambda: out.untyped_storage().resize_(1 << 50),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that out= is resized
                with self.assertRaises(RuntimeError):
                    grow()
            self.assertEqual((out.shape, out.untyped_storage().nbytes()), ((3,), 12))
        self.assertEqual(out.sum().item(), 3)

    def test_integer_out_grows(self):
        out, index = (
            torch.empty(0, dtype=dtype, device="hologram") for dtype in (REAL, torch.long)
        )
        x = torch.rand(30, 7, device="hologram")
        values, indices = torch.max(x, 1, out=(out, index))
        self.assertIs(values, out)
        self.assertIs(indices, index)
        expected = x.cpu().max(1)
        self.assertEqual((out.cpu(), index.cpu()), (expected.values, expected.indices))


class TestResize(HologramTestCase):
    @pytest.mark.host_memory
    def test_storage_resize(self):
        x = torch.arange(8.0, device="hologram")
        storage = x.untyped_storage()
        for nbytes in (64, 16, 0, 32, 1 << 20, 8):
            storage.resize_(nbytes)
            self.assertEqual(storage.nbytes(), nbytes)
            self.assertEqual(storage_of(x), storage._cdata)
            alias = torch.hologram.alias_as_cpu(x[:0])
            self.assertEqual(alias.untyped_storage().nbytes(), nbytes)
        self.assertEqual(x.shape, (8,))
        x.resize_(2)
        x.copy_(torch.tensor([1.0, 2.0]))
        self.assertEqual(x.sort(descending=True).values.cpu(), torch.tensor([2.0, 1.0]))

    def test_prefix_survives(self):
        for make in (
            lambda: torch.arange(8.0, device="hologram"),
            lambda: torch.arange(8.0, device="hologram").sort().values,
        ):
            x = make()
            x.untyped_storage().resize_(400)
            self.assertEqual(x.cpu(), torch.arange(8.0))
            x.untyped_storage().resize_(16)
            self.assertEqual(x[:4].cpu(), torch.arange(4.0))

    def test_free_and_refill(self):
        """What sharded training does to parameters between uses."""
        x = torch.rand(1000, 100, device="hologram", requires_grad=True)
        kept, before = x.detach().cpu(), torch.hologram.memory_allocated()
        for _ in range(3):
            x.untyped_storage().resize_(0)
            self.assertGreaterEqual(before - torch.hologram.memory_allocated(), 400_000)
            x.untyped_storage().resize_(400_000)
            with torch.no_grad():
                x.copy_(kept)
            self.assertEqual((x * 2).sum().cpu(), (kept * 2).sum())
        self.assertEqual(torch.hologram.memory_allocated(), before)

    def test_tensor_resize(self):
        for dtype, sizes in itertools.product(
            (torch.float32, torch.int64, torch.complex64, torch.bool),
            [(3,), (2, 3), (0,), (40, 3), (), (5, 0, 2)],
        ):
            states = {}
            for device in ("cpu", "hologram"):
                x = torch.ones(4, 3, dtype=dtype, device=device)
                view = x[1:]
                x.resize_(sizes).zero_()
                states[device] = [
                    x.shape,
                    x.stride(),
                    x.cpu(),
                    view.cpu(),
                    x.untyped_storage().nbytes(),
                    storage_of(view) == storage_of(x),
                ]
            self.assertEqual(states["hologram"], states["cpu"])

    def test_resize_views_and_formats(self):
        states = {}
        for device in ("cpu", "hologram"):
            x = torch.arange(24.0, device=device)
            view = x[20:]
            view.resize_(10)[4:].zero_()  # beyond the end: the storage grows
            image = torch.empty(0, device=device)
            image.resize_(2, 3, 4, 5, memory_format=torch.channels_last)
            like = torch.empty(0, device=device).resize_as_(x)
            states[device] = [
                view.cpu(),
                view.storage_offset(),
                x.cpu(),
                x.untyped_storage().nbytes(),
                image.stride(),
                like.shape,
            ]
        self.assertEqual(states["hologram"], states["cpu"])

    @pytest.mark.host_memory
    def test_not_allowed(self):
        for device in ("cpu", "hologram"):
            with self.assertRaisesRegex(RuntimeError, "cannot resize variables that require grad"):
                torch.ones(2, device=device, requires_grad=True).resize_(3)
            with self.assertRaisesRegex(RuntimeError, "not resizable"):
                plain = torch.from_numpy(numpy.zeros(3))
                here = plain if device == "cpu" else torch.hologram.alias_from_cpu(plain)
                here.untyped_storage().resize_(100)

    def test_deterministic_fill(self):
        self.addCleanup(torch.use_deterministic_algorithms, False)
        torch.use_deterministic_algorithms(True)
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int32, torch.bool):
            for make in (
                lambda device, dtype=dtype: torch.empty(5, dtype=dtype, device=device),
                lambda device, dtype=dtype: torch.empty_strided(
                    (2, 2), (1, 2), dtype=dtype, device=device
                ),
                lambda device, dtype=dtype: torch.ones(3, dtype=dtype, device=device).resize_(9),
                lambda device, dtype=dtype: torch.ones(3, dtype=dtype, device=device).resize_(2),
                lambda device, dtype=dtype: torch.ones(3, dtype=dtype, device=device).new_empty(4),
                lambda device, dtype=dtype: torch.empty_like(
                    torch.ones(2, 3, dtype=dtype, device=device).t()
                ),
            ):
                self.assertEqual(make("hologram").cpu(), make("cpu"), equal_nan=True)


class TestSet(HologramTestCase):
    def test_set_storage(self):
        states = {}
        for device in ("cpu", "hologram"):
            source = torch.arange(12.0, device=device)
            x = torch.empty(0, device=device)
            x.set_(source.untyped_storage(), 2, (2, 3), (5, 1))
            self.assertEqual(storage_of(x), storage_of(source))
            y = torch.empty(0, device=device).set_(source)
            z = torch.empty(0, device=device).set_(source[3:].view(3, 3).t())
            w = torch.empty(0, device=device).set_(source.untyped_storage())
            e = torch.ones(3, device=device).set_()
            states[device] = [
                (t.to("cpu", copy=True), t.stride(), t.storage_offset()) for t in (x, y, z, w, e)
            ]
            z.cos_()
            states[device].append(source.cpu())
        self.assertEqual(states["hologram"], states["cpu"])

    def test_set_grows_the_storage(self):
        states = {}
        for device in ("cpu", "hologram"):
            source = torch.arange(4.0, device=device)
            x = torch.empty(0, device=device).set_(source.untyped_storage(), 0, (10,), (1,))
            x[4:] = 0
            states[device] = (x.cpu(), source.untyped_storage().nbytes(), source.cpu())
            self.assertEqual(source.data_ptr(), x.data_ptr())
        self.assertEqual(states["hologram"], states["cpu"])

    def test_data(self):
        for device in ("cpu", "hologram"):
            x = torch.ones(3, device=device, requires_grad=True)
            y = torch.arange(5.0, device=device)
            x.data = y
            self.assertEqual(storage_of(x), storage_of(y))
            self.assertTrue(x.requires_grad)
            x.data.mul_(2)
            self.assertEqual(y.cpu(), torch.arange(5.0) * 2)

    def test_swap_tensors(self):
        x, y = torch.ones(3, device="hologram"), torch.zeros(2, 2, device="hologram")
        torch.utils.swap_tensors(x, y)
        self.assertEqual((x.shape, y.sum().item()), ((2, 2), 3))

    def test_storage_of_another_device(self):
        x = torch.ones(3, device="hologram")
        with self.assertRaisesRegex(RuntimeError, "device"):
            x.set_(torch.ones(3).untyped_storage())
        with self.assertRaisesRegex(RuntimeError, "device"):
            torch.ones(3).set_(x.untyped_storage())
        self.assertEqual(x.sum().item(), 3)


class TestStorage(HologramTestCase):
    def test_is_on_the_device(self):
        storage = torch.arange(4.0, device="hologram").untyped_storage()
        self.assertEqual(storage.device, torch.device("hologram", 0))
        self.assertTrue(storage.is_hologram)
        self.assertEqual(storage.nbytes(), 16)
        self.assertEqual(storage.cpu().tolist(), torch.arange(4.0).untyped_storage().tolist())

    def test_copies(self):
        storage = torch.arange(4.0, device="hologram").untyped_storage()
        for clone in (storage.clone(), copy.deepcopy(storage)):
            self.assertNotEqual(clone.data_ptr(), storage.data_ptr())
            self.assertEqual(clone.device, storage.device)
            self.assertEqual(clone.cpu().tolist(), storage.cpu().tolist())
        storage.copy_(torch.ones(4).untyped_storage())
        whole = torch.empty(0, device="hologram").set_(storage)
        self.assertEqual(whole.cpu(), torch.ones(4))
        other = torch.UntypedStorage(16, device="hologram")
        other.copy_(storage)
        self.assertEqual(torch.empty(0, device="hologram").set_(other).cpu(), torch.ones(4))

    def test_deepcopy_keeps_sharing(self):
        x = torch.arange(6.0, device="hologram")
        first, second = copy.deepcopy((x, x[2:]))
        self.assertEqual(storage_of(first), storage_of(second))
        self.assertNotEqual(storage_of(first), storage_of(x))
        first.zero_()
        self.assertEqual((second.sum().item(), x.sum().item()), (0, 15))

    def test_views_after_the_storage_moved(self):
        """All tensors of a storage move with it, whichever of them grew it."""
        x = torch.arange(6.0, device="hologram")
        views = [x[1:3], x.view(2, 3).t(), x.view(torch.int32)]
        before = x.data_ptr()
        x.untyped_storage().resize_(1 << 16)
        self.assertNotEqual(x.data_ptr(), before)
        for view in views:
            self.assertEqual(storage_of(view), storage_of(x))
            offset = view.storage_offset() * view.element_size()
            self.assertEqual(view.data_ptr(), x.data_ptr() + offset)
        x.exp_()
        self.assertEqual(views[0].cpu(), torch.arange(6.0).exp()[1:3])


# What is copied, and ways to copy it.
COPIED = {
    "dense": lambda: torch.randn(3, 4, 5),
    "transposed": lambda: torch.randn(3, 4, 5).transpose(0, 2),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "with gaps": lambda: torch.randn(6, 8)[::2],
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "a number": lambda: torch.tensor(2.5),
    "empty": lambda: torch.empty(0, 3),
    "with a conjugate bit": lambda: torch.randn(3, 4, dtype=COMPLEX).conj(),
}
COPIES = {
    "clone": lambda x: x.clone(),
    "clone, contiguous": lambda x: x.clone(memory_format=torch.contiguous_format),
    "to, the same": lambda x: x.to(x.dtype, copy=True),
    "to bfloat16": lambda x: x.to(torch.bfloat16),
    "to int32": lambda x: x.to(torch.int32),
    "to float64": lambda x: x.double(),
    "to complex": lambda x: x.to(COMPLEX),
    "to bool": lambda x: x.bool(),
    "to, contiguous": lambda x: x.to(torch.float16, memory_format=torch.contiguous_format),
}


class TestCopies(HologramTestCase):
    @parametrize("copied", COPIED)
    @parametrize("how", COPIES)
    def test_as_on_the_cpu(self, copied, how):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of imaginary parts
            source = COPIED[copied]()
            want, have = COPIES[how](source), COPIES[how](source.to("hologram"))
        self.assertEqual(have.dtype, want.dtype)
        if copied != "with a conjugate bit":  # which the copy to the device has resolved
            self.assertEqual(have.stride(), want.stride())
        self.assertEqual(have.cpu(), want, rtol=0, atol=0)

    def test_one_instruction(self):
        x = torch.randn(30, 40, device="hologram").t()
        for copy_of in (torch.clone, torch.Tensor.bfloat16, torch.Tensor.double):
            torch.hologram.flush()
            torch.hologram.reset_fallback_report()
            before = torch.hologram.stream_stats()["recorded"]
            held = copy_of(x)
            self.assertEqual(torch.hologram.stream_stats()["recorded"], before + 1)
            del held
            rows = torch.hologram.fallback_report().rows
            self.assertEqual([(row.kind, row.calls) for row in rows], [("native", 1)])

    def test_another_dtype_beside_it_in_memory(self):
        # Each has the bytes of its own dtype: narrower, the result ends where the source begins;
        # wider, it ends where the source does.
        memory = torch.zeros(9600, dtype=torch.uint8, device="hologram")
        narrow, source = memory[:2400].view(torch.bfloat16), memory[2400:7200].view(torch.float32)
        torch.hologram.flush()
        before = torch.hologram.stream_stats()["recorded"]
        narrow.copy_(source)
        self.assertEqual(torch.hologram.stream_stats()["recorded"], before + 1)
        for device in ("cpu", "hologram"):
            memory = torch.zeros(9600, dtype=torch.uint8, device=device)
            wide, source = memory.view(torch.float64), memory[4800:].view(torch.float32)
            with self.assertRaisesRegex(RuntimeError, "refer to a single memory location"):
                wide.copy_(source)

    def test_it_is_another_tensor(self):
        x = torch.randn(4, 5, device="hologram", requires_grad=True)
        before = x.detach().cpu()
        for copy_of in (lambda t: t.clone(), lambda t: t.to(t.dtype, copy=True)):
            y = copy_of(x)
            with torch.no_grad():
                y.add_(1)
            self.assertEqual(x.detach().cpu(), before, rtol=0, atol=0)
        (grad,) = torch.autograd.grad(x.clone().bfloat16().float().mul(3).sum(), x)
        self.assertEqual(grad.cpu(), torch.full((4, 5), 3.0))


class TestLarge(HologramTestCase):
    @pytest.mark.host_memory
    def test_offsets_beyond_32_bits(self):
        n = 2**31 + 100
        x = torch.empty(
            n, dtype=torch.uint8, device="hologram"
        )  # pages nobody touches cost nothing
        tail = x[-10:]
        tail.copy_(torch.arange(10, dtype=torch.uint8))
        self.assertEqual(tail.storage_offset(), n - 10)
        self.assertEqual(x[n - 3].item(), 7)
        self.assertEqual(tail.flip(0).sort().values.cpu(), torch.arange(10, dtype=torch.uint8))
        self.assertEqual(x[2**31 + 90 :].sum().item(), 45)
        tail.fill_(3)
        self.assertEqual(torch.hologram.alias_as_cpu(x)[-10:].tolist(), [3] * 10)

    def test_more_elements_than_the_fast_path_takes(self):
        n = 3_000_001
        x = torch.arange(n, dtype=torch.float32) % 1000
        y = x.hologram()
        self.assertEqual((y + y).cpu(), x + x, rtol=0, atol=0)
        self.assertEqual(y.mul_(3).neg_().cpu(), -(x * 3), rtol=0, atol=0)
        self.assertEqual(y.relu().sum().item(), 0)


instantiate_parametrized_tests(TestViews)
instantiate_parametrized_tests(TestCopies)
instantiate_parametrized_tests(TestOutGrows)

if __name__ == "__main__":
    run_tests()
