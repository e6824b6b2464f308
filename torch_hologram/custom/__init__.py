"""Pointwise operators defined at run time: ``torch_hologram.pointwise("swish", "x * sigmoid(x)")``.

An expression is parsed into rows of the op table (parse, graph, rows). On the device a call records
all of them at once, so that they fuse with what is around them; everywhere else the rows are
operations of torch (evaluate). Gradients are expressions too, derived from the rows one after the
other or given by the caller (gradients), and operators of their own (operators): so they fuse, and
have gradients in their turn.
"""

from torch_hologram.custom.operators import PointwiseOperator, _restore, pointwise

__all__ = ["PointwiseOperator", "pointwise"]

# Pickles name it so.
_restore.__module__ = __name__
