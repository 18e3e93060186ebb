"""How policies and their parameters are written, and what is said about a wrong one."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gpuloom.core.errors import PolicyError
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.registry import BUILT_IN, create_policy, parse_policy, policy_class, policy_ids


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("srtf", ("srtf", {})),
        (" srtf ", ("srtf", {})),
        ("srtf:", ("srtf", {})),
        ("tiresias:thresholds=3250/7200", ("tiresias", {"thresholds": "3250/7200"})),
        ("tiresias: promote = 2 ; scatter=yes", ("tiresias", {"promote": "2", "scatter": "yes"})),
        ("gittins:samples=a=b.csv", ("gittins", {"samples": "a=b.csv"})),
    ],
)
def test_a_policy_is_written_id_and_values(text: str, parsed: tuple[str, dict[str, str]]) -> None:
    assert parse_policy(text) == parsed


@pytest.mark.parametrize("text", ["tiresias:3250/7200", "srtf:=sticky", "tiresias:promote=1;;scatter=yes"])
def test_what_is_not_name_and_value_is_quoted(text: str) -> None:
    with pytest.raises(PolicyError, match=r"is not name=value \(tiresias:thresholds=3250/7200\)"):
        parse_policy(text)


def test_a_name_alone_switches_a_parameter_on() -> None:
    assert parse_policy("hlas:literal;blind=no") == ("hlas", {"literal": "yes", "blind": "no"})
    assert create_policy("hlas:literal").values["literal"] is True
    with pytest.raises(PolicyError, match="promote='yes': must be a number"):
        create_policy("tiresias:promote")
    with pytest.raises(PolicyError, match="no parameter 'sticky'"):
        create_policy("srtf:sticky")


def test_an_unknown_policy_suggests_the_nearest_and_lists_all() -> None:
    with pytest.raises(PolicyError, match=r"unknown policy 'tiresas'; did you mean 'tiresias'\? \(known: fifo, sjf"):
        policy_class("tiresas")
    with pytest.raises(PolicyError, match=r"unknown policy 'quux' \(known"):
        policy_class("quux")


def test_a_policy_written_in_capitals_is_found_or_suggested() -> None:
    with pytest.raises(PolicyError, match="did you mean 'srtf'"):
        policy_class("SRTF")


def test_an_unknown_parameter_lists_those_there_are() -> None:
    with pytest.raises(PolicyError, match=r"policy 'srtf' has no parameter 'foo' \(it has: placement"):
        create_policy("srtf:foo=1")

    class Bare(policy_class("sjf")):  # type: ignore[misc]
        parameters = ()

    with pytest.raises(PolicyError, match=r"policy 'sjf' has no parameter 'foo' \(it has: none"):
        Bare(foo=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fifo:backfill=maybe", r"backfill='maybe': must be one of no, easy, greedy"),
        ("fifo:depth=0", r"depth='0': must be"),
        ("tiresias:thresholds=7200/3250", r"thresholds='7200/3250': must rise"),
        ("tiresias:thresholds=0/10", r"must be above 0"),
        ("tiresias:thresholds=1,2", r"thresholds='1,2'"),
        ("tiresias:promote=-1", r"promote='-1': must not be below 0"),
        ("tiresias:scatter=perhaps", r"must be yes or no"),
        ("gittins:levels=nan", r"levels='nan'"),
        ("themis:lease=0", r"lease='0': must be above 0"),
        ("themis:lease=soon", r"lease='soon': 'soon' is not a duration"),
        ("antman:opportunistic=1.5", r"must be between 0 and 1"),
        ("antman:seed=x", r"seed='x'"),
        ("gavel:objective=max", r"must be one of max_min_fairness, water_filling"),
    ],
)
def test_a_bad_value_is_quoted_with_policy_parameter_and_help(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=f"policy '{text.partition(':')[0]}': .*{message}"):
        create_policy(text)


@pytest.mark.parametrize(
    "text", ["fifo:depth=0.5", "gittins:levels=0.5", "antman:seed=-1", "antman:seed=1.5", "antman:share=2"]
)
def test_a_value_that_would_be_used_as_another_one_is_refused(text: str) -> None:
    """int(0.5) is 0, a share above 1 is cut to 1, a negative seed breaks the generator."""
    with pytest.raises(PolicyError):
        create_policy(text)


def test_values_have_their_types() -> None:
    policy = create_policy("tiresias:thresholds=10/20/30;scatter=ON")
    switches = {"scatter": True, "whole_seconds": False, "upgrade": True}
    assert policy.values == {"thresholds": (10.0, 20.0, 30.0), "promote": 0.0, **switches}


def test_defaults_give_way_to_what_is_written_and_unknown_ones_are_ignored() -> None:
    assert create_policy("antman", seed=7).values["seed"] == 7
    assert create_policy("antman:seed=3", seed=7).values["seed"] == 3
    assert create_policy("srtf", seed=7).values == {"placement": "sticky", "upgrade": True}


@pytest.mark.parametrize("policy", BUILT_IN)
def test_the_id_in_the_registry_is_the_policy_s_own(policy: str) -> None:
    assert policy_class(policy).id == policy
    assert policy in policy_ids()


def test_samples_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "samples.csv"
    file.write_text("gpu_s\n10\n\n 20.5 \n")
    assert load_policy(f"gittins:samples={file}").values["samples"].tolist() == [10.0, 20.5]
    packed = tmp_path / "samples.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert load_policy(f"gittins:samples={packed}").values["samples"].tolist() == [10.0, 20.5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"10\nx\n", r":2: 'x' is not a number above 0"),
        (b"10\n-5\n", r":2: '-5' is not"),
        (b"10\ninf\n", r":2: 'inf' is not"),
        (b"", "holds no numbers"),
        (b"size\n", "holds no numbers"),
        (b"\x1f\x8bgarbage", "samples="),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff", "samples="),
        (b"\xff\xfe1\x00", "samples="),
    ],
)
def test_bad_samples_are_named_with_file_and_line(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "samples"
    file.write_bytes(content)
    with pytest.raises(PolicyError, match=message):
        load_policy(f"gittins:samples={file}")


def test_missing_samples_are_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"policy 'gittins': samples=.*nothing.*: no such file"):
        load_policy(f"gittins:samples={tmp_path / 'nothing'}")
