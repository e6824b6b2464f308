"""Programs that come again on the CUDA backend, without a GPU: one graph of the driver each."""

from __future__ import annotations

import re
import textwrap

from common import HologramTestCase, run_python
from cuda_driver import LATE, build_driver, run_on_cuda
from sim_device import PRELUDE
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

# Without graphs of single kernels, so that the numbers of faults are those of replays.
WITHOUT_LAUNCHER = {"HOLOGRAM_TEST_CUDA_VERSION": 12040}

START = """
def replays():
    torch.hologram.flush()
    stats = torch.hologram.stream_stats()
    return tuple(stats[f"replays.{name}"] for name in ("made", "launched", "updated", "failed"))

def chain(x, number=2.0):
    '''Three passes, with a product between them.'''
    y = torch.addmm(x[0], x * number, x.sigmoid() + 1)
    return (y.softmax(1) + x).cumsum(0)

def by_hand(x, number=2.0):
    return chain(x.cpu(), number)

torch.manual_seed(0)
x = torch.randn(6, 6, device="hologram")
expected = by_hand(x)

def check(number=2.0, expected=expected, x=x):
    torch.testing.assert_close(chain(x, number).cpu(), expected)
"""

# Trains, and says the bits of what came out.
TRAINING = """
import hashlib
nn = torch.nn
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.ReLU(),
                      nn.Linear(8, 3)).to("hologram")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=16)
x, y = torch.randn(5, 6).to("hologram"), torch.randint(3, (5,)).to("hologram")
held = []
for step in range(16):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 4 == 3:
        loss.item()
    if step in (6, 9):  # from here on there is other memory
        held.append(torch.randn(5, 8, device="hologram"))
    x.add_(0.1)
print(hashlib.sha256(b"".join(
    p.detach().cpu().numpy().tobytes() for p in [*model.parameters(), loss])).hexdigest())
print(torch.hologram.stream_stats()["replays.launched"])
"""


def run_replayed(program: str, **env: object) -> str:
    return run_on_cuda(START + textwrap.dedent(program), **env)


class TestReplays(HologramTestCase):
    def test_what_comes_again_is_one_launch(self):
        run_replayed(
            """
            import ctypes
            def step():
                global result
                result = chain(x)
                torch.hologram.flush()
            for _ in range(14):
                step()
            made, launched, updated, failed = replays()
            calls = ctypes.CDLL("libcuda.so.1").simulated_cuda_calls
            before = calls(b"cuLaunchKernel"), calls(b"cuGraphLaunch")
            for _ in range(5):
                step()
            assert calls(b"cuLaunchKernel") == before[0]
            assert calls(b"cuGraphLaunch") == before[1] + 5
            assert replays()[:2] == (made, launched + 5) and failed == 0
            check()
            """
        )

    def test_numbers_change(self):
        run_replayed(
            """
            for number in range(24):
                check(float(number), by_hand(x, float(number)))
            made, launched, updated, failed = replays()
            assert made == 1 and launched > 12 and failed == 0, replays()
            assert updated >= launched - 1, replays()
            """
        )

    def test_values_change(self):
        run_replayed(
            """
            for _ in range(10):
                x.normal_()
                check(expected=by_hand(x))
            assert replays()[1] > 5, replays()
            """,
            **LATE,
        )

    def test_addresses_change(self):
        """Of what pointwise passes read and write: they are set in the graph."""
        run_replayed(
            """
            def passes(x):
                return ((x * 2).cumsum(0) + 1).softmax(1).cumsum(1)
            others = [torch.randn(6, 6, device="hologram") for _ in range(24)]
            kept = []
            for other in others:
                kept.append(passes(other))
                torch.hologram.flush()
            for other, result in zip(others, kept, strict=True):
                torch.testing.assert_close(result.cpu(), passes(other.cpu()))
            made, launched, updated, failed = replays()
            assert made == 1 and launched > 12 and updated >= launched and failed == 0, replays()
            """
        )

    def test_addresses_of_products_change(self):
        """They take turns: each has its graph; if they are new each time, there is none."""
        run_replayed(
            """
            pair = [x, torch.randn(6, 6, device="hologram")]
            wanted = [by_hand(x) for x in pair]
            for turn in range(12):
                check(expected=wanted[turn % 2], x=pair[turn % 2])
            made, launched, *_ = replays()
            assert made == 2 and launched >= 6, replays()
            others = [torch.randn(6, 6, device="hologram") for _ in range(40)]
            results = [chain(other) for other in others]
            for other, result in zip(others, results, strict=True):
                torch.testing.assert_close(result.cpu(), by_hand(other))
            assert replays()[0] == 2
            for turn in range(8):
                check(expected=wanted[turn % 2], x=pair[turn % 2])
            """
        )

    def test_some_come_again_later_than_others(self):
        """Graphs of the one do not keep the others from becoming graphs."""
        run_replayed(
            """
            often, *others = (torch.randn(6, 6, device="hologram") for _ in range(4))
            for _ in range(6):
                check(expected=by_hand(often), x=often)
            assert replays()[0] == 1, replays()
            for turn in range(9):
                other = others[turn % 3]
                check(expected=by_hand(other), x=other)
                check(expected=by_hand(often), x=often)
            assert replays()[0] == 4, replays()
            """
        )

    def test_many_graphs(self):
        """The one that was launched longest ago goes."""
        run_replayed(
            """
            others = [torch.randn(6, 6, device="hologram") for _ in range(270)]
            for other in others:
                for _ in range(12):
                    result = chain(other)
                    torch.hologram.flush()
            assert replays()[0] > 256, replays()
            check(), check(), check(), check()
            """
        )

    def test_tables_of_addresses(self):
        """An optimizer's, for parameters that stay where they are."""
        run_replayed(
            """
            def train(device):
                torch.manual_seed(3)
                parameters = [torch.randn(5, device=device if device == "cpu" else None).to(device)
                              .requires_grad_() for _ in range(9)]
                optimizer = torch.optim.Adam(parameters, lr=0.1, fused=True)
                for p in parameters:
                    p.grad = torch.ones(5, device=device)
                for step in range(16):
                    for p in parameters:
                        p.grad.mul_(0.5).add_(p.detach())
                    optimizer.step()
                    if device != "cpu":
                        torch.hologram.flush()
                return [p.detach().cpu() for p in parameters]
            for mine, theirs in zip(train("hologram"), train("cpu"), strict=True):
                torch.testing.assert_close(mine, theirs)
            assert replays()[1] > 0, replays()
            """
        )

    def test_a_profiler_sees_kernels(self):
        run_replayed(
            """
            for _ in range(4):
                check()
            before = replays()
            with torch.profiler.profile():
                check()
                check()
            assert replays() == before
            check()
            assert replays()[1] > before[1]
            """
        )

    def test_streams_and_threads(self):
        run_replayed(
            """
            def work(number):
                with torch.hologram.stream(torch.hologram.Stream()):
                    y = torch.full((6, 6), float(number), device="hologram")
                    wanted = by_hand(y)
                    for _ in range(12):
                        check(expected=wanted, x=y)
            in_threads(work, 4)
            assert replays()[1] > 0 and replays()[3] == 0, replays()
            """,
            **LATE,
        )

    def test_switched_off(self):
        run_replayed(
            """
            for _ in range(5):
                check()
            assert replays() == (0, 0, 0, 0)
            """,
            HOLOGRAM_REPLAY=0,
        )

    def test_training_has_the_same_bits(self):
        with_replays, launched = run_on_cuda(TRAINING).split()
        without, none = run_on_cuda(TRAINING, HOLOGRAM_REPLAY=0).split()
        self.assertEqual(with_replays, without)
        self.assertGreater(int(launched), 3)
        self.assertEqual(none, "0")


class TestFaults(HologramTestCase):
    """Same results, one warning that names the program, a counter, and the next one succeeds."""

    @parametrize(
        "fault,what,status",
        [
            ("NO_CAPTURE", "the capture of its launches", "STREAM_CAPTURE_INVALIDATED"),
            ("NO_INSTANCE", "cuGraphInstantiate", "OUT_OF_MEMORY"),
            ("NO_REPLAY", "cuGraphLaunch", "OUT_OF_MEMORY"),
            ("NO_UPDATE", "cuGraphExecKernelNodeSetParams", "GRAPH_EXEC_UPDATE_FAILURE"),
        ],
    )
    def test_the_driver_refuses(self, fault, what, status):
        program = """
        for number in range(24):
            check(float(number), by_hand(x, float(number)))
        assert replays()[3] == 2, replays()
        assert replays()[1] > 3, replays()
        """
        variables = {"HOLOGRAM_BACKENDS": "cuda", **build_driver()}
        variables |= {name: str(value) for name, value in WITHOUT_LAUNCHER.items()}
        variables[f"HOLOGRAM_TEST_CUDA_{fault}"] = "1,2"
        said = run_python(PRELUDE + START + textwrap.dedent(program), env=variables).stderr
        warnings = re.findall(r"torch_hologram: a program cannot be replayed.*", said)
        self.assertEqual(len(warnings), 1, said)
        self.assertIn(f"{what} failed", warnings[0])
        self.assertIn(f"CUDA_ERROR_{status}", warnings[0])
        self.assertIn("its passes: mul", warnings[0])

    def test_a_kernel_of_a_graph_that_fails(self):
        """The device is lost, as it is when a launched one fails."""
        run_replayed(
            """
            for _ in range(8):
                result = chain(x)
                torch.hologram.flush()
            assert replays()[1] > 0, replays()
            text = message(lambda: [chain(x).cpu() for _ in range(40)],
                           torch.AcceleratorError)
            assert "an illegal memory access was encountered" in text, text
            assert "The device cannot be used any more by this process" in text, text
            """,
            HOLOGRAM_TEST_CUDA_ILLEGAL_LAUNCH=90,
        )


instantiate_parametrized_tests(TestFaults)

if __name__ == "__main__":
    run_tests()
