"""torch.compile: eager, aot_eager, backend="hologram", and the default backend."""

from __future__ import annotations

import warnings

import torch
import torch._dynamo
import torch._dynamo.testing
from common import HologramTestCase, run_python, several_devices
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.utils.checkpoint import checkpoint

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

    @parametrize("backend", BACKENDS)
    def test_functions_of_the_device_stay_in_the_graph(self, backend):
        event = torch.hologram.Event()

        def run(x: torch.Tensor) -> torch.Tensor:
            torch.hologram.synchronize()
            y = x * torch.hologram.device_count()
            torch.hologram.synchronize(0)
            torch.hologram.synchronize("hologram")
            torch.hologram.flush()
            event.record()
            event.synchronize()
            torch.hologram.current_stream().synchronize()
            properties = torch.hologram.get_device_properties()
            if torch.hologram.is_available() and properties.multi_processor_count:
                y = y + torch.hologram.current_device()
            return y

        compiled = torch.compile(run, backend=backend, fullgraph=True)
        self.assertEqual(compiled(self.x), run(self.x))

    @parametrize("backend", BACKENDS)
    def test_synchronize_is_called_by_the_graph(self, backend):
        def run(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            torch.hologram.synchronize()
            return y + 1

        compiled = torch.compile(run, backend=backend, fullgraph=True)
        compiled(self.x)
        torch.hologram.synchronize()
        torch.hologram.reset_stream_stats()
        result = compiled(self.x)
        stats = torch.hologram.stream_stats()
        self.assertEqual((stats["flushes.synchronize"], stats["executed"]), (1, 1))
        self.assertEqual(result, run(self.x))

    # (backend="eager" draws other numbers in the backward pass, with the CPU's tensors too.)
    @parametrize("backend", ["aot_eager", "hologram"])
    @parametrize("use_reentrant", [False, True])
    def test_checkpoint_around_dropout(self, backend, use_reentrant):
        def train(compiled: bool) -> list[torch.Tensor]:
            torch.manual_seed(1)
            module = torch.nn.Sequential(
                torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.Dropout(0.3)
            ).hologram()

            def run(x: torch.Tensor) -> torch.Tensor:
                return checkpoint(module, x, use_reentrant=use_reentrant).square().sum()

            x = self.x.clone().requires_grad_()
            torch.manual_seed(2)
            run = torch.compile(run, backend=backend, fullgraph=True) if compiled else run
            value = run(x)
            value.backward()
            # The generator is left where it would have been.
            after = torch.rand(2, device="hologram")
            return [value.detach(), x.grad, *(p.grad for p in module.parameters()), after]

        self.assertEqual(train(True), train(False), rtol=0, atol=0)

    def test_two_devices(self):
        """The current one is guarded; checkpointing restores the generator of its tensors'."""
        run_python(
            """
            import torch
            from torch.utils.checkpoint import checkpoint
            compiled = torch.compile(
                lambda x: x + torch.hologram.current_device(), backend="eager", fullgraph=True)
            x = torch.zeros(2, device="hologram:0")
            for device in (0, 1, 0):
                with torch.hologram.device(device):
                    assert compiled(x).tolist() == [device] * 2, device

            dropout = torch.nn.functional.dropout
            def run(x):
                return checkpoint(lambda x: dropout(x.sin(), 0.5), x, use_reentrant=False).sum()
            gradients = []
            for call in (run, torch.compile(run, backend="hologram", fullgraph=True)):
                torch.manual_seed(0)
                x = torch.linspace(0, 1, 64, device="hologram:1", requires_grad=True)
                call(x).backward()
                gradients.append(x.grad)
            assert torch.equal(*gradients)
            """,
            env=several_devices(2),
        )

    @parametrize("backend", ["aot_eager", "hologram"])
    def test_compiled_autograd(self, backend):
        module = torch.nn.Linear(4, 2).hologram()
        module(self.x).square().sum().backward()
        expected = module.weight.grad.clone()
        module.zero_grad()
        with torch._dynamo.config.patch(compiled_autograd=True):
            run = torch.compile(lambda x: module(x).square().sum(), backend=backend)
            run(self.x).backward()
        self.assertEqual(module.weight.grad, expected)

    def test_inductor_says_what_it_cannot_do(self):
        module = torch.nn.Linear(4, 2).hologram()
        program = torch.export.export(module, (self.x,))
        for call in (
            lambda: torch._inductor.aoti_compile_and_package(program),
            lambda: torch._inductor.aot_compile(program.module(), (self.x,)),
            lambda: torch._inductor.compile(program.module(), (self.x,)),
        ):
            with self.assertRaisesRegex(NotImplementedError, "use torch.compile.*'hologram'"):
                call()

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

    def test_modes_are_warned_of_once(self):
        from torch_hologram import compile

        compile._warn_of_mode.cache_clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for mode in ("reduce-overhead", "max-autotune", "default"):
                torch._dynamo.reset()
                compiled = torch.compile(function, backend="hologram", mode=mode)
                self.assertEqual(compiled(self.x, self.y), function(self.x, self.y))
        messages = [str(w.message) for w in caught if "mode=" in str(w.message)]
        self.assertEqual(len(messages), 1, messages)
        self.assertIn("no effect", messages[0])

    def test_wrong_modes_and_options_are_refused(self):
        compiled = torch.compile(function, backend="hologram", mode="fast")
        with self.assertRaisesRegex(Exception, "Unrecognized mode=fast, should be one of"):
            compiled(self.x, self.y)
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
        self.assertIn("Modes and options of the default backend have no effect", messages[0])
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
