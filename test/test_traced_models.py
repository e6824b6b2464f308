"""Small transformers under torch.compile, torch.export, make_fx and torch.func, against the CPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import pytest
import torch
from common import DevicesMasks, HologramTestCase
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SIZES, num_attention_heads=2)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2)
    ),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    ),
}


class Logits(torch.nn.Module):
    """A model as a function of token numbers alone: (batch, length) -> (batch, length, words)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = MODELS[name]()
        self.model.config.use_cache = False
        self.decodes = name == "t5"

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        more = {"decoder_input_ids": ids} if self.decodes else {}
        return self.model(input_ids=ids, **more).logits


def made(name: str, device: str) -> tuple[Logits, dict[str, torch.Tensor], torch.Tensor]:
    """The model with its parameters and buffers, and an input; the same on every device."""
    torch.manual_seed(0)
    model = Logits(name).eval().to(device)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {name: value.detach() for name, value in state.items()}
    ids = torch.randint(0, 32, (2, 5), generator=torch.Generator().manual_seed(1))
    return model, state, ids.to(device)


def compiled(backend: str, name: str, device: str) -> list[torch.Tensor]:
    """A training step, with dropout."""
    torch._dynamo.reset()
    model, _, ids = made(name, device)
    model.train()
    run = model if backend == "none" else torch.compile(model, backend=backend)
    torch.manual_seed(2)
    with DevicesMasks() if device == "cpu" else contextlib.nullcontext():
        logits = run(ids)
    logits.square().mean().backward()
    return [logits.detach(), *(each.grad for each in model.parameters())]


def exported(name: str, device: str) -> list[torch.Tensor]:
    model, _, ids = made(name, device)
    program = torch.export.export(model, (ids,), strict=False)
    return [program.module()(ids).detach()]


def traced(mode: str, name: str, device: str) -> list[torch.Tensor]:
    model, state, ids = made(name, device)
    call = lambda state, ids: functional_call(model, state, (ids,))  # noqa: E731
    return [make_fx(call, tracing_mode=mode)(state, ids)(state, ids).detach()]


def gradients(name: str, device: str) -> list[torch.Tensor]:
    model, state, ids = made(name, device)
    names = [name for name, _ in model.named_parameters()]
    weights = {name: state[name] for name in names}

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(model, {**state, **weights}, (ids,)).square().mean()

    found = grad(loss)(weights)
    return [found[name] for name in names]


def mapped(name: str, device: str) -> list[torch.Tensor]:
    model, state, ids = made(name, device)
    call = functools.partial(functional_call, model, state)
    return [vmap(lambda ids: call((ids[None],))[0])(ids).detach()]


def plain(name: str, device: str) -> list[torch.Tensor]:
    model, _, ids = made(name, device)
    with torch.no_grad():
        return [model(ids)]


def plain_gradients(name: str, device: str) -> list[torch.Tensor]:
    model, _, ids = made(name, device)
    model(ids).square().mean().backward()
    return [each.grad for each in model.parameters()]


# tool -> (what it does, what that has to be equal to)
Run = Callable[[str, str], list[torch.Tensor]]
TOOLS: dict[str, tuple[Run, Run]] = {
    **{
        backend: (functools.partial(compiled, backend), functools.partial(compiled, "none"))
        for backend in ("hologram", "aot_eager", "eager", "inductor")
    },
    "export": (exported, plain),
    **{
        f"make_fx_{mode}": (functools.partial(traced, mode), plain)
        for mode in ("real", "fake", "symbolic")
    },
    "grad": (gradients, plain_gradients),
    "vmap": (mapped, plain),
}
QUICK = {
    *(("hologram", name) for name in MODELS),
    *(("grad", name) for name in MODELS),
    ("export", "llama"),
    ("make_fx_symbolic", "gpt2"),
    ("inductor", "llama"),
}

# What does not work with CPU tensors either: (tool, model) -> what it raises.
NOT_ON_THE_CPU: dict[tuple[str, str], type[Exception]] = {
    # Whether a mask may be left out depends on values.
    ("make_fx_real", "gpt2"): RuntimeError,
    ("make_fx_real", "llama"): RuntimeError,
}


class TestTracedModels(HologramTestCase):
    def check(self, tool: str, name: str) -> None:
        run, reference = TOOLS[tool]
        if (tool, name) in NOT_ON_THE_CPU:
            with self.assertRaises(NOT_ON_THE_CPU[tool, name]):
                run(name, "cpu")
            return
        for mine, expected in zip(run(name, "hologram"), reference(name, "cpu"), strict=True):
            self.assertTrue(mine.is_hologram)
            self.assertEqual(mine.cpu(), expected)

    @parametrize("tool,name", sorted(QUICK))
    def test_quick(self, tool, name):
        self.check(tool, name)

    @pytest.mark.full
    @parametrize("tool,name", [(t, n) for t in TOOLS for n in MODELS if (t, n) not in QUICK])
    def test_every(self, tool, name):
        self.check(tool, name)


instantiate_parametrized_tests(TestTracedModels)

if __name__ == "__main__":
    run_tests()
