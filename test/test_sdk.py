"""The runtime SDK: executors, buffers, what they share and when they end, backends by name."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import re

import numpy as np
import pytest
import torch
from common import BACKEND, BACKENDS, HologramTestCase, run_python, several_devices
from torch.testing._internal.common_utils import run_tests

import torch_hologram as hg
from torch_hologram import backend
from torch_hologram.executor import torch_dtype

DTYPES = (
    "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool "
    "complex64 complex128"
).split()


def allocated_bytes() -> int:
    gc.collect()
    return torch.hologram.memory_allocated()


class SdkTestCase(HologramTestCase):
    def setUp(self):
        super().setUp()
        self.executor = hg.Executor(BACKEND)

    def tearDown(self):
        self.executor.close()
        super().tearDown()

    def buffer(self, values, dtype="float32"):
        array = np.array(values, dtype)
        buffer = self.executor.allocate(array.size, dtype)
        buffer.from_numpy(array)
        return buffer


class TestExecutor(SdkTestCase):
    def test_attributes(self):
        self.assertEqual(self.executor.backend, BACKEND)
        self.assertEqual(self.executor.device, torch.device("hologram", 0))
        self.assertFalse(self.executor.closed)
        self.assertEqual(repr(self.executor), f"Executor(backend='{BACKEND}', device='hologram:0')")
        self.executor.synchronize()
        self.executor.close()
        self.executor.close()
        self.assertTrue(self.executor.closed)
        self.assertIn(", closed)", repr(self.executor))
        self.assertEqual(self.executor.backend, BACKEND)

    def test_names_of_the_package(self):
        self.assertIs(hg.Executor, type(self.executor))
        self.assertIs(hg.backend, backend)
        with self.assertRaisesRegex(AttributeError, "has no attribute 'Exekutor'"):
            hg.Exekutor  # noqa: B018

    def test_the_sdk_is_imported_when_it_is_used(self):
        run_python(
            """
            import sys, torch
            def loaded():
                return {name.split(".")[1] for name in sys.modules if "torch_hologram." in name}
            names = {"executor", "backend", "ops", "functional", "nn", "compat"}
            torch.ones(3, device="hologram")
            assert not loaded() & names, loaded() & names
            import torch_hologram
            torch_hologram.Executor
            assert loaded() & names == {"executor", "backend"}
            for name in ("ops", "functional", "nn", "compat"):
                assert getattr(torch_hologram, name).__name__ == f"torch_hologram.{name}"
            torch_hologram.train_step, torch_hologram.tensor_to_buffer
            torch_hologram.buffer_to_tensor
            """
        )

    def test_pickling_says_what_to_do(self):
        for thing, name in ((self.executor, "Executor"), (self.executor.allocate(3), "Buffer")):
            for call in (pickle.dumps, copy.copy, copy.deepcopy):
                with self.assertRaisesRegex(TypeError, rf"cannot pickle .* {name}\(.*to_numpy"):
                    call(thing)

    def test_devices(self):
        run_python(
            """
            import torch, torch_hologram as hg
            assert str(hg.Executor().device) == "hologram:0"
            first, backend = (torch.hologram.get_device_properties(i).backend for i in range(2))
            names = [backend, hg.BackendType(backend)] + ["auto"] * (backend == first)
            with torch.hologram.device(1):
                for name in names:
                    executor = hg.Executor(name)
                    assert str(executor.device) == "hologram:1"
                a = executor.allocate(4)
                assert hg.buffer_to_tensor(a).device.index == 1
                assert str(hg.Executor(device=0).device) == "hologram:0"
            for device in (1, "hologram:1", torch.device("hologram:1")):
                assert str(hg.Executor(device=device).device) == "hologram:1"
                assert str(hg.Executor(backend, device).device) == "hologram:1"
            e, f = hg.Executor(device=1), hg.Executor()
            b = e.allocate_boundary(90, 1, 16)
            hg.ops.fill(e, b, 2.0)
            hg.ops.vector_add(e, a, b, b)
            assert b.to_numpy().tolist() == [2.0] * 4 and b.class_index == 90
            for device, kind, text in (
                (2, RuntimeError, "2 is out of range: 2 device"),
                ("cpu", ValueError, "Expected a hologram device, but got: cpu"),
                (1.5, TypeError, "1.5"),
            ):
                try:
                    hg.Executor(device=device)
                except kind as error:
                    assert text in str(error), error
                else:
                    raise AssertionError(device)
            """,
            env=several_devices(2),
        )

    def test_imported_by_name(self):
        """The executor is there at once; what it may not need is not."""
        run_python(
            """
            import sys, torch_hologram
            names = ("executor", "backend", "ops", "functional", "nn", "compat", "custom")
            loaded = {name for name in names if f"torch_hologram.{name}" in sys.modules}
            assert loaded == {"executor", "backend"}, loaded
            before = set(sys.modules)
            torch_hologram.Executor()
            assert set(sys.modules) == before
            """
        )

    def test_allocate(self):
        for dtype in (*DTYPES, np.float32, np.dtype("int16"), float, bool):
            buffer = self.executor.allocate(7, dtype)
            self.assertEqual(buffer.dtype, np.dtype(dtype))
            self.assertEqual((len(buffer), buffer.size), (7, 7))
            self.assertEqual(buffer.nbytes, 7 * np.dtype(dtype).itemsize)
            self.assertTrue((buffer.to_numpy() == np.zeros(7, dtype)).all())
        self.assertEqual(self.executor.allocate(np.int64(3)).size, 3)
        self.assertEqual(self.executor.allocate(3).dtype, np.float32)
        self.assertIs(self.executor.allocate(1).executor, self.executor)

    def test_allocate_refuses(self):
        for arguments, kind, text in (
            ((-1,), ValueError, "0 elements or more, not -1"),
            ((2.0,), TypeError, "n must be an integer, not float"),
            (("2",), TypeError, "n must be an integer, not str"),
            ((2, "datetime64[s]"), TypeError, r"no dtype datetime64\[s\]: it is one of float16, "),
            ((2, ">f4"), TypeError, "no dtype >f4"),
            ((2, "U3"), TypeError, "no dtype <U3"),
            ((2, "nonsense"), TypeError, "nonsense"),
            ((1 << 60,), torch.OutOfMemoryError, "Tried to allocate"),
        ):
            with self.assertRaisesRegex(kind, text):
                self.executor.allocate(*arguments)

    def test_dtype_table(self):
        for name in DTYPES:
            array = torch.zeros(1, dtype=torch_dtype(name)).numpy()
            self.assertEqual(array.dtype, np.dtype(name))

    def test_allocate_in_inference_mode(self):
        with torch.inference_mode():
            plain = self.executor.allocate(4)
            boundary = self.executor.allocate_boundary(90, 1, 16)
        for buffer in (plain, boundary):
            buffer.fill(2.0)
            self.assertEqual(buffer.to_numpy().tolist(), [2.0] * 4)

    def test_closed(self):
        buffer = self.executor.allocate(4)
        self.executor.close()
        self.assertTrue(buffer.closed)
        for call in (
            lambda: self.executor.allocate(1),
            lambda: self.executor.allocate_boundary(0, 1, 1),
            lambda: self.executor.tensor_to_dlpack(torch.ones(1)),
            self.executor.synchronize,
            self.executor.__enter__,
        ):
            with self.assertRaisesRegex(RuntimeError, "^the executor is closed$"):
                call()

    def test_context_manager(self):
        with self.assertRaises(KeyError):
            with hg.Executor(BACKEND) as executor:
                buffer = executor.allocate(4)
                raise KeyError
        self.assertTrue(executor.closed and buffer.closed)

    def test_memory_is_given_back(self):
        before = allocated_bytes()
        executor = hg.Executor(BACKEND)
        buffers = [executor.allocate(1 << 16) for _ in range(4)]
        self.assertGreaterEqual(allocated_bytes(), before + (1 << 20))
        buffers[0].close()
        self.assertGreaterEqual(allocated_bytes(), before + 3 * (1 << 18))
        self.assertLess(allocated_bytes(), before + (1 << 20))
        executor.close()
        self.assertEqual(allocated_bytes(), before)
        # A buffer that nobody holds goes by itself, and an executor does not keep it.
        self.executor.allocate(1 << 16)
        self.assertEqual(allocated_bytes(), before)

    def test_buffers_keep_what_is_needed_of_the_executor(self):
        buffer = hg.Executor(BACKEND).allocate(3)
        gc.collect()
        buffer.fill(1.0)
        self.assertEqual(buffer.to_numpy().sum(), 3.0)

    def test_tensor_to_dlpack(self):
        buffer = self.buffer([1.0, 2.0])
        shared = torch.from_dlpack(self.executor.tensor_to_dlpack(buffer))
        shared[0] = 5.0
        self.assertEqual(buffer.to_numpy().tolist(), [5.0, 2.0])
        tensor = torch.ones(2, device="hologram")
        shared = torch.from_dlpack(self.executor.tensor_to_dlpack(tensor))
        self.assertEqual(shared.data_ptr(), tensor.data_ptr())
        with self.assertRaisesRegex(BufferError, "require gradient"):
            self.executor.tensor_to_dlpack(torch.ones(1, requires_grad=True, device="hologram"))
        with self.assertRaisesRegex(TypeError, "expected a Buffer or a tensor, got list"):
            self.executor.tensor_to_dlpack([1.0])


class TestBuffer(SdkTestCase):
    def test_repr(self):
        buffer = self.executor.allocate(4, "int16")
        self.assertEqual(repr(buffer), f"Buffer(4, dtype=int16, backend='{BACKEND}')")
        buffer.close()
        self.assertEqual(repr(buffer), "Buffer(4, dtype=int16, closed)")

    def test_round_trips(self):
        random = np.random.default_rng(0)
        for dtype in DTYPES:
            array = (random.random(9) * 100).astype(dtype)
            buffer = self.executor.allocate(9, dtype)
            buffer.from_numpy(array)
            self.assertTrue((buffer.to_numpy() == array).all())
            self.assertEqual(buffer.to_bytes(), array.tobytes())
            other = self.executor.allocate(9, dtype)
            other.from_bytes(memoryview(array))
            self.assertTrue((other.to_numpy() == array).all())
            other.fill(1)
            self.assertTrue((other.to_numpy() == np.ones(9, dtype)).all())
            buffer.copy_to(other)
            self.assertTrue((other.to_numpy() == array).all())

    def test_to_numpy_is_a_copy(self):
        buffer = self.buffer([1.0, 2.0])
        buffer.to_numpy()[0] = 7.0
        self.assertEqual(buffer.to_numpy().tolist(), [1.0, 2.0])

    def test_arrays_of_other_shapes_and_strides(self):
        buffer = self.executor.allocate(6)
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        buffer.from_numpy(array)
        self.assertEqual(buffer.to_numpy().tolist(), [0, 1, 2, 3, 4, 5])
        buffer.from_numpy(array.T)
        self.assertEqual(buffer.to_numpy().tolist(), [0, 3, 1, 4, 2, 5])
        buffer.from_numpy(np.arange(12, dtype=np.float32)[::-2])
        self.assertEqual(buffer.to_numpy().tolist(), [11, 9, 7, 5, 3, 1])

    def test_refusals(self):
        buffer = self.buffer([1.0, 2.0, 3.0])
        other, short = self.executor.allocate(3, "int32"), self.executor.allocate(2)
        for call, kind, text in (
            (lambda: buffer.from_numpy([1.0]), TypeError, "expected a numpy array, got list"),
            (lambda: buffer.from_numpy(np.zeros(3)), TypeError, "float64 for a buffer of float32"),
            (
                lambda: buffer.from_numpy(torch.zeros(3)),
                TypeError,
                "expected a numpy array, got Tensor: hg.tensor_to_buffer takes tensors",
            ),
            (
                lambda: buffer.from_numpy(np.zeros(4, "f4")),
                ValueError,
                "4 elements for a buffer of 3 elements",
            ),
            (lambda: buffer.from_bytes(b"12345"), ValueError, "5 bytes for a buffer of 12 bytes"),
            (lambda: buffer.from_bytes("text"), TypeError, "bytes-like"),
            (lambda: buffer.copy_to(None), TypeError, "expected a Buffer, got NoneType"),
            (lambda: buffer.copy_to(other), TypeError, "of float32 to one of int32"),
            (lambda: buffer.copy_to(short), ValueError, "of 3 elements to one of 2 elements"),
            (lambda: self.executor.allocate(2, "int8").fill(300), RuntimeError, "300|overflow"),
        ):
            with self.assertRaisesRegex(kind, text):
                call()
        self.assertEqual(buffer.to_numpy().tolist(), [1.0, 2.0, 3.0])

    def test_fill_refuses_what_the_dtype_cannot_hold(self):
        for dtype, right, wrong in (
            ("int8", (-128, 127, 2.0, np.int64(3), True), (128, 2.7, -129.0, math.nan, math.inf)),
            ("uint8", (0, 255, 7.0), (-1, 256, 0.5)),
            ("int64", (-(2**63), 2**63 - 1), (2**63, 1e19, 0.1)),
            ("uint64", (0, 5), (-1, 2**64)),
            ("bool", (0, 1, True, 1.0), (2, -1, 0.5)),
        ):
            buffer = self.executor.allocate(2, dtype)
            for value in right:
                buffer.fill(value)
                self.assertEqual(buffer.to_numpy().tolist(), [int(value)] * 2)
            for value in wrong:
                text = f"a buffer of {dtype} cannot hold {re.escape(repr(value))}"
                with self.assertRaisesRegex(RuntimeError, text):
                    buffer.fill(value)
            self.assertEqual(buffer.to_numpy().tolist(), [int(right[-1])] * 2)
            with self.assertRaises(TypeError):
                buffer.fill("1")
        floats = self.executor.allocate(2)
        for value in (2.7, -1, math.inf):
            floats.fill(value)
            self.assertEqual(floats.to_numpy()[0], np.float32(value))
        with self.assertRaisesRegex(RuntimeError, "cannot be converted|overflow"):
            self.executor.allocate(2, "float16").fill(1e39)

    @pytest.mark.host_memory
    def test_no_elements(self):
        for dtype in DTYPES:
            buffer = self.executor.allocate(0, dtype)
            buffer.fill(1)
            buffer.from_numpy(np.empty((0, 3), dtype))
            buffer.from_bytes(b"")
            self.assertEqual((buffer.size, buffer.nbytes, buffer.as_ptr()), (0, 0, 0))
            self.assertEqual((buffer.pool, buffer.class_index), ("linear", None))
            self.assertEqual((buffer.to_numpy().size, buffer.to_bytes()), (0, b""))
            self.assertEqual(np.asarray(buffer).shape, (0,))
            self.assertEqual(np.from_dlpack(buffer).shape, (0,))

    def test_closed(self):
        buffer, other = self.buffer([1.0]), self.buffer([1.0])
        with buffer as entered:
            self.assertIs(entered, buffer)
        buffer.close()
        self.assertTrue(buffer.closed)
        self.assertEqual((buffer.size, buffer.dtype, buffer.nbytes), (1, np.float32, 4))
        for call in (
            buffer.to_numpy,
            buffer.to_bytes,
            buffer.as_ptr,
            buffer.as_mut_ptr,
            buffer.__dlpack__,
            buffer.__dlpack_device__,
            buffer.__enter__,
            lambda: buffer.pool,
            lambda: buffer.class_index,
            lambda: buffer.fill(1.0),
            lambda: buffer.copy_to(other),
            lambda: other.copy_to(buffer),
            lambda: buffer.from_numpy(np.ones(1, "f4")),
            lambda: buffer.from_bytes(bytes(4)),
            lambda: self.executor.tensor_to_dlpack(buffer),
            lambda: np.from_dlpack(buffer),
        ):
            with self.assertRaisesRegex(RuntimeError, "buffer of 1 elements of float32 is closed"):
                call()
        with self.assertRaises(BufferError) as caught:
            memoryview(buffer)
        self.assertIn("is closed", str(caught.exception.__cause__))
        self.assertFalse(self.executor.closed)
        self.assertEqual(other.to_numpy().tolist(), [1.0])


class TestSharing(SdkTestCase):
    @pytest.mark.host_memory
    def test_buffer_protocol(self):
        for dtype in DTYPES:
            buffer = self.executor.allocate(3, dtype)
            view = memoryview(buffer)
            array = np.asarray(buffer)
            self.assertEqual((view.nbytes, view.shape, view.readonly), (buffer.nbytes, (3,), False))
            self.assertEqual(np.asarray(view).dtype, np.dtype(dtype))
            self.assertEqual((array.dtype, array.ctypes.data), (np.dtype(dtype), buffer.as_ptr()))
            array[:] = 1
            self.assertTrue((buffer.to_numpy() == array).all())
            buffer.fill(0)
            self.assertTrue((array == np.zeros(3, dtype)).all())

    @pytest.mark.host_memory
    def test_dlpack(self):
        buffer = self.buffer([1.0, 2.0])
        self.assertEqual(buffer.__dlpack_device__(), (1, 0))
        array = np.from_dlpack(buffer)
        cpu = torch.from_dlpack(buffer)
        device = torch.from_dlpack(buffer, device="hologram")
        self.assertEqual(cpu.device.type, "cpu")
        self.assertTrue(device.is_hologram)
        buffer.fill(3.0)
        for shared in (array, cpu, device.cpu()):
            self.assertEqual(shared.tolist(), [3.0, 3.0])
        cpu[1] = 4.0
        self.assertEqual(buffer.to_numpy().tolist(), [3.0, 4.0])
        device.add_(1.0)
        self.assertEqual(buffer.to_numpy().tolist(), [4.0, 5.0])

    @pytest.mark.host_memory
    def test_pointers(self):
        buffer = self.buffer([1.0, 2.0])
        self.assertEqual(buffer.as_ptr(), buffer.as_mut_ptr())
        self.assertEqual(np.asarray(buffer).ctypes.data, buffer.as_ptr())

    @pytest.mark.host_memory
    def test_what_is_shared_outlives_the_buffer(self):
        makers = (
            memoryview,
            np.asarray,
            np.from_dlpack,
            torch.from_dlpack,
            hg.buffer_to_tensor,
            lambda b: torch.from_dlpack(b, device="hologram"),
        )
        for maker in makers:
            for close in (lambda e, b: b.close(), lambda e, b: e.close()):
                executor = hg.Executor(BACKEND)
                buffer = executor.allocate(1000)
                buffer.fill(2.0)
                shared = maker(buffer)
                close(executor, buffer)
                del buffer
                gc.collect()
                with hg.Executor(BACKEND) as others:  # would be given the same memory
                    for _ in range(8):
                        others.allocate(1000).fill(-1.0)
                self.assertEqual(shared.tolist(), [2.0] * 1000)

    @pytest.mark.host_memory
    def test_shared_memory_is_given_back(self):
        before = allocated_bytes()
        for maker in (memoryview, np.asarray, np.from_dlpack, hg.buffer_to_tensor):
            buffer = self.executor.allocate(1 << 16)
            shared = maker(buffer)
            buffer.close()
            self.assertGreaterEqual(allocated_bytes(), before + (1 << 18))
            del shared, buffer
            self.assertEqual(allocated_bytes(), before)

    @pytest.mark.host_memory
    def test_a_sharing_tensor_grows(self):
        tensor = torch.ones(4, device="hologram")
        buffer = hg.tensor_to_buffer(self.executor, tensor)
        view = memoryview(buffer)
        tensor.resize_(100000)
        tensor.fill_(5.0)
        self.assertEqual(view.tolist(), [1.0] * 4)  # of the memory that was
        self.assertEqual(buffer.to_numpy().tolist(), [5.0] * 4)
        self.assertEqual(buffer.as_ptr(), tensor.data_ptr())

    @pytest.mark.host_memory
    def test_a_sharing_tensor_gives_the_memory_away(self):
        tensor = torch.ones(4, device="hologram")
        buffer = hg.tensor_to_buffer(self.executor, tensor)
        tensor.untyped_storage().resize_(4)
        for call in (
            buffer.to_numpy,
            buffer.to_bytes,
            buffer.as_ptr,
            lambda: buffer.from_bytes(b""),
        ):
            with self.assertRaisesRegex(RuntimeError, "4 elements of float32 was given away"):
                call()


class TestRecorded(SdkTestCase):
    """What is recorded and not yet executed is seen, in program order."""

    def setUp(self):
        super().setUp()
        self.a, self.b = self.buffer([1.0] * 64), self.buffer([0.0] * 64)
        self.executor.synchronize()
        torch.hologram.reset_stream_stats()  # other tests reset them, or failed, in between

    def assert_recorded(self):
        """There is work left: otherwise the test would show nothing."""
        stats = torch.hologram.stream_stats()
        self.assertGreater(stats["recorded"], stats["executed"])

    @pytest.mark.host_memory
    def test_reads(self):
        for read in (
            lambda: self.b.to_numpy()[0],
            lambda: np.frombuffer(self.b.to_bytes(), "f4")[0],
            lambda: np.ctypeslib.as_array(
                (np.ctypeslib.ctypes.c_float * 64).from_address(self.b.as_ptr())
            )[0],
        ):
            self.setUp()
            hg.ops.scalar_add(self.executor, self.a, self.b, 2.0)
            self.assert_recorded()
            self.assertEqual(read(), 3.0)

    @pytest.mark.host_memory
    def test_shared(self):
        for maker in (np.asarray, np.from_dlpack, torch.from_dlpack, memoryview):
            self.setUp()
            hg.ops.scalar_add(self.executor, self.a, self.b, 2.0)
            self.assert_recorded()
            shared = maker(self.b)
            self.assertEqual(shared[0], 3.0)
            hg.ops.scalar_add(self.executor, self.b, self.b, 1.0)  # at once from now on
            self.assertEqual(shared[0], 4.0)

    @pytest.mark.host_memory
    def test_write_after_read(self):
        new = np.full(64, 9.0, np.float32)
        for write in (
            lambda: self.a.from_numpy(new),
            lambda: self.a.from_bytes(new.tobytes()),
            lambda: self.a.fill(9.0),
            lambda: np.asarray(self.a).fill(9.0),
        ):
            self.setUp()
            hg.ops.scalar_add(self.executor, self.a, self.b, 2.0)
            self.assert_recorded()
            write()
            self.assertEqual(self.b.to_numpy().tolist(), [3.0] * 64)
            self.assertEqual(self.a.to_numpy().tolist(), [9.0] * 64)

    def test_write_after_write(self):
        self.a.fill(4.0)
        self.a.from_numpy(np.full(64, 9.0, np.float32))
        self.assertEqual(self.a.to_numpy().tolist(), [9.0] * 64)

    def test_close_keeps_what_is_recorded(self):
        hg.ops.scalar_add(self.executor, self.a, self.b, 2.0)
        self.a.close()
        for _ in range(4):
            self.executor.allocate(64).from_numpy(np.full(64, -1.0, np.float32))
        self.assertEqual(self.b.to_numpy().tolist(), [3.0] * 64)

    def test_synchronize(self):
        hg.ops.scalar_add(self.executor, self.a, self.b, 2.0)
        self.executor.synchronize()
        stats = torch.hologram.stream_stats()
        self.assertEqual(stats["recorded"], stats["executed"])
        self.assertEqual(self.b.to_numpy().tolist(), [3.0] * 64)


class TestBoundary(SdkTestCase):
    def test_place(self):
        before = torch.hologram.boundary.usage()[77]
        buffer = self.executor.allocate_boundary(77, 3, 100, "int16")
        self.assertEqual((buffer.size, buffer.nbytes), (150, 300))
        self.assertEqual((buffer.pool, buffer.class_index), ("boundary", 77))
        self.assertEqual(buffer.to_numpy().tolist(), [0] * 150)
        used = before.free_pages - torch.hologram.boundary.usage()[77].free_pages
        self.assertEqual(used, 2)  # 300 bytes are two pages of 256
        buffer.close()
        self.assertEqual(torch.hologram.boundary.usage()[77], before)

    def test_pool_of_others(self):
        self.assertEqual(self.executor.allocate(1 << 16).pool, "linear")
        small = self.executor.allocate(4)
        self.assertEqual(small.pool, "boundary")
        place = torch.hologram.boundary.locate(hg.buffer_to_tensor(small))
        self.assertEqual(small.class_index, place.class_index)

    def test_refusals(self):
        for arguments, kind, text in (
            ((96, 1, 1), ValueError, "class 96 is out of range: it must be from 0 to 95"),
            ((-1, 1, 1), ValueError, "class -1 is out of range"),
            ((0, 0, 1), ValueError, "width 0 is out of range: it must be from 1 to 48"),
            ((0, 49, 1), ValueError, "width 49 "),
            ((0, 1, 0), ValueError, "height 0 is out of range: it must be from 1 to 256"),
            ((0, 1, 257), ValueError, "height 257 "),
            ((0, 1, 6), ValueError, "1 pages of 6 bytes are 6 bytes, no whole number of float32"),
            (("0", 1, 4), TypeError, "cls must be an integer, not str"),
            ((0, 1.5, 4), TypeError, "width must be an integer, not float"),
            ((0, 1, None), TypeError, "height must be an integer, not NoneType"),
            ((0, 1, 4, "datetime64"), TypeError, "no dtype datetime64"),
        ):
            with self.assertRaisesRegex(kind, text):
                self.executor.allocate_boundary(*arguments)

    def test_full_class(self):
        run_python(
            """
            import torch, torch_hologram as hg
            executor = hg.Executor()
            first = executor.allocate_boundary(9, 40, 256)
            def refused(width):
                try:
                    executor.allocate_boundary(9, width, 256)
                except ValueError as error:
                    return str(error)
                raise AssertionError("allocated")
            assert refused(9) == (
                "boundary class 9 has no run of 9 free pages: 8 of its 48 pages are free, "
                "the longest run is 8"
            )
            second = executor.allocate_boundary(9, 8, 256)
            assert "has no run of 1 free pages: 0 of its 48 pages are free" in refused(1)
            assert executor.allocate_boundary(10, 48, 256).class_index == 10
            first.close()
            assert torch.hologram.boundary.usage()[9].free_pages == 40
            third = executor.allocate_boundary(9, 40, 256)
            third.fill(2.0)
            assert third.to_numpy().sum() == 2 * 40 * 64
            executor.close()
            assert torch.hologram.boundary.usage()[9] == (48, 48)
            """
        )

    def test_no_room_for_the_pool(self):
        run_python(
            """
            import torch, torch_hologram as hg
            executor = hg.Executor()
            try:
                executor.allocate_boundary(0, 1, 4)
            except torch.OutOfMemoryError as error:
                assert "Tried to allocate 1.12 MiB" in str(error), error
            else:
                raise AssertionError("allocated")
            assert executor.allocate(4).pool == "linear"
            """,
            env={"HOLOGRAM_MEMORY_LIMIT": "1M"},
        )


class TestBackend(SdkTestCase):
    def test_names(self):
        self.assertEqual([kind.value for kind in backend.PRIORITY], ["metal", "cuda", "cpu"])
        mine = backend.BackendType(BACKEND)
        self.assertEqual(mine.value, BACKEND)
        self.assertEqual(backend.available()[0], mine)
        self.assertIs(hg.get_default_backend(), mine)
        self.assertTrue(backend.is_available(BACKEND) and backend.is_available(mine))
        there = [kind for kind in backend.BackendType if backend.is_available(kind)]
        self.assertEqual(hg.is_cuda_available(), backend.BackendType.CUDA in there)
        self.assertEqual(hg.is_cuda_available(), "cuda" in BACKENDS)
        self.assertFalse(hg.is_metal_available())
        self.assertEqual(backend.require(BACKEND), mine)

    def test_auto(self):
        mine = backend.BackendType(BACKEND)
        for executor in (hg.Executor(), hg.Executor("auto"), hg.Executor(mine)):
            with executor:
                self.assertEqual((executor.backend, executor.device.index), (BACKEND, 0))

    def test_absent(self):
        for name in ("cuda", "metal", hg.BackendType.METAL):
            if name in BACKENDS:
                continue
            known = getattr(name, "value", name)
            text = (
                f"backend '{known}' is not available: .* no {known.upper()} .*available: {BACKEND}"
            )
            with self.assertRaisesRegex(RuntimeError, text):
                hg.Executor(name)

    def test_unknown(self):
        for call in (hg.Executor, backend.is_available, backend.require):
            with self.assertRaisesRegex(
                ValueError,
                "unknown hologram backend 'rocm': expected 'auto', 'metal', 'cuda', 'cpu'",
            ):
                call("rocm")
        for other in (None, 3):
            with self.assertRaisesRegex(ValueError, f"unknown hologram backend {other}"):
                hg.Executor(other)

    def test_no_device(self):
        run_python(
            """
            import torch_hologram as hg
            assert hg.backend.available() == () and not hg.backend.is_available("cpu")
            for call in (hg.Executor, lambda: hg.Executor("cpu"), hg.get_default_backend):
                try:
                    call()
                except RuntimeError as error:
                    assert "hologram" in str(error), error
                else:
                    raise AssertionError("there is a device")
            """,
            env={"HOLOGRAM_BACKENDS": ""},
        )


if __name__ == "__main__":
    run_tests()
