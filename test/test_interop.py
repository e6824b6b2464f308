"""Memory shared with NumPy, torch, JAX, TensorFlow and CuPy: hg.from_numpy and DLPack."""

from __future__ import annotations

import gc
import importlib.util
import os
import warnings
import weakref

import numpy as np
import pytest
import torch
from common import BACKEND, HologramTestCase, run_python, several_devices
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

import torch_hologram as hg
from torch_hologram import interop

NUMPY_DTYPES = (
    "float16 float32 float64 complex64 complex128 bool "
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
).split()


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


class TestFromNumpy(HologramTestCase):
    @pytest.mark.host_memory
    def test_shares_memory(self):
        array = np.arange(6.0).reshape(2, 3)
        tensor = hg.from_numpy(array)
        self.assertEqual(tensor.device, torch.device("hologram", 0))
        self.assertEqual(tensor.data_ptr(), array.ctypes.data)
        tensor.add_(1)
        self.assertEqual(array.tolist(), [[1, 2, 3], [4, 5, 6]])
        array[0, 0] = -1
        self.assertEqual((tensor * 2).tolist(), [[-2, 4, 6], [8, 10, 12]])

    @pytest.mark.host_memory
    @parametrize("name", NUMPY_DTYPES)
    def test_dtypes(self, name):
        array = np.array([[0, 1], [1, 0]]).astype(name)
        for copy in (None, False, True):
            tensor = hg.from_numpy(array, copy=copy)
            self.assertEqual(tensor.dtype, torch.from_numpy(array).dtype)
            self.assertEqual(tensor.cpu(), torch.from_numpy(array))

    @pytest.mark.host_memory
    def test_strides_are_kept(self):
        base = np.arange(24.0).reshape(4, 6)
        for array in (base.T, base[1:, ::2], base[:0], base[2:3, 3], np.array(5.0)):
            tensor = hg.from_numpy(array)
            self.assertEqual(tensor.stride(), torch.from_numpy(array).stride())
            self.assertEqual(tensor.cpu().numpy(), array)

    @pytest.mark.host_memory
    def test_unaligned(self):
        array = np.zeros(4 * 100 + 1, np.uint8)[1:].view(np.float32)
        array[:] = np.arange(100)
        tensor = hg.from_numpy(array)
        self.assertEqual((tensor * 2 + 1).sum().item(), 2 * 4950 + 100)
        tensor.mul_(3)
        self.assertEqual(array.tolist(), [3 * i for i in range(100)])

    @pytest.mark.host_memory
    def test_operations_run_at_once(self):
        # The array's owner cannot know of operations that are still recorded.
        array = np.zeros(1000, np.float32)
        tensor = hg.from_numpy(array)
        for step in range(1, 4):
            tensor += 1
            self.assertEqual(array.min(), step)
            array += 1
            tensor -= 1

    @pytest.mark.host_memory
    def test_gradients(self):
        array = np.ones(3, np.float32)
        weight = hg.from_numpy(array).requires_grad_()
        (weight * 2).sum().backward()
        with torch.no_grad():
            weight -= 0.5 * weight.grad
        self.assertEqual(array.tolist(), [0, 0, 0])

    @pytest.mark.host_memory
    def test_the_tensor_keeps_the_array(self):
        array = np.full(1000, 7.0)
        alive = weakref.ref(array)
        view = hg.from_numpy(array)[500:]
        del array
        gc.collect()
        self.assertIsNotNone(alive())
        self.assertEqual(view.sum().item(), 3500)
        with self.assertRaisesRegex(ValueError, "cannot resize"):
            alive().resize(2000)
        del view
        gc.collect()
        self.assertIsNone(alive())

    @pytest.mark.host_memory
    def test_no_memory_of_the_device(self):
        array = np.zeros(1 << 20, np.float32)
        before = torch.hologram.memory_stats()
        tensor = hg.from_numpy(array)
        shared = torch.hologram.memory_stats()
        for kind, added in (("reserved_bytes.linear", 0), ("foreign_bytes.all", array.nbytes)):
            self.assertEqual(shared[f"{kind}.current"] - before[f"{kind}.current"], added)
        self.assertEqual(tensor.data_ptr(), array.ctypes.data)

    def test_read_only(self):
        for array in (read_only(np.arange(3.0)), np.broadcast_to(np.float32(2), (2, 2))):
            for copy in (None, False):
                with self.assertRaisesRegex(ValueError, "the array is read-only.*copy=True"):
                    hg.from_numpy(array, copy=copy)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                tensor = hg.from_numpy(array, copy=True)
            tensor += 1
            self.assertEqual(tensor.cpu().numpy(), array + 1)

    def test_copies(self):
        array = np.arange(4.0)
        tensor = hg.from_numpy(array, copy=True)
        tensor.zero_()
        self.assertEqual(array.tolist(), [0, 1, 2, 3])
        fields = np.zeros(3, [("a", "i1"), ("b", "i4")])
        fields["b"] = [1, 2, 3]
        for other in (array[::-1], array.astype(">f8"), fields["b"]):
            self.assertEqual(hg.from_numpy(other, copy=True).tolist(), other.tolist())

    @parametrize("copy", [None, False])
    def test_what_torch_refuses(self, copy):
        fields = np.zeros(3, [("a", "i1"), ("b", "i4")])
        for array, error, text in (
            (np.arange(4)[::-1], ValueError, "negative"),
            (np.arange(4, dtype=">i4"), ValueError, "byte order"),
            (fields["b"], ValueError, "not a multiple of the element byte size"),
        ):
            with self.assertRaisesRegex(error, text):
                torch.from_numpy(array)
            with self.assertRaisesRegex(error, text):
                hg.from_numpy(array, copy=copy)

    @parametrize("copy", [None, False, True])
    def test_wrong_types(self, copy):
        for array, text in (
            ([1.0, 2.0], r"expected np.ndarray \(got list\)"),
            (np.float32(1), r"expected np.ndarray \(got float32\)"),
            (np.array([None]), "numpy.object_"),
            (np.array(["a"]), "numpy.str_"),
            (np.array("2020", "M8[D]"), "numpy.datetime64"),
        ):
            with self.assertRaisesRegex(TypeError, text):
                hg.from_numpy(array, copy=copy)

    def test_wrong_device(self):
        with self.assertRaisesRegex(ValueError, "Expected a hologram device, but got: cpu"):
            hg.from_numpy(np.ones(1), device="cpu")
        with self.assertRaisesRegex(RuntimeError, "99"):
            hg.from_numpy(np.ones(1), device="hologram:99")

    @pytest.mark.host_memory
    def test_another_device(self):
        run_python(
            """
            import numpy as np, torch
            import torch_hologram as hg
            array = np.arange(3.0)
            for convert in (hg.from_numpy, hg.from_dlpack):
                for copy in (None, False, True):
                    tensor = convert(array, device="hologram:1", copy=copy)
                    assert tensor.device == torch.device("hologram:1")
                    assert (tensor.data_ptr() == array.ctypes.data) == (copy is not True)
                with torch.hologram.device(1):
                    assert convert(array).device.index == 1
            moved = hg.from_dlpack(tensor, device="hologram:0")
            assert moved.device.index == 0 and moved.tolist() == [0, 1, 2]
            assert hg.from_dlpack(tensor).device.index == 1
            assert hg.from_dlpack(tensor, device="hologram:0", copy=True).device.index == 0
            """,
            env=several_devices(2),
        )


class Old:
    """A producer from before DLPack 1.0: knows no options but the stream."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Elsewhere:
    """A producer whose memory is on another machine's accelerator."""

    def __dlpack__(self, **options):
        raise BufferError("not reached without a copy")

    def __dlpack_device__(self):
        return (8, 0)  # kDLVPI


class TestFromDLPack(HologramTestCase):
    @pytest.mark.host_memory
    def test_producers_on_the_host(self):
        for data in (np.arange(6.0), torch.arange(6.0), Old(np.arange(6.0))):
            memory = data.array if isinstance(data, Old) else data
            for copy in (None, False):
                tensor = hg.from_dlpack(data, copy=copy)
                self.assertTrue(tensor.is_hologram)
                tensor.add_(1)
            self.assertEqual(memory.tolist(), [2, 3, 4, 5, 6, 7])
            hg.from_dlpack(data, copy=True).zero_()
            self.assertEqual(memory.tolist(), [2, 3, 4, 5, 6, 7])

    @pytest.mark.host_memory
    def test_buffer(self):
        with hg.Executor(BACKEND) as executor:
            buffer = executor.allocate(8)
            buffer.fill(2)
            tensor = hg.from_dlpack(buffer)
            self.assertEqual(tensor.tolist(), [2] * 8)
            tensor *= 3
            self.assertEqual(buffer.to_numpy().tolist(), [6] * 8)
            hg.from_dlpack(buffer, copy=True).zero_()
            self.assertEqual(buffer.to_numpy().tolist(), [6] * 8)
            self.assertEqual(np.from_dlpack(buffer).tolist(), [6] * 8)
        self.assertEqual(tensor.tolist(), [6] * 8)  # keeps the memory
        with self.assertRaisesRegex(RuntimeError, "is closed"):
            hg.from_dlpack(buffer)

    @pytest.mark.host_memory
    def test_tensor_of_the_device(self):
        tensor = torch.arange(12.0, device="hologram").reshape(3, 4).t()[1:]
        for copy in (None, False):
            alias = hg.from_dlpack(tensor, copy=copy)
            self.assertEqual(alias.data_ptr(), tensor.data_ptr())
            self.assertEqual(alias.stride(), tensor.stride())
        alias.zero_()
        self.assertEqual(tensor.sum().item(), 0)
        copied = hg.from_dlpack(tensor, copy=True)
        self.assertNotEqual(copied.data_ptr(), tensor.data_ptr())

    def test_pending_operations_are_finished(self):
        tensor = torch.zeros(1000, device="hologram")
        for _ in range(5):
            tensor = tensor + 1
        alias = hg.from_dlpack(tensor)
        tensor.mul_(2)
        self.assertEqual(alias.tolist(), [10] * 1000)

    @pytest.mark.host_memory
    def test_capsules(self):
        array = np.arange(4.0)
        for options in ({}, {"max_version": (1, 0)}):
            capsule = array.__dlpack__(**options)
            tensor = hg.from_dlpack(capsule)
            self.assertTrue(tensor.is_hologram)
            self.assertEqual(tensor.data_ptr(), array.ctypes.data)
            with self.assertRaisesRegex(RuntimeError, "consumed only once"):
                hg.from_dlpack(capsule)
        copied = hg.from_dlpack(array.__dlpack__(), copy=True)
        self.assertNotEqual(copied.data_ptr(), array.ctypes.data)
        device = torch.ones(3, device="hologram")
        capsule = device.__dlpack__(dl_device=(12, 0))
        self.assertEqual(hg.from_dlpack(capsule).data_ptr(), device.data_ptr())
        copied = hg.from_dlpack(device.__dlpack__(dl_device=(12, 0)), copy=True)
        self.assertNotEqual(copied.data_ptr(), device.data_ptr())
        self.assertEqual(copied.tolist(), [1, 1, 1])

    def test_read_only(self):
        array = read_only(np.arange(3.0))
        for copy in (None, False):
            with self.assertRaisesRegex(ValueError, "the ndarray is read-only.*copy=True"):
                hg.from_dlpack(array, copy=copy)
        tensor = hg.from_dlpack(array, copy=True)
        tensor.zero_()
        self.assertEqual(array.tolist(), [0, 1, 2])

    @parametrize("copy", [None, False, True])
    def test_negative_strides(self, copy):
        array = np.arange(6.0).reshape(2, 3)[::-1]
        for data in (array, array.__dlpack__(), Old(array)):
            with self.assertRaisesRegex(ValueError, r"strides \(-3, 1\).*negative strides"):
                hg.from_dlpack(data, copy=copy)

    def test_errors(self):
        for data in ([1, 2], None, 3.0):
            with self.assertRaisesRegex(TypeError, f"__dlpack__, got {type(data).__name__}"):
                hg.from_dlpack(data)
        for device in ("hologram", "cpu"):
            for copy in (None, False, True):
                with self.assertRaisesRegex(BufferError, "require gradient"):
                    hg.from_dlpack(torch.ones(1, device=device, requires_grad=True), copy=copy)
        with self.assertRaisesRegex(ValueError, "Expected a hologram device, but got: cpu"):
            hg.from_dlpack(np.ones(1), device="cpu")
        with self.assertRaises((BufferError, TypeError, np.exceptions.DTypePromotionError)):
            hg.from_dlpack(np.array(["2020"], "M8[D]"))
        with self.assertRaisesRegex(BufferError, "not reached"):
            hg.from_dlpack(Elsewhere())

    def test_memory_that_the_device_cannot_use(self):
        # As a tensor of a GPU's, which this machine need not have.
        target = torch.device("hologram", 0)
        with self.assertRaisesRegex(ValueError, "hologram:0 cannot share memory on meta"):
            interop._share(torch.empty(2, device="meta"), target, False)
        with self.assertRaisesRegex(NotImplementedError, "meta tensor"):  # it would be copied
            interop._share(torch.empty(2, device="meta"), target, None)

    def test_memory_is_given_back(self):
        array = np.zeros(100)
        alive = weakref.ref(array)
        tensor = hg.from_dlpack(array)
        del array
        gc.collect()
        self.assertEqual(tensor.sum().item(), 0)
        del tensor
        gc.collect()
        self.assertIsNone(alive())


class TestToDLPack(HologramTestCase):
    @pytest.mark.host_memory
    def test_capsule(self):
        tensor = torch.zeros(4, device="hologram")
        tensor = tensor + 1  # recorded
        cpu = torch.from_dlpack(hg.to_dlpack(tensor))
        self.assertTrue(cpu.is_cpu)
        self.assertEqual(cpu.tolist(), [1, 1, 1, 1])
        cpu += 1
        self.assertEqual((tensor * 2).tolist(), [4, 4, 4, 4])

    def test_buffer(self):
        with hg.Executor(BACKEND) as executor:
            buffer = executor.allocate(4, np.int32)
            torch.from_dlpack(hg.to_dlpack(buffer)).fill_(3)
            self.assertEqual(buffer.to_numpy().tolist(), [3, 3, 3, 3])
        with self.assertRaisesRegex(RuntimeError, "is closed"):
            hg.to_dlpack(buffer)

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, "on a hologram device, but got: cpu"):
            hg.to_dlpack(torch.ones(1))
        with self.assertRaisesRegex(TypeError, "expected a Tensor or a Buffer, got ndarray"):
            hg.to_dlpack(np.ones(1))
        with self.assertRaisesRegex(BufferError, "require gradient"):
            hg.to_dlpack(torch.ones(1, device="hologram", requires_grad=True))

    @pytest.mark.host_memory
    def test_numpy(self):
        tensor = torch.ones(2, 3, device="hologram") * 2  # recorded
        array = np.from_dlpack(tensor)
        self.assertEqual(array.tolist(), [[2, 2, 2], [2, 2, 2]])
        tensor.add_(1)
        self.assertEqual(array[0, 0], 3)
        array[0, 0] = 9
        self.assertEqual((tensor + 0)[0, 0].item(), 9)


def needs(package: str):
    """The package is in requirements/full.txt, which `make test-full` installs.

    There its absence is an error. Elsewhere, as in `pytest -m full` by hand, the test is skipped.
    """
    missing = importlib.util.find_spec(package) is None
    full = os.environ.get("HOLOGRAM_TEST_FULL") == "1"
    return pytest.mark.skipif(
        missing and not full, reason=f"{package} is not installed (requirements/full.txt)"
    )


@pytest.mark.full
class TestOtherLibraries(HologramTestCase):
    """In processes of their own: these libraries bring their own threads and signal handlers."""

    @needs("jax")
    def test_jax(self):
        run_python(
            """
            import jax, numpy as np, torch
            import torch_hologram as hg

            # A consumer: JAX reads the tensor's memory, with what is recorded finished.
            tensor = torch.arange(4096.0, device="hologram").reshape(64, 64) + 1
            array = jax.dlpack.from_dlpack(tensor, copy=False)
            assert array.unsafe_buffer_pointer() == tensor.data_ptr()
            assert np.array_equal(np.asarray(array), tensor.cpu().numpy())
            tensor.mul_(2)
            assert float((array + 0)[0, 0]) == 2.0

            # A producer.
            array = jax.numpy.arange(8, dtype="float32")
            shared = hg.from_dlpack(array)
            assert shared.data_ptr() == array.unsafe_buffer_pointer()
            assert (shared * 2).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
            copied = hg.from_dlpack(array, copy=True)
            copied.zero_()
            assert array.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
            """,
            env={"JAX_PLATFORMS": "cpu"},
            timeout=300,
        )

    @needs("tensorflow")
    def test_tensorflow(self):
        run_python(
            """
            import torch
            import torch_hologram as hg
            import tensorflow as tf

            tensor = torch.arange(6.0, device="hologram").reshape(2, 3) + 1
            other = tf.experimental.dlpack.from_dlpack(hg.to_dlpack(tensor))
            assert other.numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
            tensor.mul_(2)  # seen: the memory is shared
            assert (other + 0).numpy().tolist() == [[2, 4, 6], [8, 10, 12]]

            capsule = tf.experimental.dlpack.to_dlpack(tf.constant([1.0, 2.0, 3.0]))
            back = hg.from_dlpack(capsule)
            assert back.is_hologram and (back * 2).tolist() == [2, 4, 6]
            """,
            env={"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
            timeout=300,
        )


@pytest.mark.cuda
class TestGpuLibraries(HologramTestCase):
    """Arrays of libraries whose memory is on an NVIDIA GPU, which the CPU backend has to copy."""

    def setUp(self):
        super().setUp()
        # Work that takes a while, on a stream that nobody else waits for.
        self.stream = torch.cuda.Stream()
        self.slow = lambda: torch.cuda._sleep(200_000_000)  # clock cycles: about 0.1 s

    @pytest.mark.host_memory
    def test_cupy_producer(self):
        import cupy

        with cupy.cuda.ExternalStream(self.stream.cuda_stream), torch.cuda.stream(self.stream):
            self.slow()
            array = cupy.arange(1000, dtype=cupy.float32) * 2
            copied = hg.from_dlpack(array)
        self.assertTrue(copied.is_hologram)
        self.assertEqual((copied + 1).cpu(), torch.arange(1000.0) * 2 + 1)
        copied.zero_()
        self.assertEqual(int(array[5]), 10)
        self.assertTrue(hg.from_dlpack(array, copy=True).is_hologram)
        with self.assertRaisesRegex(ValueError, "hologram:0 cannot share memory on cuda:0"):
            hg.from_dlpack(array, copy=False)

    @pytest.mark.host_memory
    def test_cupy_consumer(self):
        import cupy

        tensor = torch.arange(1000.0, device="hologram") + 1  # recorded, not yet executed
        array = cupy.asarray(np.from_dlpack(tensor))
        tensor.zero_()
        self.assertEqual(float(array.sum()), 500500.0)

    @pytest.mark.host_memory
    def test_cuda_tensors(self):
        with torch.cuda.stream(self.stream):
            self.slow()
            source = torch.arange(1000.0, device="cuda") * 2
            copies = [hg.from_dlpack(source), source.to("hologram"), source.to("hologram:0")]
        for copy in copies:
            self.assertTrue(copy.is_hologram)
            self.assertEqual((copy + 1).cpu(), torch.arange(1000.0) * 2 + 1)
        recorded = copies[0] * 3
        self.assertEqual(recorded.to("cuda").cpu(), torch.arange(1000.0) * 6)
        source.copy_(recorded)
        self.assertEqual(source.cpu(), torch.arange(1000.0) * 6)
        with self.assertRaisesRegex(RuntimeError, "same device"):
            recorded + source

    @pytest.mark.host_memory
    def test_pinned_memory(self):
        """The host can use it: it is shared."""
        import cupy

        size = 4 * 100
        pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.float32, 100)
        pinned[:] = 1
        tensor = hg.from_numpy(pinned)
        tensor.add_(1)
        self.assertEqual(tensor.data_ptr(), pinned.ctypes.data)
        self.assertEqual(float(cupy.asarray(pinned).sum()), 200.0)

    def test_jax_producer(self):
        """In a process of its own, as above; on the GPU JAX takes most of its memory."""
        run_python(
            """
            import jax, torch
            import torch_hologram as hg

            array = jax.numpy.arange(1000, dtype="float32") * 2
            assert next(iter(array.devices())).platform == "gpu"
            copied = hg.from_dlpack(array)
            assert copied.is_hologram
            assert torch.equal((copied + 1).cpu(), torch.arange(1000.0) * 2 + 1)
            """,
            env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
            timeout=300,
        )


instantiate_parametrized_tests(TestFromNumpy)
instantiate_parametrized_tests(TestFromDLPack)

if __name__ == "__main__":
    run_tests()
