"""Importing the package: by itself, through torch's entry point, and when it cannot work."""

from __future__ import annotations

import pytest
import torch
from common import run_python
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_hologram._version_check import SUPPORTED, check_version

COMPUTE = 'assert torch.ones(3, device="hologram").sum().item() == 3.0'
SUPPORTED_TEXT = f"{', '.join(SUPPORTED[:-1])} and {SUPPORTED[-1]}"

# An extension built for another torch: put in place of the generated file.
WRONG_BUILD = """
import sys, types
from importlib.metadata import version
other = "2.12" if not version("torch").startswith("2.12") else "2.11"
build = types.ModuleType("torch_hologram._build_info")
build.TORCH_MINOR, build.VERSION = other, "0.1.0"
sys.modules["torch_hologram._build_info"] = build
"""
NO_AUTOLOAD = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def run_alone(program: str) -> None:
    """Where torch finds no GPU: its accelerator would be CUDA."""
    run_python(program, env={"CUDA_VISIBLE_DEVICES": "", "HOLOGRAM_BACKENDS": "cpu"})


@pytest.mark.cuda
class TestCudaPrograms(TestCase):
    """Where torch sees a GPU, programs on CUDA run as without the package."""

    def test_torch_alone_leaves_cuda_the_accelerator(self):
        run_python(
            """
            import os
            del os.environ["HOLOGRAM_BACKENDS"]
            import torch
            assert not hasattr(torch, "hologram")
            assert torch.accelerator.current_accelerator().type == "cuda"
            x = torch.ones(3, device="cuda", requires_grad=True)
            (x * x).sum().backward()
            assert x.grad.tolist() == [2.0] * 3
            """,
            env={"HOLOGRAM_BACKENDS": ""},
        )

    def test_by_name_and_by_the_environment(self):
        for imports in ("import torch_hologram, torch", "import torch, torch_hologram"):
            unset = "import os\nos.environ.pop('HOLOGRAM_BACKENDS', None)\n"
            run_python(f"{unset}{imports}\n{COMPUTE}")
        run_python(f"import torch\n{COMPUTE}", env={"HOLOGRAM_BACKENDS": "cuda,cpu"})


class TestImport(TestCase):
    def test_torch_alone_loads_the_device(self):
        run_python(f"import torch\n{COMPUTE}")

    def test_torch_first(self):
        run_python(f"import torch, torch_hologram\n{COMPUTE}")

    def test_package_first(self):
        run_python(f"import torch_hologram, torch\n{COMPUTE}")

    def test_both_orders_without_autoload(self):
        run_python(f"import torch, torch_hologram\n{COMPUTE}", env=NO_AUTOLOAD)
        run_python(f"import torch_hologram, torch\n{COMPUTE}", env=NO_AUTOLOAD)

    def test_autoload_can_be_switched_off(self):
        run_python(
            """
            import sys
            import torch
            assert not hasattr(torch, "hologram")
            assert "torch_hologram" not in sys.modules
            import torch_hologram
            assert torch.ones(1, device="hologram").item() == 1
            """,
            env=NO_AUTOLOAD,
        )

    def test_the_module_is_importable_by_name(self):
        run_python(
            """
            import torch
            import torch.hologram
            from torch.hologram import Stream
            assert torch.hologram.Stream is Stream
            """
        )

    def test_import_is_lazy(self):
        run_python(
            """
            import sys
            import torch
            before = set(sys.modules)
            import torch_hologram
            new = {name.split(".")[0] for name in set(sys.modules) - before}
            assert new <= {"torch_hologram", "torch"}, new
            for name in ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd"):
                assert name not in sys.modules, name
            assert not torch.hologram.is_initialized()
            """,
            env=NO_AUTOLOAD,
        )

    def test_import_takes_at_most_150_ms(self):
        program = """
            import time, torch
            start = time.process_time()  # what it costs, whoever else keeps the machine busy
            import torch_hologram
            print(time.process_time() - start)
        """
        # With bytecode written, as pip does when it installs: compiling it is not what counts.
        env = {**NO_AUTOLOAD, "PYTHONDONTWRITEBYTECODE": ""}
        # A busy machine takes the caches away: the least of some tries is the import's own.
        seconds = []
        while len(seconds) < 10 and min(seconds, default=1.0) >= 0.150:
            seconds.append(float(run_python(program, env=env).stdout))
        self.assertLess(min(seconds), 0.150)

    def test_version(self):
        import torch_hologram

        self.assertRegex(torch_hologram.__version__, r"^\d+\.\d+")
        with self.assertRaisesRegex(AttributeError, "no_such_name"):
            torch_hologram.no_such_name  # noqa: B018


class TestVersionCheck(TestCase):
    def test_supported_versions_pass(self):
        for minor in SUPPORTED:
            check_version(f"{minor}.1+cpu", minor, "0.1.0")

    def test_unsupported_version(self):
        for found in ("2.10.0", "2.16.0+cu130", "3.0.0", "2.1.3"):
            with self.assertRaises(ImportError) as caught:
                check_version(found, "2.13", "0.1.0")
            message = str(caught.exception)
            self.assertEqual(
                message,
                f"torch_hologram 0.1.0 supports torch {SUPPORTED_TEXT}, "
                f"but torch {found} is installed.",
            )

    def test_built_for_another_version(self):
        with self.assertRaises(ImportError) as caught:
            check_version("2.13.0+cpu", "2.12", "0.1.0")
        self.assertIn("built for torch 2.12", str(caught.exception))
        self.assertIn("torch 2.13.0+cpu is installed", str(caught.exception))
        self.assertIn(SUPPORTED_TEXT, str(caught.exception))

    def test_import_stops_before_the_extension_is_touched(self):
        run_python(
            """
            import sys
            import torch
            torch.__version__ = "2.10.1"
            try:
                import torch_hologram
            except ImportError as error:
                assert "2.15, but torch 2.10.1 is installed" in str(error), error
            else:
                raise AssertionError("imported")
            assert "torch_hologram._C" not in sys.modules
            """,
            env=NO_AUTOLOAD,
        )

    def test_not_built(self):
        run_python(
            """
            import sys
            import torch
            sys.modules["torch_hologram._build_info"] = None
            try:
                import torch_hologram
            except ImportError as error:
                assert "has not been built" in str(error), error
            else:
                raise AssertionError("imported")
            """,
            env=NO_AUTOLOAD,
        )

    def test_extension_does_not_load(self):
        run_python(
            """
            import sys
            import torch
            sys.modules["torch_hologram._C"] = None
            try:
                import torch_hologram
            except ImportError as error:
                assert f"does not load with torch {torch.__version__}" in str(error), error
            else:
                raise AssertionError("imported")
            """,
            env=NO_AUTOLOAD,
        )

    def test_another_backend_has_the_place(self):
        run_python(
            """
            import torch
            torch.utils.rename_privateuse1_backend("other")
            try:
                import torch_hologram
            except RuntimeError as error:
                assert "other" in str(error), error
            else:
                raise AssertionError("imported")
            """,
            env=NO_AUTOLOAD,
        )


class TestFailedAutoload(TestCase):
    """An error inside the entry point is kept until the device is used."""

    def program(self, body: str) -> None:
        lines = [WRONG_BUILD, "import torch", *(line.strip(" ") for line in body.splitlines())]
        run_alone("\n".join(lines))

    def test_torch_works_without_a_warning(self):
        run_alone(
            WRONG_BUILD
            + """
import warnings
warnings.simplefilter("error")
import torch
torch.manual_seed(0)
weight = torch.ones(3, requires_grad=True)
(weight * 2).sum().backward()
assert weight.grad.tolist() == [2.0, 2.0, 2.0]
assert not torch.ones(2).is_pinned()
assert torch.from_dlpack(torch.ones(2)).sum() == 2
with torch.random.fork_rng():
    torch.rand(1)
assert not torch.accelerator.is_available()
assert torch.accelerator.current_accelerator(check_available=True) is None
assert not torch.hologram.is_available()
assert torch.hologram.device_count() == 0
assert not torch.hologram.is_initialized()
assert not hasattr(torch.hologram, "Stream")
"""
        )

    def test_data_loader_pins_nothing(self):
        self.program(
            """
            import warnings
            warnings.simplefilter("ignore")
            from torch.utils.data import DataLoader
            assert len(list(DataLoader(list(range(8)), batch_size=4, pin_memory=True))) == 2
            """
        )

    def test_first_use_raises_the_error(self):
        uses = [
            'torch.ones(2).to("hologram")',
            'torch.ones(2, device="hologram")',
            'torch.nn.Linear(2, 2).to("hologram")',
            "torch.hologram.memory_allocated()",
            "torch.hologram.synchronize()",
            "torch.hologram.Stream()",
        ]
        run_alone(
            WRONG_BUILD
            + f"""
import torch
for use in {uses}:
    try:
        eval(use)
    except RuntimeError as error:
        assert "torch_hologram failed to load" in str(error), (use, error)
        assert "was built for torch 2.1" in str(error), (use, error)
        assert torch.__version__ in str(error), (use, error)
        assert isinstance(error.__cause__, ImportError), (use, error.__cause__)
    else:
        raise AssertionError(use)
"""
        )

    def test_explicit_import_raises_the_error(self):
        run_alone(
            WRONG_BUILD
            + """
import torch
for attempt in range(2):
    sys.modules["torch_hologram._build_info"] = build
    try:
        import torch_hologram
    except ImportError as error:
        assert "was built for torch 2.1" in str(error), error
    else:
        raise AssertionError("imported")
"""
        )

    def test_package_first_raises_and_leaves_torch_usable(self):
        run_alone(
            WRONG_BUILD
            + """
try:
    import torch_hologram
except ImportError as error:
    assert "was built for torch 2.1" in str(error), error
else:
    raise AssertionError("imported")
import torch
assert torch.ones(2).sum() == 2
"""
        )

    def test_a_repaired_installation_loads_in_the_same_process(self):
        run_alone(
            WRONG_BUILD
            + f"""
import torch
assert not torch.hologram.is_available()
build.TORCH_MINOR = ".".join(torch.__version__.split(".")[:2])
sys.modules["torch_hologram._build_info"] = build
import torch_hologram
assert torch.hologram.is_available()
{COMPUTE}
"""
        )


class TestRegistration(TestCase):
    def test_names(self):
        self.assertEqual(torch.device("hologram", 0).type, "hologram")
        self.assertEqual(torch._C._get_privateuse1_backend_name(), "hologram")
        self.assertIs(torch.get_device_module("hologram"), torch.hologram)
        for owner in (torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.TypedStorage):
            self.assertTrue(callable(owner.hologram), owner)
        packed = torch.nn.utils.rnn.PackedSequence
        self.assertTrue(callable(packed.hologram))

    def test_is_hologram(self):
        tensor = torch.ones(2)
        self.assertFalse(tensor.is_hologram)
        self.assertTrue(tensor.hologram().is_hologram)
        self.assertTrue(tensor.hologram().untyped_storage().is_hologram)
        self.assertFalse(tensor.untyped_storage().is_hologram)


if __name__ == "__main__":
    run_tests()
