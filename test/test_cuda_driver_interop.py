"""Code of others on CUDA devices without a GPU: streams both ways, addresses in their order.

On the driver of test/cuda, with the streams of cuda_streams.cpp as those of torch's CUDA.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import torch
from common import HologramTestCase
from cuda_driver import FOLDER, LATE, run_on_cuda
from cuda_streams import streams_library
from torch.testing._internal.common_utils import run_tests

LOAD = """
import ctypes, os, time
vendor = ctypes.CDLL(os.environ["LD_PRELOAD"].split()[-1])
vendor.stream.restype = ctypes.c_int64
vendor.set_stream.argtypes = [ctypes.c_int64]
vendor.set_own.argtypes = [ctypes.c_int64, ctypes.c_int64]
vendor.device.restype = ctypes.c_int64
vendor.set_device.argtypes = [ctypes.c_int64]
vendor.kernel_launches.restype = vendor.release_memory.restype = ctypes.c_int64
vendor.refuse_captures.argtypes = vendor.hide_results.argtypes = [ctypes.c_bool]
from torch_hologram import _C
D = "hologram"
driver = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
torch.zeros(1, device=D)

def call(name, *arguments):
    status = getattr(driver, name)(*arguments)
    assert status == 0, (name, status)

call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)

def new_stream():
    stream = ctypes.c_void_p()
    call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
    return stream.value

def foreign_fill(x, value, stream):
    bits = ctypes.c_uint.from_buffer_copy(ctypes.c_float(value)).value
    address, count = ctypes.c_uint64(x.data_ptr()), ctypes.c_size_t(x.numel())
    call("cuMemsetD32Async", address, bits, count, ctypes.c_void_p(stream))

def now():
    return torch.hologram.current_stream()
"""


def run_with_streams(program: str, **env: object) -> str:
    # torch looks for the hooks of CUDA once, while it is imported.
    libraries = f"{FOLDER}:{Path(torch.__file__).parent / 'lib'}"
    return run_on_cuda(
        LOAD + textwrap.dedent(program),
        preload=streams_library(),
        LD_LIBRARY_PATH=libraries,
        **env,
    )


class TestStreams(HologramTestCase):
    """The current stream of torch's CUDA is that of the device, both ways."""

    def test_torchs_stream_is_ours(self):
        run_with_streams(
            """
            assert _C.delegate_target(0) == ("launched", "cuda:0") and _C.is_in_stream_order(0)
            assert now().cuda_stream == 0 and now() == torch.hologram.default_stream()
            handle, other = new_stream(), new_stream()
            vendor.set_stream(handle)
            mine = now()
            assert mine.cuda_stream == handle == mine.native_handle, mine
            assert mine != torch.hologram.default_stream() and mine.priority == 0
            vendor.set_stream(other)
            assert now().cuda_stream == other and now() != mine
            vendor.set_stream(handle)
            assert now() == mine == torch.hologram.get_stream_from_external(handle)
            vendor.set_stream(0)
            assert now() == torch.hologram.get_stream_from_external(0)
            """
        )

    def test_our_stream_is_torchs(self):
        run_with_streams(
            """
            ours = torch.hologram.Stream()
            with torch.hologram.stream(ours):
                assert vendor.stream() == ours.cuda_stream != 0 and now() == ours
                with torch.hologram.stream(torch.hologram.default_stream()):
                    assert vendor.stream() == 0
                assert vendor.stream() == ours.cuda_stream
            assert vendor.stream() == 0 and now().cuda_stream == 0
            # Streams of torch's come back under torch's own id.
            vendor.set_own(2, new_stream())
            vendor.set_stream(2)
            theirs = now()
            with torch.hologram.stream(ours):
                assert vendor.stream() == ours.cuda_stream
            assert vendor.stream() == 2 and now() == theirs
            # Several ids share a queue: the one that was set stays.
            vendor.set_stream(0)
            many = [torch.hologram.Stream() for _ in range(40)]
            for stream in many:
                with torch.hologram.stream(stream):
                    assert now() == stream, (now(), stream)
            """
        )

    def test_a_stream_of_torchs_is_made_current(self):
        run_with_streams(
            """
            vendor.set_own(2, new_stream())
            theirs = torch.Stream(stream_id=2, device_index=0, device_type=1)
            ours = torch.hologram.Stream()
            torch.hologram.set_device(1)
            with torch.hologram.stream(ours), torch.hologram.stream(theirs):
                assert vendor.stream() == 2 and now().cuda_stream == theirs.native_handle, now()
                assert torch.hologram.current_device() == 0 == vendor.device()
            assert vendor.stream() == 0 and now().device.index == 1
            torch.hologram.set_stream(theirs)
            assert vendor.stream() == 2 and torch.hologram.current_device() == 0
            torch.hologram.set_stream(torch.hologram.default_stream())
            strange = torch.Stream(stream_id=0, device_index=2, device_type=1)
            of_the_cpu = torch.Stream(stream_id=0, device_index=0, device_type=0)
            unknown = torch.Stream(stream_id=12345, device_index=1, device_type=20)
            for wrong, is_set, kind, message in (
                (strange, True, RuntimeError, "got a cuda stream, whose device is none of"),
                (strange, False, ValueError, "Expected a hologram device, but got: cuda:2"),
                (of_the_cpu, True, RuntimeError, "expected a hologram stream, got a cpu stream"),
                (of_the_cpu, False, ValueError, "Expected a hologram device, but got: cpu"),
                (unknown, True, RuntimeError, "hologram:1 has no stream with id 12345"),
                (unknown, False, RuntimeError, "hologram:1 has no stream with id 12345"),
            ):
                before = now(), torch.hologram.current_device(), vendor.device(), vendor.stream()
                try:
                    if is_set:
                        torch.hologram.set_stream(wrong)
                    else:
                        torch.hologram.stream(wrong).__enter__()
                except kind as error:
                    assert message in str(error), error
                else:
                    raise AssertionError(wrong)
                after = now(), torch.hologram.current_device(), vendor.device(), vendor.stream()
                assert after == before, (before, after)
            """
        )

    def test_our_device_is_torchs(self):
        """Which other libraries ask for where they launch. Torch's is not ours."""
        run_with_streams(
            """
            torch.hologram.set_device(1)
            assert vendor.device() == 1
            with torch.hologram.device(0):
                assert vendor.device() == 0 == torch.hologram.current_device()
                with torch.hologram.device_of(torch.zeros(1, device="hologram:1")):
                    assert vendor.device() == 1
                with torch.hologram.device(-1), torch.hologram.device(None):
                    assert vendor.device() == 0
                assert vendor.device() == 0
            assert vendor.device() == 1 == torch.hologram.current_device()
            vendor.set_device(0)
            assert torch.hologram.current_device() == 1
            with torch.hologram.device(1):
                assert vendor.device() == 1
            assert vendor.device() == 0 and torch.hologram.current_device() == 1
            stream = torch.hologram.Stream(device=1)
            with torch.hologram.device(0):
                with torch.hologram.stream(stream):
                    assert vendor.device() == 1 == torch.hologram.current_device()
                assert vendor.device() == 0 == torch.hologram.current_device()
            try:
                torch.hologram.set_device(2)
            except RuntimeError as error:
                assert "index 2 is out of range" in str(error), error
            else:
                raise AssertionError("there is no third device")
            assert vendor.device() == 0 and torch.hologram.current_device() == 1
            """
        )

    def test_each_thread_has_its_own(self):
        run_with_streams(
            """
            import threading
            vendor.set_stream(new_stream())
            seen = []
            thread = threading.Thread(target=lambda: seen.append(now().cuda_stream))
            thread.start(); thread.join()
            assert seen == [0] and now().cuda_stream == vendor.stream()
            """
        )

    def test_work_goes_there(self):
        """Also from stream to stream, by the memory that they share."""
        run_with_streams(
            """
            x = torch.arange(100.0, device=D)
            streams = [new_stream() for _ in range(3)]
            for handle in streams * 3:
                vendor.set_stream(handle)
                x = x * 2 + 1
            vendor.set_stream(0)
            expected = torch.arange(100.0)
            for _ in range(9):
                expected = expected * 2 + 1
            assert torch.equal(x.cpu(), expected)
            """
        )

    def test_too_many(self):
        run_with_streams(
            """
            for _ in range(512):
                torch.hologram.get_stream_from_external(new_stream())
            try:
                torch.hologram.get_stream_from_external(new_stream())
            except RuntimeError as error:
                assert "more than 512 streams" in str(error), error
            else:
                raise AssertionError
            """
        )


class TestAddresses(HologramTestCase):
    """data_ptr() waits for nothing; what is launched with it runs in the order of the program."""

    def test_in_the_order_of_the_stream(self):
        run_with_streams(
            """
            for handle in (0, new_stream()):
                vendor.set_stream(handle)
                x = torch.zeros(1000, device=D)
                torch.hologram.synchronize()
                start = time.monotonic()
                before = (x + 1) * 3  # recorded
                x.add_(5)
                foreign_fill(x, 7, handle)
                after = x * 2
                foreign_fill(x, 8, handle)
                x.mul_(3)
                taken = time.monotonic() - start
                assert before.cpu().eq(3).all() and after.cpu().eq(14).all()
                assert x.cpu().eq(24).all()
                assert time.monotonic() - start > 2 * taken, (taken, time.monotonic() - start)
            """,
            **LATE,
        )

    def test_on_another_stream_afterwards(self):
        run_with_streams(
            """
            x = torch.zeros(1000, device=D)
            for turn, handle in enumerate([new_stream(), 0, new_stream()]):
                vendor.set_stream(handle)
                foreign_fill(x, turn + 1, handle)
                vendor.set_stream(new_stream())
                assert (x * 2).cpu().eq(2 * turn + 2).all()
            """,
            **LATE,
        )

    def test_freed_memory_is_used_afterwards(self):
        run_with_streams(
            """
            vendor.set_stream(handle := new_stream())
            x = torch.zeros(1 << 20, device=D)
            torch.hologram.synchronize()
            address = _C.address_of(x)
            foreign_fill(x, 2, handle)
            del x
            vendor.set_stream(0)
            x = torch.full((1 << 20,), 9.0, device=D)
            assert _C.address_of(x) == address  # there is no other
            assert x.cpu().eq(9).all()
            """,
            HOLOGRAM_MEMORY_LIMIT="7M",
            **LATE,
        )

    def test_shared_memory(self):
        run_with_streams(
            """
            x = torch.zeros(1000, device=D) + 1
            assert x.__dlpack_device__() == (2, 0)
            theirs = _C.alias_as_vendor(x)
            assert theirs.is_cuda and theirs.data_ptr() == x.data_ptr()
            x.add_(0)  # compiles the kernel
            torch.hologram.synchronize()
            torch.hologram.reset_stream_stats()
            start = time.monotonic()
            x.add_(1)  # is on the stream at once, and not waited for
            assert torch.hologram.stream_stats()["flushes.exported"] == 1
            foreign_fill(theirs, 5, 0)
            x.add_(1)
            taken = time.monotonic() - start
            assert x.cpu().eq(6).all()
            assert time.monotonic() - start > 2 * taken, (taken, time.monotonic() - start)
            ours = _C.alias_from_vendor(theirs, 0)
            assert ours.is_hologram and ours.data_ptr() == x.data_ptr()
            assert (ours + 1).cpu().eq(7).all()
            del theirs, ours
            torch.hologram.reset_stream_stats()
            x.add_(1)
            assert torch.hologram.stream_stats()["flushes.exported"] == 0
            assert x.cpu().eq(7).all()
            """,
            HOLOGRAM_TEST_CUDA_DELAY=200_000,
        )

    def test_array_interface(self):
        run_with_streams(
            """
            x = torch.zeros(2, 3, device=D) + 1
            vendor.set_stream(handle := new_stream())
            interface = x.t().__cuda_array_interface__
            assert interface == {
                "typestr": "<f4", "shape": (3, 2), "strides": (4, 12), "version": 3,
                "data": (x.data_ptr(), False), "stream": handle,
            }, interface
            vendor.set_stream(0)
            assert x.__cuda_array_interface__["stream"] == 1
            torch.hologram.reset_stream_stats()
            x.add_(1)
            assert torch.hologram.stream_stats()["flushes.exported"] == 1
            wrongs = (x.requires_grad_(), RuntimeError), (torch.ones(2), AttributeError)
            for wrong, kind in wrongs:
                try:
                    wrong.__cuda_array_interface__
                except kind:
                    pass
                else:
                    raise AssertionError(kind)
            """
        )


# A program with a kernel of torch's in the midst of others.
CHAIN = """
torch.manual_seed(0)
x, index = torch.randn(6, 6, device=D), torch.tensor([3, 0, 5, 1], device=D)

def chain(x, index):
    y = torch.addmm(x[0], x * 2, x.sigmoid() + 1)
    return torch.index_select(y.softmax(1) + x, 0, index).cumsum(0) * 3

expected = chain(x.cpu(), index.cpu())

def check(index=index, expected=expected):
    torch.testing.assert_close(chain(x, index).cpu(), expected)

def counts():
    torch.hologram.synchronize()
    stats = torch.hologram.stream_stats()
    names = ("replays.launched", "replays.failed", "flushes.kernel")
    return vendor.kernel_launches(), *(stats[name] for name in names)

def settle():
    for _ in range(48):  # until it is recorded, and a graph
        check()
"""


class TestKernelsInPrograms(HologramTestCase):
    """Torch's kernels that are recorded, and launched or captured with their programs."""

    def test_what_comes_again_is_captured(self):
        run_with_streams(
            CHAIN
            + """
settle()
before = counts()
for _ in range(5):
    check()
launched, replayed, failed, flushed = (b - a for a, b in zip(before, counts()))
assert launched == 0 and replayed == 5 and failed == 0 and flushed == 0
delegated = {row.operator: row.calls for row in torch.hologram.fallback_report().rows}
assert delegated["aten::index_select"] >= 53, delegated
"""
        )

    def test_results_are_made_where_they_belong(self):
        """Or copied there, where a kernel asks for their memory in another way."""
        run_with_streams(
            """
torch.manual_seed(0)
x, index = torch.randn(6, 6, device=D), torch.tensor([3, 0, 2, 1], device=D)

def launches(call):
    for _ in range(40):  # until it is recorded
        call()
        torch.hologram.flush()
    before = vendor.kernel_launches()
    result = call()
    torch.hologram.synchronize()
    launched = vendor.kernel_launches() - before
    return launched, result.cpu()

def select():
    return torch.index_select(x, 0, index)

def join():
    return torch.cat([x, x * 2], 1)

selected, joined = torch.index_select(x.cpu(), 0, index.cpu()), torch.cat([x, x * 2], 1).cpu()
for hidden, count in ((False, 2), (True, 3), (False, 2)):
    vendor.hide_results(hidden)
    launched, result = launches(select)
    assert launched == count and torch.equal(result, selected), (hidden, launched, result)
# Nor is what a program asks for taken for that of a call that is learned, and has it launched.
launched, result = launches(lambda: torch.index_select(select() * 2, 0, index))
assert launched == 4 and torch.equal(result, torch.index_select(selected * 2, 0, index.cpu()))
# The kernel that is given a tensor for its result.
launched, result = launches(join)
assert launched == 1 and torch.equal(result, joined), (launched, result)
""",
            HOLOGRAM_REPLAY=0,
        )

    def test_its_memory_is_nobody_elses(self):
        run_with_streams(
            CHAIN
            + """
settle()
vendor.release_memory()
# Results of calls that are not known yet are torch's memory.
ones = torch.ones(8, 6, device=D)
zeros = [torch.zeros(n, dtype=torch.int64, device=D) for n in range(5, 17)]
others = [torch.index_select(ones, 0, index) for index in zeros]
settle()
before = counts()
check()
assert counts()[:2] == (before[0], before[1] + 1)
assert all(bool((other == 1).all()) for other in others)
"""
        )

    def test_its_memory_is_found(self):
        """Whatever else torch's allocator has."""
        run_with_streams(
            CHAIN
            + """
vendor.reuse_every(3)
settle()
vendor.release_memory()
before = counts()
for _ in range(5):
    check()
assert counts() == (before[0], before[1] + 5, *before[2:]), (before, counts())
"""
        )

    def test_other_operands(self):
        run_with_streams(
            CHAIN
            + """
settle()
indices = [torch.randint(6, (n,)) for n in (4, 4, 2, 4, 3)]
others = [index.to(D) for index in indices]
for _ in range(15):
    for index, other in zip(indices, others):
        check(other, chain(x.cpu(), index))
    index[0] = 2
    others[-1][0] = 2
    check(others[-1], chain(x.cpu(), index))
assert counts()[2] == 0
"""
        )

    def test_what_cannot_be_captured_is_launched(self):
        said = run_with_streams(
            CHAIN
            + """
vendor.refuse_captures(True)
settle()
before = counts()
for _ in range(9):
    check()
launched, replayed, failed, _ = (b - a for a, b in zip(before, counts()))
assert launched == 18 and replayed == 0 and failed == 0, (launched, replayed, failed)
print("done")
"""
        )
        assert said == "done\n"

    def test_what_cannot_be_captured_any_more(self):
        """What was captured before is launched as a graph."""
        run_with_streams(
            CHAIN
            + """
settle()
vendor.refuse_captures(True)
held = [torch.ones(n, 6, device=D) for n in (4, 6)]  # so that the addresses are others
before = counts()
for _ in range(9):
    check()
assert counts()[1] == before[1]
del held
before = counts()
for _ in range(12):
    check()
launched, replayed, failed, _ = (b - a for a, b in zip(before, counts()))
assert replayed >= 3 and launched + replayed >= 12 and failed == 0, (launched, replayed, failed)
"""
        )

    def test_no_memory(self):
        """What lies idle is given back; an error is that of the result, and nothing is lost."""
        run_with_streams(
            CHAIN
            + """
vendor.fail_allocations.argtypes = [ctypes.c_int]
settle()
before = counts()
vendor.fail_allocations(1)
check()
assert counts()[0] == before[0] + 2
vendor.fail_allocations(2)
result = chain(x, index)
try:
    result.cpu()
except torch.OutOfMemoryError as error:
    assert "index_select: there is no memory" in str(error), error
else:
    raise AssertionError
del result
check()
""",
            HOLOGRAM_REPLAY=0,
        )

    def test_no_memory_for_a_graph(self):
        """Then the program is launched kernel by kernel, and is a graph later."""
        said = run_with_streams(
            CHAIN
            + """
vendor.fail_allocations.argtypes = [ctypes.c_int]
for _ in range(33):  # the next ones are recorded
    check()
for _ in range(12):
    vendor.fail_allocations(1)
    check()
assert counts()[2] > 0
vendor.fail_allocations(0)
settle()
before = counts()
check()
assert counts() == (before[0], before[1] + 1, *before[2:])
print("done")
"""
        )
        self.assertEqual(said, "done\n")

    def test_mistakes(self):
        """What is wrong of shapes is said when it is called, and nothing is lost."""
        run_with_streams(
            CHAIN
            + """
settle()
for wrong in (torch.ones(2, device=D), torch.zeros(2, 2, dtype=torch.int64, device=D)):
    try:
        torch.index_select(x, 0, wrong)
    except (RuntimeError, IndexError) as error:
        pass
    else:
        raise AssertionError(wrong)
check()
"""
        )


class TestGraphs(HologramTestCase):
    """Work of the device is no part of graphs; kernels of others on its memory are."""

    def test_refused_while_the_stream_is_captured(self):
        run_with_streams(
            """
            x, early = torch.ones(4, device=D), torch.ones(4, device=D)
            torch.hologram.synchronize()
            vendor.set_stream(handle := new_stream())
            early.add_(1)  # recorded for the stream
            def capture(on):
                call("simulated_cuda_capture", ctypes.c_void_p(handle), on)
            def refuses(function, *texts):
                try:
                    function()
                except RuntimeError as error:
                    assert all(text in str(error) for text in texts), error
                else:
                    raise AssertionError
            assert not torch.hologram.is_current_stream_capturing()
            capture(True)
            assert torch.hologram.is_current_stream_capturing()
            functions = {"add": lambda: x + 1, "mul": lambda: x.mul_(1), "sum": lambda: x.sum(),
                         "uniform": lambda: torch.rand(3, device=D), "copy": lambda: x.clone()}
            for name, function in functions.items():
                refuses(function, name, "on a hologram device cannot be captured into a graph")
            refuses(x.cpu, "a copy of 16 bytes", "cannot be captured into a CUDA graph")
            empty = torch.empty(3, device=D)  # is memory, for others to fill
            assert empty.data_ptr() != 0
            assert x.data_ptr() != 0
            refuses(early.data_ptr, "add", "before the capture begins")
            capture(False)
            assert not torch.hologram.is_current_stream_capturing()
            assert (x + 1).cpu().eq(2).all()
            # Other streams go on.
            capture(True)
            vendor.set_stream(0)
            assert (x + 1).cpu().eq(2).all()
            """
        )


if __name__ == "__main__":
    run_tests()
