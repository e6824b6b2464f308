"""Factories: device, dtype and strides of what they make, default devices, options."""

from __future__ import annotations

import torch
from common import CUDA_KERNELS, HologramTestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

FACTORIES = {
    "empty": lambda **o: torch.empty(2, 3, **o).zero_(),
    "empty, channels last": lambda **o: torch.empty(
        1, 2, 3, 4, memory_format=torch.channels_last, **o
    ).zero_(),
    "empty_strided": lambda **o: torch.empty_strided((2, 3), (1, 2), **o).zero_(),
    "empty_permuted": lambda **o: torch.empty_permuted((2, 3), (1, 0), **o).zero_(),
    "zeros": lambda **o: torch.zeros(2, 3, **o),
    "ones": lambda **o: torch.ones(2, **o),
    "full": lambda **o: torch.full((2, 2), 7, **o),
    "arange": lambda **o: torch.arange(5, **o),
    "arange, step": lambda **o: torch.arange(1, 9, 2, **o),
    "range": lambda **o: torch.linspace(0, 1, 5, **o),
    "logspace": lambda **o: torch.logspace(0, 1, 5, **o),
    "eye": lambda **o: torch.eye(3, 4, **o),
    "tensor": lambda **o: torch.tensor([[1, 2], [3, 4]], **o),
    "as_tensor": lambda **o: torch.as_tensor([1.0, 2.0], **o),
    "asarray": lambda **o: torch.asarray([1.0, 2.0], **o),
    "scalar": lambda **o: torch.scalar_tensor(3, **o),
    "tril_indices": lambda **o: torch.tril_indices(3, 3, **{**o, "dtype": torch.int64}),
    "triu_indices": lambda **o: torch.triu_indices(3, 4, 1, **{**o, "dtype": torch.int64}),
    "hann_window": lambda **o: torch.hann_window(6, **floating(o)),
    "kaiser_window": lambda **o: torch.kaiser_window(6, **floating(o)),
    "fftfreq": lambda **o: torch.fft.fftfreq(6, **floating(o)),
    "vander": lambda **o: torch.vander(torch.arange(3, **o)),
    "zeros, no elements": lambda **o: torch.zeros(0, 3, **o),
}


def floating(options: dict) -> dict:
    return {**options, "dtype": options.get("dtype") and torch.float64}


# CUDA's kernels round the functions of windows and powers in another way.
TOLERANCE = {} if CUDA_KERNELS else {"rtol": 0, "atol": 0}


class TestFactories(HologramTestCase):
    @parametrize("name", list(FACTORIES))
    def test_device_and_dtype(self, name):
        for dtype in (None, torch.float64, torch.int32, torch.complex64):
            options = {} if dtype is None else {"dtype": dtype}
            if name in ("range", "logspace") and dtype is torch.int32:
                options = {"dtype": torch.float32}
            if dtype is torch.complex64 and name in ("arange", "arange, step", "vander"):
                continue
            wanted = FACTORIES[name](**options)
            for device in ("hologram", "hologram:0", torch.device("hologram"), 0):
                if device == 0 and name == "fftfreq":
                    continue
                mine = FACTORIES[name](device=device, **options)
                self.assertEqual(mine.device, torch.device("hologram", 0))
                self.assertEqual((mine.dtype, mine.stride()), (wanted.dtype, wanted.stride()))
                self.assertEqual(mine.cpu(), wanted, **TOLERANCE)

    @parametrize("name", list(FACTORIES))
    def test_default_device(self, name):
        wanted = FACTORIES[name]()
        with torch.device("hologram"):
            mine, elsewhere = FACTORIES[name](), FACTORIES[name](device="cpu")
        self.assertEqual((mine.device.type, elsewhere.device.type), ("hologram", "cpu"))
        self.assertEqual(mine.cpu(), wanted, **TOLERANCE)
        torch.set_default_device("hologram")
        try:
            self.assertEqual(FACTORIES[name]().device.type, "hologram")
        finally:
            torch.set_default_device(None)

    def test_default_dtype(self):
        torch.set_default_dtype(torch.float64)
        self.addCleanup(torch.set_default_dtype, torch.float32)
        for make in (torch.empty, torch.zeros, torch.rand, torch.randn):
            self.assertEqual(make(2, device="hologram").dtype, torch.float64)
        self.assertEqual(torch.tensor(1.0, device="hologram").dtype, torch.float64)

    def test_like_another(self):
        x = torch.rand(3, 4, device="hologram").t()
        plain = torch.rand(3, 4).t()
        for make in (
            torch.empty_like,
            torch.zeros_like,
            torch.ones_like,
            torch.rand_like,
            torch.randn_like,
            lambda t, **o: torch.full_like(t, 3, **o),
            lambda t, **o: t.new_zeros(2, **o),
            lambda t, **o: t.new_full((2,), 5, **o),
            lambda t, **o: t.new_tensor([1.0], **o),
            lambda t, **o: t.new_empty_strided((2, 2), (1, 2), **o),
        ):
            self.assertEqual(make(x).device, x.device)
            self.assertEqual(make(x).stride(), make(plain).stride())
            self.assertEqual(make(x, device="cpu").device.type, "cpu")
            self.assertEqual(make(plain, device="hologram").device, x.device)
            self.assertEqual(make(x, dtype=torch.float64).dtype, torch.float64)

    def test_options(self):
        self.assertTrue(torch.ones(2, device="hologram", requires_grad=True).requires_grad)
        self.assertFalse(torch.ones(2, device="hologram", pin_memory=False).is_pinned())
        for make in (torch.empty, torch.zeros, torch.rand):
            with self.assertRaisesRegex(RuntimeError, "Only dense CPU tensors can be pinned"):
                make(2, device="hologram", pin_memory=True)

    def test_from_other_libraries(self):
        import numpy

        array = numpy.arange(6.0).reshape(2, 3)
        for make in (torch.tensor, torch.as_tensor, torch.asarray):
            mine = make(array, device="hologram")
            self.assertEqual(mine.device.type, "hologram")
            self.assertEqual(mine.cpu(), torch.from_numpy(array))


instantiate_parametrized_tests(TestFactories)

if __name__ == "__main__":
    run_tests()
