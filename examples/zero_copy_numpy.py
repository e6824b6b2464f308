"""Share the memory of NumPy arrays with the device, in both directions, and measure a copy.

A recording (channels x samples, made here) belongs to a NumPy program. The device normalises and
clips it where it lies, NumPy computes its spectrum, and the device weights the spectrum: one buffer
each, nothing is copied, and every step is checked against NumPy alone. Then the time that it takes
to hand memory over is measured, shared and copied.

Exit status: 0 when all results agree and no memory was copied, else 1.
"""

from __future__ import annotations

import argparse
import sys
import timeit

import numpy as np
import torch

import torch_hologram as hg


def recording(channels: int, samples: int) -> np.ndarray:
    """A sine of another frequency in each channel, with noise; float32."""
    time = np.arange(samples) / samples
    tones = np.sin(2 * np.pi * np.arange(1, channels + 1)[:, None] * 5 * time)
    noise = np.random.default_rng(0).normal(scale=0.1, size=tones.shape)
    return (tones * 3 + noise + 0.5).astype(np.float32)


def normalise(signal: torch.Tensor) -> None:
    """Mean 0 and deviation 1 in each channel, clipped at 2; in place."""
    signal -= signal.mean(1, keepdim=True)
    signal /= signal.std(1, keepdim=True)
    signal.clamp_(-2, 2)


def expected(array: np.ndarray) -> np.ndarray:
    """What normalise() does, by NumPy alone."""
    centred = array - array.mean(1, keepdims=True)
    clipped: np.ndarray = np.clip(centred / centred.std(1, ddof=1, keepdims=True), -2, 2)
    return clipped


def check(what: str, right: bool) -> None:
    print(f"  {'ok' if right else 'WRONG':<6} {what}")
    if not right:
        sys.exit(1)


def measure(sizes: list[int]) -> None:
    """Prints how long it takes to make a tensor of an array, and to see a tensor as an array."""
    print(f"\n{'elements':>10}{'shared':>12}{'copied':>12}{'as array':>12}")
    for size in sizes:
        array = np.zeros(size, np.float32)
        tensor = hg.from_numpy(array)
        columns = (
            lambda array=array: hg.from_numpy(array),
            lambda array=array: hg.from_numpy(array, copy=True),
            lambda tensor=tensor: np.from_dlpack(tensor),
        )
        times = [min(timeit.repeat(call, number=10, repeat=5)) / 10 * 1e6 for call in columns]
        print(f"{size:>10,}" + "".join(f"{time:>9.1f} us" for time in times))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--channels", type=int, default=4, help="default: 4")
    parser.add_argument("--samples", type=int, default=4096, help="of a channel (default: 4096)")
    arguments = parser.parse_args()
    if arguments.channels < 1 or arguments.samples < 128:
        parser.error("there must be a channel and 128 samples, or more")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    array = recording(arguments.channels, arguments.samples)
    reference = expected(array)

    print("NumPy's memory, used by the device")
    signal = hg.from_numpy(array)
    check("the tensor has the array's address", signal.data_ptr() == array.ctypes.data)
    normalise(signal)
    check("the array holds the device's result", np.allclose(array, reference, atol=1e-5))
    array[0, 0] = 7
    check("the tensor sees what NumPy writes", signal[0, 0].item() == 7)
    array[0, 0] = reference[0, 0]

    print("The device's memory, used by NumPy")
    spectrum = torch.empty(arguments.channels, arguments.samples // 2 + 1, device="hologram")
    view = np.from_dlpack(spectrum)
    check("the array has the tensor's address", view.ctypes.data == spectrum.data_ptr())
    view[:] = np.abs(np.fft.rfft(array))
    spectrum *= torch.linspace(1, 0, spectrum.shape[1], device="hologram")
    weights = np.linspace(1, 0, view.shape[1], dtype=np.float32)
    check(
        "NumPy's spectrum, weighted by the device",
        np.allclose(view, np.abs(np.fft.rfft(array)) * weights, rtol=1e-4, atol=1e-3),
    )
    peaks = view.argmax(1)
    check(f"each channel's tone is found: {peaks.tolist()}", len(set(peaks)) == len(peaks))

    print("What would be wrong to share")
    array.flags.writeable = False
    try:
        hg.from_numpy(array)
    except ValueError:
        check("a read-only array is refused", True)
    else:
        check("a read-only array is refused", False)
    copied = hg.from_numpy(array, copy=True)
    check("and copied on request", copied.data_ptr() != array.ctypes.data)

    measure([1_000, 100_000, 10_000_000])
    return 0


if __name__ == "__main__":
    sys.exit(main())
