"""Nodes that join, as processes of their own, over links that are cut and slowed down."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuloom.fleet.registry import LOOK_S, SILENT_S
from real_node import RealNode
from real_scheduler import Real, alive, real
from until import until


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Real]:
    with real(tmp_path, slots=1) as found:
        yield found


@contextmanager
def node_of(head: Real, folder: Path, **options: Any) -> Iterator[RealNode]:
    node = RealNode(head, folder, **options)
    try:
        yield node
    finally:
        node.close()


@pytest.fixture
def node(head: Real, tmp_path: Path) -> Iterator[RealNode]:
    head.up()
    with node_of(head, tmp_path) as node:
        node.join()
        yield node


def submit(head: Real, job: dict[str, Any]) -> int:
    """A job for two slots, which the head's own machine does not have."""
    ((number,),) = head.client.submit([{"gpus": 2, **job}])
    return int(number)


def attempts(head: Real, job: int) -> list[Any]:
    return list(head.client.show(job)["attempts"])


def test_a_job_runs_on_a_node_and_its_log_is_read_from_there(head: Real, node: RealNode) -> None:
    job = submit(head, head.shell("echo hello; pwd; echo $GPULOOM_RUN_DIR"))
    head.in_state("finished", [job])
    text = head.run("logs", str(job)).stdout
    assert text.splitlines()[:2] == ["hello", str(head.files)]
    assert text.splitlines()[2].startswith(str(node.home / "runs"))
    seen = node.seen()
    assert (seen["source"], seen["address"], len(seen["gpus"])) == ("joined", "127.0.0.1", 2)
    until(lambda: node.seen()["load"] is not None, "a sample")


@pytest.mark.slow
def test_what_happens_while_the_link_is_cut_is_told_once_it_is_mended(head: Real, node: RealNode) -> None:
    one, other = submit(head, head.waiting()), submit(head, head.waiting(priority=-1))
    head.in_state("running", [one])
    first = head.attempts([one])
    node.link.cut()
    head.end(one)
    until(lambda: node.seen()["cut"], "the head sees that it is cut")
    assert head.states([one]) == {one: "running"}
    node.link.mend()
    head.in_state("finished", [one])
    head.in_state("running", [other])
    assert head.attempts([one]) == first
    assert not node.seen()["cut"]
    head.end(other)
    head.in_state("finished", [other])


@pytest.mark.slow
def test_a_silent_link_is_noticed_within_ten_seconds(head: Real, tmp_path: Path) -> None:
    head.up()
    with node_of(head, tmp_path, lease="60s") as node:
        node.join()
        job = submit(head, head.waiting())
        head.in_state("running", [job])
        node.link.silent = True
        until(lambda: node.seen()["cut"], "the head sees that it is cut")
        # How long that takes on a machine that is not busy: silence, and the next look.
        assert SILENT_S + 2 * LOOK_S < 10.0
        head.end(job)
        node.link.mend()
        head.in_state("finished", [job])
        assert len(attempts(head, job)) == 1


@pytest.mark.slow
def test_a_slow_link_carries_heartbeats_beside_long_logs(head: Real, node: RealNode) -> None:
    job = submit(head, head.shell("i=0; while [ $i -lt 40000 ]; do echo line $i; i=$((i+1)); done; sleep 1"))
    head.in_state("running", [job])
    node.link.rate, node.link.delay_s = 50_000.0, 0.1
    text = head.run("logs", "-f", str(job)).stdout
    assert text.splitlines() == [f"line {number}" for number in range(40_000)]
    head.in_state("finished", [job])
    assert len(attempts(head, job)) == 1


@pytest.mark.slow
def test_the_logs_of_a_gang_are_followed_over_a_link_that_is_cut(head: Real, node: RealNode) -> None:
    job = head.shell("while [ ! -e go ]; do echo line $((i=i+1)); sleep 0.2; done; echo last")
    ((number,),) = head.client.submit([{"gpus": 3, **job}])
    parts: list[Any] = []
    follows = threading.Thread(target=lambda: _collect(parts, head.client.follow_log(number)))
    follows.start()

    def text(name: str) -> str:
        nodes = next((part.nodes for part in parts if part.nodes), ())
        return "".join(part.text for part in parts if part.member is not None and nodes[part.member] == name)

    until(lambda: "line 2" in text("n1"), "what the member on the node says")
    (here,) = {name for part in parts for name in part.nodes} - {"n1"}
    node.link.cut()
    until(lambda: "the link to n1" in text("n1"), "that it can't be read now")
    known = text(here)
    until(lambda: len(text(here)) > len(known), "the other member, meanwhile")
    node.link.mend()
    (head.files / "go").touch()
    follows.join(60.0)
    assert parts[-1].end["state"] == "finished"
    for name in (here, "n1"):
        lines = [line for line in text(name).splitlines() if line and not line.startswith("(")]
        assert lines == [*(f"line {n}" for n in range(1, len(lines))), "last"]


def _collect(parts: list[Any], found: Iterator[Any]) -> None:
    for part in found:
        parts.append(part)


@pytest.mark.slow
def test_cut_off_for_longer_than_its_lease_it_ends_its_jobs_and_they_go_on_elsewhere(
    head: Real, node: RealNode, tmp_path: Path
) -> None:
    job = submit(head, head.waiting())
    head.in_state("running", [job])
    pid = head.attempts([job])[job][0][1]
    node.link.cut()
    until(lambda: not alive(pid), "the end of the job, though nobody can tell the node to end it")
    head.in_state("queued", [job])
    assert attempts(head, job)[0]["reason"] == "node"
    with node_of(head, tmp_path, name="n2") as other:
        other.join()
        head.in_state("running", [job])
        head.end(job, attempt=2)
        head.in_state("finished", [job])
    node.link.mend()
    until(lambda: node.seen()["state"] == "up", "it is back")
    again = submit(head, head.shell("true"))
    head.in_state("finished", [again])


@pytest.mark.slow
def test_the_head_is_killed_and_comes_back_within_the_lease(head: Real, tmp_path: Path) -> None:
    head.up()
    with node_of(head, tmp_path, slots=4, lease="30s") as node:
        node.join()
        one, other = submit(head, head.waiting()), submit(head, head.waiting())
        head.in_state("running", [one, other])
        before = head.attempts([one, other])
        head.kill()
        head.end(one)
        head.up("--port", str(node.link.to))
        until(lambda: not node.seen()["cut"] and node.seen()["state"] == "up", "it has joined again")
        head.in_state("finished", [one])
        head.end(other)
        head.in_state("finished", [other])
        assert head.attempts([one, other]) == before
        head.check()


@pytest.mark.slow
def test_the_head_ends_in_order_and_jobs_outlast_the_lease(head: Real, node: RealNode) -> None:
    job = submit(head, head.waiting())
    head.in_state("running", [job])
    before = head.attempts([job])
    head.down()
    time.sleep(6.0 + 3.0)
    assert alive(before[job][0][1])
    head.up("--port", str(node.link.to))
    until(lambda: not node.seen()["cut"], "it has joined again")
    head.end(job)
    head.in_state("finished", [job])
    assert head.attempts([job]) == before


@pytest.mark.slow
def test_the_node_process_is_killed_and_another_goes_on_with_its_jobs(head: Real, tmp_path: Path) -> None:
    head.up()
    with node_of(head, tmp_path, slots=4, lease="30s") as node:
        node.join()
        one, other = submit(head, head.waiting()), submit(head, head.waiting())
        head.in_state("running", [one, other])
        before = head.attempts([one, other])
        node.kill()
        head.end(one)
        done = node.run("join", "--detach")
        assert done.returncode == 0, done.stderr
        head.in_state("finished", [one])
        head.end(other)
        head.in_state("finished", [other])
        assert head.attempts([one, other]) == before


@pytest.mark.slow
def test_it_leaves_when_its_jobs_have_made_way(head: Real, node: RealNode) -> None:
    job = submit(head, head.shell("trap 'sleep 0.5; exit 85' TERM; while true; do sleep 0.05; done", grace=10))
    head.in_state("running", [job])
    done = node.run("leave")
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
    head.in_state("queued", [job])
    assert attempts(head, job)[0]["saved"]
    until(lambda: node.seen()["state"] == "down", "it is gone")
    assert "left" in node.seen()["reason"]
    assert node.run("status").returncode == 1
    until(lambda: not Path(f"/proc/{node.pid}").exists(), "the end of the node process")
    node.join()
    head.in_state("running", [job])
    done = node.run("leave", "--now")
    assert done.returncode == 0, done.stderr
    head.in_state("queued", [job])
    until(lambda: not node.processes(), f"the end of {node.processes()}", 20.0)


@pytest.mark.slow
def test_who_may_not_join_is_told_why(head: Real, node: RealNode, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{node.link.port}"
    wrong = node.token[:-1] + ("A" if node.token[-1] != "A" else "B")
    with node_of(head, tmp_path, name="n2") as other:
        done = other.run("join", url, "--slots", "1", "--name", "n2", GPULOOM_NODE_TOKEN=wrong)
        assert (done.returncode, "the token does not count" in done.stderr) == (1, True), done.stderr
        done = other.run("join", url, "--slots", "1", "--name", "n1")
        assert (done.returncode, "choose another name with --name" in done.stderr) == (1, True), done.stderr
        done = other.run("join", url, "--slots", "1", "--name", "n2", GPULOOM_NODE_TOKEN=f"{node.token}_{'A' * 43}")
        assert "of a scheduler with TLS" in done.stderr
        done = other.run("join", "http://head.example:7411", "--slots", "1")
        assert "give https://head.example:7411" in done.stderr
    done = node.run("join", url, "--slots", "1")
    assert "works here already" in done.stderr
    node.head_says("revoke", node.token.split("_")[1])
    until(lambda: not alive(node.pid), "it ends, as its token is revoked")
    assert "revoked" in node.status()["detail"]


@pytest.mark.slow
def test_over_tls_a_node_joins_its_head_and_no_other(head: Real, tmp_path: Path) -> None:
    head.up("--host", "0.0.0.0")
    with node_of(head, tmp_path) as node:
        assert node.scheme == "https"
        node.join()
        job = submit(head, head.shell("echo over TLS"))
        head.in_state("finished", [job])
        assert head.run("logs", str(job)).stdout == "over TLS\n"
        for name in ("cert.pem", "key.pem"):
            (head.home / "tls" / name).unlink()
        head.kill()
        head.up("--host", "0.0.0.0", "--port", str(node.link.to))
        until(lambda: not alive(node.pid), "it ends, as somebody else answers")
        assert "mint a new token" in node.status()["detail"]


@pytest.mark.slow
def test_no_secret_is_on_a_command_line_or_in_a_job(head: Real, node: RealNode) -> None:
    job = submit(head, head.shell("env"))
    head.in_state("finished", [job])
    assert "glt_" not in head.run("logs", str(job)).stdout
    secret = node.token[13:].encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                assert secret not in Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
    assert json.loads((node.home / "join.json").read_text())["token"] == node.token
    assert (node.home / "join.json").stat().st_mode & 0o077 == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_over_a_link_that_breaks_all_the_time_each_job_runs_once(head: Real, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    head.up()
    with node_of(head, tmp_path, slots=8, lease="60s") as node:
        node.join()
        job = head.shell('echo "$GPULOOM_JOB_ID" >> marks; sleep 0.1; exit $((GPULOOM_JOB_ID % 3 ? 0 : 7))')
        jobs = [number for (number,) in head.client.submit([{"gpus": 2, **job}] * 60)]

        def done() -> bool:
            states = list(head.states(jobs).values())
            return states.count("finished") + states.count("failed") == len(jobs)

        end = time.monotonic() + 90.0
        while not done():
            assert time.monotonic() < end, head.states(jobs)
            time.sleep(draw.uniform(0.0, 1.0))
            if draw.random() < 0.3:
                node.link.silent = True
            elif draw.random() < 0.5:
                node.link.rate = 20_000.0
            else:
                node.link.cut()
            time.sleep(draw.uniform(0.0, 1.5))
            node.link.mend()
        head.ran(dict.fromkeys(jobs, 1))
        assert head.states(jobs) == {number: "finished" if number % 3 else "failed" for number in jobs}
        assert all(len(found) == 1 for found in head.attempts(jobs).values())
        head.check()
