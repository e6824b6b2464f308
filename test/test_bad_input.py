"""Wrong arguments raise what CUDA raises, name the values, and leave the device usable.

tearDown() of HologramTestCase computes on the device after each of them. The messages of a wrong
torch version are in test_autoload.py.
"""

from __future__ import annotations

import io
import re

import pytest
import torch
from common import CUDA_KERNELS, HologramTestCase, as_torch, run_python
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

SAME_DEVICE = "Expected all tensors to be on the same device"


def device_matrix(n: int = 3) -> torch.Tensor:
    return torch.rand(n, n, device="hologram")


# What is an error on the CPU: name -> call for a device.
ERRORS = {
    "broadcast": lambda d: torch.ones(2, device=d) + torch.ones(3, device=d),
    "broadcast_in_place": lambda d: torch.ones(2, device=d).add_(torch.ones(3, 2, device=d)),
    "matmul": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "matmul_dtype": lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, device=d).double(),
    "linear": lambda d: torch.nn.Linear(3, 2, device=d)(torch.ones(1, 4, device=d)),
    "conv": lambda d: torch.nn.Conv2d(3, 2, 3, device=d)(torch.ones(1, 1, 8, 8, device=d)),
    "view": lambda d: torch.ones(4, device=d).view(3),
    "reshape": lambda d: torch.ones(4, device=d).reshape(5, -1),
    "cat": lambda d: torch.cat([torch.ones(2, 2, device=d), torch.ones(3, 3, device=d)]),
    "stack": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "dimension": lambda d: torch.ones(2, device=d).sum(dim=3),
    "transpose": lambda d: torch.ones(2, device=d).transpose(0, 4),
    "leaf_in_place": lambda d: torch.ones(2, device=d, requires_grad=True).add_(1),
    "sort_dimension": lambda d: torch.ones(2, device=d).sort(dim=2),
    "inverse": lambda d: torch.linalg.inv(torch.ones(2, 3, device=d)),
    "singular": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
    "cholesky": lambda d: torch.linalg.cholesky(-torch.eye(3, device=d)),
    "not_floating": lambda d: torch.ones(2, dtype=torch.int64, device=d).mean(),
    "bitwise": lambda d: torch.ones(2, device=d) & torch.ones(2, device=d),
    "integer_in_place": lambda d: torch.ones(2, dtype=torch.int64, device=d).add_(1.5),
    "integer_division": lambda d: torch.ones(2, dtype=torch.int64, device=d).div_(2),
    "grad_of_integer": lambda d: torch.ones(2, dtype=torch.int64, device=d, requires_grad=True),
    "out_dtype": lambda d: torch.add(
        torch.ones(2, device=d),
        torch.ones(2, device=d),
        out=torch.empty(2, dtype=torch.int64, device=d),
    ),
    "out_overlap": lambda d: torch.add(
        torch.ones(3, device=d), 1, out=torch.ones(1, device=d).expand(3)
    ),
    "partial_overlap": lambda d: (lambda x: x[1:].add_(x[:-1]))(torch.ones(4, device=d)),
    # A broadcast operand has sizes that no result can have.
    "size": lambda d: torch.ones(1, device=d).expand(2**62) + 1,
    "size_of_two": lambda d: torch.ones(1, 1, device=d).expand(2**40, 2**30) * 2.0,
    "size_of_both": lambda d: (
        torch.ones(1, 1, device=d).expand(2**31, 1) + torch.ones(1, device=d).expand(2**33)
    ),
    "size_unary": lambda d: torch.ones(1, device=d).expand(2**62).tanh(),
    "size_half": lambda d: torch.ones(1, dtype=torch.bfloat16, device=d).expand(2**63 - 1).neg(),
    "size_composite": lambda d: torch.nn.functional.gelu(torch.ones(1, device=d).expand(2**62)),
    "size_lerp": lambda d: (lambda x: torch.lerp(x, x, 0.3))(torch.ones(1, device=d).expand(2**62)),
    "size_clone": lambda d: torch.ones(1, device=d).expand(2**62).contiguous(),
    "size_like": lambda d: torch.zeros_like(torch.ones(1, device=d).expand(2**62, 2)),
    "size_empty": lambda d: torch.empty(2**62, device=d),
    "size_zeros": lambda d: torch.zeros(2**31, 2**31, 2, device=d),
    "size_full": lambda d: torch.full((2**62,), 1.5, device=d),
    "size_out": lambda d: torch.add(
        torch.ones(1, device=d).expand(2**62), 1, out=torch.empty(0, device=d)
    ),
    "size_in_place": lambda d: torch.ones(1, device=d).expand(2**62).add_(1),
    "size_resize": lambda d: torch.ones(1, device=d).resize_(2**62),
    "size_strided": lambda d: torch.empty_strided((2**40, 2**40), (2**40, 1), device=d),
    # Numbers that the dtype does not have.
    "lerp_weight": lambda d: torch.lerp(torch.zeros(2, device=d), torch.ones(2, device=d), 1e39),
    "lerp_low": lambda d: torch.lerp(torch.zeros(2, device=d), torch.ones(2, device=d), -1e39),
    "lerp_half": lambda d: torch.zeros(2, dtype=torch.bfloat16, device=d).lerp_(
        torch.ones(2, dtype=torch.bfloat16, device=d), 1e39
    ),
    "fill": lambda d: torch.zeros(2, device=d).fill_(1e39),
    "clamp": lambda d: torch.zeros(2, device=d).clamp(min=1e39),
    "add_alpha": lambda d: torch.add(torch.zeros(2, device=d), torch.ones(2, device=d), alpha=1e39),
    "addcmul_value": lambda d: torch.zeros(2, device=d).addcmul(
        torch.ones(2, device=d), torch.ones(2, device=d), value=1e39
    ),
    "addcdiv_value": lambda d: torch.zeros(2, device=d).addcdiv(
        torch.ones(2, device=d), torch.ones(2, device=d), value=-1e39
    ),
    "rsub_alpha": lambda d: torch.rsub(
        torch.zeros(2, device=d), torch.ones(2, device=d), alpha=1e39
    ),
    "item": lambda d: torch.ones(2, device=d).item(),
    "bool": lambda d: bool(torch.ones(2, device=d)),
    "negative_size": lambda d: torch.empty(-1, device=d),
    "huge_size": lambda d: torch.empty(2**40, 2**40, device=d),
    "as_strided": lambda d: torch.ones(2, device=d).as_strided((4,), (1,)),
    "expand": lambda d: torch.ones(2, device=d).expand(3),
    "pad": lambda d: torch.nn.functional.pad(torch.ones(1, 2, device=d), (5, 5), mode="reflect"),
    "pool": lambda d: torch.nn.functional.max_pool2d(torch.ones(1, 2, 2, device=d), 3),
    "loss": lambda d: torch.nn.functional.nll_loss(
        torch.ones(2, 3, device=d), torch.ones(4, dtype=torch.int64, device=d)
    ),
    "einsum": lambda d: torch.einsum(
        "ij,jk->ik", torch.ones(2, 3, device=d), torch.ones(2, 3, device=d)
    ),
    "norm_shape": lambda d: torch.nn.functional.layer_norm(torch.ones(2, 3, device=d), (4,)),
    "dropout": lambda d: torch.nn.functional.dropout(torch.ones(2, device=d), 1.5),
    "attention": lambda d: torch.nn.functional.scaled_dot_product_attention(
        torch.ones(1, 2, 3, device=d), torch.ones(1, 2, 4, device=d), torch.ones(1, 2, 3, device=d)
    ),
    "backward_of_vector": lambda d: torch.ones(2, device=d, requires_grad=True).mul(2).backward(),
}


class TestShapesAndTypes(HologramTestCase):
    """The exception and the message are those of the CPU, for native and delegated operators.

    Those of torch's own CUDA device, where its kernels say otherwise.
    """

    @parametrize("name", list(ERRORS))
    def test_as_on_the_cpu(self, name):
        case = ERRORS[name]

        def error_on(device: str) -> Exception:
            with self.assertRaises(Exception, msg=f"no error on {device}") as caught:
                case(device)
            return caught.exception

        def essence(error: Exception, device: str) -> str:
            text = str(error).split("\n")[0].replace("hologram", device)
            return re.sub(r"0x[0-9a-f]+", "", text.replace("cpu:0", "cpu"))

        mine = error_on("hologram")

        def compare(device: str) -> None:
            wanted = error_on(device)
            self.assertIs(type(mine), type(wanted))
            self.assertEqual(essence(mine, device), essence(wanted, device))

        as_torch(compare)

    def test_negative_sizes(self):
        for use in (
            lambda: torch.empty(2, -3, device="hologram"),
            lambda: torch.ones(2, device="hologram").resize_(-3),
            lambda: torch.ones(2, device="hologram").new_zeros(-3),
        ):
            with self.assertRaisesRegex(RuntimeError, "negative dimension -3"):
                use()


class TestIndices(HologramTestCase):
    @pytest.mark.device_assert
    @parametrize("index", [5, -4])
    def test_out_of_range(self, index):
        x, wrong = torch.arange(3.0, device="hologram"), torch.tensor([index], device="hologram")
        uses = [
            lambda: x[index],
            lambda: x[wrong],
            lambda: x.index_select(0, wrong),
            lambda: x.gather(0, wrong),
            lambda: x.scatter(0, wrong, torch.ones(1, device="hologram")),
            lambda: x.index_add(0, wrong, torch.ones(1, device="hologram")),
            lambda: x.index_put((wrong,), torch.ones(1, device="hologram")),
            lambda: x.index_fill(0, wrong, 1.0),
            lambda: x.take(wrong),
            lambda: x.select(0, index),
            lambda: torch.nn.functional.embedding(wrong, x[:, None]),
        ]
        for number, use in enumerate(uses):
            with self.assertRaisesRegex((IndexError, RuntimeError), "out of (range|bounds)"):
                use()
                self.fail(f"use {number} did not raise")
        for use in uses[:2]:
            with self.assertRaisesRegex(IndexError, rf"index {index} is out of bounds.*size 3"):
                use()

    def test_class_out_of_range(self):
        scores, target = (
            torch.ones(2, 3, device="hologram"),
            torch.tensor([0, 7], device="hologram"),
        )
        with self.assertRaisesRegex(IndexError, "Target 7 is out of bounds"):
            # When the program has run, which this read asks for.
            torch.nn.functional.cross_entropy(scores, target).item()

    def test_bad_probabilities(self):
        for probabilities in ([-1.0, 2.0], [float("nan"), 1.0]):
            weights = torch.tensor(probabilities, device="hologram")
            with self.assertRaisesRegex(RuntimeError, "probability tensor contains"):
                # When the program has run, which this read asks for.
                torch.multinomial(weights, 1).item()
        with self.assertRaisesRegex(RuntimeError, "p_in >= 0 && p_in <= 1|between 0 and 1"):
            torch.bernoulli(torch.tensor([2.0], device="hologram")).item()

    def test_division_of_integers_by_zero(self):
        x, zero = (torch.tensor([value], device="hologram") for value in (1, 0))
        if CUDA_KERNELS:  # which cannot raise
            torch.div(x, zero, rounding_mode="floor")
            return
        with self.assertRaisesRegex(RuntimeError, "ZeroDivisionError"):
            torch.div(x, zero, rounding_mode="floor")


class TestDevices(HologramTestCase):
    def test_index_that_does_not_exist(self):
        count = torch.hologram.device_count()
        message = rf"index {count + 3} is out of range: {count} device"
        where = f"hologram:{count + 3}"
        uses = [
            lambda: torch.empty(2, device=where),
            lambda: torch.ones(2).to(where),
            lambda: torch.ones(2).hologram(count + 3),
            lambda: torch.nn.Linear(2, 2).to(where),
            lambda: torch.Generator(device=where),
            lambda: torch.Stream(device=where),
            lambda: torch.hologram.Stream(where),
            lambda: torch.hologram.set_device(count + 3),
            lambda: torch.hologram.device(where).__enter__(),
            lambda: torch.hologram.current_stream(count + 3),
            lambda: torch.hologram.synchronize(where),
            lambda: torch.hologram.get_rng_state(where),
            lambda: torch.hologram.get_device_properties(where),
            lambda: torch.hologram.get_device_name(count + 3),
            lambda: torch.hologram.memory_stats(where),
            lambda: torch.hologram.mem_get_info(where),
            lambda: torch.hologram.can_device_access_peer(0, where),
            lambda: torch.hologram.set_per_process_memory_fraction(0.5, where),
            lambda: torch.UntypedStorage(4, device=where),
            lambda: torch.hologram.alias_from_cpu(torch.ones(1), where),
            lambda: torch.accelerator.set_device_index(count + 3),
        ]
        torch.hologram.init()
        for number, use in enumerate(uses):
            with self.assertRaisesRegex(RuntimeError, message, msg=f"use {number}"):
                use()
        self.assertEqual(torch.hologram.current_device(), 0)

    def test_index_beyond_every_device(self):
        for index in (200, 10**9):
            with self.assertRaisesRegex(RuntimeError, f"{index}"):
                torch.hologram.set_device(index)

    def test_device_of_another_type(self):
        uses = [
            lambda: torch.hologram.set_device("cpu"),
            lambda: torch.hologram.device("cuda:0"),
            lambda: torch.hologram.synchronize(torch.device("cpu")),
            lambda: torch.hologram.Stream("cpu"),
            lambda: torch.hologram.memory_allocated("meta"),
            lambda: torch.hologram.get_rng_state("cpu"),
        ]
        torch.hologram.init()
        for use in uses:
            with self.assertRaisesRegex(
                ValueError, "Expected a hologram device, but got: (cpu|cuda:0|meta)"
            ):
                use()
        with self.assertRaisesRegex(RuntimeError, "must be hologram device"):
            torch.ones(1).hologram("cpu")

    def test_no_device_at_all(self):
        with self.assertRaisesRegex(ValueError, "specified index or an integer, but got: hologram"):
            torch.hologram.set_device("hologram")
        with self.assertRaisesRegex(ValueError, "specified index or an integer, but got: None"):
            torch.hologram.set_device(None)
        with self.assertRaisesRegex(TypeError, r"but got: 1\.5"):
            torch.hologram.synchronize(1.5)


class TestMixedDevices(HologramTestCase):
    @parametrize(
        "operator",
        [
            torch.add,
            torch.mul,
            torch.maximum,
            torch.atan2,
            torch.eq,
            torch.mm,
            torch.dot,
            torch.linalg.solve,
            torch.where,
            torch.cat,
            torch.stack,
            torch.addmm,
            torch.lerp,
            torch.cdist,
            torch.kron,
            torch.linalg.cross,
            torch.index_copy,
            torch.nn.functional.linear,
            torch.nn.functional.mse_loss,
            torch.nn.functional.layer_norm,
            torch.nn.functional.conv1d,
            torch.nn.functional.embedding,
            torch.nn.functional.batch_norm,
        ],
        name_fn=lambda operator: operator.__name__,
    )
    def test_native_and_delegated(self, operator):
        here, there = device_matrix(), torch.rand(3, 3)
        index = torch.tensor([0, 1, 2])
        arguments = {
            "dot": (here[0], there[0]),
            "where": (here > 0, here, there),
            "cat": ([here, there],),
            "stack": ([here, there],),
            "addmm": (here, here, there),
            "lerp": (here, there, here),
            "index_copy": (here, 0, index.hologram(), there),
            "layer_norm": (here, (3,), there[0], there[0]),
            "conv1d": (here[None], there[None]),
            "embedding": (index, here),
            "batch_norm": (here, there[0], there[0]),
        }.get(operator.__name__, (here, there))
        with self.assertRaisesRegex(RuntimeError, SAME_DEVICE) as caught:
            operator(*arguments)
        self.assertIn("hologram:0", str(caught.exception))
        self.assertIn("cpu", str(caught.exception))

    def test_in_place_and_out(self):
        here, there = device_matrix(), torch.rand(3, 3)
        uses = [
            lambda: here.add_(there),
            lambda: there.add_(here),
            lambda: here.addmm_(there, there),
            lambda: torch.add(here, here, out=there),
            lambda: torch.add(there, there, out=here),
            lambda: torch.mm(here, here, out=there),
            lambda: torch.sort(here, out=(there, torch.empty(0, dtype=torch.int64))),
            lambda: torch._foreach_add([here], [there]),
            lambda: torch._foreach_mul_([here, here], [here, there]),
        ]
        for number, use in enumerate(uses):
            with self.assertRaisesRegex(RuntimeError, "device", msg=f"use {number}") as caught:
                use()
            self.assertIn("hologram", str(caught.exception), f"use {number}")
            self.assertIn("cpu", str(caught.exception), f"use {number}")

    def test_modules(self):
        x = torch.rand(2, 3)
        for module, argument in (
            (torch.nn.Linear(3, 2), x),
            (torch.nn.LSTM(3, 2), x[None]),
            (torch.nn.GRUCell(3, 2), x),
            (torch.nn.MultiheadAttention(3, 1), (x, x, x)),
        ):
            arguments = argument if isinstance(argument, tuple) else (argument,)
            with self.assertRaisesRegex(RuntimeError, "device") as caught:
                module.hologram()(*arguments)
            self.assertIn("hologram", str(caught.exception), type(module).__name__)
            self.assertIn("cpu", str(caught.exception), type(module).__name__)
        # Where torch's own check of convolutions comes first, it names types instead of devices.
        with self.assertRaisesRegex(
            RuntimeError,
            rf"{SAME_DEVICE}.*cpu.*hologram:0|torch.FloatTensor.*hologramFloatType",
        ):
            torch.nn.Conv1d(3, 2, 1).hologram()(x[..., None])

    def test_attention(self):
        here, there = (torch.rand(1, 2, 4, device=device) for device in ("hologram", "cpu"))
        with self.assertRaisesRegex(RuntimeError, "same device type.*hologram:0.*cpu"):
            torch.nn.functional.scaled_dot_product_attention(here, there, here)

    def test_meta(self):
        with self.assertRaisesRegex((RuntimeError, NotImplementedError), "meta"):
            device_matrix() + torch.rand(3, 3, device="meta")

    def test_gradient_of_another_device(self):
        x = torch.ones(2, device="hologram", requires_grad=True)
        with self.assertRaisesRegex(RuntimeError, "device.*hologram:0|hologram:0.*device"):
            (x * 2).backward(torch.ones(2))
        with self.assertRaisesRegex(RuntimeError, "device"):
            x.grad = torch.ones(2)

    def test_data_of_another_device(self):
        with self.assertRaisesRegex(RuntimeError, "device|incompatible"):
            torch.ones(2, device="hologram").set_(torch.ones(2).untyped_storage())


class TestAcceptedMixtures(HologramTestCase):
    """0-dim CPU tensors and CPU indices go where CUDA lets them."""

    def test_scalars(self):
        x, two = device_matrix(), torch.tensor(2.0)
        plain = x.cpu()
        for operator in (torch.add, torch.mul, torch.div, torch.pow, torch.maximum, torch.fmod):
            self.assertEqual(operator(x, two).cpu(), operator(plain, two), operator.__name__)
        self.assertEqual((two * x).device, x.device)
        self.assertEqual((two - x).cpu(), two - plain)
        self.assertEqual(torch.where(x > 0.5, x, two).cpu(), torch.where(plain > 0.5, plain, two))
        self.assertEqual(torch.where(x > 0.5, two, two).device, x.device)
        self.assertEqual(x.clone().add_(two).cpu(), plain + 2)
        self.assertEqual(torch.lerp(x, x + 1, torch.tensor(0.5)).cpu(), plain + 0.5)
        self.assertEqual(x.masked_fill(x > 0.5, two).cpu(), plain.masked_fill(plain > 0.5, 2.0))
        self.assertEqual(torch._foreach_mul([x], two)[0].cpu(), plain * 2)
        y = x.clone()
        y[0] = two
        self.assertEqual(y[0].cpu(), torch.full((3,), 2.0))

    def test_double_scalar_does_not_promote(self):
        self.assertEqual((device_matrix() * torch.tensor(2.0).double()).dtype, torch.float32)

    def test_vectors_are_no_scalars(self):
        with self.assertRaisesRegex(RuntimeError, SAME_DEVICE):
            device_matrix() * torch.tensor([2.0])

    def test_device_scalar_with_cpu_tensor(self):
        # As on CUDA, it is the CPU operand that may be the scalar.
        with self.assertRaisesRegex(RuntimeError, SAME_DEVICE):
            torch.ones(3) + torch.tensor(1.0, device="hologram")

    def test_cpu_indices(self):
        x = device_matrix()
        plain, index = x.cpu(), torch.tensor([2, 0])
        mask = torch.tensor([True, False, True])
        self.assertEqual(x[index].cpu(), plain[index])
        self.assertEqual(x[mask].cpu(), plain[mask])
        self.assertEqual(x[:, index].cpu(), plain[:, index])
        x[index] = 1.0
        x.index_put_((mask,), torch.tensor(3.0, device="hologram"))
        plain[index] = 1.0
        plain[mask] = 3.0
        self.assertEqual(x.cpu(), plain)

    def test_device_indices_of_cpu_tensors(self):
        index = torch.tensor([1], device="hologram")
        with self.assertRaisesRegex(
            RuntimeError,
            r"indices should be either on cpu or on the same device as the indexed tensor \(cpu\)",
        ):
            torch.ones(3)[index]

    def test_cpu_indices_are_refused_elsewhere(self):
        x, index = device_matrix(), torch.tensor([0])
        for use in (
            lambda: x.index_select(0, index),
            lambda: x.gather(0, index[None]),
            lambda: x.scatter(0, index[None], 1.0),
            lambda: x.take(index),
        ):
            with self.assertRaisesRegex(RuntimeError, SAME_DEVICE):
                use()


class TestGenerators(HologramTestCase):
    @parametrize("draw", ["rand", "normal_", "bernoulli", "multinomial", "randperm"])
    def test_generator_of_another_device(self, draw):
        x = torch.full((4,), 0.5, device="hologram")
        cpu = torch.Generator()
        use = {
            "rand": lambda: torch.rand(2, device="hologram", generator=cpu),
            "normal_": lambda: x.normal_(generator=cpu),
            "bernoulli": lambda: torch.bernoulli(x, generator=cpu),
            "multinomial": lambda: torch.multinomial(x, 1, generator=cpu),
            "randperm": lambda: torch.randperm(4, device="hologram", generator=cpu),
        }[draw]
        with self.assertRaisesRegex(
            RuntimeError, "Expected a 'hologram' device type for generator but found 'cpu'"
        ):
            use()

    def test_device_generator_for_the_cpu(self):
        with self.assertRaisesRegex(
            RuntimeError, "Expected a 'cpu' device type for generator but found 'hologram'"
        ):
            torch.rand(2, generator=torch.Generator(device="hologram"))

    def test_bad_state(self):
        with self.assertRaisesRegex((RuntimeError, TypeError), "size|state"):
            torch.hologram.set_rng_state(torch.zeros(3, dtype=torch.uint8))
        with self.assertRaisesRegex((RuntimeError, TypeError), "ByteTensor"):
            torch.hologram.set_rng_state(torch.zeros(5056))


class TestOutOfMemory(HologramTestCase):
    def test_more_than_there_is(self):
        nbytes = 1 << 50
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            torch.empty(nbytes, dtype=torch.uint8, device="hologram")
        text = str(caught.exception)
        for number in (
            nbytes,
            torch.hologram.memory_allocated(),
            torch.hologram.memory_reserved(),
            torch.hologram.memory_stats()["limit_bytes"],
        ):
            self.assertIn(str(number), text)

    def test_delegated_operator(self):
        run_python(
            """
            import torch
            total = torch.hologram.get_device_properties().total_memory
            torch.hologram.set_per_process_memory_fraction((64 << 20) / total)
            x = torch.ones(8 << 20, device="hologram")
            for attempt in range(2):
                try:
                    kept = [x.sort() for _ in range(20)]
                except torch.OutOfMemoryError as error:
                    assert str(torch.hologram.memory_stats()["limit_bytes"]) in str(error), error
                else:
                    raise AssertionError("20 results of 96 MiB each did fit into 64 MiB")
                kept = None
            assert x.sum().item() == 8 << 20
            """
        )

    @parametrize("fraction, error", [(1.5, ValueError), (-0.1, ValueError), (1, TypeError)])
    def test_fraction(self, fraction, error):
        with self.assertRaisesRegex(error, str(fraction)):
            torch.hologram.set_per_process_memory_fraction(fraction)


class TestFiles(HologramTestCase):
    def test_device_that_is_not_here(self):
        buffer = io.BytesIO()
        torch.save(torch.ones(2), buffer)
        buffer.seek(0)
        with self.assertRaisesRegex(
            RuntimeError, r"HOLOGRAM device 9 but torch.hologram.device_count\(\) is \d+"
        ):
            torch.load(buffer, map_location="hologram:9")

    def test_unusable_place(self):
        buffer = io.BytesIO()
        torch.save(torch.ones(2), buffer)
        buffer.seek(0)
        with self.assertRaisesRegex(RuntimeError, "hologramm"):
            torch.load(buffer, map_location={"cpu": "hologramm"})


class TestCapsules(HologramTestCase):
    def test_consumed_twice(self):
        capsule = torch.ones(2, device="hologram").__dlpack__()
        torch.from_dlpack(capsule)
        with self.assertRaisesRegex(RuntimeError, "can be consumed only once"):
            torch.from_dlpack(capsule)


class TestStreams(HologramTestCase):
    def test_other_device_types(self):
        event = torch.hologram.Event(enable_timing=True)
        with self.assertRaisesRegex(RuntimeError, "HOLOGRAM does not match.*device type CPU"):
            event.record(torch.Stream(device="cpu"))
        with self.assertRaisesRegex(ValueError, "event of a hologram device, but got: cpu"):
            event.elapsed_time(torch.Event(device="cpu"))

    def test_stream_that_does_not_exist(self):
        stream = torch.hologram.Stream(
            stream_id=99999, device_index=0, device_type=torch.hologram.current_stream().device_type
        )
        with self.assertRaisesRegex(RuntimeError, "no stream with id 99999"):
            torch.hologram.set_stream(stream)
        with self.assertRaisesRegex(RuntimeError, "no stream with id 99999"):
            stream.synchronize()


instantiate_parametrized_tests(TestShapesAndTypes)
instantiate_parametrized_tests(TestIndices)
instantiate_parametrized_tests(TestMixedDevices)
instantiate_parametrized_tests(TestGenerators)
instantiate_parametrized_tests(TestOutOfMemory)

if __name__ == "__main__":
    run_tests()
