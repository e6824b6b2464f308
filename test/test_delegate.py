"""What the delegate does around a call of a CPU kernel.

Arguments and results, failures, generators, lists, factories, operators of other people. Views and
storages are in test_views_and_storage.py, mixed devices in test_mixed_devices.py, the report and
its modes in test_fallback.py.
"""

from __future__ import annotations

import gc
import os
import warnings

import pytest
import torch
import torch.nn.functional as F
from common import DELEGATED, HOST_MEMORY, HologramTestCase, run_python, several_devices
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.utils._pytree import tree_leaves, tree_map

DEVICES = ("cpu", "hologram")


def here(*values):
    """Copies of the tensors on the device."""
    return tree_map(lambda v: v.hologram() if isinstance(v, torch.Tensor) else v, values)


class DelegateTestCase(HologramTestCase):
    def check(self, function, *arguments, exact=True, what=""):
        """function gives on the device what it gives on the CPU.

        Exact: bit for bit. Every tensor of the result is on the device.
        """
        copies = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, arguments)
        wanted, mine = tree_leaves(function(*copies)), tree_leaves(function(*here(*arguments)))
        self.assertEqual(len(mine), len(wanted), msg=what)
        tolerance = {"rtol": 0, "atol": 0} if exact else {}
        for a, b in zip(mine, wanted, strict=True):
            if isinstance(b, torch.Tensor):
                self.assertEqual(a.device, torch.device("hologram", 0), msg=what)
                self.assertEqual(a.stride(), b.stride(), msg=what)
                self.assertEqual(a.is_conj(), b.is_conj(), msg=what)
                self.assertEqual(a.is_neg(), b.is_neg(), msg=what)
                self.assertEqual(a.cpu(), b, **tolerance, equal_nan=True, msg=what)
            else:
                self.assertEqual(a, b, msg=what)


class TestArguments(DelegateTestCase):
    def test_one_tensor_twice(self):
        x = torch.rand(6, 6) + torch.eye(6)
        for function in (
            lambda x: x.atan2_(x),
            lambda x: torch.cdist(x, x),
            lambda x: torch.mm(x, x),
            lambda x: x.addmm_(x.clone(), x),
            lambda x: x.lerp_(x, x),
            lambda x: torch.cat([x, x, x]),
            lambda x: torch.stack([x, x]),
            lambda x: torch.einsum("ij,jk,kl->il", x, x, x),
            lambda x: torch.where(x > 0.5, x, x),
            lambda x: x.copysign_(x),
            lambda x: torch.hypot(x, x, out=x),
            lambda x: torch.maximum(x, x, out=x),
            lambda x: torch.linalg.solve(x, x),
            lambda x: torch._foreach_add([x, x], [x, x]),
            lambda x: (torch._foreach_mul_([x, x], 2), x)[1],
            lambda x: torch.nn.functional.bilinear(x, x, x[None], x[0, :1]),
        ):
            self.check(function, x, exact=False)

    def test_identity_is_kept(self):
        """In-place and out= calls return the tensor they were given."""
        x, index = torch.rand(3, 3, device="hologram"), torch.zeros(3, 3).long().hologram()
        for call in (
            lambda: x.sigmoid_(),
            lambda: x.add_(x),
            lambda: x.clamp_(0, 1),
            lambda: torch.sin(x, out=x),
            lambda: x.index_fill_(0, index[0, :1], 0.5),
            lambda: x.masked_fill_(x > 2, 0),
            lambda: x.scatter_(0, index, x.clone()),
            lambda: x.normal_(),
            lambda: x.resize_(3, 3),
            lambda: x.copy_(x.clone()),
            lambda: x.requires_grad_(False),
            lambda: F.relu(x, inplace=True),
        ):
            self.assertIs(call(), x)
        values = torch.empty(3, 3, device="hologram")
        result = torch.sort(x, out=(values, index))
        self.assertIs(result.values, values)
        self.assertIs(result.indices, index)

    def test_overlap_is_seen_across_arguments(self):
        for device in DEVICES:
            x = torch.arange(8.0, device=device)
            with self.assertRaisesRegex(RuntimeError, "refer to a single memory location"):
                x[1:].atan2_(x[:-1])
            with self.assertRaisesRegex(RuntimeError, "refer to a single memory location"):
                torch.hypot(x[:-1], x[:-1], out=x[1:])
            with self.assertRaisesRegex(RuntimeError, "refers to a single memory location"):
                x[:1].expand(4).sigmoid_()
            with self.assertRaisesRegex(RuntimeError, "memory location"):
                torch.cat([x[:4], x[4:]], out=x)
            torch.sin(x, out=x)

    def test_optional_arguments(self):
        x = torch.rand(2, 3, 4, 4)
        for function in (
            lambda x: F.batch_norm(x, None, None, None, None, training=True),
            lambda x: F.group_norm(x, 3),
            lambda x: F.layer_norm(x, (4,)),
            lambda x: F.instance_norm(x),
            lambda x: torch.clamp(x, max=x * 0.5),
            lambda x: torch.bincount((x * 5).long().flatten()),
            lambda x: torch.histc(x, 4),
            lambda x: x[:, None, 1:],
            lambda x: torch.searchsorted(x[0, 0].sort().values, x[0, 1]),
        ):
            self.check(function, x)

    def test_python_numbers_do_not_promote(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.uint8):
            x = torch.arange(5).to(dtype)
            for function in (
                lambda x: torch.atan2(x, torch.tensor(2.0, device=x.device)),
                lambda x: x**2,
                lambda x: 2**x,
                lambda x: x % 2,
                lambda x: torch.where(x > 1, x, 0),
                lambda x: torch.where(x > 1, 2.5, x),
                lambda x: torch.fmod(x, 2),
                lambda x: x > 1.5,
            ):
                self.check(function, x)

    def test_results_of_several_kinds(self):
        x = torch.rand(4, 4)
        for function in (
            lambda x: torch.equal(x, x),
            lambda x: torch.allclose(x, x),
            lambda x: x.is_same_size(x),
            lambda x: x.sum().item(),
            lambda x: x.tolist(),
            lambda x: torch.unique(x, return_inverse=True, return_counts=True),
            lambda x: x.max(0),
            lambda x: torch.linalg.lu_factor_ex(x),
            lambda x: torch.linalg.eigh(x + x.mT),
            lambda x: torch.aminmax(x),
            lambda x: torch.frexp(x),
            lambda x: torch.nonzero(x > 0.5, as_tuple=True),
            lambda x: torch.histogram(x, 3),
            lambda x: torch.std_mean(x),
            lambda x: torch.triu_indices(3, 3, device=x.device),
            lambda x: torch.split_with_sizes_copy(x, [1, 3]),
            lambda x: torch.nn.utils.rnn.pad_sequence([x, x[:2]]),
            lambda x: torch.is_nonzero(x[0, 0]),
            lambda x: torch.result_type(x, 1.0) == torch.float32,
        ):
            self.check(function, x, exact=False)


class TestComplexBits(DelegateTestCase):
    """Conjugate and negative bits are handed in and come back."""

    def setUp(self) -> None:
        super().setUp()
        torch.manual_seed(0)
        self.a = torch.randn(4, 4, dtype=torch.complex64) + 2 * torch.eye(4)
        self.b = torch.randn(4, 2, dtype=torch.complex64)

    def test_in(self):
        for view in (torch.conj, torch.Tensor.adjoint, lambda t: t.conj().mT, lambda t: t):
            for function in (
                lambda a, b: torch.mm(a, b),
                lambda a, b: torch.linalg.solve(a, b),
                lambda a, b: torch.linalg.inv(a),
                lambda a, b: torch.fft.fft(a),
                lambda a, b: torch.fft.ifft2(a).abs(),
                lambda a, b: torch.linalg.eigvals(a).abs().sort().values,
                lambda a, b: torch.einsum("ij,jk->ik", a, b),
                lambda a, b: torch.vdot(a[0], a[1]),
                lambda a, b: torch.angle(a),
                lambda a, b: a.sum(0),
                lambda a, b: torch.cat([a, b], 1),
                lambda a, b: a.clone(),
                lambda a, b: a.resolve_conj(),
                lambda a, b: a.to(torch.complex128),
                lambda a, b: torch.view_as_real(a.resolve_conj()),
                lambda a, b: a.imag.sort().values,
                lambda a, b: a.imag.resolve_neg(),
                lambda a, b: torch.sgn(a),
                lambda a, b: torch.addmm(b, a, b, beta=1j),
                lambda a, b: torch.polar(a.real.abs(), a.imag),
                lambda a, b: torch.complex(a.real, a.imag),
            ):
                self.check(lambda a, b, f=function, v=view: f(v(a), b), self.a, self.b, exact=False)

    def test_out(self):
        """Kernels that leave a bit on the result."""

        def factored(a, b):
            lu, pivots = torch.linalg.lu_factor(a)
            results = []
            for left in (True, False):
                for adjoint in (True, False):
                    right = b if left else b.mT
                    results.append(
                        torch.linalg.lu_solve(lu, pivots, right, left=left, adjoint=adjoint)
                    )
                    out = torch.empty(0, dtype=a.dtype, device=a.device)
                    torch.linalg.lu_solve(lu, pivots, right, left=left, adjoint=adjoint, out=out)
                    results += [out, out * 1, out.sum()]
            return results

        self.check(factored, self.a, self.b, exact=False)
        for function in (
            lambda a, b: torch.linalg.solve(a.mH, b, out=torch.empty_like(b)),
            lambda a, b: torch.linalg.ldl_factor(a @ a.mH, hermitian=True).LD,
            lambda a, b: torch.linalg.cholesky(a @ a.mH, upper=True),
            lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a @ a.mH)),
            lambda a, b: torch.linalg.lstsq(a, b).solution,
            lambda a, b: torch.linalg.pinv(a),
            lambda a, b: torch.linalg.solve_triangular(a.mH, b, upper=False),
        ):
            self.check(function, self.a, self.b, exact=False)

    def test_lu_solve_leaves_a_bit(self):
        """The case all this is about: the kernel returns its out= as a conjugate view."""
        bits = {}
        for device in DEVICES:
            a, b = self.a.to(device), self.b.to(device)
            lu, pivots = torch.linalg.lu_factor(a)
            out = torch.empty(0, dtype=a.dtype, device=device)
            torch.linalg.lu_solve(lu, pivots, b.mT, left=False, out=out)
            bits[device] = (out.is_conj(), out.stride())
        self.assertEqual(bits["hologram"], bits["cpu"])
        self.assertTrue(bits["cpu"][0])

    def test_written(self):
        def write(a, b):
            a.conj()[0] = 2 + 3j
            torch.mul(a[1], 2j, out=a.conj()[1])
            a.conj().imag.mul_(3)
            a.mH.add_(b[:1, :1])
            torch.neg(a.real, out=a.imag)
            return a

        self.check(write, self.a, self.b)

    def test_of_a_copy(self):
        """Copies between devices resolve the bits once."""
        for view in (lambda t: t.conj(), lambda t: t.conj().imag, lambda t: t.conj().mT):
            self.assertEqual(view(self.a.hologram()).cpu(), view(self.a))
            self.assertEqual(view(self.a).hologram().cpu(), view(self.a))
            target = torch.zeros_like(view(self.a)).hologram()
            self.assertEqual(target.copy_(view(self.a)).cpu(), view(self.a))

    def test_zero_tensors(self):
        """Tensors without memory, which autograd makes."""
        for device in DEVICES:
            zero = torch._efficientzerotensor((2, 3), device=device)
            self.assertEqual(zero.device.type, device)
            x = torch.ones(2, 3, device=device)
            self.assertEqual((x + zero).cpu(), torch.ones(2, 3))
            self.assertEqual((x * zero).cpu(), torch.zeros(2, 3))
            self.assertEqual(torch.mm(x.t(), zero).cpu(), torch.zeros(3, 3))
            self.assertEqual(x.copy_(zero).cpu(), torch.zeros(2, 3))


class TestFailures(DelegateTestCase):
    """A kernel that fails midway leaves its arguments usable, and what the CPU's would hold."""

    def outcome(self, function, *arguments, bytes_of_out=True):
        states = []
        for device in DEVICES:
            tensors = [a.clone().to(device) for a in arguments]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that out= is resized
                with self.assertRaises((RuntimeError, IndexError)) as caught:
                    function(*tensors)
            for tensor in tensors:
                # Usable: computes, resizes and is one storage with its alias.
                self.assertEqual((tensor + tensor).shape, tensor.shape)
                if device == "hologram":
                    alias = torch.hologram.alias_as_cpu(tensor)
                    self.assertEqual(alias.data_ptr(), tensor.data_ptr())
                    self.assertEqual(
                        alias.untyped_storage().nbytes(), tensor.untyped_storage().nbytes()
                    )
            states.append(([t.to("cpu", copy=True) for t in tensors], str(caught.exception)))
        (wanted, wanted_error), (mine, error) = states
        if not bytes_of_out:  # the kernel made room there and wrote nothing
            self.assertEqual(mine.pop().shape, wanted.pop().shape)
        self.assertEqual(mine, wanted)
        self.assertEqual(error.replace("hologram", "cpu"), wanted_error)

    @pytest.mark.host_memory
    def test_after_resizing(self):
        singular = torch.zeros(3, 3)
        self.outcome(lambda a, o: torch.linalg.inv(a, out=o), singular, torch.empty(0))
        self.outcome(lambda a, o: torch.linalg.cholesky(a, out=o), -torch.eye(3), torch.empty(1))
        self.outcome(
            lambda a, b, o: torch.mm(a, b, out=o), singular, torch.ones(2, 2), torch.ones(5)
        )
        self.outcome(
            lambda x, i, o: torch.gather(x, 0, i, out=o),
            torch.rand(3),
            torch.tensor([0, 9]),
            torch.empty(0),
            bytes_of_out=False,
        )

    @pytest.mark.host_memory
    def test_after_writing(self):
        index = torch.tensor([0, 1, 7])
        self.outcome(lambda x, i, y: x.index_copy_(0, i, y), torch.zeros(3), index, torch.ones(3))
        self.outcome(lambda x, i, y: x.scatter_(0, i, y), torch.zeros(3), index, torch.ones(3))
        self.outcome(lambda x, i, y: x.put_(i, y), torch.zeros(3), index, torch.ones(3))
        self.outcome(lambda x: x.random_(5, 2), torch.zeros(3))
        self.outcome(lambda x: torch._foreach_add_([x[0], x[1]], [x[0], x]), torch.zeros(3, 2))

    def test_of_an_operator_that_resizes_and_raises(self):
        with torch.library._scoped_library("hologram_test", "DEF") as library:
            library.define("grow(Tensor x, Tensor(a!) out) -> ()")

            def grow(x, out):
                out.resize_(50)
                out.fill_(3)
                raise ValueError("after the resize")

            library.impl("grow", grow, "CPU")
            x, out = torch.ones(2, device="hologram"), torch.empty(0, device="hologram")
            view = out[:0]
            for _ in range(2):
                with self.assertRaisesRegex(ValueError, "after the resize"):
                    torch.ops.hologram_test.grow(x, out)
                self.assertEqual(out.cpu(), torch.full((50,), 3.0))
                self.assertEqual(view.untyped_storage().nbytes(), 200)

    def test_nothing_is_left_behind(self):
        gc.collect()
        before = torch.hologram.memory_allocated()
        for _ in range(20):
            with self.assertRaises(RuntimeError):
                torch.linalg.inv(torch.zeros(64, 64, device="hologram"))
            with self.assertRaises(RuntimeError):
                torch.ones(64, device="hologram") @ torch.ones(63, device="hologram")
        gc.collect()
        self.assertEqual(torch.hologram.memory_allocated(), before)


def chances(device: str) -> torch.Tensor:
    return torch.linspace(0.05, 0.95, 40, device=device).reshape(5, 8)


P = chances
DRAWS = {
    "rand": lambda d: torch.rand(40, device=d),
    "rand, few": lambda d: torch.rand(3, device=d),
    "rand, bfloat16": lambda d: torch.rand(40, device=d, dtype=torch.bfloat16),
    "randn": lambda d: torch.randn(40, device=d),
    "randn, few": lambda d: torch.randn(3, device=d),
    "randn, complex": lambda d: torch.randn(20, device=d, dtype=torch.complex64),
    "randint": lambda d: torch.randint(3, 99, (40,), device=d),
    "rand_like": lambda d: torch.rand_like(P(d)),
    "randn_like": lambda d: torch.randn_like(P(d).t()),
    "randint_like": lambda d: torch.randint_like(P(d), 9),
    "randperm": lambda d: torch.randperm(50, device=d),
    "normal": lambda d: torch.normal(0.0, 2.0, (30,), device=d),
    "normal, two tensors": lambda d: torch.normal(P(d), P(d)),
    "normal, means": lambda d: torch.normal(P(d), 2.0),
    "normal, deviations": lambda d: torch.normal(1.0, P(d)),
    "normal_, transposed": lambda d: torch.empty(8, 5, device=d).t().normal_(),
    "normal_, strided": lambda d: torch.zeros(40, 2, device=d)[:, 0].normal_(),
    "normal, out": lambda d: torch.normal(P(d), P(d), out=torch.empty(0, device=d)),
    "bernoulli": lambda d: torch.bernoulli(P(d)),
    "bernoulli, number": lambda d: torch.bernoulli(P(d), 0.3),
    "bernoulli_": lambda d: P(d).bernoulli_(0.3),
    "bernoulli_, tensor": lambda d: torch.empty(5, 8, device=d).bernoulli_(P(d)),
    "multinomial": lambda d: torch.multinomial(P(d), 3),
    "multinomial, replacement": lambda d: torch.multinomial(P(d), 30, replacement=True),
    "uniform_": lambda d: P(d).uniform_(-2, 3),
    "exponential_": lambda d: P(d).exponential_(2.0),
    "geometric_": lambda d: P(d).geometric_(0.2),
    "cauchy_": lambda d: P(d).cauchy_(),
    "log_normal_": lambda d: P(d).log_normal_(),
    "random_": lambda d: P(d).long().random_(),
    "random_, to": lambda d: P(d).random_(77),
    "random_, from": lambda d: P(d).random_(-5, 77),
    "poisson": lambda d: torch.poisson(P(d) * 20),
    "binomial": lambda d: torch.binomial(torch.full((5, 8), 9.0, device=d), P(d)),
    "_standard_gamma": lambda d: torch._standard_gamma(P(d) * 4),
    "_sample_dirichlet": lambda d: torch._sample_dirichlet(P(d)),
    "dropout": lambda d: F.dropout(P(d)),
    "dropout, in place": lambda d: F.dropout(P(d), 0.3, inplace=True),
    "dropout, transposed": lambda d: F.dropout(P(d).t()),
    "native_dropout": lambda d: torch.native_dropout(P(d), 0.3, True),
    "alpha_dropout": lambda d: F.alpha_dropout(P(d), training=True),
    "dropout2d": lambda d: F.dropout2d(P(d)[None, :, None], training=True),
    "feature_alpha_dropout": lambda d: F.feature_alpha_dropout(P(d)[None], training=True),
    "rrelu": lambda d: F.rrelu(-P(d), training=True),
    "gumbel_softmax": lambda d: F.gumbel_softmax(P(d)),
    "fractional_max_pool2d": lambda d: F.fractional_max_pool2d(P(d)[None], 2, (3, 4)),
    "kaiming_normal_": lambda d: torch.nn.init.kaiming_normal_(P(d)),
    "trunc_normal_": lambda d: torch.nn.init.trunc_normal_(P(d)),
    "orthogonal_": lambda d: torch.nn.init.orthogonal_(P(d)),
    "Linear": lambda d: torch.nn.Linear(8, 5, device=d).weight.detach(),
    "Normal": lambda d: torch.distributions.Normal(P(d), 1.0).sample((3,)),
    "Beta": lambda d: torch.distributions.Beta(P(d), P(d)).sample(),
    "Dirichlet": lambda d: torch.distributions.Dirichlet(P(d)).rsample(),
    "Categorical": lambda d: torch.distributions.Categorical(P(d)).sample((4,)),
    "VonMises": lambda d: torch.distributions.VonMises(P(d), P(d) * 4).sample(),
    "StudentT": lambda d: torch.distributions.StudentT(P(d) * 9).sample(),
    "attention": lambda d: F.scaled_dot_product_attention(*[P(d)[None]] * 3, dropout_p=0.4),
    "svd_lowrank": lambda d: torch.svd_lowrank(P(d), q=3)[1],
    "many": lambda d: [torch.rand(100_000, device=d), torch.randn(100_000, device=d)],
}

# The same tensor filled with numbers of a generator.
FILLS = {
    "uniform_": lambda x, g: x.uniform_(generator=g),
    "normal_": lambda x, g: x.normal_(generator=g),
    "exponential_": lambda x, g: x.exponential_(generator=g),
    "bernoulli_": lambda x, g: x.bernoulli_(0.4, generator=g),
    "random_": lambda x, g: x.random_(100, generator=g),
    "rand": lambda x, g: torch.rand(9, device=x.device, generator=g),
    "randn, out": lambda x, g: torch.randn(9, generator=g, out=x),
    "randint": lambda x, g: torch.randint(9, (9,), device=x.device, generator=g),
    "randperm": lambda x, g: torch.randperm(9, device=x.device, generator=g),
    "multinomial": lambda x, g: torch.multinomial(torch.ones_like(x), 4, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(torch.full_like(x, 0.5), generator=g),
    "normal, tensors": lambda x, g: torch.normal(torch.zeros_like(x), 1.0, generator=g),
    "poisson": lambda x, g: torch.poisson(torch.full_like(x, 3.0), generator=g),
    "_standard_gamma": lambda x, g: torch._standard_gamma(torch.ones_like(x), generator=g),
    "rrelu": lambda x, g: torch.ops.aten.rrelu_with_noise(
        -torch.ones_like(x), torch.empty_like(x), 0.1, 0.3, True, g
    ),
}  # fmt: skip


class TestRandomNumbers(DelegateTestCase):
    @parametrize("name", list(DRAWS))
    def test_numbers_of_the_cpu(self, name):
        """The device draws what the CPU draws from the same seed; the CPU draws nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dropout2d of two dimensions
            torch.manual_seed(7)
            wanted, wanted_state = DRAWS[name]("cpu"), torch.get_rng_state()
            torch.manual_seed(7)
            start = torch.get_rng_state()
            mine = DRAWS[name]("hologram")
        for a, b in zip(tree_leaves(mine), tree_leaves(wanted), strict=True):
            self.assertEqual(a.device.type, "hologram")
            self.assertEqual(a.cpu(), b)
        self.assertEqual(torch.get_rng_state(), start)
        self.assertEqual(torch.hologram.get_rng_state(), wanted_state)
        self.assertNotEqual(torch.hologram.get_rng_state(), start)

    @parametrize("name", list(FILLS))
    def test_generators(self, name):
        """A generator of the device, given or not, and replays."""

        def draw(device, generator):
            return tree_leaves(FILLS[name](torch.zeros(9, device=device), generator))[0].cpu()

        wanted = draw("cpu", torch.Generator().manual_seed(3))
        own = torch.Generator(device="hologram").manual_seed(3)
        default_state, cpu_state = torch.hologram.get_rng_state(), torch.get_rng_state()
        state = own.get_state()
        self.assertEqual(draw("hologram", own), wanted)
        second = draw("hologram", own)
        own.set_state(state)
        self.assertEqual((draw("hologram", own), draw("hologram", own)), (wanted, second))
        self.assertEqual(torch.hologram.get_rng_state(), default_state)
        # The default one, named and not.
        torch.hologram.manual_seed(3)
        self.assertEqual(draw("hologram", None), wanted)
        torch.hologram.manual_seed(3)
        self.assertEqual(draw("hologram", torch.hologram.default_generators[0]), wanted)
        self.assertEqual(torch.get_rng_state(), cpu_state)

    @parametrize("name", list(FILLS))
    def test_generator_of_another_device(self, name):
        for generator, device, wanted in (
            (torch.Generator(), "hologram", "'hologram' device type for generator but found 'cpu'"),
            (torch.Generator(device="hologram"), "cpu", "'cpu' device type.* found 'hologram'"),
        ):
            with self.assertRaisesRegex(RuntimeError, f"Expected a {wanted}"):
                FILLS[name](torch.zeros(9, device=device), generator)

    def test_generator_of_another_index(self):
        run_python(
            """
            import torch
            one = torch.Generator(device="hologram:1").manual_seed(3)
            try:
                torch.rand(3, device="hologram:0", generator=one)
            except RuntimeError as error:
                assert "hologram:0" in str(error) and "hologram:1" in str(error), error
            else:
                raise AssertionError("accepted")
            wanted = torch.rand(3, generator=torch.Generator().manual_seed(3))
            assert torch.equal(torch.rand(3, device="hologram:1", generator=one).cpu(), wanted)
            # Each device has a default generator of its own.
            torch.manual_seed(3)
            zero = torch.rand(3, device="hologram:0").cpu()
            assert torch.equal(torch.rand(3, device="hologram:1").cpu(), zero)
            """,
            env=several_devices(2),
        )


class TestLists(DelegateTestCase):
    """Operators over lists of tensors."""

    def test_foreach(self):
        torch.manual_seed(0)
        tensors = [
            torch.rand(5),
            torch.rand(2, 3),
            torch.rand(()),
            torch.rand(0),
            torch.rand(3).double(),
        ]
        others = [t * 2 + 0.1 for t in tensors]
        for function in (
            lambda x, y: torch._foreach_add(x, y, alpha=2),
            lambda x, y: torch._foreach_add(x, 3),
            lambda x, y: torch._foreach_add(x, [1, 2.5, 3, 4, 5]),
            lambda x, y: torch._foreach_mul(x, torch.tensor(2.0, device=x[0].device)),
            lambda x, y: torch._foreach_div(x, y),
            lambda x, y: torch._foreach_sqrt(x),
            lambda x, y: torch._foreach_norm(x[:3]),
            lambda x, y: torch._foreach_max(x[:3]),
            lambda x, y: torch._foreach_lerp(x, y, 0.3),
            lambda x, y: torch._foreach_addcmul(x, y, y, 0.5),
            lambda x, y: torch._foreach_addcdiv(x, y, y, [1, 2, 3, 4, 5]),
            lambda x, y: torch._foreach_pow(2, x),
            lambda x, y: torch._foreach_clamp_max(x, 0.5),
            lambda x, y: (torch._foreach_copy_(x, y), x)[1],
            lambda x, y: (torch._foreach_mul_(x, y), x)[1],
            lambda x, y: (torch._foreach_zero_(x), x)[1],
            lambda x, y: (torch._foreach_neg_(x), x)[1],
        ):
            # Most of them are the device's own operations, with functions and roundings of its own.
            self.check(function, tensors, others, exact=False)

    def test_in_place_keeps_storage_and_versions(self):
        tensors = [torch.ones(3, device="hologram") for _ in range(3)]
        addresses = [t.data_ptr() for t in tensors]
        torch._foreach_add_(tensors, 1)
        self.assertEqual([t.data_ptr() for t in tensors], addresses)
        self.assertEqual([t._version for t in tensors], [1, 1, 1])

    def test_lists_of_results(self):
        x = torch.rand(6, 4)
        for function in (
            lambda x: torch.unsafe_split(x, 4),
            lambda x: torch.unsafe_chunk(x, 4, 1),
            lambda x: torch.split_copy(x, 4),
            lambda x: torch.unbind_copy(x, 1),
            lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
            lambda x: torch.broadcast_tensors(x, x[:1]),
            lambda x: torch.atleast_2d(x[0], x),
            lambda x: torch.block_diag(x, x[:1]),
            lambda x: torch.cartesian_prod(x[0], x[1]),
            lambda x: torch.gradient(x),
        ):
            self.check(function, x)
        self.check(lambda x: torch._foreach_exp([x, x[1:]]), x, exact=False)  # the device's own exp

    @parametrize("kind", ["Adam", "AdamW", "SGD", "Adagrad"])
    def test_fused_optimizers(self, kind):
        """One call for all parameters: recorded, or Adagrad's to the CPU's fused kernel."""
        options = {"SGD": {"lr": 0.1, "momentum": 0.9}}.get(kind, {"lr": 0.1})
        weights = {}
        for device in DEVICES:
            torch.manual_seed(0)
            network = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
            )
            x, network = torch.randn(16, 4).to(device), network.to(device)
            optimizer = getattr(torch.optim, kind)(network.parameters(), fused=True, **options)
            addresses = [p.data_ptr() for p in network.parameters()]
            torch.hologram.reset_fallback_report()
            for _ in range(3):
                optimizer.zero_grad()
                (network(x) ** 2).mean().backward()
                optimizer.step()
            if device == "hologram":
                how = DELEGATED if kind == "Adagrad" else "native"
                calls = torch.hologram.fallback_report().operators(how)
                fused = {name: n for name, n in calls.items() if "_fused_" in name}
                self.assertEqual(list(fused.values()), [3], msg=str(fused))
            self.assertEqual([p.data_ptr() for p in network.parameters()], addresses)
            weights[device] = [p.detach().cpu() for p in network.parameters()]
        self.assertEqual(weights["hologram"], weights["cpu"])

    @parametrize("kind", ["Adam", "SGD", "RMSprop", "Adadelta", "NAdam", "LBFGS"])
    def test_optimizers(self, kind):
        weights = {}
        for device in DEVICES:
            weight = torch.linspace(-1, 1, 12).reshape(3, 4).to(device).requires_grad_()
            optimizer = getattr(torch.optim, kind)([weight], lr=0.1)

            def closure(weight=weight, optimizer=optimizer):
                optimizer.zero_grad()
                loss = (weight.sin() ** 2).sum()
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)
            weights[device] = weight.detach().cpu()
        self.assertEqual(weights["hologram"], weights["cpu"])

    def test_gradient_scaler(self):
        """The list operators of torch.amp."""
        for found in (False, True):

            def unscale(x, inverse, flag, found=found):
                x[0][0] = torch.inf if found else 1.0
                torch._amp_foreach_non_finite_check_and_unscale_(x, flag, inverse)
                scale, growth = torch.full_like(inverse, 8.0), torch.zeros_like(inverse).int()
                torch._amp_update_scale_(scale, growth, flag, 2.0, 0.5, 1)
                return [*x, flag, scale, growth]

            self.check(
                unscale, [torch.ones(3), torch.ones(2)], torch.tensor(0.5), torch.tensor(0.0)
            )


FACTORIES = {
    "empty": lambda **o: torch.empty(2, 3, **o).zero_(),
    "empty, channels last": lambda **o: torch.empty(
        1, 2, 3, 4, memory_format=torch.channels_last, **o
    ).zero_(),
    "empty_strided": lambda **o: torch.empty_strided((2, 3), (1, 2), **o).zero_(),
    "empty_permuted": lambda **o: torch.empty_permuted((2, 3), (1, 0), **o).zero_(),
    "zeros": lambda **o: torch.zeros(2, 3, **o),
    "ones": lambda **o: torch.ones(2, **o),
    "full": lambda **o: torch.full((2, 2), 7, **o),
    "arange": lambda **o: torch.arange(5, **o),
    "arange, step": lambda **o: torch.arange(1, 9, 2, **o),
    "range": lambda **o: torch.linspace(0, 1, 5, **o),
    "logspace": lambda **o: torch.logspace(0, 1, 5, **o),
    "eye": lambda **o: torch.eye(3, 4, **o),
    "tensor": lambda **o: torch.tensor([[1, 2], [3, 4]], **o),
    "as_tensor": lambda **o: torch.as_tensor([1.0, 2.0], **o),
    "asarray": lambda **o: torch.asarray([1.0, 2.0], **o),
    "scalar": lambda **o: torch.scalar_tensor(3, **o),
    "tril_indices": lambda **o: torch.tril_indices(3, 3, **{**o, "dtype": torch.int64}),
    "triu_indices": lambda **o: torch.triu_indices(3, 4, 1, **{**o, "dtype": torch.int64}),
    "hann_window": lambda **o: torch.hann_window(6, **floating(o)),
    "kaiser_window": lambda **o: torch.kaiser_window(6, **floating(o)),
    "fftfreq": lambda **o: torch.fft.fftfreq(6, **floating(o)),
    "vander": lambda **o: torch.vander(torch.arange(3, **o)),
    "zeros, no elements": lambda **o: torch.zeros(0, 3, **o),
}


def floating(options: dict) -> dict:
    return {**options, "dtype": options.get("dtype") and torch.float64}


class TestFactories(DelegateTestCase):
    @parametrize("name", list(FACTORIES))
    def test_device_and_dtype(self, name):
        for dtype in (None, torch.float64, torch.int32, torch.complex64):
            options = {} if dtype is None else {"dtype": dtype}
            if name in ("range", "logspace") and dtype is torch.int32:
                options = {"dtype": torch.float32}
            if dtype is torch.complex64 and name in ("arange", "arange, step", "vander"):
                continue
            wanted = FACTORIES[name](**options)
            for device in ("hologram", "hologram:0", torch.device("hologram"), 0):
                if device == 0 and name == "fftfreq":
                    continue
                mine = FACTORIES[name](device=device, **options)
                self.assertEqual(mine.device, torch.device("hologram", 0))
                self.assertEqual((mine.dtype, mine.stride()), (wanted.dtype, wanted.stride()))
                self.assertEqual(mine.cpu(), wanted, rtol=0, atol=0)

    @parametrize("name", list(FACTORIES))
    def test_default_device(self, name):
        wanted = FACTORIES[name]()
        with torch.device("hologram"):
            mine, elsewhere = FACTORIES[name](), FACTORIES[name](device="cpu")
        self.assertEqual((mine.device.type, elsewhere.device.type), ("hologram", "cpu"))
        self.assertEqual(mine.cpu(), wanted, rtol=0, atol=0)
        torch.set_default_device("hologram")
        try:
            self.assertEqual(FACTORIES[name]().device.type, "hologram")
        finally:
            torch.set_default_device(None)

    def test_default_dtype(self):
        torch.set_default_dtype(torch.float64)
        self.addCleanup(torch.set_default_dtype, torch.float32)
        for make in (torch.empty, torch.zeros, torch.rand, torch.randn):
            self.assertEqual(make(2, device="hologram").dtype, torch.float64)
        self.assertEqual(torch.tensor(1.0, device="hologram").dtype, torch.float64)

    def test_like_another(self):
        x = torch.rand(3, 4, device="hologram").t()
        plain = torch.rand(3, 4).t()
        for make in (
            torch.empty_like,
            torch.zeros_like,
            torch.ones_like,
            torch.rand_like,
            torch.randn_like,
            lambda t, **o: torch.full_like(t, 3, **o),
            lambda t, **o: t.new_zeros(2, **o),
            lambda t, **o: t.new_full((2,), 5, **o),
            lambda t, **o: t.new_tensor([1.0], **o),
            lambda t, **o: t.new_empty_strided((2, 2), (1, 2), **o),
        ):
            self.assertEqual(make(x).device, x.device)
            self.assertEqual(make(x).stride(), make(plain).stride())
            self.assertEqual(make(x, device="cpu").device.type, "cpu")
            self.assertEqual(make(plain, device="hologram").device, x.device)
            self.assertEqual(make(x, dtype=torch.float64).dtype, torch.float64)

    def test_options(self):
        self.assertTrue(torch.ones(2, device="hologram", requires_grad=True).requires_grad)
        self.assertFalse(torch.ones(2, device="hologram", pin_memory=False).is_pinned())
        for make in (torch.empty, torch.zeros, torch.rand):
            with self.assertRaisesRegex(RuntimeError, "Only dense CPU tensors can be pinned"):
                make(2, device="hologram", pin_memory=True)

    def test_from_other_libraries(self):
        import numpy

        array = numpy.arange(6.0).reshape(2, 3)
        for make in (torch.tensor, torch.as_tensor, torch.asarray):
            mine = make(array, device="hologram")
            self.assertEqual(mine.device.type, "hologram")
            self.assertEqual(mine.cpu(), torch.from_numpy(array))


class TestOnlyOffTheCpu(DelegateTestCase):
    """What client code calls on devices only, since the CPU has no kernel for it."""

    def test_histc_of_integers(self):
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
            x = torch.tensor([0, 1, 1, 5, 9, 9, 9, 10, 120], dtype=dtype)
            for options in ((10, 0, 10), (4, 0, 0), (3, 1, 9)):
                wanted = torch.histc(x.double(), *options).to(dtype)
                mine = torch.histc(x.hologram(), *options)
                self.assertEqual((mine.device.type, mine.dtype), ("hologram", dtype))
                self.assertEqual(mine.cpu(), wanted)
                out = torch.empty(0, dtype=dtype, device="hologram")
                self.assertIs(torch.histc(x.hologram(), *options, out=out), out)
                self.assertEqual(out.cpu(), wanted)
        self.check(lambda x: torch.histc(x, 7, -1, 1), torch.randn(100))
        self.check(
            lambda x: torch.histc(x, 7, out=torch.empty(0, device=x.device)), torch.randn(100)
        )

    def test_bincount(self):
        for dtype in (torch.uint8, torch.int32, torch.int64):
            x = torch.tensor([3, 0, 3, 1], dtype=dtype)
            self.check(lambda x: torch.bincount(x), x)
            self.check(lambda x: torch.bincount(x, minlength=9), x)
            self.check(lambda x, w: torch.bincount(x, w), x, torch.rand(4))
        self.check(torch.bincount, torch.zeros(0, dtype=torch.int64))

    def test_mode(self):
        for dtype in (torch.float32, torch.int64, torch.bool):
            x = torch.tensor([[1, 0, 1, 3], [0, 0, 3, 1]]).to(dtype)
            self.check(lambda x: x.mode(), x)
            self.check(lambda x: x.mode(0, keepdim=True), x)
            self.check(lambda x: x.t().mode(0), x)
        values, indices = torch.empty(0).hologram(), torch.empty(0).long().hologram()
        result = torch.mode(torch.rand(3, 4).hologram(), out=(values, indices))
        self.assertIs(result.values, values)

    def test_composites_that_look_at_the_device(self):
        x = torch.rand(3, 8, 8)
        for function in (
            lambda x: F.interpolate(x[None], scale_factor=2, mode="bilinear", antialias=True),
            lambda x: F.grid_sample(
                x[None], x[:1, ..., None].expand(1, 8, 8, 2), align_corners=True
            ),
            lambda x: F.channel_shuffle(x.reshape(1, 4, 6, 8), 2),
            lambda x: F.pixel_shuffle(x.reshape(1, 12, 4, 4), 2),
            lambda x: F.mish(x),
            lambda x: F.layer_norm(x, (8, 8)),
            lambda x: F.group_norm(x[None], 3),
            lambda x: F.batch_norm(
                x, torch.zeros(8, device=x.device), torch.ones(8, device=x.device)
            ),
            lambda x: torch.addr(x[0], x[0, 0], x[0, 1]),
            lambda x: x.all(dim=(0, 1)),
            lambda x: torch.stack([x, x]),
            lambda x: torch.cdist(x, x),
            lambda x: F.embedding_bag(torch.tensor([[0, 2]], device=x.device), x[0]),
            lambda x: F.ctc_loss(
                x.log_softmax(-1),
                torch.ones(8, 2, dtype=torch.int64, device=x.device),
                torch.full((8,), 3),
                torch.full((8,), 1),
            ),
            lambda x: torch.linalg.vector_norm(x, 3),
            lambda x: torch.special.polygamma(1, x + 1),
            lambda x: torch.logit(x, 1e-3),
        ):
            self.check(function, x, exact=False)


class TestOtherPeoplesOperators(DelegateTestCase):
    """Operators outside aten: registered for the CPU, in Python or in C++."""

    def library(self):
        library = torch.library.Library("hologram_test", "DEF")
        self.addCleanup(library._destroy)
        return library

    def test_python_kernel(self):
        library, seen = self.library(), []
        library.define("scale(Tensor x, float by, Tensor? shift=None) -> Tensor")

        def scale(x, by, shift=None):
            seen.append((x.device.type, x.data_ptr()))
            return x * by if shift is None else x * by + shift

        library.impl("scale", scale, "CPU")
        x = torch.arange(3.0, device="hologram")
        torch.hologram.reset_fallback_report()
        result = torch.ops.hologram_test.scale(x, 2.0)
        self.assertEqual(seen, [("cpu", x.data_ptr() if HOST_MEMORY else seen[0][1])])
        self.assertEqual((result.device, result.cpu()), (x.device, torch.tensor([0.0, 2, 4])))
        shifted = torch.ops.hologram_test.scale(x, 2.0, shift=x)
        self.assertEqual(shifted.cpu(), torch.tensor([0.0, 3, 6]))
        report = torch.hologram.fallback_report().operators(DELEGATED)
        self.assertEqual(report["hologram_test::scale"], 2)
        with self.assertRaisesRegex(RuntimeError, "Expected all tensors to be on the same device"):
            torch.ops.hologram_test.scale(x, 2.0, torch.ones(3))

    def test_results_and_arguments(self):
        """A result that is an argument, a view of one, two of one new storage, a list, nothing."""
        library = self.library()
        library.define("itself(Tensor(a) x) -> Tensor(a)")
        library.define("view(Tensor(a) x) -> Tensor(a)")
        library.define("pair(Tensor x) -> (Tensor, Tensor)")
        library.define("several(Tensor[] x) -> Tensor[]")
        library.define("write_(Tensor(a!) x) -> Tensor(a!)")
        library.define("grow(Tensor(a!) x) -> ()")
        library.define("mixed(Tensor x) -> (Tensor, int, str, Tensor[])")
        implementations = {
            "itself": lambda x: x,
            "view": lambda x: x[1:].t(),
            "pair": lambda x: (lambda fresh: (fresh, fresh[1:]))(x * 2),
            "several": lambda x: [x[0], x[1] * 2, x[0][:1], x[1] * 2],
            "write_": lambda x: x.mul_(3),
            "grow": lambda x: [x.resize_(20).fill_(4)].clear(),
            "mixed": lambda x: (x + 1, 7, "seven", [x - 1]),
        }
        for name, function in implementations.items():
            library.impl(name, function, "CPU")
        ops = torch.ops.hologram_test
        x = torch.arange(6.0, device="hologram").reshape(3, 2)
        self.assertEqual(ops.itself(x).data_ptr(), x.data_ptr())
        view = ops.view(x)
        self.assertEqual(view.untyped_storage()._cdata, x.untyped_storage()._cdata)
        self.assertEqual((view.stride(), view.storage_offset()), ((1, 2), 2))
        first, second = ops.pair(x)
        self.assertEqual(first.untyped_storage()._cdata, second.untyped_storage()._cdata)
        first[2] = -1
        self.assertEqual(second[1].cpu(), torch.tensor([-1.0, -1.0]))
        results = ops.several([x, x + 1])
        self.assertEqual([r.device for r in results], [x.device] * 4)
        self.assertEqual(results[0].data_ptr(), x.data_ptr())
        self.assertEqual(results[2].untyped_storage()._cdata, x.untyped_storage()._cdata)
        self.assertNotEqual(results[1].data_ptr(), results[3].data_ptr())
        y = torch.ones(2, device="hologram")
        self.assertIs(ops.write_(y), y)
        self.assertEqual((y.cpu(), y._version), (torch.full((2,), 3.0), 1))
        ops.grow(y)
        self.assertEqual(y.cpu(), torch.full((20,), 4.0))
        plus, seven, text, (minus,) = ops.mixed(x)
        self.assertEqual((seven, text), (7, "seven"))
        self.assertEqual((plus - minus).cpu(), torch.full((3, 2), 2.0))

    def test_kept_tensors_stay_on_the_cpu(self):
        """A result that the operator keeps is aliased, not relabelled under its feet."""
        library, kept = self.library(), torch.arange(3.0)
        library.define("cached(Tensor x) -> Tensor")
        library.impl("cached", lambda x: kept, "CPU")
        result = torch.ops.hologram_test.cached(torch.ones(1, device="hologram"))
        self.assertEqual((result.device.type, kept.device.type), ("hologram", "cpu"))
        if HOST_MEMORY:
            self.assertEqual(result.data_ptr(), kept.data_ptr())
        self.assertEqual(result.cpu(), kept)

    def test_defined_anew(self):
        """The same name with another signature, as in a notebook."""
        x = torch.ones(3, device="hologram")
        for schema, function, arguments in (
            ("again(Tensor x) -> Tensor", lambda x: x * 2, (x,)),
            ("again(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y, (x, x)),
            ("again(int n, Tensor x) -> Tensor", lambda n, x: x * n, (2, x)),
        ):
            with torch.library._scoped_library("hologram_test", "DEF") as library:
                library.define(schema)
                library.impl("again", function, "CPU")
                result = torch.ops.hologram_test.again(*arguments)
                self.assertEqual(result.cpu(), torch.full((3,), 2.0))

    def test_custom_op(self):
        @torch.library.custom_op("hologram_test::cube", mutates_args=(), device_types="cpu")
        def cube(x: torch.Tensor) -> torch.Tensor:
            return x**3

        cube.register_autograd(
            lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        )
        x = torch.arange(3.0, device="hologram", requires_grad=True)
        result = cube(x)
        self.assertEqual(result.device, x.device)
        result.sum().backward()
        self.assertEqual(x.grad.cpu(), torch.tensor([0.0, 3, 12]))

        @cube.register_kernel("hologram")
        def native(x):
            return x * 100

        self.assertEqual(cube(x).detach().cpu(), torch.tensor([0.0, 100, 200]))

    def test_no_kernel_at_all(self):
        library = self.library()
        library.define("nothing(Tensor x) -> Tensor")
        library.define("cuda_only(Tensor x) -> Tensor")
        library.impl("cuda_only", lambda x: x, "CUDA")
        x = torch.ones(1, device="hologram")
        for name in ("nothing", "cuda_only"):
            with self.assertRaisesRegex(
                NotImplementedError,
                f"'hologram_test::{name}' on the hologram device: it has neither a hologram kernel "
                "nor a CPU kernel for strided tensors",
            ):
                getattr(torch.ops.hologram_test, name)(x)
        with self.assertRaisesRegex(NotImplementedError, "aten::_cudnn_rnn_flatten_weight"):
            torch.ops.aten._cudnn_rnn_flatten_weight([x], 1, 1, 2, 1, 0, 1, False, False)

    def test_with_modes(self):
        """Above the device, function and dispatch modes see the device's tensors."""
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                tensors = [a for a in tree_leaves(args) if isinstance(a, torch.Tensor)]
                seen.append((str(function), {t.device.type for t in tensors}))
                return function(*args, **(kwargs or {}))

        x = torch.rand(3, 3, device="hologram")
        with Mode():
            torch.linalg.inv(x).sort()
        names = [name for name, _ in seen]
        self.assertEqual((names[0], names[-1]), ("aten.linalg_inv_ex.default", "aten.sort.default"))
        self.assertEqual({device for _, devices in seen for device in devices}, {"hologram"})


class TestAutograd(DelegateTestCase):
    def test_versions(self):
        """Writes through the delegate bump the tensor's counter, once, as on the CPU."""
        for function in (
            lambda x: x.sigmoid_(),
            lambda x: x.add_(1),
            lambda x: torch.sin(x, out=x),
            lambda x: x[1:].sigmoid_(),
            lambda x: x.unfold(0, 2, 2).sigmoid_(),
            lambda x: x.fill_(2),
            lambda x: x.copy_(torch.ones(4)),
            lambda x: x.index_put_((torch.tensor([0]),), x.new_tensor(1.0)),
            lambda x: torch._foreach_add_([x, x[1:]], 1),
            lambda x: x.detach().sigmoid_(),
            lambda x: x.data.sigmoid_(),
            lambda x: x.resize_(9),
            lambda x: x.normal_(),
            lambda x: torch.sort(
                torch.ones(4, device=x.device), out=(x, torch.ones(4).long().to(x.device))
            ),
            lambda x: x.sort(),
        ):
            versions = []
            for device in DEVICES:
                x = torch.rand(4, device=device)
                function(x)
                versions.append(x._version)
            self.assertEqual(versions[1], versions[0])

    def test_changed_before_backward(self):
        for forward, change in (
            (lambda x: x.sigmoid(), lambda x, y: y.mul_(2)),
            (lambda x: x.sin(), lambda x, y: x.add_(1)),
            (lambda x: x.exp(), lambda x, y: y.unfold(0, 2, 1)[0].zero_()),
            (lambda x: x.prod(), lambda x, y: torch.sort(x.clone(), out=(x, x.long()))),
            (lambda x: x.max(), lambda x, y: torch._foreach_neg_([x])),
        ):
            messages = []
            for device in DEVICES:
                x = torch.rand(3, device=device, requires_grad=True) * 1
                y = forward(x)
                with torch.no_grad():
                    try:
                        change(x, y)
                    except RuntimeError as error:
                        self.fail(str(error))
                try:
                    y.sum().backward()
                    messages.append("")
                except RuntimeError as error:
                    messages.append(str(error).replace("hologramFloatType", "torch.FloatTensor"))
            self.assertEqual(messages[1], messages[0])

    def test_leaves_and_views(self):
        for device in DEVICES:
            leaf = torch.rand(3, device=device, requires_grad=True)
            with self.assertRaisesRegex(RuntimeError, "a leaf Variable that requires grad"):
                leaf.sigmoid_()
            with self.assertRaisesRegex(RuntimeError, "view of a leaf Variable"):
                leaf[1:].sigmoid_()
            with self.assertRaisesRegex(RuntimeError, "don't support automatic differentiation"):
                torch.sin(leaf, out=torch.empty(3, device=device))

    def test_inference_mode(self):
        with torch.inference_mode():
            x = torch.rand(3, 3, device="hologram")
            y = torch.linalg.inv(x)
            torch.sort(x, out=(y, torch.zeros(3, 3).long().hologram()))
            y[1:].sigmoid_()
            self.assertTrue(x.is_inference() and y.is_inference() and y[1:].is_inference())
        normal = torch.rand(3, 3, device="hologram")
        with torch.inference_mode():
            normal.sigmoid_()
            self.assertFalse(normal.is_inference())
            self.assertEqual(normal._version, 1)
        for device in DEVICES:
            with torch.inference_mode():
                x = torch.rand(3, device=device)
            with self.assertRaisesRegex(RuntimeError, "Inplace update to inference tensor"):
                x.sigmoid_()

    def test_results_of_integers_need_no_gradient(self):
        x = torch.rand(4, device="hologram", requires_grad=True)
        values, indices = x.sort()
        self.assertEqual((values.requires_grad, indices.requires_grad), (True, False))
        self.assertFalse((x > 0).requires_grad)

    def test_saved_tensors(self):
        """What a node keeps for backward is the device's, and survives the alias."""
        x = torch.rand(3, 3, device="hologram", requires_grad=True)
        y = torch.linalg.inv(x)
        self.assertEqual(y.grad_fn._saved_inverse.device, x.device)
        gc.collect()
        (gradient,) = torch.autograd.grad(y.sum(), x)
        plain = x.detach().cpu().requires_grad_()
        (wanted,) = torch.autograd.grad(torch.linalg.inv(plain).sum(), plain)
        self.assertEqual(gradient.cpu(), wanted)


class TestMemory(DelegateTestCase):
    WORK = (
        ("native", lambda x: (x + x).mul_(2).neg()),
        ("delegated", lambda x: torch.linalg.inv(x).sort().values),
        ("views", lambda x: x.unfold(0, 3, 1).transpose(0, 1)[1:]),
        ("out grows", lambda x: torch.mm(x, x, out=torch.empty(0, device=x.device))),
        ("storage", lambda x: x.clone().untyped_storage().resize_(10).resize_(0)),
        ("alias", lambda x: torch.hologram.alias_from_cpu(torch.hologram.alias_as_cpu(x) + 1)),
        ("convolution", lambda x: F.conv2d(x[None, None], x[None, None, :3, :3])),
        ("list", lambda x: torch._foreach_exp([x, x[1:]])),
        ("random", lambda x: torch.randn_like(x).bernoulli_(0.5)),
        ("copies", lambda x: x.cpu().hologram().to(torch.float64)),
        ("sparse", lambda x: (x.to_sparse() * 2).to_dense()),
        ("failure", lambda x: fails(lambda: torch.linalg.inv(x * 0))),
        ("backward", lambda x: x.clone().requires_grad_().sin().sum().backward()),
    )

    @pytest.mark.host_memory
    @parametrize("name", [name for name, _ in WORK])
    def test_everything_is_given_back(self, name):
        work, x = dict(self.WORK)[name], torch.rand(32, 32, device="hologram") + 0.1
        work(x)
        gc.collect()
        before = torch.hologram.memory_stats()
        for _ in range(30):
            work(x)
        gc.collect()
        after = torch.hologram.memory_stats()
        for counter in (
            "allocated_bytes.all.current",
            "allocation.all.current",
            "foreign_bytes.all.current",
        ):
            self.assertEqual(after[counter], before[counter], msg=f"{name} {counter}")

    @pytest.mark.host_memory
    def test_resident_memory_is_flat(self):
        x = torch.rand(64, 64, device="hologram")

        def resident() -> int:
            gc.collect()
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        def work():
            for _, step in self.WORK:
                step(x)

        if not os.path.exists("/proc/self/statm"):
            self.skipTest("needs /proc")
        for _ in range(50):
            work()
        before = resident()
        for _ in range(300):
            work()
        # 300 times 13 kinds of work, each on tensors of 16 KiB: one leaked tensor of one kind
        # would be 4.7 MiB.
        self.assertLess(resident() - before, 3 << 20)

    def test_peak_counts_results_of_kernels(self):
        x = torch.rand(256, 256, device="hologram")
        torch.hologram.reset_peak_memory_stats()
        before = torch.hologram.memory_allocated()
        kept = [x.sort().values for _ in range(4)]
        self.assertGreaterEqual(torch.hologram.memory_allocated() - before, 4 * x.nbytes)
        del kept
        self.assertEqual(torch.hologram.memory_allocated(), before)
        self.assertGreaterEqual(torch.hologram.max_memory_allocated() - before, 4 * x.nbytes)


def fails(call) -> None:
    try:
        call()
    except RuntimeError:
        return
    raise AssertionError("did not fail")


instantiate_parametrized_tests(TestRandomNumbers)
instantiate_parametrized_tests(TestLists)
instantiate_parametrized_tests(TestFactories)
instantiate_parametrized_tests(TestMemory)

if __name__ == "__main__":
    run_tests()
