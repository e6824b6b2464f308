"""DLPack both ways, NumPy, and CPU aliases."""

from __future__ import annotations

import ctypes
import gc
import unittest
import weakref
from typing import ClassVar

import numpy as np
import pytest
import torch
from common import HologramTestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.utils.dlpack import DLDeviceType, to_dlpack

from torch_hologram.interop import DLManagedTensorVersioned, DLTensor

CPU = (DLDeviceType.kDLCPU, 0)
EXTENSION = (DLDeviceType.kDLExtDev, 0)


class Foreign:
    """A tensor of another library: knows the two methods of the protocol and nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **kwargs):
        return self.tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class Subclass(torch.Tensor):
    called: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.called.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs)


class TestExport(HologramTestCase):
    @pytest.mark.host_memory
    def test_device(self):
        tensor = torch.ones(2, device="hologram")
        self.assertEqual(tensor.__dlpack_device__(), CPU)
        self.assertEqual(torch.ones(2).__dlpack_device__(), CPU)

    @pytest.mark.host_memory
    def test_numpy_shares_memory(self):
        tensor = torch.arange(6.0, device="hologram").reshape(2, 3)
        array = np.from_dlpack(tensor)
        self.assertEqual(array.ctypes.data, tensor.data_ptr())
        tensor += 1
        self.assertEqual(array.tolist(), [[1, 2, 3], [4, 5, 6]])
        array[0, 0] = -1
        self.assertEqual(tensor[0, 0].item(), -1)

    @pytest.mark.host_memory
    def test_numpy_strides_and_dtypes(self):
        for tensor in (
            torch.arange(12, device="hologram").reshape(3, 4).t()[1:, ::2],
            torch.tensor(3.0, device="hologram"),
            torch.empty(0, 3, device="hologram"),
            torch.arange(4, dtype=torch.int16, device="hologram"),
            torch.tensor([1 + 2j], device="hologram"),
        ):
            array = np.from_dlpack(tensor)
            self.assertEqual(array.shape, tuple(tensor.shape))
            self.assertEqual(torch.from_numpy(array.copy()), tensor.cpu())

    @pytest.mark.host_memory
    def test_array_keeps_the_memory(self):
        tensor = torch.full((1000,), 7.0, device="hologram")
        array = np.from_dlpack(tensor)
        del tensor
        gc.collect()
        torch.zeros(1000, device="hologram")
        self.assertEqual(array.sum(), 7000)

    @pytest.mark.host_memory
    def test_export_outlives_nothing(self):
        tensor = torch.ones(10, device="hologram")
        before = torch.hologram.memory_allocated()
        array = np.from_dlpack(tensor)
        alive = weakref.ref(array)
        del array, tensor
        gc.collect()
        self.assertIsNone(alive())
        self.assertLess(torch.hologram.memory_allocated(), before)

    @pytest.mark.host_memory
    @parametrize("version", [None, (0, 8), (1, 0)])
    @parametrize("where", [None, CPU, (1, 0), EXTENSION, (12, 0)])
    def test_dl_device(self, version, where):
        tensor = torch.arange(3.0, device="hologram")
        capsule = tensor.__dlpack__(max_version=version, dl_device=where)
        imported = torch._C._from_dlpack(capsule)
        expected = "hologram" if where is not None and where[0] == 12 else "cpu"
        self.assertEqual(imported.device.type, expected)
        self.assertEqual(imported.data_ptr(), tensor.data_ptr())

    @parametrize("where", [(DLDeviceType.kDLCUDA, 0), (12, 1), (1, 1), (99, 0)])
    def test_other_dl_device(self, where):
        tensor = torch.arange(3.0, device="hologram")
        if where == tensor.__dlpack_device__():  # CUDA's memory
            tensor.__dlpack__(dl_device=where)
            return
        with self.assertRaisesRegex(BufferError, rf"hologram:0.*{int(where[1])}\).*kDLCPU, 0"):
            tensor.__dlpack__(dl_device=where)

    @pytest.mark.host_memory
    def test_copy(self):
        tensor = torch.arange(3.0, device="hologram")
        for where in (None, CPU, EXTENSION):
            copied = torch._C._from_dlpack(tensor.__dlpack__(dl_device=where, copy=True))
            self.assertNotEqual(copied.data_ptr(), tensor.data_ptr())
            self.assertEqual(copied.cpu(), tensor.cpu())
            shared = torch._C._from_dlpack(tensor.__dlpack__(dl_device=where, copy=False))
            self.assertEqual(shared.data_ptr(), tensor.data_ptr())
        self.assertNotEqual(np.from_dlpack(tensor, copy=True).ctypes.data, tensor.data_ptr())

    def test_refused(self):
        complex_tensor = torch.tensor([1 + 2j], device="hologram")
        for tensor, reason in (
            (torch.ones(2, device="hologram", requires_grad=True), "require gradient"),
            (complex_tensor.conj(), "conjugate bit"),
            (complex_tensor.conj().imag, "negative bit"),
            (torch.eye(2).to_sparse().to("hologram"), "layout other than torch.strided"),
        ):
            with self.assertRaisesRegex(BufferError, reason):
                tensor.__dlpack__()

    def test_stream(self):
        tensor = torch.ones(2, device="hologram")
        for stream in (None, -1):
            tensor.__dlpack__(stream=stream)
        if tensor.__dlpack_device__()[0] != DLDeviceType.kDLCUDA:  # where a number is a handle
            with self.assertRaisesRegex(BufferError, "stream 7"):
                tensor.__dlpack__(stream=7)

    @pytest.mark.host_memory
    def test_subclass(self):
        tensor = torch.ones(2, device="hologram").as_subclass(Subclass)
        Subclass.called.clear()
        self.assertEqual(tensor.__dlpack_device__(), CPU)
        self.assertIn("__dlpack_device__", Subclass.called)
        tensor.__dlpack__()
        self.assertIn("__dlpack__", Subclass.called)
        self.assertEqual(np.from_dlpack(tensor).tolist(), [1, 1])

    def test_to_dlpack(self):
        imported = torch.from_dlpack(to_dlpack(torch.ones(2, device="hologram")))
        self.assertEqual(imported.cpu(), torch.ones(2))


class TestImport(HologramTestCase):
    def test_hologram_tensor_stays(self):
        tensor = torch.arange(4, device="hologram")
        for function in (torch.from_dlpack, torch.utils.dlpack.from_dlpack):
            for device in (None, "hologram", "hologram:0", torch.device("hologram")):
                alias = function(tensor, device=device)
                self.assertEqual(alias.device, tensor.device)
                self.assertEqual(alias.data_ptr(), tensor.data_ptr())
                alias += 1
        self.assertEqual(tensor.cpu(), torch.arange(4) + 8)

    def test_alias_keeps_the_memory(self):
        alias = torch.from_dlpack(torch.full((100,), 3.0, device="hologram"))
        gc.collect()
        torch.zeros(100, device="hologram")
        self.assertEqual(alias.sum().item(), 300)

    def test_alias_computes(self):
        tensor = torch.randn(3, 3, device="hologram")
        alias = torch.from_dlpack(tensor.t())
        self.assertEqual(alias.stride(), (1, 3))
        self.assertEqual((alias @ tensor).cpu(), tensor.cpu().t() @ tensor.cpu())
        # Memory is one: an in-place operation between the two is an overlap, as on the CPU.
        tensor.add_(torch.from_dlpack(tensor))
        self.assertEqual(alias.t().cpu(), tensor.cpu())

    @pytest.mark.host_memory
    def test_copy(self):
        tensor = torch.arange(4, device="hologram")
        copied = torch.from_dlpack(tensor, copy=True)
        self.assertTrue(copied.is_hologram)
        self.assertNotEqual(copied.data_ptr(), tensor.data_ptr())
        shared = torch.from_dlpack(tensor, copy=False)
        self.assertEqual(shared.data_ptr(), tensor.data_ptr())

    @pytest.mark.host_memory
    def test_to_the_cpu(self):
        tensor = torch.arange(4, device="hologram")
        for copy in (None, False):
            alias = torch.from_dlpack(tensor, device="cpu", copy=copy)
            self.assertTrue(alias.is_cpu)
            self.assertEqual(alias.data_ptr(), tensor.data_ptr())
        copied = torch.from_dlpack(tensor, device="cpu", copy=True)
        self.assertTrue(copied.is_cpu)
        self.assertNotEqual(copied.data_ptr(), tensor.data_ptr())

    @pytest.mark.host_memory
    def test_from_other_libraries(self):
        array = np.arange(4.0)
        tensor = torch.from_dlpack(array, device="hologram")
        self.assertTrue(tensor.is_hologram)
        self.assertEqual(tensor.data_ptr(), array.ctypes.data)
        tensor *= 2
        self.assertEqual(array.tolist(), [0, 2, 4, 6])
        copied = torch.from_dlpack(array, device="hologram", copy=True)
        self.assertNotEqual(copied.data_ptr(), array.ctypes.data)

        foreign = Foreign(torch.arange(3, device="hologram"))
        self.assertTrue(torch.from_dlpack(foreign).is_cpu)
        self.assertTrue(torch.from_dlpack(foreign, device="hologram").is_hologram)

    @pytest.mark.host_memory
    def test_unaligned_memory_computes(self):
        array = np.zeros(65, dtype=np.float32)[1:]
        tensor = torch.from_dlpack(array, device="hologram")
        tensor += 1
        self.assertEqual(array.sum(), 64)
        self.assertEqual(tensor.exp().log().sum().item(), 64)

    def test_cpu_tensors_as_before(self):
        tensor = torch.arange(3)
        self.assertEqual(torch.from_dlpack(tensor).data_ptr(), tensor.data_ptr())
        self.assertEqual(torch.from_dlpack(to_dlpack(tensor)), tensor)
        self.assertEqual(torch.from_dlpack(np.arange(3)), tensor)

    @pytest.mark.host_memory
    def test_capsules(self):
        tensor = torch.arange(3.0, device="hologram")
        for where, device in ((None, "cpu"), (EXTENSION, "hologram")):
            capsule = tensor.__dlpack__(max_version=(1, 0), dl_device=where)
            self.assertEqual(torch.from_dlpack(capsule).device.type, device)
            with self.assertRaisesRegex(RuntimeError, "consumed only once"):
                torch.from_dlpack(capsule)

    def test_unused_capsule_frees(self):
        before = torch.hologram.memory_allocated()
        capsule = torch.empty(1 << 20, device="hologram").__dlpack__()
        self.assertGreater(torch.hologram.memory_allocated(), before)
        del capsule
        self.assertEqual(torch.hologram.memory_allocated(), before)

    def test_subclass(self):
        tensor = torch.ones(2, device="hologram").as_subclass(Subclass)
        alias = torch.from_dlpack(tensor)
        self.assertTrue(alias.is_hologram)
        self.assertEqual(alias.data_ptr(), tensor.data_ptr())


class DLPackExchangeAPI(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("prev_api", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("managed_tensor_from_py_object", ctypes.c_void_p),
        ("managed_tensor_to_py_object", ctypes.c_void_p),
        ("dltensor_from_py_object", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    )


@unittest.skipUnless(
    hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), "this torch has no C interface"
)
class TestCInterface(HologramTestCase):
    """What libraries use that exchange tensors without Python calls (tvm-ffi and its users)."""

    def setUp(self) -> None:
        super().setUp()
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype = ctypes.c_void_p
        get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        capsule = torch.Tensor.__dlpack_c_exchange_api__
        self.api = DLPackExchangeAPI.from_address(get_pointer(capsule, b"dlpack_exchange_api"))

    @pytest.mark.host_memory
    def test_borrowed_view(self):
        borrow = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))(
            self.api.dltensor_from_py_object
        )
        for tensor in (torch.ones(2, 3, device="hologram"), torch.ones(2, 3)):
            view = DLTensor()
            self.assertEqual(borrow(tensor, ctypes.byref(view)), 0)
            self.assertEqual((view.device_type, view.device_id), CPU)
            self.assertEqual(view.data, tensor.data_ptr())
            self.assertEqual(list(view.shape[: view.ndim]), [2, 3])

    @pytest.mark.host_memory
    def test_owned_tensor(self):
        export = ctypes.PYFUNCTYPE(
            ctypes.c_int,
            ctypes.py_object,
            ctypes.POINTER(ctypes.POINTER(DLManagedTensorVersioned)),
        )(self.api.managed_tensor_from_py_object)
        before = torch.hologram.memory_allocated()
        tensor = torch.empty(1 << 20, device="hologram")
        managed = ctypes.POINTER(DLManagedTensorVersioned)()
        self.assertEqual(export(tensor, ctypes.byref(managed)), 0)
        view = managed.contents.dl_tensor
        self.assertEqual((view.device_type, view.device_id), CPU)
        self.assertEqual(view.data, tensor.data_ptr())
        del tensor
        self.assertGreater(torch.hologram.memory_allocated(), before)
        managed.contents.deleter(managed)
        self.assertEqual(torch.hologram.memory_allocated(), before)


class TestAliases(HologramTestCase):
    @pytest.mark.host_memory
    def test_as_cpu(self):
        tensor = torch.arange(6.0, device="hologram").reshape(2, 3).t()
        alias = torch.hologram.alias_as_cpu(tensor)
        self.assertTrue(alias.is_cpu)
        self.assertEqual(alias.stride(), tensor.stride())
        alias[0, 0] = 5
        self.assertEqual(tensor[0, 0].item(), 5)

    @pytest.mark.host_memory
    def test_from_cpu(self):
        tensor = torch.arange(6.0)
        alias = torch.hologram.alias_from_cpu(tensor[2:])
        self.assertTrue(alias.is_hologram)
        alias.zero_()
        self.assertEqual(tensor.tolist(), [0, 1, 0, 0, 0, 0])

    @pytest.mark.host_memory
    def test_round_trip_is_one_storage(self):
        tensor = torch.arange(6.0, device="hologram")
        first, second = (torch.hologram.alias_as_cpu(tensor).untyped_storage() for _ in range(2))
        self.assertEqual(first._cdata, second._cdata)

    @pytest.mark.host_memory
    def test_detached(self):
        tensor = torch.ones(2, device="hologram", requires_grad=True)
        self.assertFalse(torch.hologram.alias_as_cpu(tensor).requires_grad)

    def test_wrong_device(self):
        with self.assertRaisesRegex(ValueError, "on a hologram device, but got: cpu"):
            torch.hologram.alias_as_cpu(torch.ones(1))
        with self.assertRaisesRegex(ValueError, "on the cpu, but got: hologram:0"):
            torch.hologram.alias_from_cpu(torch.ones(1, device="hologram"))

    def test_no_tensor(self):
        for alias in (torch.hologram.alias_as_cpu, torch.hologram.alias_from_cpu):
            for wrong, kind in ((3, "int"), (None, "NoneType"), ([1.0], "list")):
                with self.assertRaisesRegex(TypeError, f"^expected a tensor, got {kind}$"):
                    alias(wrong)


class TestNumpy(HologramTestCase):
    def test_numpy_is_refused_as_on_cuda(self):
        tensor = torch.ones(2, device="hologram")
        for use in (tensor.numpy, lambda: np.asarray(tensor)):
            with self.assertRaisesRegex(TypeError, "hologram:0 device type tensor to numpy"):
                use()
        self.assertEqual(tensor.numpy(force=True).tolist(), [1, 1])

    def test_as_tensor(self):
        array = np.arange(3.0)
        self.assertEqual(torch.as_tensor(array, device="hologram").cpu(), torch.from_numpy(array))
        self.assertEqual(torch.tensor(array, device="hologram").tolist(), [0, 1, 2])
        self.assertEqual(torch.asarray(array, device="hologram").device.type, "hologram")


instantiate_parametrized_tests(TestExport)

if __name__ == "__main__":
    run_tests()
