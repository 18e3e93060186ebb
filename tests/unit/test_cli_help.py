"""Help, names that were mistyped, and names of before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpuloom.cli.groups import Group
from gpuloom.cli.main import cli
from gpuloom.cli.outputs import Overwrite
from gpuloom.core.words import are, did_you_mean, plural
from gpuloom.policies.registry import policy_ids


def groups(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Group]]:
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups(command, (*path, name))


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for where, one in groups(group, path):
        context = click.Context(one)
        for name in one.list_commands(context):
            command = one.get_command(context, name)
            assert command is not None
            yield (*where, name), command


@pytest.mark.parametrize(("path", "group"), list(groups()), ids=lambda x: " ".join(x) if isinstance(x, tuple) else "")
def test_each_command_is_one_whole_line_of_80_columns(path: tuple[str, ...], group: click.Group) -> None:
    shown = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80, env={"COLUMNS": "80"}).output
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert isinstance(group, Group)
    listed = [line for _, rows in group.summaries(click.Context(group)) for line in rows]
    assert {name for name, _ in listed} == set(group.list_commands(click.Context(group)))
    for name, text in listed:
        assert any(line.split() == [name, *text.split()] for line in lines), name


def test_commands_stand_under_titles() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output
    live, simulate = shown.index("Run jobs (live)"), shown.index("Simulate (")
    assert live < shown.index("  submit ") < simulate < shown.index("  compare ")
    assert "Administer" in shown
    assert "Share one GPU" in shown
    assert "_GPULOOM_COMPLETE=bash_source" in shown


def test_completion_lists_commands_without_importing_them() -> None:
    found = cli.shell_complete(click.Context(cli), "su")
    assert [(item.value, item.help) for item in found] == [
        ("submit", "Submit a command, a script, or the jobs of a YAML file."),
        ("suspend", "Have running jobs leave their GPUs until they are resumed."),
    ]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["submti"], "submit"),
        (["Submit"], "submit"),
        (["ps"], "ls"),
        (["squeue"], "ls"),
        (["kill", "3"], "cancel"),
        (["sbatch", "job.sh"], "submit"),
        (["profiles", "lst"], "ls"),
        (["gpus", "V10"], "V100"),
        (["share", "profiles", "show", "resnet5"], "resnet50"),
        (["db", "bakcup"], "backup"),
        (["share", "docter"], "doctor"),
        (["ls", "--state", "runing"], "running"),
        (["simulate", "no.csv", "--cluster", "1x8", "--schedule", "event"], "events"),
        (["policies", "tiresia"], "tiresias"),
        (["simulate", "no.csv", "--cluster", "1x8", "--policy", "weav"], "weave"),
        (["simulate", "no.csv", "--cluster", "1x8", "--policy", "tiresias:treshholds=3"], "thresholds"),
        (["trace", "show", "pyproject.toml", "--format", "phily"], "philly"),
        (["compare", "no.csv", "--cluster", "1x8", "--polices", "fifo"], "--policies"),
    ],
)
def test_what_was_mistyped_is_answered_with_what_is_close(words: list[str], meant: str) -> None:
    found = CliRunner().invoke(cli, words)
    assert found.exit_code != 0
    said = found.output + str(found.exception)
    assert f"id you mean '{meant}'?" in said


def test_what_is_like_nothing_lists_what_there_is() -> None:
    found = CliRunner().invoke(cli, ["db", "xyzzy"])
    assert found.exit_code == 2
    assert "commands: backup, check, restore" in found.output


def test_one_verb_lists_and_the_old_one_works() -> None:
    for path, group in groups():
        names = group.list_commands(click.Context(group))
        assert "list" not in names, path
    for path in (("profiles",), ("policy",), ("share", "profiles")):
        assert CliRunner().invoke(cli, [*path, "list", "--help"]).exit_code == 0
    assert "profiles ls" in CliRunner().invoke(cli, ["profiles", "list", "--help"]).output


def test_one_option_replaces_what_is_there_and_the_old_ones_work(tmp_path: Path) -> None:
    found = []
    for path, command in commands():
        for parameter in command.params:
            if {"--force", "--replace", "--overwrite"} & set(parameter.opts):
                assert isinstance(parameter, Overwrite), path
                found.append(path)
                shown = CliRunner().invoke(cli, [*path, "--help"]).output
                assert "--overwrite" in shown
                assert "--force" not in shown
                assert "--replace" not in shown
    assert len(found) >= 7
    file = tmp_path / "jobs.csv"
    made = ["trace", "generate", "--jobs", "2", "--gpus", "4", "--output", str(file)]
    assert CliRunner().invoke(cli, made).exit_code == 0
    again = CliRunner().invoke(cli, made)
    assert "--overwrite replaces it" in str(again.exception)
    for old in ("--force", "--replace", "--overwrite"):
        assert CliRunner().invoke(cli, [*made, old]).exit_code == 0


def test_words() -> None:
    assert (plural(1, "job"), plural(0, "job"), plural(2000, "job")) == ("1 job", "0 jobs", "2,000 jobs")
    assert plural(2, "policy", "policies") == "2 policies"
    assert (are(1), are(0), are(2, "GPU"), are(1, "GPU")) == ("1 is", "0 are", "2 GPUs are", "1 GPU is")
    assert did_you_mean("fif", ["fifo", "sjf"]) == "; did you mean 'fifo'?"
    assert did_you_mean("v100", ["V100", "A100"]) == "; did you mean 'V100'?"
    assert did_you_mean("xyzzy", ["fifo"]) == ""


def test_the_list_of_policies_is_one_line_each_on_80_columns() -> None:
    from io import StringIO

    from rich.console import Console

    from gpuloom.cli.live_tables import rich_table
    from gpuloom.cli.policies import COLUMNS, describe
    from gpuloom.policies.registry import BUILT_IN, policy_class

    rows = [describe(policy_class(name), name) for name in BUILT_IN]
    for width in (80, 130, 200):
        out = StringIO()
        Console(file=out, width=width, highlight=False).print(rich_table(COLUMNS, rows, width))
        lines = out.getvalue().splitlines()
        assert len(lines) == len(rows) + 1
        assert max(map(len, lines)) <= width
        assert "…" not in out.getvalue(), width
    shown = CliRunner().invoke(cli, ["policies", "tiresias"]).output
    assert "thresholds = 3250/7200" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert len(CliRunner().invoke(cli, ["policies"]).output.splitlines()) == len(policy_ids()) + 3


@pytest.mark.parametrize(
    ("policy", "models", "shares"),
    [
        ("elastic", "tells them apart", "no"),
        ("elastic:literal", "are all equally fast to it", "no"),
        ("elastic:literal;base=hlas", "tells them apart", "no"),
        ("gavel", "tells them apart", "with packed"),
        ("gavel:packed", "tells them apart", "yes"),
        ("max_min_fairness_packed", "tells them apart", "yes"),
    ],
)
def test_a_policy_is_told_as_it_is_with_its_parameters(policy: str, models: str, shares: str) -> None:
    shown = CliRunner().invoke(cli, ["policies", policy]).output
    assert f"GPU models:    {models}\n" in shown
    assert f"shares GPUs:   {shares}\n" in shown


def test_gavel_is_listed_as_one_that_shares_gpus_with_a_parameter() -> None:
    rows = json.loads(CliRunner().invoke(cli, ["policies", "--json"]).output)
    with_one = {row["id"]: row["sharing_with"] for row in rows if row["sharing_with"]}
    assert with_one == {"gavel": "packed"}
    packed = json.loads(CliRunner().invoke(cli, ["policies", "gavel:packed", "--json"]).output)
    assert (packed["sharing"], packed["sharing_with"]) == (True, "")


def test_every_policy_is_told_within_80_columns() -> None:
    for name in policy_ids():
        shown = CliRunner().invoke(cli, ["policies", name]).output.splitlines()
        assert max(map(len, shown)) <= 92, name  # what it needs to know is one line


def test_a_file_that_can_not_be_written_is_told_before_the_work_by_its_own_name(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        cli, ["trace", "generate", "--gpus", "4", "--jobs", "2", "-o", str(tmp_path / "no" / "t.csv")]
    )
    assert str(found.exception).endswith(f"the folder {tmp_path / 'no'} does not exist")
