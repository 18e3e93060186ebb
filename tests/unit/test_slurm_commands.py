"""How Slurm's commands are called, what their failures say, and the script of a pilot."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence

import pytest

from gpuloom.slurm.commands import Done, Slurm, SlurmError, missing_commands, run_command
from gpuloom.slurm.parse import JOB_FORMAT, NODE_FORMAT
from gpuloom.slurm.script import Request, options_of, script_of, step_of


class Fake:
    """Answers by the command's name, and by whether JSON is asked for."""

    def __init__(self, answers: Mapping[str, Done]) -> None:
        self.answers, self.calls, self.envs = answers, list[Sequence[str]](), list[Mapping[str, str]]()

    def __call__(self, command: Sequence[str], text: str, env: Mapping[str, str], limit_s: float) -> Done:
        self.calls.append(command)
        self.envs.append(env)
        return self.answers[command[0] + (" --json" if "--json" in command else "")]


ROW = "7|RUNNING|None|n0|1795395096|1:00:00|N/A|1|pilot\n8|RUNNING|None|n1|1795395096|1:00:00|N/A|1|other\n"


def test_what_slurm_refuses_is_told_in_its_words() -> None:
    words = "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed\n"
    slurm = Slurm(env={}, run=Fake({"sbatch": Done(1, "", words)}))
    with pytest.raises(SlurmError, match=r"`sbatch --parsable .*--partition=nope` failed: sbatch: error: invalid part"):
        slurm.submit("#!/bin/sh\n", ["--partition=nope"], {})


def test_a_job_is_submitted_without_the_variables_of_the_allocation_around_it() -> None:
    fake = Fake({"sbatch": Done(0, "12;cluster\n", "")})
    env = {"SLURM_JOB_ID": "5", "SLURM_CONF": "/c", "PATH": "/bin"}
    assert Slurm(env=env, run=fake).submit("#!/bin/sh\n", ["-N2"], {"TOKEN": "t"}) == 12
    assert fake.envs == [{"SLURM_CONF": "/c", "PATH": "/bin", "TOKEN": "t"}]
    assert all(word != "t" and "TOKEN" not in word for word in fake.calls[0]), "no secret on a command line"


def test_an_answer_of_sbatch_that_is_no_number_is_told() -> None:
    with pytest.raises(SlurmError, match="not the number of a job"):
        Slurm(env={}, run=Fake({"sbatch": Done(0, "hello\n", "")})).submit("", [], {})


def test_without_json_tables_are_read_and_json_is_not_asked_again() -> None:
    fake = Fake({"squeue --json": Done(1, "", "unrecognized option '--json'"), "squeue": Done(0, ROW, "")})
    slurm = Slurm(env={}, run=fake)
    assert [job.id for job in slurm.jobs("pilot")] == [7]
    assert [job.id for job in slurm.jobs("pilot")] == [7]
    assert ["--json" in call for call in fake.calls] == [True, False, False]
    assert fake.envs[0]["SLURM_TIME_FORMAT"] == "%s"


@pytest.mark.parametrize(
    ("said", "all_of_it"),
    [
        ("Configuration data\nProctrackType           = proctrack/cgroup\nPrologFlags = x\n", True),
        ("ProctrackType           = proctrack/linuxproc\n", False),
        ("", False),
    ],
)
def test_whether_slurm_ends_all_processes_of_an_allocation(said: str, all_of_it: bool) -> None:
    fake = Fake({"scontrol": Done(0, said, "")})
    assert Slurm(env={}, run=fake).ends_all() is all_of_it
    assert fake.calls == [["scontrol", "show", "config"]]


def test_without_slurmctld_json_is_asked_again_later() -> None:
    down = Done(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    empty = json.dumps({"errors": [{"error": "Unspecified error"}], "jobs": []})
    fake = Fake({"squeue --json": Done(0, empty, ""), "squeue": down})
    slurm = Slurm(env={}, run=fake)
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        slurm.jobs("pilot")
    fake.answers = {"squeue --json": Done(0, json.dumps({"jobs": []}), "")}
    assert slurm.jobs("pilot") == []


def test_a_command_that_gives_no_answer_or_is_not_there_is_told() -> None:
    slurm = Slurm(run=lambda *args: run_command(["sleep", "9"], "", {"PATH": "/bin:/usr/bin"}, 0.05))
    with pytest.raises(SlurmError, match=r"`squeue .*gave no answer within 0.05 s"):
        slurm.job(1)
    slurm = Slurm(run=lambda *args: run_command(["no-such-program"], "", {}, 5.0))
    with pytest.raises(SlurmError, match="can't be run: No such file"):
        slurm.job(1)


def request_of(**changes: object) -> Request:
    return Request(
        **{"name": "gpuloom-1", "url": "https://head:7411", "python": "/env/bin/python", "gpus": 4, **changes}
    )  # type: ignore[arg-type]


def test_options_of_a_pilot() -> None:
    found = options_of(request_of(partition="gpu", account="a", qos="q", life_s=3601.0, options=["--exclusive"]), 2)
    assert {"--nodes=2", "--gpus-per-node=4", "--time=61", "--partition=gpu", "--account=a", "--qos=q"} <= set(found)
    assert found[-1] == "--exclusive", "what the user says goes before what we say"
    assert "--no-requeue" in found, "Slurm would start it again by itself"
    slots = options_of(request_of(slots=True), 1)
    assert "--cpus-per-task=4" in slots
    assert not [word for word in slots if word.startswith(("--gpus", "--time", "--partition"))]


def test_the_script_is_one_that_a_shell_reads_and_holds_no_token() -> None:
    for text in (script_of(request_of()), step_of(request_of(slots=True, whole=False))):
        done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "umask 077" in script_of(request_of())
    assert '--name "$SLURMD_NODENAME-$SLURM_JOB_ID"' in step_of(request_of(whole=False))
    assert "--slots 4" in step_of(request_of(slots=True))


def test_a_command_gets_its_input_and_its_environment_and_no_other() -> None:
    shown = "cat; echo \"$A ${LEFT:-nothing}\" >&2; printf '\\377'; exit 3"
    found = run_command(["/bin/sh", "-c", shown], "in\n", {"A": "1", "PATH": "/bin:/usr/bin"}, 60.0)
    assert found == Done(3, "in\n\ufffd", "1 nothing\n")


def test_commands_of_slurm_that_are_not_here_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gpuloom.slurm.commands.shutil.which", lambda name: None if name in ("srun", "sinfo") else f"/bin/{name}"
    )
    assert missing_commands() == ["sinfo", "srun"]


NODES = "n0|idle|gpu:4|64|512000|gpu*\nn0|idle|gpu:4|64|512000|long\nn1|mixed|(null)|64|512000|cpu\n"


def test_each_question_has_its_command_line() -> None:
    fake = Fake(
        {
            "squeue": Done(0, ROW, ""),
            "sinfo --json": Done(1, "", "no such option"),
            "sinfo": Done(0, NODES, ""),
            "scancel": Done(0, "", ""),
        }
    )
    slurm = Slurm(env={"PATH": "/bin"}, run=fake)
    job = slurm.job(8)
    assert job is not None
    assert (job.id, job.name) == (8, "other"), "whatever else it prints"
    assert slurm.job(9) is None
    assert fake.calls[0] == ["squeue", "--states", "all", "-h", "-o", JOB_FORMAT, "--jobs", "8"]
    assert [node.name for node in slurm.nodes()] == ["n0", "n1"]
    assert [node.name for node in slurm.nodes("long")] == ["n0"]
    assert fake.calls[2:5] == [["sinfo", "--json"], *[["sinfo", "-h", "-N", "-o", NODE_FORMAT]] * 2]
    slurm.cancel(8)
    assert fake.calls[-1] == ["scancel", "--quiet", "8"]
    assert set(map(str, fake.envs)) == {"{'PATH': '/bin', 'SLURM_TIME_FORMAT': '%s'}"}


@pytest.mark.parametrize(("printed", "found"), [("long\ngpu*\ncpu\n", "gpu"), ("long\ncpu\n", None), ("", None)])
def test_the_partition_of_jobs_that_name_none(printed: str, found: str | None) -> None:
    fake = Fake({"sinfo": Done(0, printed, "")})
    assert Slurm(env={}, run=fake).default_partition() == found
    assert fake.calls == [["sinfo", "-h", "-o", "%P"]]


def test_its_version_in_its_own_words() -> None:
    assert Slurm(env={}, run=Fake({"sinfo": Done(0, "slurm 22.05.8\n", "")})).version() == "slurm 22.05.8"


def test_what_a_command_that_fails_prints_elsewhere_or_not_at_all_is_told() -> None:
    for done, words in ((Done(1, "on  the\nother\n", " \n"), "on the other"), (Done(3, "", ""), "exit code 3, and it")):
        with pytest.raises(SlurmError, match=f"`scancel --quiet 8` failed: {words}"):
            Slurm(env={}, run=Fake({"scancel": done})).cancel(8)
