"""Which members of an elastic job go on when it is resized, and how its launcher is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import Allocation, gpus_in
from gpuloom.core.spec import Launcher, Spec
from gpuloom.executors.gang import Gang
from gpuloom.executors.launchers import launched
from gpuloom.executors.node import Peer, RunSpec
from gpuloom.executors.orders import Order, Stop
from gpuloom.executors.port import Capabilities, RunExit, RunPhase, RunStatus
from gpuloom.executors.recognise import may_resize
from gpuloom.live.dispatch.in_place import goes_on, in_members, resizes_in_place

GIVEN = st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 3), min_size=1), min_size=1).map(
    lambda nodes: tuple((node, tuple(sorted(gpus))) for node, gpus in nodes.items())
)


@given(GIVEN, GIVEN)
def test_who_goes_on_stays_where_it_is_and_all_that_was_given_is_used(had: Allocation, now: Allocation) -> None:
    before = in_members(had, 1)
    after = in_members(now, 1, before)
    assert sorted((node, gpu) for node, gpus in after for gpu in gpus) == sorted(
        (node, gpu) for node, gpus in now for gpu in gpus
    )
    assert all(len(gpus) == 1 for _, gpus in after)
    stay = goes_on(before, now, 1)
    assert [node for node, _ in after[:stay]] == [node for node, _ in before[:stay]]
    if stay < len(before):  # the first that leaves has no place any more
        node = before[stay][0]
        assert sum(name == node for name, _ in before[:stay]) == gpus_in(tuple(part for part in now if part[0] == node))


def test_replicas_of_several_gpus_are_whole() -> None:
    had = in_members((("a", (0, 1, 2, 3)),), 2)
    assert had == (("a", (0, 1)), ("a", (2, 3)))
    assert in_members((("a", (2, 3)), ("b", (0, 1))), 2, had) == (("a", (2, 3)), ("b", (0, 1)))
    assert goes_on((("a", (0, 1, 2, 3)),), (("a", (0, 1)),), 2) == 0, "an attempt with a member for each node"


@pytest.mark.parametrize(
    ("command", "launcher", "may"),
    [
        (("torchrun", "train.py"), None, True),
        (("torchrun", "--nproc-per-node=gpu", "train.py"), None, True),
        (("python", "-m", "torch.distributed.run", "train.py"), None, True),
        (("python", "train.py"), Launcher.TORCHRUN, True),
        (("torchrun", "--nnodes=2", "train.py"), None, False),
        (("torchrun", "--standalone", "train.py"), None, False),
        (("torchrun", "train.py"), Launcher.DIRECT, False),
        (("python", "train.py"), None, False),
        (("horovodrun", "python", "train.py"), None, False),
    ],
)
def test_torchrun_lets_members_come_and_go(command: tuple[str, ...], launcher: Launcher | None, may: bool) -> None:
    spec = replace(Spec(command), elastic="1-4", launcher=launcher)
    assert may_resize(spec) is may
    assert not may_resize(replace(spec, elastic=None))
    can, never = Capabilities(resizes=True), Capabilities()
    assert resizes_in_place(spec, (("a", (0,)),), lambda node: can) is may
    assert not resizes_in_place(spec, (("a", (0,)), ("b", (0,))), {"a": can, "b": never}.get)
    assert not resizes_in_place(spec, (("a", (0,)),), lambda node: None)


def test_torchrun_is_told_how_many_members_there_may_be_and_where_they_meet() -> None:
    peers = (Peer("n0", "job-worker-0.job", 2),)
    spec = RunSpec("3.1-ab", ("torchrun", "--max-restarts=7", "train.py"), "/", {}, (0, 1), (), peers=peers, port=29500,
                   launcher=Launcher.TORCHRUN, sizes=(1, 4))  # fmt: skip
    words = launched(spec, {})
    assert words == (
        "torchrun",
        "--nproc_per_node=2",
        "--rdzv_id=3.1-ab",
        "--nnodes=1:4",
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=job-worker-0.job:29500",
        "--rdzv_conf=last_call_timeout=3,keep_alive_interval=3,keep_alive_max_attempt=3",
        "--max_restarts=20",
        "--max-restarts=7",
        "train.py",
    )


def gang(phase: RunPhase = RunPhase.RUNNING) -> Gang:
    made = Gang("1.1", [("1.1", "a"), ("1.1.1", "b"), ("1.1.2", "c")], 30.0)
    made.start(0.0)
    for rank, run in enumerate(("1.1", "1.1.1", "1.1.2")):
        made.heard(rank, RunStatus(run, RunPhase.PREPARED), 0.0)
    for rank, run in enumerate(("1.1", "1.1.1", "1.1.2")):
        made.heard(rank, RunStatus(run, phase if rank == 2 else RunPhase.RUNNING), 1.0)
    return made


def stops(orders: list[Order]) -> list[tuple[int, EndReason]]:
    return [(one.rank, one.reason) for one in orders if isinstance(one, Stop)]


def test_a_gang_tells_those_that_leave_alone_to_end() -> None:
    one = gang()
    told = stops(one.resize(2, 5.0, 2.0))
    assert told == [(0, EndReason.RESIZED), (1, EndReason.RESIZED), (2, EndReason.PREEMPTED)]
    ends = [(None, EndReason.RESIZED), (None, EndReason.RESIZED), (1, EndReason.PREEMPTED)]
    for rank, (code, reason) in enumerate(ends):
        run = f"1.1.{rank}" if rank else "1.1"
        one.heard(rank, RunStatus(run, RunPhase.EXITED, exit=RunExit(code, None, reason, "", 3.0)), 3.0)
    how = one.status.exit
    assert how is not None
    assert (how.reason, how.message) == (EndReason.RESIZED, "")


def test_a_gang_that_is_not_well_ends_as_a_whole() -> None:
    everybody = [(rank, EndReason.PREEMPTED) for rank in range(3)]
    assert stops(gang(RunPhase.STOPPING).resize(2, 5.0, 2.0)) == everybody, "one of them is ending"
    late = gang()
    late.stop(EndReason.PREEMPTED, 5.0, 2.0)
    assert stops(late.resize(2, 1.0, 2.0)) == everybody, "it is told to end already"
