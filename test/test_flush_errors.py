"""Operations that find no memory when they are flushed, for a value between two groups."""

from __future__ import annotations

import gc

import torch
from common import HologramTestCase, run_python, several_devices
from torch.testing._internal.common_utils import run_tests

hologram = torch.hologram


class TestOutOfMemory(HologramTestCase):
    def test_what_fails_and_what_does_not(self):
        run_python(
            """
            import torch
            from torch import OutOfMemoryError
            hologram = torch.hologram
            N = 4 << 20  # floats of 16 MiB

            def raises(function, *parts):
                try:
                    function()
                except OutOfMemoryError as error:
                    for part in parts:
                        assert part in str(error), error
                    return str(error)
                raise AssertionError("nothing was raised")

            x = torch.ones(N, device="hologram")
            small = torch.ones(4, device="hologram")
            hologram.synchronize()
            hologram.reset_stream_stats()

            double = x * 2
            y = double[1:] - double[:-1]  # reads double from memory
            z = y[:4] + 1                 # fails with it
            other = small + 1             # has nothing to do with it
            also = x.add_(1)              # in place, independent of it
            del double                    # its 16 MiB are given back ...
            taken = torch.empty(2 * N, device="hologram")  # ... and taken
            assert hologram.stream_stats()["executed"] == 0

            error = raises(hologram.flush, "out of memory", "mul (f32, 4194304 elements)",
                           "HOLOGRAM_MEMORY_LIMIT")
            assert hologram.stream_stats()["failed"] == 3  # double, y and z
            for _ in range(2):
                for read in (y.cpu, lambda: y[0].item(), y.data_ptr, z.tolist, lambda: str(z),
                             lambda: z.sum().item(), lambda: torch.save(y, "/dev/null"),
                             lambda: y.copy_(torch.ones(N - 1))):
                    assert raises(read) == error
            assert other.tolist() == [2.0] * 4
            assert x[-1].item() == 2.0

            # What is computed of it fails too, and again nothing else does.
            w, v = z * 2, small * 3
            hologram.flush()
            assert raises(w.cpu) == error
            assert v.tolist() == [3.0] * 4

            counts = hologram.stream_stats()
            assert counts["recorded"] == counts["executed"] + counts["failed"], counts

            # Overwritten it is a tensor like any other.
            y.fill_(5)
            assert y[0].item() == 5.0

            # With memory everything works; nothing has leaked.
            del taken, y, z, w, v, also, other
            hologram.synchronize()
            assert hologram.memory_allocated() <= (16 << 20) + 1024, hologram.memory_allocated()
            hologram.empty_cache()  # else `double` lies in the 32 MiB that `taken` had
            double = x * 2
            y = double[1:] - double[:-1]
            del double
            assert y.abs().sum().item() == 0
            """,
            env={"HOLOGRAM_MEMORY_LIMIT": "72M", **several_devices(1)},
        )

    def test_set_per_process_memory_fraction(self):
        gc.collect()
        x = torch.ones(4 << 20, device="hologram")
        hologram.synchronize()
        hologram.empty_cache()
        # Room for y and `taken`, not for `double`, beside what other tests may have left.
        limit = hologram.memory_reserved() + (24 << 20)
        double = x * 2
        y = double[1:] - double[:-1]
        del double
        _, total = hologram.mem_get_info()
        try:
            hologram.set_per_process_memory_fraction(limit / total)
            taken = torch.empty(1 << 18, device="hologram")
            with self.assertRaisesRegex(torch.OutOfMemoryError, r"mul \(f32"):
                y.cpu()
        finally:
            hologram.set_per_process_memory_fraction(1.0)
        with self.assertRaisesRegex(torch.OutOfMemoryError, r"mul \(f32"):
            y.cpu()
        self.assertEqual((x * 3)[0].item(), 3.0)
        del taken

    def test_eager_raises_at_the_call(self):
        run_python(
            """
            import torch
            x = torch.ones(4 << 20, device="hologram")
            with torch.hologram.eager():
                try:
                    kept = [x * i for i in range(9)]
                except torch.OutOfMemoryError as error:
                    assert "Tried to allocate 16.00 MiB" in str(error)
                else:
                    raise AssertionError("nothing was raised")
            assert (x + 1)[0].item() == 2.0
            """,
            env={"HOLOGRAM_MEMORY_LIMIT": "72M", **several_devices(1)},
        )


if __name__ == "__main__":
    run_tests()
