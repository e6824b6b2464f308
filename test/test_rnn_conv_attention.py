"""Recurrent networks, convolutions, attention and counting operators, against the CPU."""

from __future__ import annotations

import copy

import torch
from common import HologramTestCase
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)


def leaf(x: torch.Tensor, device: str) -> torch.Tensor:
    """A copy that is a leaf; the memory format is kept."""
    return x.detach().to(device, copy=True).requires_grad_(x.requires_grad)


class ComparingTestCase(HologramTestCase):
    def assertSameTensors(self, actual, expected, **tolerance):
        self.assertEqual(len(actual), len(expected))
        for number, (there, plain) in enumerate(zip(actual, expected, strict=True)):
            self.assertEqual(there.device.type, "hologram", f"tensor {number}")
            self.assertEqual(there.dtype, plain.dtype)
            self.assertEqual(there.cpu(), plain, msg=f"tensor {number}", **tolerance)

    def compare(self, function, *inputs: torch.Tensor, exact: bool = True) -> None:
        """Results and gradients of function(*inputs) on the device are those of the CPU.

        Args:
            function: returns a tensor or a tuple of them.
            *inputs: CPU tensors; gradients are taken of those that require them.
            exact: the results, not the gradients, are the same bits.
        """
        results, gradients = {}, {}
        for device in ("cpu", "hologram"):
            leaves = [leaf(x, device) for x in inputs]
            result = function(*leaves)
            result = result if isinstance(result, tuple) else (result,)
            results[device] = result
            wanted = [x for x in leaves if x.requires_grad]
            if wanted:
                loss = sum(r.mul(r + 1).sum() for r in result if r.requires_grad)
                gradients[device] = torch.autograd.grad(loss, wanted)
        bits = {"rtol": 0, "atol": 0} if exact else {}
        self.assertSameTensors(results["hologram"], results["cpu"], **bits)
        if gradients:
            self.assertSameTensors(gradients["hologram"], gradients["cpu"])

    def compare_modules(self, module: nn.Module, use, *inputs: torch.Tensor) -> None:
        """As compare(), with the gradients of the parameters too; use(module, *inputs)."""
        names = [name for name, _ in module.named_parameters()]
        count = len(inputs)

        def call(*leaves):
            parameters = dict(zip(names, leaves[count:], strict=True))
            clone = copy.deepcopy(module).to(leaves[0].device)
            return torch.func.functional_call(
                _Use(clone, use), {f"module.{k}": v for k, v in parameters.items()}, leaves[:count]
            )

        self.compare(call, *inputs, *module.parameters(), exact=False)


class _Use(nn.Module):
    def __init__(self, module, use):
        super().__init__()
        self.module, self.use = module, use

    def forward(self, *inputs):
        return self.use(self.module, *inputs)


def flat(result) -> tuple[torch.Tensor, ...]:
    """The tensors of a nested tuple."""
    if isinstance(result, torch.Tensor):
        return (result,)
    return tuple(tensor for part in result for tensor in flat(part))


RECURRENT = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}


class TestRecurrent(ComparingTestCase):
    @parametrize("kind", list(RECURRENT))
    @parametrize("bidirectional", [False, True])
    @parametrize("layers, batch_first, bias", [(1, False, True), (2, True, True), (1, True, False)])
    def test_module(self, kind, bidirectional, layers, batch_first, bias):
        module = RECURRENT[kind](
            3, 4, layers, batch_first=batch_first, bias=bias, bidirectional=bidirectional
        )
        self.compare_modules(
            module, lambda m, x: flat(m(x)), torch.rand(2, 5, 3, requires_grad=True)
        )

    def test_projection(self):
        module = nn.LSTM(3, 4, proj_size=2)
        self.compare_modules(module, lambda m, x: flat(m(x)), torch.rand(5, 2, 3))

    @parametrize("kind", ["lstm", "gru"])
    def test_initial_state(self, kind):
        module = RECURRENT[kind](3, 4)
        x, h, c = torch.rand(5, 2, 3), torch.rand(1, 2, 4), torch.rand(1, 2, 4)

        def use(m, x, h, c):
            return flat(m(x, (h, c) if kind == "lstm" else h))

        inputs = [t.requires_grad_() for t in (x, h, c)]
        if kind == "gru":
            self.compare_modules(module, lambda m, x, h: use(m, x, h, None), *inputs[:2])
        else:
            self.compare_modules(module, use, *inputs)

    @parametrize("kind", list(RECURRENT))
    @parametrize("bidirectional", [False, True])
    def test_packed_sequence(self, kind, bidirectional):
        module = RECURRENT[kind](3, 4, batch_first=True, bidirectional=bidirectional)
        lengths = torch.tensor([2, 5, 3])  # CPU tensors, on every device

        def use(m, x):
            packed = nn.utils.rnn.pack_padded_sequence(
                x, lengths, batch_first=True, enforce_sorted=False
            )
            output, state = m(packed)
            self.assertTrue(output.batch_sizes.is_cpu)
            padded, back = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
            self.assertEqual(back, lengths)
            return (output.data, padded, *flat(state))

        self.compare_modules(module, use, torch.rand(3, 5, 3, requires_grad=True))

    def test_packed_sequence_to_the_device(self):
        packed = nn.utils.rnn.pack_sequence([torch.rand(3, 2), torch.rand(1, 2)])
        there = packed.to("hologram")
        self.assertTrue(there.data.is_hologram)
        self.assertTrue(there.batch_sizes.is_cpu)
        self.assertEqual(there.cpu().data, packed.data)

    def test_dropout_between_layers(self):
        module = nn.LSTM(3, 8, 2, dropout=0.5).hologram()
        x = torch.rand(4, 2, 3, device="hologram")
        torch.manual_seed(1)
        first = module(x)[0]
        self.assertNotEqual(first, module(x)[0])
        torch.manual_seed(1)
        self.assertEqual(module(x)[0], first, rtol=0, atol=0)
        module.eval()
        self.assertEqual(module(x)[0], module(x)[0], rtol=0, atol=0)

    @parametrize("kind", list(CELLS))
    def test_cell(self, kind):
        def use(m, x, h):
            state = (h, h * 2) if kind == "lstm" else h
            for _ in range(2):
                state = m(x, state)
            return flat(state)

        self.compare_modules(
            CELLS[kind](3, 4),
            use,
            torch.rand(2, 3, requires_grad=True),
            torch.rand(2, 4, requires_grad=True),
        )

    @parametrize("kind", list(CELLS))
    def test_double_backward_of_a_cell(self, kind):
        cell = CELLS[kind](2, 2, dtype=torch.float64, device="hologram")
        x, h, c = (
            torch.rand(1, 2, dtype=torch.float64, device="hologram", requires_grad=True)
            for _ in range(3)
        )
        if kind == "lstm":
            self.assertTrue(torch.autograd.gradcheck(lambda x, h, c: cell(x, (h, c)), (x, h, c)))
            self.assertTrue(
                torch.autograd.gradgradcheck(lambda x, h, c: cell(x, (h, c)), (x, h, c))
            )
        else:
            self.assertTrue(torch.autograd.gradcheck(cell, (x, h)))
            self.assertTrue(torch.autograd.gradgradcheck(cell, (x, h)))


# name -> (input shape, weight shape, options)
CONVOLUTIONS = {
    "1d": ((2, 3, 9), (4, 3, 3), {}),
    "1d_stride": ((2, 3, 9), (4, 3, 3), {"stride": 2, "padding": 1}),
    "1d_same": ((2, 3, 9), (4, 3, 4), {"padding": "same"}),
    "2d": ((2, 3, 8, 7), (4, 3, 3, 3), {}),
    "2d_unbatched": ((3, 8, 7), (4, 3, 3, 3), {}),
    "2d_1x1": ((2, 3, 8, 7), (4, 3, 1, 1), {}),
    "2d_stride": ((2, 3, 8, 7), (4, 3, 3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    "2d_groups": ((2, 4, 8, 7), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "2d_depthwise": ((2, 4, 8, 7), (4, 1, 3, 3), {"groups": 4}),
    "2d_dilation": ((2, 3, 8, 7), (4, 3, 3, 3), {"dilation": 2}),
    "2d_same": ((2, 3, 8, 7), (4, 3, 3, 3), {"padding": "same", "dilation": 2}),
    "2d_same_even": ((2, 3, 8, 7), (4, 3, 2, 4), {"padding": "same"}),
    "2d_valid": ((2, 3, 8, 7), (4, 3, 3, 3), {"padding": "valid"}),
    "3d": ((1, 2, 5, 6, 4), (3, 2, 3, 2, 2), {}),
    "3d_options": (
        (1, 4, 5, 6, 4),
        (4, 2, 2, 2, 2),
        {"groups": 2, "dilation": (2, 1, 1), "stride": 2, "padding": 1},
    ),
}
TRANSPOSED = {
    "1d": ((2, 3, 5), (3, 4, 3), {}),
    "1d_options": ((2, 3, 5), (3, 4, 3), {"stride": 2, "output_padding": 1, "dilation": 2}),
    "2d": ((2, 3, 5, 4), (3, 4, 3, 3), {}),
    "2d_options": (
        (2, 4, 5, 4),
        (4, 3, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
    ),
    "3d": ((1, 2, 3, 4, 3), (2, 3, 2, 2, 2), {"stride": 2}),
}


class TestConvolution(ComparingTestCase):
    @parametrize("bias", [False, True])
    @parametrize("dtype", [torch.float32, torch.float64])
    @parametrize("case", list(CONVOLUTIONS))
    def test_convolution(self, case, dtype, bias):
        x, weight, options = CONVOLUTIONS[case]
        function = getattr(F, f"conv{case[:2]}")
        inputs = [torch.randn(x, dtype=dtype), torch.randn(weight, dtype=dtype)]
        if bias:
            inputs.append(torch.randn(weight[0], dtype=dtype))
        self.compare(
            lambda *inputs: function(*inputs, **options), *[x.requires_grad_() for x in inputs]
        )

    @parametrize("case", list(TRANSPOSED))
    def test_transposed(self, case):
        x, weight, options = TRANSPOSED[case]
        function = getattr(F, f"conv_transpose{case[:2]}")
        inputs = [
            torch.randn(x),
            torch.randn(weight),
            torch.randn(weight[1] * options.get("groups", 1)),
        ]
        self.compare(
            lambda *inputs: function(*inputs, **options), *[x.requires_grad_() for x in inputs]
        )

    @parametrize("transposed", [False, True])
    @parametrize("memory_format, dims", [(torch.channels_last, 2), (torch.channels_last_3d, 3)])
    def test_channels_last(self, memory_format, dims, transposed):
        x = torch.randn(2, 4, *[5] * dims).to(memory_format=memory_format)
        weight = torch.randn(4, 4, *[3] * dims).to(memory_format=memory_format)
        function = getattr(F, f"conv_transpose{dims}d" if transposed else f"conv{dims}d")
        self.compare(function, x.requires_grad_(), weight.requires_grad_())

        there = x.detach().hologram()
        self.assertTrue(there.is_contiguous(memory_format=memory_format))
        result = function(there, weight.detach().hologram())
        plain = function(x.detach(), weight.detach())
        self.assertEqual(result.stride(), plain.stride())

    def test_module_in_channels_last(self):
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        module.to(memory_format=torch.channels_last)
        x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
        self.compare_modules(module, lambda m, x: m(x), x)

    def test_empty_batch(self):
        self.compare(
            F.conv2d,
            torch.randn(0, 3, 8, 7, requires_grad=True),
            torch.randn(4, 3, 3, 3, requires_grad=True),
        )

    @parametrize("mode", ["reflect", "replicate", "circular"])
    def test_padding_mode(self, mode):
        module = nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode)
        self.compare_modules(module, lambda m, x: m(x), torch.randn(2, 3, 6, 5, requires_grad=True))

    def test_double_backward(self):
        x, weight = (
            torch.randn(shape, dtype=torch.float64, device="hologram", requires_grad=True)
            for shape in ((1, 1, 4, 3), (2, 1, 2, 2))
        )
        self.assertTrue(torch.autograd.gradgradcheck(F.conv2d, (x, weight)))

    @parametrize("name", ["unfold", "fold"])
    def test_columns(self, name):
        function, shape = {
            "unfold": (lambda x: F.unfold(x, 3, padding=1), (2, 3, 6, 5)),
            "fold": (lambda x: F.fold(x, (4, 4), 2), (2, 12, 9)),
        }[name]
        self.compare(function, torch.randn(shape, requires_grad=True))


class TestAttention(ComparingTestCase):
    MASKS = ("none", "bool", "float", "broadcast", "causal")

    def options(self, kind: str) -> tuple[torch.Tensor | None, bool]:
        """The mask (for 5 queries and 6 keys) and is_causal."""
        allowed = torch.rand(2, 2, 5, 6) > 0.3
        allowed[..., 0] = True
        return {
            "none": (None, False),
            "bool": (allowed, False),
            "float": (torch.randn(2, 2, 5, 6, requires_grad=True), False),
            "broadcast": (torch.randn(5, 6, requires_grad=True), False),
            "causal": (None, True),
        }[kind]

    def qkv(self, heads: int = 2, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        """Queries of 2 heads, keys and values of so many."""
        return [
            torch.randn(shape, dtype=dtype, requires_grad=True)
            for shape in ((2, 2, 5, 8), (2, heads, 6, 8), (2, heads, 6, 8))
        ]

    @parametrize("scale", [None, 0.3])
    @parametrize("kind", MASKS)
    def test_against_the_cpu(self, kind, scale):
        mask, causal = self.options(kind)

        def attention(q, k, v, mask=None):
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)

        self.compare(attention, *self.qkv(), *([] if mask is None else [mask]), exact=False)

    @parametrize("kind", MASKS)
    def test_grouped_queries(self, kind):
        mask, causal = self.options(kind)

        def attention(q, k, v, mask=None):
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)

        self.compare(attention, *self.qkv(heads=1), *([] if mask is None else [mask]), exact=False)

    @parametrize("kind", ["none", "bool", "float", "causal"])
    def test_without_gradients(self, kind):
        mask, causal = self.options(kind)
        with torch.no_grad():
            self.compare(
                lambda q, k, v, mask=None: F.scaled_dot_product_attention(
                    q, k, v, mask, is_causal=causal
                ),
                *[x.detach() for x in self.qkv()],
                *([] if mask is None else [mask.detach()]),
                exact=False,
            )

    @parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_dtypes(self, dtype):
        self.compare(F.scaled_dot_product_attention, *self.qkv(dtype=dtype), exact=False)

    @parametrize("shape", [(5, 8), (3, 5, 8)])
    def test_few_dimensions(self, shape):
        self.compare(
            F.scaled_dot_product_attention,
            *[torch.randn(shape, requires_grad=True) for _ in range(3)],
            exact=False,
        )

    def test_strided(self):
        """Queries, keys and values that are parts of one projection, heads transposed."""

        def attention(x):
            q, k, v = (part.view(2, 5, 2, 8).transpose(1, 2) for part in x.chunk(3, -1))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        self.compare(attention, torch.randn(2, 5, 48, requires_grad=True), exact=False)

    @parametrize("kind", ["none", "bool", "float", "causal"])
    def test_dropout(self, kind):
        mask, causal = self.options(kind)
        mask = None if mask is None else mask.detach().hologram()
        q, k = (x.hologram() for x in self.qkv()[:2])
        # With the identity as values the result is the probabilities after dropout.
        v = torch.eye(6, device="hologram").expand(2, 2, 6, 6)

        def attention(p):
            return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=p, is_causal=causal)

        full = attention(0.0)
        torch.manual_seed(0)
        dropped = attention(0.5)
        torch.manual_seed(0)
        self.assertEqual(attention(0.5), dropped, rtol=0, atol=0)
        kept = dropped != 0
        self.assertEqual(dropped[kept], full[kept] * 2)
        share = kept.sum() / (full != 0).sum()
        self.assertTrue(0.2 < share.item() < 0.8, share)
        self.assertEqual(attention(1.0), torch.zeros_like(full))

    def test_rows_without_a_key(self):
        mask = torch.ones(5, 6, dtype=torch.bool)
        mask[2] = False
        self.compare(
            lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask),
            *self.qkv(),
            mask,
            exact=False,
        )

    def test_double_backward(self):
        q, k, v = (
            torch.randn(1, 1, 2, 2, dtype=torch.float64, device="hologram", requires_grad=True)
            for _ in range(3)
        )
        mask = torch.randn(2, 2, dtype=torch.float64, device="hologram", requires_grad=True)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            self.assertTrue(
                torch.autograd.gradgradcheck(F.scaled_dot_product_attention, (q, k, v, mask))
            )

    @parametrize("need_weights", [False, True])
    @parametrize("kind", ["none", "padding", "causal", "both"])
    def test_multihead(self, kind, need_weights):
        padding = torch.arange(5) >= torch.tensor([[5], [3]])
        causal = nn.Transformer.generate_square_subsequent_mask(5).isinf()
        module = nn.MultiheadAttention(8, 2, batch_first=True)

        def use(m, x):
            output, weights = m(
                x,
                x,
                x,
                key_padding_mask=padding.to(x.device) if kind in ("padding", "both") else None,
                attn_mask=causal.to(x.device) if kind in ("causal", "both") else None,
                need_weights=need_weights,
            )
            self.assertEqual(weights is not None, need_weights)
            return (output, weights) if need_weights else output

        self.compare_modules(module, use, torch.randn(2, 5, 8, requires_grad=True))
        module.eval().requires_grad_(False)  # the fast path
        self.compare(
            lambda x: use(copy.deepcopy(module).to(x.device), x),
            torch.randn(2, 5, 8),
            exact=False,
        )

    def test_multihead_of_other_sizes(self):
        module = nn.MultiheadAttention(8, 2, kdim=3, vdim=4, add_bias_kv=True, add_zero_attn=True)
        self.compare_modules(
            module,
            lambda m, q, k, v: m(q, k, v),
            *[torch.randn(n, 2, d, requires_grad=True) for n, d in ((5, 8), (6, 3), (6, 4))],
        )


class TestCounting(ComparingTestCase):
    """Operators that CUDA implements for more dtypes than the CPU, or differently."""

    @parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.float32])
    def test_histc(self, dtype):
        x = torch.randint(0, 10, (100,)).to(dtype)
        expected = torch.histc(x.double(), 5, 0, 10)
        for result in (
            torch.histc(x.hologram(), 5, 0, 10),
            torch.histc(x.hologram(), 5, 0, 10, out=torch.empty(0, dtype=dtype, device="hologram")),
        ):
            self.assertEqual((result.device.type, result.dtype), ("hologram", dtype))
            self.assertEqual(result.cpu(), expected.to(dtype))
        # Without a range, that of the data.
        self.assertEqual(torch.histc(x.hologram(), 4).cpu(), torch.histc(x.double(), 4).to(dtype))

    @parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
    def test_bincount(self, dtype):
        x, weights = torch.randint(0, 7, (50,)).to(dtype), torch.rand(50)
        self.compare(torch.bincount, x)
        self.compare(lambda x: torch.bincount(x, minlength=20), x)
        self.compare(torch.bincount, x, weights)
        self.compare(torch.bincount, x[:0])

    def test_bincount_of_a_negative_number(self):
        with self.assertRaisesRegex(RuntimeError, "non-negative"):
            torch.bincount(torch.tensor([1, -1], dtype=torch.int32, device="hologram"))

    @parametrize("dim", [0, 1, -1])
    @parametrize("dtype", [torch.int32, torch.float32, torch.bool])
    def test_mode(self, dtype, dim):
        x = torch.randint(0, 3, (7, 5)).to(dtype)
        there = x.hologram()
        for keepdim in (False, True):
            expected = torch.mode(x, dim, keepdim).values
            values, indices = torch.mode(there, dim, keepdim)
            out = (
                torch.empty(0, dtype=dtype, device="hologram"),
                torch.empty(0, dtype=torch.int64, device="hologram"),
            )
            returned = torch.mode(there, dim, keepdim, out=out)
            self.assertIs(returned.values, out[0])
            self.assertIs(returned.indices, out[1])
            for value, index in ((values, indices), out):
                self.assertEqual((value.device.type, index.device.type), ("hologram", "hologram"))
                self.assertEqual(value.cpu(), expected, rtol=0, atol=0)
                # Which of equal elements is named is not specified; its value is.
                index = index if keepdim else index.unsqueeze(dim)
                value = value if keepdim else value.unsqueeze(dim)
                self.assertEqual(there.gather(dim, index), value)

    def test_gradient_of_mode(self):
        self.compare(
            lambda x: torch.mode(x, 1).values,
            torch.tensor([[1.0, 2.0, 3.0], [5.0, 4.0, 4.5]], requires_grad=True),
        )


instantiate_parametrized_tests(TestRecurrent)
instantiate_parametrized_tests(TestConvolution)
instantiate_parametrized_tests(TestAttention)
instantiate_parametrized_tests(TestCounting)

if __name__ == "__main__":
    run_tests()
