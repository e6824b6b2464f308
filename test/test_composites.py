"""Operators made of several rows: every overload is recorded, and gives the CPU's values."""

from __future__ import annotations

import torch
from common import DELEGATED, HologramTestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_hologram import _C

SHAPE = (3, 37)
NATIVE = sorted(name for name, kind in _C.operator_table() if kind == "native")


def overloads(composite: str) -> list[torch._ops.OpOverload]:
    """The overloads of an operator, and of its in-place form, that have a kernel of the device."""
    found = []
    for name in (composite, composite + "_"):
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet else ():
            op = getattr(packet, overload)
            if op.name() in NATIVE:
                found.append(op)
    return found


def arguments(op: torch._ops.OpOverload, word: str) -> tuple[list, dict]:
    """Operands for a schema, on the CPU."""
    generator = torch.Generator().manual_seed(1)
    positional, named = [], {}
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if argument.is_out:
            value = torch.empty(SHAPE)
        elif kind == "Tensor":
            value = torch.rand(SHAPE, generator=generator) + 0.25
        elif kind == "str":
            value = word
        else:
            value = 0.3 if len(positional) % 2 else 0.75
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return positional, named


def moved(value):
    return value.to("hologram") if isinstance(value, torch.Tensor) else value


class TestComposites(HologramTestCase):
    @parametrize("composite", _C.composites())
    def test_every_overload_is_recorded(self, composite):
        ops = overloads(composite)
        self.assertTrue(ops)
        for op in ops:
            for word in ("none", "tanh"):
                here, named = arguments(op, word)
                there = [moved(value) for value in here]
                named_there = {name: moved(value) for name, value in named.items()}
                torch.hologram.reset_fallback_report()
                before = torch.hologram.stream_stats()["recorded"]
                result = op(*there, **named_there)
                self.assertEqual(torch.hologram.fallback_report().calls(DELEGATED), 0, op.name())
                self.assertGreater(torch.hologram.stream_stats()["recorded"], before, op.name())
                expected = op(*here, **named)
                self.assertEqual(result.cpu(), expected, msg=f"{op.name()} {word}")
                # What is written is what the schema says.
                for mine, theirs in zip(
                    [*there, *named_there.values()], [*here, *named.values()], strict=True
                ):
                    self.assertEqual(moved_back(mine), theirs, msg=op.name())
                for written in [*there, *named_there.values()]:
                    same = isinstance(written, torch.Tensor) and written is result
                    if same:
                        self.assertIsNot(op._schema.returns[0].alias_info, None, op.name())

    @parametrize("composite", _C.composites())
    def test_no_form_is_left_out(self, composite):
        """Of the overloads that take numbers and tensors as one that is recorded does, all are."""
        ops = overloads(composite)
        kinds = {kinds_of(op) for op in ops}
        for name in (composite, composite + "_"):
            packet = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet else ():
                op = getattr(packet, overload)
                if kinds_of(op) in kinds and has_kernel(op.name()):
                    self.assertIn(op.name(), NATIVE)

    def test_out_of_another_shape_is_torchs_to_resize(self):
        x = torch.rand(SHAPE, device="hologram")
        out = torch.empty(0, device="hologram")
        torch.clamp(x, 0.2, 0.7, out=out)
        self.assertEqual(out.cpu(), x.cpu().clamp(0.2, 0.7))
        with self.assertRaisesRegex(RuntimeError, "can't be cast|expected"):
            torch.clamp(x, 0.2, 0.7, out=torch.empty(SHAPE, dtype=torch.int64, device="hologram"))


def kinds_of(op: torch._ops.OpOverload) -> tuple[str, ...]:
    return tuple(str(argument.type) for argument in op._schema.arguments if not argument.is_out)


def has_kernel(name: str) -> bool:
    """Some overloads of TorchScript's are no operators of the dispatcher."""
    return any(
        torch._C._dispatch_has_kernel(name)
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
        for key in ("CPU", "CompositeExplicitAutograd")
    )


def moved_back(value):
    return value.cpu() if isinstance(value, torch.Tensor) else value


instantiate_parametrized_tests(TestComposites)

if __name__ == "__main__":
    run_tests()
