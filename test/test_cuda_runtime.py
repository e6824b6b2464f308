"""The runtime of the CUDA backend on a GPU: memory beside torch's allocator, pinned memory, copies
that overlap with kernels. What it does without a GPU is in test_cuda_driver.py.
"""

from __future__ import annotations

import textwrap

import pytest
from common import HologramTestCase, run_python
from torch.testing._internal.common_utils import run_tests

PRELUDE = """
import torch
import torch_hologram
assert torch.hologram.get_device_properties(0).backend == "cuda"
GIB = 1 << 30
def empty(device, size):
    return torch.empty(size, dtype=torch.uint8, device=device)
"""


def run_on_gpu(program: str) -> str:
    """What it prints in a process whose devices are the GPUs."""
    program = PRELUDE + textwrap.dedent(program)
    return run_python(program, env={"HOLOGRAM_BACKENDS": "cuda"}).stdout


@pytest.mark.cuda
@pytest.mark.whole_gpu
class TestMemory(HologramTestCase):
    """Two allocators on one GPU: what lies idle in one serves the other."""

    def test_what_torch_has_cached_is_given_back(self):
        run_on_gpu(
            """
            free = torch.cuda.mem_get_info()[0]
            theirs = empty("cuda", free * 7 // 10)
            x = torch.ones(1000, device="hologram")
            stats = torch.hologram.memory_stats()
            assert stats["vendor_allocated_bytes.all.current"] >= theirs.numel(), stats
            assert "torch's own" in torch.hologram.memory_summary()
            try:
                empty("hologram", free // 2)
            except torch.OutOfMemoryError:
                pass
            else:
                raise AssertionError("more than there is")
            assert torch.cuda.memory_reserved() >= theirs.numel()
            del theirs
            assert torch.cuda.memory_reserved() >= free // 2
            ours = empty("hologram", free // 2)
            ours[-1] = 7
            assert ours[-1].item() == 7 and x.sum().item() == 1000
            assert torch.cuda.memory_reserved() < free // 2
            """
        )

    def test_what_lies_idle_is_given_to_torch(self):
        run_on_gpu(
            """
            free = torch.cuda.mem_get_info()[0]
            x = torch.ones(1000, device="hologram")
            ours = empty("hologram", free * 7 // 10)
            ours.fill_(1)
            del ours
            torch.hologram.synchronize()
            assert torch.hologram.memory_reserved() > free // 2
            theirs = empty("cuda", free // 2)
            theirs.fill_(3)
            torch.cuda.synchronize()
            assert torch.hologram.memory_reserved() < free // 2
            assert x.sum().item() == 1000
            """
        )


@pytest.mark.cuda
class TestPinnedMemory(HologramTestCase):
    def test_it_is_torchs(self):
        run_on_gpu(
            """
            x = torch.arange(1000.0).pin_memory()
            y = torch.empty(1000, pin_memory=True)
            assert x.is_pinned() and y.is_pinned()
            on_gpu = x.to("cuda", non_blocking=True)
            here = x.to("hologram", non_blocking=True)
            y.copy_(on_gpu, non_blocking=True)
            torch.cuda.synchronize()
            assert torch.equal(y, x) and torch.equal(here.cpu(), x)
            loader = torch.utils.data.DataLoader(torch.arange(64.0), batch_size=16, pin_memory=True)
            for batch in loader:
                assert batch.is_pinned()
                assert torch.equal(batch.to("hologram", non_blocking=True).cpu(), batch)
            """
        )

    def test_before_the_device_is_used(self):
        run_python(
            """
            import torch, torch_hologram
            assert not torch.ones(2).is_pinned() and not torch.hologram.is_initialized()
            x = torch.empty(1000, pin_memory=True)
            assert x.is_pinned() and not torch.ones(2).is_pinned()
            assert not torch.hologram.is_initialized()
            assert torch.ones(2, device="hologram").sum().item() == 2 and x.is_pinned()
            """
        )


@pytest.mark.cuda
@pytest.mark.whole_gpu
class TestOverlap(HologramTestCase):
    def test_copies_from_pinned_memory_overlap_with_kernels(self):
        run_on_gpu(
            """
            count = 1 << 26
            x = torch.rand(count, device="hologram")
            host = torch.rand(count).pin_memory()
            target = torch.empty(count, device="hologram")
            side, main = torch.hologram.Stream(), torch.hologram.current_stream()

            def compute(times):
                y = x
                for _ in range(times):
                    y = torch.sin(y)
                    torch.hologram.flush()
                return y

            def milliseconds(times, copies):
                begin, computed, copied = (torch.hologram.Event(enable_timing=True)
                                           for _ in range(3))
                torch.hologram.synchronize()
                begin.record(main)
                side.wait_event(begin)
                if copies:
                    with torch.hologram.stream(side):
                        target.copy_(host, non_blocking=True)
                copied.record(side)
                y = compute(times)
                computed.record(main)
                torch.hologram.synchronize()
                return max(begin.elapsed_time(computed), begin.elapsed_time(copied))

            milliseconds(4, True)
            copy = min(milliseconds(0, True) for _ in range(3))
            one = min(milliseconds(20, False) for _ in range(3)) / 20
            times = max(1, round(copy / one))
            kernels = min(milliseconds(times, False) for _ in range(3))
            both = min(milliseconds(times, True) for _ in range(5))
            print(f"copy {copy:.2f} ms, kernels {kernels:.2f} ms, both {both:.2f} ms")
            assert both < 0.75 * (copy + kernels), (copy, kernels, both)
            assert torch.equal(target.cpu(), host)
            """
        )


@pytest.mark.cuda
@pytest.mark.two_gpus
class TestTwoGpus(HologramTestCase):
    def test_copies_between_them_are_ordered(self):
        run_on_gpu(
            """
            x = torch.arange(1 << 23, dtype=torch.float32, device="hologram:0")
            for step in range(20):
                y = (x + step).to("hologram:1") * 2
                x.add_(1)
                z = y.to("hologram:0") - 2 * step
                assert torch.equal(z, 2 * (x - 1)), step
            """
        )

    def test_the_current_device_is_torchs(self):
        """So that what other libraries launch is on the device that its tensors are on."""
        run_on_gpu(
            """
            stream = torch.cuda.Stream(1)
            with torch.hologram.device(1):
                assert torch.cuda.current_device() == 1
                with torch.hologram.device(0):
                    assert torch.cuda.current_device() == 0
                x = torch.arange(1 << 20, dtype=torch.float32, device="hologram")
                torch.cuda._sleep(10_000_000)
                y = torch.from_dlpack(x + 1, device="cuda")
                assert y.device.index == 1 and torch.equal((y * 2).cpu(), 2 * (x.cpu() + 1))
            assert torch.cuda.current_device() == 0 == torch.hologram.current_device()
            with torch.hologram.stream(stream):
                assert torch.hologram.current_device() == 1 == torch.cuda.current_device()
                assert torch.cuda.current_stream() == stream
                assert torch.hologram.current_stream().cuda_stream == stream.cuda_stream
                z = torch.ones(5, device="hologram") + 1
            assert z.device.index == 1 and z.tolist() == [2] * 5
            assert torch.cuda.current_device() == 0 == torch.hologram.current_device()
            """
        )


if __name__ == "__main__":
    run_tests()
