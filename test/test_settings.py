"""Settings that leave no device, or another than was asked for: who is told, and when."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from common import HologramTestCase, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_hologram import _C

WRONG_ENVIRONMENTS = {
    ("HOLOGRAM_CPU_DEVICES", "0"): "must be a number from 1 to 64, not '0'",
    ("HOLOGRAM_CPU_DEVICES", "65"): "must be a number from 1 to 64, not '65'",
    ("HOLOGRAM_POISON_FREED", "yes"): "must be 0 or 1, not 'yes'",
    ("HOLOGRAM_CPU_DEVICES", "abc"): "must be a number from 1 to 64, not 'abc'",
    ("HOLOGRAM_BACKENDS", "abacus"): "names 'abacus', which this build does not have (available: "
    "cuda, cpu); libhologram_abacus.so is in no folder of HOLOGRAM_BACKEND_PATH (which is not set)",
    ("HOLOGRAM_BACKENDS", "cpu,cpu"): "names 'cpu' twice",
    ("HOLOGRAM_BACKENDS", ""): "is empty",
    ("HOLOGRAM_EAGER", "yes"): "must be 0 or 1, not 'yes'",
    ("HOLOGRAM_CPU_ISA", "sse"): "is 'sse', but the instruction sets of this processor are: "
    + ", ".join(_C.instruction_sets()),
    (
        "HOLOGRAM_MEMORY_LIMIT",
        "lots",
    ): "must be a positive number of bytes with an optional suffix K, M, G or T, not 'lots'",
}


class TestEnvironment(HologramTestCase):
    """Variables that leave no device: CPU work goes on, and each use says what is wrong."""

    @parametrize("variable,value", list(WRONG_ENVIRONMENTS))
    def test_wrong(self, variable, value):
        message = f"{variable} {WRONG_ENVIRONMENTS[variable, value]}"
        process = run_python(
            """
            import sys, warnings
            warnings.simplefilter("error")
            import torch
            import torch_hologram

            message = "no hologram device is available: " + sys.argv[1]
            hologram = torch.hologram

            def on_the_cpu():
                torch.manual_seed(0)
                model = torch.nn.Linear(3, 2)
                model(torch.ones(4, 3)).sum().backward()
                assert model.weight.grad.tolist() == [[4.0] * 3] * 2
                with torch.random.fork_rng():
                    torch.rand(2)

            on_the_cpu()
            uses = [
                lambda: torch.ones(1, device="hologram"),
                lambda: torch.ones(1).to("hologram:0"),
                lambda: torch.ones(1).hologram(),
                lambda: torch.nn.Linear(2, 2).to("hologram"),
                lambda: torch.Generator("hologram"),
                lambda: hologram.init(),
                lambda: hologram.set_device(0),
                lambda: hologram.device(0).__enter__(),
                lambda: hologram.synchronize(),
                lambda: hologram.get_device_properties(),
                lambda: hologram.get_rng_state(),
                lambda: hologram.Stream(),
                lambda: hologram.Event(),
                lambda: hologram.mem_get_info(),
                lambda: hologram.alias_from_cpu(torch.ones(2)),
                lambda: torch.accelerator.set_device_index(0),
                lambda: torch.accelerator.current_stream(),
            ]
            for _ in range(2):
                for number, use in enumerate(uses):
                    try:
                        use()
                    except RuntimeError as error:
                        assert str(error).split("\\n")[0] == message, (number, str(error))
                    else:
                        raise AssertionError(f"use {number} was accepted")
                assert not hologram.is_initialized()
                on_the_cpu()

            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert hologram.device_count() == 0 and not hologram.is_available()
                assert not torch.accelerator.is_available()
                loader = torch.utils.data.DataLoader(torch.arange(4), pin_memory=True)
                assert [batch.item() for batch in loader] == [0, 1, 2, 3]
            # A device that was taken away on purpose is no mistake; a wrong value is, once.
            ours = [str(w.message) for w in caught if "hologram" in str(w.message)]
            assert ours == ([] if "is empty" in message else [message]), ours
            """,
            message,
            env={"HOLOGRAM_BACKENDS": "cpu", "HOLOGRAM_BACKEND_PATH": "", variable: value},
        )
        self.assertEqual(process.stderr, "")

    @parametrize(
        "variable,value,message",
        [
            (
                "HOLOGRAM_BACKENDS",
                "abacus,cpu",
                "HOLOGRAM_BACKENDS names 'abacus', which this build does not have (available: "
                "cuda, cpu); libhologram_abacus.so is in no folder of HOLOGRAM_BACKEND_PATH "
                "(which is not set)",
            ),
            (
                "HOLOGRAM_CPU_DEVICE",
                "2",
                "HOLOGRAM_CPU_DEVICE is no setting of torch_hologram: "
                "did you mean HOLOGRAM_CPU_DEVICES?",
            ),
        ],
    )
    def test_not_as_asked_for(self, variable, value, message):
        for first in ("torch.hologram.is_available()", 'torch.ones(1, device="hologram")'):
            run_python(
                """
                import sys, warnings
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    import torch
                    import torch_hologram
                    assert not caught, caught[0].message  # the CPU is all that was used
                    for _ in range(2):
                        assert eval(sys.argv[1])
                        assert torch.hologram.is_available()
                        assert torch.ones(2, device="hologram").sum().item() == 2
                assert [str(w.message) for w in caught] == [sys.argv[2]], caught
                assert caught[0].category is RuntimeWarning
                properties = torch.hologram.get_device_properties()
                assert (torch.hologram.device_count(), properties.backend) == (1, "cpu")
                """,
                first,
                message,
                env={"HOLOGRAM_BACKENDS": "cpu", "HOLOGRAM_BACKEND_PATH": "", variable: value},
            )

    def test_file_of_a_device_that_was_taken_away(self):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "tensor.pt")
            torch.save(torch.arange(3, device="hologram"), path)
            run_python(
                """
                import sys, torch
                try:
                    torch.load(sys.argv[1], weights_only=True)
                except RuntimeError as error:
                    assert "torch.hologram.is_available() is False" in str(error), error
                else:
                    raise AssertionError("loaded")
                x = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
                assert x.tolist() == [0, 1, 2]
                """,
                path,
                env={"HOLOGRAM_BACKENDS": ""},
            )


instantiate_parametrized_tests(TestEnvironment)

if __name__ == "__main__":
    run_tests()
