"""A training whose stage times are known, with each framework as its users write it. Says what it did, in JSON.

A batch takes READ_S of sleep and PREPARE_S of computing, the model COMPUTE_S; all by clocks of their own.
"""

import json
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

BATCH, READ_S, PREPARE_S, COMPUTE_S = 4, 0.008, 0.012, 0.010
torch.set_num_threads(1)
spent = {"read": [], "prepare": [], "compute": []}


def burn(seconds: float) -> None:
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        pass


class Samples(Dataset):
    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches * BATCH

    def __getitem__(self, index: int) -> dict:
        begun = time.perf_counter()
        time.sleep(READ_S / BATCH)
        spent["read"].append((time.perf_counter() - begun) * BATCH)
        begun = time.thread_time()
        burn(PREPARE_S / BATCH)
        spent["prepare"].append((time.thread_time() - begun) * BATCH)
        return {"x": torch.full((8,), float(index)), "labels": torch.zeros(1)}


class Slow(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict:
        begun = time.perf_counter()
        burn(COMPUTE_S)
        spent["compute"].append(time.perf_counter() - begun)
        return {"loss": (self.linear(x / 100) - labels).square().mean()}


def plain(batches: int, workers: int = 0) -> int:
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    steps = 0
    for batch in DataLoader(Samples(batches), batch_size=BATCH, num_workers=workers):
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
        steps += 1
    return steps


def odd(batches: int) -> int:
    """Two optimizers, of which the second does most steps; accumulation; a scaler that skips a step."""
    model, other = Slow(), torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    second = torch.optim.SGD(other.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)  # too large to begin with
    steps = 0
    for at, batch in enumerate(DataLoader(Samples(batches), batch_size=BATCH)):
        scaler.scale(1000 * model(**batch)["loss"]).backward()
        if at % 2:
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            steps += scaler.get_scale() >= before
            for _ in range(3):
                second.zero_grad()
                other(torch.ones(1)).sum().backward()
                second.step()
    return steps


def accelerate(batches: int) -> int:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Samples(batches), batch_size=BATCH))
    steps = 0
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            steps += accelerator.sync_gradients
    return steps


def lightning(batches: int) -> int:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Slow()

        def training_step(self, batch: dict, index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(Samples(batches), batch_size=BATCH))
    return trainer.global_step


def hf(batches: int) -> int:
    import tempfile

    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as place:
        arguments = TrainingArguments(
            output_dir=place,
            max_steps=batches // 2,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(model=Slow(), args=arguments, train_dataset=Samples(batches * 2))
        trainer.train()
        return trainer.state.global_step


def ddp(batches: int) -> int:
    """Gradients of 8 MB through gloo; the model computes nothing else."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1_000, 2_000))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(batches):
        optimizer.zero_grad()
        model(torch.ones(1, 1_000)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
    return batches


def keras(batches: int, backend: str = "torch") -> int:
    import os

    os.environ["KERAS_BACKEND"] = backend
    import keras
    import numpy

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    x = numpy.zeros((batches * BATCH, 8), "float32")
    model.fit(x, x[:, :1], batch_size=BATCH, epochs=2, verbose=0)
    return 2 * batches


def jax(batches: int) -> int:
    """A step that is donated its state; beside it functions that are no steps, or smaller ones."""
    from functools import partial

    import jax
    import optax

    adam = optax.adam(1e-2)

    @jax.jit
    def normal(x):
        return x / (1 + abs(x))

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(weights, state, x):
        loss, gradient = jax.value_and_grad(lambda w: ((normal(x) @ w) ** 2).mean())(weights)
        change, state = adam.update(gradient, state, weights)
        return optax.apply_updates(weights, change), state, loss

    def mean_of(old, new):
        return 0.9 * old + 0.1 * new

    weights, mean, key = jax.numpy.ones((8, 8)), jax.numpy.ones((8, 8)), jax.random.key(0)
    state = adam.init(weights)
    for _ in range(batches):
        key, drawn = jax.random.split(key)
        x = normal(jax.random.normal(drawn, (BATCH, 8)))
        weights, state, _ = step(weights, state, x)
        mean = jax.jit(mean_of)(mean, weights)
        time.sleep(COMPUTE_S)
    assert step.__name__ == "step"
    assert step._cache_size() == 1
    assert isinstance(step, jax.stages.Wrapped)
    return batches


def trackers(steps: int) -> int:
    """A run of each tracker, offline."""
    import os

    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    import mlflow
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    wandb.init(project="a").finish()
    mlflow.set_tracking_uri("mlruns")
    with mlflow.start_run():
        mlflow.log_metric("loss", 1.0)
    with SummaryWriter("runs/a") as writer:
        writer.add_scalar("loss", 1.0, 1)
    return steps


if __name__ == "__main__":
    name, batches, *more = sys.argv[1:]
    done = globals()[name](int(batches), *[int(one) if one.isdigit() else one for one in more])
    own = {key: sorted(values) for key, values in spent.items() if values}
    said = {key: [values[len(values) // 2], values[len(values) * 3 // 4]] for key, values in own.items()}
    # In one piece: torchrun starts Pythons with -u, and two of them print at once.
    sys.stdout.write(json.dumps({"steps": done, **said}) + "\n")
