"""Generators: seeding, states, reproducibility."""

from __future__ import annotations

import torch
from common import FORK_RNG_MEANS_THE_ACCELERATOR, HologramTestCase, run_python
from torch.testing._internal.common_utils import run_tests


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


if __name__ == "__main__":
    run_tests()
