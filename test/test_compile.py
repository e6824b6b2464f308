"""torch.compile: eager, aot_eager, backend="hologram", and the default backend."""

from __future__ import annotations

import warnings

import torch
import torch._dynamo
from common import HologramTestCase, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

BACKENDS = ["eager", "aot_eager", "hologram"]


def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * y.cos() + torch.mm(x, y).relu()


class TestCompile(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        torch._dynamo.reset()
        self.x = torch.randn(4, 4, device="hologram")
        self.y = torch.randn(4, 4, device="hologram")

    @parametrize("backend", BACKENDS)
    def test_forward(self, backend):
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        result = compiled(self.x, self.y)
        self.assertTrue(result.is_hologram)
        self.assertEqual(result, function(self.x, self.y), rtol=0, atol=0)

    @parametrize("backend", BACKENDS)
    def test_training(self, backend):
        def train(compiled: bool) -> list[torch.Tensor]:
            torch.manual_seed(0)
            module = torch.nn.Sequential(
                torch.nn.Linear(4, 8),
                torch.nn.BatchNorm1d(8),
                torch.nn.GELU(),
                torch.nn.Linear(8, 2),
            ).hologram()
            run = torch.compile(module, backend=backend, fullgraph=True) if compiled else module
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                run(self.x).square().mean().backward()
                optimizer.step()
            return [*module.parameters(), *module.buffers()]

        self.assertEqual(train(True), train(False), rtol=0, atol=0)

    @parametrize("backend", BACKENDS)
    def test_mutation_and_views(self, backend):
        def mutate(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x.add_(1)
            x[0].zero_()
            return x.t(), x[1:]

        compiled_input, eager_input = self.x.clone(), self.x.clone()
        compiled = torch.compile(mutate, backend=backend, fullgraph=True)(compiled_input)
        expected = mutate(eager_input)
        self.assertEqual(compiled_input, eager_input)
        self.assertEqual(compiled, expected)
        self.assertEqual(compiled[0].data_ptr(), compiled_input.data_ptr())

    @parametrize("backend", BACKENDS)
    def test_dynamic_shapes(self, backend):
        graphs = torch._dynamo.testing.CompileCounterWithBackend(backend)
        compiled = torch.compile(lambda x: x.sum(0) * x.shape[0], backend=graphs, dynamic=True)
        for rows in (3, 5, 9):
            x = torch.rand(rows, 2, device="hologram")
            self.assertEqual(compiled(x), x.sum(0) * rows)
        self.assertEqual(graphs.frame_count, 1)

    @parametrize("backend", BACKENDS)
    def test_random_numbers(self, backend):
        def draw(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

        torch.manual_seed(0)
        expected = draw(self.x)
        torch.manual_seed(0)
        self.assertEqual(torch.compile(draw, backend=backend)(self.x), expected)

    @parametrize("backend", BACKENDS)
    def test_dropout_backward(self, backend):
        def run(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x.exp(), 0.5).sum()

        gradients = []
        for call in (run, torch.compile(run, backend=backend)):
            x = self.x.clone().requires_grad_()
            torch.manual_seed(0)
            call(x).backward()
            gradients.append(x.grad)
        self.assertEqual(*gradients)

    @parametrize("backend", BACKENDS)
    def test_factories_inside(self, backend):
        def make(n: int) -> torch.Tensor:
            return torch.ones(n, device="hologram") + torch.arange(n, device="hologram")

        self.assertEqual(torch.compile(make, backend=backend)(3).cpu(), torch.tensor([1.0, 2, 3]))

    @parametrize("backend", BACKENDS)
    def test_autocast(self, backend):
        def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.autocast("hologram", dtype=torch.bfloat16):
                return x @ y

        compiled = torch.compile(run, backend=backend)(self.x, self.y)
        self.assertEqual(compiled.dtype, torch.bfloat16)
        self.assertEqual(compiled, run(self.x, self.y))

    @parametrize("backend", BACKENDS)
    def test_graph_break(self, backend):
        def run(x: torch.Tensor) -> torch.Tensor:
            if x.sum().item() > 0:
                return x + 1
            return x - 1

        compiled = torch.compile(run, backend=backend)
        for x in (self.x.abs(), -self.x.abs()):
            self.assertEqual(compiled(x), run(x))

    @parametrize("backend", BACKENDS)
    def test_streams(self, backend):
        def run(x: torch.Tensor) -> torch.Tensor:
            with torch.hologram.stream(torch.hologram.Stream()):
                y = x + 1
            torch.hologram.synchronize()
            return y * 2

        self.assertEqual(torch.compile(run, backend=backend)(self.x), (self.x + 1) * 2)

    def test_inference_mode(self):
        with torch.inference_mode():
            compiled = torch.compile(function, backend="hologram")(self.x, self.y)
        self.assertEqual(compiled, function(self.x, self.y))

    def test_cpu_graphs_on_the_backend(self):
        x, y = self.x.cpu(), self.y.cpu()
        compiled = torch.compile(function, backend="hologram")(x, y)
        self.assertTrue(compiled.is_cpu)
        self.assertEqual(compiled, function(x, y))

    def test_listed(self):
        self.assertIn("hologram", torch.compiler.list_backends())

    def test_mode_is_accepted_and_options_are_not(self):
        compiled = torch.compile(function, backend="hologram", mode="reduce-overhead")
        self.assertEqual(compiled(self.x, self.y), function(self.x, self.y))
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="hologram", options={"max_autotune": True})
        with self.assertRaisesRegex(Exception, "has no options, but got.*max_autotune"):
            compiled(self.x, self.y)

    def test_found_without_importing_the_compiler_first(self):
        run_python(
            """
            import sys, torch
            assert "torch_hologram" in sys.modules and "torch._dynamo" not in sys.modules
            x = torch.rand(3, device="hologram")
            assert torch.equal(torch.compile(torch.sin, backend="hologram")(x), x.sin())
            """
        )


class TestDefaultBackend(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        torch._dynamo.reset()
        from torch_hologram import compile

        compile._warn_once.cache_clear()

    def test_warns_once_and_runs(self):
        x, y = (torch.randn(4, 4, device="hologram") for _ in range(2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first = torch.compile(function)(x, y)
            second = torch.compile(lambda x: x.exp() + 1, mode="max-autotune")(x)
        messages = [str(w.message) for w in caught if "hologram" in str(w.message)]
        self.assertEqual(len(messages), 1, messages)
        self.assertIn("backend='hologram'", messages[0])
        self.assertEqual(first, function(x, y), rtol=0, atol=0)
        self.assertEqual(second, x.exp() + 1, rtol=0, atol=0)

    def test_training(self):
        module = torch.nn.Linear(3, 2).hologram()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.compile(module)(torch.ones(1, 3, device="hologram")).sum().backward()
        self.assertEqual(module.weight.grad.cpu(), torch.ones(2, 3))

    def test_graph_without_device_inputs(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.compile(lambda: torch.ones(3, device="hologram") * 2)()
            moved = torch.compile(lambda x: x.to("hologram") + 1)(torch.zeros(2))
        self.assertEqual(made.cpu(), torch.full((3,), 2.0))
        self.assertEqual(moved.cpu(), torch.ones(2))

    def test_cpu_graphs_stay_inductors(self):
        # Without a C++ compiler run: only who gets the graph is looked at.
        from unittest import mock

        x = torch.ones(3)
        with mock.patch("torch._inductor.compile_fx.compile_fx") as compile_fx:
            compile_fx.side_effect = lambda graph, inputs, **options: graph.forward
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.assertEqual(torch.compile(lambda x: x + 1)(x), x + 1)
            self.assertEqual(compile_fx.call_count, 1)


instantiate_parametrized_tests(TestCompile)

if __name__ == "__main__":
    run_tests()
