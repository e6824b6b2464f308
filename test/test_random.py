"""Generators: seeding, states, reproducibility, the CPU's numbers, several devices."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from common import FORK_RNG_MEANS_THE_ACCELERATOR, HologramTestCase, run_python, several_devices
from multi_device import BOTH_WAYS, ONE, ZERO, SeveralDevicesTestCase, in_processes_of_their_own
from torch import nn
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

hologram = torch.hologram


def draw(generator: torch.Generator | None = None) -> torch.Tensor:
    return torch.rand(16, device="hologram", generator=generator).cpu()


class TestSeeds(HologramTestCase):
    def test_same_seed_same_numbers(self):
        for seed in (torch.manual_seed, torch.hologram.manual_seed, torch.hologram.manual_seed_all):
            seed(123)
            first = draw()
            self.assertNotEqual(draw(), first)
            seed(123)
            self.assertEqual(draw(), first)
            seed(124)
            self.assertNotEqual(draw(), first)

    def test_initial_seed(self):
        torch.hologram.manual_seed(77)
        self.assertEqual(torch.hologram.initial_seed(), 77)
        torch.manual_seed(-1)
        self.assertEqual(torch.hologram.initial_seed(), torch.initial_seed())

    def test_random_seeds(self):
        seeds = set()
        for seed in (torch.hologram.seed, torch.hologram.seed_all):
            for _ in range(2):
                seed()
                seeds.add(torch.hologram.initial_seed())
        self.assertEqual(len(seeds), 4)

    def test_device_draws_do_not_advance_the_cpu(self):
        torch.manual_seed(5)
        expected = torch.rand(4)
        torch.manual_seed(5)
        for sample in (torch.randn, torch.rand):
            sample(100, device="hologram")
        torch.nn.functional.dropout(torch.ones(100, device="hologram"))
        torch.randperm(10, device="hologram")
        self.assertEqual(torch.rand(4), expected)

    def test_seeding_does_not_initialise(self):
        run_python(
            """
            import torch
            torch.manual_seed(1)
            torch.hologram.manual_seed_all(2)
            torch.hologram.manual_seed(3)
            assert not torch.hologram.is_initialized()
            late = torch.rand(4, device="hologram").cpu()
            assert torch.hologram.is_initialized()
            torch.hologram.manual_seed(3)
            assert torch.equal(torch.rand(4, device="hologram").cpu(), late)
            """
        )


class TestStates(HologramTestCase):
    def test_get_and_set(self):
        state = torch.hologram.get_rng_state()
        self.assertEqual((state.dtype, state.device.type), (torch.uint8, "cpu"))
        first = draw()
        torch.hologram.set_rng_state(state)
        self.assertEqual(draw(), first)
        for device in (0, "hologram:0", torch.device("hologram")):
            torch.hologram.set_rng_state(state, device)
            self.assertEqual(torch.hologram.get_rng_state(device), state)

    def test_get_and_set_all(self):
        states = torch.hologram.get_rng_state_all()
        self.assertEqual(len(states), torch.hologram.device_count())
        first = draw()
        torch.hologram.set_rng_state_all(states)
        self.assertEqual(draw(), first)

    def test_a_state_is_a_snapshot(self):
        state = torch.hologram.get_rng_state()
        kept = state.clone()
        draw()
        self.assertEqual(state, kept)

    def test_fork_rng(self):
        torch.manual_seed(9)
        expected = draw()
        torch.manual_seed(9)
        calls = [{"device_type": "hologram"}, {"devices": [0], "device_type": "hologram"}]
        if FORK_RNG_MEANS_THE_ACCELERATOR:
            calls.append({})
        for arguments in calls:
            with torch.random.fork_rng(**arguments):
                torch.manual_seed(10)
                draw()
        self.assertEqual(draw(), expected)

    def test_normal_draws_replay(self):
        # A pair of normal numbers is made at a time: the state has to hold the second one.
        torch.manual_seed(3)
        torch.randn(1, device="hologram")
        state = torch.hologram.get_rng_state()
        first = torch.randn(5, device="hologram").cpu()
        torch.hologram.set_rng_state(state)
        self.assertEqual(torch.randn(5, device="hologram").cpu(), first)


class TestGenerators(HologramTestCase):
    def test_generator(self):
        generator = torch.Generator(device="hologram")
        self.assertEqual(generator.device, torch.device("hologram", 0))
        generator.manual_seed(4)
        first = draw(generator)
        self.assertNotEqual(draw(generator), first)
        generator.manual_seed(4)
        self.assertEqual(draw(generator), first)

    def test_generator_leaves_the_default_alone(self):
        torch.manual_seed(6)
        expected = draw()
        torch.manual_seed(6)
        draw(torch.Generator(device="hologram"))
        self.assertEqual(draw(), expected)

    def test_generator_state(self):
        generator = torch.Generator(device="hologram").manual_seed(11)
        state = generator.get_state()
        first = draw(generator)
        other = torch.Generator(device="hologram")
        other.set_state(state)
        self.assertEqual(draw(other), first)
        copy = other.clone_state()
        self.assertEqual(draw(copy), draw(other))

    def test_every_way_to_draw_takes_a_generator(self):
        def numbers(seed: int) -> list[torch.Tensor]:
            generator = torch.Generator(device="hologram").manual_seed(seed)
            like = torch.empty(8, device="hologram")
            probabilities = torch.full((8,), 0.5, device="hologram")
            return [
                torch.rand(8, device="hologram", generator=generator),
                torch.randn(8, device="hologram", generator=generator),
                torch.randint(0, 1000, (8,), device="hologram", generator=generator),
                torch.randperm(20, device="hologram", generator=generator),
                torch.bernoulli(probabilities, generator=generator),
                torch.multinomial(probabilities, 4, generator=generator),
                torch.normal(0.0, 1.0, (8,), device="hologram", generator=generator),
                like.clone().uniform_(generator=generator),
                like.clone().normal_(generator=generator),
                like.clone().exponential_(generator=generator),
                like.clone().random_(generator=generator),
                like.clone().geometric_(0.5, generator=generator),
                like.clone().cauchy_(generator=generator),
                like.clone().log_normal_(generator=generator),
            ]

        self.assertEqual(numbers(1), numbers(1))
        for first, second in zip(numbers(1), numbers(2), strict=True):
            self.assertEqual(first.device.type, "hologram")
            if first.unique().numel() > 4:  # a few coin flips may agree
                self.assertNotEqual(first, second)

    def test_default_generators(self):
        (generator, *_) = torch.hologram.default_generators
        generator.manual_seed(21)
        first = draw()
        torch.hologram.manual_seed(21)
        self.assertEqual(draw(), first)

    def test_initialisers(self):
        def weights() -> torch.Tensor:
            torch.manual_seed(0)
            return torch.nn.Linear(4, 3, device="hologram").weight.detach().cpu()

        self.assertEqual(weights(), weights())
        self.assertLessEqual(weights().abs().max().item(), 0.5)


def chances(device: str) -> torch.Tensor:
    return torch.linspace(0.05, 0.95, 40, device=device).reshape(5, 8)


P = chances
DRAWS = {
    "rand": lambda d: torch.rand(40, device=d),
    "rand, few": lambda d: torch.rand(3, device=d),
    "rand, bfloat16": lambda d: torch.rand(40, device=d, dtype=torch.bfloat16),
    "randn": lambda d: torch.randn(40, device=d),
    "randn, few": lambda d: torch.randn(3, device=d),
    "randn, complex": lambda d: torch.randn(20, device=d, dtype=torch.complex64),
    "randint": lambda d: torch.randint(3, 99, (40,), device=d),
    "rand_like": lambda d: torch.rand_like(P(d)),
    "randn_like": lambda d: torch.randn_like(P(d).t()),
    "randint_like": lambda d: torch.randint_like(P(d), 9),
    "randperm": lambda d: torch.randperm(50, device=d),
    "normal": lambda d: torch.normal(0.0, 2.0, (30,), device=d),
    "normal, two tensors": lambda d: torch.normal(P(d), P(d)),
    "normal, means": lambda d: torch.normal(P(d), 2.0),
    "normal, deviations": lambda d: torch.normal(1.0, P(d)),
    "normal_, transposed": lambda d: torch.empty(8, 5, device=d).t().normal_(),
    "normal_, strided": lambda d: torch.zeros(40, 2, device=d)[:, 0].normal_(),
    "normal, out": lambda d: torch.normal(P(d), P(d), out=torch.empty(0, device=d)),
    "bernoulli": lambda d: torch.bernoulli(P(d)),
    "bernoulli, number": lambda d: torch.bernoulli(P(d), 0.3),
    "bernoulli_": lambda d: P(d).bernoulli_(0.3),
    "bernoulli_, tensor": lambda d: torch.empty(5, 8, device=d).bernoulli_(P(d)),
    "multinomial": lambda d: torch.multinomial(P(d), 3),
    "multinomial, replacement": lambda d: torch.multinomial(P(d), 30, replacement=True),
    "uniform_": lambda d: P(d).uniform_(-2, 3),
    "exponential_": lambda d: P(d).exponential_(2.0),
    "geometric_": lambda d: P(d).geometric_(0.2),
    "cauchy_": lambda d: P(d).cauchy_(),
    "log_normal_": lambda d: P(d).log_normal_(),
    "random_": lambda d: P(d).long().random_(),
    "random_, to": lambda d: P(d).random_(77),
    "random_, from": lambda d: P(d).random_(-5, 77),
    "poisson": lambda d: torch.poisson(P(d) * 20),
    "binomial": lambda d: torch.binomial(torch.full((5, 8), 9.0, device=d), P(d)),
    "_standard_gamma": lambda d: torch._standard_gamma(P(d) * 4),
    "_sample_dirichlet": lambda d: torch._sample_dirichlet(P(d)),
    "dropout": lambda d: F.dropout(P(d)),
    "dropout, in place": lambda d: F.dropout(P(d), 0.3, inplace=True),
    "dropout, transposed": lambda d: F.dropout(P(d).t()),
    "native_dropout": lambda d: torch.native_dropout(P(d), 0.3, True),
    "alpha_dropout": lambda d: F.alpha_dropout(P(d), training=True),
    "dropout2d": lambda d: F.dropout2d(P(d)[None, :, None], training=True),
    "feature_alpha_dropout": lambda d: F.feature_alpha_dropout(P(d)[None], training=True),
    "rrelu": lambda d: F.rrelu(-P(d), training=True),
    "gumbel_softmax": lambda d: F.gumbel_softmax(P(d)),
    "fractional_max_pool2d": lambda d: F.fractional_max_pool2d(P(d)[None], 2, (3, 4)),
    "kaiming_normal_": lambda d: torch.nn.init.kaiming_normal_(P(d)),
    "trunc_normal_": lambda d: torch.nn.init.trunc_normal_(P(d)),
    "orthogonal_": lambda d: torch.nn.init.orthogonal_(P(d)),
    "Linear": lambda d: torch.nn.Linear(8, 5, device=d).weight.detach(),
    "Normal": lambda d: torch.distributions.Normal(P(d), 1.0).sample((3,)),
    "Beta": lambda d: torch.distributions.Beta(P(d), P(d)).sample(),
    "Dirichlet": lambda d: torch.distributions.Dirichlet(P(d)).rsample(),
    "Categorical": lambda d: torch.distributions.Categorical(P(d)).sample((4,)),
    "VonMises": lambda d: torch.distributions.VonMises(P(d), P(d) * 4).sample(),
    "StudentT": lambda d: torch.distributions.StudentT(P(d) * 9).sample(),
    "attention": lambda d: F.scaled_dot_product_attention(*[P(d)[None]] * 3, dropout_p=0.4),
    "svd_lowrank": lambda d: torch.svd_lowrank(P(d), q=3)[1],
    "many": lambda d: [torch.rand(100_000, device=d), torch.randn(100_000, device=d)],
}

# The same tensor filled with numbers of a generator.
FILLS = {
    "uniform_": lambda x, g: x.uniform_(generator=g),
    "normal_": lambda x, g: x.normal_(generator=g),
    "exponential_": lambda x, g: x.exponential_(generator=g),
    "bernoulli_": lambda x, g: x.bernoulli_(0.4, generator=g),
    "random_": lambda x, g: x.random_(100, generator=g),
    "rand": lambda x, g: torch.rand(9, device=x.device, generator=g),
    "randn, out": lambda x, g: torch.randn(9, generator=g, out=x),
    "randint": lambda x, g: torch.randint(9, (9,), device=x.device, generator=g),
    "randperm": lambda x, g: torch.randperm(9, device=x.device, generator=g),
    "multinomial": lambda x, g: torch.multinomial(torch.ones_like(x), 4, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(torch.full_like(x, 0.5), generator=g),
    "normal, tensors": lambda x, g: torch.normal(torch.zeros_like(x), 1.0, generator=g),
    "poisson": lambda x, g: torch.poisson(torch.full_like(x, 3.0), generator=g),
    "_standard_gamma": lambda x, g: torch._standard_gamma(torch.ones_like(x), generator=g),
    "rrelu": lambda x, g: torch.ops.aten.rrelu_with_noise(
        -torch.ones_like(x), torch.empty_like(x), 0.1, 0.3, True, g
    ),
}  # fmt: skip


class TestRandomNumbers(HologramTestCase):
    @parametrize("name", list(DRAWS))
    def test_numbers_of_the_cpu(self, name):
        """The device draws what the CPU draws from the same seed; the CPU draws nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dropout2d of two dimensions
            torch.manual_seed(7)
            wanted, wanted_state = DRAWS[name]("cpu"), torch.get_rng_state()
            torch.manual_seed(7)
            start = torch.get_rng_state()
            mine = DRAWS[name]("hologram")
        for a, b in zip(tree_leaves(mine), tree_leaves(wanted), strict=True):
            self.assertEqual(a.device.type, "hologram")
            self.assertEqual(a.cpu(), b)
        self.assertEqual(torch.get_rng_state(), start)
        self.assertEqual(torch.hologram.get_rng_state(), wanted_state)
        self.assertNotEqual(torch.hologram.get_rng_state(), start)

    @parametrize("name", list(FILLS))
    def test_generators(self, name):
        """A generator of the device, given or not, and replays."""

        def draw(device, generator):
            return tree_leaves(FILLS[name](torch.zeros(9, device=device), generator))[0].cpu()

        wanted = draw("cpu", torch.Generator().manual_seed(3))
        own = torch.Generator(device="hologram").manual_seed(3)
        default_state, cpu_state = torch.hologram.get_rng_state(), torch.get_rng_state()
        state = own.get_state()
        self.assertEqual(draw("hologram", own), wanted)
        second = draw("hologram", own)
        own.set_state(state)
        self.assertEqual((draw("hologram", own), draw("hologram", own)), (wanted, second))
        self.assertEqual(torch.hologram.get_rng_state(), default_state)
        # The default one, named and not.
        torch.hologram.manual_seed(3)
        self.assertEqual(draw("hologram", None), wanted)
        torch.hologram.manual_seed(3)
        self.assertEqual(draw("hologram", torch.hologram.default_generators[0]), wanted)
        self.assertEqual(torch.get_rng_state(), cpu_state)

    @parametrize("name", list(FILLS))
    def test_generator_of_another_device(self, name):
        for generator, device, wanted in (
            (torch.Generator(), "hologram", "'hologram' device type for generator but found 'cpu'"),
            (torch.Generator(device="hologram"), "cpu", "'cpu' device type.* found 'hologram'"),
        ):
            with self.assertRaisesRegex(RuntimeError, f"Expected a {wanted}"):
                FILLS[name](torch.zeros(9, device=device), generator)

    def test_generator_of_another_index(self):
        run_python(
            """
            import torch
            one = torch.Generator(device="hologram:1").manual_seed(3)
            try:
                torch.rand(3, device="hologram:0", generator=one)
            except RuntimeError as error:
                assert "hologram:0" in str(error) and "hologram:1" in str(error), error
            else:
                raise AssertionError("accepted")
            wanted = torch.rand(3, generator=torch.Generator().manual_seed(3))
            assert torch.equal(torch.rand(3, device="hologram:1", generator=one).cpu(), wanted)
            # Each device has a default generator of its own.
            torch.manual_seed(3)
            zero = torch.rand(3, device="hologram:0").cpu()
            assert torch.equal(torch.rand(3, device="hologram:1").cpu(), zero)
            """,
            env=several_devices(2),
        )


class TestRandom(SeveralDevicesTestCase):
    def draw(self) -> list[list[float]]:
        return [torch.rand(4, device=device).tolist() for device in (ZERO, ONE)]

    def test_seeds(self):
        for seed in (torch.manual_seed, hologram.manual_seed_all):
            seed(7)
            zero, one = self.draw()
            self.assertEqual(zero, one)
            self.assertEqual(
                zero, torch.rand(4, generator=torch.Generator().manual_seed(7)).tolist()
            )
        with hologram.device(1):
            hologram.manual_seed(7)  # of the current device only
            self.assertEqual(hologram.initial_seed(), 7)
        again = self.draw()
        self.assertEqual(again[1], one)
        self.assertNotEqual(again[0], zero)
        hologram.seed_all()
        zero, one = self.draw()
        self.assertEqual(zero, one)
        hologram.seed()
        zero, one = self.draw()
        self.assertNotEqual(zero, one)

    def test_states(self):
        hologram.manual_seed_all(7)
        torch.rand(3, device=ONE)
        states = hologram.get_rng_state_all()
        self.assertEqual(len(states), 2)
        self.assertNotEqual(states[0].tolist(), states[1].tolist())
        drawn = self.draw()
        hologram.set_rng_state_all(states)
        self.assertEqual(self.draw(), drawn)
        hologram.set_rng_state(states[1], ONE)
        hologram.set_rng_state(states[0], "hologram:0")
        self.assertEqual(self.draw(), drawn)
        self.assertEqual(hologram.get_rng_state(1), hologram.default_generators[1].get_state())

    def test_fork_rng(self):
        for devices in ([0, 1], ["hologram:0", "hologram:1"], range(2)):
            with torch.random.fork_rng(devices, device_type="hologram"):
                inside = self.draw()
            self.assertEqual(self.draw(), inside)
        with torch.random.fork_rng([1], device_type="hologram"):
            inside = self.draw()
        outside = self.draw()
        self.assertEqual(outside[1], inside[1])
        self.assertNotEqual(outside[0], inside[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that all devices are meant
            with self.assertRaises(KeyError), torch.random.fork_rng(device_type="hologram"):
                inside = self.draw()
                raise KeyError
        self.assertEqual(self.draw(), inside)

    def test_generators(self):
        generators = [torch.Generator(device).manual_seed(3) for device in (ZERO, ONE)]
        wanted = torch.rand(4, generator=torch.Generator().manual_seed(3))
        for generator, (device, _) in zip(generators, BOTH_WAYS, strict=True):
            self.assertEqual(generator.device, device)
            self.assertSame(torch.rand(4, device=device, generator=generator), wanted, device)
            copied = generator.clone_state()
            self.assertEqual(copied.device, device)
        for generator, (_, other) in zip(generators, BOTH_WAYS, strict=True):
            state = generator.get_state()
            for call in (
                lambda g, d: torch.rand(2, device=d, generator=g),
                lambda g, d: torch.ones(2, device=d).normal_(generator=g),
                lambda g, d: torch.randperm(4, device=d, generator=g),
                lambda g, d: torch.multinomial(torch.ones(3, device=d), 1, generator=g),
            ):
                with self.assertRaisesRegex(RuntimeError, f"{other}.*{generator.device}"):
                    call(generator, other)
            self.assertEqual(generator.get_state(), state, "drawn from by a call that was refused")

    def test_wrong_seed(self):
        for wrong in (2**64, -(2**63) - 1):
            for seed in (torch.manual_seed, hologram.manual_seed, hologram.manual_seed_all):
                with self.assertRaisesRegex((ValueError, RuntimeError), "Overflow"):
                    seed(wrong)
                hologram.init()  # would apply what was kept of it
        hologram.manual_seed_all(-1)
        self.assertEqual(hologram.initial_seed(), 2**64 - 1)

    def test_checkpoint(self):
        # Of the devices of the arguments, torch restores the generators.
        for reentrant in (True, False):
            x = [torch.ones(50, device=d, requires_grad=True) for d in (ZERO, ONE)]
            y = checkpoint(
                lambda a, b: (nn.functional.dropout(a) * 2, nn.functional.dropout(b) * 3),
                *x,
                use_reentrant=reentrant,
            )
            # On one thread: torch recomputes for the first that asks, and takes no lock for it.
            with torch.autograd.set_multithreading_enabled(False):
                (y[0].sum().to(ONE) + y[1].sum()).backward()
            self.assertEqual(x[0].grad, y[0].detach())
            self.assertEqual(x[1].grad, y[1].detach())


instantiate_parametrized_tests(TestRandomNumbers)
TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__)

if __name__ == "__main__":
    run_tests()
