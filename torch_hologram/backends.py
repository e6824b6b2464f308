"""``torch.hologram.backends``: with which precision products and convolutions are computed.

The switches are torch's own, ``torch.backends.cuda.matmul`` and ``torch.backends.cudnn``, with
their defaults. So the device's kernels, and torch's, which serve it too, agree in what they may do,
and :func:`torch.set_float32_matmul_precision` is for both. They mean something to NVIDIA's GPUs.
"""

from torch.backends import cudnn
from torch.backends.cuda import matmul

__all__ = ["cudnn", "matmul"]
