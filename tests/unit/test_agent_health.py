"""What follows from looks at a machine: states of GPUs, flags of jobs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpuloom.agent.health import Changes, Flag, Health, HealthSettings
from gpuloom.agent.sample import Finding, NodeRates, RunOnNode, Sample
from gpuloom.agent.xid import KNOWN, PASSING, PROGRAM, RESET, xid_text
from gpuloom.core.job import RESET_WORDS, Gpu, NodeRecord
from gpuloom.core.usage import RunUsage

RATES = NodeRates(None, 0.0, 0.0, 0.0, None, None, None)
NODE = NodeRecord("n", (Gpu(0, "GPU-a", "A100"), Gpu(1, "GPU-b", "A100")))
SLOTS = NodeRecord("n", (Gpu(0, "cpu-0", "CPU"),), kind="cpu")
RUNS = {"1.1": RunOnNode(10, 1, (0,)), "2.1": RunOnNode(20, 1, (1,))}


class Watch:
    """Health under looks 5 s apart."""

    def __init__(self, node: NodeRecord = NODE, *, settings: HealthSettings | None = None, **more: object) -> None:
        self.health = Health(node, settings, **more)  # type: ignore[arg-type]
        self.at_s = 1000.0
        self.gpus = {gpu.index: gpu for gpu in node.gpus}

    def look(
        self,
        *findings: Finding,
        xids: tuple[tuple[int, int], ...] = (),
        usage: dict[str, RunUsage] | None = None,
        runs: dict[str, RunOnNode] | None = None,
        times: int = 1,
        step_s: float = 5.0,
    ) -> Changes:
        for _ in range(times):
            self.at_s += step_s
            sample = Sample(self.at_s, RATES, runs=usage or {}, findings=findings, xids=xids)
            changes = self.health.note(sample, RUNS if runs is None else runs)
            self.gpus.update({gpu.index: gpu for gpu in changes.gpus})
        return changes

    def pass_s(self, seconds: float, *findings: Finding) -> None:
        self.look(*findings, times=int(seconds / 5))

    def state(self, gpu: int = 0) -> str:
        return self.gpus[gpu].state


def stranger(pid: int = 77, patience: int = 1) -> Finding:
    return Finding("foreign", 0, f"pid-{pid}", f"used by process {pid} (python) of user eve", patience=patience)


def condition(code: str, text: str = "", *, needs_reset: bool = False) -> Finding:
    return Finding("unhealthy", 0, code, text or f"is {code}", needs_reset=needs_reset)


def test_a_quiet_machine_changes_nothing() -> None:
    watch = Watch()
    assert watch.look(times=100) == Changes()


def test_strangers_are_seen_at_once_and_forgotten_after_some_looks_without() -> None:
    watch = Watch()
    (gpu,) = watch.look(stranger()).gpus
    assert gpu == replace(NODE.gpus[0], state="foreign", reason=stranger().text, since_s=1005.0)
    # Others come and go: no change is told for that.
    assert watch.look(stranger(78)) == Changes()
    assert watch.look(times=2) == Changes()
    assert watch.look(stranger(79)) == Changes()
    assert watch.look(times=2) == Changes()
    assert watch.look().gpus == (NODE.gpus[0],)


def test_what_may_pass_by_itself_must_be_seen_some_times_in_a_row() -> None:
    watch = Watch()
    for _ in range(5):
        assert watch.look(stranger(patience=3), times=2) == Changes()
        assert watch.look() == Changes()
    watch.look(stranger(patience=3), times=3)
    assert watch.state() == "foreign"


def test_a_condition_isolates_until_it_has_been_gone_for_a_while() -> None:
    watch = Watch()
    hot = condition("thermal", "near 92 °C")
    (gpu,) = watch.look(hot).gpus
    assert (gpu.state, gpu.reason, gpu.since_s) == ("unhealthy", "near 92 °C", 1005.0)
    watch.pass_s(3600, hot)
    watch.pass_s(595)
    assert watch.state() == "unhealthy"
    watch.look(hot)  # it flickers: the wait begins anew
    watch.pass_s(595)
    assert watch.state() == "unhealthy"
    watch.pass_s(10)
    assert watch.gpus[0] == NODE.gpus[0]
    assert watch.state(1) == "ok"


@pytest.mark.parametrize("xid", sorted(RESET))
def test_a_hardware_error_isolates_until_a_person_or_a_reset(xid: int) -> None:
    watch = Watch()
    watch.look(xids=((0, xid),))
    watch.look(times=1440, step_s=60.0)
    assert watch.state() == "unhealthy"
    assert watch.gpus[0].reason.startswith(f"XID {xid} ({KNOWN[xid]})")
    assert watch.gpus[0].reason.endswith(RESET_WORDS)
    assert watch.health.clear([1]) == ()
    assert watch.health.clear([0]) == (NODE.gpus[0],)
    assert watch.look(times=10).gpus == ()


@pytest.mark.parametrize("xid", sorted(PASSING))
def test_an_error_that_the_gpu_contained_isolates_for_a_while(xid: int) -> None:
    watch = Watch()
    watch.look(xids=((0, xid),))
    assert watch.state() == "unhealthy"
    watch.pass_s(605)
    assert watch.state() == "ok"


@pytest.mark.parametrize("xid", [*sorted(PROGRAM), 63, 154, 9999])
def test_an_error_of_the_program_leaves_the_gpu_and_is_told_to_the_job(xid: int) -> None:
    watch = Watch()
    watch.look()
    changes = watch.look(xids=((0, xid),))
    assert changes.gpus == ()
    assert [(flag.run, flag.flag) for flag in changes.flags] == [("1.1", "gpu_error")]
    assert f"XID {xid}" in changes.flags[0].text
    assert ("error in the program" in changes.flags[0].text) == (xid in PROGRAM)
    assert watch.look(xids=((0, xid),)).flags == ()  # said already


def test_an_error_is_told_to_the_job_that_it_ended_and_not_to_the_next_one() -> None:
    watch = Watch()
    watch.look(runs={"1.1": RUNS["1.1"]})
    changes = watch.look(xids=((0, 31),), runs={"5.1": RunOnNode(50, 1, (0,))})
    assert [flag.run for flag in changes.flags] == ["1.1"]


@pytest.mark.parametrize("evidence", ["lost", "recovery"])
def test_a_reset_that_was_seen_ends_the_isolation(evidence: str) -> None:
    watch = Watch()
    watch.look(xids=((0, 79),))
    watch.pass_s(600, condition(evidence))
    watch.pass_s(595)
    assert watch.state() == "unhealthy"
    watch.pass_s(10)
    assert watch.state() == "ok"


def test_a_gpu_that_only_did_not_answer_was_not_reset() -> None:
    watch = Watch()
    watch.look(xids=((0, 48),))
    watch.pass_s(60, condition("unreachable"))
    watch.pass_s(3600)
    assert watch.state() == "unhealthy"


def test_reasons_are_told_together_the_worst_first() -> None:
    watch = Watch()
    watch.look(condition("thermal", "hot"), stranger(), xids=((0, 48),))
    assert watch.gpus[0].reason == f"XID 48 ({KNOWN[48]}); hot; {RESET_WORDS}"
    (gpu,) = watch.health.clear()
    assert watch.look(stranger()) == Changes()
    assert (gpu.state, gpu.reason) == ("foreign", stranger().text)  # a person's word does not make strangers go away


def test_a_persons_word_holds_until_something_new_happens() -> None:
    watch = Watch()
    remap = condition("remap", needs_reset=True)
    watch.look(remap)
    watch.gpus.update({gpu.index: gpu for gpu in watch.health.clear()})
    watch.pass_s(600, remap)
    watch.look(condition("unreachable"))  # what can't be seen for a moment is not over
    watch.pass_s(700, remap)
    assert watch.state() == "ok"
    watch.look(remap, xids=((0, 95),))
    assert watch.state() == "unhealthy"
    watch.health.clear()
    watch.look(times=2)
    watch.look(remap)  # it had ended: this is new
    assert watch.state() == "unhealthy"


def test_a_scheduler_that_starts_anew_goes_on_from_the_record() -> None:
    first = Watch()
    first.look(stranger(), xids=((1, 79),))
    node = replace(NODE, gpus=(first.gpus[0], first.gpus[1]))

    watch = Watch(node)
    watch.at_s = first.at_s + 5000
    assert watch.look(times=2) == Changes()
    assert watch.look().gpus == (NODE.gpus[0],)
    watch.pass_s(3600)
    assert watch.state(1) == "unhealthy"

    rebooted = Watch(node, booted_s=first.at_s + 100)
    rebooted.at_s = first.at_s + 5000
    rebooted.look(times=3)
    assert (rebooted.state(0), rebooted.state(1)) == ("ok", "ok")

    passing = Watch()
    passing.look(condition("thermal"))
    again = Watch(replace(NODE, gpus=(passing.gpus[0], NODE.gpus[1])))
    again.at_s = passing.at_s
    again.pass_s(590)
    assert again.state() == "unhealthy"
    again.pass_s(15)
    assert again.state() == "ok"


def test_a_clock_that_was_set_back_keeps_no_gpu_for_long() -> None:
    watch = Watch()
    watch.look(condition("thermal"))
    watch.at_s -= 100_000
    watch.pass_s(610)
    assert watch.state() == "ok"


def test_notes_are_shown_and_change_nothing() -> None:
    watch = Watch()
    changes = watch.look(Finding("note", 1, "pending", "memory is disabled"), xids=((1, 63),))
    assert changes.gpus == ()
    assert changes.notes == {1: ("memory is disabled", f"XID 63 ({KNOWN[63]})")}


def use(gpu: float | None = None, cores: float | None = None) -> dict[str, RunUsage]:
    return {"1.1": RunUsage("1.1", cpu_cores=cores, gpu_utilization=gpu)}


def test_an_idle_job_is_flagged_with_numbers_and_unflagged_when_busy() -> None:
    watch = Watch()
    runs = {"1.1": RunOnNode(10, 1, (0, 1))}
    assert watch.look(usage=use(2.0), runs=runs, times=353).flags == ()
    flags: list[Flag] = []
    for _ in range(8):
        flags += watch.look(usage=use(2.0), runs=runs).flags
    assert flags == [Flag("1.1", "idle", "idle: 2.0 % GPU use on average in the last 30m 00s, while it holds 2 GPUs")]
    assert watch.look(usage=use(2.0), runs=runs, times=500).flags == ()
    flags = []
    for _ in range(12):
        flags += watch.look(usage=use(90.0), runs=runs).flags
    assert flags == [Flag("1.1", "idle", "")]
    # After that a whole window of idleness is needed again.
    assert all(watch.look(usage=use(0.0), runs=runs).flags == () for _ in range(340))
    assert any(watch.look(usage=use(0.0), runs=runs).flags for _ in range(20))


def test_short_bursts_do_not_hide_an_idle_job_and_pauses_do_not_make_one() -> None:
    watch = Watch()
    told: list[Flag] = []
    for _ in range(40):  # 30 % for 5 s in every minute: 2.5 % on average
        told += watch.look(usage=use(30.0)).flags
        for _ in range(11):
            told += watch.look(usage=use(0.0)).flags
    assert [flag.text != "" for flag in told][:1] == [True]

    busy = Watch()
    for _ in range(40):  # loads data for 20 s, trains for 40 s
        assert busy.look(usage=use(0.0), times=4).flags == ()
        assert busy.look(usage=use(90.0), times=8).flags == ()


def test_cpu_slots_are_idle_below_a_hundredth_of_a_core() -> None:
    watch = Watch(SLOTS, settings=HealthSettings(idle_s=60.0))
    assert watch.look(usage=use(cores=0.02), times=50).flags == ()
    watch = Watch(SLOTS, settings=HealthSettings(idle_s=60.0))
    flags = [flag for _ in range(50) for flag in watch.look(usage=use(cores=0.004)).flags]
    text = "idle: 0.4 % of a CPU core used on average in the last 1m 00s, while it holds 1 CPU slot"
    assert flags == [Flag("1.1", "idle", text)]


def test_frozen_unknown_and_unwatched_time_is_not_idleness() -> None:
    settings = HealthSettings(idle_s=60.0)
    frozen = {"1.1": RunOnNode(10, 1, (0,), frozen=True)}
    watch = Watch(settings=settings)
    assert watch.look(usage=use(0.0), runs=frozen, times=100).flags == ()
    assert watch.look(usage=use(None), times=100).flags == ()
    assert watch.look(usage=use(0.0), times=3, step_s=400.0).flags == ()
    assert watch.look(usage=use(0.0), times=3, step_s=-100.0).flags == ()
    assert Watch(settings=replace(settings, idle_s=0.0)).look(usage=use(0.0), times=500).flags == ()


def test_a_flag_goes_with_its_run_and_survives_a_scheduler() -> None:
    watch = Watch(settings=HealthSettings(idle_s=60.0), flags={"1.1": {"idle": "idle: …"}})
    assert watch.look(usage=use(0.0)).flags == ()
    assert watch.look(usage=use(80.0)).flags == (Flag("1.1", "idle", ""),)
    watch.look(usage=use(0.0), times=30)
    assert watch.look(runs={}).flags == (Flag("1.1", "idle", ""),)
    assert watch.look(runs={}).flags == ()


def test_the_page_lists_the_numbers_that_take_a_gpu_out_of_service() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "monitor.md").read_text()
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| XID ")]
    assert [[int(number) for number in re.findall(r"\d+", row)] for row in rows] == [list(RESET), list(PASSING)]
    assert {13, 31, 43, 45} <= PROGRAM.keys()  # those that the page names
    assert len(KNOWN) == len(RESET) + len(PASSING) + len(PROGRAM) + len({63, 154})  # none stands twice
    assert xid_text(79) == "XID 79 (GPU has fallen off the bus)"
    assert xid_text(7) == "XID 7"
