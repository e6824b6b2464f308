"""Chains of pointwise operations: the parts of benchmarks/stream.py."""

import torch_hologram  # noqa: F401  (autoload does the same; this line also works with it off)
