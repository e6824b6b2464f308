"""Code of others on CUDA devices, on a GPU: streams, Triton, CuPy, JAX, CUDA operators, graphs.

With HOLOGRAM_BACKENDS=cuda; make test-cuda runs it. What needs no GPU is in
test_cuda_driver_interop.py.
"""

from __future__ import annotations

import json
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import pytest
import torch
from common import HologramTestCase, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

import torch_hologram as hg

D = "hologram"
N = 5000


def trace_of(profiled: torch.profiler.profile) -> list[dict[str, Any]]:
    """The events of a profile, with those of the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"]


@pytest.mark.cuda
class GpuTestCase(HologramTestCase):
    def setUp(self):
        super().setUp()
        if torch.hologram.get_device_properties(0).backend != "cuda":
            raise unittest.SkipTest("hologram is on another backend: HOLOGRAM_BACKENDS=cuda")
        self.stream = torch.cuda.Stream()
        self.numbers = torch.arange(float(N))
        self.on_device = self.numbers.to(D)
        torch.hologram.synchronize()

    def slow(self):
        """About 0.05 s on the current stream."""
        torch.cuda._sleep(100_000_000)

    def streams(self):
        """The default stream, one of torch's, and one of ours."""
        yield torch.cuda.stream(torch.cuda.default_stream())
        yield torch.cuda.stream(self.stream)
        yield torch.hologram.stream(torch.hologram.Stream())


class TestStreams(GpuTestCase):
    def test_the_current_stream_both_ways(self):
        self.assertEqual(torch.hologram.current_stream().cuda_stream, 0)
        with torch.cuda.stream(self.stream):
            mine = torch.hologram.current_stream()
            self.assertEqual(mine.cuda_stream, self.stream.cuda_stream)
            ours = torch.hologram.Stream()
            with torch.hologram.stream(ours):
                self.assertEqual(torch.cuda.current_stream().cuda_stream, ours.cuda_stream)
                self.assertEqual(torch.hologram.current_stream(), ours)
            self.assertEqual(torch.cuda.current_stream(), self.stream)
            self.assertEqual(torch.hologram.current_stream(), mine)
        self.assertEqual(torch.cuda.current_stream(), torch.cuda.default_stream())
        external = torch.cuda.ExternalStream(ours.cuda_stream)
        with torch.cuda.stream(external):  # the first of those that share it
            self.assertEqual(torch.hologram.current_stream().cuda_stream, ours.cuda_stream)
        self.assertEqual(
            torch.hologram.get_stream_from_external(self.stream.cuda_stream).cuda_stream,
            self.stream.cuda_stream,
        )

    def test_a_stream_of_torchs_is_made_current(self):
        with torch.hologram.stream(self.stream):
            self.assertEqual(torch.cuda.current_stream(), self.stream)
            mine = torch.hologram.current_stream()
            self.assertEqual(mine.cuda_stream, self.stream.cuda_stream)
            twice = self.on_device * 2
        self.assertEqual(torch.cuda.current_stream(), torch.cuda.default_stream())
        torch.hologram.set_stream(self.stream)
        self.assertEqual(torch.cuda.current_stream(), self.stream)
        self.assertEqual(twice.cpu(), self.numbers * 2)
        torch.hologram.set_stream(torch.hologram.default_stream())
        self.assertEqual(torch.cuda.current_stream(), torch.cuda.default_stream())

    def test_work_is_in_the_order_of_the_stream(self):
        for current in self.streams():
            with current:
                self.slow()
                theirs = torch.ones(N, device="cuda")
                x = hg.from_dlpack(theirs)
                y = (x + self.on_device) * 2
                z = torch.sort(y, descending=True).values  # torch's kernel
                back = torch.from_dlpack(z + 1, device="cuda") * 3
            with torch.cuda.stream(torch.cuda.Stream()):  # another one waits
                self.assertEqual((z * 1).cpu(), ((self.numbers + 1) * 2).flip(0))
            torch.cuda.synchronize()
            self.assertEqual(back.cpu(), (((self.numbers + 1) * 2).flip(0) + 1) * 3)

    def test_events_of_torch(self):
        with torch.cuda.stream(self.stream):
            self.slow()
            y = self.on_device + 1
            torch.hologram.flush()
            event = torch.cuda.Event()
            event.record()
        event.synchronize()
        self.assertTrue(torch.hologram.get_stream_from_external(self.stream.cuda_stream).query())
        self.assertEqual(y.cpu(), self.numbers + 1)


class TestKernelsOfOthers(GpuTestCase):
    def test_data_ptr_waits_for_nothing(self):
        self.slow()
        event = torch.cuda.Event()
        event.record()
        y = self.on_device + 1
        y.data_ptr()
        self.assertFalse(event.query())

    def test_triton(self):
        # Triton reads the source of kernels in files.
        folder = Path(tempfile.mkdtemp())
        (folder / "triton_kernels_of_the_test.py").write_text(
            "import triton\n"
            "import triton.language as tl\n"
            "@triton.jit\n"
            "def twice_and_one(x, y, n, B: tl.constexpr):\n"
            "    i = tl.program_id(0) * B + tl.arange(0, B)\n"
            "    tl.store(y + i, tl.load(x + i, mask=i < n) * 2 + 1, mask=i < n)\n"
        )
        import sys

        sys.path.insert(0, str(folder))
        self.addCleanup(sys.path.remove, str(folder))
        from triton_kernels_of_the_test import twice_and_one

        for current in self.streams():
            with current:
                self.slow()
                x = self.on_device + 1
                y = torch.zeros_like(x)
                twice_and_one[(5,)](x, y, N, B=1024)
                z = y * 3
                twice_and_one[(5,)](z, y, N, B=1024)  # after z has read it
                del x
            self.assertEqual(z.cpu(), (self.numbers * 2 + 3) * 3)
            self.assertEqual((y + 0).cpu(), (self.numbers * 2 + 3) * 6 + 1)

    def test_cupy_kernels(self):
        import cupy

        kernel = cupy.RawKernel(
            'extern "C" __global__ void add_one(float* x, int n)'
            "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] += 1; }",
            "add_one",
        )
        for current in self.streams():
            with current, cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
                self.slow()
                x = self.on_device * 2
                kernel((20,), (256,), (x.data_ptr(), cupy.int32(N)))
                y = x + 1
                array = cupy.from_dlpack(x)
                self.assertEqual(array.data.ptr, x.data_ptr())
                x.add_(1)  # is seen
                kernel((20,), (256,), (array, cupy.int32(N)))
                z = x * 1
            self.assertEqual(y.cpu(), self.numbers * 2 + 2)
            self.assertEqual(z.cpu(), self.numbers * 2 + 3)

    def test_cupy_arrays(self):
        import cupy

        x = self.on_device + 1
        for array in (cupy.asarray(x), cupy.from_dlpack(x)):
            self.assertEqual(array.data.ptr, x.data_ptr())
            array += 1
        self.assertEqual((x * 1).cpu(), self.numbers + 3)
        array = cupy.arange(10, dtype=cupy.float32)
        for made in (hg.from_dlpack(array), torch.from_dlpack(array, device=D)):
            self.assertTrue(made.is_hologram)
            self.assertEqual(made.data_ptr(), array.data.ptr)
            made.add_(1)
        array *= 2
        self.assertEqual(made.cpu(), (torch.arange(10.0) + 2) * 2)
        self.assertNotEqual(hg.from_dlpack(array, copy=True).data_ptr(), array.data.ptr)
        del array, made
        cupy.get_default_memory_pool().free_all_blocks()

    def test_cuda_tensors(self):
        theirs = torch.arange(10.0, device="cuda")
        ours = hg.from_dlpack(theirs, copy=False)
        self.assertEqual(ours.data_ptr(), theirs.data_ptr())
        ours.add_(1)
        theirs.mul_(2)
        self.assertEqual((ours + 0).cpu(), (torch.arange(10.0) + 1) * 2)
        address = theirs.data_ptr()
        del theirs
        self.assertEqual((ours + 0).cpu(), (torch.arange(10.0) + 1) * 2)
        del ours
        x = self.on_device + 1
        theirs = torch.from_dlpack(x, device="cuda")
        self.assertTrue(theirs.is_cuda and theirs.data_ptr() == x.data_ptr() != address)
        theirs.add_(1)
        x.add_(1)
        del x
        self.assertEqual(theirs.cpu(), self.numbers + 3)
        self.assertEqual(self.on_device.__dlpack_device__(), (2, 0))
        with self.assertRaisesRegex(BufferError, "requires? grad"):
            torch.from_dlpack(torch.ones(2, device=D, requires_grad=True), device="cuda")

    def test_jax(self):
        run_python(
            """
            import jax, torch
            import torch_hologram as hg
            x = torch.arange(1000.0, device="hologram") + 1
            array = jax.dlpack.from_dlpack(x)
            assert array.unsafe_buffer_pointer() == x.data_ptr()
            assert float(array.sum()) == 500500.0
            made = jax.numpy.arange(1000, dtype="float32") * 2
            ours = hg.from_dlpack(made)
            assert ours.is_hologram and ours.data_ptr() == made.unsafe_buffer_pointer()
            assert torch.equal((ours + 1).cpu(), torch.arange(1000.0) * 2 + 1)
            del array, made, x, ours
            """,
            env={"HOLOGRAM_BACKENDS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
            timeout=300,
        )

    def test_cuda_operators(self):
        """For CUDA, and for our key with the same kernel."""
        from torch.utils.cpp_extension import load_inline

        kernel = """
        __global__ void kernel(const float* x, float* y, int n) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) y[i] = 2 * x[i] + 1;
        }
        void launch(const float* x, float* y, int n, void* stream) {
          kernel<<<(n + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(x, y, n);
        }
        """
        operators = """
        #include <ATen/core/Tensor.h>
        #include <ATen/ops/empty_like.h>
        #include <c10/cuda/CUDAStream.h>
        #include <torch/library.h>
        void launch(const float* x, float* y, int n, void* stream);
        at::Tensor twice_and_one(const at::Tensor& x) {
          at::Tensor y = at::empty_like(x);
          launch(x.const_data_ptr<float>(), y.mutable_data_ptr<float>(),
                 static_cast<int>(x.numel()), c10::cuda::getCurrentCUDAStream().stream());
          return y;
        }
        TORCH_LIBRARY(test_cuda_interop, m) {
          m.def("for_cuda(Tensor x) -> Tensor");
          m.def("for_both(Tensor x) -> Tensor");
        }
        TORCH_LIBRARY_IMPL(test_cuda_interop, CUDA, m) { m.impl("for_cuda", &twice_and_one); }
        TORCH_LIBRARY_IMPL(test_cuda_interop, PrivateUse1, m) {
          m.impl("for_both", &twice_and_one);
        }
        """
        load_inline(
            "test_cuda_interop",
            cpp_sources=[operators],
            cuda_sources=[kernel],
            no_implicit_headers=True,
            is_python_module=False,
        )
        for operator in (
            torch.ops.test_cuda_interop.for_cuda,
            torch.ops.test_cuda_interop.for_both,
        ):
            for current in self.streams():
                with current:
                    self.slow()
                    y = operator(self.on_device + 1) * 3
                self.assertTrue(y.is_hologram)
                self.assertEqual(y.cpu(), (self.numbers * 2 + 3) * 3)


class TestKernelsInPrograms(GpuTestCase):
    """Torch's kernels that are recorded, and captured when their programs come again."""

    # By cuDNN, and by torch's memory-efficient kernels.
    @parametrize("dtype", (torch.bfloat16, torch.float32))
    def test_attention_and_embeddings(self, dtype):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(100, 64, device=D)
        linear = torch.nn.Linear(64, 192, device=D, dtype=dtype)
        tokens = torch.randint(100, (2, 128), device=D)

        def step() -> list[torch.Tensor]:
            embedding.zero_grad()
            linear.zero_grad()
            x = embedding(tokens).to(dtype)
            heads = (t.view(2, 128, 2, 32).transpose(1, 2) for t in linear(x).chunk(3, -1))
            out = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
            loss = (out.transpose(1, 2).reshape(2, 128, 64).float() * x.float()).sum()
            loss.backward()
            return [loss.detach(), out.detach(), embedding.weight.grad, linear.weight.grad]

        def counts() -> tuple[int, int, int]:
            torch.hologram.synchronize()
            stats = torch.hologram.stream_stats()
            return tuple(stats[f"replays.{name}"] for name in ("launched", "made", "failed"))

        first = [t.cpu() for t in step()]
        before = counts()
        # There are graphs as soon as the kernels have been compiled, which others' may delay.
        deadline = time.monotonic() + 60
        while counts()[0] < before[0] + 50 and time.monotonic() < deadline:
            last = step()  # whose results are wanted, as below: another program than without
            torch.hologram.flush()
        for i in range(300):
            last = step()
            torch.hologram.flush()
            if i % 20 == 0:  # what a graph works on is nobody else's
                torch.cuda.empty_cache()
                torch.full((8, 1 << 20), 7.0, device="cuda")
        launched, made, failed = (b - a for a, b in zip(before, counts(), strict=True))
        self.assertGreater(launched, 100)
        self.assertEqual(failed, 0)
        self.assertLess(made, 40)
        self.assertEqual([t.cpu() for t in last], first, rtol=0, atol=0)

    def test_memory_of_results_is_no_temporary(self):
        """Of a kernel that is given the tensor of its result."""
        torch.manual_seed(0)
        numbers = torch.randn(5000, dtype=torch.float64)
        index = torch.randint(5000, (6000,))
        expected = numbers[index[::2]]
        # The index has to be made contiguous, in as many bytes.
        numbers, index = numbers.to(D), index.to(D)[::2]
        for _ in range(50):
            self.assertEqual(torch.index_select(numbers, 0, index).cpu(), expected, rtol=0, atol=0)

    def test_results_are_made_where_they_belong(self):
        """No kernel's result is copied to its place."""
        from torch.profiler import ProfilerActivity, profile

        torch.manual_seed(0)
        rows, tokens = torch.randn(100, 64, device=D), torch.randint(100, (256,), device=D)
        heads = [torch.randn(2, 4, 128, 32, device=D, requires_grad=True) for _ in range(3)]
        halves = [t.detach().bfloat16().requires_grad_() for t in heads]

        def attention(operands: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            out = torch.nn.functional.scaled_dot_product_attention(*operands, is_causal=True)
            return (out.detach(), *torch.autograd.grad(out.sum(), operands))

        def call() -> list[torch.Tensor]:
            return [
                torch.index_select(rows, 0, tokens),
                torch.cat([rows, rows], 1),
                torch.ops.aten.embedding_dense_backward(
                    heads[0].detach().view(-1, 64), tokens.repeat(2), 100, -1, False
                ),
                *attention(heads),
                *attention(halves),
            ]

        first = [t.cpu() for t in call()]
        for _ in range(40):  # until they are recorded
            last = call()
        torch.hologram.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            last = call()
            torch.hologram.synchronize()
        self.assertEqual([t.cpu() for t in last], first, rtol=0, atol=0)
        events = trace_of(profiled)
        kernels = [event["name"] for event in events if event.get("cat") == "kernel"]
        self.assertTrue(any("CatArrayBatchedCopy" in name for name in kernels), kernels)
        self.assertEqual([e["name"] for e in events if e.get("cat") == "gpu_memcpy"], [])


instantiate_parametrized_tests(TestKernelsInPrograms)


class TestGraphs(GpuTestCase):
    def test_work_is_refused(self):
        x = self.on_device + 1
        torch.hologram.synchronize()
        for function in (lambda: x + 1, lambda: x.cpu(), lambda: x.sort()):
            counter = torch.zeros(1, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                counter.add_(1)
                self.assertTrue(torch.hologram.is_current_stream_capturing())
                with self.assertRaisesRegex(RuntimeError, "cannot be captured into a .*graph"):
                    function()
                counter.add_(1)
            graph.replay()
            self.assertEqual(counter.item(), 2)
            self.assertEqual((x + 1).cpu(), self.numbers + 2)

    def test_kernels_on_its_memory_are_captured(self):
        x = self.on_device + 1
        theirs = torch.from_dlpack(x, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.data_ptr()
            theirs.add_(1)
        for turn in range(3):
            self.assertEqual((x * 2).cpu(), (self.numbers + 1 + turn) * 2)
            graph.replay()


class TestProfiler(GpuTestCase):
    def test_kernels_with_the_operations_of_the_program(self):
        from torch.profiler import ProfilerActivity, profile

        x = torch.randn(300, 300, device=D)
        torch.hologram.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            y = torch.softmax(x * 2 + 1, 1)
            torch.hologram.synchronize()
        del y
        events = trace_of(profiled)
        kernels = [event for event in events if event.get("cat") == "kernel"]
        self.assertTrue(kernels)
        passes = [e for e in events if str(e.get("name")).startswith("hologram::pass")]
        self.assertTrue(any("exp" in event["name"] for event in passes), passes)
        launches = {
            e["args"]["correlation"]: e
            for e in events
            if e.get("cat") in ("cuda_driver", "cuda_runtime")
            and "correlation" in e.get("args", {})
        }
        for kernel in kernels:
            launch = launches[kernel["args"]["correlation"]]
            self.assertTrue(
                any(
                    p["ts"] <= launch["ts"] and launch["ts"] <= p["ts"] + p["dur"]
                    for p in passes
                    if p["tid"] == launch["tid"] and p.get("cat") == "cpu_op"
                ),
                (kernel["name"], launch),
            )


# Of another process, started by spawn.
def receive(queue, answers):
    first, second, view = queue.get(timeout=60)
    assert first.is_hologram and first.untyped_storage()._cdata == view.untyped_storage()._cdata
    answers.put((first * 1).cpu())  # in the order of the sender's stream
    view.add_(1)
    second.fill_(7)
    torch.hologram.synchronize()
    answers.put("written")
    queue.get(timeout=60)


def add_to(rank, x):
    x.add_(5 + rank)
    torch.hologram.synchronize()


class TestProcesses(GpuTestCase):
    def test_by_handle(self):
        context = torch.multiprocessing.get_context("spawn")
        queue, answers = context.Queue(), context.Queue()
        process = context.Process(target=receive, args=(queue, answers))
        process.start()
        try:
            with torch.cuda.stream(self.stream):
                self.slow()
                x = self.on_device + 1
                y = torch.zeros(3, 4, device=D, dtype=torch.int64).t()
                queue.put((x, y, x[1000:2000]))
            self.assertTrue(x.is_shared())
            self.assertEqual(answers.get(timeout=120), self.numbers + 1)
            self.assertEqual(answers.get(timeout=60), "written")
            expected = self.numbers + 1
            expected[1000:2000] += 1
            self.assertEqual((x * 1).cpu(), expected)  # the same memory
            self.assertEqual((y + 0).cpu(), torch.full((4, 3), 7))
            del x, y  # the receiver has them still
            queue.put("go on")
            process.join(60)
            self.assertEqual(process.exitcode, 0)
        finally:
            process.kill()
        torch.cuda.ipc_collect()

    def test_arguments_of_a_process(self):
        x = self.on_device * 2
        torch.multiprocessing.spawn(add_to, args=(x,), nprocs=1)
        self.assertEqual((x + 0).cpu(), self.numbers * 2 + 5)


class TestCheckpoints(GpuTestCase):
    def test_across_devices(self):
        import safetensors.torch

        devices = ("cpu", "cuda", D)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "file")
            for source in devices:
                tensors = {"x": self.numbers.to(source), "y": torch.ones(2, 3).to(source).t()}
                torch.save(tensors, path)
                for target in (*devices, None):
                    loaded = torch.load(path, map_location=target)
                    for name, tensor in tensors.items():
                        self.assertEqual(loaded[name].device.type, target or source)
                        self.assertEqual(loaded[name].cpu(), tensor.cpu())
                        self.assertEqual(loaded[name].stride(), tensor.stride())
                tensors["y"] = tensors["y"].contiguous()
                safetensors.torch.save_file(tensors, path)
                for target in devices:
                    loaded = safetensors.torch.load_file(path, device=target)
                    self.assertEqual(loaded["x"].device.type, target)
                    self.assertEqual(loaded["x"].cpu(), self.numbers)


if __name__ == "__main__":
    run_tests()
