"""torch.nn.Module on the device: moving, Parameter identity, lazy modules, training."""

from __future__ import annotations

import torch
from common import HologramTestCase
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)


class TestMoving(HologramTestCase):
    @parametrize("move", ["to", "hologram", "hologram_index", "to_empty"])
    def test_parameters_keep_their_identity(self, move):
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        module(torch.rand(2, 3)).sum().backward()
        parameters = list(module.parameters())
        gradients = [parameter.grad for parameter in parameters]
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        moved = {
            "to": lambda: module.to("hologram"),
            "hologram": lambda: module.hologram(),
            "hologram_index": lambda: module.hologram(0),
            "to_empty": lambda: module.to_empty(device="hologram"),
        }[move]()
        self.assertIs(moved, module)
        for before, after in zip(parameters, module.parameters(), strict=True):
            self.assertIs(before, after)
            self.assertTrue(after.is_hologram)
        for gradient, parameter in zip(gradients, parameters, strict=True):
            self.assertIs(parameter.grad, gradient)
            self.assertTrue(parameter.grad.is_hologram)
        self.assertTrue(all(buffer.is_hologram for buffer in module.buffers()))

        if move != "to_empty":
            # The optimizer made before holds the parameters that are trained now.
            before = parameters[0].detach().clone()
            optimizer.step()
            self.assertEqual(parameters[0].detach(), before - gradients[0])

    def test_and_back(self):
        module = nn.Linear(2, 2)
        weight, values = module.weight, module.weight.detach().clone()
        module.hologram().cpu()
        self.assertIs(module.weight, weight)
        self.assertTrue(weight.is_cpu)
        self.assertEqual(weight.detach(), values)

    def test_dtype_and_device_at_once(self):
        module = nn.Linear(2, 2)
        weight = module.weight
        module.to("hologram", torch.bfloat16)
        self.assertIs(module.weight, weight)
        self.assertEqual((weight.device.type, weight.dtype), ("hologram", torch.bfloat16))
        module.double()
        self.assertIs(module.weight, weight)

    def test_tied_weights_stay_tied(self):
        module = nn.ModuleList([nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)])
        module[1].weight = module[0].weight
        module.hologram()
        self.assertIs(module[0].weight, module[1].weight)

    def test_state_dict(self):
        module = nn.Linear(2, 3).hologram()
        state = module.state_dict()
        self.assertTrue(state["weight"].is_hologram)
        other = nn.Linear(2, 3)
        other.load_state_dict(state)
        self.assertEqual(other.weight, module.weight.cpu())
        other.load_state_dict(state, assign=True)
        self.assertTrue(other.weight.is_hologram)

    def test_grad_moves_with_the_tensor(self):
        leaf = torch.ones(2, requires_grad=True)
        leaf.hologram().sum().backward()
        self.assertTrue(leaf.grad.is_cpu)
        leaf = torch.ones(2, device="hologram", requires_grad=True)
        leaf.cpu().sum().backward()
        self.assertTrue(leaf.grad.is_hologram)

    def test_packed_sequence(self):
        packed = nn.utils.rnn.pack_sequence([torch.rand(3, 2), torch.rand(1, 2)])
        self.assertFalse(packed.is_hologram)
        moved = packed.hologram()
        self.assertTrue(moved.is_hologram)
        output, _ = nn.GRU(2, 3).hologram()(moved)
        self.assertTrue(output.is_hologram)


class TestLazyModules(HologramTestCase):
    @parametrize("first", ["move", "run"])
    @parametrize("kind", ["linear", "conv", "batchnorm"])
    def test_lazy_module(self, kind, first):
        module, shape = {
            "linear": (nn.LazyLinear(4), (2, 3)),
            "conv": (nn.LazyConv2d(4, 3), (2, 3, 8, 8)),
            "batchnorm": (nn.LazyBatchNorm1d(), (4, 3)),
        }[kind]
        if first == "move":
            module.hologram()
        parameter = next(module.parameters())
        self.assertIsInstance(parameter, nn.UninitializedParameter)
        if first == "move":
            self.assertTrue(parameter.is_hologram)
            output = module(torch.rand(shape, device="hologram"))
        else:
            module(torch.rand(shape))
            output = module.hologram()(torch.rand(shape, device="hologram"))
        self.assertTrue(output.is_hologram)
        self.assertNotIsInstance(next(module.parameters()), nn.UninitializedParameter)
        output.sum().backward()
        self.assertTrue(next(module.parameters()).grad.is_hologram)

    def test_uninitialized_parameter_materialises(self):
        parameter = nn.UninitializedParameter(device="hologram")
        parameter.materialize((2, 2))
        self.assertIs(type(parameter), nn.Parameter)
        self.assertTrue(parameter.is_hologram)
        self.assertEqual(parameter.shape, (2, 2))


class Network(nn.Module):
    """A small network with most kinds of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.lstm = nn.LSTM(16, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.layer_norm = nn.LayerNorm(8)
        self.embedding = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        features = nn.functional.max_pool2d(self.norm(self.convolution(images)).relu(), 2)
        sequence, _ = self.lstm(features.flatten(2))
        sequence = sequence + self.embedding(tokens)
        attended, _ = self.attention(sequence, sequence, sequence)
        return self.head(self.layer_norm(attended + sequence).mean(1))


class TestTraining(HologramTestCase):
    def test_equals_the_cpu(self):
        for make_optimizer in (
            torch.optim.SGD,
            torch.optim.AdamW,
            lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, fused=True),
            lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, foreach=False),
        ):
            losses = {}
            for device in ("cpu", "hologram"):
                torch.manual_seed(0)
                network = Network()
                images, tokens = torch.rand(6, 1, 8, 8), torch.randint(0, 10, (6, 4))
                targets = torch.randint(0, 3, (6,))
                network.to(device)
                optimizer = make_optimizer(network.parameters(), lr=0.01)
                losses[device] = []
                for _ in range(5):
                    optimizer.zero_grad()
                    output = network(images.to(device), tokens.to(device))
                    loss = nn.functional.cross_entropy(output, targets.to(device))
                    loss.backward()
                    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                    optimizer.step()
                    losses[device].append(loss.item())
            self.assertEqual(losses["hologram"], losses["cpu"], atol=1e-5, rtol=1e-4)
            self.assertLess(losses["hologram"][-1], losses["hologram"][0])

    def test_parameters_to_vector(self):
        module = nn.Linear(2, 2).hologram()
        vector = nn.utils.parameters_to_vector(module.parameters())
        self.assertTrue(vector.is_hologram)
        nn.utils.vector_to_parameters(torch.zeros_like(vector), module.parameters())
        self.assertEqual(module.weight.abs().sum().item(), 0)

    def test_parametrizations(self):
        module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)).hologram()
        module(torch.rand(2, 3, device="hologram")).sum().backward()
        self.assertTrue(all(p.grad.is_hologram for p in module.parameters()))

    def test_rng_of_dropout(self):
        module = nn.Dropout(0.5)
        x = torch.ones(1000, device="hologram")
        torch.manual_seed(0)
        first = module(x)
        torch.manual_seed(0)
        self.assertEqual(module(x), first)
        self.assertAlmostEqual((first == 0).float().mean().item(), 0.5, delta=0.1)

    def test_modes_of_batch_norm(self):
        norm = nn.BatchNorm1d(3).hologram()
        x = torch.rand(8, 3, device="hologram")
        norm(x)
        self.assertEqual(norm.running_mean.cpu(), 0.1 * x.mean(0).cpu())
        self.assertEqual(norm.num_batches_tracked.item(), 1)
        norm.eval()
        expected = nn.BatchNorm1d(3)
        expected.load_state_dict(norm.state_dict())
        self.assertEqual(norm(x).cpu(), expected.eval()(x.cpu()))


instantiate_parametrized_tests(TestMoving)
instantiate_parametrized_tests(TestLazyModules)

if __name__ == "__main__":
    run_tests()
