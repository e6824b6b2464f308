"""Matrix products of the CUDA backend without a GPU: the library of test/cuda/cublas_lt."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from common import HologramTestCase
from cuda_driver import LATE, build_driver, run_on_cuda
from torch.testing._internal.common_utils import run_tests

# What programs may use.
LIBRARY = """
import ctypes
from torch_hologram import _C

TF32, F32, F64 = 77, 68, 70  # what is computed in

def flush():
    for device in range(torch.hologram.device_count()):
        torch.hologram.flush(device)

def products():
    '''How many the library was given, and how many it had to be described.'''
    flush()
    counts = (ctypes.c_uint64 * 2)()
    ctypes.CDLL(_C.__file__).hologram_cuda_products(counts)
    return tuple(counts)

def last():
    '''Of the last product: what it was computed in, which reductions it may have, its epilogue.'''
    flush()
    numbers = (ctypes.c_int64 * 4)()
    ctypes.CDLL("libcublasLt.so.13").simulated_cublas_lt(numbers)
    return tuple(numbers)[:3]

def served(operator, kind):
    rows = torch.hologram.fallback_report()
    return sum(row.calls for row in rows if (row.operator, row.kind) == (operator, kind))

def check(function, *tensors, by_library=1, device="hologram"):
    '''Of copies on the device, which keep their strides, the result is that of the CPU.'''
    def copy(x):
        kept = torch.empty(x.untyped_storage().nbytes() // x.element_size(), dtype=x.dtype,
                           device=device)
        kept.copy_(torch.as_strided(x, kept.shape, (1,), 0))
        return kept.as_strided(x.shape, x.stride(), x.storage_offset())
    given = [copy(x) for x in tensors]
    expected = function(*(x.clone(memory_format=torch.preserve_format) for x in tensors))
    before = products()[0]
    result = function(*given)
    assert products()[0] - before == by_library, (products(), before)
    assert result.dtype == expected.dtype and result.shape == expected.shape
    tolerance = dict(rtol=2e-2, atol=2e-2) if result.element_size() == 2 else {}
    torch.testing.assert_close(result.cpu(), expected, equal_nan=True, **tolerance)
    return result

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
torch.manual_seed(0)
"""


def run_products(program: str, **env: object) -> str:
    return run_on_cuda(LIBRARY + textwrap.dedent(program), **env)


class TestProducts(HologramTestCase):
    def test_layouts(self):
        run_products(
            """
            def layouts(rows, columns, dtype):
                x = torch.randn(rows, columns).to(dtype)
                yield x
                yield torch.randn(columns, rows).to(dtype).t()
                yield torch.randn(rows, columns + 3).to(dtype)[:, 2:-1]
                yield torch.randn(columns + 1, rows + 5).to(dtype).t()[1:rows + 1, :columns]
                yield torch.randn(rows * 2, columns * 3).to(dtype)[::2, ::3]
                yield x[:1].expand(rows, columns)
                yield x[:, :1].expand(rows, columns)
            for dtype in FLOATS:
                for m, k, n in ((5, 7, 3), (1, 4, 6), (6, 4, 1), (1, 5, 1), (4, 1, 3), (1, 1, 1)):
                    for a in layouts(m, k, dtype):
                        for b in layouts(k, n, dtype):
                            check(torch.mm, a, b)
            x = torch.randn(6, 6)
            check(lambda x: x @ x.t(), x)
            assert served("aten::mm", "native") == products()[0]
            assert served("aten::mm", "delegated") == served("aten::mm", "copied") == 0
            """
        )

    def test_batches(self):
        run_products(
            """
            for dtype in FLOATS:
                a, b = torch.randn(4, 5, 6).to(dtype), torch.randn(4, 6, 3).to(dtype)
                c = torch.randn(4, 5, 3).to(dtype)
                check(torch.bmm, a, b)
                check(torch.bmm, a.transpose(0, 1).contiguous().transpose(0, 1), b)
                check(torch.bmm, a.transpose(1, 2).contiguous().transpose(1, 2), b)
                check(torch.bmm, a[:1].expand(4, 5, 6), b)
                check(torch.bmm, a[::2], b[1::2])
                check(torch.bmm, a[:1], b[:1])
                check(torch.bmm, a[..., ::2], b[:, ::2])
                check(torch.baddbmm, c, a, b)
                check(torch.baddbmm, c[0], a, b)
                check(torch.baddbmm, c[0, 0], a, b)
                check(torch.baddbmm, c[:, :, :1], a, b)
                check(lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=-2), c, a, b)
                check(lambda c, a, b: c.baddbmm_(a, b, beta=2), c, a, b)
                check(lambda c, a, b: torch.bmm(a, b, out=c), c, a, b)
                check(lambda c, a, b: torch.baddbmm(c * 2, a, b, out=c), c, a, b)
                check(lambda a, b: torch.bmm(a, b, out=a.new_empty(4, 3, 5).transpose(1, 2)), a, b)
            check(torch.matmul, torch.randn(2, 3, 4, 5), torch.randn(3, 5, 6))
            check(torch.matmul, torch.randn(2, 3, 4, 5), torch.randn(5, 6))
            """
        )

    def test_epilogues(self):
        """Under contraction a gelu with tanh that alone reads a product is computed with it."""
        run_products(
            """
            from torch.nn import functional as F
            BIAS, GELU, NONE = 4, 32, 1
            def gelu(x):
                return F.gelu(x, approximate="tanh")
            def layer(x, w, b):
                return gelu(F.linear(x, w, b))
            def both(x, w, b):
                y = F.linear(x, w, b)
                return gelu(y) + y
            operands = torch.randn(5, 7), torch.randn(3, 7), torch.randn(3)
            check(layer, *operands)
            assert last()[2] == BIAS, last()
            torch.hologram.set_float_contraction(True)
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                x, w, b = (t.to(dtype) for t in operands)
                for _ in range(4):
                    check(layer, x, w, b)
                    assert last()[2] == BIAS | GELU, last()
                check(lambda x, w: gelu(x @ w.t()), x, w)
                assert last()[2] == GELU, last()
                check(lambda x, w: gelu(x.expand(2, 5, 7) @ w.t().expand(2, 7, 3)), x, w)
                assert last()[2] == GELU, last()
                check(lambda x, w: gelu(torch.addmm(x[:, :3] * 2, x, w.t(), beta=0.5)), x, w)
                assert last()[2] == GELU, last()
                check(lambda x, w, b: layer(layer(x, w, b), w[:, :3], b), x, w, b, by_library=2)
                assert last()[2] == BIAS | GELU, last()
                # Others read the product, or something else is computed.
                check(both, x, w, b)
                assert last()[2] == BIAS, last()
                check(lambda x, w, b: gelu(F.linear(x, w, b)).float(), x, w, b)
                check(lambda x, w, b: gelu(F.linear(x, w, b).t()), x, w, b)
                check(lambda x, w, b: gelu(F.linear(x, w, b)[1:]), x, w, b)
                assert last()[2] == BIAS, last()
                check(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b)
                assert last()[2] == BIAS, last()
                check(lambda x, w, b: gelu(F.linear(x, w, b) * 2), x, w, b)
                assert last()[2] == BIAS, last()
                check(lambda x, w, b: gelu(F.linear(x, w, b)) * 2, x, w, b)
                assert last()[2] == BIAS, last()
            double = [t.double() for t in operands]
            check(layer, *double)
            assert last()[2] == BIAS
            # What a backward reads is there.
            x, w, b = (t.to("hologram").requires_grad_() for t in operands)
            layer(x, w, b).sum().backward()
            ours = x.grad.cpu(), w.grad.cpu(), b.grad.cpu()
            x, w, b = (t.clone().requires_grad_() for t in operands)
            layer(x, w, b).sum().backward()
            torch.testing.assert_close(ours, (x.grad, w.grad, b.grad))
            """
        )

    def test_epilogues_that_are_refused(self):
        """Without an algorithm, or where it is refused after all, the gelu is a pass of its own."""
        program = """
            from torch.nn import functional as F
            torch.hologram.set_float_contraction(True)
            operands = torch.randn(5, 7), torch.randn(3, 7), torch.randn(3)
            for _ in range(4):
                check(lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), *operands)
                assert last()[2] == 4, last()
            """
        run_products(program, HOLOGRAM_TEST_CUBLAS_LT_NO_ALGORITHM=2)
        run_products(program, HOLOGRAM_TEST_CUBLAS_LT_REFUSED=1)

    def test_sums(self):
        run_products(
            """
            EPILOGUE_OF_BIAS = 4
            for dtype in FLOATS:
                a, b = torch.randn(5, 7).to(dtype), torch.randn(7, 3).to(dtype)
                c = torch.randn(5, 3).to(dtype)
                for self in (c[0], c[:1], torch.randn(2, 9).to(dtype)[1, 3:6]):
                    for alpha in (1, -0.5):
                        check(lambda c, a, b: torch.addmm(c, a, b, alpha=alpha), self, a, b)
                        assert last()[2] == EPILOGUE_OF_BIAS
                turned, wide = torch.randn(3, 5).to(dtype).t(), torch.randn(9, 8).to(dtype)
                for self in (c, c[0], c[:, :1], c[0, :1], c[0, 0], turned, wide[2:7, 4:7],
                             wide[:5, :6:2]):
                    check(lambda c, a, b: torch.addmm(c, a, b, beta=0.25, alpha=3), self, a, b)
                    check(lambda c, a, b: torch.addmm(c, a, b, out=a.new_empty(5, 3)), self, a, b)
                    check(lambda c, a, b: torch.addmm(c, a, b, out=a.new_empty(3, 5).t()),
                          self, a, b)
                    check(lambda c, a, b: torch.addmm(c, a, b, out=a.new_empty(10, 4)[::2, 1:]),
                          self, a, b)
                check(lambda c, a, b: c.addmm_(a, b), c, a, b)
                check(lambda c, a, b: c.addmm_(a, b, beta=-1), turned, a, b)
                check(lambda c, a, b: torch.addmm(c, a, b, out=c), c, a, b)
                check(lambda c, a, b: torch.mm(a, b, out=c), c, a, b)
                check(torch.addmm, c[:, 0], a, b[:, :1].expand(7, 5))
                check(lambda c, a, b: torch.addmm(c, a, b), c[:1, :1], a, b[:, :1])
                # What a factor of zero leaves out may be anything.
                nan = torch.full((5, 3), float("nan"), dtype=dtype)
                check(lambda c, a, b: torch.addmm(c, a, b, beta=0), nan, a, b)
                check(lambda c, a, b: torch.addmm(c, a, b, beta=0), nan[0], a, b)
                check(lambda c, a, b: c.addmm_(a, b, beta=0), nan, a, b)
                assert check(torch.addmm, nan, a, b).isnan().all()
            """
        )

    def test_what_is_empty(self):
        run_products(
            """
            e = torch.empty
            for a, b in ((e(3, 0), e(0, 2)), (e(0, 3), e(3, 2)), (e(3, 2), e(2, 0))):
                assert check(torch.mm, a, b, by_library=0).eq(0).all()
                c = torch.randn(a.shape[0], b.shape[1])
                check(torch.addmm, c, a, b, by_library=0)
                check(lambda c, a, b: torch.addmm(c, a, b, beta=2), c, a, b, by_library=0)
                nan = torch.full_like(c, float("nan"))
                check(lambda c, a, b: torch.addmm(c, a, b, beta=0), nan, a, b, by_library=0)
                check(torch.bmm, a[None], b[None], by_library=0)
            """
        )

    def test_what_torch_refuses(self):
        """With its words, and nothing is computed."""
        run_products(
            """
            def raised(call, device):
                try:
                    call(device)
                except Exception as error:
                    return type(error), str(error)
                raise AssertionError("nothing was raised")
            def ones(device, *sizes, dtype=torch.float32):
                return torch.ones(*sizes, dtype=dtype, device=device)
            wrong = [
                lambda d: torch.mm(ones(d, 2, 3), ones(d, 2, 3)),
                lambda d: torch.mm(ones(d, 2, 3), ones(d, 3)),
                lambda d: torch.mm(ones(d, 2, 3), ones(d, 3, 2, dtype=torch.float64)),
                lambda d: torch.bmm(ones(d, 2, 2, 3), ones(d, 3, 3, 2)),
                lambda d: torch.bmm(ones(d, 2, 3), ones(d, 2, 3)),
                lambda d: torch.addmm(ones(d, 4), ones(d, 2, 3), ones(d, 3, 5)),
                lambda d: torch.addmm(ones(d, 5).double(), ones(d, 2, 3), ones(d, 3, 5)),
                lambda d: ones(d, 5).addmm_(ones(d, 2, 3), ones(d, 3, 5)),
                lambda d: torch.baddbmm(ones(d, 7), ones(d, 2, 2, 3), ones(d, 2, 3, 5)),
                lambda d: torch.mm(ones(d, 2, 3), ones(d, 3, 2), out=ones(d, 2, 2).double()),
            ]
            for call in wrong:
                assert raised(call, "hologram") == raised(call, "cpu"), raised(call, "hologram")
            assert products() == (0, 0)
            """
        )

    def test_results_that_are_given(self):
        """Of another size they are resized; of memory that an operand has torch decides."""
        run_products(
            """
            a, b = torch.randn(4, 4), torch.randn(4, 4)
            check(lambda a, b: torch.mm(a, b, out=a.new_empty(0)), a, b, by_library=0)
            x, y = a.to("hologram"), b.to("hologram")
            for call in (lambda x, y: torch.mm(x, y, out=x),
                         lambda x, y: torch.mm(x, x.t(), out=x.t()),
                         lambda x, y: torch.addmm(x.t(), x, y, out=x),
                         lambda x, y: torch.mm(x, y, out=x[:1].expand(4, 4))):
                try:
                    expected = call(a.clone(), b)
                except RuntimeError as error:
                    assert message(lambda: call(x.clone(), y)) == str(error)
                else:
                    torch.testing.assert_close(call(x.clone(), y).cpu(), expected)
            assert products()[0] == 0
            """
        )

    def test_other_types(self):
        run_products(
            """
            for dtype in (torch.int64, torch.int32, torch.uint8, torch.complex64, torch.complex128):
                a, b = (torch.randn(3, 3) * 9).to(dtype), (torch.randn(3, 3) * 9).to(dtype)
                check(torch.mm, a, b, by_library=0)
                check(torch.addmm, a, a, b, by_library=0)
            a = torch.randn(3, 3, dtype=torch.complex64)
            check(lambda a: torch.mm(a.conj(), a.real.to(a.dtype)), a, by_library=0)
            """
        )

    def test_descriptions_are_kept(self):
        run_products(
            """
            x, y = torch.randn(8, 8, device="hologram"), torch.randn(8, 8, device="hologram")
            for _ in range(5):
                x @ y
            assert products() == (5, 1), products()
            x @ y.t()
            assert products() == (6, 2)
            z = torch.randn(80, device="hologram")
            z[1:65].view(8, 8) @ y  # less aligned
            assert products() == (7, 3)
            bias = torch.randn(2, 8, device="hologram")
            one = torch.addmm(bias[0], x, y)
            other = torch.addmm(bias[1], x, y)
            assert products() == (9, 4) or products() == (9, 5)  # by the alignment of the second
            torch.testing.assert_close((one - other).cpu(), (bias[0] - bias[1]).cpu().expand(8, 8),
                                       atol=1e-5, rtol=0)
            # No more than so many.
            live = lambda: (numbers := (ctypes.c_int64 * 4)(),
                            ctypes.CDLL("libcublasLt.so.13").simulated_cublas_lt(numbers),
                            numbers[3])[-1]
            wide = torch.ones(2, 2000, device="hologram")
            for n in range(1, 1500):
                wide[:, :2] @ wide[:, :n]
            assert live() <= 5 * 1024 + 1, live()
            before = products()[1]
            x @ y
            assert products()[1] == before + 1  # it was the first to be let go of
            """
        )

    def test_order(self):
        """Behind what is recorded on its operands, and before what reads the result."""
        run_products(
            """
            x = torch.ones(64, 64, device="hologram")
            for _ in range(4):
                y = (x + 1) @ (x * 2) / 64  # 4
                x.mul_(2)
                y = y @ x - y.sum() / 32
                x.fill_(1)
                assert y.eq(4 * 2 * 64 - 4 * 128).all()
            other = torch.hologram.Stream()
            with torch.hologram.stream(other):
                y = x @ x
                done = other.record_event()
            torch.hologram.current_stream().wait_event(done)
            z = y + 1
            del y
            w = torch.zeros(64, 64, device="hologram")
            assert z.eq(65).all() and (w @ x).eq(0).all()
            torch.hologram.set_sync_debug_mode("error")  # nobody waits
            w = (x * 2) @ (x + 1) + 1
            torch.hologram.set_sync_debug_mode("default")
            assert w.eq(257).all()
            """,
            **LATE,
        )

    def test_threads_and_streams(self):
        run_products(
            """
            x = torch.eye(32, device="hologram")
            def work(number):
                stream = torch.hologram.Stream()
                with torch.hologram.stream(stream):
                    y = torch.full((32, 32), float(number), device="hologram")
                    for _ in range(20):
                        y = torch.addmm(y[0], x, y, alpha=0.5, beta=0.5)
                        y = y @ x
                    assert y.eq(number).all()
            in_threads(work, 4)
            assert products()[0] == 4 * 40
            """
        )

    def test_two_devices(self):
        run_products(
            """
            a, b = torch.randn(5, 4), torch.randn(4, 3)
            for device in ("hologram:0", "hologram:1"):
                check(torch.mm, a, b, device=device)
                check(torch.addmm, b[0], a, b, device=device)
            """
        )

    def test_gradients(self):
        run_products(
            """
            torch.manual_seed(0)
            nn = torch.nn
            model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
            x = torch.randn(2, 5, 6)
            def step(model, x):
                model.zero_grad()
                x = x.detach().requires_grad_()
                model(x).square().sum().backward()
                return [x.grad, *(p.grad for p in model.parameters())]
            expected = [g.clone() for g in step(model, x)]
            model = model.to("hologram")
            before = products()[0]
            actual = step(model, x.to("hologram"))
            assert products()[0] - before == 6  # two forward, two for each one backward
            for mine, theirs in zip(actual, expected, strict=True):
                torch.testing.assert_close(mine.cpu(), theirs)
            """
        )


class TestSwitches(HologramTestCase):
    def test_switches_are_those_of_torch(self):
        run_products(
            """
            ours, theirs = torch.hologram.backends, torch.backends
            assert not ours.matmul.allow_tf32 and ours.cudnn.allow_tf32
            assert ours.matmul.allow_bf16_reduced_precision_reduction
            assert ours.matmul.allow_fp16_reduced_precision_reduction
            assert torch.hologram.is_tf32_supported()
            x = torch.full((4, 4), 1 + 2.0**-12, device="hologram")

            def computed(x=x):
                result = x @ x
                torch.hologram.synchronize()
                return last()[0]
            assert computed() == F32 and (x @ x)[0, 0].item() > 4
            ours.matmul.allow_tf32 = True
            assert theirs.cuda.matmul.allow_tf32 and ours.matmul.fp32_precision == "tf32"
            assert computed() == TF32 and (x @ x)[0, 0].item() == 4
            assert computed(x.double()) == F64 and computed(x.bfloat16()) == F32
            ours.matmul.allow_tf32 = False
            assert computed() == F32
            for precision, expected in (("high", TF32), ("highest", F32), ("medium", TF32)):
                torch.set_float32_matmul_precision(precision)
                assert computed() == expected, precision
            torch.set_float32_matmul_precision("highest")
            ours.matmul.fp32_precision = "tf32"
            assert computed() == TF32
            ours.matmul.fp32_precision = "ieee"
            assert computed() == F32
            """
        )

    def test_reductions(self):
        run_products(
            """
            ALL, WIDE, NONE = 7, 2, 0
            matmul = torch.hologram.backends.matmul
            def allowed(dtype):
                x = torch.ones(4, 4, dtype=dtype, device="hologram")
                (x @ x).cpu()
                return last()[1]
            for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
                switch = f"allow_{name}_reduced_precision_reduction"
                assert allowed(dtype) == ALL
                setattr(matmul, switch, False)
                assert allowed(dtype) == WIDE and allowed(torch.float32) == ALL
                setattr(matmul, switch, (False, False))
                assert allowed(dtype) == NONE
                setattr(matmul, switch, True)
                assert allowed(dtype) == ALL
            """
        )

    def test_what_torch_alone_may_do(self):
        """Determinism, which its kernels check, and sums in half precision."""
        run_products(
            """
            a, b = torch.randn(3, 4), torch.randn(4, 5)
            torch.use_deterministic_algorithms(True)
            check(torch.mm, a, b, by_library=0)
            torch.use_deterministic_algorithms(False)
            check(torch.mm, a, b)
            torch.hologram.backends.matmul.allow_fp16_accumulation = True
            check(torch.mm, a.half(), b.half(), by_library=0)
            check(torch.mm, a, b)
            """
        )


class TestFaults(HologramTestCase):
    def test_no_algorithm(self):
        # The one is known when the product is recorded, the other when it is enqueued: the CPU's
        # kernel computes that.
        for fault, native in (("NO_ALGORITHM", 1), ("REFUSED", 2)):
            run_products(
                f"""
                a, b = torch.randn(3, 4), torch.randn(4, 5)
                for _ in range(2):  # the library is not asked again
                    check(torch.mm, a, b, by_library=0)
                assert products() == (0, 1)
                check(torch.mm, b, b.t())
                check(lambda a, b: torch.mm(a, b, out=a.new_empty(3, 5)), a, b, by_library=0)
                assert served("aten::mm", "native") == {native} and served("aten::mm", "copied") > 0
                """,
                **{f"HOLOGRAM_TEST_CUBLAS_LT_{fault}": 1},
            )

    def test_a_product_that_fails(self):
        run_products(
            """
            x = torch.ones(3, 4, device="hologram")
            y = torch.ones(4, 5, device="hologram")
            text = message(lambda: (x @ y).cpu())
            assert text.startswith(
                "CUDA device 0: a product of 3x4 and 4x5: cublasLtMatmul failed: the GPU "
                "program failed to execute"), text
            assert (x @ y).eq(4).all()
            """,
            HOLOGRAM_TEST_CUBLAS_LT_FAILED=1,
        )

    def test_no_memory_to_work_in(self):
        """The library is asked for what needs none."""
        run_products(
            """
            taken = torch.empty(40 << 20, dtype=torch.uint8, device="hologram")
            a, b = torch.randn(3, 4), torch.randn(4, 5)
            check(torch.mm, a, b)
            assert products() == (1, 2), products()
            del taken
            torch.hologram.empty_cache()
            check(torch.mm, a, b)
            assert products() == (2, 2)
            """,
            HOLOGRAM_TEST_CUDA_MEGABYTES=64,
        )

    def test_without_the_library(self):
        for variables, reason in (
            (
                {"HOLOGRAM_CUBLAS_LT": "/nowhere/libcublasLt.so.13"},
                "cannot open shared object file",
            ),
            ({"HOLOGRAM_CUBLAS_LT": "libcuda.so.1"}, "no function cublasLtGetVersion"),
            ({"HOLOGRAM_TEST_CUBLAS_LT_VERSION": 110900}, "version 11.9.0; 12.0.0 or newer"),
            ({"HOLOGRAM_TEST_CUBLAS_LT_CREATE": 1}, "the library was not initialized"),
        ):
            run_products(
                f"""
                import warnings
                warnings.simplefilter("error")
                a, b = torch.randn(3, 4), torch.randn(4, 5)
                check(torch.mm, a, b, by_library=0)
                check(torch.addmm, b[0], a, b, by_library=0)
                check(lambda b, a: torch.addmm(a, a, b), b[:, :4], a, by_library=0)
                check(torch.bmm, a[None], b[None], by_library=0)
                check(torch.baddbmm, b[0], a[None], b[None], by_library=0)
                text = torch.hologram.get_device_properties().products
                assert text.startswith("cublasLt cannot be used: ") and {reason!r} in text, text
                """,
                **variables,
            )

    def test_info(self):
        def info(**variables: str) -> str:
            return subprocess.run(
                [sys.executable, "-W", "error", "-m", "torch_hologram", "info"],
                env=dict(os.environ) | build_driver() | {"HOLOGRAM_BACKENDS": "cuda"} | variables,
                capture_output=True,
                text=True,
                check=True,
            ).stdout

        self.assertIn("matrix products: cublasLt 13.0.0", info())
        text = info(HOLOGRAM_CUBLAS_LT="/nowhere/libcublasLt.so.13")
        self.assertIn(
            "matrix products: cublasLt cannot be used: HOLOGRAM_CUBLAS_LT: /nowhere", text
        )


if __name__ == "__main__":
    run_tests()
