"""accelerate, transformers and Lightning over two processes: the losses of the global batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from common import BACKENDS, HologramTestCase
from ranks import ROOT, free_port, run_ranks
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

# A model and rows for it, and its losses with one process on a device that is not ours.
START = """
    import logging, os, sys, tempfile, warnings
    warnings.simplefilter("ignore")
    import torch
    import torch.nn.functional as F
    from torch import nn
    D, N, EPOCHS = "hologram", 8, 2
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    data = torch.utils.data.TensorDataset(x, y)

    def network(normed=False):
        torch.manual_seed(0)
        middle = nn.BatchNorm1d(16) if normed else nn.GELU()
        return nn.Sequential(nn.Linear(8, 16), middle, nn.Linear(16, 2))

    def optimizer_of(model):
        return torch.optim.AdamW(model.parameters(), 1e-2)

    def train_alone(normed=False, clip=None, every=1):
        model = network(normed)
        optimizer, losses = optimizer_of(model), []
        for step in range(EPOCHS * len(x) // N):
            rows = slice(step * N % len(x), step * N % len(x) + N)
            loss = F.cross_entropy(model(x[rows]), y[rows])
            (loss / every).backward()
            if (step + 1) % every == 0:
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def check(losses, alone, **tolerance):
        torch.testing.assert_close(
            torch.tensor(losses), torch.tensor(alone), **tolerance)
"""

ACCELERATE = (
    START
    + """
    if "ACCELERATE_TORCH_DEVICE" not in os.environ:
        from torch_hologram import integrations
        integrations.accelerate.enable()
    from accelerate import Accelerator
    rank = int(os.environ["RANK"])
    device = torch.device(D, rank % torch.hologram.device_count())

    def train(accelerator, clip=None):
        model = network()
        model, optimizer, loader = accelerator.prepare(
            model, optimizer_of(model),
            torch.utils.data.DataLoader(data, batch_size=N // accelerator.num_processes))
        losses = []
        for a, b in [batch for _ in range(EPOCHS) for batch in loader]:
            assert a.device == b.device == device, a.device
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(a), b)
                accelerator.backward(loss)
                if clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach().float(), "mean").item())
        return losses, model
"""
)


def run_file(program: str, *arguments: str, before: str = "", **env: str) -> list[str]:
    """The lines that a program in a file of its own prints, sorted, and other processes with it.

    Args:
        program: its text.
        *arguments: its ``sys.argv[1:]``.
        before: what stands between Python and the file.
        **env: variables set in addition.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")
        path.write_text(textwrap.dedent(program))
        done = subprocess.run(
            [sys.executable, *before.split(), str(path), *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
                ),
                "HOLOGRAM_CPU_DEVICES": "2",
                "OMP_NUM_THREADS": "1",
                **env,
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith("{"))


class TestAccelerate(HologramTestCase):
    # A device for each of the ranks, one that both choose, and accelerate's variable alone.
    @parametrize("devices", [2, 1])
    def test_data_parallel(self, devices):
        named = {"ACCELERATE_TORCH_DEVICE": "hologram"} if devices == 1 else {}
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(
                ACCELERATE
                + """
    accelerator = Accelerator(gradient_accumulation_steps=2)
    state = accelerator.state
    assert (accelerator.num_processes, accelerator.process_index) == (2, rank)
    assert accelerator.local_process_index == rank and accelerator.device == device, state
    assert accelerator.use_distributed and torch.hologram.current_device() == device.index

    losses, model = train(accelerator, clip=0.5)
    check(losses, train_alone(clip=0.5, every=2))
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    assert model.device_ids == [device.index]
    assert accelerator.local_process_index == rank

    from accelerate.utils import broadcast, gather_object
    mine = torch.full((1, 2), rank + 1.0, device=device)
    assert accelerator.gather(mine).tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert accelerator.gather({"a": [mine[0, 0]]})["a"][0].tolist() == [1.0, 2.0]
    assert accelerator.reduce(mine, "sum").tolist() == [[3.0, 3.0]]
    assert broadcast(mine.clone()).tolist() == [[1.0, 1.0]]
    assert gather_object([rank]) == [0, 1]
    padded = accelerator.pad_across_processes(torch.ones(rank + 1, 2, device=device))
    assert padded.tolist() == [[1.0, 1.0], [float(rank)] * 2], padded
    odd = accelerator.prepare(torch.utils.data.DataLoader(torch.arange(13), batch_size=2))
    seen = torch.cat([accelerator.gather_for_metrics(batch) for batch in odd])
    assert sorted(seen.tolist()) == list(range(13)), seen
    with accelerator.split_between_processes(list("abc")) as part:
        assert part == (["a", "b"] if rank == 0 else ["c"])

    # Each rank's generator draws the numbers that it would have drawn, and they differ.
    torch.hologram.manual_seed_all(rank)
    accelerator.save_state(sys.argv[1])
    weight = model.module[0].weight.detach().clone()
    drawn = torch.rand(1, 3, device=device)
    with torch.no_grad():
        model.module[0].weight.zero_()
    accelerator.wait_for_everyone()
    accelerator.load_state(sys.argv[1])
    assert torch.equal(torch.rand(1, 3, device=device), drawn)
    assert torch.equal(model.module[0].weight, weight)
    first, second = accelerator.gather(drawn).tolist()
    assert first != second

    with accelerator.join_uneven_inputs([model], even_batches=False):
        for _ in range(1 + rank):
            model(torch.ones(1, 8, device=device)).sum().backward()
    accelerator.end_training()
                """,
                folder,
                env={"HOLOGRAM_CPU_DEVICES": str(devices), **named},
            )

    def test_fully_sharded(self):
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(
                ACCELERATE
                + """
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState
    from torch.distributed.tensor import DTensor
    alone = train_alone(clip=0.5)

    def full(model):
        return {name: its.full_tensor() for name, its in model.state_dict().items()}

    for number, (options, home) in enumerate([
        ({}, D),
        ({"cpu_ram_efficient_loading": True, "state_dict_type": "FULL_STATE_DICT"}, D),
        ({"cpu_offload": True}, "cpu"),
    ]):
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator(
            fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, **options))
        losses, model = train(accelerator, clip=0.5)
        check(losses, alone)
        for parameter in model.parameters():
            assert isinstance(parameter, DTensor) and parameter.to_local().device.type == home
        saved = full(model)
        path = f"{sys.argv[1]}/{number}"
        accelerator.save_state(path)
        accelerator.wait_for_everyone()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        accelerator.load_state(path)
        assert all(torch.equal(its, saved[name]) for name, its in full(model).items())

    AcceleratorState._reset_state(reset_partial_state=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    losses, model = train(Accelerator(mixed_precision="bf16", fsdp_plugin=plugin))
    check(losses, train_alone(), rtol=0.05, atol=0.01)
    assert losses != alone

    # The first version of it moves the model; it looks for a device only to send it from rank 0.
    AcceleratorState._reset_state(reset_partial_state=True)
    del os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"]  # one of the plugins above has set it
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(
        fsdp_version=1, use_orig_params=True))
    check(train(accelerator)[0], train_alone())
    if not torch.cuda.is_available():
        try:
            FullyShardedDataParallelPlugin(fsdp_version=1, sync_module_states=True)
        except RuntimeError as error:
            assert "no available devices found" in str(error), error
        else:
            raise AssertionError("sync_module_states was taken")
    accelerator.end_training()
                """,
                folder,
            )

    def test_launchers(self):
        # What it prints: the processes that have come, their devices, and a sum over them.
        said = """
            import json, torch

            def main():
                from accelerate import Accelerator
                accelerator = Accelerator()
                ones = torch.ones(1, device=accelerator.device)
                line = {
                    "at": accelerator.process_index, "on": str(accelerator.device),
                    "sum": accelerator.reduce(ones).item(),
                }
                print(json.dumps(line) + "\\n", end="", flush=True)
                accelerator.end_training()
        """

        def check(lines, processes):
            expected = [
                {"at": rank, "on": f"hologram:{rank}", "sum": float(processes)}
                for rank in range(processes)
            ]
            self.assertEqual([json.loads(line) for line in lines], expected)

        script = textwrap.dedent(said) + "main()"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "train.py")
            path.write_text(script)
            launch = f"""
                import sys
                from accelerate.commands.launch import main
                if __name__ == "__main__":
                    sys.argv[1:] = [*sys.argv[1:], {str(path)!r}]
                    main()
            """
            port = ("--main_process_port", str(free_port()))
            env = {"ACCELERATE_TORCH_DEVICE": "hologram", "HF_HOME": folder}
            # As many as there are devices: two of each backend.
            check(run_file(launch, *port, **env), 2 * len(BACKENDS))

        notebook = f"""
            from accelerate import notebook_launcher
            from torch_hologram import integrations
            integrations.accelerate.enable()
            notebook_launcher(main, num_processes=2, use_port="{free_port()}")
        """
        check(run_file(textwrap.dedent(said) + textwrap.dedent(notebook)), 2)


class TestTransformers(HologramTestCase):
    def test_trainer(self):
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(
                START
                + """
    logging.disable(logging.WARNING)
    from torch_hologram import integrations
    integrations.transformers.enable()
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    from transformers.utils import logging as progress
    progress.disable_progress_bar()
    rank = int(os.environ["RANK"])

    class Sentences(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, index):
            ids = torch.randint(0, 32, (8,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": ids, "labels": (ids[0] > 15).long()}

    def train(dropout=0.0, resume=None, **options):
        torch.manual_seed(0)
        model = BertForSequenceClassification(BertConfig(
            vocab_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=16, hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout, pad_token_id=0))
        # Of a model that is not told how many tokens there are the loss would count twice.
        arguments = TrainingArguments(sys.argv[1], **{
            "per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 5e-3,
            "report_to": [], "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True,
            "average_tokens_across_devices": False, **options})
        trainer = Trainer(model, arguments, train_dataset=Sentences(), eval_dataset=Sentences())
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    def losses_of(trainer):
        logged = [its["loss"] for its in trainer.state.log_history if "loss" in its]
        return logged + [trainer.evaluate()["eval_loss"]]

    trainer = train()
    assert trainer.args.device == torch.device(D, rank) and trainer.args.world_size == 2
    assert type(trainer.model_wrapped) is nn.parallel.DistributedDataParallel
    assert trainer.predict(Sentences()).predictions.shape == (32, 2)
    losses = losses_of(trainer)

    # Each rank has its own generator, and goes on with it after a checkpoint.
    whole = train(0.1, save_strategy="epoch")
    torch.hologram.manual_seed_all(99)
    resumed = train(0.1, sys.argv[1] + "/checkpoint-4")
    for name, its in whole.model.state_dict().items():
        assert torch.equal(its, resumed.model.state_dict()[name]), name
    torch.distributed.destroy_process_group()

    if rank == 0:  # the global batch, in one process on the CPU
        for name in "RANK", "WORLD_SIZE", "LOCAL_RANK":
            del os.environ[name]
        alone = losses_of(train(use_cpu=True, per_device_train_batch_size=8))
        check(losses, alone, rtol=1e-5, atol=2e-5)
                """,
                folder,
            )


LIGHTNING = (
    START
    + """
    import importlib
    package = os.environ.get("LIGHTNING", "lightning")
    L = importlib.import_module(package)
    for name in package, "lightning_fabric":
        logging.getLogger(name).setLevel(logging.ERROR)
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import parallel

    def shard(model, mesh):
        fully_shard(model, mesh=mesh["data_parallel"])
        return model

    def divide(model, mesh):
        return parallel.parallelize_module(
            model, mesh["tensor_parallel"],
            {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()})

    class Classifier(L.LightningModule):
        def __init__(self, normed=False, parallelize=None):
            super().__init__()
            self.net, self.losses, self.parallelize = network(normed), [], parallelize

        def configure_model(self):
            if self.parallelize is not None:
                self.parallelize(self.net, self.device_mesh)

        def training_step(self, batch, index):
            assert batch[0].device == self.trainer.strategy.root_device
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            its = loss.detach().float().clone()
            self.losses.append(self.trainer.strategy.reduce(its, reduce_op="mean").item())
            self.log("loss", loss, sync_dist=True)
            return loss

        def validation_step(self, batch, index):
            self.log("right", (self.net(batch[0]).argmax(1) == batch[1]).sum(), sync_dist=True,
                     reduce_fx="sum")

        def configure_optimizers(self):
            return optimizer_of(self)

        def train_dataloader(self):
            # The rows of the global batch in their order; Lightning would shuffle them.
            rank, size = self.trainer.global_rank, self.trainer.world_size
            if self.parallelize is divide:
                rank, size = 0, 1
            rows = [list(range(start, start + N))[rank * N // size:(rank + 1) * N // size]
                    for start in range(0, len(x), N)]
            return torch.utils.data.DataLoader(data, batch_sampler=rows)

        def val_dataloader(self):
            return torch.utils.data.DataLoader(data, batch_size=16)

        def on_fit_end(self):
            self.trainer.strategy.barrier()

    def trainer_of(**options):
        options = {"accelerator": D, "devices": 2, "max_epochs": EPOCHS, **options}
        return L.Trainer(logger=False, enable_progress_bar=False, enable_model_summary=False,
                         use_distributed_sampler=False, **options)

    def fit(normed=False, parallelize=None, **options):
        trainer = trainer_of(**{"enable_checkpointing": False, **options})
        model = Classifier(normed, parallelize)
        trainer.fit(model)
        return model, trainer
"""
)
# What torchrun sets and Lightning looks at, besides ranks.start_ranks.
TORCHRUN = {"TORCHELASTIC_RUN_ID": "1", "GROUP_RANK": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}


class TestLightning(HologramTestCase):
    def test_trainer_and_fabric(self):
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(
                LIGHTNING
                + """
    from lightning.pytorch import callbacks, strategies
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    rank, alone = int(os.environ["RANK"]), train_alone()

    model, trainer = fit()
    check(model.losses, alone)
    assert type(trainer.strategy) is strategies.DDPStrategy
    assert trainer.strategy.root_device == torch.device(D, rank)
    assert (trainer.global_rank, trainer.world_size) == (rank, 2)
    assert torch.hologram.current_device() == rank
    whole = {name: its.cpu() for name, its in model.state_dict().items()}
    # Of integers, too, which its own training averages.
    assert trainer.strategy.reduce(torch.tensor([2, 4 * rank], device=D)).tolist() == [2, 2]
    assert fit(strategy="fsdp", max_epochs=1)[0].losses  # makes the parameters' shards anew

    # Its checkpoints, and training that goes on from one.
    saving = [callbacks.ModelCheckpoint(sys.argv[1], save_last=True),
              callbacks.EarlyStopping("right", mode="max")]
    fit(strategy="ddp", max_epochs=1, callbacks=saving, enable_checkpointing=True)
    model, again = Classifier(), trainer_of(enable_checkpointing=False)
    again.fit(model, ckpt_path=sys.argv[1] + "/last.ckpt")
    check(model.losses, alone[len(alone) // 2:])
    for name, its in model.state_dict().items():
        torch.testing.assert_close(its.cpu(), whole[name])

    model, trainer = fit(normed=True, sync_batchnorm=True)
    check(model.losses, train_alone(normed=True))
    losses = fit(strategy="ddp_find_unused_parameters_true", gradient_clip_val=0.5)[0].losses
    check(losses, train_alone(clip=0.5))
    hooked = strategies.DDPStrategy(ddp_comm_hook=default_hooks.fp16_compress_hook)
    losses = fit(strategy=hooked)[0].losses
    check(losses, alone, rtol=1e-3, atol=1e-3)
    assert losses != fit()[0].losses  # the gradients have been rounded

    model, trainer = fit(strategy="fsdp")
    check(model.losses, alone)
    sharded = strategies.FSDPStrategy(
        sharding_strategy="HYBRID_SHARD", device_mesh=(1, 2), state_dict_type="sharded")
    check(fit(strategy=sharded)[0].losses, alone)
    for precision in "16-mixed", "bf16-mixed":
        for strategy in "ddp", "fsdp":
            losses = fit(strategy=strategy, precision=precision)[0].losses
            check(losses, alone, rtol=0.05, atol=0.01)
            assert losses != alone
    for parallelize, sizes in (shard, (2, 1)), (divide, (1, 2)):
        its = strategies.ModelParallelStrategy(*sizes)
        check(fit(strategy=its, parallelize=parallelize)[0].losses, alone)

    for error, options in (
        (RuntimeError, {"devices": torch.hologram.device_count() + 1}),
        (ValueError, {"devices": [0, 0]}),
        (ValueError, {"strategy": "fsdp", "precision": "64-true"}),
        (ValueError, {"strategy": strategies.ModelParallelStrategy(), "precision": "16-mixed"}),
    ):
        try:
            trainer_of(**options)
        except error as raised:
            assert any(word in str(raised) for word in (
                f"there is no hologram:{torch.hologram.device_count()}", "the same device twice",
                "is not supported in FSDP", "does not support")), raised
        else:
            raise AssertionError(f"{options} was taken")

    # Fabric's, whose classes are others.
    from lightning.fabric import strategies

    def train(folder, divided=False, **options):
        fabric = L.Fabric(**{"accelerator": D, "devices": 2, **options})
        fabric.launch()
        assert (fabric.global_rank, fabric.device) == (rank, torch.device(D, rank))
        model = network()
        if isinstance(fabric.strategy, strategies.ModelParallelStrategy):
            model = fabric.setup_module(model)
            optimizer = fabric.setup_optimizers(optimizer_of(model))
        else:
            model, optimizer = fabric.setup(model, optimizer_of(model))
        losses = []
        for start in [*range(0, len(x), N)] * EPOCHS:
            part = slice(start, start + N)
            a, b = x[part], y[part]
            if not divided:
                a, b = a.chunk(2)[rank], b.chunk(2)[rank]
            a, b = fabric.to_device((a, b))
            loss = F.cross_entropy(model(a), b)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(fabric.all_reduce(loss.detach().float().clone()).item())
        fabric.barrier()
        assert fabric.all_gather(torch.tensor(float(rank))).tolist() == [0.0, 1.0]
        fabric.save(folder, {"model": model, "optimizer": optimizer, "step": 3})
        assert fabric.load(folder, {"model": model, "optimizer": optimizer})["step"] == 3
        return losses

    def path(number=iter(range(100))):
        return f"{sys.argv[1]}/{next(number)}"

    check(train(path()), alone)
    check(train(path(), strategy="ddp"), alone)
    check(train(path(), strategy="fsdp"), alone)
    check(train(path(), strategy="fsdp_cpu_offload"), alone)
    mesh = strategies.FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(1, 2))
    check(train(path(), strategy=mesh), alone)
    check(train(path(), strategy=strategies.ModelParallelStrategy(shard, 2, 1)), alone)
    its = strategies.ModelParallelStrategy(divide)
    check(train(path(), divided=True, strategy=its), alone)
    for strategy in "ddp", "fsdp":
        losses = train(path(), strategy=strategy, precision="bf16-mixed")
        check(losses, alone, rtol=0.05, atol=0.01)
        assert losses != alone
    torch.distributed.destroy_process_group()
                """,
                folder,
                env=TORCHRUN,
            )

    def test_processes_that_it_starts(self):
        program = textwrap.dedent(LIGHTNING) + textwrap.dedent("""
            import json

            class Told(Classifier):
                def on_fit_end(self):
                    check(self.losses, train_alone())
                    at = str(self.trainer.strategy.root_device)
                    print(json.dumps({"on": at}) + "\\n", end="", flush=True)

            if __name__ == "__main__":
                # The one that starts this file again is the last, and the one that it is then for.
                again = "LOCAL_RANK" in os.environ
                for strategy in ["ddp"] if again else ["ddp_fork", "ddp_spawn", "ddp"]:
                    model = Told()
                    trainer_of(strategy=strategy, enable_checkpointing=False).fit(model)
                    assert model.net[0].weight.device.type in (D, "cpu")
                    assert not torch.equal(model.net[0].weight.cpu(), network()[0].weight)
                torch.distributed.is_initialized() and torch.distributed.destroy_process_group()
            """)
        # A process that has used the device cannot fork, and this one has not.
        lines = [json.dumps({"on": f"hologram:{rank}"}) for rank in (0, 1) for _ in range(3)]
        self.assertEqual(run_file(program, LIGHTNING="pytorch_lightning"), lines)


instantiate_parametrized_tests(TestAccelerate)

if __name__ == "__main__":
    run_tests()
