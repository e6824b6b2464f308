"""The Metal backend, run without a Mac: its own code, on the runtime of test/metal."""

from __future__ import annotations

import struct
import sys
import unittest
from pathlib import Path

import numpy as np
from common import ROOT, HologramTestCase
from metal_device import run_on_metal

sys.path.insert(0, str(Path(__file__).parent / "gpu"))

from emulator import compile_library


class TestDevice(HologramTestCase):
    def test_what_it_is(self):
        run_on_metal(
            """
            its = torch.hologram.get_device_properties(0)
            assert its.backend == "metal" and its.name == torch.hologram.get_device_name(), its
            assert its.host_addressable and its.asynchronous and its.isa == "msl3.1", its
            assert its.products == "matrices of simdgroups" and its.total_memory > 1 << 30, its
            assert torch.hologram.device_count() == 1
            """
        )

    def test_beside_the_cpu(self):
        run_on_metal(
            """
            x = torch.randn(100, device="hologram:0")
            y = x.to("hologram:1")
            assert torch.hologram.get_device_properties(1).backend == "cpu"
            assert torch.equal((x * 2).cpu(), (y * 2).cpu())
            assert torch.equal((y + 1).to("hologram:0").cpu(), y.cpu() + 1)
            """,
            "metal,cpu",
        )

    def test_memory_is_the_hosts(self):
        """NumPy and torch's CPU kernels use it where it lies, when what came before is done."""
        run_on_metal(
            """
            x = torch.arange(1000.0, device="hologram")
            address = x.data_ptr()
            for _ in range(20):
                x += 1
            shared = torch.hologram.alias_as_cpu(x)
            assert shared.data_ptr() == address and shared[0] == 20
            shared[0] = 5
            assert x[0].item() == 5 and (x + 1)[:2].tolist() == [6, 22]
            torch.hologram.reset_fallback_report()
            inverse = torch.linalg.inv(torch.eye(3, device="hologram") * 2)
            assert torch.equal(inverse.cpu(), torch.eye(3) / 2)
            assert "aten::linalg_inv_ex" in (
                torch.hologram.fallback_report().operators("delegated")
            )
            """,
            HOLOGRAM_TEST_METAL_DELAY=2000,
        )

    def test_kernels_of_the_cpu_for_what_metal_lacks(self):
        """Double precision and complex numbers are computed on the host, and counted."""
        run_on_metal(
            """
            x = torch.linspace(0.1, 3, 500, dtype=torch.float64)
            before = counts()
            y = torch.exp(x.to("hologram")) * 3 + x.to("hologram")
            torch.testing.assert_close(y.cpu(), torch.exp(x) * 3 + x)
            after = counts()
            assert after["groups.cpu"] > before["groups.cpu"], after
            assert after["groups.cold"] == before["groups.cold"], after
            z = torch.complex(x, -x).to("hologram")
            torch.testing.assert_close((z * z + 1).cpu(), torch.complex(x, -x) ** 2 + 1)
            """
        )

    def test_memory_of_others(self):
        """What Metal has no buffer of is computed by the CPU's code."""
        run_on_metal(
            """
            others = torch.randn(64, 64)
            x = torch.hologram.alias_from_cpu(others)
            before = counts()
            assert torch.equal((x + 1).cpu(), others + 1)
            assert counts()["groups.cpu"] > before["groups.cpu"]
            torch.testing.assert_close((x @ x).cpu(), others @ others)
            """
        )

    def test_what_is_beyond_a_segment(self):
        """Nobody may touch it: a kernel that would, a signal ends."""
        run_on_metal(
            """
            import ctypes, os, signal
            x = torch.ones(5 << 20, device="hologram")
            address = x.data_ptr() + x.nbytes
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)
                while True:
                    ctypes.memset(address, 0, 1)
                    address += 4096
            assert os.waitpid(child, 0)[1] == signal.SIGSEGV
            assert (x + 1).sum().item() == 2 * (5 << 20)
            """
        )


class TestKernels(HologramTestCase):
    def test_products(self):
        """Rows, columns, batches, slices, biases, in each dtype that there are kernels for."""
        run_on_metal(
            """
            import itertools
            torch.manual_seed(0)
            torch.hologram.reset_fallback_report()
            shapes = [(1, 1, 1), (33, 17, 50), (64, 32, 16), (5, 70, 3), (40, 31, 100)]
            dtypes = [torch.float32, torch.float16, torch.bfloat16]
            for dtype, (m, n, k) in itertools.product(dtypes, shapes):
                for left, right in itertools.product((False, True), repeat=2):
                    a, b = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
                    a = a.t().contiguous().t() if left else a
                    b = b.t().contiguous().t() if right else b
                    bias = torch.randn(n, dtype=dtype)
                    c = torch.randn(m, n, dtype=dtype)
                    A, B = a.to("hologram"), b.to("hologram")
                    for mine, wanted in (
                        (A @ B, a @ b),
                        (torch.addmm(bias.to("hologram"), A, B), torch.addmm(bias, a, b)),
                        (torch.addmm(c.to("hologram"), A, B, beta=0.5, alpha=2),
                         torch.addmm(c, a, b, beta=0.5, alpha=2)),
                        (torch.bmm(A.expand(3, m, k), B.expand(3, k, n)),
                         (a @ b).expand(3, m, n)),
                    ):
                        torch.testing.assert_close(mine.cpu(), wanted)
            own = torch.hologram.fallback_report().operators("native")
            assert own["aten::mm"] == own["aten::bmm"] == 60, own
            # Of f64 there is none.
            x = torch.randn(8, 8, dtype=torch.float64)
            torch.testing.assert_close((x.to("hologram") @ x.to("hologram")).cpu(), x @ x)
            """
        )

    def test_compiled_kernels_have_the_bits_of_the_cold_ones(self):
        out = run_on_metal(
            """
            import torch.nn.functional as F
            def compute(x, y):
                z = F.gelu(x * y + 1) - torch.tanh(y)
                return (z.bfloat16() * 2).float() + F.softmax(x, -1), z.sum(0), z.amax(1)
            torch.manual_seed(0)
            x, y = torch.randn(40, 257).to("hologram"), torch.randn(40, 257).to("hologram")
            first = [t.clone() for t in compute(x, y)]
            torch.hologram.synchronize()
            assert counts()["kernels.compiled"] == 0
            for _ in range(6):
                last = compute(x, y)
                torch.hologram.synchronize()
            after = counts()
            assert after["kernels.compiled"] > 0 and after["kernels.failed"] == 0, after
            assert after["groups.emitted"] > 0 and after["groups.cold"] > 0, after
            for one, other in zip(first, last, strict=True):
                assert torch.equal(one.cpu(), other.cpu())
            print("equal")
            """,
            HOLOGRAM_COMPILE="wait",
        )
        self.assertEqual(out, "equal\n")

    def test_a_kernel_that_does_not_compile(self):
        """The cold one goes on with it; a warning names it once."""
        run_on_metal(
            """
            x = torch.randn(1000, device="hologram")
            wanted = None
            for _ in range(6):
                y = torch.sigmoid(x) * 3 - x
                wanted = y.cpu() if wanted is None else wanted
                assert torch.equal(y.cpu(), wanted)
            after = counts()
            assert after["kernels.failed"] == 1 and after["kernels.compiled"] == 0, after
            """,
            HOLOGRAM_COMPILE="wait",
            # The first text is that of the cold kernels.
            HOLOGRAM_TEST_METAL_COMPILE_ERROR="2,3,4,5,6,7,8,9",
        )


# Attention on the device beside the CPU's. The tolerance is that of check_out_and_grad() in torch's
# test_transformers.py: float64 is the judge, and a result may be off by 1e-5, or by five times what
# the reference is in the same dtype. That is torch's kernel of the same operator here, for the CPU,
# which rounds probabilities to half types as well; there it is a composition, which does not.
# float32 has to be as close to the exact numbers as torch's have to be anywhere, too.
ATTENTION = """
import itertools
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

OPERATOR = "aten::_scaled_dot_product_flash_attention_for_cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

def attend(tensors, mask, of_out, **options):
    tensors = [t.detach().requires_grad_() for t in tensors]
    out = F.scaled_dot_product_attention(*tensors, attn_mask=mask, **options)
    return [out.detach(), *torch.autograd.grad(out, tensors, of_out)]

def on(device, tensors, dtype=None):
    # A copy keeps the strides.
    return [t if t is None else t.to(device=device, dtype=dtype or t.dtype) for t in tensors]

def check_attention(tensors, mask=None, **options):
    torch.hologram.reset_fallback_report()
    of_out = torch.randn_like(tensors[0])
    cases = [*tensors, mask, of_out]
    def run(device, dtype=None):
        *mine, its_mask, its_of_out = on(device, cases, dtype)
        return attend(mine, its_mask, its_of_out, **options)
    mine, wanted = run("hologram"), run("cpu")
    report = torch.hologram.fallback_report()
    own, others = report.operators("native"), report.operators("delegated")
    assert (own[OPERATOR], own[OPERATOR + "_backward"]) == (1, 1), own
    assert not any("attention" in name for name in others), others
    with sdpa_kernel(SDPBackend.MATH):
        exact = run("cpu", torch.float64)
    for one, cpu, truth in zip(mine, wanted, exact, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (cpu.shape, cpu.stride(), cpu.dtype)
        error = (one.cpu().double() - truth).abs().max()
        allowed = max(1e-5, 5 * (cpu.double() - truth).abs().max())
        assert error <= allowed, (tensors[0].shape, tensors[1].shape, options, error, allowed)
        if one.dtype is torch.float32:  # what torch computes may be further off, by the processor
            torch.testing.assert_close(one.cpu(), truth.float())

def qkv(dtype, batch, heads, queries, keys, size, key_heads=None):
    rows = ((heads, queries), (key_heads or heads, keys), (key_heads or heads, keys))
    return [torch.randn(batch, *its, size, dtype=dtype) for its in rows]

torch.manual_seed(0)
"""


class TestAttention(HologramTestCase):
    def test_lengths(self):
        """Those that are no multiples of a block, too, forward and backward."""
        run_on_metal(
            ATTENTION
            + """
for dtype, queries, keys in itertools.product(DTYPES, (1, 7, 33, 100), (1, 7, 33, 100)):
    check_attention(qkv(dtype, 1, 2, queries, keys, 16))
    check_attention(qkv(dtype, 1, 2, queries, keys, 16), is_causal=True)
"""
        )

    def test_head_sizes(self):
        run_on_metal(
            ATTENTION
            + """
for dtype, size in itertools.product(DTYPES, (1, 8, 20, 31, 64, 65, 96, 128)):
    check_attention(qkv(dtype, 2, 1, 37, 19, size), scale=0.3)
    check_attention(qkv(dtype, 1, 2, 19, 37, size), is_causal=True)
"""
        )

    def test_masks(self):
        """One number for all of a row, a column, a head or a batch; rows that are hidden whole."""
        run_on_metal(
            ATTENTION
            + """
for dtype in DTYPES:
    hides = torch.zeros(9, 40, dtype=dtype)
    hides[3] = hides[5:, :33] = -torch.inf
    hides[:, 2] = -torch.inf
    masks = [torch.randn(size, dtype=dtype) for size in (
        (9, 40), (1, 40), (9, 1), (2, 3, 9, 40), (1, 3, 9, 40), (2, 1, 1, 40), (2, 3, 1, 1)
    )]
    for mask, size in itertools.product([*masks, hides], (8, 72)):
        check_attention(qkv(dtype, 2, 3, 9, 40, size), mask)
# A mask of bools torch converts.
q, k, v = qkv(torch.float32, 2, 3, 9, 40, 8)
mask = torch.rand(9, 40) < 0.5
mine = F.scaled_dot_product_attention(*on("hologram", (q, k, v)), mask.to("hologram"))
torch.testing.assert_close(mine.cpu(), F.scaled_dot_product_attention(q, k, v, mask))
# A row that is hidden whole is zeros, and so is its gradient, as on the CPU.
q, k, v = qkv(torch.float32, 2, 3, 9, 40, 8)
mask = hides.float()
for device in ("hologram", "cpu"):
    *mine, its_mask, of_out = on(device, (q, k, v, mask, torch.ones_like(q)))
    out, of_query, _, _ = attend(mine, its_mask, of_out)
    assert out[:, :, 3].eq(0).all() and of_query[:, :, 3].eq(0).all()
    sums = torch._scaled_dot_product_flash_attention_for_cpu(*mine, attn_mask=its_mask)[1]
    assert sums.dtype is torch.float32 and sums[:, :, 3].eq(0).all()
"""
        )

    def test_layouts(self):
        """Heads split off the last dimension, slices, one head for all, grouped queries."""
        run_on_metal(
            ATTENTION
            + """
def split(tensors):
    return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]
for dtype in DTYPES:
    check_attention(split(qkv(dtype, 2, 3, 33, 20, 24)))
    check_attention(split(qkv(dtype, 1, 1, 40, 40, 80)), is_causal=True)
    q, k, v = qkv(dtype, 2, 6, 33, 20, 24)
    check_attention([torch.cat([q, q], -1)[..., :24], k[:, :, :11], v[:, :, 5:16]])
    check_attention([q, k[:, :1].expand_as(k), v[:1].expand_as(v)])
    for size in (16, 80):
        tensors = qkv(dtype, 2, 6, 33, 20, size, key_heads=2)
        check_attention(tensors, enable_gqa=True, is_causal=True)
        check_attention(tensors, torch.randn(2, 6, 33, 20, dtype=dtype), enable_gqa=True)
# A gradient that is one number for all.
q, k, v = (t.requires_grad_() for t in on("hologram", qkv(torch.float32, 2, 3, 9, 7, 8)))
F.scaled_dot_product_attention(q, k, v).sum().backward()
wanted = [t.detach().cpu().requires_grad_() for t in (q, k, v)]
F.scaled_dot_product_attention(*wanted).sum().backward()
for mine, other in zip((q, k, v), wanted, strict=True):
    torch.testing.assert_close(mine.grad.cpu(), other.grad)
"""
        )

    def test_what_is_not_a_number(self):
        """It stays in its row."""
        run_on_metal(
            ATTENTION
            + """
q, k, v = qkv(torch.float32, 1, 1, 40, 40, 16)
q[0, 0, 3, 2] = torch.nan
q[0, 0, 20, 5] = torch.inf
for causal in (False, True):
    mine = F.scaled_dot_product_attention(*on("hologram", (q, k, v)), is_causal=causal)
    other = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(mine.cpu(), other, equal_nan=True)
"""
        )

    def test_it_does_not_wait(self):
        """What comes before it is still to run when it has been enqueued, and its operands change
        behind it."""
        run_on_metal(
            ATTENTION
            + """
operands = qkv(torch.float32, 1, 2, 20, 20, 16)
Q, K, V = on("hologram", operands)
q, k, v = (t.requires_grad_() for t in operands)
wanted = F.scaled_dot_product_attention(q + 20 - 20 + q, k, v)
gradients = torch.autograd.grad(wanted.sum(), (q, k, v))
attend((Q, K, V), None, torch.ones_like(Q))  # compiles the kernels
torch.hologram.synchronize()
event = torch.Event()
twice = (submit_additions(Q, 20) - 20 + Q).requires_grad_()
event.record()
copies = [(t * 1).requires_grad_() for t in (K, V)]
out = F.scaled_dot_product_attention(twice, *copies)
# The gradient is one number for all.
mine = torch.autograd.grad(out.sum(), (twice, *copies))
assert not event.query()
for t in copies:
    t.detach().zero_()
torch.testing.assert_close(out.detach().cpu(), wanted.detach())
for one, other in zip(mine, (gradients[0] / 2, *gradients[1:]), strict=True):
    torch.testing.assert_close(one.cpu(), other)
# One after the other on two streams.
side = torch.hologram.Stream()
double = submit_additions(Q, 20) - 20 + Q
side.wait_stream(torch.hologram.current_stream())
with torch.hologram.stream(side):
    out = F.scaled_dot_product_attention(double, K, V)
torch.hologram.current_stream().wait_stream(side)
torch.testing.assert_close((out + 1).cpu(), wanted.detach() + 1)
""",
            HOLOGRAM_TEST_METAL_DELAY=20_000,
        )

    def test_what_torchs_kernel_does(self):
        """float64, larger heads, memory of others; with dropout it is composed."""
        run_on_metal(
            ATTENTION
            + """
def kinds(*tensors, **options):
    torch.hologram.reset_fallback_report()
    out = F.scaled_dot_product_attention(*tensors, **options)
    report = torch.hologram.fallback_report()
    own, others = (report.operators(kind).get(OPERATOR, 0) for kind in ("native", "delegated"))
    return out, own, others
def check(tensors, wanted):
    out, *counts = kinds(*tensors)
    assert tuple(counts) == wanted, counts
    torch.testing.assert_close(out.cpu(), F.scaled_dot_product_attention(*on("cpu", tensors)))
check(on("hologram", qkv(torch.float32, 1, 2, 9, 9, 128)), (1, 0))
check(on("hologram", qkv(torch.float32, 1, 2, 9, 9, 129)), (0, 1))
check(on("hologram", qkv(torch.float64, 1, 2, 9, 9, 16)), (0, 1))
q, k, v = qkv(torch.float32, 1, 2, 9, 9, 16)
check([torch.hologram.alias_from_cpu(q), *on("hologram", (k, v))], (0, 1))
assert kinds(*on("hologram", (q, k, v)), dropout_p=0.5)[1:] == (0, 0)
"""
        )

    def test_transformed(self):
        """By torch.func, which hands over tensors that have memory, or none at all."""
        run_on_metal(
            ATTENTION
            + """
from torch._subclasses.fake_tensor import FakeTensorMode
q, k, v = qkv(torch.float32, 2, 2, 9, 9, 16)
Q, K, V = on("hologram", (q, k, v))
def loss(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).pow(2).sum()
for mine, other in zip(
    torch.func.grad(loss, (0, 1, 2))(Q, K, V), torch.func.grad(loss, (0, 1, 2))(q, k, v),
    strict=True,
):
    torch.testing.assert_close(mine.cpu(), other)
stacked = [torch.stack([t, t + 1]) for t in (Q, K, V)]
for i, out in enumerate(torch.func.vmap(F.scaled_dot_product_attention)(*stacked)):
    other = F.scaled_dot_product_attention(*(t[i].cpu() for t in stacked))
    torch.testing.assert_close(out.cpu(), other)
with FakeTensorMode() as mode:
    fakes = [mode.from_tensor(t).requires_grad_() for t in (Q, K, V)]
    out = F.scaled_dot_product_attention(*fakes)
    out.sum().backward()
assert (out.shape, out.device, fakes[0].grad.device) == (Q.shape, Q.device, Q.device)
out = torch.compile(F.scaled_dot_product_attention, backend="aot_eager")(Q, K, V)
torch.testing.assert_close(out.cpu(), F.scaled_dot_product_attention(q, k, v))
"""
        )

    def test_threads_of_a_block_in_any_order(self):
        """The kernels have no race, nor do they miss a barrier."""
        text = (ROOT / "csrc" / "metal" / "native" / "attention.h").read_text()
        rng = np.random.default_rng(0)
        for size, room, queries, keys in ((20, 64, 37, 50), (72, 128, 18, 21)):
            kernels = compile_library(f"{text}\nHG_ATTENTION_KERNELS(f32, {room})\n")
            heads, key_heads = 2, 1
            of_queries, of_keys = (heads, queries, size), (key_heads, keys, size)
            q, of_out = (rng.standard_normal(of_queries, "float32") for _ in range(2))
            k, v = (rng.standard_normal(of_keys, "float32") for _ in range(2))
            mask = rng.standard_normal((queries, keys), "float32")
            out, of_q, of_k, of_v = (np.zeros_like(t) for t in (q, q, k, v))
            sums, memory = (np.zeros((heads, queries), "float32") for _ in range(2))
            # As metal/attention.h has them: causal, with a mask.
            rows, others = (0, queries * size, size), (0, keys * size, size)
            strides = (*rows, *others, *others, *rows, 0, queries, 1, 0, 0, keys, 1, 1)
            strides += (*rows, *rows, *others, *others)
            numbers = (heads, heads // key_heads, queries, keys, size, 3)
            params = struct.pack("<32Q6If4x", *strides, *numbers, 0.3)
            blocks = heads * -(-queries // 32)
            name = f"f32_{room}"
            kernels.launch_in_all_orders(
                f"hg_attention_{name}", blocks, 128, [q, k, v, mask, out, sums], params
            )
            every = [q, k, v, mask, out, sums, of_out, memory, of_q, of_k, of_v]
            for kind, count, length in (("queries", heads, queries), ("keys", key_heads, keys)):
                blocks = count * -(-length // (2048 // room))
                kernels.launch_in_all_orders(
                    f"hg_attention_of_{kind}_{name}", blocks, 128, every, params
                )
            hidden = np.arange(keys)[None] > np.arange(queries)[:, None]
            scores = np.where(hidden, -np.inf, q @ k[0].T * 0.3 + mask)
            e = np.exp(scores - scores.max(-1, keepdims=True))
            chances = e / e.sum(-1, keepdims=True)
            delta = (of_out * (chances @ v[0])).sum(-1, keepdims=True)
            of_scores = 0.3 * chances * (of_out @ v[0].T - delta)
            for mine, wanted in (
                (out, chances @ v[0]),
                (of_q, of_scores @ k[0]),
                (of_k[0], np.einsum("hqk,hqd->kd", of_scores, q)),
                (of_v[0], np.einsum("hqk,hqd->kd", chances, of_out)),
            ):
                np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=2e-5)


class TestQueues(HologramTestCase):
    def test_streams_and_events(self):
        run_on_metal(
            """
            x = torch.ones(50_000, device="hologram")
            start, end = (torch.Event(enable_timing=True) for _ in range(2))
            side = torch.hologram.Stream()
            start.record()
            y = submit_additions(x, 30)
            event = torch.hologram.current_stream().record_event()
            with torch.hologram.stream(side):
                side.wait_event(event)
                z = submit_additions(y, 30)
            torch.hologram.current_stream().wait_stream(side)
            w = z * 2
            end.record()
            end.synchronize()
            assert start.elapsed_time(end) > 0
            assert (w == 122).all().item()
            """,
            HOLOGRAM_TEST_METAL_DELAY=500,
        )

    def test_two_queues_wait_for_each_other(self):
        """In turn: neither may wait, in one command buffer, for what the other has behind it."""
        run_on_metal(
            """
            x = torch.ones(1000, device="hologram")
            one, other = torch.hologram.Stream(), torch.hologram.Stream()
            for _ in range(20):
                with torch.hologram.stream(one):
                    one.wait_stream(other)
                    x = x + 1
                with torch.hologram.stream(other):
                    other.wait_stream(one)
                    x = x + 1
            torch.hologram.synchronize()
            assert (x == 41).all().item()
            """,
            HOLOGRAM_TEST_METAL_DELAY=300,
        )

    def test_many_threads(self):
        run_on_metal(
            """
            x = torch.arange(5000.0)
            def work(number):
                mine = x.to("hologram") + number
                for _ in range(30):
                    mine = mine * 1 + 1
                assert torch.equal(mine.cpu(), x + number + 30)
            in_threads(work, 4)
            """
        )

    def test_command_buffers_are_few(self):
        """One for a program, unless that is long."""
        run_on_metal(
            """
            x = torch.ones(100, device="hologram")
            torch.hologram.synchronize()
            before = counts()["buffers.committed"]
            y = x
            for _ in range(100):
                y = torch.sin(y) + x
            torch.hologram.synchronize()
            assert 1 <= counts()["buffers.committed"] - before <= 4
            """
        )

    def test_many_command_buffers_at_a_time(self):
        """More than Metal has: the host waits for some to end, and these can be reported."""
        run_on_metal(
            """
            x = torch.ones(10, device="hologram")
            before = counts()["buffers.committed"]
            y = submit_additions(x, 300)
            assert (y == 301).all().item()
            assert counts()["buffers.committed"] - before >= 300
            """,
            HOLOGRAM_TEST_METAL_DELAY=2000,
        )


class TestFaults(HologramTestCase):
    def check_missing(self, pattern: str, **env: object) -> None:
        out = run_on_metal(
            """
            print(message(lambda: torch.ones(3, device="hologram")))
            """,
            **env,
        )
        self.assertRegex(out, pattern)

    def test_no_device(self):
        self.check_missing(
            "HOLOGRAM_BACKENDS names 'metal', which cannot be used: .*there is no device",
            HOLOGRAM_TEST_METAL_NO_DEVICE=1,
        )

    def test_an_old_macos(self):
        self.check_missing("macOS 14 or newer", HOLOGRAM_TEST_METAL_OS_VERSION="13.6.0")

    def test_a_gpu_of_somebody_elses(self):
        self.check_missing("a GPU of Apple's is needed", HOLOGRAM_TEST_METAL_FAMILY=0)

    def test_the_cpu_instead(self):
        run_on_metal(
            """
            assert torch.hologram.get_device_properties().backend == "cpu"
            assert torch.ones(3, device="hologram").sum().item() == 3
            """,
            "metal,cpu",
            HOLOGRAM_TEST_METAL_NO_DEVICE=1,
        )

    def test_without_the_emulation(self):
        out = run_on_metal(
            'print(message(lambda: torch.ones(3, device="hologram")))',
            HOLOGRAM_METAL_EMULATION=0,
        )
        self.assertRegex(out, "'metal', which this build does not have .*macOS 14")

    def test_memory_that_a_buffer_cannot_have(self):
        run_on_metal(
            """
            kept = torch.ones(1000, device="hologram")
            text = message(lambda: torch.empty(1 << 26, device="hologram"), torch.OutOfMemoryError)
            assert "256.00 MiB" in text, text
            assert (kept + 1).sum().item() == 2000
            assert torch.ones(1 << 20, device="hologram").sum().item() == 1 << 20
            """,
            HOLOGRAM_TEST_METAL_MOST_BUFFER_BYTES=64 << 20,
        )

    def test_a_command_buffer_that_fails(self):
        """Whoever waits is told once, with what it may have been; the next one runs."""
        out = run_on_metal(
            """
            x = torch.arange(1000.0, device="hologram")
            torch.hologram.synchronize()
            y = torch.sqrt(x) + 1
            torch.hologram.flush()
            print(message(torch.hologram.synchronize))
            torch.hologram.synchronize()
            assert counts()["buffers.failed"] == 1
            assert torch.equal((x + 1).cpu(), torch.arange(1000.0) + 1)
            """,
            HOLOGRAM_TEST_METAL_FAILED_COMMANDS=1,
        )
        self.assertRegex(out, "Metal device 0: a command buffer failed: .*it was one of: .*sqrt")

    def test_cold_kernels_that_do_not_compile(self):
        """There is nothing that could run instead: the error has the compiler's words."""
        out = run_on_metal(
            """
            x = torch.arange(10.0).to("hologram")
            print(message(lambda: (x + 1).cpu()))
            assert torch.equal((x + 2).cpu(), torch.arange(10.0) + 2)
            """,
            HOLOGRAM_TEST_METAL_COMPILE_ERROR=1,
        )
        self.assertRegex(out, "Metal: kernels do not compile: kernel:1:1: error")

    def test_exit_with_work_in_flight(self):
        run_on_metal(
            """
            x = submit_additions(torch.ones(10_000, device="hologram"), 20)
            """,
            HOLOGRAM_TEST_METAL_DELAY=3000,
        )


class TestWholeThings(HologramTestCase):
    def test_the_sdk(self):
        run_on_metal(
            """
            import numpy as np
            import torch_hologram as hg
            with hg.Executor("metal") as executor:
                assert executor.backend == "metal"
                x, y, z = (executor.allocate(1000) for _ in range(3))
                x.from_numpy(np.arange(1000, dtype=np.float32))
                y.fill(2)
                before = counts()
                hg.ops.vector_mul(executor, x, y, z)
                hg.ops.vector_relu(executor, z, z)
                assert np.array_equal(z.to_numpy(), 2 * np.arange(1000, dtype=np.float32))
                assert counts()["groups.cold"] > before["groups.cold"]
                assert z.as_ptr() != 0
            assert hg.Executor("auto").backend == "metal"
            """
        )

    def test_one_result_in_every_mode(self):
        """The equality proof: 300 random programs, fused, eager and under delays."""
        run_on_metal(
            f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            import programs
            totals = programs.check_seeds(range(300))
            assert totals.programs == 300
            after = counts()
            assert after["groups.cold"] > 1000, after
            """,
            HOLOGRAM_COMPILE=0,
        )

    def test_digits(self):
        """The demo's network learns to read."""
        out = run_on_metal(
            f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parents[1] / "examples")!r})
            import train_digits as demo
            data = demo.load_data(0)
            run = demo.train(torch.device("hologram"), data, 4, 0)
            assert run.accuracies[-1] > 0.95, run.accuracies
            own = torch.hologram.fallback_report().operators("native")
            print("read")
            """,
            HOLOGRAM_COMPILE=0,
        )
        self.assertIn("read", out)


if __name__ == "__main__":
    unittest.main()
