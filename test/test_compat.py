"""hologram_ffi, hologram and hologram_torch, as programs of the earlier SDK use them."""

from __future__ import annotations

import ctypes
import gc
import inspect
import json
import math
import re
import sys
import types

import numpy as np
import pytest
import torch
from common import BACKEND, BACKENDS, GPUS, HOST_MEMORY, ROOT, HologramTestCase, run_python
from torch.testing._internal.common_utils import run_tests

import torch_hologram as hg

# Every function of the handle API with its parameters.
SIGNATURES = """
new_executor()
new_executor_with_backend(name)
new_executor_auto()
executor_cleanup(executor)
executor_backend(executor)
executor_synchronize(executor)
executor_allocate_buffer(executor, n, dtype)
executor_allocate_boundary_buffer(executor, class_, width, height, dtype)
buffer_length(buffer)
buffer_is_empty(buffer)
buffer_is_linear(buffer)
buffer_is_boundary(buffer)
buffer_pool(buffer)
buffer_element_size(buffer)
buffer_size_bytes(buffer)
buffer_class_index(buffer)
buffer_cleanup(buffer)
buffer_copy_from_slice(executor, buffer, json)
buffer_to_vec(executor, buffer)
buffer_copy_to_slice(executor, buffer)
buffer_copy_from_canonical_slice(executor, buffer, json)
buffer_canonicalize_all(executor, buffer)
buffer_verify_canonical(executor, buffer)
buffer_fill(executor, buffer, value, n)
buffer_copy(executor, source, destination, n)
buffer_copy_from_bytes(executor, buffer, bytes)
buffer_to_bytes(executor, buffer)
buffer_as_ptr(executor, buffer)
buffer_as_mut_ptr(executor, buffer)
vector_add_f32(executor, a, b, c, n)
vector_sub_f32(executor, a, b, c, n)
vector_mul_f32(executor, a, b, c, n)
vector_div_f32(executor, a, b, c, n)
vector_min_f32(executor, a, b, c, n)
vector_max_f32(executor, a, b, c, n)
vector_abs_f32(executor, a, c, n)
vector_neg_f32(executor, a, c, n)
vector_relu_f32(executor, a, c, n)
vector_clip_f32(executor, a, c, n, low, high)
scalar_add_f32(executor, a, c, n, scalar)
scalar_mul_f32(executor, a, c, n, scalar)
memcpy_f32(executor, a, c, n)
fill_f32(executor, c, n, value)
mad_f32(executor, a, b, c, d, n)
sqrt_f32(executor, input, out, n)
exp_f32(executor, input, out, n)
log_f32(executor, input, out, n)
sigmoid_f32(executor, input, out, n)
tanh_f32(executor, input, out, n)
gelu_f32(executor, input, out, n)
softmax_f32(executor, input, out, n)
reduce_sum_f32(executor, input, out, n)
reduce_min_f32(executor, input, out, n)
reduce_max_f32(executor, input, out, n)
mse_loss_f32(executor, predictions, targets, out, n)
cross_entropy_loss_f32(executor, predictions, targets, out, n)
binary_cross_entropy_loss_f32(executor, predictions, targets, out, n)
gemm_f32(executor, a, b, c, m, n, k)
matvec_f32(executor, a, x, y, m, n)
vector_add_i32(executor, a, b, c, n)
vector_sub_i32(executor, a, b, c, n)
vector_mul_i32(executor, a, b, c, n)
vector_div_i32(executor, a, b, c, n)
tensor_from_buffer(buffer, shape_json)
tensor_from_buffer_with_strides(buffer, shape_json, strides_json)
tensor_shape(tensor)
tensor_strides(tensor)
tensor_ndim(tensor)
tensor_numel(tensor)
tensor_offset(tensor)
tensor_is_contiguous(tensor)
tensor_buffer(tensor)
tensor_cleanup(tensor)
tensor_contiguous(executor, tensor)
tensor_reshape(executor, tensor, shape_json)
tensor_matmul(executor, a, b)
tensor_transpose(tensor)
tensor_permute(tensor, dims_json)
tensor_view_1d(tensor)
tensor_select(tensor, dim, index)
tensor_narrow(tensor, dim, start, length)
tensor_slice(tensor, dim, start, end, step)
tensor_is_broadcast_compatible_with(a, b)
tensor_broadcast_shapes(a_json, b_json)
tensor_to_dlpack(executor, tensor)
tensor_dlpack_device_type(executor)
tensor_dlpack_device_id(executor)
tensor_from_dlpack_capsule(executor, address)
get_version()
clear_all_registries()
is_cuda_available()
is_metal_available()
"""
FUNCTIONS = dict(line.rstrip(")").split("(") for line in SIGNATURES.split("\n") if line)

# Function -> an expression that calls it, and its value. `e` is an executor; `a`, `b` and `c` are
# buffers of 4 elements, [1, -2, 3, -4], [2, 4, 8, 16] and of 77; `i`, `j`, `k` of int32, [7, -7, 1,
# 2], [2, 2, 3, 4] and 77; `p` = [0.5, 0.25, 0.5, 1] and `y` = [1, 0, 1, 1] are predictions and
# targets, `s` = [1, 4, 9, 16]. `t` is a tensor over [0 .. 5] of shape [2, 3]. after(_, buffer) and
# read(buffer) read a buffer, of(tensor) a tensor.
EXAMPLES = {
    "new_executor": ("buffer_length(executor_allocate_buffer(new_executor(), 3))", 3),
    "new_executor_with_backend": (
        f'executor_backend(new_executor_with_backend("{BACKEND}"))',
        BACKEND,
    ),
    "new_executor_auto": ("executor_backend(new_executor_auto())", BACKEND),
    "executor_cleanup": ("executor_cleanup(e)", None),
    "executor_backend": ("executor_backend(e)", BACKEND),
    "executor_synchronize": ("executor_synchronize(e)", None),
    "executor_allocate_buffer": ("read(executor_allocate_buffer(e, 3))", [0.0, 0.0, 0.0]),
    "executor_allocate_boundary_buffer": (
        "read(executor_allocate_boundary_buffer(e, 90, 2, 8))",
        [0.0] * 4,
    ),
    "buffer_length": ("buffer_length(a)", 4),
    "buffer_is_empty": (
        "buffer_is_empty(a), buffer_is_empty(executor_allocate_buffer(e, 0))",
        (0, 1),
    ),
    "buffer_is_linear": ("buffer_is_linear(a), buffer_is_linear(boundary)", (1, 0)),
    "buffer_is_boundary": ("buffer_is_boundary(a), buffer_is_boundary(boundary)", (0, 1)),
    "buffer_pool": ("buffer_pool(a), buffer_pool(boundary)", ("linear", "boundary")),
    "buffer_element_size": ("buffer_element_size(a)", 4),
    "buffer_size_bytes": ("buffer_size_bytes(a)", 16),
    "buffer_class_index": ("buffer_class_index(boundary), buffer_class_index(a)", (91, 0)),
    "buffer_cleanup": ("buffer_cleanup(a)", None),
    "buffer_copy_from_slice": (
        'after(buffer_copy_from_slice(e, a, "[4, 3.5, -2, 1]"), a)',
        [4.0, 3.5, -2.0, 1.0],
    ),
    "buffer_to_vec": ("buffer_to_vec(e, a)", "[1.0, -2.0, 3.0, -4.0]"),
    "buffer_copy_to_slice": ("buffer_copy_to_slice(e, a)", "[1.0, -2.0, 3.0, -4.0]"),
    # 1.0 is the bytes 00 00 80 3f, of which 3f becomes 3e; 2.0 is 00 00 00 40.
    "buffer_copy_from_canonical_slice": (
        'after(buffer_copy_from_canonical_slice(e, a, "[1, 2, 0, -2]"), a)',
        [0.25, 2.0, 0.0, -2.0],
    ),
    "buffer_canonicalize_all": (
        "after(buffer_canonicalize_all(e, a), a)",
        [0.25, -2.0, 3.0, -4.0],
    ),
    "buffer_verify_canonical": (
        "buffer_verify_canonical(e, a), buffer_canonicalize_all(e, a), "
        "buffer_verify_canonical(e, a)",
        (0, None, 1),
    ),
    "buffer_fill": ("after(buffer_fill(e, a, 2.5, 3), a)", [2.5, 2.5, 2.5, -4.0]),
    "buffer_copy": ("after(buffer_copy(e, a, c, 2), c)", [1.0, -2.0, 77.0, 77.0]),
    "buffer_copy_from_bytes": (
        "after(buffer_copy_from_bytes(e, a, buffer_to_bytes(e, b)), a)",
        [2.0, 4.0, 8.0, 16.0],
    ),
    "buffer_to_bytes": ("buffer_to_bytes(e, b)", np.array([2, 4, 8, 16], "f4").tobytes()),
    "buffer_as_ptr": ("at(buffer_as_ptr(e, b))", 2.0),
    "buffer_as_mut_ptr": ("put(buffer_as_mut_ptr(e, b), 5.0), read(b)[0]", (None, 5.0)),
    "vector_add_f32": ("after(vector_add_f32(e, a, b, c, 4), c)", [3.0, 2.0, 11.0, 12.0]),
    "vector_sub_f32": ("after(vector_sub_f32(e, a, b, c, 4), c)", [-1.0, -6.0, -5.0, -20.0]),
    "vector_mul_f32": ("after(vector_mul_f32(e, a, b, c, 4), c)", [2.0, -8.0, 24.0, -64.0]),
    "vector_div_f32": ("after(vector_div_f32(e, a, b, c, 4), c)", [0.5, -0.5, 0.375, -0.25]),
    "vector_min_f32": ("after(vector_min_f32(e, a, b, c, 4), c)", [1.0, -2.0, 3.0, -4.0]),
    "vector_max_f32": ("after(vector_max_f32(e, a, b, c, 3), c)", [2.0, 4.0, 8.0, 77.0]),
    "vector_abs_f32": ("after(vector_abs_f32(e, a, c, 4), c)", [1.0, 2.0, 3.0, 4.0]),
    "vector_neg_f32": ("after(vector_neg_f32(e, a, c, 4), c)", [-1.0, 2.0, -3.0, 4.0]),
    "vector_relu_f32": ("after(vector_relu_f32(e, a, c, 4), c)", [1.0, 0.0, 3.0, 0.0]),
    "vector_clip_f32": (
        "after(vector_clip_f32(e, a, c, 4, -2.5, 2.0), c)",
        [1.0, -2.0, 2.0, -2.5],
    ),
    "scalar_add_f32": ("after(scalar_add_f32(e, a, c, 4, 0.5), c)", [1.5, -1.5, 3.5, -3.5]),
    "scalar_mul_f32": ("after(scalar_mul_f32(e, a, c, 4, 2.0), c)", [2.0, -4.0, 6.0, -8.0]),
    "memcpy_f32": ("after(memcpy_f32(e, a, c, 3), c)", [1.0, -2.0, 3.0, 77.0]),
    "fill_f32": ("after(fill_f32(e, c, 2, 0.5), c)", [0.5, 0.5, 77.0, 77.0]),
    "mad_f32": ("after(mad_f32(e, a, b, a, c, 4), c)", [3.0, -10.0, 27.0, -68.0]),
    "sqrt_f32": ("after(sqrt_f32(e, s, c, 4), c)", [1.0, 2.0, 3.0, 4.0]),
    "exp_f32": ("after(exp_f32(e, a, c, 4), c)", [math.exp(x) for x in (1, -2, 3, -4)]),
    "log_f32": ("after(log_f32(e, s, c, 4), c)", [math.log(x) for x in (1, 4, 9, 16)]),
    "sigmoid_f32": (
        "after(sigmoid_f32(e, a, c, 4), c)",
        [1 / (1 + math.exp(-x)) for x in (1, -2, 3, -4)],
    ),
    "tanh_f32": ("after(tanh_f32(e, a, c, 4), c)", [math.tanh(x) for x in (1, -2, 3, -4)]),
    "gelu_f32": (
        "after(gelu_f32(e, a, c, 4), c)",
        [
            x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
            for x in (1, -2, 3, -4)
        ],
    ),
    "softmax_f32": (
        "after(softmax_f32(e, a, c, 3), c)",
        [math.exp(x) / sum(map(math.exp, (1, -2, 3))) for x in (1, -2, 3)] + [77.0],
    ),
    "reduce_sum_f32": (
        "reduce_sum_f32(e, a, c, 3), reduce_sum_f32(e, a, 4), read(c)",
        (2.0, -2.0, [2.0, 77.0, 77.0, 77.0]),
    ),
    "reduce_min_f32": (
        "reduce_min_f32(e, a, c, 3), reduce_min_f32(e, a, 4), read(c)[0]",
        (-2.0, -4.0, -2.0),
    ),
    "reduce_max_f32": (
        "reduce_max_f32(e, a, c, 2), reduce_max_f32(e, a, n=4, out=None), read(c)[0]",
        (1.0, 3.0, 1.0),
    ),
    "mse_loss_f32": ("mse_loss_f32(e, a, b, c, 2), read(c)[0]", (18.5, 18.5)),
    "cross_entropy_loss_f32": (
        "cross_entropy_loss_f32(e, p, y, c, 4), read(c)[0]",
        (math.log(2) / 2, math.log(2) / 2),
    ),
    "binary_cross_entropy_loss_f32": (
        "binary_cross_entropy_loss_f32(e, p, y, c, 4), read(c)[1:]",
        ((2 * math.log(2) - math.log(0.75)) / 4, [77.0] * 3),
    ),
    # [1, -2] is 1 by 2, and [2, 4] 2 by 1: of m = n = 1, k = 2.
    "gemm_f32": (
        "after(gemm_f32(e, a, b, c, 1, 1, 2), c), after(gemm_f32(e, a, b, c, 1, 2, 2), c)",
        ([-6.0, 77.0, 77.0, 77.0], [-14.0, -28.0, 77.0, 77.0]),
    ),
    "matvec_f32": ("after(matvec_f32(e, a, b, c, 2, 2), c)", [-6.0, -10.0, 77.0, 77.0]),
    "vector_add_i32": ("after(vector_add_i32(e, i, j, k, 4), k)", [9, -5, 4, 6]),
    "vector_sub_i32": ("after(vector_sub_i32(e, i, j, k, 4), k)", [5, -9, -2, -2]),
    "vector_mul_i32": ("after(vector_mul_i32(e, i, j, k, 4), k)", [14, -14, 3, 8]),
    "vector_div_i32": ("after(vector_div_i32(e, i, j, k, 4), k)", [3, -3, 0, 0]),
    "tensor_from_buffer": ('of(tensor_from_buffer(a, "[2, 2]"))', [[1.0, -2.0], [3.0, -4.0]]),
    "tensor_from_buffer_with_strides": (
        'of(tensor_from_buffer_with_strides(a, "[2, 3]", "[1, 0]"))',
        [[1.0] * 3, [-2.0] * 3],
    ),
    "tensor_shape": ("tensor_shape(t)", "[2, 3]"),
    "tensor_strides": ("tensor_strides(t)", "[3, 1]"),
    "tensor_ndim": ("tensor_ndim(t)", 2),
    "tensor_numel": ("tensor_numel(t)", 6),
    "tensor_offset": ("tensor_offset(t), tensor_offset(tensor_select(t, 0, 1))", (0, 3)),
    "tensor_is_contiguous": (
        "tensor_is_contiguous(t), tensor_is_contiguous(tensor_transpose(t))",
        (1, 0),
    ),
    "tensor_buffer": ('tensor_buffer(tensor_from_buffer(a, "[4]")) == a', True),
    "tensor_cleanup": ("tensor_cleanup(t)", None),
    "tensor_contiguous": (
        "read(tensor_buffer(tensor_contiguous(e, tensor_transpose(t))))",
        [0.0, 3.0, 1.0, 4.0, 2.0, 5.0],
    ),
    "tensor_reshape": (
        'of(tensor_reshape(e, t, "[3, -1]")), of(tensor_reshape(e, tensor_transpose(t), "[6]"))',
        ([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]),
    ),
    "tensor_matmul": (
        "of(tensor_matmul(e, t, tensor_transpose(t)))",
        [[5.0, 14.0], [14.0, 50.0]],
    ),
    "tensor_transpose": ("of(tensor_transpose(t))", [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]),
    "tensor_permute": ('of(tensor_permute(t, "[1, 0]"))', [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]),
    "tensor_view_1d": ("tensor_shape(tensor_view_1d(t))", "[6]"),
    "tensor_select": ("of(tensor_select(t, 1, 2))", [2.0, 5.0]),
    "tensor_narrow": ("of(tensor_narrow(t, 1, 1, 2))", [[1.0, 2.0], [4.0, 5.0]]),
    "tensor_slice": (
        "of(tensor_slice(t, 1, -1, -1, 2)), of(tensor_slice(t, 1, 1, 3, -1)), "
        "of(tensor_slice(t, 0, 1, -1, -1))",
        ([[0.0, 2.0], [3.0, 5.0]], [[1.0, 2.0], [4.0, 5.0]], [[3.0, 4.0, 5.0]]),
    ),
    "tensor_is_broadcast_compatible_with": (
        "tensor_is_broadcast_compatible_with(t, tensor_select(t, 0, 0)), "
        "tensor_is_broadcast_compatible_with(t, tensor_transpose(t))",
        (1, 0),
    ),
    "tensor_broadcast_shapes": ('tensor_broadcast_shapes("[2, 1, 3]", "[4, 1]")', "[2, 4, 3]"),
    "tensor_to_dlpack": (
        "of(json.loads(tensor_from_dlpack_capsule(e, tensor_to_dlpack(e, t)))['tensor_handle'])",
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
    ),
    "tensor_dlpack_device_type": (
        "tensor_dlpack_device_type(e)",
        1 if HOST_MEMORY else 2 if GPUS else 12,
    ),
    "tensor_dlpack_device_id": ("tensor_dlpack_device_id(e)", 0),
    "tensor_from_dlpack_capsule": (
        "read(json.loads(tensor_from_dlpack_capsule(e, tensor_to_dlpack(e, tensor_transpose(t))))"
        "['buffer_handle'])",
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
    ),
    "get_version": ("get_version()", hg.__version__),
    "clear_all_registries": ("clear_all_registries()", None),
    "is_cuda_available": ("is_cuda_available()", "cuda" in BACKENDS),
    "is_metal_available": ("is_metal_available()", False),
}


class CompatTestCase(HologramTestCase):
    def setUp(self):
        super().setUp()
        hg.compat.install()
        import hologram_ffi

        self.ffi = hologram_ffi
        self.e = hologram_ffi.new_executor_with_backend(BACKEND)

    def tearDown(self):
        self.ffi.clear_all_registries()
        hg.compat.uninstall()
        super().tearDown()

    def buffer(self, values, dtype="float32"):
        handle = self.ffi.executor_allocate_buffer(self.e, len(values), dtype)
        self.ffi.buffer_copy_from_slice(self.e, handle, json.dumps(values))
        return handle

    def values(self, handle):
        return json.loads(self.ffi.buffer_to_vec(self.e, handle))

    def elements(self, tensor):
        """A tensor's, through a buffer of its own."""
        ffi = self.ffi
        flat = ffi.tensor_buffer(ffi.tensor_contiguous(self.e, tensor))
        first = ffi.tensor_offset(ffi.tensor_contiguous(self.e, tensor))
        shape = json.loads(ffi.tensor_shape(tensor))
        return np.array(self.values(flat)[first:][: math.prod(shape)]).reshape(shape).tolist()


class TestFunctions(CompatTestCase):
    def names(self):
        e, buffer = self.e, self.buffer
        return {
            **{name: getattr(self.ffi, name) for name in FUNCTIONS},
            "json": json,
            "e": e,
            "a": buffer([1, -2, 3, -4]),
            "b": buffer([2, 4, 8, 16]),
            "c": buffer([77] * 4),
            "i": buffer([7, -7, 1, 2], "int32"),
            "j": buffer([2, 2, 3, 4], "int32"),
            "k": buffer([77] * 4, "int32"),
            "p": buffer([0.5, 0.25, 0.5, 1]),
            "y": buffer([1, 0, 1, 1]),
            "s": buffer([1, 4, 9, 16]),
            "t": self.ffi.tensor_from_buffer(buffer(list(range(6))), "[2, 3]"),
            "boundary": self.ffi.executor_allocate_boundary_buffer(e, 91, 1, 16),
            "read": self.values,
            "after": lambda _, handle: self.values(handle),
            "of": self.elements,
            "at": lambda address: ctypes.c_float.from_address(address).value,
            "put": lambda address, x: (
                ctypes.memmove(address, ctypes.byref(ctypes.c_float(x)), 4) and None
            ),
        }

    def test_every_function_is_there_with_its_parameters(self):
        self.assertEqual(set(self.ffi.__all__), set(FUNCTIONS))
        for name, parameters in FUNCTIONS.items():
            signature = inspect.signature(getattr(self.ffi, name))
            self.assertEqual(", ".join(signature.parameters), parameters, name)
            self.assertTrue(getattr(self.ffi, name).__doc__, name)

    def test_every_function_is_documented(self):
        page = (ROOT / "docs" / "earlier-sdk.md").read_text()
        listed = page.split("begin: functions")[1].split("end: functions")[0]
        calls = re.findall(r"`(\w+)\(([^)]*)\)`", listed)
        self.assertEqual(sorted(calls), sorted(FUNCTIONS.items()))

    def test_an_example_of_every_function(self):
        self.assertEqual(set(EXAMPLES), set(FUNCTIONS))
        for name, (expression, expected) in EXAMPLES.items():
            with self.subTest(name=name):
                self.assertIn(f"{name}(", expression)
                if name in ("buffer_as_ptr", "buffer_as_mut_ptr") and not HOST_MEMORY:
                    with self.assertRaisesRegex(RuntimeError, "is not the host's"):
                        eval(expression, self.names())
                else:
                    got = eval(expression, self.names())
                    self.assertIs(type(got), type(expected))
                    self.assertEqual(got, expected, rtol=2e-6, atol=1e-6)
            self.ffi.clear_all_registries()
            self.e = self.ffi.new_executor_with_backend(BACKEND)

    def test_scalars_before_the_number_of_elements_are_refused(self):
        names = self.names()
        for call in (
            "scalar_mul_f32(e, a, c, 2.0, 4)",
            "scalar_add_f32(e, a, c, 2.0, 4)",
            "vector_clip_f32(e, a, c, -1.0, 1.0, 4)",
            "vector_add_f32(e, a, b, c, 4.0)",
            "fill_f32(e, c, 2.0, 4)",
            "buffer_fill(e, c, 4, 2.0)",
            "buffer_copy(e, a, c, 4.0)",
            "reduce_sum_f32(e, a, c, 4.0)",
            "reduce_sum_f32(e, a, 4.0)",
            "mse_loss_f32(e, a, b, c, 4.0)",
            "gemm_f32(e, a, b, c, 2.0, 2, 2)",
            "matvec_f32(e, a, b, c, 2, 2.0)",
            "executor_allocate_buffer(e, 4.0)",
        ):
            with self.subTest(call=call):
                with self.assertRaisesRegex(TypeError, "integer"):
                    eval(call, names)
        self.assertEqual(self.values(names["c"]), [77.0] * 4)

    def test_a_handle_is_no_number_of_elements(self):
        names = self.names()
        for call in ("reduce_sum_f32(e, a, c)", "mse_loss_f32(e, a, b, c)"):
            with self.assertRaisesRegex(ValueError, f"n is {names['c']}, but .* has 4 elements"):
                eval(call, names)

    def test_wrong_handles(self):
        """Every handle of every function: unknown, of another kind, of another type."""
        kinds = {
            "executor": "executor",
            **dict.fromkeys("buffer source destination a b c d x y input out".split(), "buffer"),
            **dict.fromkeys(("predictions", "targets"), "buffer"),
            "tensor": "tensor",
        }
        names = self.names()
        right = {"executor": names["e"], "buffer": names["a"], "tensor": names["t"]}
        numbers = {"n": 4, "m": 2, "k": 2, "value": 1.0, "scalar": 1.0, "low": 0.0, "high": 1.0}
        numbers |= {"class_": 90, "width": 1, "height": 16, "dtype": "float32", "dim": 0}
        numbers |= {"index": 0, "start": 0, "length": 1, "end": 1, "step": 1, "address": 1}
        numbers |= {"json": "[1,2,3,4]", "shape_json": "[4]", "strides_json": "[1]"}
        numbers |= {"dims_json": "[1, 0]", "bytes": b"0" * 16}
        tried = 0
        for name, parameters in FUNCTIONS.items():
            given = {}
            for parameter in filter(None, parameters.split(", ")):
                kind = kinds.get(parameter)
                if parameter in ("a", "b") and name.startswith("tensor_"):
                    kind = "tensor"
                given[parameter] = (kind, right[kind] if kind else numbers.get(parameter, "[1]"))
            for parameter, (kind, _) in given.items():
                if kind is None:
                    continue
                other = right["tensor" if kind == "executor" else "executor"]
                others = "a tensor" if kind == "executor" else "an executor"
                arguments = {p: value for p, (_, value) in given.items()}
                for wrong, error, text in (
                    (0, ValueError, f"no {kind} has the handle 0: it was cleaned up or never"),
                    (
                        other,
                        ValueError,
                        f"no {kind} has .* {other}: it is that of {others}",
                    ),
                    ("1", TypeError, f"{kind} handles are integers, not str"),
                    (True, TypeError, f"{kind} handles are integers, not bool"),
                ):
                    tried += 1
                    with self.subTest(name=name, parameter=parameter, wrong=wrong):
                        with self.assertRaisesRegex(error, text):
                            getattr(self.ffi, name)(**{**arguments, parameter: wrong})
        self.assertGreater(tried, 600)
        self.assertEqual(self.values(names["b"]), [2.0, 4.0, 8.0, 16.0])

    def test_what_does_not_fit(self):
        names = self.names()
        for call, kind, text in (
            ("executor_allocate_buffer(e, -1)", ValueError, "0 elements or more, not -1"),
            ("executor_allocate_buffer(e, 1, 'complex32')", TypeError, "complex32"),
            ("executor_allocate_boundary_buffer(e, 96, 1, 4)", ValueError, "class 96 is out of"),
            ("vector_add_f32(e, a, b, c, 5)", ValueError, "n is 5, but a has 4 elements"),
            ("vector_add_f32(e, a, i, c, 4)", TypeError, "b is a buffer of int32, not of float32"),
            ("vector_add_i32(e, i, j, a, 4)", TypeError, "c is a buffer of float32, not of int32"),
            ("reduce_max_f32(e, a, -1)", ValueError, "n is -1, which is negative"),
            ("reduce_min_f32(e, a, c, 0)", RuntimeError, "reduce_min: there is no element"),
            (
                "reduce_sum_f32(e, a, executor_allocate_buffer(e, 0), 4)",
                ValueError,
                "reduce_sum_f32: n is 1, but out has 0 elements",
            ),
            ("mse_loss_f32(e, a, b, i, 4)", TypeError, "mse_loss_f32: out is a buffer of int32"),
            ("gemm_f32(e, a, b, c, 2, 3, 2)", ValueError, r"k \* n is 6, but b has 4 elements"),
            ("buffer_fill(e, a, 1.0, 5)", ValueError, "buffer_fill: n is 5, but buffer has 4"),
            ("buffer_fill(e, i, 1.5, 4)", RuntimeError, "a buffer of int32 cannot hold 1.5"),
            (
                "buffer_copy(e, a, i, 4)",
                TypeError,
                "destination is a buffer of int32, not of float",
            ),
            ("buffer_copy(e, a, c, -1)", ValueError, "n is -1, which is negative"),
            ("buffer_copy_from_bytes(e, a, b'123')", ValueError, "3 bytes for a buffer of 16"),
            ("tensor_from_buffer(a, '[2, 3]')", ValueError, r"\[2, 3\] is of 6 elements, .* has 4"),
            ("tensor_from_buffer(a, '[-4]')", ValueError, r"the size -4 in \[-4\] is negative"),
            (
                "tensor_from_buffer_with_strides(a, '[2, 2]', '[3, 1]')",
                ValueError,
                r"shape \[2, 2\] with the strides \[3, 1\] reaches over 5 elements, .* has 4",
            ),
            (
                "tensor_from_buffer_with_strides(a, '[2, 2]', '[1]')",
                ValueError,
                r"1 strides \[1\] for the shape \[2, 2\]",
            ),
            ("tensor_reshape(e, t, '[4]')", ValueError, r"shape '\[4\]' is invalid for .* size 6"),
            ("tensor_transpose(tensor_view_1d(t))", ValueError, r"not the shape \[6\]"),
            ("tensor_view_1d(tensor_transpose(t))", ValueError, "is not contiguous"),
            ("tensor_permute(t, '[0, 0]')", RuntimeError, "dims"),
            ("tensor_select(t, 0, 2)", IndexError, "index 2 out of range"),
            ("tensor_select(t, 2, 0)", IndexError, "Dimension out of range"),
            ("tensor_narrow(t, 1, 2, 2)", RuntimeError, r"start \(2\) \+ length \(2\)"),
            ("tensor_slice(t, 1, 0, 4, 1)", ValueError, "end 4 and step 1 .* of 3 elements"),
            ("tensor_slice(t, 1, 0, 3, 0)", ValueError, "step 0"),
            ("tensor_matmul(e, t, t)", RuntimeError, "2x3 and 2x3"),
            (
                "tensor_broadcast_shapes('[2]', '[3]')",
                ValueError,
                r"\[2\] and \[3\] do not broadcast",
            ),
            ("tensor_from_dlpack_capsule(e, 0)", ValueError, "0 is not the address"),
            ("tensor_from_dlpack_capsule(e, '1')", TypeError, "an address is an integer, not str"),
            ("new_executor_with_backend('metal')", RuntimeError, "'metal' is not available"),
            ("new_executor_with_backend('rocm')", ValueError, "unknown hologram backend 'rocm'"),
        ):
            with self.subTest(call=call):
                with self.assertRaisesRegex(kind, text):
                    eval(call, names)

    def test_bad_json(self):
        names = self.names()
        for text, kind, message in (
            ("[1, 2]", ValueError, "2 elements for a buffer of 4 elements"),
            ("3", ValueError, "expected a JSON array, got '3'"),
            ("[1, 2", ValueError, r"'\[1, 2' is not JSON: Expecting"),
            ("", ValueError, "'' is not JSON"),
            ("[" * 100_000, ValueError, "nested too deeply|is not JSON"),
            ('[1, "2", null, [3]]', TypeError, r"element 1 is '\"2\"', where a number"),
            ("[true, 1, 2, 3]", TypeError, "element 0 is 'true', where a number .* float32"),
            ([1, 2, 3, 4], TypeError, "expected JSON in a string, got list"),
        ):
            for function in ("buffer_copy_from_slice", "buffer_copy_from_canonical_slice"):
                with self.subTest(text=text[:20], function=function):
                    with self.assertRaisesRegex(kind, message):
                        names[function](self.e, names["a"], text)
        for text, kind, message in (
            ("[1.5]", TypeError, "element 0 is '1.5', where an integer belongs"),
            ("{}", ValueError, "expected a JSON array, got '{}'"),
            ("[4", ValueError, "is not JSON"),
        ):
            for call in (
                "tensor_from_buffer(a, text)",
                "tensor_from_buffer_with_strides(a, text, '[1]')",
                "tensor_from_buffer_with_strides(a, '[4]', text)",
                "tensor_reshape(e, t, text)",
                "tensor_permute(t, text)",
                "tensor_broadcast_shapes(text, '[1]')",
            ):
                with self.subTest(text=text, call=call):
                    with self.assertRaisesRegex(kind, message):
                        eval(call, {**names, "text": text})
        with self.assertRaisesRegex(TypeError, "element 0 is '1.5', .* of int32"):
            self.buffer([1.5], "int32")
        with self.assertRaises(OverflowError):
            self.buffer([1 << 40], "int32")
        self.assertEqual(self.values(self.buffer([True, False], "bool")), [True, False])
        self.assertEqual(self.values(names["a"]), [1.0, -2.0, 3.0, -4.0])

    def test_numbers_that_json_lacks(self):
        handle = self.buffer([1, math.inf, -math.inf, math.nan])
        self.assertEqual(self.values(handle)[:3], [1.0, math.inf, -math.inf])
        self.assertTrue(math.isnan(self.values(handle)[3]))


class TestLifetimes(CompatTestCase):
    def test_handles_end(self):
        ffi = self.ffi
        a, b = self.buffer([1.0]), self.buffer([2.0])
        tensor = ffi.tensor_from_buffer(a, "[1, 1]")
        ffi.buffer_cleanup(a)
        for call in (
            lambda: ffi.buffer_cleanup(a),
            lambda: ffi.buffer_to_vec(self.e, a),
            lambda: ffi.tensor_from_buffer(a, "[1]"),
        ):
            with self.assertRaisesRegex(ValueError, f"no buffer has the handle {a}: it was clean"):
                call()
        # The tensor keeps the memory; the buffer is no more.
        self.assertEqual(self.elements(ffi.tensor_matmul(self.e, tensor, tensor)), [[1.0]])
        self.assertEqual(ffi.tensor_offset(tensor), 0)
        with self.assertRaisesRegex(ValueError, f"buffer of the tensor {tensor} was cleaned up"):
            ffi.tensor_buffer(tensor)
        ffi.tensor_cleanup(tensor)
        with self.assertRaisesRegex(ValueError, f"no tensor has the handle {tensor}"):
            ffi.tensor_shape(tensor)
        view = ffi.tensor_from_buffer(b, "[1]")
        ffi.executor_cleanup(self.e)
        for kind, handle, call in (
            ("executor", self.e, ffi.executor_backend),
            ("buffer", b, ffi.buffer_length),
            ("tensor", view, ffi.tensor_shape),
        ):
            with self.assertRaisesRegex(ValueError, f"no {kind} has the handle {handle}"):
                call(handle)

    def test_clear_all_registries(self):
        ffi = self.ffi
        handle, others = self.buffer([1.0]), ffi.new_executor()
        ffi.clear_all_registries()
        ffi.clear_all_registries()
        for kind, gone, call in (
            ("buffer", handle, ffi.buffer_length),
            ("executor", others, ffi.executor_backend),
        ):
            with self.assertRaisesRegex(ValueError, f"no {kind} has the handle {gone}"):
                call(gone)

    def test_memory_is_given_back(self):
        def allocated():
            gc.collect()
            return torch.hologram.memory_allocated()

        before = allocated()
        size = 1 << 16
        handle = self.ffi.executor_allocate_buffer(self.e, size)
        tensor = self.ffi.tensor_from_buffer(handle, f"[{size}]")
        address = self.ffi.tensor_to_dlpack(self.e, tensor)
        self.ffi.tensor_cleanup(tensor)
        self.ffi.buffer_cleanup(handle)
        self.assertGreaterEqual(allocated(), before + 4 * size)  # whoever takes the address has it
        imported = json.loads(self.ffi.tensor_from_dlpack_capsule(self.e, address))
        self.ffi.tensor_cleanup(imported["tensor_handle"])
        self.ffi.buffer_cleanup(imported["buffer_handle"])
        self.assertEqual(allocated(), before)

    @pytest.mark.host_memory
    def test_dlpack_shares(self):
        ffi = self.ffi
        handle = self.buffer([1.0, 2.0, 3.0])
        ffi.scalar_add_f32(self.e, handle, handle, 3, 1.0)  # recorded
        tensor = ffi.tensor_from_buffer(handle, "[3]")
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        name = ctypes.create_string_buffer(b"dltensor")
        capsule = new(ffi.tensor_to_dlpack(self.e, tensor), ctypes.addressof(name), None)
        shared = torch.from_dlpack(capsule)
        self.assertTrue(shared.is_cpu)
        self.assertEqual(shared.tolist(), [2.0, 3.0, 4.0])
        shared[0] = 9.0
        self.assertEqual(self.values(handle), [9.0, 3.0, 4.0])

    def test_strided_memory_from_dlpack(self):
        ffi = self.ffi
        tensor = ffi.tensor_from_buffer(self.buffer(list(range(6))), "[2, 3]")
        column = ffi.tensor_select(tensor, 1, 1)
        got = json.loads(
            ffi.tensor_from_dlpack_capsule(self.e, ffi.tensor_to_dlpack(self.e, column))
        )
        self.assertEqual(ffi.tensor_strides(got["tensor_handle"]), "[3]")
        self.assertEqual(ffi.tensor_buffer(got["tensor_handle"]), got["buffer_handle"])
        self.assertEqual(self.values(got["buffer_handle"]), [1.0, 2.0, 3.0, 4.0])


class TestModules(CompatTestCase):
    def test_names(self):
        hg.compat.install()  # twice
        import hologram
        import hologram.backend
        import hologram.buffer
        import hologram.executor
        import hologram_torch
        import hologram_torch.autograd
        import hologram_torch.device
        import hologram_torch.nn
        import hologram_torch.utils
        from hologram.ops import vector_add

        self.assertIs(hologram.Executor, hg.Executor)
        self.assertIs(hologram.Buffer, hg.Buffer)
        self.assertIs(hologram.buffer.Buffer, hg.Buffer)
        self.assertIs(hologram.executor.Executor, hg.Executor)
        self.assertIs(hologram.backend.get_default_backend, hg.get_default_backend)
        self.assertIs(vector_add, hg.ops.vector_add)
        self.assertIs(hologram_torch.nn.Linear, hg.nn.Linear)
        self.assertIs(hologram_torch.Executor, hg.Executor)
        self.assertIs(hologram_torch.BackendType, hg.BackendType)
        self.assertIs(hologram_torch.functional, hg.functional)
        self.assertIs(hologram_torch.utils.tensor_to_buffer, hg.tensor_to_buffer)
        self.assertIs(hologram_torch.buffer_to_tensor, hg.buffer_to_tensor)
        self.assertIs(hologram_torch.autograd.grad, torch.autograd.grad)
        for module in (hologram, hologram_torch, self.ffi):
            self.assertEqual(module.__version__, hg.__version__)
            self.assertTrue(all(hasattr(module, name) for name in module.__all__))

    def test_devices(self):
        import hologram_torch

        self.assertEqual(hologram_torch.device(0), torch.device("hologram:0"))
        self.assertTrue(hologram_torch.device.is_available())
        self.assertEqual(hologram_torch.device.device_count(), torch.hologram.device_count())
        self.assertEqual(hologram_torch.device.get_backend(), BACKEND)
        self.assertEqual(hologram_torch.get_backend(), BACKEND)

    def test_utils(self):
        from hologram_torch import utils

        x = torch.ones(3, device="hologram")
        utils.validate_tensor_compatible(x)
        for wrong, text in (
            ([1.0], "expected a tensor, got list"),
            (torch.ones(1, dtype=torch.bfloat16), "no dtype torch.bfloat16"),
            (torch.eye(2).to_sparse(), "expected a strided tensor, got torch.sparse_coo"),
        ):
            with self.assertRaisesRegex(TypeError, text):
                utils.validate_tensor_compatible(wrong)
        self.assertEqual(utils.match_device(x), BACKEND)
        self.assertEqual(utils.match_device(torch.ones(1)), "cpu")
        self.assertEqual(utils.match_device(x, "cuda"), "cuda")
        with utils.create_executor_for_tensor(x) as executor:
            self.assertEqual(executor.device, x.device)
        with self.assertRaisesRegex(RuntimeError, "'metal' is not available"):
            utils.create_executor_for_tensor(x, "metal")

    def test_backends_are_strings(self):
        import hologram

        self.assertTrue(hologram.get_default_backend() == BACKEND)
        self.assertEqual(f"{hologram.get_default_backend()}", BACKEND)
        self.assertEqual(str(hg.BackendType.METAL), "metal")
        self.assertEqual({"cuda": 1}[hg.BackendType.CUDA], 1)
        self.assertEqual(json.dumps(hologram.get_default_backend()), f'"{BACKEND}"')
        self.assertIn(hologram.get_default_backend(), ("metal", "cuda", "cpu", BACKEND))

    def test_uninstall(self):
        hg.compat.uninstall()
        hg.compat.uninstall()
        ours = ("hologram", "hologram_ffi", "hologram_torch")
        self.assertFalse([name for name in sys.modules if name.split(".")[0] in ours])
        with self.assertRaises(ModuleNotFoundError):
            import hologram_ffi  # noqa: F401

    def test_a_real_package_stays(self):
        hg.compat.uninstall()
        real = types.ModuleType("hologram")
        real.__file__ = "/somewhere/hologram.py"
        sys.modules["hologram"] = real
        try:
            with self.assertRaisesRegex(
                ImportError, "'hologram'.*/somewhere/hologram.py"
            ) as caught:
                hg.compat.install()
            self.assertEqual(caught.exception.name, "hologram")
            self.assertIs(sys.modules["hologram"], real)
            self.assertNotIn("hologram_ffi", sys.modules)
        finally:
            del sys.modules["hologram"]


class TestPrograms(HologramTestCase):
    def test_a_program_of_the_earlier_sdk(self):
        """As it stands: handles, JSON, losses with a buffer for their result."""
        run_python(
            """
            import torch_hologram.compat
            torch_hologram.compat.install()

            import hologram_ffi as hg, json
            exec_handle = hg.new_executor()
            size = 1000
            a_handle = hg.executor_allocate_buffer(exec_handle, size)
            b_handle = hg.executor_allocate_buffer(exec_handle, size)
            c_handle = hg.executor_allocate_buffer(exec_handle, size)
            a, b = [float(i) for i in range(size)], [float(i * 2) for i in range(size)]
            hg.buffer_copy_from_slice(exec_handle, a_handle, json.dumps(a))
            hg.buffer_copy_from_slice(exec_handle, b_handle, json.dumps(b))
            hg.vector_add_f32(exec_handle, a_handle, b_handle, c_handle, size)
            result = json.loads(hg.buffer_to_vec(exec_handle, c_handle))
            assert result == [3.0 * i for i in range(size)]

            targets_flat = [float(i % 2) for i in range(size)]
            output_handle, targets_handle, loss_handle = (
                hg.executor_allocate_buffer(exec_handle, n) for n in (size, size, 3))
            hg.buffer_copy_from_slice(exec_handle, output_handle, json.dumps([0.5] * size))
            hg.buffer_copy_from_slice(exec_handle, targets_handle, json.dumps(targets_flat))
            loss = hg.mse_loss_f32(
                exec_handle, output_handle, targets_handle, loss_handle, len(targets_flat))
            assert loss == 0.25
            assert json.loads(hg.buffer_to_vec(exec_handle, loss_handle)) == [0.25, 0.0, 0.0]
            hg.buffer_cleanup(a_handle)
            hg.executor_cleanup(exec_handle)
            """
        )


if __name__ == "__main__":
    run_tests()
