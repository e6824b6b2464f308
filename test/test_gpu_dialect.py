"""The kernel dialect (csrc/gpu/dialect) through both of its preludes, run on the CPU.

The bits are those of the CPU backend's headers, compiled here. That the text means the same to the
real compilers and devices is what these tests cannot say.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "test" / "gpu"))

import emulator  # noqa: E402  (of a folder that is no package)
from emulator import EmulatorError, Library, compile_library  # noqa: E402

# Needs clang++-19: a step of its own of `make test` and `make test-gpu-kernels`.
pytestmark = pytest.mark.full

PRELUDES = ["metal", "cuda"]
INCLUDE = '#include "hologram_gpu.h"\n'

# In the order of DType (csrc/atlas/dtype.h); halves as their bits.
DTYPES = {
    "b8": np.uint8,
    "u8": np.uint8,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "f16": np.uint16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f64": np.float64,
}
COMPUTE = {"f32": 0, "f64": 1, "i64": 2}  # ComputeType (csrc/atlas/group.h)


@functools.cache
def library(text: str, prelude: str) -> Library:
    return compile_library(INCLUDE + text, prelude)


@functools.cache
def reference() -> ctypes.CDLL:
    """test/gpu/reference.cpp, by the host's compiler: clang is for kernels."""
    sources = [
        ROOT / "test" / "gpu" / "reference.cpp",
        ROOT / "csrc" / "cpu" / "math.cpp",
        ROOT / "csrc" / "atlas" / "op_table.cpp",
    ]
    included = [
        p for folder in ("atlas", "cpu", "test") for p in (ROOT / "csrc" / folder).glob("*.h")
    ]
    included.append(ROOT / "csrc" / "test" / "interpret.cpp")
    newest = max(p.stat().st_mtime_ns for p in [*sources, *included])
    path = emulator.cache_folder() / f"reference-{newest}.so"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        options = "-std=c++20 -O1 -ffp-contract=off -fPIC -shared".split()
        command = [
            os.environ.get("CXX", "g++"),
            *options,
            "-I",
            ROOT / "csrc",
            *sources,
            "-o",
            part,
        ]
        subprocess.run(command, check=True)
        part.replace(path)
    return ctypes.CDLL(str(path))


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def u32(*numbers: int) -> bytes:
    return np.array(numbers, np.uint32).tobytes()


def run_each(lib: Library, kernel: str, buffers: list[np.ndarray], count: int) -> None:
    lib.launch(kernel, (count + 63) // 64, 64, buffers, u32(count))


def assert_same(got: np.ndarray, expected: np.ndarray, inputs: list[np.ndarray]) -> None:
    """Bit for bit; a NaN is any NaN."""
    words = f"u{got.itemsize}"
    same = got.view(words) == expected.view(words)
    if got.dtype.kind == "f":
        same |= np.isnan(got) & np.isnan(expected)
    bad = np.flatnonzero(~same)
    shown = [([x[i] for x in inputs], got[i], expected[i]) for i in bad[:5]]
    assert not bad.size, f"{bad.size} of {got.size} differ: {shown}"


# ---- launches ----

ADD = """
HG_KERNEL(add, HG_CBUF(hg_f32, x, 0), HG_CBUF(hg_f32, y, 1), HG_BUF(hg_f32, z, 2),
          HG_PARAM(hg_u32, n, 3)) {
  const hg_u32 i = HG_BID * HG_BDIM + HG_LID;
  if (i < n) z[i] = x[i] + y[i];
}
"""


@pytest.mark.parametrize("prelude", PRELUDES)
@pytest.mark.parametrize("count", [1, 64, 1000])
def test_adds_vectors(prelude: str, count: int) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, count), np.float32)
    z = np.zeros(count + 1, np.float32)
    run_each(library(ADD, prelude), "add", [x, y, z], count)
    np.testing.assert_array_equal(z, np.append(x + y, np.float32(0)))


PLACES = """
struct places { hg_u32 columns; hg_i64 start; hg_f32 step; };
HG_KERNEL(write_places, HG_BUF(hg_f32, y, 0), HG_PARAM(places, p, 1)) {
  const hg_u32 row = HG_BID_Y, column = HG_BID * HG_BDIM + HG_LID;
  y[row * p.columns + column] =
      static_cast<hg_f32>(p.start + static_cast<hg_i64>(row * p.columns + column)) * p.step +
      static_cast<hg_f32>(HG_GDIM) + (HG_WARP_ID == HG_LID / 32u && HG_LANE < 32u ? 0.0f : 1.0f);
}
"""


@pytest.mark.parametrize("prelude", PRELUDES)
def test_reads_a_struct_of_parameters_and_its_place(prelude: str) -> None:
    y = np.zeros((3, 128), np.float32)
    params = np.array([(128, -5, 0.5)], np.dtype("u4, i8, f4", align=True)).tobytes()
    library(PLACES, prelude).launch("write_places", (2, 3), 64, [y], params)
    np.testing.assert_array_equal(y.ravel(), (np.arange(3 * 128) - 5) * np.float32(0.5) + 2)


SOFTMAX = """
struct larger { HG_DEV hg_f32 of(hg_f32 x, hg_f32 y) { return x > y ? x : y; } };
struct sum { HG_DEV hg_f32 of(hg_f32 x, hg_f32 y) { return x + y; } };
template <class Join>
HG_DEV hg_f32 block_join(hg_f32 v, HG_SHARED_PTR(hg_f32) s, hg_u32 lid, hg_u32 size) {
  for (hg_u32 mask = 16u; mask != 0u; mask /= 2u) v = Join::of(v, hg_shfl_xor(v, mask));
  HG_SYNC();  // the last one may be reading
  if (lid % HG_WARP == 0u) s[lid / HG_WARP] = v;
  HG_SYNC();
  v = s[0];
  for (hg_u32 i = 1u; i < size / HG_WARP; ++i) v = Join::of(v, s[i]);
  return v;
}
HG_KERNEL(softmax_row, HG_CBUF(hg_f32, x, 0), HG_BUF(hg_f32, y, 1), HG_PARAM(hg_u32, n, 2)) {
  HG_SHARED(hg_f32, s, 32)
  HG_GLOBAL const hg_f32* row = x + HG_BID * n;
  hg_f32 m = hg_lowest<hg_f32>(), total = 0.0f;
  for (hg_u32 i = HG_LID; i < n; i += HG_BDIM) m = larger::of(m, row[i]);
  m = block_join<larger>(m, s, HG_LID, HG_BDIM);
  for (hg_u32 i = HG_LID; i < n; i += HG_BDIM) total += math_exp(row[i] - m);
  total = block_join<sum>(total, s, HG_LID, HG_BDIM);
  for (hg_u32 i = HG_LID; i < n; i += HG_BDIM) y[HG_BID * n + i] = math_exp(row[i] - m) / total;
}
"""


@pytest.mark.parametrize("prelude", PRELUDES)
@pytest.mark.parametrize("block", [32, 96, 1024])
def test_softmax_by_shared_memory_and_shuffles(prelude: str, block: int) -> None:
    x = np.random.default_rng(1).standard_normal((5, 777), np.float32) * 8
    y = np.zeros_like(x)
    library(SOFTMAX, prelude).launch_in_all_orders("softmax_row", 5, block, [x, y], u32(777))
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=3e-6)


COUNT = """
HG_KERNEL(count, HG_CBUF(hg_i32, x, 0), HG_BUF(hg_atomic_u32, counts, 1), HG_PARAM(hg_u32, n, 2)) {
  const hg_u32 i = HG_BID * HG_BDIM + HG_LID;
  if (i >= n) return;
  hg_atomic_add(counts + x[i], 1u);
  hg_atomic_max(counts + 8, static_cast<hg_u32>(x[i]));
  hg_atomic_min(counts + 9, static_cast<hg_u32>(x[i]));
  hg_atomic_or(counts + 10, 1u << x[i]);
  const hg_u32 before = hg_atomic_exchange(counts + 11, 1u);
  hg_device_fence();
  hg_atomic_add(counts + 12, before);
}
"""


@pytest.mark.parametrize("prelude", PRELUDES)
def test_atomics_count(prelude: str) -> None:
    x = np.random.default_rng(2).integers(2, 7, 1000, np.int32)
    counts = np.array([0] * 9 + [99, 0, 7, 0], np.uint32)
    run_each(library(COUNT, prelude), "count", [x, counts], 1000)
    assert counts.tolist() == [*np.bincount(x, minlength=8), 6, 2, 0b1111100, 1, 7 + 999]


SHUFFLES = """
HG_KERNEL(shuffle_{T}, HG_CBUF(hg_{T}, x, 0), HG_BUF(hg_{T}, up, 1), HG_BUF(hg_{T}, down, 2)) {{
  const hg_{T} v = x[HG_LID];
  up[HG_LID] = hg_shfl_xor(v, 5u);
  const hg_{T} next = hg_shfl_down(v, 3u);
  if (HG_LANE < 29u) down[HG_LID] = next;
}}
"""
SHUFFLE_F64 = """
HG_KERNEL(shuffle_f64, HG_CBUF(hg_f64, x, 0), HG_BUF(hg_f64, up, 1), HG_BUF(hg_f64, down, 2)) {
  const hg_double v = hg_convert<hg_double>(x[HG_LID]);
  up[HG_LID] = hg_convert<hg_f64>(hg_shfl_xor(v, 5u));
  const hg_double next = hg_shfl_down(v, 3u);
  if (HG_LANE < 29u) down[HG_LID] = hg_convert<hg_f64>(next);
}
"""


@pytest.mark.parametrize("prelude", PRELUDES)
def test_shuffles_of_every_type(prelude: str) -> None:
    kinds = {"u32": np.uint32, "i32": np.int32, "f32": np.float32, "u64": np.uint64}
    kinds |= {"i64": np.int64}
    lib = library("".join(SHUFFLES.format(T=t) for t in kinds) + SHUFFLE_F64, prelude)
    kinds |= {"f64": np.float64}
    lanes = np.arange(64)
    for name, kind in kinds.items():
        x = np.random.default_rng(3).integers(0, 256, 64 * np.dtype(kind).itemsize, np.uint8)
        x = x.view(f"u{np.dtype(kind).itemsize}")
        across, down = np.zeros_like(x), np.zeros_like(x)
        lib.launch_in_all_orders(f"shuffle_{name}", 1, 64, [x, across, down])
        np.testing.assert_array_equal(across, x[lanes ^ 5])
        expected = np.where(lanes % 32 < 29, x[np.minimum(lanes + 3, 63)], 0)
        np.testing.assert_array_equal(down, expected)


VECTORS = """
HG_KERNEL(reverse_{T}, HG_CBUF(hg_{T}, x, 0), HG_BUF(hg_{T}, y, 1), HG_PARAM(hg_u32, n, 2)) {{
  const hg_u32 i = (HG_BID * HG_BDIM + HG_LID) * HG_VEC(hg_{T});
  if (i >= n) return;
  const hg_vec<hg_{T}> v = hg_load_vec(x + i);
  hg_vec<hg_{T}> w = v;
  HG_UNROLL
  for (hg_u32 k = 0; k < HG_VEC(hg_{T}); ++k) {{
    hg_vec_set(w, k, hg_vec_get(v, HG_VEC(hg_{T}) - 1u - k));
  }}
  hg_store_vec(y + i, w);
}}
"""


@pytest.mark.parametrize("prelude", PRELUDES)
def test_vectors_of_every_dtype(prelude: str) -> None:
    lib = library("".join(VECTORS.format(T=t) for t in DTYPES), prelude)
    for name in DTYPES:
        size = np.dtype(DTYPES[name]).itemsize
        x = np.random.default_rng(4).integers(0, 256, 16 * 70, np.uint8).view(f"u{size}")
        y = np.zeros_like(x)
        run_each(lib, f"reverse_{name}", [x, y], x.size)
        np.testing.assert_array_equal(y, x.reshape(70, -1)[:, ::-1].ravel())


def with_headers_pasted(text: str) -> str:
    """As for Metal, which is given one string and finds no files of ours."""

    def paste(match: re.Match[str]) -> str:
        return with_headers_pasted((emulator.DIALECT / match[1]).read_text())

    return re.sub(r'^#include "(.*)"$', paste, text, flags=re.M)


@pytest.mark.parametrize("prelude", PRELUDES)
def test_headers_can_be_pasted_into_the_text(prelude: str) -> None:
    # Twice: a header that is pasted again is nothing.
    text = with_headers_pasted(INCLUDE + INCLUDE + ADD)
    assert not re.search(r'#include "|#pragma once', text)
    x, z = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    run_each(compile_library(text, prelude), "add", [x, x, z], 64)
    np.testing.assert_array_equal(z, 2 * x)


# ---- conversions ----

CONVERT = """
HG_KERNEL({S}_to_{D}, HG_CBUF(hg_{S}, x, 0), HG_BUF(hg_{D}, y, 1), HG_PARAM(hg_u32, n, 2)) {{
  const hg_u32 i = HG_BID * HG_BDIM + HG_LID;
  if (i < n) y[i] = hg_convert<hg_{D}>(x[i]);
}}
"""


def floats(kind: type) -> np.ndarray:
    """Numbers around every edge that a conversion or an operation has."""
    rng = np.random.default_rng(5)
    edges = [0.0, 1.0, 0.5, 1.5, 2.5, 1e-45, 1e-40, 2.0**-14, 2.0**-24, 2.0**-25, 5.96e-8, np.inf]
    edges += [65504, 65519.996, 65520, 65536, 3.3895e38, 3.4e38, 127, 128, 255, 256, 32767, 32768]
    edges += [2.0**k for k in (16, 24, 31, 32, 53, 62, 63, 64)] + [0.1, 0.9, 3.99, 88.7, 104.0]
    near = np.array(edges, kind)
    with np.errstate(over="ignore"):
        near = np.concatenate([near, np.nextafter(near, kind(0)), np.nextafter(near, kind(np.inf))])
    # Ties of the half dtypes and of f32, of an even and an odd last bit.
    ties = [
        1 + 2.0**-11,
        1 + 3 * 2.0**-11,
        1 + 2.0**-8,
        1 + 3 * 2.0**-8,
        3 * 2.0**-25,
        1.5 * 2.0**-24,
        1 + 2.0**-24,
        1 + 3 * 2.0**-24,
        1.5 * 2.0**-149,
        2.5 * 2.0**-149,
    ]
    bits = f"u{np.dtype(kind).itemsize}"
    random = rng.integers(0, 256, 2000 * np.dtype(kind).itemsize, np.uint8).view(bits).view(kind)
    ordinary = (rng.standard_normal(2000) * 10.0 ** rng.integers(-3, 6, 2000)).astype(kind)
    whole = rng.integers(-70000, 70000, 500).astype(kind)
    exponent = 0x7F800001 if kind is np.float32 else 0x7FF0000000000001
    last = np.dtype(bits).type(exponent)
    nans = np.array([last, last | (last >> 1), last | 0x12345678], bits).view(kind)
    half = np.concatenate([near, np.array(ties, kind), random, ordinary, whole, nans])
    return np.concatenate([half, -half])


def values_of(name: str) -> np.ndarray:
    if name in ("f16", "bf16"):
        return np.arange(65536).astype(np.uint16)
    kind = DTYPES[name]
    if np.dtype(kind).kind == "f":
        return floats(kind)
    info, rng = np.iinfo(kind), np.random.default_rng(6)
    edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1]
    if np.dtype(kind).itemsize == 8:
        edges += [
            s * (2**k + d) for s in (1, -1) for k in (11, 24, 25, 31, 53, 54) for d in (-1, 1)
        ]
    shifted = rng.integers(info.min, info.max, 2000, kind, endpoint=True)
    return np.concatenate([np.array(edges, kind), shifted, shifted >> (info.bits // 2)]).astype(
        kind
    )


@pytest.mark.parametrize("prelude", PRELUDES)
def test_conversions_have_the_bits_of_the_cpu(prelude: str) -> None:
    numbers = list(DTYPES)
    lib = library("".join(CONVERT.format(S=s, D=d) for s in numbers for d in numbers), prelude)
    for source in numbers:
        x = values_of(source)
        for target in numbers:
            y, expected = np.zeros((2, x.size), DTYPES[target])
            run_each(lib, f"{source}_to_{target}", [x, y], x.size)
            reference().reference_convert(
                numbers.index(source),
                numbers.index(target),
                address(x),
                address(expected),
                ctypes.c_size_t(x.size),
            )
            # Those of NaN too.
            words = f"u{y.itemsize}"
            bad = np.flatnonzero(y.view(words) != expected.view(words))
            shown = [(x[i], y[i], expected[i]) for i in bad[:5]]
            assert not bad.size, f"{source} to {target}: {bad.size} differ: {shown}"


@pytest.mark.parametrize("prelude", PRELUDES)
def test_conversions_of_floats_are_those_of_numpy(prelude: str) -> None:
    """Independent of this project: numbers of f32 and f16 that fit."""
    lib = library("".join(CONVERT.format(S=s, D=d) for s, d in NUMPY_PAIRS), prelude)
    for source, target in NUMPY_PAIRS:
        x = values_of(source)
        x = x.view(np.float16) if source == "f16" else x
        limit = 2.0 ** (31 if target == "i32" else 63)
        with np.errstate(over="ignore", invalid="ignore"):
            if source[0] == "f":
                fits = (np.abs(x) < limit) | (target[0] == "f")
                x = np.ascontiguousarray(x[~np.isnan(x) & fits])
            expected = x.astype(np.float16 if target == "f16" else DTYPES[target])
        y = np.zeros_like(expected)
        run_each(lib, f"{source}_to_{target}", [x, y], x.size)
        words = f"u{y.itemsize}"
        np.testing.assert_array_equal(y.view(words), expected.view(words))


NUMPY_PAIRS = [("f32", "f16"), ("f16", "f32"), ("f32", "i32"), ("f32", "i64"), ("f16", "i32")]
NUMPY_PAIRS += [("f32", "f64"), ("f64", "f32"), ("f64", "i32"), ("f64", "i64"), ("i64", "f64")]

ROUND = """
HG_KERNEL(round_{H}, HG_CBUF(hg_f32, x, 0), HG_BUF(hg_f32, y, 1), HG_PARAM(hg_u32, n, 2)) {{
  const hg_u32 i = HG_BID * HG_BDIM + HG_LID;
  if (i < n) y[i] = hg_round_{H}(x[i]);
}}
"""


@pytest.mark.parametrize("prelude", PRELUDES)
@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_rounds_to_half_dtypes(prelude: str, half: str) -> None:
    x = floats(np.float32)
    y, expected = np.zeros((2, x.size), np.float32)
    between = np.zeros(x.size, np.uint16)
    run_each(library(ROUND.format(H=half), prelude), f"round_{half}", [x, y], x.size)
    number, f32, n = list(DTYPES).index(half), list(DTYPES).index("f32"), ctypes.c_size_t(x.size)
    reference().reference_convert(f32, number, address(x), address(between), n)
    reference().reference_convert(number, f32, address(between), address(expected), n)
    np.testing.assert_array_equal(y.view(np.uint32), expected.view(np.uint32))


# ---- the op table ----

# Of f32, by the libraries of the languages; others are bit for bit the CPU's.
OF_LIBRARY: dict[str, set[str]] = {"cuda": {"sin", "cos"}, "metal": set()}

OP = """
template <class T> HG_DEV T op_{name}(T x, T y, T z) {{ return {expression}; }}
"""
OP_KERNEL = """
HG_KERNEL({name}_{T}, HG_CBUF(hg_{T}, x, 0), HG_CBUF(hg_{T}, y, 1), HG_CBUF(hg_{T}, z, 2),
          HG_BUF(hg_{T}, r, 3), HG_PARAM(hg_u32, n, 4)) {{
  const hg_u32 i = HG_BID * HG_BDIM + HG_LID;
  if (i < n) r[i] = op_{name}<hg_{T}>(x[i], y[i], z[i]);
}}
"""


@functools.cache
def op_rows() -> list[tuple[str, int, str, str]]:
    """(name, arity, expression, the set of dtypes) of csrc/atlas/op_table.h."""
    text = (ROOT / "csrc" / "atlas" / "op_table.h").read_text().replace("\\\n", " ")
    table = text[text.index("#define HOLOGRAM_OPS(X)") : text.index("enum class Op")]
    rows = re.split(r"\bX\((?=\w+, \d, )", table)[1:]
    found = []
    for row in rows:
        head = re.match(r"(\w+), (\d), (.*?), \.", row, re.S)
        assert head, row
        dtypes = re.search(r"\.dtypes = (\w+)", row)
        found.append((head[1], int(head[2]), head[3], dtypes[1] if dtypes else "kReal"))
    assert len(found) >= 40  # or the table has another form now
    return found


def ops_of(compute: str) -> list[str]:
    whole = {"kNumeric", "kOrdered", "kTruth", "kIntegral"}
    return [r[0] for r in op_rows() if compute != "i64" or r[3] in whole]


@functools.cache
def op_library(prelude: str) -> Library:
    text = "".join(OP.format(name=r[0], expression=r[2]) for r in op_rows())
    for compute in COMPUTE:
        if compute != "f64" or prelude == "cuda":
            text += "".join(OP_KERNEL.format(name=n, T=compute) for n in ops_of(compute))
    return library(text, prelude)


def operands(compute: str, is_truth: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    kind = DTYPES[compute]
    if is_truth:
        return list(rng.integers(0, 2, (3, 64)).astype(kind))
    x = values_of(compute)
    if compute != "i64":  # what functions are called with, and edges of pow
        small = (rng.standard_normal(2000) * 3).astype(kind)
        edges = np.array([0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, np.inf, -np.inf, np.nan], kind)
        pairs = np.repeat(edges, edges.size)
        x = np.concatenate([x, small, pairs])
    y, z = rng.permutation(x), rng.permutation(x)
    if compute != "i64":
        y[-pairs.size :] = np.tile(edges, edges.size)
        y[-pairs.size - 2000 : -pairs.size] = rng.permutation(small)
    z[::7] = x[::7]
    y[::11] = x[::11]
    return [x, y, z]


@pytest.mark.parametrize(
    "prelude, compute", [(p, c) for p in PRELUDES for c in COMPUTE if (p, c) != ("metal", "f64")]
)
def test_operations_have_the_bits_of_the_cpu(prelude: str, compute: str) -> None:
    truths = {r[0] for r in op_rows() if r[3] == "kTruth"}
    for name in ops_of(compute):
        given = operands(compute, name in truths)
        n = given[0].size
        got, expected = np.zeros((2, n), DTYPES[compute])
        run_each(op_library(prelude), f"{name}_{compute}", [*given, got], n)
        pointers = [address(a) for a in (*given, expected)]
        count = ctypes.c_size_t(n)
        failed = reference().reference_op(name.encode(), COMPUTE[compute], *pointers, count)
        assert not failed
        if compute == "f64" or name in OF_LIBRARY[prelude]:
            with np.errstate(over="ignore", invalid="ignore"):
                step = np.where(np.isfinite(expected), np.spacing(np.abs(expected)), 0)
                near = np.abs(got.astype(np.longdouble) - expected) <= 2 * step
            got = np.where(near, expected, got)
        try:
            assert_same(got, expected, given)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.parametrize("prelude", PRELUDES)
def test_identities_of_maximum_and_minimum(prelude: str) -> None:
    kinds = {"f32": np.float32, "i64": np.int64, "f64": np.float64}
    text = "".join(
        f"HG_KERNEL(limits_{t}, HG_BUF(hg_{t}, y, 0)) {{\n"
        f"  y[0] = hg_convert<hg_{t}>(hg_lowest<{number}>());\n"
        f"  y[1] = hg_convert<hg_{t}>(hg_highest<{number}>());\n}}\n"
        for t, number in [("f32", "float"), ("i64", "hg_i64"), ("f64", "hg_double")]
    )
    for name, kind in kinds.items():
        y = np.zeros(2, kind)
        library(text, prelude).launch(f"limits_{name}", 1, 1, [y])
        whole = np.iinfo(np.int64)
        assert y.tolist() == ([whole.min, whole.max] if name == "i64" else [-np.inf, np.inf])


@pytest.mark.parametrize("prelude", PRELUDES)
def test_powers_have_the_bits_of_the_cpu(prelude: str) -> None:
    rng = np.random.default_rng(11)
    of_bits = rng.integers(0, 2**32, (2, 40_000), np.uint32).view(np.float32)
    common = np.stack([rng.random(40_000), 4 * rng.standard_normal(40_000)]).astype(np.float32)
    whole = np.stack([10 * rng.standard_normal(20_000), rng.integers(-30, 30, 20_000)])
    # Squares of 13 digits lie in the middle of two floats, or near to it.
    middle = np.stack([rng.integers(2**12, 2**13, 20_000), np.full(20_000, 2)])
    roots = np.stack([rng.integers(1, 2**12, 20_000) ** 2, rng.choice([0.5, 1, -0.5, 1.5], 20_000)])
    edges = [0.0, -0.0, 1, -1, 2, -3, 0.5, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 2**24, 2**24 + 2]
    pairs = np.array([(a, b) for a in edges for b in edges]).T
    given = np.concatenate([of_bits, common, whole, middle, roots, pairs], 1, dtype=np.float32)
    x, y = np.ascontiguousarray(given)
    text = (
        "HG_KERNEL(powers, HG_CBUF(float, x, 0), HG_CBUF(float, y, 1), HG_BUF(float, z, 2),\n"
        "          HG_PARAM(hg_u32, n, 3)) {\n"
        "  const hg_u32 i = HG_BID * HG_BDIM + HG_LID;\n"
        "  if (i < n) z[i] = math_pow(x[i], y[i]);\n}\n"
    )
    z, expected = np.zeros((2, x.size), np.float32)
    run_each(library(text, prelude), "powers", [x, y, z], x.size)
    pointers = [address(each) for each in (x, y, y, expected)]
    assert not reference().reference_op(b"pow", COMPUTE["f32"], *pointers, ctypes.c_size_t(x.size))
    assert_same(z, expected, [x, y])


def test_constants_of_f64_are_their_bits() -> None:
    """Each is written twice: as a number, and as its bits for a language without f64."""
    texts = [path.read_text() for path in emulator.DIALECT.glob("*.h")]
    found = [
        pair for text in texts for pair in re.findall(r"\bHG_F64\(([\d.e-]+),\s*(\w+)\)", text)
    ]
    assert len(found) > 15
    for number, bits in found:
        assert np.float64(number).view(np.uint64) == int(bits.rstrip("ul"), 16), number


LARGE = """
HG_KERNEL(large, HG_CBUF(hg_f32, x, 0), HG_BUF(hg_f32, s, 1), HG_BUF(hg_f32, c, 2),
          HG_PARAM(hg_u32, n, 3)) {
  const hg_u32 i = HG_BID * HG_BDIM + HG_LID;
  if (i < n) s[i] = math_sin(x[i]);
  if (i < n) c[i] = math_cos(x[i]);
}
"""
# Beyond 2^17 no floats are nearer to a multiple of pi / 2.
NEAREST = ["0x1.f37c8ap+95", "0x1.47d0fep+34", "0x1.32ede2p+85", "0x1.628d4cp+40", "0x1.13093p+76"]


@pytest.mark.parametrize("prelude", PRELUDES)
def test_sines_of_large_numbers_have_the_bits_of_the_cpu(prelude: str) -> None:
    rng = np.random.default_rng(12)
    # A number's bits from those of 2^17 to those of infinity, and some of each power of two.
    of_bits = rng.integers(0x48000000, 0x7F800001, 400_000, np.uint32).view(np.float32)
    powers = np.ldexp(np.float32(1), np.arange(16, 128)).astype(np.float32)
    around = [np.nextafter(powers, np.float32(to)) for to in (0, np.inf)]
    nearest = np.array([float.fromhex(x) for x in NEAREST], np.float32)
    near = [np.nextafter(nearest, np.float32(to)) for to in (0, np.inf)]
    half = np.concatenate([of_bits, powers, *around, nearest, *near, [np.inf, np.nan]])
    x = np.concatenate([half, -half]).astype(np.float32)
    sines, cosines, expected = np.zeros((3, x.size), np.float32)
    run_each(library(LARGE, prelude), "large", [x, sines, cosines], x.size)
    for name, got in (("sin", sines), ("cos", cosines)):
        pointers = [address(each) for each in (x, x, x, expected)]
        count = ctypes.c_size_t(x.size)
        assert not reference().reference_op(name.encode(), COMPUTE["f32"], *pointers, count)
        assert_same(got, expected, [x])


# ---- f64 where the language has none ----

F64 = {
    "add": ("a + b", np.add),
    "sub": ("a - b", np.subtract),
    "mul": ("a * b", np.multiply),
    "div": ("a / b", np.divide),
    "neg": ("-a", lambda a, b: -a),
    "abs": ("hg_fabs(a)", lambda a, b: np.abs(a)),
    "copysign": ("hg_copysign(a, b)", np.copysign),
    "eq": ("hg_double(a == b ? 1 : 0)", np.equal),
    "ne": ("hg_double(a != b ? 1 : 0)", np.not_equal),
    "lt": ("hg_double(a < b ? 1 : 0)", np.less),
    "le": ("hg_double(a <= b ? 1 : 0)", np.less_equal),
    "gt": ("hg_double(a > b ? 1 : 0)", np.greater),
    "ge": ("hg_double(a >= b ? 1 : 0)", np.greater_equal),
}
F64_KERNEL = """
HG_KERNEL(f64_{name}, HG_CBUF(hg_f64, x, 0), HG_CBUF(hg_f64, y, 1), HG_BUF(hg_f64, z, 2),
          HG_PARAM(hg_u32, n, 3)) {{
  const hg_u32 i = HG_BID * HG_BDIM + HG_LID;
  if (i >= n) return;
  const hg_double a = hg_convert<hg_double>(x[i]), b = hg_convert<hg_double>(y[i]);
  z[i] = hg_convert<hg_f64>({expression});
}}
"""


OF_U64 = """
HG_KERNEL(of_u64, HG_CBUF(hg_u64, x, 0), HG_BUF(hg_f64, z, 1), HG_PARAM(hg_u32, n, 2)) {
  const hg_u32 i = HG_BID * HG_BDIM + HG_LID;
  if (i < n) z[i] = hg_convert<hg_f64>(x[i]);
}
"""


@pytest.mark.parametrize("prelude", PRELUDES)
def test_f64_of_u64_is_that_of_numpy(prelude: str) -> None:
    rng = np.random.default_rng(14)
    x = rng.integers(0, 2**64, 20_000, np.uint64) >> rng.integers(0, 64, 20_000).astype(np.uint64)
    # The middle of two numbers that are above 2^63, and what is next to it.
    middle = np.arange(2**63 + 1024, 2**63 + 2**17, 1024, np.uint64)
    edges = np.array([0, 1, 2**64 - 1, 2**64 - 1024], np.uint64)
    x = np.concatenate([x, edges, middle, middle - np.uint64(1), middle + np.uint64(1)])
    z = np.zeros(x.size, np.float64)
    run_each(library(OF_U64, prelude), "of_u64", [x, z], x.size)
    assert_same(z, x.astype(np.float64), [x])


def pairs_of_f64() -> tuple[np.ndarray, np.ndarray]:
    """Pairs of special values; of any bits, of like size, with few digits, of denormal results."""
    rng, n = np.random.default_rng(13), 300_000
    edges = [0, 1, 2, 2**52 - 1, 2**52, 2**52 + 1, 2**51, 0x7FE << 52, (0x7FF << 52) - 1]
    edges += [0x7FF << 52, (0x7FF << 52) + 1, 0x7FF8 << 48, 0x3FF << 52, (0x3FF << 52) + 1]
    edges += [(0x3FF << 52) - 1, 0x3FE << 52, 0x3CA << 52, 0x3CB << 52, 0x3C9 << 52, 0x433 << 52]
    special = np.array(edges, np.uint64)
    special = np.concatenate([special, special | np.uint64(1 << 63)])
    digits, rest = np.uint64(0x800FFFFFFFFFFFFF), np.uint64(52)
    a, b = rng.integers(0, 2**64, (2, n), np.uint64, endpoint=False)

    def with_exponent(bits: np.ndarray, exponent: np.ndarray) -> np.ndarray:
        return (bits & digits) | (np.clip(exponent, 0, 2046).astype(np.uint64) << rest)

    exponents = rng.integers(0, 2047, n)
    like = with_exponent(b, exponents + rng.integers(-70, 70, n))
    few = np.uint64(0xFFFFFFFFFF000000)
    below = 1023 - exponents + rng.integers(-60, 60, n)  # the product is about the least number
    beside = exponents - 1023 + rng.integers(-60, 60, n)  # a quotient's largest numbers
    x = [np.repeat(special, special.size), a, with_exponent(a, exponents)]
    y = [np.tile(special, special.size), b, like]
    # Ties: few digits, and a last one of a number some places above.
    x += [with_exponent(a, exponents) & few | rng.integers(0, 2, n).astype(np.uint64)]
    y += [like & few]
    x += [with_exponent(a, exponents), with_exponent(a, exponents)]
    y += [with_exponent(b, below), with_exponent(b, beside)]
    # Quotients that are whole numbers, or just not.
    product = (a >> np.uint64(38)).astype(np.float64) * (b >> np.uint64(37)).astype(np.float64)
    x += [(product.view(np.uint64) + rng.integers(0, 2, n).astype(np.uint64))]
    y += [(b >> np.uint64(37)).astype(np.float64).view(np.uint64)]
    return np.concatenate(x).view(np.float64), np.concatenate(y).view(np.float64)


@pytest.mark.parametrize("prelude", PRELUDES)
def test_arithmetic_of_f64_is_that_of_numpy(prelude: str) -> None:
    x, y = pairs_of_f64()
    assert x.size > 10**6
    text = "".join(F64_KERNEL.format(name=n, expression=F64[n][0]) for n in F64)
    for name, (_, of_numpy) in F64.items():
        z = np.zeros_like(x)
        run_each(library(text, prelude), f"f64_{name}", [x, y, z], x.size)
        with np.errstate(all="ignore"):
            expected = np.asarray(of_numpy(x, y), np.float64)
        try:
            assert_same(z, expected, [x, y])
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


# ---- random numbers ----

DRAW = """
struct draw { hg_u64 seed, offset, range; hg_u32 n; };
#define DRAW(name, T, ...)                                    \\
  HG_KERNEL(name, HG_BUF(T, y, 0), HG_PARAM(draw, d, 1)) {    \\
    const hg_u32 i = HG_BID * HG_BDIM + HG_LID;               \\
    if (i < d.n) y[i] = __VA_ARGS__;                          \\
  }
#define WORDS(n) hg_philox(d.seed, d.offset + i / n), static_cast<hg_u32>(i % n)
DRAW(uniform_f32, hg_f32, hg_uniform(WORDS(4u), 24u))
DRAW(uniform_f16, hg_f32, hg_uniform(WORDS(4u), 11u))
DRAW(uniform_bf16, hg_f32, hg_uniform(WORDS(4u), 8u))
DRAW(normal_f32, hg_f32, hg_normal(WORDS(4u)))
DRAW(integer_i64, hg_i64, hg_integer(WORDS(4u), d.range))
DRAW(long_integer_i64, hg_i64, hg_long_integer(WORDS(2u), d.range))
#if HG_HAS_F64
DRAW(uniform_f64, hg_f64, hg_uniform_f64(WORDS(2u)))
DRAW(normal_f64, hg_f64, hg_normal_f64(WORDS(2u)))
#endif
HG_KERNEL(words, HG_BUF(hg_u32, y, 0), HG_PARAM(draw, d, 1)) {
  const hg_words w = hg_philox(d.seed, d.offset + HG_LID);
  y[4u * HG_LID] = w.x;
  y[4u * HG_LID + 1u] = w.y;
  y[4u * HG_LID + 2u] = w.z;
  y[4u * HG_LID + 3u] = w.w;
}
"""
DRAWS = ["uniform", "normal", "integer", "long_integer"]  # the order of Draw (csrc/atlas/random.h)


def draw_params(seed: int, offset: int, bound: int, n: int) -> bytes:
    kind = np.dtype("u8, u8, u8, u4", align=True)
    return np.array([(seed, offset, bound, n)], kind).tobytes()


def philox(key: int, counter: int) -> list[int]:
    """Philox 4x32-10 by its paper."""
    low, high = key & 0xFFFFFFFF, key >> 32
    words = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    for _ in range(10):
        p, q = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            (q >> 32) ^ words[1] ^ low,
            q & 0xFFFFFFFF,
            (p >> 32) ^ words[3] ^ high,
            p & 0xFFFFFFFF,
        ]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return words


@pytest.mark.parametrize("prelude", PRELUDES)
def test_philox_gives_the_published_words(prelude: str) -> None:
    # The known answer of Random123 for a key and a counter of zeros.
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    for seed, offset in [(0, 0), (0x123456789ABCDEF0, 0xFFFFFFFFFFF0)]:
        y = np.zeros(128, np.uint32)
        library(DRAW, prelude).launch("words", 1, 32, [y], draw_params(seed, offset, 0, 0))
        assert y.tolist() == [word for i in range(32) for word in philox(seed, offset + i)]


@pytest.mark.parametrize("prelude", PRELUDES)
@pytest.mark.parametrize(
    "kernel",
    [
        *["uniform_f32", "uniform_f16", "uniform_bf16", "normal_f32"],
        *["integer_i64", "long_integer_i64", "uniform_f64", "normal_f64"],
    ],
)
def test_draws_have_the_bits_of_the_cpu(prelude: str, kernel: str) -> None:
    name, dtype = kernel.rsplit("_", 1)
    if (prelude, dtype) == ("metal", "f64"):
        with pytest.raises(EmulatorError, match="no kernel is named"):
            library(DRAW, prelude).launch(kernel, 1, 64, [], b"")
        return
    bounds = {"integer": [1, 1000, 2**32], "long_integer": [0, 7, 2**40 + 1, 2**64 - 1]}
    for seed, offset in [(0, 0), (2**63 + 12345, 2**40 - 3)]:
        for bound in bounds.get(name, [0]):
            n = 1003
            y, expected = np.zeros(
                (2, n), np.float32 if dtype in ("f16", "bf16") else DTYPES[dtype]
            )
            params = draw_params(seed, offset, bound, n)
            library(DRAW, prelude).launch(kernel, 16, 64, [y], params)
            given = [ctypes.c_uint64(v) for v in (seed, offset, bound)]
            reference().reference_draw(
                DRAWS.index(name),
                list(DTYPES).index(dtype),
                *given,
                address(expected),
                ctypes.c_size_t(n),
            )
            if kernel == "normal_f64":  # of the C library
                np.testing.assert_allclose(y, expected, rtol=1e-14)
            else:
                assert_same(y, expected, [])


# ---- what the emulator catches ----


def metal_kernel(body: str, before: str = "", arguments: str = "") -> str:
    return f"""
struct P {{ hg_u32 n; hg_f32 v; }};
struct Q {{ int n; int get() const {{ return n; }} }};
{before}
kernel void k(device float* x [[buffer(0)]], constant P& p [[buffer(1)]],
              device Q* q [[buffer(2)]] {arguments},
              metal::uint3 t3 [[thread_position_in_threadgroup]]) {{
  const hg_u32 t = t3.x;
  threadgroup float s[32];
  s[t % 32u] = x[t];
  {body}
}}
"""


def test_what_the_misuses_are_made_of_is_right() -> None:
    """Or each of them would be refused for this."""
    good = "int4 i = 1; half h = half(x[t]); bfloat b = bfloat(float(h)); x[t] = s[t] + p.v + 0.1f;"
    good = "using metal::int4; " + good + " (void)i; (void)b; x[t] = metal::simd_sum(x[t]);"
    library(metal_kernel(good, "HG_DEV float f(thread const float* p) { return *p; }"), "metal")


HELPER = "HG_DEV float f({} p) {{ return p[0]; }}"
MISUSES = {
    "a device pointer of threadgroup memory": (
        "device float* w = s; w[0] = 1.0f;",
        "",
        "cannot initialize a variable of type 'device",
    ),
    "a device pointer to a thread's parameter": (
        "f(x);",
        HELPER.format("thread float*"),
        "no matching function for call to 'f'",
    ),
    "threadgroup memory to a template of device pointers": (
        "f(s);",
        "template <class T> " + HELPER.format("device const T*"),
        "no matching function for call to 'f'",
    ),
    "a write to constant memory": ("p.n = 1u;", "", "const-qualified"),
    "a method of a device object": (
        "x[0] = float(q[0].get());",
        "",
        "cannot initialize object parameter",
    ),
    "half of bfloat": ("half h = bfloat(1.0f); x[0] = float(h);", "", "error:"),
    "bfloat of half": ("bfloat b = half(1.0f); x[0] = float(b);", "", "error:"),
    "bfloat of float": ("bfloat b = x[0]; x[0] = float(b);", "", "loses floating-point precision"),
    "half of float": ("half h = x[0]; x[0] = float(h);", "", "loses floating-point precision"),
    "max of half and float": (
        "x[0] = float(metal::max(half(1.0f), 0.0f));",
        "",
        "no matching function|ambiguous",
    ),
    "a vector of another element": (
        "metal::uint4 u = 1u; metal::int4 i = u; x[0] = float(i.x);",
        "",
        "cannot initialize",
    ),
    "arithmetic of a half dtype's bits": (
        "hg_bf16 b = hg_convert<hg_bf16>(x[0]); x[0] = b + 1.0f;",
        "",
        "invalid operands",
    ),
    "double": ("double d = 1; x[0] = float(d);", "", "double is not of the language"),
    "goto": ("goto end; end: x[0] = 1.0f;", "", "goto is not"),
    "try": ("try { x[0] = 1.0f; } catch (...) {}", "", "(try|catch) is not"),
    "throw": ("throw 1;", "", "throw is not"),
    "virtual": ("", "struct V { virtual void f(); };", "virtual is not"),
    "dynamic_cast": ("dynamic_cast<thread int*>(p);", "", "dynamic_cast is not"),
    "new": ("x[0] = *new float(1.0f);", "", "new is not"),
    "std::": ("x[0] = std::exp(1.0f);", "", "std:: is not"),
    "a lambda": ("auto f = [&](float v) { return v; }; x[0] = f(1.0f);", "", "lambdas are not"),
    "if constexpr": ("if constexpr (sizeof(int) == 4) x[0] = 1.0f;", "", "C\\+\\+17"),
    "an array of variable length": ("float v[p.n]; x[0] = v[0];", "", "variable length array"),
    "a sum of long": ("x[0] = float(metal::simd_sum(1L));", "", "take 32 bits"),
    "a sum of bfloat": ("x[0] = float(metal::simd_sum(bfloat(1.0f)));", "", "take 32 bits"),
    "a shuffle of long": ("x[0] = float(metal::simd_shuffle_xor(1L, 1));", "", "take 32 bits"),
    "an atomic of 64 bits": (
        "",
        "struct A { metal::atomic<hg_u64> v; };",
        "atomics are of 32 bits",
    ),
    "a copy of a struct of parameters": ("P q2 = p; x[0] = q2.v;", "", "no matching constructor"),
    "a function that is not said to be precise": (
        "x[0] = metal::exp(x[0]);",
        "",
        "no member named 'exp' in namespace 'metal'",
    ),
    "a fast function": ("x[0] = metal::fast::exp(x[0]);", "", "no member named 'fast'"),
    "recursion": (
        "x[0] = f(x[0]);",
        "HG_DEV float f(float v) { return v > 1.0f ? f(v - 1.0f) : v; }",
        "f calls itself",
    ),
    "recursion of two": (
        "x[0] = f(1.0f);",
        "HG_DEV float g(float v); HG_DEV float f(float v) { return g(v); } "
        "HG_DEV float g(float v) { return v > 0.0f ? f(v) : v; }",
        "calls itself",
    ),
    "a pointer without address space": (
        "",
        HELPER.format("const float*"),
        "without address space: const float\\* p",
    ),
    "a pointer with two address spaces": (
        "",
        HELPER.format("thread device const float* const*"),
        "two address spaces: thread device",
    ),
    "a reference without address space": (
        "",
        "HG_DEV float f(P& p) { return p.v; }",
        "without address space: P& p",
    ),
    "a threadgroup variable of a helper": (
        "",
        "HG_DEV float f() { threadgroup float w[4]; return w[0]; }",
        "outside of a kernel",
    ),
    "a threadgroup variable in a branch": (
        "if (t < 1u) { threadgroup float w[4]; w[0] = 1.0f; }",
        "",
        "not at the top of the kernel",
    ),
    "an atomic of half": ("", "typedef metal::atomic<half> A;", "no atomic is of half"),
    "an atomic of bfloat by a template": (
        "A<bfloat> a; (void)a;",
        "template <class T> struct A { metal::atomic<T> v; };",
        "atomics are of 32 bits",
    ),
}


@pytest.mark.parametrize("what", MISUSES)
def test_refuses_to_compile(what: str) -> None:
    body, before, why = MISUSES[what]
    with pytest.raises(EmulatorError, match=why):
        library(metal_kernel(body, before), "metal")


# Text of both languages: what one of them refuses, or where they mean different things.
OF_BOTH = {
    "a function by its bare name": (
        "x[t] = exp(x[t]);",
        {"metal": "undeclared identifier 'exp'", "cuda": "exp is not of the dialect"},
    ),
    "a function of C's": (
        "x[t] = sqrtf(x[t]);",
        {"metal": "undeclared identifier 'sqrtf'", "cuda": "sqrtf is not of the dialect"},
    ),
    "a maximum that drops NaN": (
        "x[t] = max(x[t], 0.0f);",
        {"metal": "undeclared identifier 'max'", "cuda": "undeclared identifier 'max'"},
    ),
    "arithmetic of a half type": (
        "half h = half(x[t]); x[t] = float(h * h);",
        {"cuda": "unknown type name 'half'|undeclared identifier 'half'"},
    ),
    "a shuffle of a half": (
        "x[t] = hg_convert<hg_f32>(hg_shfl_xor(hg_convert<hg_f16>(x[t]), 1u));",
        dict.fromkeys(PRELUDES, "no matching function for call to 'hg_shfl_xor'"),
    ),
    "an atomic of 64 bits": (
        "hg_u64 v = 0; hg_atomic_add(&v, 1u);",
        dict.fromkeys(PRELUDES, "no matching function for call to 'hg_atomic_add'"),
    ),
    "printf": ('printf("%d", 1);', dict.fromkeys(PRELUDES, "undeclared identifier 'printf'")),
    "__restrict__": (
        "HG_GLOBAL hg_f32* __restrict__ p = x; p[t] = 0.0f;",
        dict.fromkeys(PRELUDES, "__restrict__ is not of the language"),
    ),
    "a lambda": (
        "auto f = [&](float v) { return v; }; x[t] = f(1.0f);",
        dict.fromkeys(PRELUDES, "lambdas are not"),
    ),
    "an array of variable length": (
        "hg_f32 v[t + 1u]; x[t] = v[0];",
        dict.fromkeys(PRELUDES, "variable length array|non-constant"),
    ),
    "an f64": (
        "hg_f64 v = 0.0; x[t] = hg_f32(v);",
        {"metal": "cannot initialize a variable of type 'hg_f64'"},
    ),
    "arithmetic of an f64's bits": (
        "hg_f64 v = hg_convert<hg_f64>(x[t]); x[t] = hg_convert<hg_f32>(v + v);",
        {"metal": "invalid operands"},
    ),
    "contraction": (
        "\n#pragma STDC FP_CONTRACT ON\n x[t] = x[t] * x[t] + x[t];",
        dict.fromkeys(PRELUDES, "no operation may be contracted"),
    ),
    "fast contraction": (
        '_Pragma("clang fp contract(fast)") x[t] = x[t] * x[t] + x[t];',
        dict.fromkeys(PRELUDES, "no operation may be contracted"),
    ),
    "a pragma of one language": (
        "\n#pragma unroll\n for (hg_u32 i = 0; i < 4u; ++i) x[t] += 1.0f;",
        {"metal": "HG_UNROLL says it"},
    ),
    "a number that nobody has written": (
        "hg_f32 v; x[t] = v;",
        dict.fromkeys(PRELUDES, "variable 'v' is uninitialized"),
    ),
}


@pytest.mark.parametrize("prelude", PRELUDES)
@pytest.mark.parametrize("what", OF_BOTH)
def test_refuses_text_that_is_not_of_both_languages(what: str, prelude: str) -> None:
    body, why = OF_BOTH[what]
    text = block_kernel(body, "")
    if prelude in why:
        with pytest.raises(EmulatorError, match=why[prelude]):
            library(text, prelude)
    else:  # or the other one's refusal would be for something else
        library(text, prelude)


@pytest.mark.parametrize("prelude", PRELUDES)
def test_a_kernel_has_31_arguments(prelude: str) -> None:
    def text(count: int) -> str:
        buffers = ", ".join(f"HG_BUF(hg_f32, x{i}, {i})" for i in range(count))
        return f"HG_KERNEL(k, {buffers}, HG_PARAM(hg_u32, n, {count})) {{ x0[0] = hg_f32(n); }}"

    x = np.zeros(1, np.float32)
    library(text(30), prelude).launch("k", 1, 1, [x] * 30, u32(7))
    assert x[0] == 7
    with pytest.raises(EmulatorError, match=r"the last index is 30|32 arguments: there may be 31"):
        library(text(31), prelude)


@pytest.mark.parametrize("prelude", PRELUDES)
def test_operations_are_not_contracted(prelude: str) -> None:
    x = np.array([1 + 2.0**-12, 3, -1 - 2.0**-11], np.float32)
    expected = x[0] * x[0] + x[2]  # the product is rounded; by fma it is 2 ** -24
    library(block_kernel("x[1] = x[0] * x[0] + x[2];", ""), prelude).launch("k", 1, 1, [x])
    assert x[1] == expected == 0
    library(block_kernel("x[1] = hg_fma(x[0], x[0], x[2]);", ""), prelude).launch("k", 1, 1, [x])
    assert x[1] == 2.0**-24


def test_maxima_of_metal_drop_nan() -> None:
    """As they do on devices, so that a kernel that should not use them is seen to be wrong."""
    body = "x[t] = metal::max(x[t], 0.0f) + metal::min(0.0f, x[t]) + metal::simd_max(x[t]);"
    x = np.full(32, np.nan, np.float32)
    x[3] = 5
    library(block_kernel(body, ""), "metal").launch("k", 1, 32, [x])
    assert x.tolist() == [5.0] * 3 + [10.0] + [5.0] * 28
    # The dialect's own keep it.
    text = OP.format(name="maximum", expression=next(r[2] for r in op_rows() if r[0] == "maximum"))
    text += block_kernel("x[t] = op_maximum<hg_f32>(x[t], 0.0f, 0.0f);", "")
    for prelude in PRELUDES:
        x = np.array([np.nan, 1], np.float32)
        library(text, prelude).launch("k", 1, 2, [x])
        assert np.isnan(x[0]) and x[1] == 1


ARGUMENTS = {
    "without an attribute": (", device float* y", "without an attribute: device float\\* y"),
    "by value": (", float y [[buffer(3)]]", "a buffer by value"),
    "without an address space": (", float* y [[buffer(3)]]", "without its address space"),
    "of the wrong address space": (
        ", threadgroup float* y [[buffer(3)]]",
        "without its address space",
    ),
    "with an index too large": (", device float* y [[buffer(31)]]", "the last index is 30"),
    "with an index of another": (", device float* y [[buffer(0)]]", "an index is taken twice"),
    "with an unknown attribute": (", metal::uint3 y [[color(0)]]", "does not know"),
}


@pytest.mark.parametrize("what", ARGUMENTS)
def test_refuses_an_argument(what: str) -> None:
    argument, why = ARGUMENTS[what]
    with pytest.raises(EmulatorError, match=why):
        library(metal_kernel("", arguments=argument), "metal")
    # The same, as it should be.
    library(metal_kernel("", arguments=", device float* y [[buffer(30)]]"), "metal")


@pytest.mark.parametrize("prelude", PRELUDES)
def test_refuses_a_literal_of_double(prelude: str) -> None:
    """In Metal it would be a float, and the kernels would differ."""
    text = "HG_KERNEL(half_of, HG_BUF(hg_f32, x, 0)) {{ x[HG_LID] = x[HG_LID] * 0.5{}; }}"
    with pytest.raises(EmulatorError, match="increases floating-point precision"):
        library(text.format(""), prelude)
    library(text.format("f"), prelude)


def test_an_error_names_its_line() -> None:
    text = "\nHG_DEV int f() { return 1; }\nHG_KERNEL(k, HG_BUF(hg_f32, x, 0)) { nothing; }\n"
    with pytest.raises(EmulatorError, match=r"kernel:4:.*undeclared identifier 'nothing'"):
        library(text, "metal")
    with pytest.raises(EmulatorError, match="kernel:3: double is not"):
        library("\nHG_DEV double f() { return 1; }\n", "metal")


def block_kernel(body: str, shared: str = "HG_SHARED(hg_f32, s, 32)") -> str:
    return (
        f"HG_KERNEL(k, HG_BUF(hg_f32, x, 0)) {{\n  {shared}\n  const hg_u32 t = HG_LID;\n{body}\n}}"
    )


BARRIERS = {
    "an early return": (
        "if (t == 5u) return; s[t % 32u] = x[t]; HG_SYNC(); x[t] = s[0];",
        "not all threads reach a barrier: 63 wait.*1 have left the kernel",
    ),
    "a barrier in a branch": (
        "s[t % 32u] = x[t]; if (t < 3u) HG_SYNC(); x[t] = s[0];",
        "not all threads reach a barrier: 3 wait.*61 have left",
    ),
    "different barriers": (
        "if (t < 32u) { HG_SYNC(); } else { HG_SYNC(); } x[t] = s[0];",
        "at different barriers",
    ),
    "different shuffles": (
        "x[t] = t % 2u == 0u ? hg_shfl_xor(x[t], 2u) : hg_shfl_xor(x[t], 4u);",
        "lanes of a simdgroup are at different operations",
    ),
    "a shuffle and a barrier": (
        "if (t < 3u) x[t] = hg_shfl_xor(x[t], 1u); else HG_SYNC();",
        "not all threads reach a barrier: 61 wait.*3 wait at the simdgroup's operation",
    ),
}


@pytest.mark.parametrize("order", emulator.ORDERS)
@pytest.mark.parametrize("prelude", PRELUDES)
@pytest.mark.parametrize("what", BARRIERS)
def test_threads_part(what: str, prelude: str, order: str) -> None:
    body, why = BARRIERS[what]
    if what == "different shuffles":  # two overloads call from one place: two functions do not
        body = body.replace("? hg_shfl_xor", "? hg_shfl_down")
    lib, x = library(block_kernel(body), prelude), np.ones(64, np.float32)
    for _ in range(2):  # the emulator can go on after it
        with pytest.raises(EmulatorError, match=why):
            lib.launch("k", 1, 64, [x], order=order, seed=3)


RACES = {
    "a write that others read": "s[t % 32u] = x[t]; x[t] = s[(t + 1u) % 32u];",
    "a second use": "s[t] = x[t]; HG_SYNC(); x[t] = s[31u - t]; s[t] = 0.0f;",
    "one element of all": "x[0] = x[t];",
}


@pytest.mark.parametrize("prelude", PRELUDES)
@pytest.mark.parametrize("what", RACES)
def test_finds_a_race(what: str, prelude: str) -> None:
    x = np.arange(32, dtype=np.float32)
    with pytest.raises(EmulatorError, match="a race"):
        library(block_kernel(RACES[what]), prelude).launch_in_all_orders("k", 1, 32, [x])
    good = "s[t] = x[t]; HG_SYNC(); x[t] = s[31u - t]; HG_SYNC(); s[t] = 0.0f;"
    x = np.arange(32, dtype=np.float32)
    library(block_kernel(good), prelude).launch_in_all_orders("k", 1, 32, [x])
    np.testing.assert_array_equal(x, np.arange(31, -1, -1))


@pytest.mark.parametrize("prelude", PRELUDES)
def test_orders_of_threads(prelude: str) -> None:
    """Also of what waits: the second number is taken behind a barrier."""
    text = """
HG_KERNEL(take_numbers, HG_BUF(hg_atomic_u32, next, 0), HG_BUF(hg_u32, x, 1)) {
  x[HG_LID] = hg_atomic_add(next, 1u);
  HG_SYNC();
  x[HG_BDIM + HG_LID] = hg_atomic_add(next, 1u) - HG_BDIM;
}
"""
    taken = {}
    for order, seed in [("forward", 0), ("reverse", 0), ("seeded", 1), ("seeded", 2)]:
        x = np.zeros((2, 64), np.uint32)
        buffers = [np.zeros(1, np.uint32), x]
        library(text, prelude).launch("take_numbers", 1, 64, buffers, order=order, seed=seed)
        assert x[0].tolist() == x[1].tolist()
        taken[order, seed] = x[0].tolist()
    assert taken["forward", 0] == list(range(64))
    assert taken["reverse", 0] == list(range(63, -1, -1))
    assert sorted(taken["seeded", 1]) == list(range(64))
    assert len(set(map(tuple, taken.values()))) == 4


@pytest.mark.parametrize("prelude", PRELUDES)
def test_shared_memory_is_poison_at_the_start_of_each_block(prelude: str) -> None:
    x = np.zeros(64, np.float32)
    body = "HG_SYNC(); const hg_f32 v = s[t]; HG_SYNC(); s[t] = 1.0f; x[HG_BID * HG_BDIM + t] = v;"
    library(block_kernel(body), prelude).launch("k", 2, 32, [x])
    assert np.isnan(x).all()


def test_a_lane_that_does_not_exist() -> None:
    text = block_kernel("const hg_f32 v = hg_shfl_down(x[t], 1u); x[t] = v;", "")
    # Metal: anything, here NaN.
    x = np.arange(48, dtype=np.float32)
    library(text, "metal").launch("k", 1, 48, [x])
    assert np.flatnonzero(np.isnan(x)).tolist() == [31, 47]
    # CUDA: the last lane's own; a mask may not name lanes that a block lacks.
    x = np.arange(64, dtype=np.float32)
    library(text, "cuda").launch("k", 1, 64, [x])
    assert (x[30], x[31], x[63]) == (31, 31, 63)
    with pytest.raises(EmulatorError, match="mask of a shuffle names a lane that is not there"):
        library(text, "cuda").launch("k", 1, 48, [x])


@pytest.mark.parametrize("prelude", PRELUDES)
def test_shared_memory_has_an_end(prelude: str) -> None:
    x = np.zeros(32, np.float32)
    two = "HG_SHARED(hg_f32, a, {}) HG_SHARED(hg_u8, b, 16)"
    body = "a[t] = 0.0f; b[t % 16u] = 0; x[t] = 1.0f;"
    library(block_kernel(body, two.format(8188)), prelude).launch("k", 1, 32, [x])
    with pytest.raises(EmulatorError, match="32784 bytes of threadgroup memory: there are 32768"):
        library(block_kernel(body, two.format(8192)), prelude).launch("k", 1, 32, [x])
    if not emulator.SANITIZED:  # which would end this process
        with pytest.raises(EmulatorError, match="a write beyond the end of threadgroup memory"):
            library(block_kernel("s[t + 1u] = x[t];"), prelude).launch("k", 1, 32, [x])


def test_threadgroup_memory_of_arguments() -> None:
    text = """
kernel void k(device float* x [[buffer(0)]], threadgroup float* s [[threadgroup(0)]],
              metal::uint3 t [[thread_position_in_threadgroup]]) {
  threadgroup float w[32];
  w[t.x] = x[t.x];
  s[t.x] = w[t.x] + 1.0f;
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  x[t.x] = s[31u - t.x];
}
"""
    lib, x = library(text, "metal"), np.arange(32, dtype=np.float32)
    lib.launch_in_all_orders("k", 1, 32, [x], threadgroup=[32768 - 128])
    np.testing.assert_array_equal(x, np.arange(32, 0, -1))
    for size, why in [
        (32768 + 16, "there are 32768"),
        (32768, "32896 bytes"),
        (120, "multiple of 16"),
    ]:
        with pytest.raises(EmulatorError, match=why):
            lib.launch("k", 1, 32, [x], threadgroup=[size])


def test_words_of_metal_beyond_the_dialect() -> None:
    """For kernels that are written for Metal alone."""
    text = """
kernel void places(device float* x [[buffer(0)]], device uint* y [[buffer(4)]],
                   constant float* c [[buffer(7)]],
                   uint index [[thread_index_in_threadgroup]],
                   ushort lane [[thread_index_in_simdgroup]],
                   uint group [[simdgroup_index_in_threadgroup]],
                   metal::uint3 at [[thread_position_in_grid]],
                   uint block [[threadgroup_position_in_grid]]) {
  const float v = x[at.x];
  device uint* to = y + at.x * 6;
  to[0] = index, to[1] = lane, to[2] = group, to[3] = block;
  to[4] = metal::simd_max(at.x), to[5] = metal::simd_min(at.x);
  const float total = metal::simd_sum(v), from = metal::simd_shuffle(v, 7);
  const float before = metal::simd_shuffle_up(v, 1);
  x[at.x] = (lane == 0 ? total : before) + from * c[0] + metal::max(1.0f, metal::min(v, 2.0f));
}
"""
    text = text.replace("uint*", "metal::uint*").replace(" uint ", " metal::uint ")
    x = np.arange(128, dtype=np.float32)
    at, lanes = np.arange(128), x.reshape(4, 32)
    y, c = np.zeros((128, 6), np.uint32), np.full(1, 0.5, np.float32)
    before = np.concatenate([lanes.sum(1, keepdims=True), lanes[:, :-1]], 1)
    expected = before + lanes[:, 7:8] * 0.5 + np.clip(lanes, 1, 2)
    library(text.replace("ushort", "metal::ushort"), "metal").launch("places", 2, 64, [x, y, c])
    np.testing.assert_array_equal(x, expected.ravel())
    first = at // 32 * 32
    columns = [at % 64, at % 32, at % 64 // 32, at // 64, first + 31, first]
    np.testing.assert_array_equal(y, np.stack(columns, 1))


@pytest.mark.parametrize("prelude", PRELUDES)
def test_limits_of_a_launch(prelude: str) -> None:
    text = """
struct most { hg_u32 v[1024]; };
struct more { hg_u32 v[1025]; };
HG_KERNEL(takes_most, HG_BUF(hg_u32, x, 0), HG_PARAM(most, p, 1)) { x[HG_LID] = p.v[HG_LID]; }
HG_KERNEL(takes_more, HG_BUF(hg_u32, x, 0), HG_PARAM(more, p, 1)) { x[HG_LID] = p.v[HG_LID]; }
"""
    lib, x, given = (
        library(text, prelude),
        np.zeros(1024, np.uint32),
        np.arange(1025, dtype=np.uint32),
    )
    lib.launch("takes_most", 1, 1024, [x], given[:1024].tobytes())
    np.testing.assert_array_equal(x, given[:1024])
    wrong = [
        ("takes_most", 1, 1025, [x], u32(*range(1024)), "1025 threads in a block"),
        ("takes_most", 1, (32, 8, 8), [x], u32(*range(1024)), "2048 threads in a block"),
        ("takes_most", 1, 0, [x], u32(*range(1024)), "0 threads in a block"),
        ("takes_most", (1, 0), 32, [x], u32(*range(1024)), "an empty grid"),
        ("takes_more", 1, 32, [x], given.tobytes(), "4100 bytes: there may be 4096"),
        ("takes_most", 1, 32, [x], u32(1), "4 bytes is 4096 in the kernel"),
        ("takes_most", 1, 32, [], u32(*range(1024)), "argument 0 is missing"),
        ("takes_most", 1, 32, [x, x], u32(*range(1024)), "1 arguments too many"),
        ("nothing", 1, 32, [x], b"", "no kernel is named nothing"),
    ]
    for name, grid, block, buffers, params, why in wrong:
        with pytest.raises(EmulatorError, match=why):
            lib.launch(name, grid, block, buffers, params)


# The sanitizer ends a process that does what is wrong, and has to be loaded at its start.
OUTSIDE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import emulator
x = np.zeros(int(sys.argv[4]), np.float32)
emulator.compile_library(sys.argv[2], sys.argv[3]).launch("k", 1, 32, [x])
print("went well")
"""
INSIDE = "s[t] = x[t]; HG_SYNC(); x[t] = s[31u - t];"
ACCESSES = {  # a kernel's body, the elements of its buffer
    "inside": (INSIDE, 32),
    "a read of device memory": ("s[t] = x[t]; HG_SYNC(); if (t < 31u) x[t] = s[31u - t];", 31),
    "a write to device memory": ("s[t] = 1.0f; HG_SYNC(); x[t] = s[31u - t];", 31),
    "a read of threadgroup memory": (INSIDE.replace("31u - t", "31u - t + 9u"), 32),
    "a write to threadgroup memory": (INSIDE.replace("s[t]", "s[t + 9u]"), 32),
    "a read before threadgroup memory": (INSIDE.replace("31u - t", "static_cast<int>(t) - 9"), 32),
}


@pytest.mark.parametrize("prelude", PRELUDES)
@pytest.mark.parametrize("what", ACCESSES)
def test_the_address_sanitizer_sees_what_is_outside(what: str, prelude: str) -> None:
    """Of device and of threadgroup memory, in fibers."""
    body, count = ACCESSES[what]
    command = [sys.executable, "-c", OUTSIDE, str(ROOT / "test" / "gpu")]
    command += [INCLUDE + block_kernel(body), prelude, str(count)]
    environment = os.environ | emulator.sanitizer_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if what == "inside":
        assert (done.returncode, done.stdout) == (0, "went well\n"), done.stderr
    else:
        assert (done.returncode, done.stdout) == (86, "")
        access = f"{what.split()[1].upper()} of size 4"
        assert "heap-buffer-overflow" in done.stderr and access in done.stderr


def test_the_c_interface_and_the_command(tmp_path: Path) -> None:
    """What a program does that has no Python: the command makes a library, dlopen takes both."""
    text = tmp_path / "add.hgk"
    text.write_text(INCLUDE + ADD)
    command = [
        sys.executable,
        ROOT / "test" / "gpu" / "emulator.py",
        "--runtime",
        "--prelude",
        "cuda",
    ]
    done = subprocess.run([*command, text], capture_output=True, text=True, check=True)
    source = tmp_path / "main.cpp"
    source.write_text(C_PROGRAM)
    include = ROOT / "test" / "gpu"
    options = ["-std=c++20", "-I", include, source, "-o", tmp_path / "main", "-ldl"]
    subprocess.run([os.environ.get("CXX", "g++"), *options], check=True)
    ran = subprocess.run(
        [tmp_path / "main", *done.stdout.split()], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "3 5\nadd: 2 arguments given, 4 expected\n"
    text.write_text(INCLUDE + "HG_KERNEL(k, HG_BUF(hg_f32, x, 0)) { goto x; }")
    failed = subprocess.run([*command, text], capture_output=True, text=True)
    assert failed.returncode == 1 and "goto is not of the language" in failed.stderr


C_PROGRAM = """
#include <dlfcn.h>
#include <cstdio>
#include "emulator.h"
int main(int, char** argv) {
  void* const runtime = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  if (runtime == nullptr) return std::puts(dlerror()), 1;
  auto* const open = reinterpret_cast<decltype(&hg_library_open)>(
      dlsym(runtime, "hg_library_open"));
  auto* const find = reinterpret_cast<decltype(&hg_library_kernel)>(
      dlsym(runtime, "hg_library_kernel"));
  auto* const launch = reinterpret_cast<decltype(&hg_launch)>(dlsym(runtime, "hg_launch"));
  auto* const error = reinterpret_cast<decltype(&hg_emulator_error)>(
      dlsym(runtime, "hg_emulator_error"));
  hg_library* const library = open(argv[2]);
  hg_kernel* const kernel = library != nullptr ? find(library, "add") : nullptr;
  if (kernel == nullptr) return std::puts(error()), 1;
  const float x[] = {1, 2}, y[] = {2, 3};
  float z[2];
  const uint32_t n = 2, grid[] = {1, 1, 1}, block[] = {32, 1, 1};
  const hg_argument arguments[] = {{x, 0}, {y, 0}, {z, 0}, {&n, sizeof n}};
  if (launch(kernel, grid, block, arguments, 4, HG_ORDER_REVERSE, 0) != 0) return 1;
  std::printf("%g %g\\n", z[0], z[1]);
  if (launch(kernel, grid, block, arguments, 2, HG_ORDER_FORWARD, 0) == 0) return 1;
  std::puts(error());
}
"""


def test_without_the_compiler_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emulator, "COMPILER", "clang++-of-nobody")
    with pytest.raises(EmulatorError, match=r"is not installed \(Debian's package clang-19\)"):
        compile_library(INCLUDE + ADD + "// of this test", "metal")
