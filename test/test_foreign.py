"""Code that is not ours reads memory that instructions are recorded for, in every way there is."""

from __future__ import annotations

import copy
import ctypes
import functools
import io
import pickle
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from common import GPUS, HologramTestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.utils import cpp_extension

import torch_hologram

hologram = torch.hologram
N = 1000


@functools.cache
def extension() -> ModuleType:
    """foreign.cpp, compiled into a temporary folder. Defines the operators of hologram_test."""
    folder = tempfile.TemporaryDirectory()
    extension.folder = folder  # kept for as long as the process lives
    return cpp_extension.load(
        "hologram_foreign",
        [str(Path(__file__).parent / "foreign.cpp")],
        extra_cflags=["-O0", "-std=c++20"],
        extra_include_paths=[torch_hologram.include_path()],
        build_directory=folder.name,
    )


def pending(value: float = 1.0) -> torch.Tensor:
    """Memory that holds zeros, and an instruction not yet executed that makes them `value`."""
    x = torch.zeros(N, device="hologram")
    hologram.synchronize()
    x.add_(value)
    return x


class TestForeignOperators(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        extension()
        self.ops = torch.ops.hologram_test
        # Or what an earlier test left counts as executed, but not as recorded.
        hologram.flush()
        hologram.reset_stream_stats()

    def is_pending(self) -> bool:
        counts = hologram.stream_stats()
        return counts["recorded"] > counts["executed"] + counts["failed"]

    @pytest.mark.host_memory
    def test_the_tests_can_fail(self):
        # Neither guard nor sync: the kernel sees what the memory held before.
        torch_hologram.flush_before("hologram_test::sum_declared", False)
        try:
            x = pending()
            self.assertEqual(self.ops.sum_declared(x), 0)
            self.assertTrue(self.is_pending())
        finally:
            torch_hologram.flush_before("hologram_test::sum_declared")
        self.assertEqual(extension().sum_unsynced(pending()), 0)

    @pytest.mark.host_memory
    @parametrize("name", ["sum_composite", "sum_declared", "sum_later", "sum_synced"])
    @parametrize("mode", ["plain", "requires_grad", "no_grad", "inference"])
    def test_operators_are_guarded_by_themselves(self, name, mode):
        operator = getattr(self.ops, name)
        if mode == "inference":
            with torch.inference_mode():
                self.assertEqual(operator(pending()), N)
        elif mode == "no_grad":
            with torch.no_grad():
                self.assertEqual(operator(pending()), N)
        else:
            x = pending()
            if mode == "requires_grad":
                x = x.requires_grad_() * 1.0
            self.assertEqual(operator(x), N)

    @pytest.mark.host_memory
    def test_flush_before(self):
        name = "hologram_test::sum_composite"
        torch_hologram.flush_before(name, False)
        x = pending()
        self.assertEqual(self.ops.sum_composite(x), 0)
        torch_hologram.flush_before(name)
        self.assertEqual(self.ops.sum_composite(x), N)
        torch.hologram.flush_before(name)  # twice does no harm
        self.assertEqual(self.ops.sum_composite(pending()), N)

    @pytest.mark.host_memory
    def test_sync_in_an_operator(self):
        for name, want in (("sum_synced", N), ("sum_of_next", 2 * N)):
            torch_hologram.flush_before(f"hologram_test::{name}", False)
            try:
                self.assertEqual(getattr(self.ops, name)(pending()), want)
            finally:
                torch_hologram.flush_before(f"hologram_test::{name}")

    @pytest.mark.host_memory
    def test_sync_in_a_function(self):
        x = pending()
        self.assertEqual(extension().sum_synced(x), N)
        self.assertFalse(self.is_pending())
        self.assertEqual(extension().sum_synced(torch.ones(N)), N)  # another device's

    @pytest.mark.host_memory
    def test_lists_and_optional_arguments(self):
        x, y, z = pending(), pending(2), pending(3)
        self.assertEqual(self.ops.sum_list([x, y], None), 3 * N)
        self.assertEqual(self.ops.sum_list([x], pending(4)), 5 * N)
        self.assertEqual(self.ops.sum_list([], z), 3 * N)

    @pytest.mark.host_memory
    def test_writes_come_after_what_was_recorded_to_read(self):
        x = pending()
        y = x * 2
        self.ops.store_(x, 7.0)
        self.assertEqual(y.cpu(), torch.full((N,), 2.0))
        self.assertEqual(x.cpu(), torch.full((N,), 7.0))

    @pytest.mark.host_memory
    def test_an_autograd_function_that_records_and_calls_below_autograd(self):
        x = torch.ones(N, device="hologram", requires_grad=True)
        y = self.ops.twice(x * 2)
        self.assertEqual(y.cpu(), torch.full((N,), 6.0))
        (y * 2).sum().backward()
        # 2 (of y * 2) * 1.5 (in backward) * 1.5 * 2 (in twice) * 2 (of x * 2)
        self.assertEqual(x.grad.cpu(), torch.full((N,), 18.0))

    @pytest.mark.host_memory
    def test_arguments_that_are_not_pending_flush_nothing(self):
        other = torch.ones(N, device="hologram")
        hologram.synchronize()
        x = pending()
        self.assertEqual(self.ops.sum_declared(other), N)
        self.assertTrue(self.is_pending())
        del x

    def test_which_operators_are_guarded(self):
        guarded = torch_hologram._C.guarded_operators()
        for name in ("sum_composite", "sum_declared", "twice", "sum_list"):
            self.assertIn(f"hologram_test::{name}", guarded)
        self.assertFalse([name for name in guarded if name.startswith("aten::")])

    def test_flush_before_of_no_operator(self):
        for name in ("hologram_test::nothing", "nothing", "", "hologram_test::sum_list.nothing"):
            with self.assertRaisesRegex(ValueError, "there is no operator"):
                torch_hologram.flush_before(name)
        with self.assertRaisesRegex(ValueError, "takes no tensors"):
            torch_hologram.flush_before("profiler::_record_function_enter")

    def test_other_devices_are_left_alone(self):
        self.assertEqual(self.ops.sum_composite(torch.ones(N)), N)
        self.assertEqual(self.ops.sum_later(torch.ones(N)), N)

    @pytest.mark.host_memory
    def test_an_operator_defined_while_something_is_pending(self):
        x = pending()
        library = torch.library.Library("hologram_test_late", "DEF")
        try:
            library.define("sum(Tensor x) -> float")
            library.impl("sum", lambda t: extension().sum_unsynced(t), "CompositeExplicitAutograd")
            self.assertEqual(torch.ops.hologram_test_late.sum(x), N)
            self.assertEqual(torch.ops.hologram_test_late.sum(pending()), N)
        finally:
            library._destroy()


instantiate_parametrized_tests(TestForeignOperators)


class TestPythonOperators(HologramTestCase):
    @pytest.mark.host_memory
    def test_an_operator_of_torch_library_needs_nothing(self):
        @torch.library.custom_op("hologram_test_python::total", mutates_args=())
        def total(x: torch.Tensor) -> torch.Tensor:
            values = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
            return torch.tensor([sum(values)], device=x.device)

        @total.register_fake
        def _(x):
            return x.new_empty(1)

        total.register_autograd(
            lambda ctx, grad: grad.expand(ctx.n) * 1.0,
            setup_context=lambda ctx, inputs, output: setattr(ctx, "n", inputs[0].numel()),
        )
        self.assertEqual(total(pending()).cpu(), torch.tensor([float(N)]))
        x = torch.ones(N, device="hologram", requires_grad=True)
        total(x * 2).sum().backward()
        self.assertEqual(x.grad.cpu(), torch.full((N,), 2.0))
        torch.library.opcheck(
            total,
            (torch.ones(3, device="hologram", requires_grad=True),),
            test_utils=("test_schema", "test_faketensor"),  # the others know CPU and CUDA only
        )

    @pytest.mark.host_memory
    def test_an_operator_with_a_kernel_in_python_for_the_device(self):
        library = torch.library.Library("hologram_test_kernel", "DEF")
        try:
            library.define("total(Tensor x) -> Tensor")
            library.impl(
                "total",
                lambda x: torch.from_numpy(np.from_dlpack(x).sum(keepdims=True)).hologram(),
                "PrivateUse1",
            )
            total = torch.ops.hologram_test_kernel.total
            self.assertEqual(total(pending()).cpu(), torch.tensor([float(N)]))
            with torch.inference_mode():
                self.assertEqual(total(pending()).cpu(), torch.tensor([float(N)]))
        finally:
            library._destroy()

    @pytest.mark.host_memory
    def test_an_autograd_function_in_python(self):
        class Total(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.n = x.numel()
                return torch.tensor(np.from_dlpack(x.detach() + 1).sum(), device=x.device)

            @staticmethod
            def backward(ctx, grad):
                assert np.from_dlpack(grad * 2) == 2
                return grad.expand(ctx.n)

        x = pending().requires_grad_()
        total = Total.apply(x)
        self.assertEqual(total.item(), 2 * N)
        total.backward()
        self.assertEqual(x.grad.cpu(), torch.ones(N))


def _addressed(address: int) -> float:
    return (ctypes.c_float * N).from_address(address)[N - 1]


def _saved(x: torch.Tensor) -> float:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)[-1].item()


def _set(x: torch.Tensor) -> float:
    return torch.empty(0, device="hologram").set_(x.untyped_storage(), 0, (N,)).cpu()[-1].item()


def _exchanged(x: torch.Tensor) -> float:
    # What tvm-ffi and others do: the DLPack exchange table of the type.
    capsule = type(x).__dlpack_c_exchange_api__
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = get(capsule, b"dlpack_exchange_api")
    # DLPackExchangeAPI: version (2 x uint32), prev_api, then five functions.
    entry = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[2 + EXCHANGE_DLTENSOR]
    view = (ctypes.c_uint64 * 8)()  # DLTensor: data, device, ndim, dtype, shape, strides, offset
    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(entry)
    assert function(x, ctypes.addressof(view)) == 0
    return _addressed(view[0] + view[5])


# managed_tensor_allocator, managed_tensor_from_py_object, managed_tensor_to_py_object, dltensor_...
EXCHANGE_DLTENSOR = 3

ROUTES = {
    "data_ptr": lambda x: _addressed(x.data_ptr()),
    "view_data_ptr": lambda x: _addressed(x.view(N // 10, 10)[1:].data_ptr() - 40),
    "untyped_storage_data_ptr": lambda x: _addressed(x.untyped_storage().data_ptr()),
    "untyped_storage_bytes": lambda x: (
        np.array(x.untyped_storage().tolist(), np.uint8).view(np.float32)[-1].item()
    ),
    "untyped_storage_cpu": lambda x: _addressed(x.untyped_storage().cpu().data_ptr()),
    "untyped_storage_clone": lambda x: _addressed(x.untyped_storage().clone().data_ptr()),
    "item": lambda x: x[-1].item(),
    "tolist": lambda x: x.tolist()[-1],
    "float": lambda x: float(x[-1]),
    "print": lambda x: float(str(x[-1:]).split("[")[1].split("]")[0]),
    "format": lambda x: float(f"{x[-1]}"),
    "cpu": lambda x: x.cpu()[-1].item(),
    "to_cpu_non_blocking": lambda x: x.to("cpu", non_blocking=True)[-1].item(),
    "copy_into_cpu": lambda x: torch.empty(N).copy_(x)[-1].item(),
    "cpu_numpy": lambda x: x.cpu().numpy()[-1],
    "numpy_force": lambda x: x.numpy(force=True)[-1],
    "np_from_dlpack": lambda x: np.from_dlpack(x)[-1],
    "dlpack_capsule": lambda x: (
        torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)).cpu()[-1].item()
    ),
    "dlpack_method": lambda x: torch.utils.dlpack.from_dlpack(x.__dlpack__())[-1].item(),
    "from_dlpack": lambda x: torch.from_dlpack(x).cpu()[-1].item(),
    "exchange_api": _exchanged,
    "alias_as_cpu": lambda x: hologram.alias_as_cpu(x)[-1].item(),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)).cpu()[-1].item(),
    "deepcopy": lambda x: copy.deepcopy(x).cpu()[-1].item(),
    "save": _saved,
    "set_": _set,
    "share_memory_": lambda x: x.share_memory_().cpu()[-1].item(),
    "share_memory_data_ptr": lambda x: _addressed(x.share_memory_().data_ptr()),
    "equal": lambda x: float(torch.equal(x, torch.ones(N, device="hologram"))),
    "bool": lambda x: float(bool(x[-1] == 1)),
    "clone": lambda x: x.clone().cpu()[-1].item(),
    "nonzero": lambda x: len(x.nonzero()) / N,
    "delegated": lambda x: x.flip(0)[0].item(),
    "sparse": lambda x: x.to_sparse().values()[-1].item(),
    "resize_": lambda x: x.resize_(2 * N).cpu()[N - 1].item(),
    "storage_resize_": lambda x: (x.untyped_storage().resize_(8 * N), x.cpu()[-1].item())[1],
    "as_strided": lambda x: x.as_strided((1,), (1,), N - 1).item(),
    "other_dtype": lambda x: x.view(torch.int32).cpu().view(torch.float32)[-1].item(),
}
if hasattr(torch.Tensor, "const_data_ptr"):
    ROUTES["const_data_ptr"] = lambda x: _addressed(x.const_data_ptr())


class TestRoutes(HologramTestCase):
    """Each way Python has to a tensor's values, right after an instruction was recorded."""

    @pytest.mark.host_memory
    @parametrize("route", sorted(ROUTES))
    def test_a_recorded_add_is_seen(self, route):
        if route == "exchange_api" and not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            self.skipTest("this torch has no DLPack exchange interface")
        for _ in range(2):
            self.assertEqual(ROUTES[route](pending()), 1.0)

    @pytest.mark.host_memory
    def test_typed_storage(self):
        x = pending()
        self.assertEqual(_addressed(x._typed_storage()._data_ptr()), 1.0)

    def test_there_is_no_array_interface(self):
        x = pending()
        if not GPUS:
            with self.assertRaises(AttributeError):
                x.__cuda_array_interface__  # noqa: B018
        with self.assertRaises(TypeError):
            np.asarray(x)
        with self.assertRaises(TypeError):
            memoryview(x)

    @pytest.mark.host_memory
    def test_instructions_on_exported_memory_run_at_once(self):
        x = pending()
        array = np.from_dlpack(x)
        x.add_(1)
        self.assertEqual(array[-1], 2.0)
        capsule = x.__dlpack__()
        x.add_(1)
        self.assertEqual(array[-1], 3.0)
        del capsule

    def test_instructions_on_memory_exported_as_the_device_run_at_once(self):
        # The other tensor has a storage of its own over the same memory.
        x = pending()
        y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
        for one, other in ((x, y), (y, x)):
            one.add_(1)
            other.mul_(2)
            self.assertEqual(other.cpu(), one.cpu())
        self.assertEqual(x.cpu(), torch.full((N,), 10.0))

    def test_a_module_and_an_optimizer_saved(self):
        layer = torch.nn.Linear(4, 4, device="hologram")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9)
        layer(torch.ones(2, 4, device="hologram")).sum().backward()
        optimizer.step()
        file = io.BytesIO()
        torch.save([layer.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        weights, _ = torch.load(file, map_location="cpu", weights_only=True)
        self.assertEqual(weights["weight"], layer.weight.detach().cpu())

    @pytest.mark.host_memory
    def test_another_process(self):
        context = torch.multiprocessing.get_context("spawn")
        queue, answer = context.Queue(), context.Queue()
        process = context.Process(target=_read_in_child, args=(queue, answer))
        process.start()
        x = pending()
        queue.put(x)
        self.assertEqual(answer.get(timeout=120), 1.0)
        process.join()


def _read_in_child(queue, answer) -> None:
    answer.put(queue.get().cpu()[-1].item())


instantiate_parametrized_tests(TestRoutes)

if __name__ == "__main__":
    run_tests()
