"""Faults of programs on a GPU: what is raised, and what it says. Without a GPU, with faults of the
driver's: test_cuda_driver_faults.py.
"""

from __future__ import annotations

import textwrap

import pytest
from common import HologramTestCase
from test_cuda_runtime import run_on_gpu
from torch.testing._internal.common_utils import run_tests

MESSAGE = """
def message(call, kind=RuntimeError):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")
"""


def run_faulty(program: str) -> str:
    return run_on_gpu(MESSAGE + textwrap.dedent(program))


@pytest.mark.cuda
class TestFaults(HologramTestCase):
    @pytest.mark.whole_gpu
    def test_out_of_memory(self):
        run_faulty(
            """
            total = torch.hologram.get_device_properties(0).total_memory
            x = torch.ones(10, device="hologram")
            for _ in range(2):
                text = message(lambda: empty("hologram", 2 * total), torch.OutOfMemoryError)
                assert "hologram:0" in text and "GiB" in text, text
            # Of a recorded operation, whose result is asked for when it runs.
            half = empty("hologram", total * 6 // 10)
            text = message(lambda: (half + 1).sum().item(), torch.OutOfMemoryError)
            assert "GiB" in text, text
            assert (x + 1).tolist() == [2] * 10
            """
        )

    def test_an_index_out_of_range(self):
        """Of a kernel: whatever is asked for after it says so, also memory."""
        run_faulty(
            """
            x = torch.ones(10, device="hologram")
            index = torch.tensor([3, 100], device="hologram")
            torch.hologram.synchronize()
            def use():
                x[index].tolist()
            try:
                use()
            except IndexError as error:
                assert "out of" in str(error), error  # it was looked at before the kernel ran
            except RuntimeError as error:
                assert "device-side assert" in str(error), error
                for later in (lambda: x.tolist(), lambda: empty("hologram", GIB),
                              torch.hologram.synchronize):
                    text = message(later)
                    assert "device-side assert" in text, text
                    assert "out of memory" not in text.lower(), text
            else:
                raise AssertionError("nothing was raised")
            assert torch.ones(3).sum() == 3
            """
        )

    def test_a_child_of_a_fork(self):
        run_faulty(
            """
            import os
            x = torch.ones(10, device="hologram")
            torch.hologram.synchronize()
            child = os.fork()
            if child == 0:
                text = message(lambda: torch.ones(3, device="hologram").tolist())
                os._exit(0 if "fork" in text or "child" in text else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert x.sum().item() == 10
            """
        )


if __name__ == "__main__":
    run_tests()
