"""The pointwise operations of a program."""

from __future__ import annotations

import torch

from programs.builder import Builder
from programs.variable import FLOATS, HALVES, KIND, Variable, broadcast, promote

UNARY_EXACT = ("neg", "abs", "relu", "reciprocal", "floor", "ceil", "trunc", "round", "sign")
UNARY_CLOSE = "sqrt rsqrt exp exp2 expm1 log log2 log1p tanh sigmoid erf sin cos".split()
ACTIVATIONS = (
    "torch.nn.functional.silu({x})",
    "torch.nn.functional.gelu({x})",
    "torch.nn.functional.gelu({x}, approximate='tanh')",
)
DIFFERENTIABLE = (*ACTIVATIONS, "torch.tanh({x})", "torch.sigmoid({x})", "torch.relu({x})")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("logical_and", "logical_or", "logical_xor")


def written(number: float) -> str:
    """A number as Python text."""
    return f"float('{number}')" if number in (torch.inf, -torch.inf) else repr(number)


def unary(builder: Builder) -> None:
    x = builder.some()
    exact = builder.chance(0.5)
    name = builder.choose.choice(UNARY_EXACT if exact else UNARY_CLOSE)
    if x.dtype == torch.bool and name in ("neg", "relu", "floor", "ceil", "trunc", "round"):
        return
    dtype = x.dtype
    if not dtype.is_floating_point and (not exact or name == "reciprocal"):
        dtype = torch.float32
    if x.dtype == torch.bool and name == "abs":
        return
    call = f"torch.{name}({x.name}{{out}})"
    exact_out = exact and name != "reciprocal"
    check = "bits" if exact else "close"
    builder.result(
        [x], dtype, call, f"{x.name}.{name}_()", check, "", exact_out, has_out=name != "relu"
    )


def activation(builder: Builder) -> None:
    x = builder.floating()
    if x is not None:
        call = builder.choose.choice(ACTIVATIONS).format(x=x.name)
        builder.result([x], x.dtype, call, None, "close", f"big({x.name})", has_out=False)


def backward(builder: Builder) -> None:
    x = builder.floating()
    if x is None:
        return
    same = [v for v in builder.variables if v.shape == x.shape and v.dtype == x.dtype]
    grad = builder.choose.choice(same)
    function = builder.choose.choice(DIFFERENTIABLE).format(x="x")
    call = f"gradient(lambda x: {function}, {x.name}, {grad.name})"
    scale = f"big({grad.name}) * (1 + big({x.name}))"
    builder.new(x.shape, x.dtype, call, "close", scale)


def operands(builder: Builder, x: Variable) -> tuple[Variable | float, str] | None:
    """What meets `x` in a binary operation."""
    if builder.chance(0.3):
        number = builder.number(x.dtype)
        return number, written(number)
    y = builder.partner(x)
    return None if y is None else (y, y.name)


def binary(builder: Builder) -> None:
    x = builder.some()
    other = operands(builder, x)
    if other is None:
        return
    y, text = other
    name = builder.choose.choice(BINARY)
    dtype = promote([x, y])
    is_number = not isinstance(y, Variable)
    if name in ("maximum", "minimum") and is_number:
        return
    if name == "sub" and (
        x.dtype == torch.bool or y is True or (not is_number and y.dtype == torch.bool)
    ):
        return
    if name == "div" and not dtype.is_floating_point:
        dtype = torch.float32
    check = "values" if name in ("maximum", "minimum") else "bits"
    # A 0-dim tensor of a wider dtype is rounded to half precision by one and not by the other.
    if dtype in HALVES and not is_number and (x.dtype != y.dtype):
        check = "close"
    method = None if name in ("maximum", "minimum") else f"{x.name}.{name}_({text})"
    if is_number and builder.chance(0.2) and name in ("add", "sub", "mul", "div"):
        sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[name]
        builder.result([x, y], dtype, f"({text}) {sign} {x.name}", None, check, has_out=False)
        return
    call = f"torch.{name}({x.name}, {text}{{out}})"
    builder.result([x, y], dtype, call, method, check, f"big({x.name})" if check == "close" else "")


def scaled(builder: Builder) -> None:
    """self + alpha * other and the like: the CPU's kernels round the product or not."""
    x = builder.floating()
    y = None if x is None else builder.partner(x)
    if x is None or y is None or y.dtype == torch.bool:
        return
    alpha = builder.choose.choice([2, 0.5, -1.0, 0.1])
    name = builder.choose.choice(["add", "sub"])
    scale = f"big({x.name}) + {abs(alpha)} * big({y.name})"
    call = f"torch.{name}({x.name}, {y.name}, alpha={alpha}{{out}})"
    method = f"{x.name}.{name}_({y.name}, alpha={alpha})"
    builder.result([x, y], promote([x, y]), call, method, "close", scale)


def power(builder: Builder) -> None:
    x = builder.floating()
    if x is None:
        return
    if builder.chance(0.7):
        # Exact in every dtype: torch takes an exponent as float64 here and rounded there.
        number = builder.choose.choice([2, 3, 0.5, -1, -2, -0.5, 1.75, 0, 1])
        call, method = f"torch.pow({x.name}, {number}{{out}})", f"{x.name}.pow_({number})"
        builder.result([x], x.dtype, call, method, "close")
    elif (y := builder.partner(x, floating=True)) is not None:
        call = f"torch.pow({x.name}, {y.name}{{out}})"
        builder.result([x, y], promote([x, y]), call, f"{x.name}.pow_({y.name})", "close")


def comparison(builder: Builder) -> None:
    x = builder.some()
    other = operands(builder, x)
    if other is None:
        return
    y, text = other
    name = builder.choose.choice(COMPARISONS)
    call, method = f"torch.{name}({x.name}, {text}{{out}})", f"{x.name}.{name}_({text})"
    builder.result([x, y], torch.bool, call, method, "bits")


def logical(builder: Builder) -> None:
    x = builder.some()
    if builder.chance(0.3):
        call, method = f"torch.logical_not({x.name}{{out}})", f"{x.name}.logical_not_()"
        builder.result([x], torch.bool, call, method, "bits")
    elif (y := builder.partner(x)) is not None:
        name = builder.choose.choice(LOGICAL)
        call = f"torch.{name}({x.name}, {y.name}{{out}})"
        builder.result([x, y], torch.bool, call, f"{x.name}.{name}_({y.name})", "bits")


def where(builder: Builder) -> None:
    masks = [v for v in builder.variables if v.dtype == torch.bool]
    if not masks:
        comparison(builder)
        return
    mask = builder.choose.choice(masks)
    x = builder.partner(mask)
    other = None if x is None else operands(builder, x)
    if x is None or other is None:
        return
    y, text = other
    shape = broadcast(mask.shape, x.shape)
    if isinstance(y, Variable) and (shape is None or broadcast(shape, y.shape) is None):
        return
    if not isinstance(y, Variable) and builder.chance(0.4):
        if KIND[promote([y])] > KIND[x.dtype] or shape != x.shape:
            return
        call, method = (
            f"{x.name}.masked_fill({mask.name}, {text})",
            f"{x.name}.masked_fill_({mask.name}, {text})",
        )
        builder.result([x, mask], x.dtype, call, method, "bits", has_out=False)
        return
    # promote() of the two values: the condition has no say
    dtype = promote([x, y])
    call = f"torch.where({mask.name}, {x.name}, {text}{{out}})"
    builder.result([mask, x, y], dtype, call, None, "bits", has_out=False)


def clamp(builder: Builder) -> None:
    x = builder.some()
    if x.dtype == torch.bool:
        return
    low, high = sorted([builder.number(x.dtype), builder.number(x.dtype)])
    bounds = [low, high]
    text = f"{written(low)}, {written(high)}"
    if builder.chance(0.2):
        bounds, text = [high], f"max={written(high)}"
    elif builder.chance(0.2):
        bounds, text = [low], f"min={written(low)}"
    call, method = f"torch.clamp({x.name}, {text}{{out}})", f"{x.name}.clamp_({text})"
    # Of two zeros either may come out.
    builder.result([x], promote([x, *bounds]), call, method, "values", exact_out=True)


def three(builder: Builder) -> None:
    x = builder.floating()
    y = None if x is None else builder.partner(x, floating=True)
    z = None if y is None else builder.partner(y, floating=True)
    if x is None or y is None or z is None or broadcast(x.shape, z.shape) is None:
        return
    names = f"{x.name}, {y.name}"
    if builder.chance(0.4):
        if x.dtype != y.dtype:
            return
        weight = builder.choose.choice([0.1, 0.5, 0.75, -2.0])
        scale = f"{abs(weight) + 1} * (big({x.name}) + big({y.name}))"
        call, method = (
            f"torch.lerp({names}, {weight}{{out}})",
            f"{x.name}.lerp_({y.name}, {weight})",
        )
        builder.result([x, y], x.dtype, call, method, "close", scale)
        return
    name = builder.choose.choice(["addcmul", "addcdiv"])
    value = builder.choose.choice([1, 0.5, -3.0])
    last = f"* big({z.name})" if name == "addcmul" else f"/ small({z.name})"
    scale = f"big({x.name}) + {abs(value)} * big({y.name}) {last}"
    call = f"torch.{name}({names}, {z.name}, value={value}{{out}})"
    method = f"{x.name}.{name}_({y.name}, {z.name}, value={value})"
    builder.result([x, y, z], promote([x, y, z]), call, method, "close", scale)


def convert(builder: Builder) -> None:
    x = builder.some()
    dtype = builder.choose.choice([*FLOATS, torch.int64, torch.bool])
    # A float that an integer cannot hold becomes whatever the compiler's code makes of it.
    source = x.name
    if x.dtype.is_floating_point and dtype == torch.int64:
        source = f"{x.name}.nan_to_num(0.0).clamp(-1000.0, 1000.0)"
    if builder.chance(0.5):
        builder.new(x.shape, dtype, f"{source}.to({dtype}, copy=True)")
        return
    targets = [
        v for v in builder.variables if broadcast(v.shape, x.shape) == v.shape and v is not x
    ]
    if targets:
        target = builder.choose.choice(targets)
        if target.dtype == torch.int64 and x.dtype.is_floating_point:
            return
        builder.write(target, [x], f"{target.name}.copy_({x.name})", "bits", "")


def fill(builder: Builder) -> None:
    x = builder.some()
    number = builder.number(x.dtype)
    if x.dtype == torch.int64 and isinstance(number, float):
        return
    text = f"{x.name}.zero_()" if builder.chance(0.3) else f"{x.name}.fill_({written(number)})"
    builder.write(x, [], text, "bits", "")


def draw(builder: Builder) -> None:
    """Random numbers: of a tensor that there is, of a new one, or dropout of one."""
    x = builder.some()
    if x.dtype.is_floating_point and builder.chance(0.4):
        chance, seed = builder.choose.choice([0.1, 0.5, 0.75]), builder.choose.randrange(100)
        builder.new(x.shape, x.dtype, f"dropout({x.name}, {chance}, {seed})", "drawn")
        return
    methods = ["'bernoulli_', 0.25"]
    if x.dtype.is_floating_point:
        methods += ["'uniform_', -1, 2", "'uniform_'", "'normal_', 1, 0.5", "'exponential_', 2"]
    if x.dtype != torch.bool:
        methods += ["'random_', -5, 9", "'geometric_', 0.5"]
    method = builder.choose.choice(methods)
    if builder.chance(0.5):
        builder.new(x.shape, x.dtype, f"draw(torch.empty_like({x.name}), {method})", "drawn")
    else:
        builder.write(x, [], f"draw({x.name}, {method})", "drawn", "")


def several(builder: Builder) -> None:
    """One operation over a list of tensors."""
    x = builder.floating()
    if x is None:
        return
    same = [v for v in builder.variables if v.dtype == x.dtype and v.writable and v.alone]
    if len(same) < 2:
        return
    chosen = builder.choose.sample(same, min(3, len(same)))
    names = ", ".join(v.name for v in chosen)
    number = written(builder.number(x.dtype))
    name = builder.choose.choice(["add", "mul", "div"])
    # mul_ takes a number of a list's call rounded to half precision, that of others as it is.
    check = "close" if x.dtype in HALVES else "bits"
    builder.emit(f"torch._foreach_{name}_([{names}], {number})", f"({names})", check)
