"""Train a small convolutional network on real handwritten digits, on a device and on the CPU.

The data are the 1,797 scans of 8x8 pixels that ship with scikit-learn; a quarter of them is kept
for the test. Both runs start from the same weights and see the same batches, so their loss curves
should lie on each other. The program prints what each run reached and which operators the device
ran by itself, and draws a picture of it.

Exit status: 0 when the test accuracy of every run is above 95 %, else 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

import torch_hologram  # noqa: F401  (autoload does the same; this line also works with it off)

BATCH_SIZE = 64
REQUIRED_ACCURACY = 0.95

# How the device serves an operator.
KINDS = {
    "native": "kernels of this project",
    "delegated": "torch's kernels over the same memory, no copies",
    "copied": "torch's CPU kernels over copies",
}


@dataclass
class Data:
    """Images are float32 (n, 1, 8, 8) in 0..1, labels int64 (n,) in 0..9."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    def to(self, device: torch.device) -> Data:
        return Data(*(tensor.to(device) for tensor in vars(self).values()))


@dataclass
class Run:
    """What one training run left behind."""

    device: str
    seconds: float
    losses: list[float]  # one per step
    accuracies: list[float]  # test accuracy after each epoch, 0..1
    predictions: np.ndarray  # of the test images, after the last epoch
    operators: dict[str, dict[str, int]] = field(default_factory=dict)  # kind -> operator -> calls
    peak_bytes: int | None = None


def load_data(seed: int) -> Data:
    """The digits, split into three quarters for training and one quarter for the test."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    parts = train_test_split(images, labels, test_size=0.25, random_state=seed, stratify=labels)
    train_images, test_images, train_labels, test_labels = map(torch.from_numpy, parts)
    return Data(train_images, train_labels, test_images, test_labels)


def make_model(seed: int) -> nn.Module:
    """(n, 1, 8, 8) -> (n, 10) logits; the weights depend on the seed only."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def synchronize(device: torch.device) -> None:
    if device.type == "hologram":
        torch.hologram.synchronize(device)


@torch.no_grad()
def predict(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Class index of each image, int64 (n,), on the device of the images."""
    model.eval()
    predictions: torch.Tensor = model(images).argmax(dim=1)
    model.train()
    return predictions


def warm_up(device: torch.device, data: Data) -> None:
    """One step on a model of its own, so that no timing contains first-call work."""
    model = make_model(0).to(device)
    F.cross_entropy(
        model(data.train_images[:BATCH_SIZE]), data.train_labels[:BATCH_SIZE]
    ).backward()
    predict(model, data.test_images)
    synchronize(device)


def train(device: torch.device, data: Data, epochs: int, seed: int) -> Run:
    """Train from `seed` for `epochs` passes over the data and test after each."""
    data = data.to(device)
    warm_up(device, data)
    on_hologram = device.type == "hologram"
    if on_hologram:
        torch.hologram.reset_fallback_report()
        torch.hologram.reset_peak_memory_stats(device)

    model = make_model(seed).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    order = torch.Generator().manual_seed(seed)  # on the CPU: the same batches on every device
    steps_per_epoch = -(-len(data.train_labels) // BATCH_SIZE)
    losses: list[float] = []
    accuracies: list[float] = []

    start = time.perf_counter()
    with tqdm(total=epochs * steps_per_epoch, desc=f"{device!s:>10}", unit="step") as progress:
        for _ in range(epochs):
            shuffled = torch.randperm(len(data.train_labels), generator=order)
            for batch in shuffled.to(device).split(BATCH_SIZE):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data.train_images[batch]), data.train_labels[batch])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                progress.update()
            predictions = predict(model, data.test_images)
            accuracies.append((predictions == data.test_labels).float().mean().item())
            progress.set_postfix_str(
                f"loss {losses[-1]:.4f}, test accuracy {accuracies[-1]:.1%}", refresh=False
            )
    synchronize(device)
    seconds = time.perf_counter() - start

    run = Run(str(device), seconds, losses, accuracies, predictions.cpu().numpy())
    if on_hologram:
        report = torch.hologram.fallback_report()
        run.operators = {kind: report.operators(kind) for kind in KINDS}
        run.peak_bytes = torch.hologram.max_memory_allocated(device)
    return run


def print_operators(run: Run) -> None:
    print(f"operators on {run.device}")
    for kind, explanation in KINDS.items():
        calls = run.operators[kind]
        total = sum(calls.values())
        print(f"  {kind:<9} {len(calls):3d} operators, {total:6d} calls  ({explanation})")
        for name, count in sorted(calls.items(), key=lambda item: -item[1]):
            print(f"    {count:6d}  {name}")


def largest_difference(a: Run, b: Run) -> float:
    """Largest distance between the two loss curves at the same step."""
    return max(abs(x - y) for x, y in zip(a.losses, b.losses, strict=True))


def print_summary(runs: list[Run]) -> None:
    print()
    for run in runs:
        if run.operators:
            print_operators(run)
            print()
    print(f"{'device':<12}{'test accuracy':>14}{'final loss':>12}{'time':>10}{'memory peak':>14}")
    for run in runs:
        peak = "" if run.peak_bytes is None else f"{run.peak_bytes / 2**20:.2f} MiB"
        print(
            f"{run.device:<12}{run.accuracies[-1]:>14.2%}{run.losses[-1]:>12.4f}"
            f"{run.seconds:>8.2f} s{peak:>14}"
        )
    if len(runs) == 2:
        print(
            f"largest difference between the loss curves: {largest_difference(*runs):.2e} "
            f"over {len(runs[0].losses)} steps"
        )


def draw(runs: list[Run], test_labels: np.ndarray, path: Path) -> None:
    """Loss curves, accuracy per epoch and the confusion matrix of the first run, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    styles = [
        {"color": "#0072b2", "linewidth": 3.2, "alpha": 0.55, "markersize": 9},
        {"color": "#d55e00", "linewidth": 1.2, "linestyle": (0, (4, 2)), "markersize": 4},
    ]
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (loss, accuracy, confusion) = plt.subplots(
        1, 3, figsize=(15, 4.8), layout="constrained", width_ratios=[1.15, 1, 1]
    )
    devices = " and ".join(run.device for run in runs)
    figure.suptitle(f"Handwritten digits, a small CNN trained on {devices}", fontsize=14)

    for run, style in zip(runs, styles, strict=False):
        loss.plot(range(1, len(run.losses) + 1), run.losses, label=run.device, **style)
        epochs = range(1, len(run.accuracies) + 1)
        label = f"{run.device}: {run.accuracies[-1]:.1%} in {run.seconds:.1f} s"
        accuracy.plot(epochs, [100 * a for a in run.accuracies], label=label, marker="o", **style)
    loss.set(xlabel="step", ylabel="cross entropy", yscale="log", title="Training loss")
    if len(runs) == 2:
        loss.text(
            0.03,
            0.04,
            f"largest difference {largest_difference(*runs):.1e}",
            transform=loss.transAxes,
        )
    loss.legend(frameon=False)
    accuracy.axhline(100 * REQUIRED_ACCURACY, color="0.6", linewidth=1, linestyle=":")
    accuracy.set(xlabel="epoch", ylabel="test accuracy, %", title="Accuracy")
    accuracy.xaxis.set_major_locator(MaxNLocator(integer=True))
    accuracy.legend(frameon=False, loc="lower right")

    counts = np.zeros((10, 10), dtype=int)
    np.add.at(counts, (test_labels, runs[0].predictions), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    confusion.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if shares[row, column] > 0.5 else "black"
            confusion.text(column, row, count, ha="center", va="center", color=color, fontsize=9)
    confusion.spines[:].set_visible(False)
    confusion.set(
        xlabel="predicted",
        ylabel="written",
        xticks=range(10),
        yticks=range(10),
        title=f"Confusion on {len(test_labels)} test images ({runs[0].device})",
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (default: 20)")
    parser.add_argument(
        "--device", default="hologram", help="device to compare with the cpu (default: hologram)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights, split and batches")
    parser.add_argument(
        "--output", type=Path, default=Path("demo.png"), help="picture to write (default: demo.png)"
    )
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1, not {arguments.epochs}")
    try:
        arguments.device = torch.device(arguments.device)
    except RuntimeError as error:
        parser.error(f"--device: {error}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    data = load_data(arguments.seed)
    devices = [arguments.device]
    if arguments.device.type != "cpu":
        devices.append(torch.device("cpu"))
    runs = [train(device, data, arguments.epochs, arguments.seed) for device in devices]
    print_summary(runs)
    if arguments.device.type == "hologram":
        print(f"{arguments.device} is {torch.hologram.get_device_name(arguments.device)}")
    draw(runs, data.test_labels.numpy(), arguments.output)
    print(f"wrote {arguments.output}")

    worst = min(runs, key=lambda run: run.accuracies[-1])
    if worst.accuracies[-1] <= REQUIRED_ACCURACY:
        print(
            f"FAILED: {worst.accuracies[-1]:.2%} on {worst.device} is not above "
            f"{REQUIRED_ACCURACY:.0%}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
