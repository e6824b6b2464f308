"""The SDK above torch: functions and modules on an executor, and the modules of other names."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import torch
from common import BACKEND, HologramTestCase
from torch.nn import functional as F
from torch.testing._internal.common_utils import run_tests

import torch_hologram as hg

f = hg.functional

# Function of hg.functional -> (torch's function, shapes of the operands, options); all operands are
# from 0 to 1, where every function here has a gradient.
FUNCTIONS = {
    "add": (torch.add, ((3, 4), (4,)), {"alpha": 2.5}),
    "sub": (torch.sub, ((3, 4), (3, 1)), {"alpha": 3}),
    "mul": (torch.mul, ((3, 4), (3, 4)), {}),
    "div": (torch.div, ((3, 4), (4,)), {}),
    "minimum": (torch.minimum, ((3, 4), (4,)), {}),
    "maximum": (torch.maximum, ((3, 4), (4,)), {}),
    "abs": (torch.abs, ((3, 4),), {}),
    "neg": (torch.neg, ((3, 4),), {}),
    "exp": (torch.exp, ((3, 4),), {}),
    "log": (torch.log, ((3, 4),), {}),
    "sqrt": (torch.sqrt, ((3, 4),), {}),
    "clip": (torch.clamp, ((3, 4),), {"low": 0.2, "high": 0.7}),
    "relu": (torch.relu, ((3, 4),), {}),
    "sigmoid": (torch.sigmoid, ((3, 4),), {}),
    "tanh": (torch.tanh, ((3, 4),), {}),
    "silu": (F.silu, ((3, 4),), {}),
    "gelu": (F.gelu, ((3, 4),), {"approximate": "tanh"}),
    "softmax": (torch.softmax, ((3, 4),), {"dim": 0}),
    "log_softmax": (torch.log_softmax, ((3, 4),), {"dim": 0}),
    "matmul": (torch.matmul, ((2, 3, 4), (4, 5)), {}),
    "linear": (F.linear, ((2, 3, 4), (5, 4), (5,)), {}),
    "mse_loss": (F.mse_loss, ((3, 4), (3, 4)), {"reduction": "sum"}),
    "cross_entropy": (F.cross_entropy, ((3, 4), (3, 4), (4,)), {"label_smoothing": 0.1}),
    "binary_cross_entropy": (F.binary_cross_entropy, ((3, 4), (3, 4)), {}),
    "binary_cross_entropy_with_logits": (
        F.binary_cross_entropy_with_logits,
        ((3, 4), (3, 4), (4,)),
        {"reduction": "sum"},
    ),
}
OTHERS = {"Operand", "buffer_to_tensor", "tensor_to_buffer", "to_device"}


class SdkTestCase(HologramTestCase):
    def setUp(self):
        super().setUp()
        self.executor = hg.Executor(BACKEND)
        torch.manual_seed(0)

    def tearDown(self):
        self.executor.close()
        super().tearDown()

    def assert_there(self, tensor, expected):
        self.assertEqual(tensor.device, self.executor.device)
        self.assertEqual(tensor.detach().cpu(), expected.detach().cpu())


class TestFunctional(SdkTestCase):
    def operands(self, shapes):
        return [torch.rand(shape) * 0.9 + 0.05 for shape in shapes]

    def expected(self, name, operands):
        function, _, options = FUNCTIONS[name]
        renamed = {"low": "min", "high": "max"}
        options = {renamed.get(key, key): value for key, value in options.items()}
        if len(operands) == 3 and function is not F.linear:
            return function(*operands[:2], weight=operands[2], **options)
        return function(*operands, **options)

    def test_every_function_is_here(self):
        self.assertEqual({*FUNCTIONS, *OTHERS}, set(f.__all__))

    def test_values_of_every_kind_of_operand(self):
        for name, (_, shapes, options) in FUNCTIONS.items():
            tensors = self.operands(shapes)
            expected = self.expected(name, tensors)
            on_device = [x.to("hologram") for x in tensors]
            arrays = [x.numpy() for x in tensors]
            mixed = [on_device[0], *arrays[1:]]
            for operands in (on_device, tensors, arrays, mixed, [tensors[0], *on_device[1:]]):
                with self.subTest(name=name):
                    self.assert_there(
                        getattr(f, name)(self.executor, *operands, **options), expected
                    )

    def test_gradients(self):
        for name, (_, shapes, options) in FUNCTIONS.items():
            leaves = [x.requires_grad_() for x in self.operands(shapes)]
            if name in ("cross_entropy", "binary_cross_entropy_with_logits"):
                leaves[2].requires_grad_(False)
            wanted = [x for x in leaves if x.requires_grad]
            expected = torch.autograd.grad(self.expected(name, leaves).sum(), wanted)
            with self.subTest(name=name):
                # Through the move to the device, and on it.
                result = getattr(f, name)(self.executor, *leaves, **options)
                self.assertEqual(torch.autograd.grad(result.sum(), wanted), expected)
                there = [x.detach().to("hologram").requires_grad_(x.requires_grad) for x in leaves]
                result = getattr(f, name)(self.executor, *there, **options)
                grads = torch.autograd.grad(result.sum(), [x for x in there if x.requires_grad])
                for grad, want in zip(grads, expected, strict=True):
                    self.assert_there(grad, want)

    def test_buffers(self):
        x, y = torch.rand(12), torch.rand(12)
        buffers = [hg.tensor_to_buffer(self.executor, t) for t in (x, y)]
        self.assert_there(f.add(self.executor, *buffers), x + y)
        self.assert_there(f.mul(self.executor, buffers[0], y.requires_grad_()), x * y)
        hg.ops.vector_neg(self.executor, buffers[0], buffers[0])
        self.assert_there(f.relu(self.executor, buffers[0]), torch.zeros(12))

    def test_numbers(self):
        x = torch.rand(3)
        self.assert_there(f.add(self.executor, x, 2.0), x + 2.0)
        self.assert_there(f.add(self.executor, x, 2, alpha=0.5), x + 1.0)
        self.assert_there(f.mul(self.executor, x.to("hologram"), np.float32(2)), x * 2)
        self.assert_there(f.div(self.executor, x.numpy(), 0.3, "floor"), x // 0.3)
        self.assert_there(f.clip(self.executor, x, None, 0.5), x.clamp(max=0.5))

    def test_defaults(self):
        x = torch.randn(3, 5)
        for name, expected in (
            ("add", x + x),
            ("sub", x - x),
            ("softmax", torch.softmax(x, -1)),
            ("log_softmax", torch.log_softmax(x, -1)),
            ("gelu", F.gelu(x)),
            ("linear", F.linear(x, x)),
            ("mse_loss", F.mse_loss(x, -x)),
        ):
            other = {"mse_loss": -x, "linear": x, "add": x, "sub": x}.get(name)
            operands = (x,) if other is None else (x, other)
            self.assert_there(getattr(f, name)(self.executor, *operands), expected)

    def test_class_indices(self):
        logits = torch.randn(5, 3)
        for ignored, options in (
            (-100, {}),
            (-100, {"reduction": "none"}),
            (-1, {"ignore_index": -1}),
            (1, {"reduction": "sum"}),
        ):
            target = torch.tensor([0, 2, 1, ignored, 2])
            expected = F.cross_entropy(logits, target, **options)
            for operands in ((logits, target), (logits.to("hologram"), target.numpy())):
                self.assert_there(f.cross_entropy(self.executor, *operands, **options), expected)

    def test_arrays_as_they_come(self):
        array = np.arange(6, dtype=np.float64).reshape(2, 3)
        frozen = array.copy()
        frozen.flags.writeable = False
        for x in (array, array[:, ::-1], array.T, frozen):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.assert_there(f.neg(self.executor, x), torch.tensor(-x))
        self.assertEqual(array.tolist(), [[0, 1, 2], [3, 4, 5]])

    def test_errors(self):
        x, y = torch.ones(2), torch.ones(3)
        there = x.to("hologram")
        closed = hg.Executor(BACKEND)
        buffer = closed.allocate(2)
        closed.close()
        for call, kind, text in (
            (lambda: f.add(self.executor, x, y), RuntimeError, r"size of tensor a \(2\)"),
            (lambda: f.add(self.executor, there, y.to("hologram")), RuntimeError, "must match"),
            (lambda: f.add(self.executor, [1.0], x), TypeError, "numpy array, got list"),
            (lambda: f.add(self.executor, there, "1"), TypeError, "numpy array, got str"),
            (lambda: f.add("cpu", x, x), TypeError, "expected an Executor first, got str"),
            (lambda: f.add(closed, there, there), RuntimeError, "the executor is closed"),
            (lambda: f.abs(self.executor, buffer), RuntimeError, "of 2 elements .* is closed"),
            (lambda: f.softmax(self.executor, there, dim=3), IndexError, "Dimension out of range"),
            (lambda: f.abs(self.executor, np.array(["a"])), TypeError, "numpy.str_|object"),
            (lambda: f.mse_loss(self.executor, x, x, "avg"), ValueError, "avg"),
            (lambda: f.clip(self.executor, x), RuntimeError, "min.*max"),
        ):
            with self.assertRaisesRegex(kind, text):
                call()
        # One error, not one during another.
        with self.assertRaises(RuntimeError) as caught:
            f.add(self.executor, there, y.to("hologram"))
        self.assertIsNone(caught.exception.__context__)

    def test_to_device(self):
        there = torch.ones(2, device="hologram")
        self.assertIs(f.to_device(self.executor, there), there)


class TestBuffersAndTensors(SdkTestCase):
    def test_contiguous_tensors_are_shared(self):
        tensor = torch.randn(3, 4, device="hologram", requires_grad=True)
        buffer = hg.tensor_to_buffer(self.executor, tensor)
        self.assertEqual((buffer.size, buffer.dtype), (12, np.float32))
        self.assertEqual(hg.buffer_to_tensor(buffer).data_ptr(), tensor.data_ptr())
        buffer.fill(2.0)
        self.assert_there(tensor, torch.full((3, 4), 2.0))
        with torch.no_grad():
            tensor.mul_(3.0)
        self.assertEqual(buffer.to_numpy().tolist(), [6.0] * 12)
        buffer.close()
        self.assert_there(tensor, torch.full((3, 4), 6.0))
        self.assertTrue(tensor.requires_grad)

    def test_the_buffer_keeps_the_memory(self):
        tensor = torch.full((1000,), 3.0, device="hologram")
        buffer = hg.tensor_to_buffer(self.executor, tensor)
        del tensor
        for _ in range(8):
            torch.zeros(1000, device="hologram").add_(1.0).cpu()
        self.assertEqual(buffer.to_numpy().sum(), 3000.0)

    def test_others_are_copied(self):
        there = torch.arange(6.0, device="hologram").view(2, 3)
        for tensor in (there.t(), there[:, 1:], there.cpu(), torch.arange(3)):
            buffer = hg.tensor_to_buffer(self.executor, tensor)
            self.assertEqual(buffer.to_numpy().tolist(), tensor.cpu().flatten().tolist())
            buffer.fill(9)
        self.assert_there(there, torch.arange(6.0).view(2, 3))
        conjugate = torch.tensor([1 + 2j], device="hologram").conj()
        self.assertEqual(
            hg.tensor_to_buffer(self.executor, conjugate).to_numpy().tolist(), [1 - 2j]
        )

    def test_slices_share(self):
        tensor = torch.zeros(10, device="hologram")
        hg.tensor_to_buffer(self.executor, tensor[3:5]).fill(1.0)
        self.assertEqual(tensor.cpu().tolist(), [0, 0, 0, 1, 1, 0, 0, 0, 0, 0])

    def test_back(self):
        buffer = self.executor.allocate(6)
        self.assertEqual(hg.buffer_to_tensor(buffer).shape, (6,))
        for shape in ((2, 3), [3, -1], torch.Size((6, 1))):
            tensor = hg.buffer_to_tensor(buffer, shape)
            tensor.fill_(len(shape))
            self.assertEqual(buffer.to_numpy().tolist(), [float(len(shape))] * 6)
        with self.assertRaisesRegex(RuntimeError, r"shape '\[4\]' is invalid for input of size 6"):
            hg.buffer_to_tensor(buffer, (4,))
        with self.assertRaisesRegex(TypeError, "expected a Buffer, got Tensor"):
            hg.buffer_to_tensor(tensor)
        hg.buffer_to_tensor(buffer).requires_grad_()
        buffer.fill(1.0)  # is of a tensor of its own
        buffer.close()
        with self.assertRaisesRegex(RuntimeError, "is closed"):
            hg.buffer_to_tensor(buffer)

    def test_refusals(self):
        for tensor, text in (
            ([1.0], "expected a strided tensor, got list"),
            (torch.eye(2).to_sparse(), "expected a strided tensor, got torch.sparse_coo"),
            (torch.ones(2, dtype=torch.bfloat16), "no dtype torch.bfloat16"),
        ):
            with self.assertRaisesRegex(TypeError, text):
                hg.tensor_to_buffer(self.executor, tensor)


class TestModules(SdkTestCase):
    def pair(self):
        """A network and the same of torch.nn, with the same weights."""
        ours = torch.nn.Sequential(
            hg.nn.Linear(self.executor, 6, 8),
            hg.nn.ReLU(self.executor),
            hg.nn.Linear(self.executor, 8, 3),
        )
        theirs = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        ours.load_state_dict(theirs.state_dict())
        return ours, theirs

    def test_linear(self):
        layer = hg.nn.Linear(self.executor, 512, 256)
        self.assertIsInstance(layer, torch.nn.Linear)
        self.assertEqual(layer.weight.shape, (256, 512))
        self.assertEqual({p.device for p in layer.parameters()}, {self.executor.device})
        self.assertIsNone(hg.nn.Linear(self.executor, 2, 3, bias=False).bias)
        double = hg.nn.Linear(self.executor, 2, 3, dtype=torch.float64)
        self.assertEqual(double(np.ones((1, 2))).dtype, torch.float64)
        reference = torch.nn.Linear(512, 256)
        reference.load_state_dict(layer.state_dict())
        x = torch.randn(4, 512)
        buffer = hg.tensor_to_buffer(self.executor, x[0])
        for operand, rows in ((x, x), (x.to("hologram"), x), (x.numpy(), x), (buffer, x[0])):
            self.assert_there(layer(operand), reference(rows))

    def test_state_dicts(self):
        ours, theirs = self.pair()
        self.assertEqual(list(ours.state_dict()), list(theirs.state_dict()))
        with torch.no_grad():
            ours[0].weight.mul_(2.0)
        theirs.load_state_dict(ours.state_dict())
        self.assert_there(ours[0].weight, theirs[0].weight)

    def test_modules_without_parameters(self):
        x, y = torch.rand(3, 4), torch.rand(3, 4)
        for name, arguments, operands in (
            ("ReLU", (), (x,)),
            ("Sigmoid", (), (x,)),
            ("Tanh", (), (x,)),
            ("GELU", ("tanh",), (x,)),
            ("SiLU", (), (x,)),
            ("Softmax", (0,), (x,)),
            ("LogSoftmax", (1,), (x,)),
            ("MSELoss", (), (x, y)),
            ("BCELoss", (), (x, y)),
            ("BCEWithLogitsLoss", (), (x, y)),
            ("CrossEntropyLoss", (), (x, torch.tensor([0, 3, 1]))),
        ):
            ours, theirs = getattr(hg.nn, name), getattr(torch.nn, name)
            expected = theirs(*arguments)(*operands)
            arrays = [operand.numpy() for operand in operands]
            there = [operand.to("hologram") for operand in operands]
            with self.subTest(name=name):
                self.assertTrue(issubclass(ours, theirs))
                for module in (
                    ours(self.executor, *arguments),
                    ours(*arguments, executor=self.executor),
                ):
                    for values in (operands, arrays, there, [there[0], *arrays[1:]]):
                        self.assert_there(module(*values), expected)
                plain = ours(*arguments)
                self.assert_there(plain(*there), expected)
                self.assert_there(plain(there[0], *arrays[1:]), expected)
                self.assertEqual(plain(*operands).device.type, "cpu")
                self.assertEqual(repr(plain), repr(theirs(*arguments)))

    def test_weights_of_losses(self):
        weight = torch.tensor([1.0, 2.0, 3.0])
        logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
        loss = hg.nn.CrossEntropyLoss(self.executor, weight=weight)
        self.assert_there(loss(logits, target), F.cross_entropy(logits, target, weight))

    def test_copies_and_moves(self):
        ours, theirs = self.pair()
        x = torch.randn(2, 6)
        for model in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            self.assert_there(model(x), theirs(x))
        ours.cpu()
        self.assertEqual(ours(x.to("hologram")).device.type, "cpu")
        self.assert_there(ours.to("hologram")(x), theirs(x))

    def test_training(self):
        ours, theirs = self.pair()
        x, y = torch.randn(16, 6), torch.randint(3, (16,))
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
        for step in range(5):
            operands = (x.numpy(), y.numpy()) if step % 2 else (x, y)
            got = hg.train_step(
                ours, optimizers[0], hg.nn.CrossEntropyLoss(self.executor), *operands
            )
            expected = hg.train_step(theirs, optimizers[1], F.cross_entropy, *operands)
            self.assertIs(type(got), float)
            self.assertEqual(got, expected, rtol=1.3e-6, atol=1e-5)  # torch's, of float32
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            self.assert_there(mine, other)

    def test_train_step_is_the_loop(self):
        ours, theirs = self.pair()
        x, y = torch.randn(8, 6), torch.randn(8, 3)
        optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
        reference = torch.optim.SGD(theirs.parameters(), lr=0.1)
        for _ in range(2):
            loss = F.mse_loss(theirs(x), y)
            reference.zero_grad()
            loss.backward()
            reference.step()
            self.assertEqual(hg.train_step(ours, optimizer, F.mse_loss, x, y), loss.item())
        self.assert_there(ours[2].weight, theirs[2].weight)

    def test_errors(self):
        closed = hg.Executor(BACKEND)
        closed.close()
        empty = torch.nn.ReLU()
        model, _ = self.pair()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(2, 6)
        for call, kind, text in (
            (lambda: hg.nn.Linear(None, 2, 3), TypeError, "takes an Executor first, got NoneType"),
            (lambda: hg.nn.Linear("cpu", 2, 3), TypeError, "takes an Executor first, got str"),
            (lambda: hg.nn.Linear(3, 4), TypeError, "takes an Executor first, got int"),
            (lambda: hg.nn.Linear(in_features=3), TypeError, "Executor first, got NoneType"),
            (lambda: hg.nn.Linear(self.executor, 3), TypeError, "out_features"),
            (lambda: hg.nn.Linear(closed, 2, 3), RuntimeError, "the executor is closed"),
            (lambda: hg.nn.ReLU(closed), RuntimeError, "the executor is closed"),
            (lambda: hg.nn.ReLU(executor=3), TypeError, "expected an Executor or None, got int"),
            (
                lambda: hg.nn.ReLU(self.executor, executor=self.executor),
                TypeError,
                "the executor is given twice",
            ),
            (lambda: model([1.0]), TypeError, "numpy array, got list"),
            (lambda: model(torch.ones(2, 5)), RuntimeError, "2x5 and 6x8"),
            (
                lambda: hg.train_step(empty, optimizer, F.mse_loss, x, x),
                ValueError,
                "ReLU has no parameters to train",
            ),
            (
                lambda: hg.train_step(model, optimizer, lambda a, b: a - b, x, torch.ones(2, 3)),
                RuntimeError,
                "scalar",
            ),
        ):
            with self.assertRaisesRegex(kind, text):
                call()


if __name__ == "__main__":
    run_tests()
