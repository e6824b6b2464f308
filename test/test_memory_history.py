"""What torch's own tools read of the memory: snapshots, the history of allocations, counts."""

from __future__ import annotations

import gc
import pickle
import tempfile
import threading
import warnings
from pathlib import Path

import torch
from common import CUDA_KERNELS, GPUS, HologramTestCase
from torch.cuda import _memory_viz
from torch.testing._internal.common_utils import run_tests

MIB = 1 << 20
record = torch.hologram.memory._record_memory_history
snapshot = torch.hologram.memory._snapshot


def allocate(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="hologram")


class TestTools(HologramTestCase):
    def test_segsum(self):
        held = allocate(64)
        text = _memory_viz.segsum({"segments": torch.hologram.memory_snapshot()})
        reserved = 0  # of all devices, as the snapshot is
        for device in range(torch.hologram.device_count()):
            stats = torch.hologram.memory_stats(device)
            reserved += stats["reserved_bytes.all.current"] - stats["foreign_bytes.all.current"]
        self.assertIn(f"total_reserved: {_memory_viz.Bytes(reserved)}", text)
        self.assertIn("[aaaa", text)  # the large block
        del held

    def test_every_segment_has_what_torch_cuda_has(self):
        # The blocks of 448 KiB do not divide their segment.
        held = [allocate(3), torch.empty(400_000, dtype=torch.uint8, device="hologram")]
        for segment in torch.hologram.memory_snapshot():
            for key in ("device", "address", "total_size", "allocated_size", "active_size"):
                self.assertIsInstance(segment[key], int, key)
            self.assertEqual(segment["stream"], 0)
            self.assertIn(segment["segment_type"], ("small", "large"))
            self.assertEqual(segment["segment_pool_id"], (0, 0))
            self.assertFalse(segment["is_expandable"])
            self.assertEqual(segment["frames"], [])
            blocks = segment["blocks"]
            self.assertEqual(sum(block["size"] for block in blocks), segment["total_size"])
            self.assertEqual(
                sum(block["requested_size"] for block in blocks), segment["requested_size"]
            )
        del held

    def test_flame_graphs(self):
        held = allocate(3)
        lines = []
        _memory_viz.segments(
            {"segments": torch.hologram.memory_snapshot()}, format_flamegraph=lines.append
        )
        self.assertIn(f"active_allocated;<non-python> {3 * MIB}", lines[0])
        del held


class TestHistory(HologramTestCase):
    def setUp(self):
        super().setUp()
        gc.collect()
        torch.hologram.synchronize()
        self.addCleanup(record, None)

    def events(self, data: dict, address: int) -> list[str]:
        return [e["action"] for e in data["device_traces"][0] if e.get("addr") == address]

    def test_events_and_frames(self):
        record()
        held = allocate(5)
        address = held.data_ptr()
        alive = snapshot()
        del held
        freed = snapshot()
        self.assertEqual(self.events(alive, address), ["alloc"])
        self.assertEqual(self.events(freed, address), ["alloc", "free_requested", "free_completed"])
        (alloc,) = (e for e in alive["device_traces"][0] if e.get("addr") == address)
        self.assertEqual(alloc["size"], 5 * MIB)
        self.assertEqual(alloc["frames"][0]["name"], "allocate")
        self.assertEqual(Path(alloc["frames"][0]["filename"]), Path(__file__))
        blocks = [b for s in alive["segments"] for b in s["blocks"] if b["address"] == address]
        self.assertEqual(blocks[0]["frames"], alloc["frames"])

    def test_recorded_and_delegated_operators(self):
        record()
        x = torch.ones(MIB, device="hologram")
        y = x + 1
        z = x.flip(0)
        data = snapshot()
        for tensor in (x, y, z):
            # What CUDA's kernels return is memory of torch's allocator for CUDA.
            events = [] if tensor is z and CUDA_KERNELS else ["alloc"]
            self.assertEqual(self.events(data, tensor.data_ptr()), events)

    def test_the_tools_read_it(self):
        record()
        held = [allocate(4) for _ in range(3)]
        del held[0]
        data = snapshot()
        text = _memory_viz.trace(data)
        self.assertIn("4.0MiB", text)
        page = _memory_viz.trace_plot(data)
        self.assertIn("<html>", page.lower() if "<html>" in page.lower() else "<html>" + page)
        self.assertIn("memory", page.lower())
        self.assertIn("active_allocated;", _memory_viz.memory(data, format_flamegraph=str))

    def test_state_keeps_no_events(self):
        record("state")
        held = allocate(5)
        data = snapshot()
        self.assertEqual(data["device_traces"][0], [])
        (block,) = (
            b for s in data["segments"] for b in s["blocks"] if b["address"] == held.data_ptr()
        )
        self.assertEqual(block["frames"][0]["name"], "allocate")

    def test_context_says_what_gets_frames(self):
        for context, alloc, free in ((None, 0, 0), ("alloc", 1, 0), ("all", 1, 1)):
            record(context=context, clear_history=True)
            held = allocate(5)
            address = held.data_ptr()
            del held
            frames = {
                e["action"]: bool(e["frames"])
                for e in snapshot()["device_traces"][0]
                if e.get("addr") == address
            }
            self.assertEqual(frames["alloc"], bool(alloc), context)
            self.assertEqual(frames["free_requested"], bool(free), context)

    def test_the_oldest_events_are_dropped(self):
        record(max_entries=4, context=None)
        for _ in range(10):
            allocate(5)
        events = snapshot()["device_traces"][0]
        self.assertEqual(len(events), 4)
        self.assertEqual(events[-1]["action"], "free_completed")

    def test_it_ends(self):
        record()
        held = allocate(5)
        record(None)
        more = allocate(5)
        data = snapshot()
        self.assertEqual(data["device_traces"][0], [])
        self.assertFalse(any(b["frames"] for s in data["segments"] for b in s["blocks"]))
        del held, more

    def test_out_of_memory(self):
        record()
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(1 << 55, dtype=torch.uint8, device="hologram")
        (oom,) = (e for e in snapshot()["device_traces"][0] if e["action"] == "oom")
        self.assertEqual(oom["size"], 1 << 55)
        self.assertGreater(oom["device_free"], 0)
        self.assertNotIn("addr", oom)

    def test_other_threads(self):
        record()
        addresses = []

        def work() -> None:
            for _ in range(100):
                addresses.append(allocate(1).data_ptr())

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        actions = [e["action"] for e in snapshot()["device_traces"][0] if e["size"] == MIB]
        self.assertEqual(actions.count("alloc"), len(addresses))
        self.assertEqual(actions.count("free_completed"), len(addresses))

    def test_dump(self):
        record()
        held = allocate(5)
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/snapshot.pickle"
            torch.hologram.memory._dump_snapshot(path)
            with open(path, "rb") as file:
                data = pickle.load(file)
        self.assertEqual(self.events(data, held.data_ptr()), ["alloc"])

    def test_bad_arguments(self):
        for arguments, message in (
            ({"enabled": "some"}, "expected enabled to be None, 'state' or 'all', got 'some'"),
            ({"context": "some"}, "expected context to be None, 'state', 'alloc' or 'all', got"),
            ({"stacks": "some"}, "expected stacks to be 'python' or 'all', got 'some'"),
            ({"max_entries": -1}, "expected max_entries to be at least 0, got -1"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                record(**arguments)


class TestCounts(HologramTestCase):
    def test_nested(self):
        flat = torch.hologram.memory_stats()
        nested = torch.hologram.memory_stats_as_nested_dict()
        self.assertEqual(
            nested["allocated_bytes"]["all"]["current"], flat["allocated_bytes.all.current"]
        )
        self.assertEqual(nested["num_ooms"], flat["num_ooms"])

    def test_host_memory(self):
        torch.hologram.synchronize()
        torch.empty(1).pin_memory()  # so that what copies have used comes back
        before = torch.hologram.host_memory_stats()
        pinned = torch.empty(1000, dtype=torch.uint8).pin_memory()
        after = torch.hologram.host_memory_stats()
        self.assertEqual(after["active_bytes.current"] - before["active_bytes.current"], 1024)
        self.assertEqual(after["active_requests.current"], before["active_requests.current"] + 1)
        nested = torch.hologram.host_memory_stats_as_nested_dict()
        self.assertEqual(nested["active_bytes"]["current"], after["active_bytes.current"])
        del pinned
        torch.hologram.reset_peak_host_memory_stats()
        torch.hologram.reset_accumulated_host_memory_stats()
        reset = torch.hologram.host_memory_stats()
        self.assertEqual(reset["active_bytes.peak"], reset["active_bytes.current"])
        self.assertEqual(reset["active_bytes.allocated"], 0)
        self.assertEqual(reset["num_host_alloc"], 0)

    def test_fraction(self):
        before = torch.hologram.get_per_process_memory_fraction()
        self.addCleanup(torch.hologram.set_per_process_memory_fraction, before)
        torch.hologram.set_per_process_memory_fraction(0.5)
        self.assertAlmostEqual(torch.hologram.get_per_process_memory_fraction(0), 0.5, places=6)

    def test_used(self):
        free, total = torch.hologram.mem_get_info()
        used = torch.hologram.device_memory_used()
        self.assertLess(abs(used - (total - free)), total // 4)  # others use the machine, too
        self.assertEqual(torch.hologram.get_allocator_backend(), "native")

    def test_allocation_for_a_stream(self):
        stream = torch.hologram.Stream()
        for given in (None, stream, stream.native_handle):
            address = torch.hologram.caching_allocator_alloc(1000, stream=given)
            self.assertNotEqual(address, 0)
            torch.hologram.caching_allocator_delete(address)
        with self.assertRaisesRegex(TypeError, "Invalid type for stream argument.*'first'"):
            torch.hologram.caching_allocator_alloc(1000, stream="first")
        if not GPUS:  # there a number is the address of a CUDA stream, which nobody can check
            with self.assertRaisesRegex(RuntimeError, "no stream with id 123456"):
                torch.hologram.caching_allocator_alloc(1000, stream=123456)
        with self.assertRaisesRegex(ValueError, "expected a stream of hologram:0"):
            torch.hologram.caching_allocator_alloc(1000, stream=torch.Stream(device="cpu"))

    def test_deprecated_names(self):
        for name, replacement in (
            ("memory_cached", "memory_reserved"),
            ("max_memory_cached", "max_memory_reserved"),
            ("reset_max_memory_allocated", "reset_peak_memory_stats"),
            ("reset_max_memory_cached", "reset_peak_memory_stats"),
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = getattr(torch.hologram, name)()
            (warning,) = caught
            self.assertIs(warning.category, FutureWarning)
            self.assertEqual(warning.filename, __file__)
            self.assertIn(f"torch.hologram.{replacement}", str(warning.message))
            self.assertEqual(result, getattr(torch.hologram, replacement)())


if __name__ == "__main__":
    run_tests()
