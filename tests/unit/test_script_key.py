"""The key of a script's profile: what changes nothing of an iteration is not in it."""

from __future__ import annotations

import pytest

from gpuloom.core.script_key import LONGEST, profile_key, script_key


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("python train.py", "train"),
        ("python -u /home/ann/train.py --epochs 5 --batch-size 64", "train --batch-size 64"),
        ("/opt/env/bin/python3.11 -X dev train.py --seed=3 --model=resnet50 --amp", "train --model=resnet50 --amp"),
        ("torchrun --nproc-per-node=2 train_ddp.py --lr 0.1 --output_dir /tmp/x", "train_ddp"),
        ("python -m mypackage.train --max-steps 10 --width 8", "mypackage.train --width 8"),
        ("accelerate launch train.py --resume --fp16", "train --fp16"),
        ("./train --size 3", "train --size 3"),
        ("bash run.sh a", "bash run.sh a"),
        ("python", "python"),
    ],
)
def test_keys(command: str, key: str) -> None:
    assert script_key(command.split()) == key


def test_a_key_is_printable_and_short() -> None:
    key = script_key(["python", "a.py", "x\ny", "z" * 1000])
    assert key.isprintable()
    assert len(key) <= LONGEST


def test_a_model_that_is_named_goes_first_and_a_script_needs_a_profile() -> None:
    assert profile_key("vgg19", ["python", "a.py"], {"a"}) == "vgg19"
    assert profile_key(None, ["python", "a.py"], {"a"}) == "a"
    assert profile_key(None, ["python", "a.py"], ()) == ""
