"""Streams of a device where each has a queue of its own, the simulated one."""

from __future__ import annotations

from common import HologramTestCase
from sim_device import LATE, run_on_sim
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
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
            shared = torch.arange(1000.0, device="hologram")
            def work(number):
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
            in_threads(work, 5)
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


instantiate_parametrized_tests(TestStreamsOfTheSimulatedDevice)

if __name__ == "__main__":
    run_tests()
