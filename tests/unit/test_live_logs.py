"""Which logs a job has, on which nodes, and who reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuloom.core.job import NodeSource, NodeState
from gpuloom.executors.local_files import LocalFiles
from gpuloom.executors.port import ExecutorError
from gpuloom.live.service import LogOf
from gpuloom.live.stored import StoredService
from gpuloom.live.views.jobs import log_place
from test_live_nodes import Cluster


def test_a_gang_has_a_log_on_each_of_its_nodes() -> None:
    it = Cluster("a", "b")
    (job,) = it.submit({"gpus": 8})
    identity = it.scheduler.book.attempts[job].identity
    runs = [f"{job}.1-{identity}", f"{job}.1.1-{identity}"]
    logs = it.service.logs(job)
    assert sorted(log.node for log in logs) == ["a", "b"]
    assert [replace(log, node="") for log in logs] == [LogOf(1, rank, "", runs[rank], True) for rank in (0, 1)]
    for log in logs:
        it.machines[log.node].logs[log.run] = f"of {log.member}\n".encode()
        assert it.service.files_of(log).read_log(log.run)[0] == f"of {log.member}\n".encode()
    master = logs[0].node
    assert it.service.show(job)["log"] == f"{master}:runs/0000/{job}/1-{identity}/output.log"
    it.lose(logs[1].node)
    with pytest.raises(ExecutorError, match=f"node {logs[1].node} is not there"):
        it.service.files_of(logs[1]).read_log(runs[1])
    assert it.service.files_of(logs[0]).read_log(runs[0])[0] == b"of 0\n"
    assert [log.live for log in it.service.logs(job, 1)] == [False, False]


def test_logs_of_this_machine_are_read_where_they_lie_whoever_runs_here_now() -> None:
    it = Cluster()
    (job,) = it.submit({"gpus": 1})
    (log,) = it.service.logs(job)
    it.scheduler.gangs.remove("here")  # a head that is no node itself any more
    files = it.service.files_of(log)
    assert isinstance(files, LocalFiles)
    assert it.service.show(job)["log"] == str(files.log_path(log.run))
    assert isinstance(it.service.files_of(replace(log, node="renamed since")), LocalFiles)


def test_without_a_scheduler_the_logs_of_this_machine_are_there_and_no_others(tmp_path: Path) -> None:
    it = Cluster("a")
    here, elsewhere = it.submit({"gpus": 2}, {"gpus": 4})
    stored = StoredService(it.store, tmp_path, "a record is missing")
    (log,) = stored.logs(here)
    assert not log.live
    assert stored.files_of(log).read_log(log.run) == (b"", 0)
    assert stored.show(here)["log"] == str(LocalFiles(tmp_path).log_path(log.run))
    (other,) = stored.logs(elsewhere)
    with pytest.raises(ExecutorError, match="node a is not there"):
        stored.files_of(other).log_mark(other.run)
    assert stored.show(elsewhere)["log"].startswith("a:runs/")
    known = {node.name: (node.source, node.state) for node in it.store.load().nodes}
    assert known["a"] == (NodeSource.JOINED, NodeState.UP)


def test_an_attempt_without_gpus_has_its_log_here() -> None:
    it = Cluster()
    (job,) = it.submit({"gpus": 1})
    attempt = replace(it.scheduler.book.attempts[job], allocation=())
    assert log_place(attempt, lambda node: None if node else LocalFiles(Path("/r"))).startswith("/r/0000/")
