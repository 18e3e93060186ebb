"""The spec that records hold: the same bytes as what was submitted, and one set of defaults."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from gpuloom.core.errors import InputError
from gpuloom.core.masked import MASK, masked
from gpuloom.core.spec import DEFAULTS, OnPreempt, Spec, spec_of
from gpuloom.live.submission.spec import JobSpec, job_spec

FULL: dict[str, Any] = {
    "command": ["python", "train.py", "é"],
    "name": "train",
    "gpus": 2,
    "per": "gpu",
    "launcher": "tensorflow",
    "ps": 2,
    "gpu_types": ["V100", "A100"],
    "gpu_memory": "12GiB",
    "cpus": 2,
    "memory": 4096,
    "priority": -3,
    "after": [1, 2],
    "after_any": [3],
    "array": "0-9%3",
    "time_limit": "4h",
    "estimate": 90,
    "retries": 2,
    "on_preempt": "freeze",
    "grace": 5,
    "checkpoint": "out/*.pt",
    "workdir": "/",
    "env": {"A": "secret", "B": ""},
    "venv": "/venv",
    "model": "gpt2",
    "share_class": "high",
    "task_type": "batch",
    "importance": "low",
    "real_time": True,
    "hold": True,
}


@pytest.mark.parametrize("given", [{"command": ["train"]}, FULL, {**FULL, "venv": None, "container": "image"}])
def test_the_store_holds_the_bytes_that_were_submitted(given: dict[str, Any]) -> None:
    checked = job_spec(given)
    kept = checked.kept()
    written = json.dumps(kept.to_json())
    assert written == json.dumps(checked.to_json()) == json.dumps(masked(checked.model_dump(mode="json")))
    assert spec_of(json.loads(written)) == kept
    assert json.dumps(spec_of(json.loads(written)).to_json()) == written
    kept.to_json()["env"].clear()
    assert json.dumps(kept.to_json()) == written, "what is given out is a copy"
    assert set(kept.env.values()) <= {MASK}


def test_fields_and_defaults_are_those_of_what_users_write() -> None:
    assert [each.name for each in fields(Spec)] == list(JobSpec.model_fields)
    assert JobSpec(command=["train"]).kept() == Spec(("train",)) == replace(DEFAULTS, command=("train",))


def test_missing_fields_of_older_stores_get_their_defaults() -> None:
    assert spec_of({"command": ["a"], "name": "n", "gpus": 3}) == Spec(("a",), name="n", gpus=3)
    assert spec_of({"command": ["a"], "of a later gpuloom": 1}) == Spec(("a",))
    assert spec_of({"command": ["a"]}).on_preempt is OnPreempt.AUTO


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": "train"},
        {"command": []},
        {"command": [1]},
        {"gpus": "2"},
        {"grace": None},
        {"estimate": "1h"},
        {"on_preempt": "perhaps"},
        {"per": "job"},
        {"launcher": "mpi"},
        {"ps": 1.5},
        {"after": ["1"]},
        {"env": []},
    ],
)
def test_what_no_gpuloom_wrote_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"job|OnPreempt|Launcher"):
        spec_of({"command": ["train"], **wrong})
    with pytest.raises(ValueError, match="no command"):
        spec_of({})


def test_what_is_read_from_a_spec() -> None:
    assert Spec(("a",), array="0-9%3").at_once == 3
    assert Spec(("a",), array="0-9").at_once is Spec(("a",)).at_once is None
    assert Spec(("a",), task_type="inference").sharing_class == "high"
    assert Spec(("a",), share_class="high", gpus=2).sharing_class == ""
    assert Spec(("a",), share_class="high", container="image").sharing_class == ""
    assert Spec(("a",)).sharing_class == ""


def test_fields_of_another_version_are_ignored_however_often_they_come() -> None:
    """Shapes that were found sound are remembered: one with a field that is unknown must not be."""
    written = {"command": ["train"], "gpus": 2, "of_tomorrow": 7}
    assert spec_of(written) == spec_of(written) == spec_of({"command": ["train"], "gpus": 2})
    for _ in range(2):
        with pytest.raises(ValueError, match="job"):
            spec_of({"command": ["train"], "gpus": "2"})


@pytest.mark.parametrize(
    ("word", "why"),
    [("a\0b", "a NUL character"), ("\ud800", "half a character"), ("x" * 200_000, "200,000 bytes")],
    ids=["nul", "surrogate", "long"],
)
def test_a_command_has_words_that_a_program_can_be_given(word: str, why: str) -> None:
    with pytest.raises(InputError, match="command") as told:
        job_spec({"command": ["train", word]})
    assert why in str(told.value)
