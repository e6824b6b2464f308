"""Lightning, accelerate, transformers, safetensors and AveragedModel, the real packages."""

from __future__ import annotations

import os
import tempfile
import types
import unittest.mock
import warnings
from pathlib import Path

import pytest
import torch
from common import HologramTestCase, run_python
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import (
    SWALR,
    AveragedModel,
    get_ema_multi_avg_fn,
    get_swa_avg_fn,
    update_bn,
)
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.utils.data import DataLoader, TensorDataset

from torch_hologram import _accelerate_hook, integrations

# What the programs below train: whether the numbers of a row have a positive sum.
LIGHTNING_PROGRAM = """
    import importlib, logging, sys, tempfile, warnings

    package = sys.argv[1]
    logging.getLogger(package).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*num_workers.*|.*log_every_n_steps.*|.*litlogger.*")
    warnings.filterwarnings("ignore", ".*isinstance.*LeafSpec.*")
    L = importlib.import_module(package)  # torch_hologram comes with torch, and is not named

    import torch
    from torch import nn
    from torch.nn import functional as F

    def data():
        x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
        return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())

    class Classifier(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
            self.losses, self.types = [], set()

        def training_step(self, batch, index):
            x, y = batch
            assert x.device.type == self.device.type
            out = self.model(x)
            self.types.add((out.device, out.dtype))
            loss = F.cross_entropy(out.float(), y)
            self.losses.append(loss.item())
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    def train(accelerator, precision="32-true", epochs=4, **options):
        L.seed_everything(0, verbose=False)
        model = Classifier()
        trainer = L.Trainer(accelerator=accelerator, precision=precision, max_epochs=epochs,
                            logger=False, enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False, **options)
        loader = torch.utils.data.DataLoader(data(), batch_size=32)
        trainer.fit(model, loader, loader)
        return model, trainer
"""

# What other packages choose by themselves.
DEFAULT = "cuda" if torch.cuda.is_available() else "cpu"
HOLOGRAM = torch.device("hologram", 0)


def lightning(program: str, package: str) -> None:
    import textwrap

    run_python(textwrap.dedent(LIGHTNING_PROGRAM) + textwrap.dedent(program), package)


class TestLightning(HologramTestCase):
    def test_training(self):
        lightning(
            """
            device = torch.device("hologram", 0)
            model, trainer = train("hologram", devices=1)
            assert trainer.strategy.root_device == device, trainer.strategy.root_device
            assert model.types == {(device, torch.float32)}
            reference, _ = train("cpu", devices=1)
            torch.testing.assert_close(torch.tensor(model.losses), torch.tensor(reference.losses))
            assert trainer.callback_metrics["accuracy"] > 0.9, trainer.callback_metrics
            assert "allocated_bytes.all.current" in trainer.accelerator.get_device_stats(device)

            for precision, dtype in (("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16),
                                     ("bf16-true", torch.bfloat16)):
                model, trainer = train("hologram", precision)  # devices="auto"
                assert model.types == {(device, dtype)}, (precision, model.types)
                assert model.losses[-1] < 0.7 * model.losses[0], (precision, model.losses)
            scaler = train("hologram", "16-mixed")[1].precision_plugin.scaler
            assert scaler.is_enabled() and scaler._device == "hologram"

            # A checkpoint goes on where it was.
            with tempfile.TemporaryDirectory() as folder:
                model, trainer = train("hologram", epochs=2)
                trainer.save_checkpoint(folder + "/a.ckpt")
                loader = torch.utils.data.DataLoader(data(), batch_size=32)
                L.seed_everything(0, verbose=False)
                resumed = Classifier()
                again = L.Trainer(accelerator="hologram", devices=[0], max_epochs=4, logger=False,
                                  enable_checkpointing=False, enable_progress_bar=False,
                                  enable_model_summary=False)
                again.fit(resumed, loader, ckpt_path=folder + "/a.ckpt")
                torch.testing.assert_close(model.losses + resumed.losses, reference.losses,
                                           rtol=1.3e-6, atol=1e-5)

            # Misuse; the other accelerators are as before.
            for devices in ("two", None, [True], [0, 0]):
                try:
                    L.Trainer(accelerator="hologram", devices=devices, logger=False)
                except ValueError as error:
                    assert "devices=" in str(error), error
                else:
                    raise AssertionError(f"devices={devices!r} was taken")
            count = torch.hologram.device_count()
            for devices in ([count], count + 1):
                try:
                    L.Trainer(accelerator="hologram", devices=devices, logger=False)
                except RuntimeError as error:
                    assert f"there is no hologram:{count}" in str(error), error
                else:
                    raise AssertionError(f"devices={devices!r} was taken")
            model, trainer = train("cpu", "bf16-mixed", epochs=1)
            assert model.types == {(torch.device("cpu"), torch.bfloat16)}

            fabric = L.Fabric(accelerator="hologram", devices=1, precision="bf16-mixed")
            fabric.launch()
            net = nn.Linear(4, 2)
            net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
            with fabric.autocast():
                assert nn.functional.linear(fabric.to_device(torch.ones(1, 4)),
                                            net.weight).dtype == torch.bfloat16
            out = net(fabric.to_device(torch.ones(3, 4)))
            fabric.backward(out.sum())
            optimizer.step()
            assert net.weight.device == device
            import torch_hologram.integrations.lightning as door
            door.enable()  # a second time
            """,
            "lightning",
        )

    def test_disable(self):
        lightning(
            """
            import lightning.fabric.connector as fabric
            import lightning.fabric.strategies as fabric_strategies
            import lightning.fabric.utilities.distributed as distributed
            import lightning.pytorch.strategies as strategies
            from lightning.pytorch.trainer.connectors.accelerator_connector import (
                AcceleratorRegistry, _AcceleratorConnector as Connector)
            import torch_hologram.integrations.lightning as door

            connecting = (
                "_choose_strategy", "_check_and_init_precision", "_check_strategy_and_fallback")
            extended = [
                *((cls, name) for cls in (Connector, fabric._Connector) for name in connecting),
                (strategies.DDPStrategy, "_setup_model"),
                (strategies.DDPStrategy, "_register_ddp_hooks"),
                (strategies.FSDPStrategy, "setup_environment"),
                (fabric_strategies.DDPStrategy, "setup_module"),
                (fabric_strategies.FSDPStrategy, "setup_environment"),
                (distributed, "_sync_ddp"),
            ]
            opened = [getattr(owner, name) for owner, name in extended]
            for _ in range(2):
                door.disable()
                assert "hologram" not in AcceleratorRegistry
                for (owner, name), function in zip(extended, opened):
                    assert getattr(owner, name) is function.__wrapped__, name
                for make in (L.Trainer, L.Fabric):
                    try:
                        make(accelerator="hologram")
                    except ValueError as error:
                        assert "hologram" in str(error), error
                    else:
                        raise AssertionError("made without the accelerator")
            door.enable()
            assert train("hologram", epochs=1)[0].types == {(torch.device("hologram", 0),
                                                             torch.float32)}
            """,
            "lightning",
        )

    def test_pytorch_lightning(self):
        lightning(
            """
            model, trainer = train("hologram", "bf16-mixed", devices=1, epochs=2)
            assert model.types == {(torch.device("hologram", 0), torch.bfloat16)}
            assert model.losses[-1] < model.losses[0]
            from lightning_fabric import Fabric
            assert Fabric(accelerator="hologram").device == torch.device("hologram", 0)
            """,
            "pytorch_lightning",
        )

    def test_import_torch_imports_no_lightning(self):
        run_python(
            """
            import sys, torch
            loaded = {name.split(".")[0] for name in sys.modules}
            assert not loaded & {"lightning", "transformers", "accelerate", "safetensors"}, loaded
            assert "torch_hologram.integrations" not in sys.modules
            """
        )

    def test_unknown_version(self):
        connector = types.ModuleType("lightning.fabric.connector")
        connector.ACCELERATOR_REGISTRY = {}
        with self.assertRaisesRegex(
            RuntimeError,
            "cannot open lightning .* lightning.fabric.connector has no 'Accelerator' "
            r"\(known to work: lightning 2.6\)",
        ):
            integrations.lightning.extend(connector)
        from torch_hologram import _lightning_hook

        with self.assertWarnsRegex(RuntimeWarning, "has no 'Accelerator'"):
            _lightning_hook._open(connector)

    def test_devices(self):
        parse = integrations.lightning.parse_devices
        for devices in (1, "1", [0], (0,), "0,"):
            self.assertEqual(parse(devices), [0])
        if torch.hologram.device_count() == 1:
            self.assertEqual(parse(-1), [0])
            self.assertEqual(parse("-1"), [0])


def rows(count: int = 64) -> TensorDataset:
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(1) > 0).long())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 2))


class AccelerateTestCase(HologramTestCase):
    """Accelerate keeps its state in the process and in the environment: each test has its own."""

    def setUp(self) -> None:
        super().setUp()
        from accelerate.state import AcceleratorState

        environment = unittest.mock.patch.dict("os.environ")
        environment.start()
        self.addCleanup(environment.stop)
        self.addCleanup(integrations.accelerate.disable)
        self.addCleanup(integrations.transformers.disable)
        AcceleratorState._reset_state(reset_partial_state=True)
        self.addCleanup(AcceleratorState._reset_state, reset_partial_state=True)


class TestAccelerate(AccelerateTestCase):
    @parametrize("precision", ["no", "bf16"])
    def test_training(self, precision):
        from accelerate import Accelerator

        integrations.accelerate.enable()
        integrations.accelerate.enable()
        accelerator = Accelerator(mixed_precision=precision)
        self.assertEqual(accelerator.device.type, "hologram")
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        loader = DataLoader(rows(), batch_size=16)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        dtypes = set()
        model[0].register_forward_hook(lambda module, args, out: dtypes.add(out.dtype))
        losses = []
        for _ in range(8):
            for x, y in loader:
                self.assertEqual(x.device, HOLOGRAM)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.item())
        self.assertLess(losses[-1], 0.6 * losses[0])
        self.assertEqual(dtypes, {torch.bfloat16 if precision == "bf16" else torch.float32})
        self.assertEqual(accelerator.gather(loss).item(), losses[-1])

    @parametrize("registered", [False, True])
    def test_random_state(self, registered):
        from accelerate import Accelerator

        integrations.accelerate.enable()
        accelerator = Accelerator()
        if registered:
            accelerator.register_for_checkpointing(integrations.accelerate.RandomState())
        with tempfile.TemporaryDirectory() as folder:
            accelerator.save_state(folder)
            first = torch.rand(5, device="hologram").tolist()
            accelerator.load_state(folder)
            self.assertEqual(torch.rand(5, device="hologram").tolist(), first)
            # Of a checkpoint from before they were in it, and of one that has been registered.
            Path(folder, "hologram_random_states_0.pt").unlink()
            accelerator.load_state(folder)
            again = torch.rand(5, device="hologram").tolist()
            self.assertEqual(again == first, registered)

    def test_unknown_version(self):
        import accelerate.accelerator

        with unittest.mock.patch.object(
            accelerate.accelerator, "Accelerator", types.SimpleNamespace
        ):
            with self.assertRaisesRegex(
                RuntimeError,
                "cannot open accelerate .* SimpleNamespace has no 'prepare_model' "
                r"\(known to work: accelerate 1.15\)",
            ):
                integrations.accelerate.enable()
            self.assertFalse(integrations.accelerate.is_enabled())
            self.assertNotIn("ACCELERATE_TORCH_DEVICE", os.environ)
            os.environ["ACCELERATE_TORCH_DEVICE"] = "hologram"
            with self.assertWarnsRegex(RuntimeWarning, "has no 'prepare_model'"):
                _accelerate_hook._open("accelerate.accelerator", "extend")

    def test_errors(self):
        from accelerate import PartialState

        with self.assertRaisesRegex(ValueError, "Expected a hologram device, but got: cpu"):
            integrations.accelerate.enable("cpu")
        with self.assertRaisesRegex(RuntimeError, "there is no hologram:99"):
            integrations.accelerate.enable("hologram:99")
        PartialState(cpu=True)
        with self.assertRaisesRegex(RuntimeError, "accelerate is on cpu already"):
            integrations.accelerate.enable()
        PartialState._reset_state()
        integrations.accelerate.enable()
        self.assertEqual(PartialState().device.type, "hologram")
        # The list of devices that accelerate scales gradients of float16 on cannot be opened.
        from accelerate import Accelerator

        with self.assertRaisesRegex(ValueError, "fp16 mixed precision requires a device in"):
            Accelerator(mixed_precision="fp16")

    def test_cpu_is_respected(self):
        from accelerate import Accelerator, PartialState
        from accelerate.state import AcceleratorState

        integrations.accelerate.enable()
        accelerator = Accelerator(cpu=True)
        self.assertEqual(accelerator.device.type, "cpu")
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(
            model, optimizer, DataLoader(rows(), batch_size=32)
        )
        for x, y in loader:
            self.assertTrue(x.is_cpu)
            accelerator.backward(F.cross_entropy(model(x), y))
            optimizer.step()
        AcceleratorState._reset_state(reset_partial_state=True)
        with unittest.mock.patch.dict("os.environ", ACCELERATE_USE_CPU="true"):
            self.assertEqual(Accelerator().device.type, "cpu")
        AcceleratorState._reset_state(reset_partial_state=True)
        self.assertEqual(PartialState().device.type, "hologram")

    def test_disable(self):
        import accelerate
        from accelerate import Accelerator, PartialState
        from accelerate.commands import launch
        from accelerate.state import AcceleratorState

        def opened():
            module = accelerate.accelerator
            return (
                PartialState.__init__,
                PartialState._prepare_backend,
                PartialState.wait_for_everyone,
                Accelerator.prepare_model,
                module.fsdp2_prepare_model,
                module.save_accelerator_state,
                module.load_accelerator_state,
                launch._validate_launch_command,
            )

        originals = opened()
        for before in (None, "cpu"):
            os.environ.pop("ACCELERATE_TORCH_DEVICE", None)
            if before is not None:
                os.environ["ACCELERATE_TORCH_DEVICE"] = before
            integrations.accelerate.enable()
            integrations.accelerate.enable("hologram:0")
            for changed, original in zip(opened(), originals, strict=True):
                self.assertIs(changed.__wrapped__, original)
            self.assertEqual(os.environ["ACCELERATE_TORCH_DEVICE"], "hologram:0")
            integrations.accelerate.disable()
            integrations.accelerate.disable()
            self.assertEqual(os.environ.get("ACCELERATE_TORCH_DEVICE"), before)
            self.assertEqual(opened(), originals)
            default = "cuda" if torch.cuda.is_available() and before is None else "cpu"
            self.assertEqual(Accelerator().device.type, default)
            AcceleratorState._reset_state(reset_partial_state=True)
            integrations.accelerate.enable()
            self.assertEqual(Accelerator().device.type, "hologram")
            integrations.accelerate.disable()
            AcceleratorState._reset_state(reset_partial_state=True)


class Sentences(torch.utils.data.Dataset):
    """Rows of 8 token ids; the label says whether the first is above 15."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 32, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": (ids[0] > 15).long()}


def classifier(dropout: float = 0.1) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=32,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            pad_token_id=0,
        )
    )


def language_model() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).eval()


def tokenizer():
    """Words are the letters a to z, their ids 3 to 28."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<s>": 1, "</s>": 2}
    words |= {chr(ord("a") + index): 3 + index for index in range(26)}
    rust = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=rust, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


class TestTransformers(AccelerateTestCase):
    def setUp(self) -> None:
        super().setUp()
        from torch.utils._device import _device_constructors
        from transformers.utils import logging

        # torch lists what `with torch.device()` is for when it is first asked. transformers asks
        # while it has a linspace of its own in place of torch's, which would then be left out in
        # all tests that this process runs later.
        _device_constructors()
        logging.disable_progress_bar()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def arguments(self, **options):
        from transformers import TrainingArguments

        return TrainingArguments(
            self.folder,
            **{
                "per_device_train_batch_size": 8,
                "num_train_epochs": 4,
                "learning_rate": 5e-3,
                "report_to": [],
                "logging_strategy": "no",
                "save_strategy": "no",
                "disable_tqdm": True,
                **options,
            },
        )

    def train(self, model=None, resume=None, **options):
        from transformers import Trainer

        trainer = Trainer(
            model or classifier(),
            self.arguments(**options),
            train_dataset=Sentences(),
            eval_dataset=Sentences(),
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*pin_memory.*")
            trainer.train(resume_from_checkpoint=resume)
        return trainer

    def test_use_cpu_is_respected(self):
        integrations.transformers.enable()
        trainer = self.train(use_cpu=True, num_train_epochs=1)
        self.assertEqual(trainer.args.device.type, "cpu")
        self.assertEqual(trainer.model.device.type, "cpu")
        self.assertEqual(self.train(num_train_epochs=1).model.device, HOLOGRAM)

    def test_disable(self):
        from accelerate import PartialState
        from accelerate.state import AcceleratorState
        from transformers import Trainer, training_args

        def opened():
            return (
                training_args.is_torch_bf16_gpu_available,
                Trainer._save_rng_state,
                Trainer._load_rng_state,
                PartialState.__init__,
                os.environ.get("ACCELERATE_TORCH_DEVICE"),
            )

        before = opened()
        integrations.transformers.enable()
        integrations.transformers.enable()
        for changed, original in zip(opened(), before, strict=True):
            self.assertNotEqual(changed, original)
        self.assertEqual(self.arguments().device.type, "hologram")
        integrations.transformers.disable()
        integrations.transformers.disable()
        self.assertEqual(opened(), before)
        self.assertEqual(self.arguments().device.type, DEFAULT)
        # What the user has enabled is the user's to disable.
        AcceleratorState._reset_state(reset_partial_state=True)
        integrations.accelerate.enable()
        integrations.transformers.enable()
        integrations.transformers.disable()
        if not torch.cuda.is_available():  # which transformers, left alone, takes before it
            self.assertEqual(self.arguments().device.type, "hologram")

    def test_trainer(self):
        integrations.transformers.enable()
        trainer = self.train()
        self.assertEqual(trainer.args.device.type, "hologram")
        self.assertEqual(trainer.args.n_gpu, int(torch.cuda.is_available()))
        self.assertEqual(trainer.model.device, HOLOGRAM)
        self.assertLess(trainer.evaluate()["eval_loss"], 0.4)
        predictions = trainer.predict(Sentences())
        self.assertEqual(predictions.predictions.shape, (32, 2))

    def test_trainer_is_as_on_the_cpu(self):
        # Without dropout: the CPU's generator serves the sampler too, so its numbers are others.
        reference = self.train(classifier(dropout=0), use_cpu=True)
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)
        integrations.transformers.enable()
        trainer = self.train(classifier(dropout=0))
        self.assertEqual(trainer.evaluate()["eval_loss"], reference.evaluate()["eval_loss"])

    def test_trainer_bf16(self):
        integrations.transformers.enable()
        integrations.transformers.enable()
        model, dtypes = classifier(), set()
        model.classifier.register_forward_hook(lambda module, args, out: dtypes.add(out.dtype))
        trainer = self.train(model, bf16=True)
        self.assertEqual(dtypes, {torch.bfloat16})
        self.assertLess(trainer.evaluate()["eval_loss"], 0.4)

    def test_resumed_training_draws_the_same_numbers(self):
        integrations.transformers.enable()
        whole = self.train(save_strategy="epoch", num_train_epochs=2)
        torch.hologram.manual_seed(99)
        resumed = self.train(resume=self.folder + "/checkpoint-4", num_train_epochs=2)
        self.assertEqual(resumed.state.global_step, 8)
        self.assertEqual(
            {name: value.cpu() for name, value in resumed.model.state_dict().items()},
            {name: value.cpu() for name, value in whole.model.state_dict().items()},
            rtol=0,
            atol=0,
        )

    def test_cuda_does_not_come_first(self):
        integrations.transformers.enable()
        here = {"is_available": lambda: True, "device_count": lambda: 2, "set_device": print}
        with unittest.mock.patch.multiple("torch.cuda", **here):
            arguments = self.arguments()
            self.assertEqual(arguments.device.type, "hologram")
            self.assertEqual(arguments.n_gpu, 1)
            self.assertEqual(self.arguments(use_cpu=True).device.type, "cpu")

    def test_enable_is_refused(self):
        with self.assertRaisesRegex(ValueError, "but got: cpu"):
            integrations.transformers.enable("cpu")
        import transformers.trainer

        with unittest.mock.patch.object(transformers.trainer, "Trainer", types.ModuleType("T")):
            with self.assertRaisesRegex(
                RuntimeError, "cannot open transformers .* T has no '_save_rng_state'"
            ):
                integrations.transformers.enable()

    @parametrize("where", ["hologram", {"": "hologram"}, {"": "hologram:0"}, HOLOGRAM])
    def test_device_map(self, where):
        from transformers import AutoModelForCausalLM

        model = language_model()
        model.save_pretrained(self.folder)
        loaded = AutoModelForCausalLM.from_pretrained(self.folder, device_map=where)
        self.assertEqual({p.device for p in loaded.parameters()}, {HOLOGRAM})
        self.assertEqual(
            {name: value.cpu() for name, value in loaded.state_dict().items()},
            dict(model.state_dict()),
            rtol=0,
            atol=0,
        )
        ids = torch.tensor([[3, 4, 5]])
        options = {"max_new_tokens": 5, "do_sample": False}
        self.assertEqual(
            loaded.generate(ids.to(HOLOGRAM), **options).cpu(), model.generate(ids, **options)
        )

    def test_module_to(self):
        model = classifier().eval()
        ids = Sentences()[0]["input_ids"][None]
        expected = model(ids).logits
        self.assertEqual(model.to("hologram")(ids.to("hologram")).logits.cpu(), expected)

    def test_pipelines(self):
        from transformers import pipeline

        text = "a b c"
        for task, make, options in (
            ("text-generation", language_model, {"max_new_tokens": 4, "do_sample": False}),
            ("text-classification", classifier, {}),
        ):
            results = {}
            for device in ("cpu", "hologram", HOLOGRAM):
                pipe = pipeline(task, model=make().eval(), tokenizer=tokenizer(), device=device)
                self.assertEqual(pipe.model.device.type, torch.device(device).type)
                results[str(device)] = pipe([text, "d e f"], **options)
            self.assertEqual(results["hologram"], results["cpu"])
            self.assertEqual(results["hologram:0"], results["cpu"])

    def test_pipeline_by_number(self):
        from transformers import pipeline

        def device(**chosen):
            model, words = classifier(), tokenizer()
            return pipeline("text-classification", model=model, tokenizer=words, **chosen).device

        self.assertEqual(device(device=0).type, DEFAULT)
        integrations.transformers.enable()
        for chosen in ({}, {"device": 0}, {"device": "hologram"}):
            self.assertEqual(device(**chosen).type, "hologram")
        for chosen in ({"device": -1}, {"device": "cpu"}, {"device": torch.device("cpu")}):
            self.assertEqual(device(**chosen).type, "cpu")
        integrations.transformers.disable()
        self.assertEqual(device(device=0).type, DEFAULT)

    def test_trainer_compiles(self):
        integrations.transformers.enable()
        losses = []
        # TrainingArguments of compiled models set CUDA's flags, which torch's own tests forbid.
        allowed = getattr(torch.backends, "__allow_nonbracketed_mutation")
        for compiled in (False, True):
            with allowed():
                trainer = self.train(
                    classifier(dropout=0), num_train_epochs=1, torch_compile=compiled
                )
            self.assertEqual(trainer.model.device, HOLOGRAM)
            losses.append(trainer.state.log_history[-1]["train_loss"])
        self.assertEqual(*losses, rtol=1e-5, atol=1e-6)


class TestSafetensors(HologramTestCase):
    def test_load_file(self):
        from safetensors.torch import load_file, save_file

        tensors = {"a": torch.randn(3, 4, device="hologram"), "b": torch.arange(5).half()}
        with tempfile.TemporaryDirectory() as folder:
            save_file(tensors, folder + "/a.safetensors")
            for device in ("hologram", "hologram:0"):
                loaded = load_file(folder + "/a.safetensors", device=device)
                self.assertEqual({tensor.device for tensor in loaded.values()}, {HOLOGRAM})
                for name, tensor in tensors.items():
                    self.assertEqual(loaded[name].cpu(), tensor.cpu())


def average(device: str, **options) -> dict[str, torch.Tensor]:
    """The state of an averaged network after training and update_bn, on the CPU."""
    model = network()
    model[2].p = 0.0  # the generators are not the subject
    model.to(device)
    averaged = AveragedModel(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    loader = DataLoader(rows(), batch_size=16)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
        averaged.update_parameters(model)
        scheduler.step()
    if not options.get("use_buffers"):
        update_bn(loader, averaged, device=device)
    assert {parameter.device.type for parameter in averaged.parameters()} == {device}
    return {name: value.cpu() for name, value in averaged.state_dict().items()}


class TestAveragedModel(HologramTestCase):
    def test_swa(self):
        self.assertEqual(average("hologram"), average("cpu"))

    def test_buffers(self):
        options = {"use_buffers": True, "avg_fn": get_swa_avg_fn()}
        self.assertEqual(average("hologram", **options), average("cpu", **options))

    @pytest.mark.xfail(
        strict=True,
        raises=RuntimeError,
        reason="torch averages with _foreach_addcdiv_ on accelerators, which refuses the integers "
        "of num_batches_tracked (docs/integrations.md)",
    )
    def test_buffers_by_default(self):
        average("hologram", use_buffers=True)

    def test_ema(self):
        states = []
        for device in ("cpu", "hologram"):
            model = network().to(device)
            averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
            for step in range(4):
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.add_(step)
                averaged.update_parameters(model)
            states.append({name: value.cpu() for name, value in averaged.state_dict().items()})
        self.assertEqual(states[1], states[0])


instantiate_parametrized_tests(TestAccelerate)
instantiate_parametrized_tests(TestTransformers)

if __name__ == "__main__":
    run_tests()
