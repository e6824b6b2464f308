"""torch.save, torch.load, pickle, safetensors."""

from __future__ import annotations

import copy
import io
import pickle
import tempfile
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from common import HologramTestCase, run_python, several_devices
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)


def saved(value: object) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


class TestTorchSave(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tensor = torch.arange(6.0, device="hologram").reshape(2, 3)

    @parametrize(
        "map_location, expected",
        [
            (None, "hologram"),
            ("cpu", "cpu"),
            ("hologram", "hologram"),
            ("hologram:0", "hologram"),
            (torch.device("cpu"), "cpu"),
            (torch.device("hologram"), "hologram"),
            (torch.device("hologram", 0), "hologram"),
            ({"hologram:0": "cpu"}, "cpu"),
            ({"hologram:0": "hologram:0"}, "hologram"),
            ({"cuda:0": "cpu"}, "hologram"),
            (lambda storage, location: storage, "cpu"),
            (lambda storage, location: storage.hologram(), "hologram"),
            (lambda storage, location: None, "hologram"),
            ("meta", "meta"),
        ],
    )
    @parametrize("weights_only", [True, False])
    def test_map_location(self, map_location, expected, weights_only):
        loaded = torch.load(
            saved({"a": self.tensor}), map_location=map_location, weights_only=weights_only
        )["a"]
        self.assertEqual(loaded.device.type, expected)
        if expected != "meta":
            self.assertEqual(loaded.cpu(), self.tensor.cpu())

    def test_cpu_file_to_device(self):
        for place in ("hologram", "hologram:0", torch.device("hologram")):
            loaded = torch.load(saved(torch.arange(4)), map_location=place, weights_only=True)
            self.assertEqual(loaded.device, torch.device("hologram", 0))
            self.assertEqual(loaded.cpu(), torch.arange(4))

    def test_default_device(self):
        buffer = saved(self.tensor)
        with torch.device("hologram"):
            self.assertTrue(torch.load(buffer, weights_only=True).is_hologram)

    @parametrize("map_location", [None, "hologram", "cpu"])
    def test_mmap(self, map_location):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tensor.pt"
            torch.save({"a": self.tensor}, path)
            loaded = torch.load(path, map_location=map_location, mmap=True, weights_only=True)["a"]
            self.assertEqual(loaded.device.type, map_location or "hologram")
            self.assertEqual(loaded.cpu(), self.tensor.cpu())
            loaded += 1  # copy on write: the file stays as it is
            again = torch.load(path, map_location="cpu", weights_only=True)["a"]
            self.assertEqual(again, self.tensor.cpu())

    def test_shared_storages_stay_shared(self):
        tensor = self.tensor
        loaded, view = torch.load(saved([tensor, tensor[1]]), weights_only=True)
        loaded[1, 0] = 42
        self.assertEqual(view[0].item(), 42)
        self.assertEqual(view.storage_offset(), 3)

    @parametrize(
        "dtype",
        [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint16],
    )
    def test_dtypes(self, dtype):
        tensor = torch.tensor([0, 1, 2, 3]).to(dtype)
        loaded = torch.load(saved(tensor.to("hologram")), weights_only=True)
        self.assertEqual(loaded.dtype, dtype)
        self.assertEqual(loaded.cpu(), tensor)

    def test_strides_and_empty(self):
        for tensor in (self.tensor.t(), self.tensor[:, ::2], self.tensor[:0], self.tensor[0, 0]):
            loaded = torch.load(saved(tensor), weights_only=True)
            self.assertEqual(loaded.stride(), tensor.stride())
            self.assertEqual(loaded.cpu(), tensor.cpu())

    def test_parameters_and_optimizer(self):
        def make():
            module = torch.nn.Linear(3, 2, device="hologram")
            return module, torch.optim.Adam(module.parameters(), lr=0.1)

        module, optimizer = make()
        module(self.tensor).sum().backward()
        optimizer.step()
        state = torch.load(
            saved({"module": module.state_dict(), "optimizer": optimizer.state_dict()}),
            weights_only=True,
        )
        other, other_optimizer = make()
        other.load_state_dict(state["module"])
        other_optimizer.load_state_dict(state["optimizer"])
        for one, two in ((module, optimizer), (other, other_optimizer)):
            one.zero_grad()
            one(self.tensor).square().sum().backward()
            two.step()
        for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
            self.assertTrue(theirs.is_hologram)
            self.assertEqual(mine, theirs)

    def test_requires_grad_and_parameter(self):
        parameter = torch.nn.Parameter(self.tensor.clone())
        loaded = torch.load(saved(parameter), weights_only=True)
        self.assertIsInstance(loaded, torch.nn.Parameter)
        self.assertTrue(loaded.requires_grad)
        self.assertTrue(loaded.is_hologram)

    def test_sparse(self):
        tensor = torch.eye(3).to_sparse()
        loaded = torch.load(saved(tensor), map_location="hologram", weights_only=True)
        self.assertEqual(loaded.device.type, "hologram")
        self.assertEqual(loaded.cpu().to_dense(), torch.eye(3))

    def test_generator_state(self):
        state = torch.hologram.get_rng_state()
        self.assertEqual(torch.load(saved(state), weights_only=True), state)

    def test_device_that_is_not_here(self):
        count = torch.hologram.device_count()
        buffer = saved(self.tensor)
        where = f"hologram:{count + 2}"
        with self.assertRaisesRegex(
            RuntimeError,
            rf"device {count + 2} but torch.hologram.device_count\(\) is {count}.*map_location",
        ):
            torch.load(buffer, map_location={"hologram:0": where}, weights_only=True)
        buffer.seek(0)
        loaded = torch.load(buffer, map_location="cpu", weights_only=True)
        self.assertEqual(loaded, self.tensor.cpu())

    def test_file_of_a_missing_device(self):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "tensor.pt")
            run_python(
                """
                import sys, torch
                torch.save(torch.ones(3, device="hologram:7"), sys.argv[1])
                """,
                path,
                env=several_devices(8),
            )
            with self.assertRaisesRegex(RuntimeError, "device 7 but torch.hologram.device_count"):
                torch.load(path, weights_only=True)
            loaded = torch.load(path, map_location={"hologram:7": "hologram:0"}, weights_only=True)
            self.assertEqual(loaded.cpu(), torch.ones(3))


class TestPickle(HologramTestCase):
    def test_pickle(self):
        tensor = torch.arange(5, device="hologram")[1:]
        loaded = pickle.loads(pickle.dumps(tensor))
        self.assertEqual(loaded.device, tensor.device)
        self.assertEqual(loaded.cpu(), tensor.cpu())

    def test_deepcopy(self):
        tensor = torch.arange(4.0, device="hologram")
        leaf = torch.ones(4, device="hologram", requires_grad=True)
        leaf.sum().backward()
        parameter = torch.nn.Parameter(torch.ones(2, device="hologram"))
        copies = copy.deepcopy({"tensor": tensor, "view": tensor[2:], "leaf": leaf, "p": parameter})
        copies["tensor"][2] = 9
        self.assertEqual(copies["view"][0].item(), 9)
        self.assertEqual(tensor[2].item(), 2)
        self.assertTrue(copies["leaf"].grad.is_hologram)
        self.assertEqual(copies["leaf"].grad.cpu(), torch.ones(4))
        self.assertIsNot(copies["leaf"].grad, leaf.grad)
        self.assertIsInstance(copies["p"], torch.nn.Parameter)
        self.assertTrue(copies["p"].is_hologram)

    def test_module(self):
        module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).hologram()
        x = torch.randn(4, 2, device="hologram")
        for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            self.assertEqual(twin.eval()(x), copy.deepcopy(module).eval()(x))

    def test_device_object(self):
        device = torch.device("hologram", 0)
        self.assertEqual(pickle.loads(pickle.dumps(device)), device)


class TestSafetensors(HologramTestCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(Path(folder.name) / "tensors.safetensors")
        self.tensors = {
            "weight": torch.randn(3, 4),
            "half": torch.randn(5).bfloat16(),
            "count": torch.arange(3),
        }

    def test_save_from_the_device(self):
        on_device = {name: tensor.hologram() for name, tensor in self.tensors.items()}
        safetensors.torch.save_file(on_device, self.path)
        self.assertEqual(safetensors.torch.load_file(self.path), self.tensors)
        self.assertEqual(safetensors.torch.load(safetensors.torch.save(on_device)), self.tensors)

    def test_load_to_the_device(self):
        safetensors.torch.save_file(self.tensors, self.path)
        for device in ("hologram", "hologram:0", 0):
            loaded = safetensors.torch.load_file(self.path, device=device)
            for name, tensor in self.tensors.items():
                self.assertEqual(loaded[name].device, torch.device("hologram", 0))
                self.assertEqual(loaded[name].cpu(), tensor)

    def test_safe_open(self):
        safetensors.torch.save_file(self.tensors, self.path)
        with safetensors.safe_open(self.path, framework="pt", device="hologram") as file:
            self.assertEqual(set(file.keys()), set(self.tensors))
            self.assertEqual(file.get_tensor("weight").device.type, "hologram")
            self.assertEqual(file.get_tensor("weight").cpu(), self.tensors["weight"])
            part = file.get_slice("weight")[1:, :2]
            self.assertEqual(part.cpu(), self.tensors["weight"][1:, :2])

    def test_module(self):
        module = torch.nn.Linear(4, 3).hologram()
        safetensors.torch.save_model(module, self.path)
        other = torch.nn.Linear(4, 3).hologram()
        safetensors.torch.load_model(other, self.path, device="hologram")
        self.assertEqual(other.state_dict(), module.state_dict())

    def test_other_devices_as_before(self):
        safetensors.torch.save_file(self.tensors, self.path)
        self.assertTrue(safetensors.torch.load_file(self.path, device="cpu")["weight"].is_cpu)
        with self.assertRaisesRegex(safetensors.SafetensorError, "nowhere is invalid"):
            safetensors.torch.load_file(self.path, device="nowhere")

    def test_imported_before_and_after(self):
        safetensors.torch.save_file(self.tensors, self.path)
        load = 'assert load_file(sys.argv[1], device="hologram")["weight"].is_hologram'
        run_python(
            f"""
            import sys, torch
            assert "safetensors" not in sys.modules
            from safetensors.torch import load_file
            {load}
            import importlib.resources, safetensors
            assert importlib.resources.files(safetensors).joinpath("__init__.py").is_file()
            """,
            self.path,
        )
        run_python(
            f"""
            import sys
            import torch
            from safetensors.torch import load_file
            import torch_hologram
            {load}
            """,
            self.path,
            env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )


instantiate_parametrized_tests(TestTorchSave)

if __name__ == "__main__":
    run_tests()
