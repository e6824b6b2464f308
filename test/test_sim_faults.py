"""Faults of a device, planted in the simulated one: runs, copies, launches, events, memory."""

from __future__ import annotations

from common import HologramTestCase
from sim_device import LATE, run_on_sim
from torch.testing._internal.common_utils import run_tests


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
            text = message(torch.hologram.synchronize)
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
                assert "could not launch mul" in message(lambda: y.sum().item())
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


if __name__ == "__main__":
    run_tests()
