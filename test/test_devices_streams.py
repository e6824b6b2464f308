"""Streams and events of several devices.

By hand, a single test:

    HOLOGRAM_CPU_DEVICES=2 python test/test_devices_streams.py TestStreams.test_synchronize
"""

from __future__ import annotations

import torch
from common import GPUS
from multi_device import ONE, ZERO, SeveralDevicesTestCase, in_processes_of_their_own
from torch.testing._internal.common_utils import run_tests

hologram = torch.hologram


class TestStreams(SeveralDevicesTestCase):
    def test_streams_belong_to_a_device(self):
        stream = hologram.Stream(1)
        self.assertEqual(stream.device, ONE)
        self.assertNotEqual(stream, hologram.Stream(0))
        with hologram.stream(stream):
            self.assertEqual(hologram.current_device(), 1)
            self.assertEqual(hologram.current_stream(), stream)
            self.assertEqual(hologram.current_stream(0), hologram.default_stream(0))
            with hologram.stream(hologram.default_stream(0)):
                self.assertEqual(hologram.current_device(), 0)
                self.assertEqual(hologram.current_stream(1), stream)
            self.assertEqual(hologram.current_stream(), stream)
        self.assertEqual(hologram.current_stream(1), hologram.default_stream(1))
        with hologram.device(1):
            self.assertEqual(hologram.Stream().device, ONE)

    def test_current_stream_of_a_device_stays(self):
        stream = hologram.Stream(1)
        hologram.set_stream(stream)
        self.addCleanup(hologram.set_stream, hologram.default_stream(0))
        self.addCleanup(hologram.set_stream, hologram.default_stream(1))
        hologram.set_device(0)
        self.assertEqual(hologram.current_stream(1), stream)
        self.assertEqual(torch.accelerator.current_stream(1).stream_id, stream.stream_id)
        torch.accelerator.set_stream(hologram.default_stream(1))
        self.assertEqual(hologram.current_device(), 1)
        hologram.set_device(0)

    def test_stream_of_another_device_is_refused(self):
        stream = hologram.Stream(1)
        # Whatever streams tests have made in this process before, device 0 has none of this id.
        unknown = stream.stream_id + (1 << 20)
        wrong = hologram.Stream(stream_id=unknown, device_index=0, device_type=stream.device_type)
        with self.assertRaisesRegex(RuntimeError, "hologram:0 has no stream with id"):
            hologram.set_stream(wrong)

    def test_events_wait_across_devices(self):
        first, second = hologram.Stream(0), hologram.Stream(1)
        start = hologram.Event(enable_timing=True)
        end = hologram.Event(enable_timing=True)
        with hologram.stream(first):
            x = torch.full((1000,), 2.0, device=ZERO).exp_()
            start.record()
        self.assertEqual(start.device, ZERO)
        with hologram.stream(second):
            second.wait_event(start)
            start.wait()
            second.wait_stream(first)
            y = x.to(ONE) * 2
            y.record_stream(second)
            end.record()
        self.assertEqual(end.device, ONE)
        end.synchronize()
        first.wait_event(end)
        self.assertTrue(start.query() and end.query() and first.query() and second.query())
        if GPUS > 1:  # as on torch's cuda
            with self.assertRaisesRegex(torch.AcceleratorError, "invalid resource handle"):
                start.elapsed_time(end)
        else:
            self.assertGreaterEqual(start.elapsed_time(end), 0)
        self.assertSame(y, torch.full((1000,), 2.0).exp() * 2, ONE)

    def test_event_is_recorded_on_one_device(self):
        event = hologram.Event()
        event.record(hologram.Stream(1))
        with self.assertRaisesRegex(RuntimeError, "index 1 does not match.* index 0"):
            event.record(hologram.Stream(0))
        event.record(hologram.Stream(1))
        self.assertEqual(event.device, ONE)

    def test_synchronize(self):
        for device in (0, 1, ONE, "hologram:1", None):
            hologram.synchronize(device)
            torch.accelerator.synchronize(device)


TestInProcessesOfTheirOwn = in_processes_of_their_own(__name__)

if __name__ == "__main__":
    run_tests()
