"""Data of these scripts: the sum of four numbers, which are a little different each time they are looked at."""

import os
import signal
import time

import torch


class Sums(torch.utils.data.Dataset):
    """Samples (x, sum of x, number of the sample). noise: drawn anew each time, from the global generator."""

    def __init__(self, size: int = 42, noise: float = 0.1) -> None:
        self.size, self.noise = size, noise

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        x = torch.randn(4, generator=torch.Generator().manual_seed(number))
        noise = self.noise * torch.rand(4) if self.noise else 0.0
        return {"x": x + noise, "labels": x.sum().view(1), "number": torch.tensor(number)}


def network() -> torch.nn.Module:
    """A small one that draws random numbers, too."""
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))


def used(numbers: torch.Tensor) -> None:
    """Note which samples a step uses."""
    rank = os.environ.get("RANK", "")
    with open(f"ids{rank}.txt", "a") as file:
        print(*numbers.tolist(), file=file)


def maybe_stop(step: int) -> None:
    """Give this process notice, if it is to be stopped in this step. Steps of a first attempt take `STEP_S` longer."""
    if os.environ.get("GPULOOM_RESUME") != "1":
        time.sleep(float(os.environ.get("STEP_S", "0")))
    if step == int(os.environ.get("STOP_AT", "-1")):
        os.kill(os.getpid(), signal.SIGTERM)


def write_weights(model: torch.nn.Module) -> None:
    """Say what came out."""
    with open("weights.txt", "w") as file:
        print(*[repr(number) for one in model.parameters() for number in one.flatten().tolist()], file=file)
