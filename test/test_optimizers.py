"""Optimizers: the fused ones are recorded whole, and no form of a step waits for the device."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from about_torch import FUSED_ADAGRAD_TAKES_AMP
from common import DELEGATED, HologramTestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

hologram = torch.hologram

# More than are recorded together, of equal and of different sizes.
SHAPES = [
    (64, 33),
    (5,),
    (1,),
    (),
    (64, 33),
    (7, 3),
    (5,),
    (4096,),
    (16,),
    (16,),
    (129,),
    (2, 3, 4),
]

FORMS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "loop": {"foreach": False, "fused": False},
}
# By name: the optimizer, its options, and those that only the device's has.
CASES: dict[str, tuple[type, dict[str, Any], dict[str, Any]]] = {
    "Adam": (torch.optim.Adam, {}, {}),
    "Adam decay": (torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.4, 0.99)}, {}),
    "Adam amsgrad": (torch.optim.Adam, {"amsgrad": True, "maximize": True}, {}),
    "Adam capturable": (torch.optim.Adam, {}, {"capturable": True}),
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.1}, {}),
    "AdamW amsgrad": (torch.optim.AdamW, {"weight_decay": 0.1, "amsgrad": True}, {}),
    "AdamW capturable": (torch.optim.AdamW, {"weight_decay": 0.1}, {"capturable": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}, {}),
    "Adagrad decay": (torch.optim.Adagrad, {"weight_decay": 0.1, "maximize": True}, {}),
    "SGD": (torch.optim.SGD, {}, {}),
    "SGD momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}, {}),
    "SGD nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}, {}),
}
KINDS = ["adagrad", "adam", "adamw", "sgd"]


def values(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES
    ]


def watched(step: Any, seen: list[dict[str, int]]) -> Any:
    """A step that notes what of it was not recorded: flushes, and delegated calls."""

    @functools.wraps(step)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        hologram.reset_fallback_report()
        before = hologram.stream_stats()
        result = step(*arguments, **keywords)
        after = hologram.stream_stats()
        found = {k: after[k] - before[k] for k in after if k.startswith("flushes.")}
        found |= hologram.fallback_report().operators(DELEGATED)
        seen.append({name: count for name, count in found.items() if count})
        return result

    return wrapped


def on(device: str, tensor: torch.Tensor) -> torch.Tensor:
    """A copy, on the device one that is pending."""
    return tensor.clone() if device == "cpu" else tensor.to(device) * 1


class OptimizerTestCase(HologramTestCase):
    def train(
        self,
        device: str,
        make: type,
        dtype: torch.dtype = torch.float32,
        steps: int = 4,
        compute: torch.dtype | None = None,
        **options: Any,
    ) -> tuple[list[torch.Tensor], list[dict[str, int]]]:
        """The parameters and their state afterwards, and what each step has flushed."""

        def some(seed: int) -> list[torch.Tensor]:
            return [on(device, value.to(compute or dtype)) for value in values(seed, dtype)]

        parameters = [torch.nn.Parameter(value) for value in some(0)]
        optimizer = make(parameters, **options)
        seen: list[dict[str, int]] = []
        step = watched(optimizer.step, seen)
        for i in range(steps):
            for parameter, gradient in zip(parameters, some(i + 1), strict=True):
                parameter.grad = gradient
            if isinstance(options["lr"], torch.Tensor):
                options["lr"].mul_(1)  # pending: who reads it has to run that
            step()
        results = [parameter.detach() for parameter in parameters]
        for parameter in parameters:
            state = optimizer.state[parameter]
            results += [state[name] for name in sorted(state) if state[name] is not None]
        return [torch.as_tensor(result).cpu() for result in results], seen

    def assertBits(self, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
        self.assertEqual(ours, theirs, rtol=0, atol=0)


class TestSteps(OptimizerTestCase):
    @parametrize("form", list(FORMS))
    @parametrize("case", list(CASES))
    def test_equal_the_cpu_and_wait_for_nothing(self, case, form):
        make, options, device_options = CASES[case]
        options = {"lr": 0.01, **options, **FORMS[form]}
        ours, seen = self.train("hologram", make, **options, **device_options)
        theirs, _ = self.train("cpu", make, **options)
        self.assertEqual(ours, theirs)
        self.assertEqual(seen, [{}] * 4)
        with hologram.eager():
            eager, _ = self.train("hologram", make, **options, **device_options)
        self.assertBits(ours, eager)

    @parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
    @parametrize("case", ["Adam amsgrad", "AdamW", "Adagrad", "SGD momentum"])
    def test_dtypes(self, case, dtype):
        make, options, _ = CASES[case]
        options = {"lr": 0.01, "fused": True, **options}
        # torch's fused SGD for the CPU (2.13) computes something else for halves, and its Adagrad
        # rounds the learning rate and eps to them, but in the last few elements.
        alike = make in (torch.optim.Adam, torch.optim.AdamW) or dtype.itemsize != 2
        steps = 4 if alike else 1
        compute = dtype if alike else torch.float32
        ours, seen = self.train("hologram", make, dtype, steps, **options)
        theirs, _ = self.train("cpu", make, dtype, steps, compute, **options)
        theirs = [result.to(mine.dtype) for mine, result in zip(ours, theirs, strict=True)]
        self.assertEqual(ours, theirs)
        self.assertEqual(seen, [{}] * steps)

    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    @parametrize("case", list(CASES))
    def test_a_learning_rate_on_the_device(self, case, dtype):
        """A number of the program, with the bits that it has as a number of the host."""
        make, options, _ = CASES[case]
        options = {"fused": True, **options}
        rate = torch.tensor(0.01, dtype=dtype)
        ours, seen = self.train("hologram", make, lr=on("hologram", rate), **options)
        self.assertEqual(seen, [{}] * 4)
        for other in (rate.item(), rate):
            results, seen = self.train("hologram", make, lr=other, **options)
            self.assertBits(ours, results)
            self.assertEqual(seen, [{}] * 4)
        theirs, _ = self.train("cpu", make, lr=rate, **options)
        self.assertEqual(ours, theirs)

    def test_a_learning_rate_that_changes(self):
        """Each step has the one of its time, also where others write it before anything runs."""

        def train(device: str, rate: torch.Tensor) -> list[torch.Tensor]:
            parameters = [torch.nn.Parameter(value.to(device)) for value in values(0)]
            optimizer = torch.optim.AdamW(parameters, lr=rate, fused=True)
            for i in range(3):
                for parameter, value in zip(parameters, values(i + 1), strict=True):
                    parameter.grad = value.to(device)
                optimizer.step()
                rate.mul_(0.5)
            return [parameter.detach().cpu() for parameter in parameters]

        theirs = train("cpu", torch.tensor(0.01))
        self.assertEqual(train("hologram", torch.tensor(0.01, device="hologram")), theirs)
        self.assertEqual(train("hologram", torch.tensor(0.01)), theirs)

    @pytest.mark.host_memory
    def test_a_learning_rate_that_a_cpu_tensor_sees(self):
        rate = torch.tensor([0.01], device="hologram")
        seen = hologram.alias_as_cpu(rate)
        parameter = torch.nn.Parameter(torch.ones(8, device="hologram"))
        parameter.grad = torch.ones(8, device="hologram")
        optimizer = torch.optim.SGD([parameter], lr=rate, fused=True)
        optimizer.step()
        seen.fill_(100)
        self.assertEqual(parameter.detach().cpu(), torch.full((8,), 0.99))


# By name: the optimizer and its options. No form of theirs waits for the device.
OPTIONS: dict[str, tuple[type, dict[str, Any]]] = {
    "Adadelta": (torch.optim.Adadelta, {}),
    "Adadelta decay": (torch.optim.Adadelta, {"weight_decay": 0.1, "maximize": True}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "Adagrad decay": (
        torch.optim.Adagrad,
        {"lr_decay": 0.1, "weight_decay": 0.1, "maximize": True},
    ),
    "Adam": (torch.optim.Adam, {}),
    "Adam decay": (torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.4, 0.99)}),
    "Adam amsgrad": (torch.optim.Adam, {"amsgrad": True, "maximize": True}),
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "AdamW amsgrad": (torch.optim.AdamW, {"weight_decay": 0.1, "amsgrad": True}),
    "Adamax": (torch.optim.Adamax, {}),
    "Adamax decay": (torch.optim.Adamax, {"weight_decay": 0.1, "maximize": True}),
    "NAdam": (torch.optim.NAdam, {}),
    "NAdam decay": (torch.optim.NAdam, {"weight_decay": 0.1, "maximize": True}),
    "NAdam decoupled": (
        torch.optim.NAdam,
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "RAdam": (torch.optim.RAdam, {}),
    "RAdam decay": (torch.optim.RAdam, {"weight_decay": 0.1, "maximize": True}),
    "RAdam decoupled": (
        torch.optim.RAdam,
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "RMSprop": (torch.optim.RMSprop, {}),
    "RMSprop momentum": (torch.optim.RMSprop, {"momentum": 0.9, "weight_decay": 0.1}),
    "RMSprop centered": (torch.optim.RMSprop, {"centered": True, "maximize": True}),
    "Rprop": (torch.optim.Rprop, {}),
    "Rprop maximize": (torch.optim.Rprop, {"maximize": True}),
    "SGD": (torch.optim.SGD, {}),
    "SGD momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
    "SGD nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
}
FUSED = (torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


class TestPasses(OptimizerTestCase):
    """Every form of a step goes over the parameters once, however many there are."""

    COUNT, LEAST = 12, 40  # the sizes tell the passes over parameters from those over numbers

    def explained(self, make: type, **options: Any) -> tuple[int, int]:
        """Passes over the parameters, and over what there is one of for each of them."""
        sizes = range(self.LEAST, self.LEAST + self.COUNT)
        parameters = [torch.nn.Parameter(torch.ones(n, device="hologram")) for n in sizes]
        if options.get("differentiable"):  # torch writes no leaves then
            parameters = [parameter.detach() for parameter in parameters]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer = make(parameters, **options)
        optimizer.step()
        optimizer.step()  # a first step of momentum is another one
        hologram.synchronize()
        hologram.reset_fallback_report()
        explained = hologram.explain(optimizer.step)
        self.assertEqual([flush.reason for flush in explained.flushes], ["end"])
        self.assertEqual(hologram.fallback_report().operators(DELEGATED), {})
        over = [f"[{self.LEAST}]" in part.space for part in explained.flushes[0].passes]
        return sum(over), len(over) - sum(over)

    @parametrize("case", list(OPTIONS))
    def test_few_passes(self, case):
        make, options = OPTIONS[case]
        # Counts of steps of the host are numbers of the program, those of the device one pass.
        for counts, device_options in ((0, {}), (1, {"capturable": True})):
            if counts == 1 and make in (torch.optim.Adagrad, torch.optim.SGD):
                continue
            for form in ({"foreach": True}, {"foreach": False}, {"differentiable": True}):
                if make is torch.optim.Adamax and "differentiable" in form:
                    continue  # which joins two tensors to take the larger elements
                found = self.explained(make, **options, **device_options, **form)
                self.assertEqual(found, (1, counts), msg=f"{device_options} {form}")
        if make in FUSED:
            # What the counts become is in float64, as in torch's kernels: a pass of its own.
            numbers = make is not torch.optim.Adagrad or "lr_decay" in options
            counts = 0 if make is torch.optim.SGD else 1 + numbers
            self.assertEqual(self.explained(make, **options, fused=True), (1, counts))

    def test_a_learning_rate_on_the_device(self):
        for make in FUSED:
            rate = torch.tensor(0.1, device="hologram")
            over, others = self.explained(make, lr=rate, fused=True)
            self.assertEqual(over, 1)
            self.assertLessEqual(others, 1 if make is torch.optim.SGD else 2)

    def test_averages(self):
        """ASGD: a capturable step overwrites what it has read, on the host it is read."""
        for form in (True, False):
            found = self.explained(torch.optim.ASGD, capturable=True, foreach=form)
            self.assertEqual(found, (1, 2 if form else 3))

    @parametrize("case", [case for case in OPTIONS if OPTIONS[case][0] in FUSED])
    def test_fused_as_the_others(self, case):
        """The forms compute one thing."""
        make, options = OPTIONS[case]
        fused, _ = self.train("hologram", make, lr=0.01, **options, fused=True)
        loop, _ = self.train("hologram", make, lr=0.01, **options, foreach=False)
        self.assertEqual(fused, loop)


class TestCalls(OptimizerTestCase):
    """The operators themselves, with what no optimizer of torch gives them."""

    def call(
        self,
        device: str,
        name: str,
        dtypes: list[torch.dtype] | None = None,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
        step_dtype: torch.dtype = torch.float32,
        compute: torch.dtype | None = None,
    ) -> tuple[list[list[torch.Tensor]], dict[str, int]]:
        """The lists that were given, and what the call has flushed."""
        dtypes = dtypes or [torch.float32] * len(SHAPES)

        def some(seed: int) -> list[torch.Tensor]:
            pairs = zip(values(seed), dtypes, strict=True)
            return [on(device, value.to(dtype).to(compute or dtype)) for value, dtype in pairs]

        def positive(seed: int) -> list[torch.Tensor]:
            return [value.abs() for value in some(seed)]

        # Every parameter has made another number of steps.
        counts = [torch.tensor(float(i + 1), dtype=step_dtype) for i in range(len(SHAPES))]
        steps = [on(device, count) for count in counts]
        amp = {"grad_scale": grad_scale, "found_inf": found_inf}
        amp = {key: on(device, value) for key, value in amp.items() if value is not None}
        lists = [some(0), some(1), positive(2)]
        seen: list[dict[str, int]] = []
        if name == "sgd":
            function = functools.partial(
                torch._fused_sgd_,
                weight_decay=0.1,
                momentum=0.9,
                lr=0.01,
                dampening=0.0,
                nesterov=True,
                maximize=False,
                is_first_step=False,
                **amp,
            )
        elif name == "adagrad":
            lists.append(steps)
            function = functools.partial(
                torch._fused_adagrad_,
                lr=0.01,
                lr_decay=0.1,
                weight_decay=0.1,
                eps=1e-8,
                maximize=True,
                **amp,
            )
        else:
            lists += [positive(3), positive(4), steps]
            function = functools.partial(
                getattr(torch, f"_fused_{name}_"),
                lr=0.01,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.1,
                eps=1e-8,
                amsgrad=True,
                maximize=True,
                **amp,
            )
        watched(function, seen)(*lists)
        return [[tensor.cpu() for tensor in tensors] for tensors in lists], seen[0]

    @parametrize("name", KINDS)
    def test_every_parameter_has_its_own_step(self, name):
        ours, seen = self.call("hologram", name)
        theirs, _ = self.call("cpu", name)
        self.assertEqual(ours, theirs)
        self.assertEqual(seen, {})

    @parametrize("name", KINDS)
    def test_parameters_of_several_dtypes(self, name):
        kinds = [torch.float32, torch.bfloat16, torch.float64]
        dtypes = [kinds[i % 3] for i in range(len(SHAPES))]
        whole = self.call("hologram", name, dtypes)[0]
        for dtype in kinds:
            alone = self.call("hologram", name, [dtype] * len(SHAPES))[0]
            for mine, theirs in zip(whole[:3], alone[:3], strict=True):
                for a, b in zip(mine, theirs, strict=True):
                    if a.dtype == dtype:
                        self.assertEqual(a, b, rtol=0, atol=0)

    @parametrize("name", KINDS)
    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_found_inf(self, name, dtype):
        """1 skips the step, whatever the gradients are; nothing else does."""
        scale = torch.tensor(4.0)
        for found, scaled in ((0.0, True), (1.0, True), (1.0, False), (2.0, True)):
            options = {
                "dtypes": [dtype] * len(SHAPES),
                "grad_scale": scale if scaled else None,
                "found_inf": torch.tensor([found]),
            }
            ours, seen = self.call("hologram", name, **options)
            # As in test_dtypes, of halves two of torch's kernels compute something else.
            halves = name in ("adagrad", "sgd") and dtype.itemsize == 2
            theirs, _ = self.call("cpu", name, compute=torch.float32 if halves else None, **options)
            for mine, others in zip(ours, theirs, strict=True):
                self.assertEqual(mine, [t.to(m.dtype) for m, t in zip(mine, others, strict=True)])
            self.assertEqual(seen, {})
            for i in range(3):
                old = [value.to(dtype) for value in values(i)]
                if i == 2:
                    old = [value.abs() for value in old]
                if found == 1:
                    self.assertBits(ours[i], old)
                elif i == 1:
                    self.assertEqual(ours[i], [value / 4 for value in old])

    @parametrize("name", KINDS)
    def test_a_skipped_step_keeps_what_is_not_a_number(self, name):
        bits = torch.tensor([0x7F800000, 0x7FC00001, -0x800000, 1], dtype=torch.int32)
        lists = [[bits.view(torch.float32).to("hologram")] for _ in range(3)]
        options: dict[str, Any] = {
            "lr": 0.1,
            "weight_decay": 0.1,
            "maximize": False,
            "found_inf": torch.ones((), device="hologram"),
            "grad_scale": torch.full((), 2.0, device="hologram"),
        }
        if name == "sgd":
            options |= {
                "momentum": 0.9,
                "dampening": 0.0,
                "nesterov": False,
                "is_first_step": False,
            }
            torch._fused_sgd_(*lists, **options)
        elif name == "adagrad":
            step = [torch.ones((), device="hologram")]
            torch._fused_adagrad_(*lists, step, lr_decay=0.1, eps=1e-8, **options)
        else:
            lists.append([bits.view(torch.float32).to("hologram")])
            options |= {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False}
            step = [torch.ones((), device="hologram")]
            getattr(torch, f"_fused_{name}_")(*lists, [], step, **options)
        for (tensor,) in lists:
            self.assertEqual(tensor.cpu().view(torch.int32), bits)

    @parametrize("count", [20, 400])  # 400 are more than a window holds
    def test_slices_of_flat_buffers(self, count):
        """Parameters, states and counts that share their memory with all others."""
        results = {}
        for device in ("cpu", "hologram"):
            generator = torch.Generator().manual_seed(0)
            flat = [torch.randn(count * 5, generator=generator).abs() for _ in range(4)]
            flat = [on(device, tensor) for tensor in flat]
            counts = on(device, torch.arange(1.0, count + 1))
            lists = [list(tensor.split(5)) for tensor in flat]
            options = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8}
            amp = {"found_inf": counts[0] - 1, "grad_scale": counts[1]}
            steps = list(counts.unbind())
            torch._fused_adamw_(
                *lists, [], steps, lr=0.1, amsgrad=False, maximize=False, **options, **amp
            )
            results[device] = [tensor.cpu() for tensor in flat]
        self.assertEqual(results["hologram"], results["cpu"])

    @parametrize("name", ["adam", "adamw"])
    def test_counts_of_another_dtype_are_left_to_torch(self, name):
        for dtype in (torch.float64, torch.int64):
            ours, _ = self.call("hologram", name, step_dtype=dtype)
            self.assertEqual(ours, self.call("cpu", name, step_dtype=dtype)[0])

    @parametrize("name", KINDS)
    def test_refused_as_on_the_cpu(self, name):
        for options in (
            {"grad_scale": torch.tensor(2.0, dtype=torch.float64)},
            {"found_inf": torch.tensor(1.0, dtype=torch.float64)},
        ):
            messages = []
            for device in ("cpu", "hologram"):
                with self.assertRaises(RuntimeError) as caught:
                    self.call(device, name, **options)
                messages.append(str(caught.exception).split("\n")[0])
            self.assertEqual(*messages)


class TestGradScaler(OptimizerTestCase):
    @parametrize("case", ["Adam", "AdamW amsgrad", "Adagrad", "SGD", "SGD momentum"])
    def test_equals_the_cpu(self, case):
        """The second step finds an infinity: it changes nothing, and nobody has to know."""
        make, options, _ = CASES[case]
        results, scales, seen = {}, {}, []
        for device in ("cpu", "hologram"):
            parameters = [torch.nn.Parameter(on(device, value)) for value in values(0)]
            optimizer = make(parameters, lr=0.01, fused=True, **options)
            optimizer.step = watched(optimizer.step, seen)
            scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)
            for i in range(4):
                scaler.scale(torch.zeros((), device=device))
                for parameter, value in zip(parameters, values(i + 1), strict=True):
                    parameter.grad = on(device, value * scaler.get_scale())
                if i == 1:
                    parameters[4].grad[0, 0] = float("inf")
                    before = copy.deepcopy((parameters, optimizer.state_dict()))
                scaler.step(optimizer)
                if i == 1:
                    self.assertEqual((parameters, optimizer.state_dict()), before)
                scaler.update()
            results[device] = parameters, list(optimizer.state.values())
            scales[device] = scaler.get_scale()
        self.assertEqual(scales["hologram"], scales["cpu"])
        for ours, theirs in zip(*(results[d][0] for d in ("hologram", "cpu")), strict=True):
            self.assertEqual(ours.detach().cpu(), theirs.detach())
        for ours, theirs in zip(*(results[d][1] for d in ("hologram", "cpu")), strict=True):
            self.assertEqual({k: v.cpu() for k, v in ours.items() if v is not None}, theirs)
        left_out = 2 if make is torch.optim.Adagrad and not FUSED_ADAGRAD_TAKES_AMP else 0
        self.assertEqual(seen, [{}] * (8 - left_out))


instantiate_parametrized_tests(TestSteps)
instantiate_parametrized_tests(TestPasses)
instantiate_parametrized_tests(TestCalls)
instantiate_parametrized_tests(TestGradScaler)

if __name__ == "__main__":
    run_tests()
