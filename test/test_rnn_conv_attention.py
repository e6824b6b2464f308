"""Recurrent cells, convolutions and attention: operators torch dispatches apart off the CPU."""

from __future__ import annotations

import contextlib
import itertools
import re
import warnings

import pytest
import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from common import (
    CUDA_KERNELS,
    DELEGATED,
    OWN_PRODUCTS,
    DevicesMasks,
    HologramTestCase,
    as_torch,
    dropped,
)
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint


def on(device, *values):
    """The values with their tensors on a device, as leaves of their own where they were leaves."""

    def move(value):
        if isinstance(value, torch.Tensor):
            return value.detach().clone().to(device).requires_grad_(value.requires_grad)
        return value

    return tree_map(move, values)


def curved(x):
    """x * x: a function with a derivative that depends on x, and the same bits on both devices."""
    return x * x


# Of kernels that sum in another order: CUDA's, also the terms of gradients of gradients, and a
# device's own, of products and attention.
OTHER_TOLERANCE = {
    torch.float64: {},
    torch.bfloat16: {"rtol": 5e-2, "atol": 5e-2},
    torch.float16: {"rtol": 1e-2, "atol": 1e-2},
}


class CompareTestCase(HologramTestCase):
    def assert_same(self, mine, wanted, exact=True, what=""):
        """Equal trees of tensors: bit for bit, or within rounding.

        Where CUDA's kernels compute, always within rounding; which layout a result has is their
        choice. Where the device has products of its own, too, in the CPU's layouts.
        """
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 2e-5, "atol": 2e-6}
        mine, wanted = tree_leaves(mine), tree_leaves(wanted)
        self.assertEqual(len(mine), len(wanted))
        for position, (a, b) in enumerate(zip(mine, wanted, strict=True)):
            where = f"{what} [{position}]"
            if not isinstance(b, torch.Tensor):
                self.assertEqual(a, b, msg=where)
                continue
            self.assertEqual(a.device.type, "hologram", msg=where)
            if CUDA_KERNELS:
                tolerance = OTHER_TOLERANCE.get(b.dtype, {"rtol": 1e-4, "atol": 1e-4})
            else:
                if OWN_PRODUCTS:
                    # Of a sum whose terms cancel torch's absolute tolerance.
                    tolerance = OTHER_TOLERANCE.get(b.dtype, {"rtol": 2e-5, "atol": 1e-5})
                self.assertEqual(a.stride(), b.stride(), msg=where)
            self.assertEqual(a.cpu(), b, **tolerance, equal_nan=True, msg=where)

    def check(self, function, *arguments, exact=True, what=""):
        """function gives the same on the device as on the CPU."""
        wanted = function(*on("cpu", *arguments))
        mine = function(*on("hologram", *arguments))
        self.assert_same(mine, wanted, exact, what)


# ---- recurrent networks --------------------------------------------------------------------------


def network_and_input(kind: type, device: str, dtype=torch.float32, **options):
    """A network of fixed weights, and a batch (steps, 2, 3) that wants gradients."""
    torch.manual_seed(0)
    network = kind(3, 4, **options).to(dtype)
    torch.manual_seed(1)
    x = torch.randn((2, 5, 3) if options.get("batch_first") else (5, 2, 3), dtype=dtype)
    return network.to(device), x.to(device).requires_grad_()


def layered(network, data):
    """What a network on the CPU computes, layer by layer, dropping what the device does."""
    packed = isinstance(data, nn.utils.rnn.PackedSequence)
    width = network.hidden_size * (2 if network.bidirectional else 1)
    options = {"bias": network.bias, "bidirectional": network.bidirectional}
    if isinstance(network, nn.RNN):
        options["nonlinearity"] = network.nonlinearity
    data = data.transpose(0, 1) if network.batch_first else data
    states = []
    for index in range(network.num_layers):
        layer = type(network)(
            width if index else network.input_size, network.hidden_size, **options
        )
        weights = {
            name.replace(f"_l{index}", "_l0"): parameter
            for name, parameter in network.named_parameters()
            if re.search(rf"_l{index}(_|$)", name)
        }
        out, state = torch.func.functional_call(layer, weights, (data,))
        states.append(state)
        if index + 1 == network.num_layers:
            break
        if packed:
            data = out._replace(data=dropped(out.data, network.dropout))
        else:
            data = dropped(out, network.dropout)
    out = out.transpose(0, 1) if network.batch_first else out
    if isinstance(network, nn.LSTM):
        return out, tuple(torch.cat(parts) for parts in zip(*states, strict=True))
    return out, torch.cat(states)


def run_network(network, data):
    """On the CPU with the dropout of the device."""
    drops = network.dropout and not next(network.parameters()).is_hologram
    return layered(network, data) if drops else network(data)


def rnn_case(kind: type, device: str, dtype=torch.float32, **options):
    """Outputs and all gradients, of a network of fixed weights over a fixed batch."""
    network, x = network_and_input(kind, device, dtype, **options)
    torch.manual_seed(2)
    out, state = run_network(network, x)
    total = sum((curved(leaf) * (i + 1)).sum() for i, leaf in enumerate(tree_leaves((out, state))))
    gradients = torch.autograd.grad(total, [x, *network.parameters()])
    return [leaf.detach() for leaf in tree_leaves((out, state))], gradients


NETWORKS = {
    "RNN tanh": (nn.RNN, {}),
    "RNN relu": (nn.RNN, {"nonlinearity": "relu"}),
    "LSTM": (nn.LSTM, {}),
    "GRU": (nn.GRU, {}),
}
RNN_OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "two layers": {"num_layers": 2},
    "both directions": {"bidirectional": True, "num_layers": 2},
    "batch first": {"batch_first": True},
    "dropout": {"num_layers": 3, "dropout": 0.5},
    "all": {"num_layers": 2, "bidirectional": True, "dropout": 0.5, "batch_first": True},
}


class TestRecurrent(CompareTestCase):
    @parametrize("name", list(NETWORKS))
    @parametrize("options", list(RNN_OPTIONS))
    def test_networks(self, name, options):
        """Values, states and gradients are the CPU's, bit for bit, with dropout too."""
        kind, own = NETWORKS[name]
        told = {**own, **RNN_OPTIONS[options]}
        wanted = rnn_case(kind, "cpu", **told)
        mine = rnn_case(kind, "hologram", **told)
        self.assert_same(mine, wanted)
        with torch.inference_mode():
            network, x = network_and_input(kind, "cpu", **told)
            wanted = network.eval()(x)
            network, x = network_and_input(kind, "hologram", **told)
            self.assert_same(network.eval()(x), wanted)

    @parametrize("name", list(NETWORKS))
    @parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_network_dtypes(self, name, dtype):
        kind, own = NETWORKS[name]
        wanted = rnn_case(kind, "cpu", dtype, num_layers=2, **own)
        self.assert_same(rnn_case(kind, "hologram", dtype, num_layers=2, **own), wanted)

    def test_projection(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # oneDNN has none
            wanted = rnn_case(nn.LSTM, "cpu", proj_size=2, num_layers=2, bidirectional=True)
            mine = rnn_case(nn.LSTM, "hologram", proj_size=2, num_layers=2, bidirectional=True)
        self.assert_same(mine, wanted)

    @parametrize("name", list(NETWORKS))
    @parametrize("dropout", [0, 0.5])
    def test_packed_sequences(self, name, dropout):
        kind, own = NETWORKS[name]
        results = {}
        for device in ("cpu", "hologram"):
            torch.manual_seed(0)
            network = kind(3, 4, num_layers=2, dropout=dropout, **own).to(device)
            x = torch.randn(5, 3, 3).to(device).requires_grad_()
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 1]))
            torch.manual_seed(1)
            out, state = run_network(network, packed)
            padded, lengths = nn.utils.rnn.pad_packed_sequence(out)
            curved(padded).sum().backward()
            results[device] = [padded.detach(), tree_leaves(state)[0].detach(), x.grad]
            self.assertEqual(lengths, torch.tensor([5, 3, 1]))
        self.assert_same(results["hologram"], results["cpu"])

    @pytest.mark.cpu_kernels  # others than the CPU's have no call for it that the device makes
    @parametrize("name", list(NETWORKS))
    def test_a_network_is_one_call(self, name):
        """No composition of cells: that took two to six times as long as the CPU."""
        kind, own = NETWORKS[name]
        operator = {"LSTM": "lstm", "GRU": "gru"}.get(name, "rnn_" + name.split()[-1])
        network, x = network_and_input(kind, "hologram", num_layers=2, bidirectional=True, **own)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]))
        for data, overload in ((x, "input"), (packed, "data")):
            for modes in (torch.enable_grad, torch.inference_mode):
                with modes():
                    network(data)  # what is made at first use
                    torch.hologram.reset_fallback_report()
                    network(data)
                delegated = torch.hologram.fallback_report().operators(DELEGATED)
                self.assertEqual(delegated, {f"aten::{operator}.{overload}": 1})
        out = network(x)[0].sum()
        torch.hologram.reset_fallback_report()
        out.backward()
        self.assertEqual(torch.hologram.fallback_report().operators(DELEGATED), {})

    @parametrize("name", list(NETWORKS))
    def test_which_gradients_of_a_network(self, name):
        """Frozen layers, one output used, a state that is a parameter, the same one twice."""
        kind, own = NETWORKS[name]

        def state_of(start):
            return (start, start) if kind is nn.LSTM else start

        def case(device, used, frozen, wants_input):
            network, x = network_and_input(kind, device, num_layers=2, **own)
            for key, parameter in network.named_parameters():
                parameter.requires_grad_(frozen not in key)
            start = torch.linspace(-1, 1, 16).reshape(2, 2, 4).to(device).requires_grad_()
            results = tree_leaves(network(x.requires_grad_(wants_input), state_of(start)))
            curved(results[used]).sum().backward()
            return [t.grad for t in (x, start, *network.parameters())]

        for used in range(3 if kind is nn.LSTM else 2):
            for frozen in ("l0", "l1", "bias", "nothing"):
                for wants_input in (True, False):
                    told = (used, frozen, wants_input)
                    wanted, mine = case("cpu", *told), case("hologram", *told)
                    self.assert_same(mine, wanted, what=str(told))

    @parametrize("name", list(NETWORKS))
    def test_gradients_of_gradients_of_a_network(self, name):
        """Also where one input is computed from another: the gradients are partial ones."""
        kind, own = NETWORKS[name]

        def case(device):
            network, x = network_and_input(kind, device, torch.float64, num_layers=2, **own)
            start = torch.stack([x.sum(0), x.prod(0)]) @ torch.ones_like(network.weight_hh_l0[:3])
            state = (start, start * 2) if kind is nn.LSTM else start
            out, _ = network(x, state)
            inputs = [x, *network.parameters()]
            first = torch.autograd.grad((out**3).sum(), inputs, create_graph=True)
            second = torch.autograd.grad(sum((g**2).sum() for g in first), inputs)
            return [g.detach() for g in first], second

        self.assert_same(case("hologram"), case("cpu"), exact=False)

    @parametrize("name", list(NETWORKS))
    def test_graph_of_a_network(self, name):
        """Kept, used twice, used with batched gradients, and changed under way."""
        kind, own = NETWORKS[name]
        network, x = network_and_input(kind, "hologram", **own)
        out = network(x)[0]
        first = torch.autograd.grad(out, x, torch.ones_like(out), retain_graph=True)
        batch = torch.stack([torch.ones_like(out), 2 * torch.ones_like(out)])
        (both,) = torch.autograd.grad(out, x, batch, retain_graph=True, is_grads_batched=True)
        self.assertEqual(both[0], first[0], rtol=2e-5, atol=2e-6)
        self.assertEqual(both[1], 2 * first[0], rtol=2e-5, atol=2e-6)
        again = torch.autograd.grad(out, x, torch.ones_like(out))
        self.assertEqual(again, first, rtol=0, atol=0)
        with self.assertRaisesRegex(RuntimeError, "backward through the graph a second time"):
            torch.autograd.grad(out, x, torch.ones_like(out))
        self.assertIn("Backward", out.grad_fn.name())

        for changed in (network.weight_hh_l0, x):
            out = network(x)[0]
            with torch.no_grad():
                changed.mul_(2)
            words = "modified by an inplace operation"
            if CUDA_KERNELS:  # a composition's views of the input say so themselves
                words += "|has been modified inplace"
            with self.assertRaisesRegex(RuntimeError, words):
                out.sum().backward()
        with torch.inference_mode():
            frozen = torch.ones(5, 2, 3, device="hologram")
        with self.assertRaisesRegex(RuntimeError, "Inference tensors cannot be saved"):
            network(frozen)

    @parametrize("name", list(NETWORKS))
    def test_hooks_and_checkpoints_of_a_network(self, name):
        kind, own = NETWORKS[name]
        wanted = rnn_case(kind, "cpu", num_layers=2, dropout=0.5, **own)

        seen = set()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (seen.add(t.device.type), t)[1], lambda t: t
        ):
            mine = rnn_case(kind, "hologram", num_layers=2, dropout=0.5, **own)
        self.assertEqual(seen, {"hologram"})
        self.assert_same(mine, wanted, exact=False)

        for reentrant in (True, False):
            results = []
            for device in ("cpu", "hologram"):
                network, x = network_and_input(kind, device, num_layers=2, dropout=0.5, **own)
                torch.manual_seed(3)
                if device == "cpu":
                    out, _ = run_network(network, x)
                else:
                    out = checkpoint(lambda x, n=network: n(x)[0], x, use_reentrant=reentrant)
                curved(out).sum().backward()
                results.append([out.detach(), x.grad, *(p.grad for p in network.parameters())])
            self.assert_same(results[1], results[0], exact=False, what=f"reentrant={reentrant}")

    @parametrize("name", list(NETWORKS))
    def test_transforms_of_a_network(self, name):
        kind, own = NETWORKS[name]

        def case(device):
            network, x = network_and_input(kind, device, **own)
            parameters = {key: p.detach() for key, p in network.named_parameters()}

            def loss(parameters, x):
                return curved(torch.func.functional_call(network, parameters, (x,))[0]).sum()

            gradients = torch.func.grad(loss)(parameters, x.detach())
            compiled = [
                torch.compile(lambda x: network(x)[0], backend=backend)(x)
                for backend in ("eager", "aot_eager")
            ]
            return list(gradients.values()), [out.detach() for out in compiled]

        self.assert_same(case("hologram"), case("cpu"), exact=False)

    @parametrize("name", list(NETWORKS))
    def test_autocast_of_a_network(self, name):
        kind, own = NETWORKS[name]
        network, x = network_and_input(kind, "hologram", **own)
        wanted = network(x)[0]
        with torch.autocast("hologram", torch.bfloat16):
            out, _ = network(x)
        self.assertEqual(out.dtype, torch.bfloat16)
        self.assertEqual(out.float(), wanted, rtol=2e-2, atol=2e-2)
        curved(out.float()).sum().backward()
        self.assertEqual(x.grad.dtype, torch.float32)

    def test_what_a_network_holds(self):
        """A backward pass gives back what was kept: memory, and the right to record."""
        network, x = network_and_input(nn.GRU, "hologram", num_layers=2)

        def step():
            network(x)[0].sum().backward()
            network.zero_grad(set_to_none=True)
            x.grad = None

        step()
        torch.hologram.synchronize()
        before = torch.hologram.memory_allocated()
        for _ in range(3):
            step()
        torch.hologram.synchronize()
        self.assertEqual(torch.hologram.memory_allocated(), before)
        torch.hologram.reset_fallback_report()
        network.weight_hh_l0.detach().mul_(2).add_(1)
        self.assertEqual(torch.hologram.fallback_report().operators(DELEGATED), {})

    def test_wrong_sizes_of_a_network(self):
        """oneDNN's kernel of a layer reads past a weight that is too small; no bit of that here."""
        network, x = network_and_input(nn.LSTM, "hologram")
        for name, shape in (
            ("weight_ih_l0", (16, 2)),
            ("weight_ih_l0", (4, 3)),
            ("weight_hh_l0", (16, 3)),
            ("bias_hh_l0", (3,)),
        ):
            right = getattr(network, name)
            setattr(network, name, nn.Parameter(torch.ones(shape, device="hologram")))
            with self.assertRaisesRegex(RuntimeError, "size|shape|inconsistent|must match"):
                network(x)
            setattr(network, name, right)
        state = torch.zeros(1, 2, 4, device="hologram")
        with self.assertRaisesRegex(RuntimeError, "lstm expects two hidden states"):
            torch.lstm(x, [], list(network.parameters()), True, 1, 0.0, False, False, False)
        with self.assertRaisesRegex(RuntimeError, "Expected all tensors to be on the same device"):
            network(x, (state.cpu(), state.cpu()))

    @parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
    @parametrize("bias", [True, False])
    def test_cells(self, kind, bias):
        def case(x, hidden, memory):
            torch.manual_seed(0)
            cell = kind(3, 4, bias=bias).to(x.device)
            state = (hidden, memory) if kind is nn.LSTMCell else hidden
            out = tree_leaves(cell(x, state))
            inputs = [x, hidden, *([memory] if kind is nn.LSTMCell else []), *cell.parameters()]
            total = sum((curved(leaf) * (i + 2)).sum() for i, leaf in enumerate(out))
            return [leaf.detach() for leaf in out], torch.autograd.grad(total, inputs)

        x, hidden, memory = torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4)
        for t in (x, hidden, memory):
            t.requires_grad_()
        self.check(case, x, hidden, memory, exact=False)

    @parametrize("kind", [nn.LSTMCell, nn.GRUCell])
    def test_gradients_of_gradients(self, kind):
        def case(x, hidden, memory):
            torch.manual_seed(0)
            cell = kind(3, 4).double().to(x.device)
            state = (hidden, memory) if kind is nn.LSTMCell else hidden
            inputs = [x, hidden, *cell.parameters()]
            total = sum((leaf**3).sum() for leaf in tree_leaves(cell(x, state)))
            first = torch.autograd.grad(total, inputs, create_graph=True)
            second = torch.autograd.grad(sum((g**2).sum() for g in first), inputs)
            return [g.detach() for g in first], second

        x, hidden, memory = (torch.randn(2, n, dtype=torch.float64) for n in (3, 4, 4))
        for t in (x, hidden, memory):
            t.requires_grad_()
        self.check(case, x, hidden, memory, exact=False)

    @parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
    def test_gradcheck(self, kind):
        torch.manual_seed(0)
        cell = kind(2, 3).double().hologram()
        x = torch.randn(2, 2, dtype=torch.float64, device="hologram", requires_grad=True)
        hidden, memory = (
            torch.randn(2, 3, dtype=torch.float64, device="hologram", requires_grad=True)
            for _ in range(2)
        )

        def call(x, hidden, memory):
            if kind is nn.LSTMCell:
                return cell(x, (hidden, memory))
            return cell(x, hidden + 0 * memory)

        self.assertTrue(torch.autograd.gradcheck(call, (x, hidden, memory)))
        self.assertTrue(torch.autograd.gradgradcheck(call, (x, hidden, memory)))

    @parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell, nn.GRU, nn.RNN])
    def test_forward_mode(self, kind):
        """Where the CPU has it: not for nn.LSTM, whose layer is a kernel of oneDNN there."""

        def case(x, tangent, weight_tangent):
            torch.manual_seed(0)
            module = kind(3, 4).to(x.device)
            parameters = {name: p.detach() for name, p in module.named_parameters()}
            first = next(iter(parameters))

            def call(x, weight):
                replaced = {**parameters, first: weight}
                return torch.func.functional_call(module, replaced, (x,))

            with fwAD.dual_level():
                duals = (
                    fwAD.make_dual(x, tangent),
                    fwAD.make_dual(parameters[first], weight_tangent[: parameters[first].size(0)]),
                )
                levels = [fwAD.unpack_dual(leaf) for leaf in tree_leaves(call(*duals))]
            pushed = torch.func.jvp(
                call,
                (x, parameters[first]),
                (tangent, weight_tangent[: parameters[first].size(0)]),
            )
            return [(level.primal, level.tangent) for level in levels], pushed

        shape = (2, 3) if issubclass(kind, nn.RNNCellBase) else (5, 2, 3)
        x, tangent = torch.randn(shape), torch.randn(shape)
        self.check(case, x, tangent, torch.randn(16, 3), exact=False)

    def test_only_one_output_used(self):
        """Gradients of the hidden state alone, and of the memory alone."""
        for used in (0, 1):

            def case(x, hidden, memory, used=used):
                torch.manual_seed(0)
                cell = nn.LSTMCell(3, 4).to(x.device)
                out = cell(x, (hidden, memory))[used]
                return torch.autograd.grad(out.sum(), [x, memory])

            tensors = [torch.randn(2, n, requires_grad=True) for n in (3, 4, 4)]
            self.check(case, *tensors, exact=False)

    def test_dropout_between_layers(self):
        """The mask comes from the device's generator."""

        def case(x):
            torch.manual_seed(0)
            network = nn.LSTM(3, 4, num_layers=2, dropout=0.5).to(x.device)
            torch.manual_seed(5)
            return run_network(network, x)[0].detach()

        self.check(case, torch.randn(5, 2, 3), exact=False)
        torch.manual_seed(5)
        network = nn.GRU(3, 4, num_layers=2, dropout=0.5).hologram()
        state = torch.get_rng_state()
        x = torch.randn(5, 2, 3, device="hologram")
        self.assertNotEqual(network(x)[0], network(x)[0])
        self.assertEqual(torch.get_rng_state(), state)

    @parametrize("kind", [nn.LSTMCell, nn.GRUCell])
    @parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_dtypes(self, kind, dtype):
        torch.manual_seed(0)
        cell, x = kind(3, 4).to(dtype), torch.randn(2, 3, dtype=dtype)
        (wanted, *_) = tree_leaves(cell(x))
        (mine, *_) = tree_leaves(cell.hologram()(x.hologram()))
        self.assertEqual(mine.dtype, dtype)
        tolerance = 1e-12 if dtype == torch.float64 else 2e-2
        self.assertEqual(mine.cpu(), wanted, rtol=tolerance, atol=tolerance)

    def test_wrong_sizes(self):
        cell = nn.LSTMCell(3, 4).hologram()
        x = torch.randn(2, 3, device="hologram")
        for state in (torch.randn(2, 5), torch.randn(3, 4)):
            with self.assertRaisesRegex(RuntimeError, r"size|batch|hidden\d? has inconsistent"):
                cell(x, (state.hologram(), state.hologram()))
        gates, memory = torch.randn(2, 2, device="hologram"), torch.randn(2, 4, device="hologram")
        for call in (
            lambda: torch.ops.aten._thnn_fused_lstm_cell(gates, gates, memory),
            lambda: torch.ops.aten._thnn_fused_gru_cell(gates, gates, memory),
            lambda: torch.ops.aten._thnn_fused_lstm_cell(gates[0], gates[0], memory),
        ):
            with self.assertRaisesRegex(RuntimeError, r"Expected the gates .* \d \* hidden"):
                call()

    def test_cells_count_as_delegated(self):
        torch.hologram.reset_fallback_report()
        x = torch.randn(2, 3, device="hologram")
        nn.LSTMCell(3, 4).hologram()(x)
        nn.GRUCell(3, 4).hologram()(x)
        delegated = torch.hologram.fallback_report().operators(DELEGATED)
        self.assertEqual(delegated["aten::_thnn_fused_lstm_cell"], 1)
        self.assertEqual(delegated["aten::_thnn_fused_gru_cell"], 1)


# ---- convolution ---------------------------------------------------------------------------------

CONVOLUTIONS = {
    "1d": (nn.Conv1d, (2, 4, 9), {"kernel_size": 3}),
    "1d, pointwise": (nn.Conv1d, (2, 4, 9), {"kernel_size": 1}),
    "2d": (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": 3}),
    "2d, no bias": (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": 3, "bias": False}),
    "2d, stride": (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": (3, 2), "stride": (2, 1)}),
    "2d, padding": (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": 3, "padding": (2, 1)}),
    "2d, same": (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": 5, "padding": "same"}),
    "2d, valid": (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": 4, "padding": "valid"}),
    "2d, circular": (
        nn.Conv2d,
        (2, 4, 9, 8),
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    ),
    "2d, dilation": (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": 3, "dilation": 2}),
    "2d, groups": (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": 3, "groups": 2}),
    "2d, depthwise": (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": 3, "groups": 4}),
    "2d, depthwise, stride": (
        nn.Conv2d,
        (2, 4, 9, 8),
        {"kernel_size": (5, 3), "groups": 4, "stride": (2, 3), "padding": (2, 0)},
    ),
    "2d, pointwise": (nn.Conv2d, (2, 4, 9, 8), {"kernel_size": 1}),
    "2d, pointwise, few elements": (nn.Conv2d, (2, 4, 2, 2), {"kernel_size": 1}),
    "2d, pointwise, one element": (nn.Conv2d, (2, 4, 1, 1), {"kernel_size": 1}),
    "3d, pointwise": (nn.Conv3d, (1, 4, 5, 6, 7), {"kernel_size": 1}),
    "2d, no batch": (nn.Conv2d, (4, 9, 8), {"kernel_size": 3}),
    "2d, empty batch": (nn.Conv2d, (0, 4, 9, 8), {"kernel_size": 3}),
    "3d": (nn.Conv3d, (1, 4, 5, 6, 7), {"kernel_size": 3, "padding": 1}),
    "transposed 1d": (nn.ConvTranspose1d, (2, 4, 9), {"kernel_size": 3, "stride": 2}),
    "transposed 2d": (
        nn.ConvTranspose2d,
        (2, 4, 5, 6),
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
    ),
    "transposed 2d, groups": (nn.ConvTranspose2d, (2, 4, 5, 6), {"kernel_size": 3, "groups": 2}),
    "transposed 3d": (nn.ConvTranspose3d, (1, 4, 3, 4, 5), {"kernel_size": 2, "stride": 2}),
}


# Not computed by torch's kernel, but as matrix products or plane by plane: sums in another order.
OTHER_ORDER = {
    "1d, pointwise",
    "2d, pointwise",
    "2d, pointwise, few elements",
    "2d, pointwise, one element",
    "3d, pointwise",
    "2d, depthwise",
    "2d, depthwise, stride",
}


class TestConvolution(CompareTestCase):
    @parametrize("name", list(CONVOLUTIONS))
    @parametrize("format", [torch.contiguous_format, torch.channels_last])
    def test_bits(self, name, format):
        """Results, their memory format, and gradients are the CPU kernel's, bit for bit."""
        kind, shape, options = CONVOLUTIONS[name]
        if format is torch.channels_last and len(shape) != 4:
            format = torch.channels_last_3d if len(shape) == 5 else torch.contiguous_format

        def case(x, weight_seed):
            torch.manual_seed(weight_seed)
            layer = kind(4, 4, **options).to(x.device)
            if len(shape) == len(layer.weight.shape):
                layer = layer.to(memory_format=format)
            out = layer(x.contiguous(memory_format=format))
            gradients = torch.autograd.grad(curved(out).sum(), [x, *layer.parameters()])
            return [out.detach(), *gradients]

        x = torch.randn(shape)
        self.check(case, x.requires_grad_(), 3, exact=name not in OTHER_ORDER)

    @parametrize("batch", [1, 3])
    @parametrize("plane", [(1, 1), (2, 2), (3, 3), (4, 5), (9, 16)])
    @parametrize("kernel", [1, 3, (2, 5), 7])
    @parametrize("stride", [1, 2, (1, 3)])
    def test_pointwise_and_depthwise(self, batch, plane, kernel, stride):
        """Of all sizes, against float64 on the CPU; one step at a time the bits are the same."""
        pairs = [k if isinstance(k, tuple) else (k, k) for k in (kernel, stride)]
        padding = tuple(k // 2 for k in pairs[0])
        torch.manual_seed(4)
        for groups in (1, 6):
            shape = (6, 6 // groups, *(pairs[0] if groups == 6 else (1, 1)))
            options = {"stride": pairs[1], "padding": padding} if groups == 6 else {}
            tensors = [torch.randn(batch, 6, *plane), torch.randn(shape), torch.randn(6)]

            def case(x, weight, bias, options=options, groups=groups):
                out = F.conv2d(x, weight, bias, groups=groups, **options)
                return out, *torch.autograd.grad(curved(out).sum(), [x, weight, bias])

            wanted = case(*(t.double().requires_grad_() for t in tensors))
            mine = case(*(t.to("hologram").requires_grad_() for t in tensors))
            mapped = [t.to("hologram").requires_grad_() for t in tensors]
            with torch.hologram.eager():
                stepwise = case(*mapped)
            for a, b, c in zip(mine, stepwise, wanted, strict=True):
                self.assertEqual(a.cpu().double(), c.detach(), rtol=1e-5, atol=1e-4)
                self.assertTrue(torch.equal(a, b))

    def test_sizes_of_gradients(self):
        """A gradient of another size than the result has is refused as on the CPU."""
        for weight, groups in ((torch.randn(3, 3, 1, 1), 1), (torch.randn(3, 1, 3, 3), 3)):

            def refused(device, weight=weight, groups=groups):
                x, w = torch.randn(2, 3, 5, 5, device=device), weight.to(device)
                grad = torch.randn(2, 3, 4, 7, device=device)
                try:
                    torch.ops.aten.convolution_backward(
                        grad, x, w, [3], [1, 1], [0, 0], [1, 1], False, [0, 0], groups, [True] * 3
                    )
                except RuntimeError:
                    return True
                return False

            self.assertTrue(refused("cpu"))
            mine = refused("hologram")
            as_torch(lambda device, mine=mine, of=refused: self.assertEqual(mine, of(device)))
            x = torch.randn(2, 3, 5, 5, device="hologram")
            out = F.conv2d(x, weight.hologram(), groups=groups)
            self.assertEqual(out.cpu().shape[:2], (2, 3))

    @parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
    def test_dtypes(self, dtype):
        x, weight = torch.randn(2, 3, 6, 6).to(dtype), torch.randn(4, 3, 3, 3).to(dtype)
        self.check(lambda x, w: F.conv2d(x, w), x, weight)

    @pytest.mark.cpu_kernels  # cuDNN has none of integers
    def test_integers(self):
        x, weight = torch.arange(36).reshape(1, 1, 6, 6), torch.ones(1, 1, 3, 3, dtype=torch.int64)
        self.check(lambda x, w: F.conv2d(x, w), x, weight)

    def test_which_gradients(self):
        """Only the gradients that are wanted, and none of a frozen weight."""
        for wanted in itertools.product([True, False], repeat=3):
            if not any(wanted):
                continue

            def case(x, weight, bias):
                curved(F.conv2d(x, weight, bias, padding=1)).sum().backward()
                return [t.grad for t in (x, weight, bias)]

            tensors = [torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(4)]
            tensors = [t.requires_grad_(w) for t, w in zip(tensors, wanted, strict=True)]
            self.check(case, *tensors, what=str(wanted))

    def test_gradients_of_gradients(self):
        def case(x, weight, bias):
            out = F.conv2d(x, weight, bias, stride=2, padding=1)
            first = torch.autograd.grad((out**3).sum(), [x, weight, bias], create_graph=True)
            second = torch.autograd.grad(sum((g**2).sum() for g in first), [x, weight, bias])
            return [g.detach() for g in first], second

        # Values about one: of larger ones the sums cancel to less than their rounding.
        tensors = [torch.randn(2, 3, 5, 5) / 2, torch.randn(4, 3, 3, 3) / 4, torch.randn(4)]
        self.check(case, *(t.requires_grad_() for t in tensors))

    def test_forward_mode_and_vmap(self):
        def case(x, weight):
            tangent = torch.func.jvp(lambda x: F.conv1d(x, weight), (x,), (torch.ones_like(x),))
            mapped = torch.vmap(lambda w: F.conv1d(x, w))(torch.stack([weight, weight * 2]))
            return tangent, mapped

        self.check(case, torch.randn(2, 3, 6), torch.randn(4, 3, 3), exact=False)

    def test_unfold_and_fold(self):
        def case(x):
            columns = F.unfold(x, 3, padding=1)
            return columns, F.fold(columns, (5, 6), 3, padding=1)

        self.check(case, torch.randn(2, 3, 5, 6))

    def test_parameters_with_offset(self):
        """Weights that are views into one buffer, as flattened parameters are."""

        def case(flat, x):
            weight = flat[1 : 1 + 36].view(4, 1, 3, 3)
            bias = flat[40:44]
            return F.conv2d(x, weight, bias).detach()

        self.check(case, torch.randn(50), torch.randn(2, 1, 6, 6))

    def test_errors(self):
        for device in ("cpu", "hologram"):
            x = torch.randn(1, 3, 4, 4, device=device)
            for weight, message in (
                (torch.randn(2, 5, 3, 3), "expected input.* to have 5 channels, but got 3"),
                (torch.randn(2, 3, 9, 9), "Kernel size can't be greater than actual input size"),
                (torch.randn(2, 3, 3, 3).double(), "dtype|type"),
            ):
                with self.assertRaisesRegex(RuntimeError, message):
                    F.conv2d(x, weight.to(device))

    def test_counts_as_delegated(self):
        torch.hologram.reset_fallback_report()
        x = torch.randn(1, 1, 8, device="hologram", requires_grad=True)
        F.conv1d(x, torch.randn(1, 1, 3, device="hologram")).sum().backward()
        delegated = torch.hologram.fallback_report().operators(DELEGATED)
        self.assertEqual(delegated["aten::convolution_overrideable"], 1)
        self.assertEqual(delegated["aten::convolution_backward_overrideable"], 1)


# ---- attention -----------------------------------------------------------------------------------


def qkv(length: int = 6, other: int = 7, width: int = 8) -> list[torch.Tensor]:
    torch.manual_seed(2)
    shapes = [(2, 4, length, width), (2, 4, other, width), (2, 4, other, width)]
    return [torch.randn(shape).requires_grad_() for shape in shapes]


MASKS = {
    "none": lambda: None,
    "bool": lambda: torch.arange(7)[None] <= torch.arange(6)[:, None] + 2,
    "bool per batch": lambda: (torch.arange(7) < 5)[None, None, None].expand(2, 1, 6, 7),
    "float": lambda: torch.linspace(-1, 1, 42).reshape(6, 7),
    "float per head": lambda: torch.linspace(-1, 1, 336).reshape(2, 4, 6, 7)[:, :, :, :],
    "minus infinity": lambda: torch.zeros(6, 7).index_fill(1, torch.tensor([0, 3]), -torch.inf),
    "hides a row": lambda: (torch.arange(6) != 3)[:, None].expand(6, 7),
}


def attend(q, k, v, mask=None, **options):
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    inputs = [t for t in (q, k, v, mask) if t is not None and t.requires_grad]
    gradients = torch.autograd.grad(curved(out).sum(), inputs) if inputs else []
    return [out.detach(), *gradients]


# ---- which attention kernel ----------------------------------------------------------------------

SHAPES = {
    "plain": ((2, 4, 6, 8), (2, 4, 7, 8), (2, 4, 7, 8)),
    "one head size for all, another for values": ((2, 4, 6, 8), (2, 4, 7, 8), (2, 4, 7, 5)),
    "grouped queries": ((2, 4, 6, 8), (2, 2, 7, 8), (2, 2, 7, 8)),
    "heads that do not divide": ((2, 4, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
    "other batch": ((2, 4, 6, 8), (1, 4, 7, 8), (1, 4, 7, 8)),
    "empty batch": ((0, 4, 6, 8), (0, 4, 7, 8), (0, 4, 7, 8)),
    "empty sequence": ((2, 4, 6, 8), (2, 4, 0, 8), (2, 4, 0, 8)),
    "no heads": ((2, 6, 8), (2, 7, 8), (2, 7, 8)),
    "matrices": ((6, 8), (7, 8), (7, 8)),
    "five dimensions": ((1, 2, 4, 6, 8), (1, 2, 4, 7, 8), (1, 2, 4, 7, 8)),
    "one": ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
}
MASK_SHAPES = (None, (6, 7), (1, 7), (6, 1), (2, 4, 6, 7), (1, 1, 6, 7), (2, 1, 1, 7), (3, 7), (7,))
LAYOUTS = {
    "contiguous": lambda t: t,
    "heads split off": lambda t: (
        t.transpose(-2, -3).contiguous().transpose(-2, -3) if t.dim() > 2 else t
    ),
    "last dimension strided": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "every other": lambda t: torch.stack([t, t], -1).flatten(-2)[..., ::2],
}


MATH, FLASH = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION


def outcome(function):
    """What a function returns, or the type of what it raises."""
    try:
        return function()
    except Exception as error:
        return type(error)


class TestAttentionChoice(HologramTestCase):
    """The choice between the fused kernel and plain operators is the CPU's, in every case.

    Where CUDA's kernels run it is the one for CUDA.
    """

    def choices(self, tensors, mask=None, **options):
        def choose(device):
            q, k, v, m = on(device, *tensors, mask)
            return outcome(lambda: torch._fused_sdp_choice(q, k, v, m, **options))

        return choose("hologram"), choose("cpu")

    def assert_equal_choice(self, seen, tensors, mask=None, **options):
        mine, wanted = self.choices(tensors, mask, **options)
        self.assertEqual(mine, wanted, msg=f"{[t.shape for t in tensors]} {mask} {options}")
        seen.add(wanted)

    def test_which_it_is(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            tensors = [torch.randn(2, 4, 6, 8, dtype=dtype) for _ in range(3)]
            of = "cuda" if CUDA_KERNELS else "cpu"
            wanted = torch._fused_sdp_choice(*(t.to(of) for t in tensors))
            if CUDA_KERNELS and wanted == FLASH.value:  # that of another device than CUDA
                wanted = SDPBackend.OVERRIDEABLE.value
            self.assertEqual(torch._fused_sdp_choice(*(t.hologram() for t in tensors)), wanted)

    @pytest.mark.cpu_kernels
    @parametrize("shape", list(SHAPES))
    def test_shapes_and_masks(self, shape):
        seen = set()
        tensors = [torch.randn(size) for size in SHAPES[shape]]
        for size, dtype, gradient in itertools.product(
            MASK_SHAPES, (torch.float32, torch.bool), (False, True)
        ):
            if gradient and dtype is torch.bool:
                continue
            mask = None if size is None else torch.ones(size, dtype=dtype, requires_grad=gradient)
            for grad_mode, options in itertools.product(
                (True, False),
                ({}, {"is_causal": True}, {"dropout_p": 0.5}, {"enable_gqa": True}, {"scale": 2.0}),
            ):
                with torch.set_grad_enabled(grad_mode):
                    self.assert_equal_choice(seen, tensors, mask, **options)
        if shape == "plain":
            self.assertGreaterEqual(seen, {backend.value for backend in (MATH, FLASH)})

    @pytest.mark.cpu_kernels
    @parametrize("layout", list(LAYOUTS))
    def test_layouts_and_dtypes(self, layout):
        seen = set()
        dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)
        for shape, dtype, gradients in itertools.product(
            SHAPES.values(), dtypes, itertools.product((True, False), repeat=3)
        ):
            sources = [torch.randn(size, dtype=dtype) for size in shape]

            def choose(device, sources=sources, gradients=gradients):
                tensors = [
                    LAYOUTS[layout](source.to(device)).requires_grad_(wanted)
                    for source, wanted in zip(sources, gradients, strict=True)
                ]
                return outcome(lambda: torch._fused_sdp_choice(*tensors))

            self.assertEqual(choose("hologram"), choose("cpu"), msg=f"{shape} {dtype}")
            seen.add(choose("cpu"))
        # Only a last dimension without gaps is served by the fused kernel.
        self.assertIn(MATH.value, seen)

    def test_mixed_dtypes(self):
        q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
        for tensors in ((q.double(), k, v), (q, k.half(), v), (q, k, v.bfloat16())):
            self.assert_equal_choice(set(), tensors)

    @pytest.mark.cpu_kernels
    def test_chosen_backends(self):
        tensors = [torch.randn(2, 4, 6, 8) for _ in range(3)]
        for count in (1, 2):
            for backends in itertools.combinations(SDPBackend.__members__.values(), count):
                if SDPBackend.ERROR in backends:
                    continue
                with sdpa_kernel(list(backends)):
                    self.assert_equal_choice(set(), tensors)

    def test_asks_for_no_memory(self):
        """scaled_dot_product_attention calls the choice past the dispatcher."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        q, k, v = (torch.randn(2, 4, 6, 8, device="hologram") for _ in range(3))
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(t) for t in (q, k, v)]
            out = F.scaled_dot_product_attention(*fakes)
        self.assertEqual((out.shape, out.device), (q.shape, q.device))

    def test_decides_without_a_flush(self):
        q = torch.randn(2, 4, 6, 8, device="hologram") * 2
        torch.hologram.flush()
        torch.hologram.reset_stream_stats()
        pending = q + 1
        torch._fused_sdp_choice(pending, pending, pending)
        self.assertEqual(torch.hologram.stream_stats()["executed"], 0)


class TestAttention(CompareTestCase):
    @parametrize("mask", list(MASKS))
    @parametrize("scale", [None, 0.3])
    def test_masks(self, mask, scale):
        """The fused kernel of the CPU: same bits, forward and backward."""
        self.check(lambda *t: attend(*t, scale=scale), *qkv(), MASKS[mask]())

    def test_causal(self):
        for length, other in ((6, 6), (1, 1), (40, 40)):
            self.check(lambda *t: attend(*t, is_causal=True), *qkv(length, other))

    def test_gradient_of_the_mask(self):
        mask = torch.linspace(-1, 1, 42).reshape(6, 7).requires_grad_()
        self.check(attend, *qkv(), mask, exact=False)

    @pytest.mark.cpu_kernels
    def test_fused_kernel_runs(self):
        torch.hologram.reset_fallback_report()
        attend(*on("hologram", *qkv()))
        kind = "native" if OWN_PRODUCTS else DELEGATED
        calls = torch.hologram.fallback_report().operators(kind)
        name = "aten::_scaled_dot_product_flash_attention_for_cpu"
        self.assertEqual((calls[name], calls[name + "_backward"]), (1, 1))

    def test_which_gradients(self):
        for wanted in itertools.product([True, False], repeat=3):
            tensors = [t.requires_grad_(w) for t, w in zip(qkv(), wanted, strict=True)]
            self.check(attend, *tensors, what=str(wanted))

    @parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_dtypes(self, dtype):
        tensors = [t.detach().to(dtype).requires_grad_() for t in qkv()]
        self.check(attend, *tensors)

    def test_dropout(self):
        """The mask is drawn on the device; the CPU draws nothing."""

        def case(*tensors):
            torch.manual_seed(4)
            with contextlib.nullcontext() if tensors[0].is_hologram else DevicesMasks():
                return attend(*tensors, dropout_p=0.5)

        self.check(case, *qkv(), exact=False)
        q, k, v = on("hologram", *qkv())
        state = torch.get_rng_state()
        first = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        self.assertNotEqual(first, F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))
        self.assertEqual(torch.get_rng_state(), state)

    # CUDA's flash attention takes half precision only.
    @parametrize("backend", [MATH, subtest(FLASH, decorators=[pytest.mark.cpu_kernels])])
    def test_chosen_backend(self, backend):
        def case(*tensors):
            with sdpa_kernel(backend):
                return attend(*tensors)

        self.check(case, *qkv(), exact=False)

    def test_grouped_queries(self):
        q, k, v = qkv()
        self.check(lambda *t: attend(*t, enable_gqa=True), q, *(t[:, :2].detach() for t in (k, v)))

    def test_layouts(self):
        """Heads split off the last dimension, as modules do; a sequence without heads."""

        def split(*tensors):
            return attend(*(t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors))

        self.check(split, *qkv(), exact=False)
        self.check(attend, *(t[:, 0].detach().requires_grad_() for t in qkv()), exact=False)
        self.check(attend, *(t[0, 0].detach() for t in qkv()), exact=False)
        self.check(attend, *(t[:0].detach() for t in qkv()), exact=False)

    def test_gradients_of_gradients(self):
        def case(q, k, v):
            with sdpa_kernel(MATH):
                out = F.scaled_dot_product_attention(q, k, v)
            first = torch.autograd.grad(out.pow(2).sum(), [q, k, v], create_graph=True)
            second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), [q, k, v])
            return [g.detach() for g in first], second

        self.check(case, *qkv(), exact=False)

    @parametrize("training", [True, False])
    @parametrize("masked", [True, False])
    def test_module(self, training, masked):
        """The module has a fused path of its own in evaluation."""

        def case(x, padding):
            torch.manual_seed(0)
            module = nn.MultiheadAttention(8, 2, batch_first=True).to(x.device).train(training)
            with torch.set_grad_enabled(training):
                out, weights = module(x, x, x, key_padding_mask=padding if masked else None)
            if training:
                (out**2).sum().backward()
            return out.detach(), weights.detach(), module.in_proj_weight.grad

        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        self.check(case, torch.randn(2, 5, 8), padding, exact=False)


instantiate_parametrized_tests(TestRecurrent)
instantiate_parametrized_tests(TestConvolution)
instantiate_parametrized_tests(TestAttentionChoice)
instantiate_parametrized_tests(TestAttention)

if __name__ == "__main__":
    run_tests()
