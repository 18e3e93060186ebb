"""PyTorch Lightning, preemptible without gpuloom's hooks, too: two lines, those that name `preemptible`.

gpuloom submit --no-hooks -- python lightning_fit.py [--epochs N] [--saves FOLDER]
sbatch --requeue --signal=B:TERM@120 …                without gpuloom: exit code 85 says that it is saved

With hooks, as gpuloom submits it by default, nothing is needed: unchanged.py.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpuloom.training.lightning import preemptible

parser = argparse.ArgumentParser(description="Lightning that can be preempted.")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--saves", default="runs/saves")
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")
given = parser.parse_args()


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))

    def training_step(self, batch: Any, number: int) -> Any:
        inputs, wanted = batch
        loss = (self.net(inputs) - wanted).square().mean()
        self.log("loss", loss, on_epoch=True)
        time.sleep(given.pause)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


pl.seed_everything(1)
points = torch.randn(320, 8)
data = DataLoader(TensorDataset(points, points.square().sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = Model()
preemptible(given.saves)
trainer = pl.Trainer(max_epochs=given.epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(model, data)
if trainer.is_global_zero:
    print("weights sum up to", repr(sum(float(one.detach().sum()) for one in model.parameters())))
