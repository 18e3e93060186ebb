"""PyTorch Lightning with nothing of gpuloom in it: under its hooks it is preemptible as it is.

gpuloom submit -- python unchanged.py [--epochs N]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="Lightning as it is.")
parser.add_argument("--epochs", type=int, default=8)
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
trainer = pl.Trainer(max_epochs=given.epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(model, data)
if trainer.is_global_zero:
    print("weights sum up to", repr(sum(float(one.detach().sum()) for one in model.parameters())))
