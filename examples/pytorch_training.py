"""Train a classifier as a program of PyTorch's usually does, with nothing special for the device.

The data are the two spirals: points in the plane, one class wound around the other. A multilayer
perceptron learns them with DataLoader, AdamW, a one-cycle learning rate and, with --amp, autocast
to bfloat16. Half-way the program saves a checkpoint, forgets everything and resumes.

Exit status: 0 when the accuracy on new points is above 97 %, else 1.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import torch_hologram  # noqa: F401  (autoload does the same; this line also works with it off)

REQUIRED_ACCURACY = 0.97


def spirals(count: int, seed: int) -> TensorDataset:
    """`count` points (float32, 2 coordinates) of both spirals, labels 0 and 1 (int64)."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (count,), generator=generator)
    turn = torch.rand(count, generator=generator).sqrt()
    angle = 3 * math.pi * turn + math.pi * label
    points = torch.stack([angle.cos(), angle.sin()], 1) * turn[:, None]
    return TensorDataset(points + 0.01 * torch.randn(count, 2, generator=generator), label)


class Training:
    """Model, optimizer and schedule, which save and load their state together."""

    def __init__(self, device: torch.device, steps: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)
        ).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-2, steps)

    def save(self, path: Path) -> None:
        torch.save({name: part.state_dict() for name, part in vars(self).items()}, path)

    def load(self, path: Path) -> None:
        for name, state in torch.load(path, weights_only=True).items():
            getattr(self, name).load_state_dict(state)


def train(training: Training, loader: DataLoader, device: torch.device, amp: bool) -> float:
    """One pass over the data; returns the mean loss."""
    training.model.train()
    losses = []
    for points, labels in loader:
        points, labels = points.to(device), labels.to(device)
        training.optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=amp):
            loss = F.cross_entropy(training.model(points), labels)
        loss.backward()
        training.optimizer.step()
        training.schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Share of right answers, 0 to 1."""
    model.eval()
    points, labels = (tensor.to(device) for tensor in data.tensors)
    right = model(points).argmax(1) == labels
    return float(right.float().mean())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="hologram", help="device (default: hologram)")
    parser.add_argument("--epochs", type=int, default=30, help="passes, at least 2 (default: 30)")
    parser.add_argument("--amp", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--seed", type=int, default=0, help="of data and weights (default: 0)")
    arguments = parser.parse_args()
    if arguments.epochs < 2:
        parser.error(f"--epochs must be at least 2, not {arguments.epochs}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    loader = DataLoader(
        spirals(2048, arguments.seed),
        batch_size=128,
        shuffle=True,
        generator=torch.Generator().manual_seed(arguments.seed),
    )
    steps = arguments.epochs * len(loader)
    test = spirals(1024, arguments.seed + 1)
    training = Training(device, steps, arguments.seed)

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(1, arguments.epochs + 1):
            loss = train(training, loader, device, arguments.amp)
            if epoch == arguments.epochs // 2:
                checkpoint = Path(folder, "checkpoint.pt")
                training.save(checkpoint)
                training = Training(device, steps, seed=arguments.seed + 1)  # other weights
                training.load(checkpoint)
                print(f"epoch {epoch:3d}: resumed from a checkpoint")
            if epoch % 5 == 0 or epoch == arguments.epochs:
                right = accuracy(training.model, test, device)
                print(f"epoch {epoch:3d}: loss {loss:.4f}, accuracy {right:.1%}")
    print(f"{time.perf_counter() - start:.2f} s on {device}")
    if right <= REQUIRED_ACCURACY:
        print(f"FAILED: {right:.2%} is not above {REQUIRED_ACCURACY:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
