"""By what the profile of a job without a model's name is found again: its script, and the arguments that matter.

Arguments that only say how long, whereto or with which numbers drawn a script trains change nothing of its stages.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from functools import lru_cache

IDLE = frozenset(
    {
        *(
            "epochs",
            "max-epochs",
            "num-epochs",
            "num-train-epochs",
            "epoch",
            "steps",
            "max-steps",
            "iterations",
            "iters",
        ),
        *(
            "seed",
            "random-seed",
            "name",
            "run-name",
            "experiment",
            "exp-name",
            "tag",
            "project",
            "resume",
            "resume-from",
        ),
        *("output", "output-dir", "out", "out-dir", "save", "save-dir", "save-every", "checkpoint", "checkpoint-dir"),
        *("ckpt", "ckpt-dir", "log-dir", "logdir", "log-every", "log-interval", "print-freq", "lr", "learning-rate"),
        *("weight-decay", "momentum", "warmup", "wandb", "verbose", "quiet", "local-rank", "node-rank", "master-addr"),
        *("master-port", "rdzv-id", "rdzv-endpoint", "rdzv-backend"),
    }
)
"""Names of options, without their dashes, that say nothing of an iteration."""
LONGEST = 200
_MOST_KNOWN = 100_000
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*$")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of Python that take a word."""
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "launch", "env", "nice", "time")


def profile_key(model: str | None, command: Sequence[str], known: Container[str]) -> str:
    """By what a job's profile is found: its model, else its script's key if there is a profile of that; ''.

    known: keys of which there are profiles.
    """
    if model:
        return model
    key = _key(tuple(command))
    return key if key in known else ""


@lru_cache(_MOST_KNOWN)
def _key(command: tuple[str, ...]) -> str:
    return script_key(command)


def script_key(command: Sequence[str]) -> str:
    """The key of a command: the script's file name without its ending, then the arguments that matter, in their order.

    `python -u train.py --epochs 5 --batch-size 64` gives 'train --batch-size 64'.
    """
    at = _script_at(command)
    name = command[at].rpartition("/")[2]
    name = re.sub(r"\.(py|sh)$", "", name) or name
    words = [name, *_mattering(command[at + 1 :])]
    text = "".join(letter if letter.isprintable() else "?" for letter in " ".join(words)).strip()
    return text[:LONGEST].strip() or "job"


def _script_at(command: Sequence[str]) -> int:
    """Where the script stands: the first file of Python, else a module after -m, else the program itself."""
    for at, word in enumerate(command):
        if word.endswith(".py"):
            return at
    if _PYTHON.match(command[0]) or command[0].rpartition("/")[2] in _LAUNCHERS:
        skip = False
        for at, word in enumerate(command[1:], 1):
            if skip:
                skip = False
            elif word == "-m" and at + 1 < len(command):
                return at + 1
            elif word in _WITH_VALUE:
                skip = True
            elif not word.startswith("-"):
                return at
    return 0


def _mattering(arguments: Sequence[str]) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        name, equals, _ = word.partition("=")
        idle = word.startswith("--") and name[2:].replace("_", "-") in IDLE
        if not idle:
            found.append(word)
        elif not equals and at + 1 < len(arguments) and not arguments[at + 1].startswith("--"):
            at += 1  # its value
        at += 1
    return found
