"""The Trainer of Hugging Face, preemptible without gpuloom's hooks, too: two lines, those that name `preemptible`.

gpuloom submit --no-hooks -- python hf_trainer.py [--epochs N] [--saves FOLDER]

With hooks, as gpuloom submits it by default, the same script needs neither of them.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from transformers import Trainer, TrainingArguments, set_seed

from gpuloom.training.hf import preemptible

parser = argparse.ArgumentParser(description="Hugging Face's Trainer that can be preempted.")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--saves", default="runs/saves")
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")
given = parser.parse_args()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))

    def forward(self, inputs: Any, labels: Any) -> Any:
        time.sleep(given.pause)
        found = self.net(inputs)
        return {"loss": (found - labels).square().mean(), "logits": found}


set_seed(1)
points = torch.randn(320, 8)
data = [{"inputs": one, "labels": one.square().sum().view(1)} for one in points]
model = Net()
arguments = TrainingArguments(
    output_dir="runs/hf",
    num_train_epochs=given.epochs,
    per_device_train_batch_size=16,
    learning_rate=0.01,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
preemptible(given.saves)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
print("weights sum up to", repr(sum(float(one.detach().sum()) for one in model.parameters())))
