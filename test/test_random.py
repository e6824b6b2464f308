"""Random numbers: generators and their states, numbers that are known, distributions, devices."""

from __future__ import annotations

import contextlib
import itertools
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from about_torch import FORK_RNG_MEANS_THE_ACCELERATOR
from common import HologramTestCase, as_torch, run_python, several_devices
from multi_device import BOTH_WAYS, ONE, ZERO, SeveralDevicesTestCase, in_processes_of_their_own
from scipy import stats
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

    def test_format(self):
        """Seed and offset, as of torch's CUDA generators; a state of the CPU's is refused."""
        torch.hologram.manual_seed(2**63 + 5)
        torch.rand(9, device="hologram")
        state = torch.hologram.get_rng_state()
        self.assertEqual(state.view(torch.int64).tolist(), [-(2**63) + 5, 3])
        generator = torch.hologram.default_generators[0]
        self.assertEqual(generator.get_offset(), 3)
        generator.set_offset(2**40)
        self.assertEqual(torch.rand(5, device="hologram").cpu(), uniform(2**63 + 5, 5, 2**40))
        self.assertEqual(torch.hologram.initial_seed(), 2**63 + 5)
        kept = torch.hologram.get_rng_state()
        with self.assertRaisesRegex(RuntimeError, "5056 bytes, as those of torch's CPU generators"):
            torch.hologram.set_rng_state(torch.get_rng_state())
        with self.assertRaisesRegex(RuntimeError, "it has 15 bytes"):
            torch.hologram.set_rng_state(state[:15])
        for wrong in (state.int(), state.to("hologram")):
            with self.assertRaisesRegex(TypeError, "RNG state must be a torch.ByteTensor"):
                torch.hologram.set_rng_state(wrong)
        self.assertEqual(torch.hologram.get_rng_state(), kept)

    def test_checkpoint(self):
        x = torch.ones(4000, device="hologram", requires_grad=True)
        for reentrant in (True, False):
            y = checkpoint(lambda x: F.dropout(x, 0.3) * 2, x, use_reentrant=reentrant)
            torch.rand(3, device="hologram")
            y.backward(torch.ones_like(y))
            self.assertEqual(x.grad, y.detach())
            x.grad = None

    def test_normal_draws_replay(self):
        # Normal numbers are made in pairs: of an odd count the last one has no part in the next.
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


def philox(seed: int, counters: np.ndarray) -> np.ndarray:
    """Philox 4x32-10 of Salmon et al. (SC 2011): four words of 32 bits for each counter."""
    low, high = counters & 0xFFFFFFFF, counters >> np.uint64(32)
    zero = np.zeros_like(low)
    words, key = [low, high, zero, zero], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p, q = (np.uint64(m) * w for m, w in ((0xD2511F53, words[0]), (0xCD9E8D57, words[2])))
        words = [
            (q >> np.uint64(32)) ^ words[1] ^ np.uint64(key[0]),
            q & np.uint64(0xFFFFFFFF),
            (p >> np.uint64(32)) ^ words[3] ^ np.uint64(key[1]),
            p & np.uint64(0xFFFFFFFF),
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(words, axis=1)


def words(seed: int, count: int, offset: int = 0) -> np.ndarray:
    """The words of 32 bits that so many elements are drawn from."""
    counters = np.arange(offset, offset + (count + 3) // 4, dtype=np.uint64)
    return philox(seed, counters).reshape(-1)[:count]


def long_words(seed: int, count: int, offset: int = 0) -> np.ndarray:
    halves = words(seed, 2 * count, offset)
    return halves[::2] | halves[1::2] << np.uint64(32)


def uniform(seed: int, count: int, offset: int = 0) -> torch.Tensor:
    numbers = (words(seed, count, offset) >> np.uint64(8)).astype(np.float64) * 2.0**-24
    return torch.from_numpy(numbers.astype(np.float32))


SIZES = [1, 3, 4, 5, 127, 128, 129, 1000, 3071, 3072, 3073, 40_001, 100_000]


class TestKnownAnswers(HologramTestCase):
    """Numbers that no change may change: each is a function of seed, offset and place."""

    def test_pinned(self):
        torch.hologram.manual_seed(0)
        self.assertEqual(
            torch.rand(4, device="hologram").tolist(),
            # Of the paper's known answers, key and counter zero.
            [word / 2**24 for word in (0x6627E8, 0xE169C5, 0xBC57AC, 0x9B00DB)],
        )

    @parametrize("count", SIZES)
    def test_uniform(self, count):
        torch.hologram.manual_seed(2**40 + 7)
        first = torch.rand(count, device="hologram")
        second = torch.rand(count, device="hologram")
        self.assertEqual(first.cpu(), uniform(2**40 + 7, count))
        self.assertEqual(second.cpu(), uniform(2**40 + 7, count, (count + 3) // 4))
        self.assertEqual(torch.hologram.default_generators[0].get_offset(), (count + 3) // 4 * 2)

    @parametrize("count", SIZES)
    def test_other_dtypes(self, count):
        torch.hologram.manual_seed(11)
        start = torch.hologram.get_rng_state()

        def rand(dtype):
            torch.hologram.set_rng_state(start)
            return torch.rand(count, device="hologram", dtype=dtype).cpu()

        doubles = (long_words(11, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        self.assertEqual(rand(torch.float64), torch.from_numpy(doubles))
        for dtype, digits in ((torch.float16, 11), (torch.bfloat16, 8)):
            wanted = (words(11, count) >> np.uint64(32 - digits)).astype(np.float64)
            self.assertEqual(rand(dtype), torch.from_numpy(wanted / 2**digits).to(dtype))

    @parametrize("count", SIZES)
    def test_integers(self, count):
        for low, high in ((0, 10), (-5, 2**31), (0, 2**32), (-(2**63), 2**63 - 1), (7, 2**40)):
            span = high - low
            torch.hologram.manual_seed(3)
            drawn = torch.randint(low, high, (count,), device="hologram")
            if span <= 2**32:
                wanted = words(3, count).astype(object) * span // 2**32 + low
            else:
                wanted = long_words(3, count).astype(object) * span // 2**64 + low
            self.assertEqual(drawn.cpu(), torch.from_numpy(wanted.astype(np.int64)))
        torch.hologram.manual_seed(3)
        drawn = torch.empty(count, device="hologram", dtype=torch.int64).random_(-(2**63), None)
        self.assertEqual(drawn.cpu(), torch.from_numpy(long_words(3, count).view(np.int64)))

    @parametrize("dtype", [torch.float32, torch.float64, torch.float16])
    def test_normal(self, dtype):
        count = 10_001
        torch.hologram.manual_seed(5)
        drawn = torch.randn(count, device="hologram", dtype=dtype).cpu()
        if dtype == torch.float64:
            w = (long_words(5, count + 1) >> np.uint64(11)).astype(np.float64)
            u, v = (w[::2] + 1) * 2.0**-53, w[1::2] * 2.0**-53
        else:
            w = words(5, count + 1)
            u = ((w[::2] >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-31
            v = w[1::2].astype(np.float64) * 2.0**-32
        radius, angle = np.sqrt(-2 * np.log(u)), 2 * np.pi * v
        wanted = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)
        wanted = torch.from_numpy(wanted[:count]).to(dtype)
        tolerance = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3}[dtype]
        self.assertEqual(drawn, wanted, atol=tolerance, rtol=tolerance)


class TestKnownChoices(HologramTestCase):
    """Permutations and categories, of numbers that are known."""

    @parametrize("count", SIZES)
    def test_randperm(self, count):
        torch.hologram.manual_seed(13)
        torch.rand(1, device="hologram")
        drawn = torch.randperm(count, device="hologram")
        keys = long_words(13, count, 1).view(np.int64)
        self.assertEqual(drawn.cpu(), torch.from_numpy(np.argsort(keys, kind="stable")))
        offset = torch.hologram.default_generators[0].get_offset()
        self.assertEqual(offset, 1 + (count + 1) // 2)

    @parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
    @parametrize("shape", [(9,), (7, 5), (3, 2000)])
    def test_without_replacement(self, shape, dtype):
        weights = torch.linspace(0.1, 2, int(np.prod(shape)), dtype=dtype).reshape(shape)
        weights[..., 2] = 0
        drawn = {}
        for count in (1, 3, shape[-1]):
            torch.hologram.manual_seed(14)
            drawn[count] = torch.multinomial(weights.hologram(), count).cpu()
        numel = weights.numel()
        taken = (numel + 3) // 4
        self.assertEqual(torch.hologram.default_generators[0].get_offset(), 2 * taken)
        u = uniform(14, numel).double() + 2.0**-24 * uniform(14, numel, taken).double()
        speeds = weights.double() / -torch.log1p(-u).reshape(shape)
        order = torch.argsort(speeds, -1, descending=True)
        for count, mine in drawn.items():
            self.assertEqual(mine, order[..., :count])

    @parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
    @parametrize("shape", [(9,), (7, 5), (3, 2000)])
    def test_with_replacement(self, shape, dtype):
        weights = torch.linspace(0.1, 2, int(np.prod(shape)), dtype=dtype).reshape(shape)
        weights[..., 2] = weights[..., -1] = 0
        torch.hologram.manual_seed(15)
        drawn = torch.multinomial(weights.hologram(), 301, replacement=True).cpu()
        rows = weights.numel() // shape[-1]
        offset = torch.hologram.default_generators[0].get_offset()
        self.assertEqual(offset, (301 * rows + 1) // 2)
        numbers = (long_words(15, 301 * rows) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        sums = weights.double().cumsum(-1)
        x = torch.from_numpy(numbers).reshape(*shape[:-1], 301) * sums[..., -1:]
        self.assertEqual(drawn, torch.searchsorted(sums, x, right=True))
        self.assertEqual((drawn == 2).sum() + (drawn == shape[-1] - 1).sum(), 0)


def chances(device: str) -> torch.Tensor:
    return torch.linspace(0.05, 0.95, 40, device=device).reshape(5, 8)


P = chances
# Draws whose numbers are made in the program, and by torch's kernels for the CPU.
RECORDED = {
    "rand": lambda d: torch.rand(40, device=d),
    "rand, many": lambda d: torch.rand(100_003, device=d),
    "rand, bfloat16": lambda d: torch.rand(40, device=d, dtype=torch.bfloat16),
    "rand, float64": lambda d: torch.rand(41, device=d, dtype=torch.float64),
    "randn": lambda d: torch.randn(41, device=d),
    "randn, many": lambda d: torch.randn(100_003, device=d),
    "randn, float64": lambda d: torch.randn(41, device=d, dtype=torch.float64),
    "randn, complex": lambda d: torch.randn(20, device=d, dtype=torch.complex64),
    "randint": lambda d: torch.randint(3, 99, (41,), device=d),
    "randint, uint8": lambda d: torch.randint(0, 256, (41,), device=d, dtype=torch.uint8),
    "randint, float": lambda d: torch.randint(3, 99, (41,), device=d, dtype=torch.float32),
    "rand_like": lambda d: torch.rand_like(P(d)),
    "randn_like": lambda d: torch.randn_like(P(d).t()),
    "randint_like": lambda d: torch.randint_like(P(d), 9),
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
    "bernoulli_, broadcast": lambda d: torch.empty(7, 5, 8, device=d).bernoulli_(P(d)),
    "bernoulli_, bool": lambda d: torch.empty(5, 8, device=d, dtype=torch.bool).bernoulli_(P(d)),
    "uniform_": lambda d: P(d).uniform_(-2, 3),
    "uniform_, strided": lambda d: torch.zeros(33, 300, device=d)[:, ::2].uniform_(),
    "exponential_": lambda d: P(d).exponential_(2.0),
    "geometric_": lambda d: P(d).geometric_(0.2),
    "geometric_, integers": lambda d: P(d).long().geometric_(0.2),
    "cauchy_": lambda d: P(d).cauchy_(),
    "log_normal_": lambda d: P(d).log_normal_(),
    "random_": lambda d: P(d).long().random_(),
    "random_, to": lambda d: P(d).random_(77),
    "random_, from": lambda d: P(d).random_(-5, 77),
    "randperm": lambda d: torch.randperm(50, device=d),
    "randperm, many": lambda d: torch.randperm(50_001, device=d),
    "randperm, int16": lambda d: torch.randperm(50, device=d, dtype=torch.int16),
    "randperm, out": lambda d: torch.randperm(50, out=torch.empty(3, 7, device=d).half()),
    "multinomial": lambda d: torch.multinomial(P(d), 3),
    "multinomial, float16": lambda d: torch.multinomial(P(d).half().t(), 3),
    "multinomial, float64": lambda d: torch.multinomial(P(d).double()[::2, ::3], 2),
    "multinomial, one": lambda d: torch.multinomial(P(d), 1, replacement=True),
    "multinomial, many": lambda d: torch.multinomial(P(d).expand(999, 5, 8)[:, 0], 1),
    "multinomial, replacement": lambda d: torch.multinomial(P(d), 30, replacement=True),
    "multinomial, row": lambda d: torch.multinomial(P(d)[1], 300, replacement=True),
    "multinomial, out": lambda d: torch.multinomial(
        P(d), 5, out=torch.zeros(5, 5, dtype=torch.int64, device=d).t()
    ),
    "dropout": lambda d: F.dropout(P(d)),
    "dropout, in place": lambda d: F.dropout(P(d), 0.3, inplace=True),
    "dropout, transposed": lambda d: F.dropout(P(d).t()),
    "native_dropout": lambda d: torch.native_dropout(P(d), 0.3, True),
    "dropout, after softmax": lambda d: F.dropout(torch.rand(37, 300, device=d).softmax(-1)) * 2,
    "alpha_dropout": lambda d: F.alpha_dropout(P(d), training=True),
    "dropout2d": lambda d: F.dropout2d(P(d)[None, :, None], training=True),
    "feature_alpha_dropout": lambda d: F.feature_alpha_dropout(P(d)[None], training=True),
    "gumbel_softmax": lambda d: F.gumbel_softmax(P(d)),
    "kaiming_normal_": lambda d: torch.nn.init.kaiming_normal_(P(d)),
    "trunc_normal_": lambda d: torch.nn.init.trunc_normal_(P(d)),
    "Linear": lambda d: torch.nn.Linear(8, 5, device=d).weight.detach(),
    "Categorical": lambda d: torch.distributions.Categorical(P(d)).sample((4,)),
    "Normal": lambda d: torch.distributions.Normal(P(d), 1.0).sample((3,)),
    "attention": lambda d: F.scaled_dot_product_attention(*[P(d)[None]] * 3, dropout_p=0.4),
}
DELEGATED = {
    "poisson": lambda d: torch.poisson(P(d) * 20),
    "binomial": lambda d: torch.binomial(torch.full((5, 8), 9.0, device=d), P(d)),
    "_standard_gamma": lambda d: torch._standard_gamma(P(d) * 4),
    "_sample_dirichlet": lambda d: torch._sample_dirichlet(P(d)),
    "rrelu": lambda d: F.rrelu(-P(d), training=True),
    "fractional_max_pool2d": lambda d: F.fractional_max_pool2d(P(d)[None], 2, (3, 4)),
    "orthogonal_": lambda d: torch.nn.init.orthogonal_(P(d)),
    "Beta": lambda d: torch.distributions.Beta(P(d), P(d)).sample(),
    "Dirichlet": lambda d: torch.distributions.Dirichlet(P(d)).rsample(),
    "VonMises": lambda d: torch.distributions.VonMises(P(d), P(d) * 4).sample(),
    "StudentT": lambda d: torch.distributions.StudentT(P(d) * 9).sample(),
    "svd_lowrank": lambda d: torch.svd_lowrank(P(d), q=3)[1],
}
DRAWS = {**RECORDED, **DELEGATED}

# The same tensor filled with numbers of a generator.
FILLS = {
    "uniform_": lambda x, g: x.uniform_(generator=g),
    "normal_": lambda x, g: x.normal_(generator=g),
    "exponential_": lambda x, g: x.exponential_(generator=g),
    "geometric_": lambda x, g: x.geometric_(0.3, generator=g),
    "cauchy_": lambda x, g: x.cauchy_(generator=g),
    "log_normal_": lambda x, g: x.log_normal_(generator=g),
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
    def drawn(self, name: str) -> list[torch.Tensor]:
        torch.hologram.manual_seed(7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dropout2d of two dimensions
            return tree_leaves(DRAWS[name]("hologram"))

    def numbers(self, name: str) -> list[torch.Tensor]:
        return [leaf.cpu() for leaf in self.drawn(name)]

    @parametrize("name", list(DRAWS))
    def test_replays(self, name):
        """Equal states give equal numbers, laid out as the CPU's. The CPU draws none."""
        start = torch.get_rng_state()
        mine, state = self.drawn(name), torch.hologram.get_rng_state()
        self.assertEqual(self.numbers(name), [leaf.cpu() for leaf in mine])
        self.assertEqual(torch.hologram.get_rng_state(), state)
        self.assertGreater(torch.hologram.default_generators[0].get_offset(), 0)
        self.assertEqual(torch.get_rng_state(), start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = tree_leaves(DRAWS[name]("cpu"))
        for a, b in zip(mine, wanted, strict=True):
            self.assertEqual((a.shape, a.dtype, a.stride()), (b.shape, b.dtype, b.stride()))

    @parametrize("name", list(DRAWS))
    def test_one_operation_at_a_time(self, name):
        wanted = self.numbers(name)
        with torch.hologram.eager():
            self.assertEqual(self.numbers(name), wanted, atol=0, rtol=0)

    @parametrize("name", list(DRAWS))
    def test_threads(self, name):
        wanted, threads = self.numbers(name), torch.get_num_threads()
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                self.assertEqual(self.numbers(name), wanted, atol=0, rtol=0)
        finally:
            torch.set_num_threads(threads)

    @parametrize("name", list(RECORDED))
    def test_recorded(self, name):
        """No draw is left to torch's kernels."""
        torch.hologram.reset_fallback_report()
        self.numbers(name)
        report = torch.hologram.fallback_report().operators("delegated")
        drawn = ("uniform", "normal", "bernoulli", "random", "dropout", "exponential", "cauchy",
                 "geometric", "randperm", "multinomial")  # fmt: skip
        self.assertEqual([n for n in report if any(d in n for d in drawn)], [])

    @parametrize("name", list(FILLS))
    def test_generators(self, name):
        """A generator of the device, given or not, and replays."""

        def draw(generator):
            x = torch.zeros(9, device="hologram")
            return tree_leaves(FILLS[name](x, generator))[0].cpu()

        own = torch.Generator(device="hologram").manual_seed(3)
        default_state, cpu_state = torch.hologram.get_rng_state(), torch.get_rng_state()
        state = own.get_state()
        wanted, second = draw(own), draw(own)
        own.set_state(state)
        self.assertEqual((draw(own), draw(own)), (wanted, second))
        self.assertEqual(torch.hologram.get_rng_state(), default_state)
        # The default one, named and not.
        torch.hologram.manual_seed(3)
        self.assertEqual(draw(None), wanted)
        torch.hologram.manual_seed(3)
        self.assertEqual(draw(torch.hologram.default_generators[0]), wanted)
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
            assert one.get_offset() == 0
            given = torch.rand(3, device="hologram:1", generator=one).cpu()
            # Each device has a default generator of its own.
            torch.manual_seed(3)
            zero = torch.rand(3, device="hologram:0").cpu()
            assert torch.equal(torch.rand(3, device="hologram:1").cpu(), zero)
            assert torch.equal(given, zero)
            """,
            env=several_devices(2),
        )

    def test_fused(self):
        """A draw has the same numbers beside other operations, rows and folds."""
        x = torch.linspace(-2, 2, 37 * 300, device="hologram").reshape(37, 300)
        vector = torch.arange(300.0, device="hologram")

        def program():
            torch.hologram.manual_seed(1)
            drawn = torch.rand(37, 300, device="hologram")
            scaled = (x + drawn) * vector
            normalized = F.layer_norm(scaled, (300,))
            noise = torch.randn(37, 300, device="hologram") * normalized.sum(1, keepdim=True)
            return [scaled.cpu(), normalized.cpu(), noise.t().contiguous().cpu()]

        with torch.hologram.eager():
            wanted = program()
        self.assertEqual(program(), wanted, atol=0, rtol=0)
        numbers = uniform(1, 37 * 300).reshape(37, 300)
        self.assertEqual((x.cpu() + numbers) * vector.cpu(), wanted[0])

    def test_one_pass(self):
        """A draw is computed with what needs it."""
        x = torch.ones(1000, device="hologram")
        for _ in range(2):
            torch.hologram.synchronize()
            before = torch.hologram.stream_stats()["passes"]
            y = torch.relu(F.dropout(x * 2) + 1)
            torch.hologram.synchronize()
            self.assertEqual(torch.hologram.stream_stats()["passes"], before + 1)
        self.assertEqual(sorted(set(y.tolist())), [1.0, 5.0])

    def test_a_dead_draw_keeps_its_place(self):
        torch.hologram.manual_seed(4)
        torch.rand(8, device="hologram")
        self.assertEqual(torch.rand(8, device="hologram").cpu(), uniform(4, 8, 2))

    def test_order_of_elements(self):
        """In the order of memory where a tensor fills it, else in that of its dimensions."""
        cases = [
            (lambda: torch.empty(6, 8, device="hologram"), lambda u: u.reshape(6, 8)),
            (lambda: torch.empty(8, 6, device="hologram").t(), lambda u: u.reshape(8, 6).t()),
            (lambda: torch.empty(6, 16, device="hologram")[:, ::2], lambda u: u.reshape(6, 8)),
            (lambda: torch.empty(16, 6, device="hologram")[::2].t(), lambda u: u.reshape(6, 8)),
            (
                lambda: torch.empty(1, 3, 4, 4, device="hologram").to(
                    memory_format=torch.channels_last
                ),
                lambda u: u.reshape(1, 4, 4, 3).permute(0, 3, 1, 2),
            ),
        ]
        for make, wanted in cases:
            torch.hologram.manual_seed(9)
            self.assertEqual(make().uniform_().cpu(), wanted(uniform(9, 48)))

    def test_uniform_is_below_its_end(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            for low, high in ((0, 1), (1, 2), (-2, -1), (1000, 1001), (3, 3), (-1, 0)):
                x = torch.empty(50_000, device="hologram", dtype=dtype).uniform_(low, high)
                if low < high and (dtype != torch.bfloat16 or low != 1000):
                    self.assertLess(x.max().item(), high)
                self.assertGreaterEqual(x.min().item(), low)


REFUSED = {
    "normal_": lambda x: x.normal_(0, -1),
    "uniform_": lambda x: x.uniform_(2, 1),
    "uniform_, too far": lambda x: x.uniform_(-3e38, 3e38),
    "log_normal_": lambda x: x.log_normal_(1, 0),
    "exponential_": lambda x: x.exponential_(0),
    "geometric_": lambda x: x.geometric_(1),
    "cauchy_": lambda x: x.cauchy_(0, -1),
    "cauchy_, integers": lambda x: x.long().cauchy_(),
    "bernoulli_": lambda x: x.bernoulli_(1.5),
    "random_": lambda x: x.random_(4, 4),
    "random_, to": lambda x: x.to(torch.uint8).random_(300),
    "random_, half": lambda x: x.half().random_(0, 70000),
    "normal, deviations": lambda x: torch.normal(0.0, x - 2),
    "normal, number": lambda x: torch.normal(x, -1.0),
    "dropout": lambda x: F.dropout(x, 1.5),
    "itself": lambda x: x[:1].expand(5).normal_(),
    "uniform_, integers": lambda x: x.long().uniform_(),
}


def randperm_of(n: int, dtype: torch.dtype | None = None):
    return lambda d: torch.randperm(n, dtype=dtype, device=d)


def multinomial_of(weights, count: int, dtype=torch.float32, **options):
    return lambda d: torch.multinomial(torch.tensor(weights, dtype=dtype).to(d), count, **options)


NO_WEIGHTS = [[[0.0, 0, 0]], [0.0, 0, 0], [-0.0, 0], [[1.0, 2], [0, 0]]]
BAD_WEIGHTS = [*NO_WEIGHTS, [1.0, -1, 3], [[1.0, 1], [-1, 0]], [-1.0, 1], [-2.0, -1]]
BAD_WEIGHTS += [[float(bad), 1, 2] for bad in ("inf", "-inf", "nan")]
REFUSED_CHOICES = {
    "randperm, negative": randperm_of(-1),
    "randperm, negative, out": lambda d: torch.randperm(-3, out=torch.empty(2, device=d)),
    **{
        f"randperm, {n}, {dtype}": randperm_of(n, dtype)
        for n, dtype in (
            (257, torch.uint8),
            (129, torch.int8),
            (2**15 + 1, torch.int16),
            (2050, torch.float16),
            (2**24 + 2, torch.float32),
            (2, torch.bool),
            (2, torch.complex64),
            (2, torch.uint16),
        )
    },
    **{
        f"multinomial, {weights}, {count}, {replacement}, {dtype}": multinomial_of(
            weights, count, dtype, replacement=replacement
        )
        for weights in BAD_WEIGHTS
        for count in (1, 2)
        for replacement in (False, True)
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    },
    "multinomial, too many": multinomial_of([1.0, 2], 3),
    "multinomial, of none": multinomial_of([[], []], 1),
    "multinomial, of none, replacement": multinomial_of([[], []], 2, replacement=True),
    "multinomial, no samples": multinomial_of([1.0, 2], 0),
    "multinomial, negative samples": multinomial_of([1.0, 2], -1, replacement=True),
    "multinomial, no dimension": multinomial_of(1.0, 1),
    "multinomial, three dimensions": multinomial_of([[[1.0, 2]]], 1),
    "multinomial, integers": multinomial_of([1, 2], 1, torch.int64),
    "multinomial, complex": multinomial_of([1, 2], 1, torch.complex64),
    "multinomial, many": lambda d: torch.multinomial(torch.ones(1, device=d).expand(2**24 + 1), 1),
    "multinomial, out": lambda d: torch.multinomial(
        torch.ones(2, device=d), 1, out=torch.empty(1, device=d)
    ),
}


class TestParameters(HologramTestCase):
    """What torch refuses, in its words."""

    @parametrize("name", list(REFUSED_CHOICES))
    def test_refused_choices(self, name):
        for mode in (contextlib.nullcontext, torch.hologram.eager):
            with mode(), self.assertRaises((RuntimeError, NotImplementedError)) as raised:
                REFUSED_CHOICES[name]("hologram").cpu()
            mine = raised.exception

            def compare(device, mine=mine):
                with self.assertRaises((RuntimeError, NotImplementedError)) as wanted:
                    REFUSED_CHOICES[name](device).cpu()
                self.assertIs(type(mine), type(wanted.exception))
                words = str(mine).splitlines()[0].removesuffix(" (multinomial)")
                self.assertEqual(words, str(wanted.exception).splitlines()[0])

            as_torch(compare)
            torch.hologram.synchronize()  # once

    @parametrize("name", list(REFUSED))
    def test_refused(self, name):
        with self.assertRaises((RuntimeError, ValueError)) as wanted:
            REFUSED[name](torch.ones(4))
        with self.assertRaises(type(wanted.exception)) as raised:
            REFUSED[name](torch.ones(4, device="hologram")).cpu()
        words = str(wanted.exception).split("\n")[0].split(" (")[0].replace("_cpu", "")
        self.assertIn(words[:60], str(raised.exception).replace("_cpu", ""))

    def test_probabilities(self):
        """Numbers that are not there yet: the error comes when they are."""
        for bad in (1.5, -0.1, float("nan")):
            p = torch.tensor([0.5, bad, 0.25], device="hologram")
            with self.assertRaisesRegex(RuntimeError, r"p_in >= 0 && p_in <= 1.*bernoulli"):
                torch.bernoulli(p).cpu()
            torch.hologram.synchronize()  # once
        x = torch.full((100,), 2.0, device="hologram")
        self.assertEqual(set((torch.bernoulli(x - 1) + torch.bernoulli(x - 2)).tolist()), {1.0})

    def test_dropout_of_all_and_of_none(self):
        x = torch.tensor([1.0, -2.0, float("inf"), float("nan")], device="hologram")
        for p in (0.0, 1.0):
            for call in (
                lambda x, p=p: F.dropout(x, p),
                lambda x, p=p: torch.native_dropout(x, p, True)[0],
                lambda x, p=p: torch.native_dropout(x, p, True)[1],
                lambda x, p=p: torch.native_dropout(x, p, False)[0],
                lambda x, p=p: torch.native_dropout(x, p, False)[1],
                lambda x, p=p: F.dropout(x, p, training=False),
                lambda x, p=p: F.dropout1d(x[None], p),
            ):
                self.assertEqual(call(x).cpu(), call(x.cpu()))

    def test_mask(self):
        x = torch.rand(40, 50, device="hologram", requires_grad=True)
        for dtype in (torch.float32, torch.bfloat16):
            y, mask = torch.native_dropout(x.to(dtype), 0.25, True)
            self.assertEqual((y.dtype, mask.dtype), (dtype, torch.bool))
            scaled = (x.detach().to(dtype).float() / 0.75).to(dtype)
            self.assertEqual(y, torch.where(mask, scaled, 0))
            (grad,) = torch.autograd.grad(y.sum(), x)
            self.assertEqual(grad, mask.float() * torch.tensor(1 / 0.75, dtype=dtype).item())


CONTINUOUS = {
    "uniform": (lambda x: x.uniform_(-1, 3), stats.uniform(-1, 4)),
    "normal": (lambda x: x.normal_(2, 3), stats.norm(2, 3)),
    "exponential": (lambda x: x.exponential_(0.5), stats.expon(scale=2)),
    "cauchy": (lambda x: x.cauchy_(1, 2), stats.cauchy(1, 2)),
    "log_normal": (lambda x: x.log_normal_(0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
}


class TestDistributions(HologramTestCase):
    """One test of each distribution; seeds are fixed, so these numbers pass or fail for good."""

    N = 100_000

    def numbers(self, fill, dtype=torch.float32) -> np.ndarray:
        torch.hologram.manual_seed(2024)
        return fill(torch.empty(self.N, device="hologram", dtype=dtype)).double().cpu().numpy()

    @parametrize("name", list(CONTINUOUS))
    @parametrize("dtype", [torch.float32, torch.float64])
    def test_continuous(self, name, dtype):
        fill, distribution = CONTINUOUS[name]
        numbers = self.numbers(fill, dtype)
        self.assertTrue(np.isfinite(numbers).all())
        self.assertGreater(stats.kstest(numbers, distribution.cdf).pvalue, 0.01)
        # Neighbours, and elements of one counter, have nothing to do with each other.
        ranks = distribution.cdf(numbers)
        for distance in (1, 2, 4):
            correlation = stats.pearsonr(ranks[distance:], ranks[:-distance])
            self.assertGreater(correlation.pvalue, 0.01)

    @parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half(self, dtype):
        uniform = self.numbers(lambda x: x.uniform_(), dtype)
        counts = np.histogram(uniform, bins=64, range=(0, 1))[0]
        self.assertGreater(stats.chisquare(counts).pvalue, 0.01)
        normal = self.numbers(lambda x: x.normal_(), dtype)
        edges = [-np.inf, *(np.arange(-8, 9) / 4 + 0.001), np.inf]
        counts = np.histogram(normal, bins=edges)[0]
        wanted = np.diff(stats.norm.cdf(edges)) * self.N
        # Rounding moves numbers across edges, by the width of a bin of the dtype at most.
        self.assertLess(np.abs(counts - wanted).max() / self.N, 0.01)
        self.assertGreater(self.numbers(lambda x: x.exponential_(), dtype).min(), 0)

    def whole(self, numbers: np.ndarray, chances: np.ndarray) -> None:
        """Numbers 0, 1 ... of which each is to come with its chance, all others never."""
        counts = np.bincount(numbers.astype(np.int64), minlength=len(chances))
        self.assertEqual(len(counts), len(chances))
        self.assertGreater(stats.chisquare(counts, chances * counts.sum()).pvalue, 0.01)

    def test_bernoulli(self):
        for p in (0.1, 0.5, 0.93):
            chances = np.array([1 - p, p])
            self.whole(self.numbers(lambda x, p=p: x.bernoulli_(p)), chances)
            self.whole(self.numbers(lambda x, p=p: torch.bernoulli(x.fill_(p))), chances)

    def test_dropout(self):
        for p in (0.1, 0.5):
            dropped = self.numbers(lambda x, p=p: F.dropout(x.fill_(1), p))
            self.assertEqual(sorted(set(dropped)), [0, np.float32(1 / (1 - p))])
            self.whole(dropped > 0, np.array([p, 1 - p]))
        planes = F.dropout2d(torch.ones(100, 100, 3, 3, device="hologram"), 0.3).cpu()
        self.assertEqual(planes.amin((2, 3)), planes.amax((2, 3)))
        self.whole(planes[:, :, 0, 0].reshape(-1).numpy() > 0, np.array([0.3, 0.7]))

    def test_geometric(self):
        p = 0.3
        for dtype in (torch.float32, torch.int64):
            numbers = self.numbers(lambda x: x.geometric_(p), dtype)
            self.assertEqual(numbers.min(), 1)
            chances = stats.geom(p).pmf(np.arange(1, 21))
            self.whole(np.minimum(numbers, 21) - 1, np.append(chances, 1 - chances.sum()))

    def test_integers(self):
        for dtype in (torch.int64, torch.int32, torch.uint8, torch.int8, torch.float32):
            fair = np.full(100, 0.01)
            self.whole(self.numbers(lambda x: x.random_(100), dtype), fair)
            if dtype != torch.uint8:
                self.whole(self.numbers(lambda x: x.random_(-20, 80), dtype) + 20, fair)
        self.whole(self.numbers(lambda x: x.random_(), torch.bool), np.full(2, 0.5))
        self.whole(self.numbers(lambda x: x.random_(), torch.uint8), np.full(256, 1 / 256))
        high = self.numbers(lambda x: x.random_(), torch.int64)
        self.assertGreater(stats.kstest(high / 2.0**63, "uniform").pvalue, 0.01)
        high = self.numbers(lambda x: x.random_(-(2**62), 2**62), torch.int64)
        self.assertGreater(stats.kstest(high / 2.0**63 + 0.5, "uniform").pvalue, 0.01)

    def test_randperm(self):
        torch.hologram.manual_seed(6)
        drawn = torch.stack([torch.randperm(4, device="hologram") for _ in range(12_000)]).cpu()
        ranks = {p: i for i, p in enumerate(itertools.permutations(range(4)))}
        self.whole(np.array([ranks[tuple(p)] for p in drawn.tolist()]), np.full(24, 1 / 24))
        drawn = torch.stack([torch.randperm(100, device="hologram") for _ in range(2000)]).cpu()
        self.assertEqual(drawn.sort().values, torch.arange(100).expand(2000, 100))
        for place in (0, 1, 50, 99):
            self.whole(drawn[:, place].numpy(), np.full(100, 0.01))
        # Where a number comes, and what follows it.
        self.whole(drawn.argsort()[:, 7].numpy(), np.full(100, 0.01))
        self.whole(
            ((drawn[:, 1:] - drawn[:, :-1]) % 100).reshape(-1).numpy() - 1, np.full(99, 1 / 99)
        )

    @parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
    def test_multinomial(self, dtype):
        torch.hologram.manual_seed(8)
        weights = torch.tensor([1.0, 0.0, 3.0, 6.0, 0.0], device="hologram", dtype=dtype)
        kept, chances = np.array([0, 9, 1, 2, 9]), np.array([0.1, 0.3, 0.6])
        drawn = torch.multinomial(weights, self.N, replacement=True).cpu().numpy()
        self.whole(kept[drawn], chances)
        rows = weights.expand(20_000, 5)
        for replacement in (False, True):
            one = torch.multinomial(rows, 1, replacement).cpu().numpy()[:, 0]
            self.whole(kept[one], chances)
        twice = kept[torch.multinomial(rows, 2, replacement=True).cpu().numpy()]
        self.whole(3 * twice[:, 0] + twice[:, 1], np.outer(chances, chances).reshape(-1))
        # The second of what the first one left.
        pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
        wanted = [chances[a] * chances[b] / (1 - chances[a]) for a, b in pairs]
        drawn = kept[torch.multinomial(rows, 3).cpu().numpy()]
        first = [pairs.index((a, b)) for a, b in drawn[:, :2].tolist()]
        self.whole(np.array(first), np.array(wanted))
        self.assertEqual(set(drawn.sum(1)), {3})

    def test_many_categories(self):
        """Those of small probability do not come more often, nor do the first of all."""
        torch.hologram.manual_seed(9)
        weights = torch.full((2**21,), 1e-30, device="hologram")
        weights[12345] = 1
        for _ in range(100):
            self.assertEqual(torch.multinomial(weights, 1).item(), 12345)
        self.assertEqual(set(torch.multinomial(weights, 1000, replacement=True).tolist()), {12345})
        even = torch.ones(2**20, device="hologram")
        drawn = torch.stack([torch.multinomial(even, 1) for _ in range(300)]).reshape(-1)
        many = torch.multinomial(even, 50_000)
        self.assertEqual(len(many.unique()), 50_000)
        for numbers in (drawn, many, torch.multinomial(even, 50_000, replacement=True)):
            uniform = (numbers.double().cpu().numpy() + 0.5) / 2**20
            self.assertGreater(stats.kstest(uniform, "uniform").pvalue, 0.01)

    def test_no_choice(self):
        generator = torch.hologram.default_generators[0]
        for n in (0, 1):
            for dtype in (torch.int64, torch.float32, torch.uint8):
                offset = generator.get_offset()
                drawn = torch.randperm(n, device="hologram", dtype=dtype)
                self.assertEqual(drawn.cpu(), torch.arange(n, dtype=dtype))
                self.assertEqual(generator.get_offset() - offset, n)
        for replacement in (False, True):
            none = torch.multinomial(torch.ones(0, 3, device="hologram"), 2, replacement)
            self.assertEqual((none.shape, none.dtype), ((0, 2), torch.int64))
            one = torch.ones(4, 1, device="hologram")
            self.assertEqual(torch.multinomial(one, 1, replacement).tolist(), [[0]] * 4)
        self.assertEqual(torch.multinomial(one, 3, True).tolist(), [[0] * 3] * 4)
        weights = torch.tensor([0.0, 5.0, 0.0], device="hologram")
        self.assertEqual(set(torch.multinomial(weights, 1000, True).tolist()), {1})
        self.assertEqual(torch.multinomial(weights, 3)[0].item(), 1)


class TestRandom(SeveralDevicesTestCase):
    def draw(self) -> list[list[float]]:
        return [torch.rand(4, device=device).tolist() for device in (ZERO, ONE)]

    def test_seeds(self):
        for seed in (torch.manual_seed, hologram.manual_seed_all):
            seed(7)
            zero, one = self.draw()
            self.assertEqual(zero, one)
            self.assertEqual(zero, uniform(7, 4).tolist())
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
        wanted = uniform(3, 4)
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


instantiate_parametrized_tests(TestKnownAnswers)
instantiate_parametrized_tests(TestKnownChoices)
instantiate_parametrized_tests(TestRandomNumbers)
instantiate_parametrized_tests(TestParameters)
instantiate_parametrized_tests(TestDistributions)
TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__)

if __name__ == "__main__":
    run_tests()
