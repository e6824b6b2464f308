"""The simulated device of test/sim: devices, events, lateness, memory of a loop, exit and fork."""

from __future__ import annotations

from common import HologramTestCase
from sim_device import LATE, run_on_sim
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)


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
            for generator in (None, torch.Generator("hologram:0")):
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


instantiate_parametrized_tests(TestSimulatedDevice)

if __name__ == "__main__":
    run_tests()
