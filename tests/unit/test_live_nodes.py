"""The scheduler with nodes that join: who runs where, and what becomes of jobs whose node is cut off, lost or back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fake_node import FakeMachine
from gpuloom.core.book import node_data
from gpuloom.core.job import EndReason, NodeSource, NodeState
from gpuloom.executors.port import Cause, RunExit, RunPhase
from gpuloom.live.submission.spec import job_spec
from gpuloom.store.errors import StoreError
from rehearsed_nodes import Cluster


def test_jobs_go_to_nodes_that_join_and_end_there() -> None:
    it = Cluster()
    one, two = it.submit({"gpus": 2}, {"gpus": 2})
    assert it.states(one, two) == ["running", "queued"]
    it.machines["a"] = FakeMachine("a")
    it.join("a")
    assert it.where(two) == ["a:0,1"]
    assert it.asked("a") == ["2.1"]
    spec = it.machines["a"].specs[it.machines["a"].ran[0]]
    assert (spec.gpus, spec.gpu_uuids, spec.peers[0].node) == ((0, 1), ("a-0", "a-1"), "a")
    it.machines["a"].end(spec.run, 0)
    it.turn()
    assert it.states(two) == ["finished"]
    assert it.machines["a"].acknowledged == [spec.run]


def test_the_jobs_of_a_lost_node_go_on_elsewhere_without_a_retry_used_up() -> None:
    it = Cluster("a", "b")
    held = it.submit({"gpus": 2}, {"gpus": 4}, {"gpus": 4})
    lost = next(job for job in held if it.where(job) == ["a:0,1,2,3"])
    (waits,) = it.submit({"gpus": 1, "retries": 0})
    it.lose("a")
    view = it.service.show(lost)
    assert (view["job"]["state"], view["job"]["retries_left"]) == ("queued", 0)
    last = view["attempts"][-1]
    assert (last["reason"], last["message"]) == ("node", "nothing was heard of it for 20 s")
    assert it.nodes()["a"] == ("down", "nothing was heard of it for 20 s")
    assert it.states(waits) == ["queued"], "the lost one was there first"
    it.join("a")
    assert it.nodes()["a"] == ("up", "")
    assert it.where(lost) == ["a:0,1,2,3"]
    assert len(it.service.show(lost)["attempts"]) == 2


def test_what_a_lost_node_still_runs_when_it_is_back_ends_before_anything_starts_there() -> None:
    it = Cluster("a")
    (filler, job) = it.submit({"gpus": 2}, {"gpus": 4})
    run = it.machines["a"].ran[0]
    it.machines["a"].obedient = False
    it.ports["a"].cut = True
    it.lose("a")
    assert it.states(filler, job) == ["running", "queued"]
    it.machines["a"].stops.clear()
    it.join("a")
    assert run in it.machines["a"].stops, "it is told to end"
    if run in it.machines["a"].alive():
        assert it.machines["a"].ran == [run], "nothing starts beside it"
        it.machines["a"].end(run, None, signal=9)
        it.turn()
    assert it.asked("a") == [f"{job}.1", f"{job}.2"]


def test_nothing_starts_on_a_node_that_is_cut_off_and_what_runs_there_goes_on() -> None:
    it = Cluster("a")
    filler, job = it.submit({"gpus": 2}, {"gpus": 3})
    it.scheduler.arrivals.cut("a", "its link is cut")
    (late,) = it.submit({"gpus": 1})
    assert it.states(filler, job, late) == ["running", "running", "queued"]
    seen = next(view for view in it.service.nodes() if view["name"] == "a")
    assert (seen["cut"], seen["shut"]) == ("its link is cut", "its link is cut")
    assert it.service.why(late)["text"].endswith(" Nothing can be started now on a: its link is cut.")
    it.scheduler.arrivals.back("a")
    it.turn()
    assert it.where(late) == ["a:3"]


def test_a_node_on_which_something_does_not_end_says_why_it_is_not_back() -> None:
    it = Cluster("a")
    arrivals, why = it.scheduler.arrivals, "processes of its runs don't end: 7 (python, state D) of run 1.1"
    arrivals.stuck("a", why)
    arrivals.stuck("no such node", why)
    assert next(view["cut"] for view in it.service.nodes() if view["name"] == "a") == why
    it.lose("a")
    assert it.nodes()["a"] == ("down", "nothing was heard of it for 20 s")
    arrivals.stuck("a", why)
    written = it.scheduler.ledger.writes
    arrivals.stuck("a", why)
    assert it.nodes()["a"] == ("down", why)
    assert it.scheduler.ledger.writes == written, "once"
    it.join("a")
    assert it.nodes()["a"] == ("up", "")


def test_jobs_go_to_other_nodes_than_one_that_is_cut_off() -> None:
    it = Cluster("a", "b")
    it.scheduler.arrivals.cut("a", "its link is cut")
    jobs = it.submit({"gpus": 2}, {"gpus": 2}, {"gpus": 4}, {"gpus": 9})
    assert it.states(*jobs) == ["running", "running", "queued", "queued"]
    assert it.where(*jobs[:2]) == ["here:0,1", "b:0,1"]
    aside = "Nothing can be started now on a: its link is cut."
    assert it.service.why(jobs[2])["text"] == f"It needs 4 GPUs at once and 2 are free. {aside}"
    whole = "It needs 9 GPUs; 6 of 10 could be given to it, as 4 are on nodes where nothing can be started now."
    assert it.service.why(jobs[3])["text"] == f"{whole} {aside}"
    for name in ("here", "b"):
        it.service.set_node(name, NodeState.CORDONED)
    (last,) = it.submit({"gpus": 1})
    none = "No GPU in service accepts new jobs (here is cordoned, a: its link is cut, b is cordoned)."
    assert it.service.why(last)["text"] == none
    it.scheduler.arrivals.back("a")
    it.turn()
    assert it.where(jobs[2]) == ["a:0,1,2,3"]


def test_a_head_that_is_started_anew_waits_for_its_nodes_and_takes_up_what_runs_there() -> None:
    it = Cluster("a", "b")
    jobs = it.submit({"gpus": 2}, {"gpus": 4}, {"gpus": 4})
    on = {it.where(job)[0].partition(":")[0]: job for job in jobs}
    it.restart(orderly=False)
    assert it.states(*jobs) == ["running"] * 3, "they go on, as far as anybody knows"
    why = "it has not come back since the scheduler began"
    assert {view["name"]: view["shut"] for view in it.service.nodes()} == {"here": "", "a": why, "b": why}
    (late,) = it.submit({"gpus": 4})
    ended = it.machines["a"].ran[0]
    it.machines["a"].end(ended, 3)
    it.join("a")
    assert it.states(on["a"], on["b"], late) == ["failed", "running", "running"]
    it.lose("b", "it did not come back")
    assert it.states(on["b"]) == ["queued"]
    assert it.service.show(on["b"])["attempts"][-1]["reason"] == "node"
    assert it.asked("b") == [f"{on['b']}.1"]


def test_a_run_that_its_node_forgot_while_the_head_was_away_is_lost() -> None:
    it = Cluster("a")
    _, job = it.submit({"gpus": 2}, {"gpus": 4, "retries": 0})
    it.restart(orderly=False)
    it.machines["a"].reboot()
    it.join("a")
    attempts = it.service.show(job)["attempts"]
    assert [one["reason"] for one in attempts] == ["lost", None]
    assert "restarted" in attempts[0]["message"]
    assert it.states(job) == ["running"]


def test_a_node_that_wants_to_leave_is_drained_and_comes_back_open() -> None:
    it = Cluster("a")
    _, job = it.submit({"gpus": 2}, {"gpus": 4})
    it.scheduler.arrivals.closes("a", "it leaves")
    it.turn()
    assert it.nodes()["a"] == ("draining", "it leaves")
    assert it.states(job) == ["queued"]
    assert it.service.show(job)["attempts"][-1]["reason"] == "node"
    it.scheduler.arrivals.left("a")
    it.turn()
    assert it.nodes()["a"] == ("down", "it left")
    it.join("a")
    assert (it.nodes()["a"], it.states(job)) == (("up", ""), ["running"])


@pytest.mark.parametrize(
    ("source", "moved", "stays"), [(NodeSource.JOINED, "queued", "running"), (NodeSource.SLURM, "queued", "queued")]
)
def test_who_cant_be_moved_is_told_to_save_where_the_allocation_ends(
    source: NodeSource, moved: str, stays: str
) -> None:
    it = Cluster("a")
    _, one, other = it.submit({"gpus": 2}, {"gpus": 2}, {"gpus": 2, "on_preempt": "never"})
    it.submit({"gpus": 2, "priority": 9})  # waits: nobody is stopped for it
    it.turn()
    node = it.scheduler.book.nodes["a"]
    on = {number: attempt.nodes for number, attempt in it.scheduler.book.attempts.items()}
    assert (on[one], on[other]) == (("a",), ("a",))
    it.scheduler.ledger.write([("node.changed", None, {"node": node_data(replace(node, source=source))})])
    it.scheduler.arrivals.leaves("a", "it is told to")
    it.turn()
    assert it.states(one, other) == [moved, stays]
    reasons = [it.service.show(job)["attempts"][-1]["reason"] for job in (one, other)]
    assert reasons == ["node", "node" if stays == "queued" else None]


def test_a_node_that_a_person_closed_stays_closed_when_it_joins_again() -> None:
    it = Cluster("a")
    it.tell(lambda: it.service.set_node("a", NodeState.CORDONED, reason="new disk"))
    it.join("a")
    assert it.nodes()["a"] == ("cordoned", "new disk")


def test_how_long_a_node_is_ours_is_recorded_and_shown() -> None:
    it = Cluster("a")
    it.scheduler.arrivals.ours_until("a", 1_000_900.0, "4711")
    it.turn()
    view = next(view for view in it.service.nodes() if view["name"] == "a")
    assert (view["source"], view["until_s"], view["engine_job"], view["address"]) == (
        "joined",
        1_000_900.0,
        "4711",
        "a",
    )
    it.restart(orderly=False)
    assert it.scheduler.book.nodes["a"].until_s == 1_000_900.0


def test_a_loss_that_the_store_can_not_take_is_written_once_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Cluster("a")
    _, job = it.submit({"gpus": 2}, {"gpus": 4})

    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(it.store, "append", full)
        it.scheduler.arrivals.lost("a", "gone")
        it.scheduler._turn()
        assert it.scheduler.book.nodes["a"].state is NodeState.UP
    it.now_s += 10.0
    it.turn()
    assert (it.nodes()["a"], it.states(job)) == (("down", "gone"), ["queued"])


def test_a_node_that_can_not_be_asked_keeps_nobody_else_from_starting() -> None:
    it = Cluster("a", "b")
    it.submit({"gpus": 2})
    it.ports["a"].broken = True
    specs = [job_spec({"command": ["train"], "workdir": "/", "gpus": 4}) for _ in range(2)]
    first, second = (jobs[0] for jobs in it.service.submit(specs, user="ann"))
    for _ in range(10):  # it never settles
        it.scheduler.post(lambda: None)
        it.scheduler._turn()
    asked = {it.where(job)[0].partition(":")[0]: job for job in (first, second)}
    assert it.states(asked["a"], asked["b"]) == ["starting", "running"]
    assert it.service.status()["executor"]["problem"]
    it.ports["a"].broken = False
    it.later(5.0)
    assert it.states(asked["a"]) == ["running"]
    assert it.asked("a") == [f"{asked['a']}.1"]


# -- gangs -------------------------------------------------------------------------------------------------------------


def gang_of(it: Cluster, gpus: int = 8, **more: Any) -> int:
    return it.submit({"gpus": gpus, **more})[0]


def test_a_gang_begins_once_every_member_is_prepared() -> None:
    it = Cluster("a", "b")
    for machine in it.machines.values():
        machine.prepares = False
    job = gang_of(it)
    assert it.states(job) == ["starting"]
    assert sorted(it.where(job)[0].split()) == ["a:0,1,2,3", "b:0,1,2,3"]
    runs = it.scheduler.book.attempts[job].runs
    nodes = [node for node, _ in it.scheduler.book.attempts[job].allocation]
    it.machines[nodes[0]].prepared(runs[0])
    it.turn()
    assert (it.asked("a"), it.asked("b")) == ([], [])
    it.machines[nodes[1]].prepared(runs[1])
    it.turn()
    assert it.states(job) == ["running"]
    members = it.service.show(job)["attempts"][0]["members"]
    assert [(one["rank"], one["node"], one["gpus"]) for one in members] == [
        (0, nodes[0], [0, 1, 2, 3]),
        (1, nodes[1], [0, 1, 2, 3]),
    ]
    assert all(one["pid"] for one in members)
    spec = it.machines[nodes[1]].specs[runs[1]]
    assert (spec.rank, [peer.node for peer in spec.peers], [peer.gpus for peer in spec.peers]) == (1, nodes, [4, 4])
    assert spec.hold


def test_a_gang_of_which_a_member_can_not_be_prepared_never_begins_and_goes_elsewhere() -> None:
    it = Cluster("a", "b", "c")
    full = RunExit(None, None, EndReason.NOT_STARTED, "no space left", 1.0, cause=Cause.EXECUTOR)
    it.machines["b"].refuses["*"] = full
    job = gang_of(it)
    last = it.service.show(job)["attempts"][0]
    assert (last["reason"], it.states(job)) == ("not_started", ["queued"])
    assert "no space left" in last["message"]
    assert [one["reason"] for one in last["members"]].count("not_started") >= 1
    assert it.asked("a") == it.asked("b") == it.asked("c") == []
    it.machines["b"].refuses.clear()
    it.later(120.0)
    assert it.states(job) == ["running"]


def test_one_member_s_failure_ends_the_gang_with_its_words() -> None:
    it = Cluster("a", "b")
    job = gang_of(it)
    attempt = it.scheduler.book.attempts[job]
    (master, _), (other, _) = attempt.allocation
    it.machines[other].logs[attempt.runs[1]] = b"loading\nCUDA error: device-side assert\n"
    it.machines[other].end(attempt.runs[1], 3)
    it.turn()
    view = it.service.show(job)
    assert (view["job"]["state"], view["job"]["exit_code"]) == ("failed", 3)
    assert view["job"]["message"].startswith(f"member 1 on {other}:")
    assert "device-side assert" in view["job"]["message"]
    assert [one["reason"] for one in view["attempts"][0]["members"]] == ["peer", "failed"]
    assert it.machines[master].stops[attempt.runs[0]][0] is EndReason.PEER
    assert it.scheduler.book.attempts == {}
    assert all(not machine.states for machine in it.machines.values()), "all that ended is acknowledged"


def test_a_gang_ends_well_with_its_master() -> None:
    it = Cluster("a", "b")
    job = gang_of(it)
    attempt = it.scheduler.book.attempts[job]
    for run, (node, _) in zip(attempt.runs, attempt.allocation, strict=True):
        it.machines[node].end(run, 0)
    it.turn()
    assert it.states(job) == ["finished"]
    assert [one["reason"] for one in it.service.show(job)["attempts"][0]["members"]] == ["finished"] * 2


def test_a_gang_whose_node_is_lost_waits_again_and_its_other_members_end() -> None:
    it = Cluster("a", "b")
    job = gang_of(it, retries=0)
    attempt = it.scheduler.book.attempts[job]
    (stays, _), (goes, _) = attempt.allocation
    it.lose(goes)
    view = it.service.show(job)
    assert (view["job"]["state"], view["attempts"][-1]["reason"]) == ("queued", "node")
    assert attempt.runs[0] in it.machines[stays].stops
    it.machines[goes].states.clear()
    it.join(goes)
    assert it.states(job) == ["running"]
    assert len(it.service.show(job)["attempts"]) == 2


def test_a_gang_goes_on_through_a_new_head_and_through_one_that_was_starting() -> None:
    it = Cluster("a", "b", "c")
    running = gang_of(it)
    it.machines["a"].prepares = it.machines["b"].prepares = it.machines["c"].prepares = False
    starting = gang_of(it, gpus=6)
    assert it.states(running, starting) == ["running", "starting"]
    before = [sorted(machine.ran) for machine in it.machines.values()]
    it.restart(orderly=False)
    for machine in it.machines.values():
        machine.prepares = True
    for name in ("a", "b", "c"):
        it.join(name)
    for machine in it.machines.values():
        for run in [run for run, status in machine.states.items() if status.phase is RunPhase.STARTING]:
            machine.prepared(run)
    it.turn()
    assert it.states(running, starting) == ["running", "running"]
    after = [machine.ran for machine in it.machines.values()]
    assert all(set(one) <= set(other) for one, other in zip(before, after, strict=True))
    assert all(len(set(ran)) == len(ran) for ran in after), "nothing began twice"


def test_cancelling_and_moving_a_gang_reaches_every_member() -> None:
    it = Cluster("a", "b")
    job = gang_of(it)
    runs = it.scheduler.book.attempts[job].runs
    it.tell(lambda: it.service.cancel([job]))
    assert it.states(job) == ["cancelled"]
    stopped = {run: reason for machine in it.machines.values() for run, (reason, _) in machine.stops.items()}
    assert stopped == dict.fromkeys(runs, EndReason.CANCELLED)


def test_a_gang_that_freezes_for_others_goes_on_where_it_was() -> None:
    it = Cluster("a", "b", policy="srtf")
    job = gang_of(it, on_preempt="freeze", estimate=10_000)
    (short,) = it.submit({"gpus": 8, "estimate": 10})
    it.later(700.0)
    if it.states(job, short) == ["frozen", "running"]:
        for machine in it.machines.values():
            for run in list(machine.alive()):
                if run.startswith(f"{short}."):
                    machine.end(run, 0)
        it.turn()
    assert it.states(job, short) == ["running", "finished"]
    assert len(it.service.show(job)["attempts"]) == 1


def test_a_gang_that_was_to_end_and_that_no_node_knows_any_more_has_ended() -> None:
    """Cancelled while its nodes were cut off, so that neither its start nor its end reached them."""
    it = Cluster("a", "b")
    for port in it.ports.values():
        port.by_hand = True
    job = gang_of(it)
    it.tell(lambda: it.service.cancel([job]))
    assert it.states(job) == ["stopping"]
    it.restart(orderly=False)
    it.join("a")
    assert it.states(job) == ["stopping"], "the other node may know something of it"
    it.join("b")
    view = it.service.show(job)
    assert (view["job"]["state"], it.asked("a"), it.asked("b")) == ("cancelled", [], [])
    members = view["attempts"][0]["members"]
    assert [one["reason"] for one in members] == ["cancelled", "cancelled"]
