"""torch.func, torch.export, torch.jit.trace, checkpointing, hooks, forward-mode gradients."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from common import HologramTestCase
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def on_both(function, *arguments: torch.Tensor):
    """Returns what a function gives on the device, moved to the CPU, and what it gives there."""
    torch.manual_seed(0)
    result = function(*(argument.hologram() for argument in arguments))
    torch.manual_seed(0)
    expected = function(*arguments)
    leaves = torch.utils._pytree.tree_leaves(result)
    assert leaves and all(leaf.is_hologram for leaf in leaves)
    return torch.utils._pytree.tree_map(lambda tensor: tensor.cpu(), result), expected


def energy(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.exp()).sum()


class TestFunc(HologramTestCase):
    def test_grad(self):
        self.assertEqual(*on_both(grad(energy), torch.rand(5)))
        self.assertEqual(*on_both(grad(lambda x: grad(energy)(x).sum()), torch.rand(5)))

    def test_vmap(self):
        a, b = torch.rand(4, 3, 5), torch.rand(4, 5, 2)
        self.assertEqual(*on_both(vmap(torch.mm), a, b))
        self.assertEqual(*on_both(vmap(torch.mm, in_dims=(0, None)), a, b[0]))
        self.assertEqual(*on_both(vmap(vmap(torch.dot)), a, a))
        self.assertEqual(*on_both(vmap(torch.linalg.inv), torch.rand(3, 2, 2) + 2 * torch.eye(2)))
        self.assertEqual(*on_both(vmap(lambda x: x.sort().values), a[0]))
        self.assertEqual(*on_both(vmap(lambda x: x * 2, in_dims=1, out_dims=1), a))

    def test_per_sample_gradients(self):
        module = torch.nn.Linear(3, 2)
        parameters = dict(module.named_parameters())

        def loss(parameters, x, y):
            return (functional_call(module, parameters, (x,)) - y).square().mean()

        x, y = torch.rand(4, 3), torch.rand(4, 2)
        expected = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
        on_device = {name: value.hologram() for name, value in parameters.items()}
        result = vmap(grad(loss), in_dims=(None, 0, 0))(on_device, x.hologram(), y.hologram())
        for name in parameters:
            self.assertTrue(result[name].is_hologram)
            self.assertEqual(result[name].cpu(), expected[name])

    @parametrize("transform", [jacrev, jacfwd, hessian])
    def test_jacobians(self, transform):
        matrix = torch.rand(3, 3)
        self.assertEqual(
            *on_both(lambda x, m: transform(lambda x: (m @ x).tanh())(x), torch.rand(3), matrix)
        )

    def test_vjp_and_jvp(self):
        self.assertEqual(
            *on_both(lambda x: vjp(torch.sin, x)[1](torch.ones_like(x)), torch.rand(4))
        )
        self.assertEqual(*on_both(lambda x: jvp(torch.sin, (x,), (x,)), torch.rand(4)))

    def test_ensembles(self):
        modules = [torch.nn.Linear(3, 2) for _ in range(3)]
        x = torch.rand(5, 3)

        def run(device):
            copies = [torch.nn.Linear(3, 2).to(device) for _ in modules]
            for mine, module in zip(copies, modules, strict=True):
                mine.load_state_dict(module.state_dict())
            parameters, buffers = stack_module_state(copies)
            call = lambda p, b, x: functional_call(copies[0], (p, b), (x,))  # noqa: E731
            return vmap(call, in_dims=(0, 0, None))(parameters, buffers, x.to(device))

        self.assertEqual(run("hologram").cpu(), run("cpu"))

    @parametrize("randomness", ["different", "same"])
    def test_random_numbers_in_vmap(self, randomness):
        def draw(x):
            return x + torch.rand_like(x)

        drawn = vmap(draw, randomness=randomness)(torch.zeros(3, 4, device="hologram")).cpu()
        self.assertEqual(torch.equal(drawn[0], drawn[1]), randomness == "same")
        with self.assertRaisesRegex(RuntimeError, "randomness"):
            vmap(draw)(torch.zeros(3, device="hologram"))

    def test_attention(self):
        """Which kernel to take is asked past the dispatcher, about wrappers."""

        def attend(q):
            return F.scaled_dot_product_attention(q, q, q)

        def total(q):
            return attend(q).square().sum()

        q = torch.randn(2, 2, 3, 4)
        self.assertEqual(*on_both(grad(total), q))
        self.assertEqual(*on_both(vmap(attend), q[:, None]))
        self.assertEqual(*on_both(vmap(grad(total)), q[:, None]))
        self.assertEqual(*on_both(jacrev(attend), q[:1]))

    @parametrize("transform", [grad, vmap, jvp, jacrev, jacfwd, hessian])
    def test_attention_of_plain_operators(self, transform):
        def attend(q):
            return F.scaled_dot_product_attention(q, q, q)

        def total(q):
            return attend(q).square().sum()

        def run(q):
            with sdpa_kernel(SDPBackend.MATH):
                if transform is jvp:
                    return jvp(attend, (q,), (q,))
                return transform(total if transform in (grad, hessian) else attend)(q)

        # In float64: derivatives of second order cancel, and leave of float32 less than tolerances.
        x = torch.randn(2, 1, 2, 3, 2, dtype=torch.float64)[:, 0]
        self.assertEqual(*on_both(run, x))

    @pytest.mark.cpu_kernels  # where they are not, attention is a composition, which has it
    def test_forward_mode_of_the_fused_kernel_is_refused_as_on_the_cpu(self):
        q = torch.randn(1, 2, 3, 4, device="hologram")
        with self.assertRaisesRegex(NotImplementedError, "forward AD with _scaled_dot_product_fl"):
            jvp(lambda q: F.scaled_dot_product_attention(q, q, q), (q,), (q,))

    def test_ensemble_of_transformers(self):
        """Two kernels for each batch: attention of wrapped tensors, and layer norm."""
        layers = [torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in "abc"]
        x = torch.randn(2, 4, 8)

        def run(device):
            copies = copy.deepcopy(layers)
            parameters, buffers = stack_module_state([each.to(device) for each in copies])
            base = copies[0]
            call = lambda p, b, x: functional_call(base, (p, b), (x,))  # noqa: E731
            return vmap(call, in_dims=(0, 0, None))(parameters, buffers, x.to(device))

        self.assertEqual(run("hologram").cpu(), run("cpu"))

    def test_functionalize(self):
        def write(x):
            y = x.clone()
            y[0].add_(1)
            return y

        self.assertEqual(*on_both(torch.func.functionalize(write), torch.zeros(2, 2)))

    def test_forward_mode(self):
        import torch.autograd.forward_ad as forward_ad

        with forward_ad.dual_level():
            x = torch.rand(3, device="hologram")
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            self.assertEqual(forward_ad.unpack_dual(dual.exp()).tangent, x.exp())

    def test_make_fx(self):
        from torch.fx.experimental.proxy_tensor import make_fx

        x = torch.rand(3, device="hologram")
        for mode in ("real", "fake", "symbolic"):
            graph = make_fx(lambda x: x.sin() + 1, tracing_mode=mode)(x)
            self.assertEqual(graph(x), x.sin() + 1)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("offset", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + self.offset


class TestExport(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.model = Model().hologram().eval()
        self.x = torch.rand(2, 4, device="hologram")

    def test_export(self):
        program = torch.export.export(self.model, (self.x,))
        self.assertEqual(program.module()(self.x), self.model(self.x))
        self.assertEqual(program.run_decompositions().module()(self.x), self.model(self.x))

    def test_dynamic_shapes(self):
        batch = torch.export.Dim("batch", min=1)
        program = torch.export.export(self.model, (self.x,), dynamic_shapes={"x": {0: batch}})
        x = torch.rand(7, 4, device="hologram")
        self.assertEqual(program.module()(x), self.model(x))

    def test_save_and_load(self):
        buffer = io.BytesIO()
        torch.export.save(torch.export.export(self.model, (self.x,)), buffer)
        buffer.seek(0)
        self.assertEqual(torch.export.load(buffer).module()(self.x), self.model(self.x))

    def test_move_to_device(self):
        from torch.export.passes import move_to_device_pass

        program = torch.export.export(Model().eval(), (self.x.cpu(),))
        moved = move_to_device_pass(program, "hologram:0")
        self.assertTrue(moved.module()(self.x).is_hologram)

    def test_fake_tensors(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode() as mode:
            fake = mode.from_tensor(self.x)
            self.assertEqual((fake @ fake.t()).device, self.x.device)
            self.assertEqual(torch.empty(2, device="hologram").device, self.x.device)


class TestTrace(HologramTestCase):
    def test_trace(self):
        model, x = Model().hologram().eval(), torch.rand(2, 4, device="hologram")
        traced = torch.jit.trace(model, x)
        self.assertEqual(traced(x), model(x))
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer)
        for location in (None, "hologram", "cpu"):
            buffer.seek(0)
            loaded = torch.jit.load(buffer, map_location=location)
            device = location or "hologram"
            self.assertEqual(loaded(x.to(device)).cpu(), model(x).cpu())
            self.assertEqual(next(loaded.parameters()).device.type, device)

    def test_trace_function_with_factory(self):
        def make(x):
            return x + torch.ones(3, device="hologram")

        x = torch.rand(3, device="hologram")
        self.assertEqual(torch.jit.trace(make, x)(x), x + 1)

    def test_script(self):
        @torch.jit.script
        def positive(x: torch.Tensor) -> torch.Tensor:
            if bool(x.sum() > 0):
                return x.to(torch.device("hologram"))
            return -x

        x = torch.rand(3, device="hologram")
        self.assertEqual(positive(x), x)
        self.assertEqual(positive(-x), x)


class TestCheckpoint(HologramTestCase):
    @parametrize("use_reentrant", [False, True])
    def test_gradients_and_random_state(self, use_reentrant):
        module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).hologram()
        x = torch.rand(4, 8, device="hologram", requires_grad=True)
        results = []
        for run in (module, lambda x: checkpoint(module, x, use_reentrant=use_reentrant)):
            torch.manual_seed(0)
            module.zero_grad()
            x.grad = None
            output = run(x)
            output.square().sum().backward()
            results.append([output.detach(), x.grad, *(p.grad for p in module.parameters())])
        self.assertEqual(*results)

    def test_sequential(self):
        module = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4))).hologram()
        x = torch.rand(2, 4, device="hologram", requires_grad=True)
        expected = module(x)
        self.assertEqual(checkpoint_sequential(module, 2, x, use_reentrant=False), expected)

    def test_autocast_is_restored(self):
        linear = torch.nn.Linear(4, 4).hologram()
        states = []

        def run(x):
            states.append(
                (torch.is_autocast_enabled("hologram"), torch.get_autocast_dtype("hologram"))
            )
            return linear(x)

        with torch.autocast("hologram", dtype=torch.bfloat16):
            y = checkpoint(run, torch.rand(2, 4, device="hologram"), use_reentrant=False)
        y.float().sum().backward()
        self.assertEqual(states, [(True, torch.bfloat16)] * 2)

    def test_saved_tensors_on_the_cpu(self):
        x = torch.rand(4, device="hologram", requires_grad=True)
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            y = x.exp().sin()
        y.sum().backward()
        self.assertEqual(x.grad, (x.exp().cos() * x.exp()).detach())


class TestAutograd(HologramTestCase):
    def test_gradcheck(self):
        x = torch.rand(3, 3, dtype=torch.float64, device="hologram", requires_grad=True)
        for function in (torch.tanh, torch.linalg.inv, lambda x: x.softmax(0), lambda x: x @ x):
            self.assertTrue(torch.autograd.gradcheck(function, x + torch.eye(3).hologram()))
        self.assertTrue(torch.autograd.gradgradcheck(torch.tanh, x))

    def test_changed_in_place(self):
        x = torch.ones(3, device="hologram", requires_grad=True)
        y = x.sigmoid()
        z = y * 2
        y.mul_(2)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            (z + y).sum().backward()

    def test_versions(self):
        x = torch.ones(3, device="hologram")
        before = x._version
        x.add_(1)
        x[0] = 2
        torch.sort(x, out=(x, torch.empty(3, dtype=torch.int64, device="hologram")))
        self.assertEqual(x._version, before + 3)

    def test_hooks_and_retain(self):
        x = torch.ones(2, device="hologram", requires_grad=True)
        y = x * 3
        y.retain_grad()
        seen = []
        y.register_hook(lambda gradient: seen.append(gradient.device.type))
        y.sum().backward()
        self.assertEqual(seen, ["hologram"])
        self.assertEqual(y.grad.cpu(), torch.ones(2))

    def test_anomaly_mode(self):
        x = torch.zeros(2, device="hologram", requires_grad=True)
        with torch.autograd.detect_anomaly(check_nan=True), self.assertWarns(UserWarning):
            with self.assertRaisesRegex(RuntimeError, "returned nan values"):
                (x.sqrt() * 0).sum().backward()

    def test_several_threads(self):
        import threading

        results = []

        def work(seed: int) -> None:
            x = torch.full((50,), float(seed), device="hologram", requires_grad=True)
            for _ in range(20):
                (x * x).sum().backward()
            results.append((seed, x.grad[0].item()))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(results), [(seed, 40.0 * seed) for seed in range(4)])


instantiate_parametrized_tests(TestFunc)
instantiate_parametrized_tests(TestCheckpoint)

if __name__ == "__main__":
    run_tests()
