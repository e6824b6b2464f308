"""Memory that the host cannot touch, or only in the order of a queue, on the simulated device."""

from __future__ import annotations

import os
import signal

from common import ROOT, HologramTestCase
from sim_device import FREED_MEMORY, LATE, after_host_access, build_sim, run_on_sim
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

# Each optimizer and each form of it; in a full run every pair.
TRAININGS = ["Adam_foreach", "AdamW_fused", "SGD_single"]
if os.environ.get("HOLOGRAM_TEST_FULL") == "1":
    TRAININGS = [
        f"{optimizer}_{form}"
        for optimizer in ("Adam", "AdamW", "SGD")
        for form in ("foreach", "fused", "single")
    ]


class TestMemoryOfItsOwn(HologramTestCase):
    """Memory that the host cannot touch: torch's CPU kernels run on copies."""

    def test_the_host_faults(self):
        done = after_host_access({"HOLOGRAM_BACKENDS": "sim", "HOLOGRAM_BACKEND_PATH": build_sim()})
        self.assertEqual(done.returncode, -signal.SIGSEGV, done.stderr)

    def test_calls_count_as_copied(self):
        run_on_sim(
            """
            import torch
            x = torch.randn(40, 30)
            y = x.to("hologram")
            torch.hologram.reset_fallback_report()
            for name in ("sort", "median", "flip", "svd", "unique"):
                options = (0,) if name == "flip" else ()
                theirs, ours = (getattr(t, name)(*options) for t in (x, y))
                theirs, ours = ([r] if isinstance(r, torch.Tensor) else r for r in (theirs, ours))
                assert all(torch.equal(a, b.cpu()) for a, b in zip(theirs, ours)), name
                assert all(b.device == y.device for b in ours)
            report = torch.hologram.fallback_report()
            kinds = {row.kind for row in report}
            assert kinds == {"native", "copied"}, report
            copied = {row.operator for row in report if row.kind == "copied"}
            assert {"aten::median", "aten::flip", "aten::sort.stable"} <= copied, report
            """
        )

    def test_what_is_written_goes_back(self):
        run_on_sim(
            """
            import torch
            base = torch.arange(1000.0)
            ours = base.to("hologram")
            for t in (base, ours):
                torch.sort(t[100:120:2], descending=True,
                           out=(t[10:20], torch.empty(10, device=t.device).long()))
            assert torch.equal(ours.cpu(), base)
            # Two views of one storage, of which one is written; and memory that no argument has.
            for t in (base, ours):
                torch.cumsum(t[500:510], 0, out=t[505:515].clone())
                t[600:610].index_add_(0, torch.arange(10, device=t.device), t[595:605].clone())
                t.as_strided((5, 2), (7, 3), 700).index_fill_(
                    0, torch.tensor([1, 3], device=t.device), -1)
            assert torch.equal(ours.cpu(), base)
            grown = torch.empty(0, device="hologram")
            torch.cumprod(ours[1:6], 0, out=grown)  # reallocated by the kernel
            assert torch.equal(grown.cpu(), base[1:6].cumprod(0)) and grown.numel() == 5
            assert grown.untyped_storage().nbytes() == 20
            """
        )

    def test_freed_memory_is_poisoned(self):
        run_on_sim(FREED_MEMORY, HOLOGRAM_POISON_FREED=1, **LATE)

    def test_arrays_over_buffers_are_refused(self):
        run_on_sim(
            """
            import numpy, torch_hologram as hg
            with hg.Executor() as executor:
                buffer = executor.allocate(4)
                buffer.from_numpy(numpy.arange(4, dtype="f4"))
                for share in (numpy.asarray, numpy.array):
                    try:
                        share(buffer, copy=None)
                    except TypeError as error:
                        assert "is not the host's" in str(error), error
                    else:
                        raise AssertionError
                assert numpy.array(buffer).tolist() == [0, 1, 2, 3]
                assert numpy.array(buffer, dtype="i8").dtype == numpy.int64
            """
        )

    def test_running_statistics(self):
        run_on_sim(
            """
            import torch
            x = torch.randn(8, 4, 5, 5)
            norms = [torch.nn.BatchNorm2d(4).to(device) for device in ("cpu", "hologram")]
            for _ in range(3):
                a, b = norms[0](x), norms[1](x.to("hologram"))
            torch.testing.assert_close(b.cpu(), a)
            torch.testing.assert_close(norms[1].running_mean.cpu(), norms[0].running_mean)
            torch.testing.assert_close(norms[1].running_var.cpu(), norms[0].running_var)
            """
        )

    def test_sharing_is_refused(self):
        run_on_sim(
            """
            import numpy, torch
            x = torch.ones(4, device="hologram")
            for share in (
                lambda: torch.hologram.alias_as_cpu(x),
                lambda: torch.hologram.alias_from_cpu(torch.ones(3)),
                lambda: x.share_memory_(),
                lambda: x.__dlpack__(dl_device=(1, 0), copy=False),
            ):
                try:
                    share()
                except (RuntimeError, BufferError) as error:
                    assert "is not the host's" in str(error), error
                else:
                    raise AssertionError
            assert x.__dlpack_device__() == (12, 0)  # kDLExtDev
            assert numpy.from_dlpack(x.cpu()).sum() == 4 and "tensor([1., 1., 1., 1.]" in repr(x)
            # Where a copy will do, one is made.
            assert torch.from_dlpack(numpy.ones(3), device="hologram").sum().item() == 3
            """
        )

    def test_pinned_copies_do_not_wait(self):
        run_on_sim(
            """
            import time, torch
            host = torch.arange(1000.0).pin_memory()
            assert host.is_pinned()
            x = torch.zeros(1000, device="hologram")
            torch.hologram.synchronize()
            first, copied, back = (torch.hologram.Event(enable_timing=True) for _ in range(3))
            start = time.perf_counter()
            first.record()
            x.copy_(host, non_blocking=True)
            copied.record()
            y = submit_additions(x, 10)
            result = torch.empty(1000, pin_memory=True)
            result.copy_(y, non_blocking=True)
            back.record()
            submitted = time.perf_counter() - start
            assert not back.query()
            del host  # is not handed out again before it has been read
            others = [torch.full((1000,), -1.0).pin_memory() for _ in range(3)]
            back.synchronize()
            waited = time.perf_counter() - start
            assert submitted < waited / 2, (submitted, waited)
            assert torch.equal(result, torch.arange(1000.0) + 10), result
            assert first.elapsed_time(back) > first.elapsed_time(copied) > 0
            # Other memory may be gone when the call returns.
            x.copy_(torch.arange(1000.0) * 2, non_blocking=True)
            assert x[999].item() == 1998
            """,
            **LATE,
        )


class TestVendor(HologramTestCase):
    """Memory that a vendor's kernels run on, in the order of the device's queue."""

    def test_no_delegated_call_waits(self):
        run_on_sim(
            """
            import ctypes, os, torch
            path = os.environ["HOLOGRAM_BACKEND_PATH"]
            waits = ctypes.CDLL(f"{path}/libhologram_sim.so").sim_waits
            waits.restype = ctypes.c_uint64
            torch.manual_seed(0)
            a, b = torch.randn(20, 30), torch.randn(30, 20)
            convolution = torch.nn.Conv1d(4, 4, 3)

            def work(a, b, convolution):
                for step in range(5):
                    x = (a @ b).relu() + step                # recorded after a product
                    y = torch.sort(x * 2, descending=True).values
                    y[3:5].index_add_(0, torch.tensor([1, 0], device=y.device), y[7:9])
                    z = convolution(y.reshape(5, 4, 20)[:, :, :12]).flatten(1)
                    a = a / 2 + torch.cumsum(z, 1)[:, :30].mean() / torch.linalg.norm(y)
                    out = torch.empty(0, device=a.device)
                    torch.cumsum(a, 0, out=out)
                return out

            with torch.no_grad():
                expected = work(a, b, convolution)
                a, b, convolution = (t.to("hologram") for t in (a, b, convolution))
                indices = torch.tensor([1, 0], device="hologram")
                torch.hologram.synchronize()
                torch.tensor = lambda *_, **__: indices      # which copies from the host
                before = waits()
                result = work(a, b, convolution)
                assert waits() == before, waits() - before
                # Means and norms are sums in another order than the CPU's.
                torch.testing.assert_close(result.cpu(), expected)
                assert waits() > before
            assert {row.kind for row in torch.hologram.fallback_report()} == {"native", "delegated"}
            """,
            HOLOGRAM_TEST_SIM_MEMORY="vendor",
            HOLOGRAM_TEST_SIM_DELAY=500,
        )

    @parametrize("training", TRAININGS)
    def test_digits_without_a_read(self, training):
        """The demo's training, to the accuracy it asks for, with no read but its own."""
        optimizer, form = training.split("_")
        run_on_sim(
            f"""
            import sys, torch
            sys.path.insert(0, {str(ROOT / "examples")!r})
            import train_digits
            theirs = getattr(torch.optim, {optimizer!r})
            options = {{"foreach": {form == "foreach"}, "fused": {form == "fused"}}}

            def make(parameters, lr):
                scale = 25 if {optimizer!r} == "SGD" else 1
                return theirs(parameters, lr=lr * scale, **options)

            train_digits.torch.optim.Adam = make
            data = train_digits.load_data(0)
            torch.hologram.init()
            torch.hologram.reset_stream_stats()
            ours = train_digits.train(torch.device("hologram"), data, epochs=8, seed=0)
            reads = torch.hologram.stream_stats()["flushes.read"]
            # One per loss, and per epoch its accuracy; the first step and the copy at the end.
            assert reads <= len(ours.losses) + 8 + 4, (reads, len(ours.losses))
            assert ours.accuracies[-1] > train_digits.REQUIRED_ACCURACY, ours.accuracies
            """,
            HOLOGRAM_TEST_SIM_MEMORY="vendor",
            HOLOGRAM_TEST_SIM_DELAY=0,
        )


instantiate_parametrized_tests(TestVendor)

if __name__ == "__main__":
    run_tests()
