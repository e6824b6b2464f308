"""Backends outside the package: the simulated device of test/sim, and libraries that are none."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap

from common import ROOT, HologramTestCase, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

FOLDER = ROOT / "build" / "sim"


def build_sim() -> str:
    """The folder of the simulated device's library, which is brought up to date."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes that share the tests
        done = subprocess.run(
            ["make", "-s", "build/sim/libhologram_sim.so"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return str(FOLDER)


# Values that the queue works on for some time.
PRELUDE = """
import torch
def submit_additions(x, times):
    for _ in range(times):
        x = x + 1
        torch.hologram.flush()
    return x
"""


def run_on_sim(program: str, backends: str = "sim", **env: object) -> str:
    """What the program prints where `backends` are the devices."""
    variables = {"HOLOGRAM_BACKENDS": backends, "HOLOGRAM_BACKEND_PATH": build_sim()}
    variables |= {name: str(value) for name, value in env.items()}
    return run_python(PRELUDE + textwrap.dedent(program), env=variables).stdout


# Each task of a queue takes up to so many microseconds: long enough to see what does not wait.
LATE = {"HOLOGRAM_TEST_SIM_DELAY": 20_000}


class TestSimulatedDevice(HologramTestCase):
    def test_two_devices(self):
        run_on_sim(
            """
            import torch
            assert torch.hologram.device_count() == 2
            for index in range(2):
                properties = torch.hologram.get_device_properties(index)
                assert (properties.backend, properties.name) == ("sim", f"simulated device {index}")
            x = torch.randn(1000, device="hologram:1")
            y = x.to("hologram:0") * 2
            assert y.device.index == 0
            assert torch.equal(y.cpu(), x.cpu() * 2)
            try:
                torch.ones(1, device="hologram:2")
            except RuntimeError as error:
                assert "index 2 is out of range: 2 device(s)" in str(error), error
            else:
                raise AssertionError
            """
        )

    def test_beside_the_cpu(self):
        run_on_sim(
            """
            import torch
            names = [torch.hologram.get_device_properties(i).backend for i in range(3)]
            assert names == ["cpu", "sim", "sim"], names
            torch.manual_seed(0)
            x, w = torch.randn(64, 32), torch.randn(32, 16)
            results = []
            for index in range(3):
                a, b = (t.to(f"hologram:{index}").requires_grad_() for t in (x, w))
                loss = torch.nn.functional.gelu(a @ b + 1).mul(0.5).square().mean()
                loss.backward()
                results.append([loss.detach().cpu(), a.grad.cpu(), b.grad.cpu()])
            for other in results[1:]:
                assert all(torch.equal(p, q) for p, q in zip(results[0], other))
            """,
            backends="cpu,sim",
        )

    def test_a_state_of_random_numbers_is_of_no_backend(self):
        run_on_sim(
            """
            import torch
            def draw(device, generator=None):
                shape, where = (1001,), dict(device=device, generator=generator)
                parts = [torch.randn(1, **where), torch.rand(shape, **where)]
                return torch.cat(parts + [torch.randn(shape, **where)]).cpu()

            torch.manual_seed(3)
            draw("hologram:1")
            state = torch.hologram.get_rng_state(1)
            expected = draw("hologram:1")
            for generator in (None, torch.Generator("hologram:0"), torch.Generator("cpu")):
                if generator is None:
                    torch.hologram.set_rng_state(state, 0)
                else:
                    generator.set_state(state)
                device = "hologram:0" if generator is None else generator.device
                assert torch.equal(draw(device, generator), expected), device
                if generator is not None:
                    copy = generator.clone_state()
                    assert torch.equal(copy.get_state(), generator.get_state())
                    assert torch.equal(draw(device, copy), draw(device, generator))
            """,
            backends="cpu,sim",
        )

    def test_nothing_waits_before_the_host_looks(self):
        run_on_sim(
            """
            import time, torch
            x = torch.ones(1000, device="hologram")
            torch.hologram.synchronize()
            start = time.perf_counter()
            event = torch.hologram.Event(enable_timing=True)
            x = submit_additions(x, 20)
            event.record()
            submitted = time.perf_counter() - start
            assert not event.query()
            assert not torch.hologram.current_stream().query()
            assert x[5].item() == 21
            read = time.perf_counter() - start
            assert submitted < read / 2, (submitted, read)
            torch.hologram.synchronize()
            assert event.query() and torch.hologram.current_stream().query()
            """,
            **LATE,
        )

    def test_events_take_the_time_of_the_queue(self):
        run_on_sim(
            """
            import time, torch
            first, last, never = (torch.hologram.Event(enable_timing=True) for _ in range(3))
            x = torch.ones(10, device="hologram")
            torch.hologram.synchronize()
            first.record()
            x = submit_additions(x, 10)
            last.record()
            try:
                first.elapsed_time(last)
            except RuntimeError as error:
                assert "must be completed" in str(error), error
            else:
                raise AssertionError("nobody has waited")
            last.synchronize()
            elapsed = first.elapsed_time(last)  # of ten tasks, each late by 10 ms on average
            assert 20 < elapsed < 400, elapsed
            assert last.elapsed_time(first) == -elapsed
            """,
            **LATE,
        )

    def test_another_device_waits_for_an_event(self):
        run_on_sim(
            """
            import torch
            slow = submit_additions(torch.zeros(100, device="hologram:0"), 5)
            event = torch.hologram.Event()
            event.record()
            with torch.hologram.device(1):
                event.wait()
                fast = torch.ones(100, device="hologram:1") * 2
                torch.hologram.synchronize(1)
            assert event.query()
            assert fast.sum().item() == 200 and slow.sum().item() == 500
            """,
            **LATE,
        )

    def test_memory_is_freed_while_it_is_used(self):
        run_on_sim(
            """
            import torch
            expected = torch.arange(5000.0)
            held = []
            for step in range(200):
                x = torch.arange(5000.0, device="hologram")  # written by the host
                y = x * 2
                torch.hologram.flush()
                del x                                        # while the queue reads it
                z = torch.full((5000,), float(step))
                held.append(z.to("hologram"))                # the host writes to what came back
                held[-1] += y
            for step, z in enumerate(held):
                assert torch.equal(z.cpu(), expected * 2 + step), step
            """,
            HOLOGRAM_TEST_SIM_DELAY=500,
        )

    def test_memory_of_a_loop_stays_flat(self):
        out = run_on_sim(
            """
            import torch
            x = torch.ones(1 << 16, device="hologram")
            reserved = []
            for step in range(300):
                x = (x * 1.5 + 1) / 2
                torch.hologram.flush()
                if step in (20, 299):
                    reserved.append(torch.hologram.memory_reserved())
            print(*reserved)
            torch.hologram.empty_cache()
            assert abs(x[0].item() - 2) < 1e-3  # the fixed point
            """,
            HOLOGRAM_TEST_SIM_DELAY=2000,
        )
        early, late = map(int, out.split())
        self.assertEqual(early, late)

    def test_bytes_seen_from_outside_are_there(self):
        run_on_sim(
            """
            import torch
            x = torch.zeros(1000, device="hologram")
            assert x.__dlpack_device__() == (1, 0)  # kDLCPU
            seen = torch.from_dlpack(x)
            for step in range(5):
                x += 1
                assert seen[7].item() == step + 1
            """,
            HOLOGRAM_TEST_SIM_MEMORY="host",
            **LATE,
        )

    @parametrize("end", ["pass", "os._exit(0)", "sys.exit(0)"])
    def test_exit_with_work_in_flight(self, end):
        run_on_sim(
            f"""
            import os, sys, torch
            x = torch.ones(1000, device="hologram")
            x = submit_additions(x, 20)
            {end}
            """,
            **LATE,
        )

    def test_fork_with_work_in_flight(self):
        run_on_sim(
            """
            import os, torch
            x = torch.ones(1000, device="hologram")
            x = submit_additions(x, 5)
            child = os.fork()
            if child == 0:
                try:
                    x + 1
                except RuntimeError as error:
                    os._exit(0 if "fork" in str(error) else 1)
                os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
            assert x[3].item() == 6
            """,
            **LATE,
        )


class TestStreamsOfTheSimulatedDevice(HologramTestCase):
    """Each stream has a queue of its own."""

    def test_random_programs_equal_the_cpus(self):
        run_on_sim(
            """
            import random
            streams = [torch.hologram.default_stream(), torch.hologram.Stream()]
            streams.append(torch.hologram.Stream(priority=-1))
            for seed in range(300):
                choose = random.Random(seed)
                size = choose.choice((7, 4000, 40_000))
                pairs = []  # a tensor of the CPU and what has to equal it
                def make():
                    x = torch.randint(0, 100, (size,), dtype=torch.float32)
                    pairs.append([x, x.to("hologram")])
                for _ in range(3):
                    make()
                waits = choose.random() < 0.5
                for step in range(choose.randrange(10, 50)):
                    a, b = choose.choice(pairs), choose.choice(pairs)
                    stream = choose.choice(streams)
                    kind = choose.randrange(10)
                    with torch.hologram.stream(stream):
                        if kind == 0:
                            make()
                        elif kind == 1 and len(pairs) > 2:
                            pairs.pop(choose.randrange(len(pairs)))
                        elif kind == 2:
                            assert torch.equal(a[0], a[1].cpu()), (seed, step)
                        elif kind == 3:
                            for x in a:
                                x[: size // 2].sub_(3)
                        elif kind == 4:
                            for x, y in zip(a, b):
                                x.mul_(0.5).add_(y)
                        elif kind == 5:  # a kernel of torch's
                            pairs.append([torch.flip(x, (0,)) for x in a])
                        elif kind == 6:
                            torch.hologram.flush()
                        else:
                            pairs.append([torch.maximum(x + 1, y) - y for x, y in zip(a, b)])
                    if waits:
                        choose.choice(streams).wait_stream(stream)
                    del a, b
                for x, y in pairs:
                    assert torch.equal(x, y.cpu()), seed
            """,
            HOLOGRAM_TEST_SIM_DELAY=200,
        )

    def test_work_overlaps(self):
        run_on_sim(
            """
            def event():
                return torch.hologram.Event(enable_timing=True)
            marks = []
            for stream in (torch.hologram.Stream(), torch.hologram.Stream()):
                with torch.hologram.stream(stream):
                    x = torch.zeros(100, device="hologram")
                    start, end = event(), event()
                    start.record()
                    x = submit_additions(x, 10)
                    end.record()
                    marks.append((start, end, x))
            torch.hologram.synchronize()
            (start, end, x), (another_start, another_end, y) = marks
            # Neither begins after the other one's end.
            assert start.elapsed_time(another_end) > 0
            assert another_start.elapsed_time(end) > 0
            assert x.sum().item() == y.sum().item() == 1000
            """,
            **LATE,
        )

    def test_priorities_reach_the_queues(self):
        run_on_sim(
            """
            import ctypes, os
            sim = ctypes.CDLL(os.environ["HOLOGRAM_BACKEND_PATH"] + "/libhologram_sim.so")
            for priority, urgent in ((0, 0), (-1, 1), (0, 1), (-1, 2)):
                with torch.hologram.stream(torch.hologram.Stream(priority=priority)):
                    assert torch.ones(3, device="hologram").add(1).tolist() == [2, 2, 2]
                assert sim.sim_urgent_queues() == urgent, (priority, urgent)
            """
        )

    def test_a_stream_waits_for_anothers_event(self):
        run_on_sim(
            """
            side = torch.hologram.Stream()
            done, later = (torch.hologram.Event(enable_timing=True) for _ in range(2))
            never = torch.hologram.Event()
            never.wait(side)  # was not recorded: nothing to wait for
            assert never.query() and side.query()
            x = submit_additions(torch.zeros(10, device="hologram"), 5)
            done.record()
            side.wait_event(done)
            later.record(side)
            assert not later.query()
            later.synchronize()
            assert done.query()
            assert done.elapsed_time(later) >= 0
            assert x.sum().item() == 50
            """,
            **LATE,
        )

    def test_one_stream_is_synchronized_alone(self):
        run_on_sim(
            """
            slow, quick, unused = (torch.hologram.Stream() for _ in range(3))
            with torch.hologram.stream(slow):
                x = submit_additions(torch.zeros(10, device="hologram"), 20)
                x = x + 1  # recorded
            with torch.hologram.stream(quick):
                y = torch.ones(10, device="hologram") * 2
            assert unused.query()
            unused.synchronize()
            quick.synchronize()
            assert quick.query() and not slow.query()
            assert y.sum().item() == 20
            assert not slow.query()
            slow.synchronize()
            assert slow.query()
            assert x.sum().item() == 210
            torch.hologram.synchronize()
            """,
            **LATE,
        )

    @parametrize("size", [10, 5000, 1 << 20])
    def test_memory_is_freed_while_another_stream_uses_it(self, size):
        run_on_sim(
            f"""
            side = torch.hologram.Stream()
            one = torch.ones({size}, device="hologram")
            x = one * 3
            torch.hologram.synchronize()
            with torch.hologram.stream(side):
                slow = submit_additions(one, 4)
                y = slow + x
                torch.hologram.flush()
            del x
            others = [torch.full(({size},), 7.0, device="hologram") for _ in range(8)]
            torch.hologram.flush()
            assert not side.query()
            assert torch.equal(y.cpu(), torch.full(({size},), 8.0))
            for other in others:
                assert torch.equal(other.cpu(), torch.full(({size},), 7.0))
            """,
            **LATE,
        )

    def test_memory_of_several_streams_stays_flat(self):
        out = run_on_sim(
            """
            streams = [torch.hologram.Stream() for _ in range(3)]
            values = [torch.ones(1 << 16, device="hologram") for _ in streams]
            reserved = []
            for step in range(200):
                for i, stream in enumerate(streams):
                    with torch.hologram.stream(stream):
                        values[i] = (values[i] * 1.5 + 1) / 2
                        torch.hologram.flush()
                if step in (20, 199):
                    reserved.append(torch.hologram.memory_reserved())
            print(*reserved)
            torch.hologram.empty_cache()
            for x in values:
                assert abs(x[0].item() - 2) < 1e-3  # the fixed point
            """,
            HOLOGRAM_TEST_SIM_DELAY=1000,
        )
        early, late = map(int, out.split())
        self.assertEqual(early, late)

    def test_allocation_on_a_side_stream(self):
        run_on_sim(
            """
            side = torch.hologram.Stream()
            x = submit_additions(torch.zeros(10, device="hologram"), 5)
            for size in (10, 5000):
                y = torch.ones(size, device="hologram") * 2  # freed while the queue uses it
                torch.hologram.flush()
                del y
                with torch.hologram.stream(side):
                    z = torch.full((size,), 3.0, device="hologram")
                    w = torch.empty(size, device="hologram").fill_(4)
                    side.synchronize()
                    assert not torch.hologram.default_stream().query()
                    assert (z + w).sum().item() == 7 * size
            assert x.sum().item() == 50
            """,
            # So late that what the other stream does meanwhile ends before, on a busy machine too.
            **{**LATE, "HOLOGRAM_TEST_SIM_DELAY": "200000"},
        )

    @parametrize("size", [10, 5000, 1 << 20])
    def test_record_stream(self, size):
        run_on_sim(
            f"""
            def address_again(recorded):
                side, another = torch.hologram.Stream(), torch.hologram.Stream()
                with torch.hologram.stream(side):
                    slow = submit_additions(torch.zeros(4096, device="hologram"), 4)
                    slow = slow + 1  # recorded: is submitted when x is freed
                with torch.hologram.stream(another):
                    quick = torch.zeros(4096, device="hologram") + 1
                x = torch.empty({size}, device="hologram")
                address = x.data_ptr()
                if recorded:
                    x.record_stream(another)
                    x.record_stream(side)
                    x.record_stream(side)
                allocated = torch.hologram.memory_allocated()
                del x
                assert torch.hologram.memory_allocated() < allocated
                y = torch.empty({size}, device="hologram")
                again = y.data_ptr() == address
                assert not side.query()
                side.synchronize()
                del y
                held = [torch.empty({size}, device="hologram") for _ in range(8)]
                held_again = any(z.data_ptr() == address for z in held)
                assert slow.mean().item() == 5 and quick.mean().item() == 1
                return again, held_again
            assert address_again(False) == (True, True)
            assert address_again(True) == (False, True)
            """,
            **LATE,
        )

    def test_record_stream_of_a_view_on_another_device(self):
        run_on_sim(
            """
            x = torch.ones(100, device="hologram:0")
            stream = torch.hologram.Stream(1)
            with torch.hologram.stream(stream):
                y = submit_additions(torch.zeros(10, device="hologram:1"), 4)
            x[3:].record_stream(stream)
            del x
            torch.hologram.empty_cache()  # what is unmapped is waited for
            assert stream.query()
            try:
                y.record_stream(torch.hologram.Stream(stream_id=12345, device_index=1,
                                                      device_type=stream.device_type))
            except RuntimeError as error:
                assert "hologram:1 has no stream with id 12345" in str(error), error
            else:
                raise AssertionError
            """,
            **LATE,
        )

    def test_statistics_and_explanations_are_of_all_streams(self):
        run_on_sim(
            """
            streams = [torch.hologram.default_stream(), torch.hologram.Stream()]
            x = torch.ones(100, device="hologram")
            torch.hologram.synchronize()
            torch.hologram.reset_stream_stats()
            def both():
                results = []
                for stream in streams + [torch.hologram.Stream()]:
                    with torch.hologram.stream(stream):
                        results.append(torch.ones(100, device="hologram") * 2 + 1)
                with torch.hologram.stream(streams[1]):
                    return results[0] + results[1]
            y = both()
            counts = torch.hologram.stream_stats()
            assert counts["recorded"] == 10, counts
            assert counts["flushes.stream"] == 1 and counts["executed"] == 3, counts
            torch.hologram.flush()
            counts = torch.hologram.stream_stats()
            assert counts["executed"] == 10 and counts["failed"] == 0, counts
            assert counts["flushes.user"] == 2, counts
            assert y.sum().item() == 600
            torch.hologram.reset_stream_stats()
            assert torch.hologram.stream_stats()["executed"] == 0
            explained = torch.hologram.explain(both)
            assert [f.reason for f in explained.flushes] == ["stream", "end", "end"], explained
            assert explained.instructions == 10, explained
            """,
            **LATE,
        )

    def test_gradients_of_several_streams(self):
        run_on_sim(
            """
            torch.manual_seed(0)
            first, second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 8)
            x = torch.randn(16, 32)
            def gradients(device, streams):
                parameters = [p.detach().to(device).requires_grad_()
                              for m in (first, second) for p in m.parameters()]
                y = x.to(device)
                with streams[0]:
                    y = torch.relu(y @ parameters[0].t() + parameters[1]) * 2
                streams[1].wait_stream(streams[0])
                with streams[1]:
                    y = (y @ parameters[2].t() + parameters[3]).square().mean()
                y.backward()
                return [p.grad.cpu() for p in parameters]
            default = torch.hologram.default_stream()
            expected = gradients("hologram", [default, default])
            for _ in range(5):
                streams = [torch.hologram.Stream(), torch.hologram.Stream()]
                for mine, theirs in zip(gradients("hologram", streams), expected):
                    assert torch.equal(mine, theirs)
            """,
            HOLOGRAM_TEST_SIM_DELAY=1000,
        )

    @parametrize("end", ["pass", "os._exit(0)", "sys.exit(0)"])
    def test_exit_with_work_in_flight_on_several_streams(self, end):
        run_on_sim(
            f"""
            import os, sys
            values = []
            for _ in range(4):
                with torch.hologram.stream(torch.hologram.Stream()):
                    values.append(submit_additions(torch.ones(1000, device="hologram"), 5))
                    values.append(values[-1] + 1)
            {end}
            """,
            **LATE,
        )

    def test_fork_with_work_in_flight_on_several_streams(self):
        run_on_sim(
            """
            import os
            values = []
            for _ in range(4):
                with torch.hologram.stream(torch.hologram.Stream()):
                    x = submit_additions(torch.ones(1000, device="hologram"), 3)
                    values.append(x + 1)
                    used = torch.empty(1000, device="hologram")
                    used.record_stream(torch.hologram.current_stream())
            child = os.fork()
            if child == 0:
                del used, x  # is still allowed
                try:
                    values[0] + 1
                except RuntimeError as error:
                    os._exit(0 if "fork" in str(error) else 1)
                os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
            assert [x[3].item() for x in values] == [5] * 4
            """,
            **LATE,
        )

    def test_threads_with_streams_of_their_own(self):
        run_on_sim(
            """
            import threading
            shared = torch.arange(1000.0, device="hologram")
            errors = []
            def work(number):
                try:
                    with torch.hologram.stream(torch.hologram.Stream()):
                        mine = torch.zeros(1000, device="hologram")
                        for step in range(100):
                            mine = (mine + shared * number) * 0.5
                            if step % 30 == number:
                                torch.hologram.current_stream().synchronize()
                    expected = torch.zeros(1000)
                    for step in range(100):
                        expected = (expected + torch.arange(1000.0) * number) * 0.5
                    assert torch.equal(mine.cpu(), expected), number
                except BaseException as error:
                    errors.append(error)
            threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not errors, errors
            assert shared.sum().item() == 499500
            """,
            HOLOGRAM_TEST_SIM_DELAY=100,
        )

    def test_an_out_of_memory_looks_at_all_streams(self):
        run_on_sim(
            """
            streams = [torch.hologram.Stream() for _ in range(3)]
            megabytes = 1 << 18
            for step in range(30):
                with torch.hologram.stream(streams[step % 3]):
                    x = torch.ones(8 * megabytes, device="hologram")
                    y = x * 2  # keeps x's memory until it is flushed
                    del x
                    assert y[0].item() == 2
                    del y
            waiting = []
            for stream in streams:
                with torch.hologram.stream(stream):
                    x = torch.ones(8 * megabytes, device="hologram")
                    torch.hologram.flush()
                    waiting.append(x.sum())
                    small = torch.zeros(10, device="hologram")
                    small += x[:10]
                    waiting.append(small)
                    del x  # recorded instructions keep it
            x = torch.empty(32 * megabytes, device="hologram")
            assert [w.sum().item() for w in waiting[1::2]] == [10] * 3
            try:
                torch.empty(64 * megabytes, device="hologram")
            except torch.OutOfMemoryError:
                pass
            else:
                raise AssertionError
            """,
            HOLOGRAM_TEST_SIM_DELAY=2000,
            HOLOGRAM_MEMORY_LIMIT="48M",
        )


class TestMemoryOfItsOwn(HologramTestCase):
    """Memory that the host cannot touch: torch's CPU kernels run on copies."""

    def test_the_host_faults(self):
        variables = {"HOLOGRAM_BACKENDS": "sim", "HOLOGRAM_BACKEND_PATH": build_sim()}
        # AddressSanitizer would report the fault in place of the signal.
        options = [os.environ.get("ASAN_OPTIONS", ""), "handle_segv=0"]
        variables["ASAN_OPTIONS"] = ":".join(filter(None, options))
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "import ctypes, torch; x = torch.ones(8, device='hologram'); "
                "ctypes.c_float.from_address(x.data_ptr()).value",
            ],
            env=os.environ | variables,
            capture_output=True,
            check=False,
        )
        self.assertEqual(done.returncode, -signal.SIGSEGV, done.stderr)

    def test_calls_count_as_copied(self):
        run_on_sim(
            """
            import torch
            x = torch.randn(40, 30)
            y = x.to("hologram")
            torch.hologram.reset_fallback_report()
            for name in ("sort", "argmax", "cumsum", "svd", "unique"):
                options = (0,) if name == "cumsum" else ()
                theirs, ours = (getattr(t, name)(*options) for t in (x, y))
                theirs, ours = ([r] if isinstance(r, torch.Tensor) else r for r in (theirs, ours))
                assert all(torch.equal(a, b.cpu()) for a, b in zip(theirs, ours)), name
                assert all(b.device == y.device for b in ours)
            report = torch.hologram.fallback_report()
            kinds = {row.kind for row in report}
            assert kinds == {"native", "copied"}, report
            copied = {row.operator for row in report if row.kind == "copied"}
            assert {"aten::argmax", "aten::cumsum", "aten::sort.stable"} <= copied, report
            """
        )

    def test_what_is_written_goes_back(self):
        run_on_sim(
            """
            import torch
            base = torch.arange(1000.0)
            ours = base.to("hologram")
            for t in (base, ours):
                torch.sort(t[100:120:2], descending=True,
                           out=(t[10:20], torch.empty(10, device=t.device).long()))
            assert torch.equal(ours.cpu(), base)
            # Two views of one storage, of which one is written; and memory that no argument has.
            for t in (base, ours):
                torch.cumsum(t[500:510], 0, out=t[505:515].clone())
                t[600:610].index_add_(0, torch.arange(10, device=t.device), t[595:605].clone())
                t.as_strided((5, 2), (7, 3), 700).index_fill_(
                    0, torch.tensor([1, 3], device=t.device), -1)
            assert torch.equal(ours.cpu(), base)
            grown = torch.empty(0, device="hologram")
            torch.cumprod(ours[1:6], 0, out=grown)  # reallocated by the kernel
            assert torch.equal(grown.cpu(), base[1:6].cumprod(0)) and grown.numel() == 5
            assert grown.untyped_storage().nbytes() == 20
            """
        )

    def test_freed_memory_is_poisoned(self):
        """After the work that still used it, before that of the next owner."""
        run_on_sim(
            """
            import torch
            x = torch.ones(100_000, device="hologram")
            torch.hologram.synchronize()
            place = x.data_ptr()
            y = submit_additions(x, 1)
            del x
            z = torch.empty(100_000, device="hologram")
            assert z.data_ptr() == place
            assert z.isnan().all().item()
            assert y.sum().item() == 200_000
            """,
            HOLOGRAM_POISON_FREED=1,
            **LATE,
        )

    def test_arrays_over_buffers_are_refused(self):
        run_on_sim(
            """
            import numpy, torch_hologram as hg
            with hg.Executor() as executor:
                buffer = executor.allocate(4)
                buffer.from_numpy(numpy.arange(4, dtype="f4"))
                for share in (numpy.asarray, numpy.array):
                    try:
                        share(buffer, copy=None)
                    except TypeError as error:
                        assert "is not the host's" in str(error), error
                    else:
                        raise AssertionError
                assert numpy.array(buffer).tolist() == [0, 1, 2, 3]
                assert numpy.array(buffer, dtype="i8").dtype == numpy.int64
            """
        )

    def test_running_statistics(self):
        run_on_sim(
            """
            import torch
            x = torch.randn(8, 4, 5, 5)
            norms = [torch.nn.BatchNorm2d(4).to(device) for device in ("cpu", "hologram")]
            for _ in range(3):
                a, b = norms[0](x), norms[1](x.to("hologram"))
            torch.testing.assert_close(b.cpu(), a)
            torch.testing.assert_close(norms[1].running_mean.cpu(), norms[0].running_mean)
            torch.testing.assert_close(norms[1].running_var.cpu(), norms[0].running_var)
            """
        )

    def test_sharing_is_refused(self):
        run_on_sim(
            """
            import numpy, torch
            x = torch.ones(4, device="hologram")
            for share in (
                lambda: torch.hologram.alias_as_cpu(x),
                lambda: torch.hologram.alias_from_cpu(torch.ones(3)),
                lambda: x.share_memory_(),
                lambda: x.__dlpack__(dl_device=(1, 0), copy=False),
            ):
                try:
                    share()
                except (RuntimeError, BufferError) as error:
                    assert "is not the host's" in str(error), error
                else:
                    raise AssertionError
            assert x.__dlpack_device__() == (12, 0)  # kDLExtDev
            assert numpy.from_dlpack(x.cpu()).sum() == 4 and "tensor([1., 1., 1., 1.]" in repr(x)
            # Where a copy will do, one is made.
            assert torch.from_dlpack(numpy.ones(3), device="hologram").sum().item() == 3
            """
        )

    def test_pinned_copies_do_not_wait(self):
        run_on_sim(
            """
            import time, torch
            host = torch.arange(1000.0).pin_memory()
            assert host.is_pinned()
            x = torch.zeros(1000, device="hologram")
            torch.hologram.synchronize()
            first, copied, back = (torch.hologram.Event(enable_timing=True) for _ in range(3))
            start = time.perf_counter()
            first.record()
            x.copy_(host, non_blocking=True)
            copied.record()
            y = submit_additions(x, 10)
            result = torch.empty(1000, pin_memory=True)
            result.copy_(y, non_blocking=True)
            back.record()
            submitted = time.perf_counter() - start
            assert not back.query()
            del host  # is not handed out again before it has been read
            others = [torch.full((1000,), -1.0).pin_memory() for _ in range(3)]
            back.synchronize()
            waited = time.perf_counter() - start
            assert submitted < waited / 2, (submitted, waited)
            assert torch.equal(result, torch.arange(1000.0) + 10), result
            assert first.elapsed_time(back) > first.elapsed_time(copied) > 0
            # Other memory may be gone when the call returns.
            x.copy_(torch.arange(1000.0) * 2, non_blocking=True)
            assert x[999].item() == 1998
            """,
            **LATE,
        )


class TestVendor(HologramTestCase):
    """Memory that a vendor's kernels run on, in the order of the device's queue."""

    def test_no_delegated_call_waits(self):
        run_on_sim(
            """
            import ctypes, os, torch
            path = os.environ["HOLOGRAM_BACKEND_PATH"]
            waits = ctypes.CDLL(f"{path}/libhologram_sim.so").sim_waits
            waits.restype = ctypes.c_uint64
            torch.manual_seed(0)
            a, b = torch.randn(20, 30), torch.randn(30, 20)
            convolution = torch.nn.Conv1d(4, 4, 3)

            def work(a, b, convolution):
                for step in range(5):
                    x = (a @ b).relu() + step                # recorded after a product
                    y = torch.sort(x * 2, descending=True).values
                    y[3:5].index_add_(0, torch.tensor([1, 0], device=y.device), y[7:9])
                    z = convolution(y.reshape(5, 4, 20)[:, :, :12]).flatten(1)
                    a = a / 2 + torch.cumsum(z, 1)[:, :30].mean() / torch.linalg.norm(y)
                    out = torch.empty(0, device=a.device)
                    torch.cumsum(a, 0, out=out)
                return out

            with torch.no_grad():
                expected = work(a, b, convolution)
                a, b, convolution = (t.to("hologram") for t in (a, b, convolution))
                indices = torch.tensor([1, 0], device="hologram")
                torch.hologram.synchronize()
                torch.tensor = lambda *_, **__: indices      # which copies from the host
                before = waits()
                result = work(a, b, convolution)
                assert waits() == before, waits() - before
                assert torch.equal(result.cpu(), expected), (result.cpu() - expected).abs().max()
                assert waits() > before
            assert {row.kind for row in torch.hologram.fallback_report()} == {"native", "delegated"}
            """,
            HOLOGRAM_TEST_SIM_MEMORY="vendor",
            HOLOGRAM_TEST_SIM_DELAY=500,
        )

    @parametrize("optimizer", ["Adam", "AdamW", "SGD"])
    @parametrize("form", ["foreach", "fused", "single"])
    def test_digits_without_a_read(self, optimizer, form):
        """The demo's training, to the accuracy it asks for, with no read but its own."""
        run_on_sim(
            f"""
            import sys, torch
            sys.path.insert(0, {str(ROOT / "examples")!r})
            import train_digits
            theirs = getattr(torch.optim, {optimizer!r})
            options = {{"foreach": {form == "foreach"}, "fused": {form == "fused"}}}

            def make(parameters, lr):
                scale = 25 if {optimizer!r} == "SGD" else 1
                return theirs(parameters, lr=lr * scale, **options)

            train_digits.torch.optim.Adam = make
            data = train_digits.load_data(0)
            torch.hologram.init()
            torch.hologram.reset_stream_stats()
            ours = train_digits.train(torch.device("hologram"), data, epochs=8, seed=0)
            reads = torch.hologram.stream_stats()["flushes.read"]
            # One per loss, and per epoch its accuracy; the first step and the copy at the end.
            assert reads <= len(ours.losses) + 8 + 4, (reads, len(ours.losses))
            assert ours.accuracies[-1] > train_digits.REQUIRED_ACCURACY, ours.accuracies
            """,
            HOLOGRAM_TEST_SIM_MEMORY="vendor",
            HOLOGRAM_TEST_SIM_DELAY=0,
        )


class TestFaults(HologramTestCase):
    """What goes wrong is said once, and all else goes on."""

    def test_a_pass_fails_while_it_runs(self):
        run_on_sim(
            """
            import torch
            x = torch.ones(10, device="hologram")
            torch.hologram.flush()
            y = x * 2 + 1          # the second pass, which fails
            torch.hologram.flush()
            z = x + 5
            try:
                torch.hologram.synchronize()
            except RuntimeError as error:
                text = str(error)
            else:
                raise AssertionError("nothing was raised")
            assert "simulated device 0: mul, add (pass 1 of 1)" in text, text
            assert "failed: injected fault" in text, text
            torch.hologram.synchronize()  # said once
            assert z.tolist() == [6.0] * 10
            assert (x * 2 + 1).tolist() == [3.0] * 10
            """,
            HOLOGRAM_TEST_SIM_FAILED_RUN=2,
        )

    def test_a_copy_fails(self):
        run_on_sim(
            """
            import torch
            def message(call):
                try:
                    call()
                except RuntimeError as error:
                    return str(error)
                raise AssertionError("nothing was raised")

            x = torch.ones(5).to("hologram")       # goes on before it is copied
            text = message(torch.hologram.synchronize)
            assert "simulated device 0: copy of 20 bytes failed" in text, text
            x = torch.ones(5).to("hologram")
            assert "copy of 20 bytes failed" in message(x.cpu)
            assert x.sum().item() == 5
            """,
            HOLOGRAM_POISON_FREED=0,  # is a transfer, too
            HOLOGRAM_TEST_SIM_FAILED_TRANSFER="1,3",
        )

    def test_a_launch_fails(self):
        run_on_sim(
            """
            import torch
            x = torch.ones(10, device="hologram")
            torch.hologram.flush()
            y = x * 2
            other = torch.arange(4, device="hologram") + 1
            for _ in range(2):  # whoever reads it hears of it
                try:
                    y.sum().item()
                except RuntimeError as error:
                    assert "could not launch mul" in str(error), error
                else:
                    raise AssertionError("nothing was raised")
            assert other.tolist() == [1, 2, 3, 4]
            y.fill_(3)
            assert y.tolist() == [3.0] * 10
            """,
            HOLOGRAM_TEST_SIM_NO_LAUNCH=2,
        )

    def test_an_event_is_never_recorded(self):
        run_on_sim(
            """
            import torch
            def message(call):
                try:
                    call()
                except RuntimeError as error:
                    return str(error)
                raise AssertionError("nothing was raised")

            first, lost, waited = (torch.hologram.Event(enable_timing=True) for _ in range(3))
            side = torch.hologram.Stream()
            first.record()
            x = torch.ones(10, device="hologram") + 1
            lost.record()
            side.wait_event(lost)  # does not hang, and hears of it
            with torch.hologram.stream(side):
                y = torch.ones(5, device="hologram") * 3
            text = message(side.synchronize)
            assert "simulated device 0: recording an event failed" in text, text
            torch.hologram.synchronize()  # said once
            assert lost.query()
            assert "was never recorded" in message(lambda: first.elapsed_time(lost))
            assert (x.tolist(), y.tolist()) == ([2.0] * 10, [3.0] * 5)
            lost.record()
            lost.synchronize()
            assert first.elapsed_time(lost) > 0
            """,
            HOLOGRAM_TEST_SIM_LOST_RECORD=2,
        )

    def test_events_and_streams_that_do_not_fit(self):
        run_on_sim(
            """
            import os, torch
            def message(call):
                try:
                    call()
                except RuntimeError as error:
                    return str(error)
                raise AssertionError("nothing was raised")

            here, there = torch.hologram.current_stream(0), torch.hologram.current_stream(1)
            a, b = (torch.hologram.Event(enable_timing=True) for _ in range(2))
            plain = torch.hologram.Event()
            # Never recorded: done, as CUDA's are.
            assert a.query()
            a.synchronize()
            here.wait_event(a)
            assert "must be recorded" in message(lambda: a.elapsed_time(b))
            a.record(here)
            plain.record(here)
            assert "enable_timing=True" in message(lambda: a.elapsed_time(plain))
            text = message(lambda: a.record(there))
            assert "does not match recording stream's device index 1" in text, text
            b.record(here)
            assert "must be completed" in message(lambda: a.elapsed_time(b))
            b.synchronize()
            assert a.elapsed_time(b) >= 0
            there.wait_event(b)
            assert "index 5 is out of range" in message(lambda: torch.hologram.Stream(device=5))
            unknown = torch.Stream(stream_id=12345, device_index=0, device_type=20)
            assert "12345" in message(unknown.synchronize), message(unknown.synchronize)
            # The devices of a child of a fork are gone, and so are their streams.
            child = os.fork()
            if child == 0:
                texts = [
                    message(here.synchronize),
                    message(lambda: torch.ones(1, device="hologram:1")),
                ]
                os._exit(0 if all("fork" in text for text in texts) else 1)
            assert os.waitpid(child, 0)[1] == 0
            for index in range(2):
                assert torch.ones(2, device=f"hologram:{index}").tolist() == [1.0, 1.0]
            """,
            **LATE,
        )

    def test_no_memory(self):
        run_on_sim(
            """
            import torch
            kept = torch.ones(1 << 20, device="hologram")
            x = kept + 1
            torch.hologram.flush()
            try:
                huge = torch.empty(1 << 34, device="hologram")
            except torch.OutOfMemoryError as error:
                assert "hologram:0" in str(error), error
            else:
                raise AssertionError("nothing was raised")
            assert x[7].item() == 2 and (kept * 3)[9].item() == 3
            """
        )


class TestPage(HologramTestCase):
    """docs/add-a-backend.md says what the code says."""

    PAGE = (ROOT / "docs" / "add-a-backend.md").read_text()

    def test_it_has_every_function(self):
        interface = {}
        for header in ("backend.h", "queue.h"):
            text = (ROOT / "csrc" / "atlas" / header).read_text()
            for name, body in re.findall(r"^class (\w+)(.*?)^};", text, re.M | re.S):
                for function in re.findall(
                    r"^  virtual [^;{]*?(\w+)\([^;{]*\)[^;(){]*(?:= 0;|\{)", body, re.M
                ):
                    owner = "Backend" if name == "PlanCompiler" else name
                    interface[f"{owner}::{function}"] = header
        self.assertGreaterEqual(len(interface), 14)
        for name in interface:
            self.assertIn(f"`{name}`", self.PAGE)
        for name in re.findall(r"`((?:Backend|Queue|PlanCode|Moment)::\w+)`", self.PAGE):
            self.assertIn(name, interface)

    def test_its_code_is_that_of_the_simulated_device(self):
        excerpts = re.findall(r"<!-- from: (\S+) -->\n```cpp\n(.*?)```", self.PAGE, re.S)
        self.assertEqual(len(excerpts), 3)
        for file, code in excerpts:
            self.assertIn(code, (ROOT / file).read_text())

    def test_backend_folders_have_equal_files(self):
        table = self.PAGE.split("| file |")[1].split("\n\n")[0]
        files = re.findall(r"`(\w+\.(?:h|cpp))`", table)
        self.assertEqual(len(files), 6)
        for file in files:
            self.assertTrue((ROOT / "csrc" / "cpu" / file).exists(), file)
            if file != "code.h":
                self.assertTrue((ROOT / "test" / "sim" / file).exists(), file)

    def test_its_files_are_there(self):
        for file in re.findall(r"`((?:test|csrc)/[\w/.]+\.\w+)`", self.PAGE):
            self.assertTrue((ROOT / file).exists(), file)


# A library with the function hologram_backend() that answers a text.
LIBRARY = """
struct Library { const char* interface; };
extern "C" const Library* hologram_backend() {
  static const Library library{"hologram backend interface 0, C++ ABI 1"};
  return &library;
}
"""


class TestLibraries(HologramTestCase):
    def compile(self, source: str) -> str:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        output = os.path.join(folder, "libhologram_odd.so")
        compiler = os.environ.get("CXX", "g++")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", output],
            input=source,
            text=True,
            check=True,
        )
        return folder

    def warned(self, path: str) -> str:
        """What is said of the backend "odd" where the CPU is left; both devices' lists go on."""
        return run_python(
            """
            import warnings
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                import torch
                assert torch.hologram.device_count() == 1
                assert torch.ones(3, device="hologram").sum().item() == 3
            print(*(w.message for w in caught if "odd" in str(w.message)))
            """,
            env={"HOLOGRAM_BACKENDS": "odd,cpu", "HOLOGRAM_BACKEND_PATH": path},
        ).stdout

    def test_missing(self):
        for path in ("", "/nowhere", "/nowhere:/"):
            with self.subTest(path):
                text = self.warned(path)
                self.assertIn("names 'odd', which this build does not have", text)
                self.assertIn("libhologram_odd.so is in no folder of HOLOGRAM_BACKEND_PATH", text)
                self.assertIn(f"'{path}'" if path else "which is not set", text)

    def test_of_another_interface(self):
        text = self.warned(self.compile(LIBRARY))
        self.assertIn("was built for 'hologram backend interface 0, C++ ABI 1', not for", text)
        self.assertIn("'hologram backend interface 1, C++ ABI ", text)

    def test_without_the_function(self):
        text = self.warned(self.compile("int nothing;"))
        self.assertIn("does not have the function hologram_backend()", text)

    def test_without_a_symbol_it_needs(self):
        text = self.warned(self.compile("void absent(); void f() { absent(); }" + LIBRARY))
        self.assertIn("library does not load: ", text)
        self.assertIn("absent", text)

    def test_that_is_no_library(self):
        folder = self.compile("int nothing;")
        with open(os.path.join(folder, "libhologram_odd.so"), "w") as file:
            file.write("not a library")
        self.assertIn("library does not load: ", self.warned(folder))

    def test_without_devices(self):
        text = run_python(
            """
            import warnings
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                import torch
                assert torch.hologram.is_available() and torch.hologram.device_count() == 1
            print(*(w.message for w in caught if "sim" in str(w.message)))
            """,
            env={
                "HOLOGRAM_BACKENDS": "sim,cpu",
                "HOLOGRAM_BACKEND_PATH": build_sim(),
                "HOLOGRAM_TEST_SIM_DEVICES": "0",
            },
        ).stdout
        self.assertIn("names 'sim', which has no device on this machine", text)


instantiate_parametrized_tests(TestSimulatedDevice)
instantiate_parametrized_tests(TestVendor)
instantiate_parametrized_tests(TestStreamsOfTheSimulatedDevice)

if __name__ == "__main__":
    run_tests()
