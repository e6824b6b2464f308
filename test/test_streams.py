"""Streams and events."""

from __future__ import annotations

import threading
import time

import torch
from common import GPUS, HologramTestCase
from torch.testing._internal.common_utils import run_tests


class TestStreams(HologramTestCase):
    def test_is_a_torch_stream(self):
        stream = torch.hologram.Stream()
        self.assertIsInstance(stream, torch.Stream)
        self.assertIsInstance(torch.hologram.current_stream(), torch.hologram.Stream)
        self.assertEqual(stream.device, torch.device("hologram", 0))
        self.assertIn("hologram:0", repr(stream))

    def test_default_stream_is_current_at_first(self):
        default = torch.hologram.default_stream()
        self.assertEqual(torch.hologram.current_stream(), default)
        self.assertEqual(torch.hologram.current_stream("hologram:0"), default)

    def test_new_streams_differ(self):
        first, second = torch.hologram.Stream(), torch.hologram.Stream(priority=-1)
        self.assertNotEqual(first, second)
        self.assertNotEqual(first, torch.hologram.default_stream())
        self.assertEqual(len({first, second, torch.hologram.default_stream()}), 3)

    def test_priority(self):
        least, most = torch.hologram.Stream.priority_range()
        self.assertEqual((least, most), (0, -1))
        for given, got in ((0, 0), (-1, -1), (-5, -1)):  # clamped, as in torch.cuda
            self.assertEqual(torch.hologram.Stream(priority=given).priority, got)
        self.assertEqual(torch.hologram.default_stream().priority, 0)
        with self.assertRaisesRegex(RuntimeError, "less than or equal to 0, got 1"):
            torch.hologram.Stream(priority=1)

    def test_stream_from_external(self):
        stream = torch.hologram.Stream()
        found = torch.hologram.get_stream_from_external(stream.native_handle)
        self.assertEqual(found.native_handle, stream.native_handle)
        if not GPUS:  # whose streams share handles: it is the first of them
            self.assertEqual(found, stream)
        default = torch.hologram.get_stream_from_external(0, "hologram:0")
        self.assertEqual(default, torch.hologram.default_stream())
        if not GPUS:  # for which a number is a handle of the driver's
            with self.assertRaisesRegex(RuntimeError, "hologram:0 has no stream with id 123456"):
                torch.hologram.get_stream_from_external(123456)

    def test_wrapping_an_existing_stream(self):
        stream = torch.hologram.Stream()
        same = torch.hologram.Stream(
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        )
        self.assertEqual(same, stream)
        self.assertEqual(hash(same), hash(stream))

    def test_stream_context(self):
        outer, inner = torch.hologram.Stream(), torch.hologram.Stream()
        with torch.hologram.stream(outer):
            self.assertEqual(torch.hologram.current_stream(), outer)
            with torch.hologram.stream(inner):
                self.assertEqual(torch.hologram.current_stream(), inner)
            with torch.hologram.stream(None):
                self.assertEqual(torch.hologram.current_stream(), outer)
            self.assertEqual(torch.hologram.current_stream(), outer)
        self.assertEqual(torch.hologram.current_stream(), torch.hologram.default_stream())

    def test_stream_context_ends_with_an_exception(self):
        with self.assertRaises(KeyError), torch.hologram.stream(torch.hologram.Stream()):
            raise KeyError
        self.assertEqual(torch.hologram.current_stream(), torch.hologram.default_stream())

    def test_one_context_entered_twice(self):
        context = torch.hologram.stream(torch.hologram.Stream())
        with context, context:
            self.assertEqual(torch.hologram.current_stream(), context.stream)
        self.assertEqual(torch.hologram.current_stream(), torch.hologram.default_stream())

    def test_a_stream_is_a_context(self):
        stream = torch.hologram.Stream()
        with stream:
            self.assertEqual(torch.hologram.current_stream(), stream)
        self.assertEqual(torch.hologram.current_stream(), torch.hologram.default_stream())

    def test_set_stream(self):
        stream = torch.hologram.Stream()
        torch.hologram.set_stream(stream)
        try:
            self.assertEqual(torch.hologram.current_stream(), stream)
            torch.hologram.set_stream(None)
            self.assertEqual(torch.hologram.current_stream(), stream)
        finally:
            torch.hologram.set_stream(torch.hologram.default_stream())

    def test_current_stream_is_per_thread(self):
        seen = []
        with torch.hologram.stream(torch.hologram.Stream()):
            thread = threading.Thread(target=lambda: seen.append(torch.hologram.current_stream()))
            thread.start()
            thread.join()
        self.assertEqual(seen, [torch.hologram.default_stream()])

    def test_work_across_streams(self):
        stream = torch.hologram.Stream()
        x = torch.ones(1000, device="hologram")
        with torch.hologram.stream(stream):
            y = x + 1
        torch.hologram.current_stream().wait_stream(stream)
        y.record_stream(torch.hologram.current_stream())
        self.assertEqual((y * 2).cpu(), torch.full((1000,), 4.0))
        stream.synchronize()
        self.assertTrue(stream.query())

    def test_unknown_stream(self):
        with self.assertRaisesRegex(RuntimeError, "hologram:0 has no stream with id 123456"):
            torch.hologram.set_stream(
                torch.hologram.Stream(
                    stream_id=123456,
                    device_index=0,
                    device_type=torch.hologram.Stream().device_type,
                )
            )

    def test_recording_an_unknown_stream(self):
        x = torch.ones(3, device="hologram")
        wrong = torch.hologram.Stream(
            stream_id=123456,
            device_index=0,
            device_type=torch.hologram.Stream().device_type,
        )
        with self.assertRaisesRegex(RuntimeError, "hologram:0 has no stream with id 123456"):
            x.record_stream(wrong)

    def test_one_after_the_other_in_turns(self):
        streams = [torch.hologram.Stream() for _ in range(3)]
        x, expected = torch.ones(100, device="hologram"), torch.ones(100)
        for step in range(30):
            with torch.hologram.stream(streams[step % 3]):
                x = x * 0.5 + step
                expected = expected * 0.5 + step
                if step % 4 == 0:
                    x.neg_()
                    expected.neg_()
        self.assertEqual(x.cpu(), expected, rtol=0, atol=0)

    def test_more_streams_than_a_device_has_queues(self):
        x = torch.ones(100, device="hologram")
        results = []
        for step in range(100):
            with torch.hologram.stream(torch.hologram.Stream(priority=-(step % 2))):
                results.append(x + step)
        for step, result in enumerate(results):
            self.assertEqual(result.cpu(), torch.full((100,), 1.0 + step))

    def test_no_stream(self):
        for call in (torch.hologram.set_stream, torch.hologram.stream):
            for wrong, text in ((3, "int: 3"), ("hologram", "str: 'hologram'"), (0, "int: 0")):
                with self.assertRaisesRegex(TypeError, f"torch.Stream or None, got {text}"):
                    call(wrong)
        with torch.hologram.stream(None):
            torch.hologram.set_stream(None)


class TestEvents(HologramTestCase):
    def test_is_a_torch_event(self):
        event = torch.hologram.Event()
        self.assertIsInstance(event, torch.Event)
        self.assertEqual(event.device.type, "hologram")

    def test_no_other_process_waits_for_one(self):
        event = torch.hologram.Event(enable_timing=True, blocking=True, interprocess=False)
        event.record()
        for option in ("interprocess", "external"):
            with self.assertRaisesRegex(NotImplementedError, "known to this process alone"):
                torch.hologram.Event(**{option: True})

    def test_record_query_wait(self):
        stream, event = torch.hologram.Stream(), torch.hologram.Event()
        self.assertTrue(event.query())  # nothing recorded, nothing to wait for
        event.record(stream)
        event.wait()
        torch.hologram.current_stream().wait_event(event)
        event.synchronize()
        self.assertTrue(event.query())

    def test_stream_makes_events(self):
        event = torch.hologram.current_stream().record_event()
        self.assertIsInstance(event, torch.hologram.Event)
        given = torch.hologram.Event()
        self.assertIs(torch.hologram.current_stream().record_event(given), given)

    def test_elapsed_time(self):
        start, end = (torch.hologram.Event(enable_timing=True) for _ in range(2))
        start.record()
        start.synchronize()
        time.sleep(0.02)
        end.record()
        end.synchronize()
        milliseconds = start.elapsed_time(end)
        self.assertGreaterEqual(milliseconds, 20)
        self.assertLess(milliseconds, 10_000)
        self.assertLess(end.elapsed_time(start), 0)

    def test_elapsed_time_needs_records(self):
        start, end = (torch.hologram.Event(enable_timing=True) for _ in range(2))
        with self.assertRaisesRegex(RuntimeError, "recorded"):
            start.elapsed_time(end)

    def test_elapsed_time_needs_timing(self):
        start, end = torch.hologram.Event(), torch.hologram.Event()
        start.record()
        end.record()
        with self.assertRaisesRegex((RuntimeError, ValueError), "enable_timing"):
            start.elapsed_time(end)

    def test_generic_classes(self):
        stream = torch.Stream(device="hologram")
        event = torch.Event(device="hologram", enable_timing=True)
        event.record(stream)
        event.synchronize()
        self.assertTrue(event.query())
        with stream:
            self.assertEqual(torch.hologram.current_stream(), stream)


if __name__ == "__main__":
    run_tests()
