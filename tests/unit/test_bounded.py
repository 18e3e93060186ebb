"""What users write is read with bounds: a small file never becomes a large one, and errors stay short."""

from __future__ import annotations

import json

import pytest

from gpuloom.bounded import yaml_text
from gpuloom.bounded.json_text import DEPTH, load_json
from gpuloom.bounded.text import cut, shown
from gpuloom.bounded.yaml_text import DEPTH as YAML_DEPTH
from gpuloom.bounded.yaml_text import load_yaml
from gpuloom.core.errors import InputError
from gpuloom.core.units import parse_duration_s, parse_memory_mib
from gpuloom.live.submission.spec import JobSpec, within_bounds


def test_plain_yaml_is_what_it_was() -> None:
    text = "a: [1, 2.5, yes, null, x, '07']\nb: {c: 1e3, d: 1_000, e: 0x10}\nf: 2026-03-01\ng: =\nh: !!str 5\n"
    assert load_yaml(text) == {
        "a": [1, 2.5, True, None, "x", "07"],
        "b": {"c": "1e3", "d": 1000, "e": 16},
        "f": "2026-03-01",
        "g": "=",
        "h": "5",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a [1]\nb: *a\n", "line 2, column 4: aliases"),
        ("a:\n  <<: {b: 1}\n", "line 2, column 3: merge keys"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: key 'a' is given twice"),
        ("a: {b: {c: 1, c: 2}}\n", "key 'c' is given twice"),
        ("[" * 40 + "]" * 40, "nested too deeply"),
        ("{a: " * 40 + "1" + "}" * 40, "nested too deeply"),
        ("a: !!python/object/apply:os.system [x]", "tags (!!python/object/apply:os.system)"),
        ("a: !!set {x}", "tags (!!set)"),
        ("a: !mine 1", "tags (!mine)"),
        ("a: .nan", "'.nan' is not a finite number"),
        ("a: 1.0e+999", "is not a finite number"),
        ("a: -.inf", "is not a finite number"),
        ("a: " + "9" * 5000, "is too long"),
        ("a: 0b" + "1" * 5000, "is too long"),
        ("a: 1" + ":59" * 500, "is too long"),
        ("a: '" + "x" * 5_000_000 + "'", "longer than 4 MiB"),
        ("a: [", "is not YAML: line 1"),
        ("a: \x00", "is not YAML"),
        ("a: 1\n---\nb: 2\n", "is not YAML: line 2"),
        ("? [a]\n: b\n", "line 1"),
        ("!!int x", "tags (!!int)"),
        ("a: !!bool 3", "tags (!!bool)"),
        ("a: !!str [b]", "line 1"),
    ],
)
def test_yaml_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is looked at
        load_yaml(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_yaml_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert yaml_text.NODES == 200_000
    monkeypatch.setattr(yaml_text, "NODES", 1000)
    assert len(load_yaml("a: [" + "1," * 997 + "]")["a"]) == 997  # with the mapping, its key and the list 1,000
    with pytest.raises(ValueError, match="more than 1,000 values"):
        load_yaml("a: [" + "1," * 998 + "]")


def test_levels_of_yaml_up_to_the_bound_are_taken() -> None:
    assert load_yaml("[" * YAML_DEPTH + "]" * YAML_DEPTH)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("NaN", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("1e400", "too large"),
        ("9" * 5000, "has 5000 digits"),
        ('{"a": 1, "b": 2, "a": 3}', "'a' is given twice"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 100 + "]" * 100, "nested too deeply"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested too deeply"),
    ],
)
def test_json_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is looked at
        load_json(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 200


def test_plain_json_is_what_it_was() -> None:
    found = {"a": [1, -2.5e10, True, None, "x"], "b": {"c": {}}, "d": 2**70}
    assert load_json(json.dumps(found).encode()) == found
    assert load_json("[" * DEPTH + "]" * DEPTH)
    with pytest.raises(json.JSONDecodeError):
        load_json("[1,")


@pytest.mark.parametrize(
    "value", ["x" * 10**6, list(range(10**5)), {n: n for n in range(10**5)}, [[["x"] * 99] * 99] * 99, [10**5000]]
)
def test_what_is_shown_is_short(value: object) -> None:
    assert len(shown(value)) <= 100
    assert len(cut("y" * 1000, 60)) == 60


def test_what_is_shown_is_whole_where_it_is_short() -> None:
    assert shown({"a": [1, "b"]}) == "{'a': [1, 'b']}"
    assert shown("x" * 90) == repr("x" * 90)


@pytest.mark.parametrize("text", ["-5", "nan", "inf", "1e400d", "1e-9", "1e13", "5 parsecs", "", "1" * 5000, "1e", "٣"])
def test_durations_that_nobody_can_mean(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_duration_s(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["-5", "nan", "0", "1e3", "1" * 5000, "5PiB", "."])
def test_sizes_that_nobody_can_mean(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_memory_mib(text)
    assert len(str(caught.value)) < 200


def test_every_number_of_a_job_has_bounds_and_the_schema_says_them() -> None:
    def bounded(schema: dict[str, object]) -> bool:
        kind = schema.get("type")
        if kind in ("integer", "number"):
            return {"minimum", "maximum"} <= schema.keys()
        inner = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]  # type: ignore[misc]
        return all(map(bounded, inner))

    fields = JobSpec.model_json_schema()["properties"]
    assert [name for name, schema in fields.items() if not bounded(schema)] == []


def test_numbers_of_an_old_store_are_brought_within_bounds() -> None:
    old = {
        "command": ["a"],
        "estimate": 1e17,
        "time_limit": 1e300,
        "grace": -1.0,
        "cpus": 1e-9,
        "retries": 10**9,
        "priority": -(10**12),
        "memory": 2**60,
        "gpus": 1,
    }
    spec = JobSpec.model_validate(within_bounds(old))
    assert (spec.estimate, spec.time_limit, spec.grace, spec.retries) == (1e9, 1e9, 0.0, 1000)
    assert within_bounds({"gpus": 2, "estimate": None, "hold": True}) == {"gpus": 2, "estimate": None, "hold": True}
