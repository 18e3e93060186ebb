"""The Python client against the real API over a scheduler in memory: when connections break and schedulers restart."""

from __future__ import annotations

import http.server
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.client import (
    AccessError,
    Client,
    ClientError,
    ConflictError,
    ConnectionLostError,
    ImpossibleError,
    NoSchedulerError,
    NotFoundError,
    RequestError,
    ServerError,
    WaitTimeoutError,
)
from gpuloom.client.errors import of_answer
from gpuloom.client.home import find, home_directory, no_scheduler
from gpuloom.client.numbers import parse
from gpuloom.client.sse import Message, messages
from gpuloom.core.errors import InputError
from gpuloom.live.submission.spec import JobSpec
from live_api import TOKEN, Api, serving

JOB = {"command": ["python", "train.py"]}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path / "home") as found:
        yield found


@pytest.fixture
def client(api: Api) -> Iterator[Client]:
    with Client(api.home) as found:
        yield found


def test_a_job_runs_where_it_was_submitted(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    specs = [JOB, JobSpec.model_validate(JOB), {**JOB, "workdir": str(elsewhere)}, {**JOB, "workdir": ""}]
    numbers = [number for (number,) in client.submit(specs)]
    ((one,),) = client.submit(JobSpec.model_validate(JOB))
    assert client.show(one)["spec"] == client.show(numbers[1])["spec"]
    assert [client.show(n)["spec"].get("workdir", "") for n in numbers] == [
        str(tmp_path), str(tmp_path), str(elsewhere), "",
    ]  # fmt: skip


def test_from_a_folder_that_has_been_removed(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    ((number,),) = client.submit({**JOB, "workdir": "/"})
    assert client.show(number)["spec"]["workdir"] == "/"
    with pytest.raises(InputError, match="the current folder has been removed"):
        client.submit(JOB)


def soon(what: Any, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.01)


# -- submitting --------------------------------------------------------------------------------------------------------


def test_a_job_goes_there_and_comes_back(client: Client, api: Api) -> None:
    assert client.submit({**JOB, "gpus": 2, "env": {"A": "é"}}) == [[1]]
    job = client.job(1)
    assert (job["name"], job["gpus"], job["state"]) == ("train", 2, "queued")
    assert client.show(1)["spec"]["env"] == {"A": "é"}
    name, call = api.service.calls[0]
    assert name == "submit"
    assert call["idempotency_key"]
    assert call["user"] == job["user"]


def test_several_jobs_and_arrays_at_once(client: Client) -> None:
    spec = JobSpec(command=["true"], array="0-2", time_limit=60.0)
    assert client.submit([JOB, spec]) == [[1], [2, 3, 4]]
    assert client.job(3)["array_index"] == 1
    assert client.job(3)["time_limit_s"] == 60.0
    with pytest.raises(InputError, match="no job"):
        client.submit([])


def test_a_key_submits_once_and_for_one_thing(client: Client) -> None:
    assert client.submit(JOB, idempotency_key="k") == client.submit(JOB, idempotency_key="k") == [[1]]
    with pytest.raises(ConflictError, match="used before"):
        client.submit({**JOB, "gpus": 2}, idempotency_key="k")
    with pytest.raises(InputError, match="idempotency key"):
        client.submit(JOB, idempotency_key="two\nlines")
    assert client.submit(JOB) != client.submit(JOB)


class Cutting(http.server.BaseHTTPRequestHandler):
    """Passes requests on, and cuts the first answers off: the scheduler did the work, the client can't know."""

    cuts = 0
    target = ""
    keys: list[str]

    def do_POST(self) -> None:
        import httpx

        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
        answer = httpx.post(type(self).target + self.path, content=body, headers=headers, trust_env=False)
        self.keys.append(self.headers.get("Idempotency-Key", ""))
        if type(self).cuts > 0:
            type(self).cuts -= 1
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def do_GET(self) -> None:
        import httpx

        self.keys.append("")
        if type(self).cuts > 0:
            type(self).cuts -= 1
            self.close_connection = True
            return
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
        answer = httpx.get(type(self).target + self.path, headers=headers, trust_env=False)
        self.send_response(answer.status_code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def cutting(api: Api) -> Iterator[str]:
    Cutting.cuts, Cutting.target, Cutting.keys = 2, api.url, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cutting) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_submission_whose_answer_was_lost_is_one_submission(cutting: str, api: Api) -> None:
    with Client(url=cutting, token=TOKEN) as client:
        assert client.submit(JOB) == [[1]]
    assert len(Cutting.keys) == 3
    assert len(set(Cutting.keys)) == 1
    assert list(api.service.book.jobs) == [1]


def test_what_only_reads_is_asked_again(cutting: str, api: Api) -> None:
    with Client(url=cutting, token=TOKEN) as client:
        assert client.status()["policy"] == api.service.status()["policy"]
    assert len(Cutting.keys) == 3


def test_what_may_not_be_done_twice_is_not_repeated(cutting: str, api: Api, client: Client) -> None:
    client.submit(JOB)
    with Client(url=cutting, token=TOKEN) as other, pytest.raises(ConnectionLostError, match="not known whether"):
        other.requeue([1])
    assert len(Cutting.keys) == 1


# -- jobs --------------------------------------------------------------------------------------------------------------


def test_jobs_are_read_page_by_page(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.submit({**JOB, "array": "0-24"})
    client.submit({**JOB, "name": "other"})
    monkeypatch.setattr("gpuloom.client.client.PAGE", 10)
    monkeypatch.setattr("gpuloom.client.client.IDS_A_REQUEST", 4)
    assert [job["id"] for job in client.jobs()] == list(range(26, 0, -1))
    assert [job["id"] for job in client.jobs(oldest_first=True, limit=12)] == list(range(1, 13))
    assert [job["id"] for job in client.jobs(ids=[3, 9, 1, 26, 14, 15])] == [26, 15, 14, 9, 3, 1]
    assert [job["id"] for job in client.jobs(names=["oth*"])] == [26]
    assert list(client.jobs(ids=[])) == []
    assert list(client.jobs(states=["running"])) == []


def test_what_is_done_to_jobs(client: Client, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    client.submit([JOB, JOB, JOB])
    assert [job["state"] for job in client.hold([1, 2])] == ["held", "held"]
    assert [job["state"] for job in client.release([1])] == ["queued"]
    assert client.update([2], {"priority": 5, "time_limit": "2h"})[0]["time_limit_s"] == 7200
    assert client.top([3])[0]["priority"] > 5
    api.service.run(3)
    assert [job["changed"] for job in (*client.suspend([3]), *client.suspend([3]))] == [True, False]
    assert [job["changed"] for job in (*client.resume([3]), *client.resume([3]))] == [True, False]
    assert client.cancel([3], grace_s=1.5)[0]["state"] == "cancelled"
    assert api.service.calls[-1] == ("cancel", {"jobs": [3], "grace_s": 1.5})
    assert client.requeue([3])[0]["state"] == "queued"
    assert client.cancel([]) == []
    monkeypatch.setattr("gpuloom.client.client.MOST_JOBS", 2)
    assert [job["id"] for job in client.update([1, 2, 3], {"retries": 1})] == [1, 2, 3]
    assert [call[1]["jobs"] for call in api.service.calls[-2:]] == [[1, 2], [3]]
    assert client.why(1)["position"] == 2
    assert client.why(1, forecast=False)["start_s_median"] is None


def test_numbers_as_people_write_them(client: Client) -> None:
    client.submit([JOB, {**JOB, "array": "0-20:5"}])
    assert client.numbers(["1", "3-5", "4"]) == [1, 3, 4, 5]
    assert client.numbers(["2_10"]) == [4]
    assert client.numbers(["2_"]) == [2, 3, 4, 5, 6]
    with pytest.raises(RequestError, match="array 2 has no index 7; it has 0 to 20"):
        client.numbers(["2_7"])
    with pytest.raises(RequestError, match="not the first job of an array"):
        client.numbers(["1_0"])


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "3-", "5-2", "1_x", "1-9999999", "٣", "1 2", "12-20_3"])
def test_what_is_no_job_number(text: str) -> None:
    with pytest.raises(InputError):
        parse(text)


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_wait_returns_when_all_have_ended(client: Client, api: Api) -> None:
    client.submit([JOB, JOB, JOB])
    for job in (1, 2):
        api.service.run(job)
    api.service.finish(1)
    timers = [threading.Timer(0.1, api.service.finish, (2, 3)), threading.Timer(0.2, client.cancel, ([3],))]
    for timer in timers:
        timer.start()
    assert [job["state"] for job in client.wait([3, 1, 2, 2])] == ["cancelled", "finished", "failed", "failed"]
    for timer in timers:
        timer.join()  # the cancel's answer may come after its event: the client must not be closed before


def test_wait_keeps_its_time(client: Client) -> None:
    client.submit([JOB, JOB])
    began = time.monotonic()
    with pytest.raises(WaitTimeoutError, match=r"2 of 2 jobs had not ended after 0\.3 s") as error:
        client.wait([1, 2], timeout_s=0.3)
    assert error.value.jobs == (1, 2)
    assert time.monotonic() - began > 0.25
    with pytest.raises(NotFoundError, match="no job 7"):
        client.wait([7])


def test_a_preempted_job_has_not_ended(client: Client, api: Api) -> None:
    client.submit(JOB)
    seen: list[str] = []
    steps = [
        lambda: api.service.run(1),
        lambda: api.service.preempt(1),
        lambda: api.service.run(1),
        lambda: api.service.finish(1),
    ]
    for job in client.follow_jobs([1], timeout_s=20):
        seen.append(job["state"])
        if job["state"] in ("queued", "running", "finished") and steps:
            steps.pop(0)()
    assert seen[0] == "queued"
    assert seen[-1] == "finished"
    assert seen.count("running") == 2


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_log_is_followed_over_attempts_and_restarts_of_the_scheduler(client: Client, api: Api) -> None:
    client.submit(JOB)
    api.service.run(1)
    api.service.write(1, "one\n")
    parts: list[tuple[int, str]] = []
    ends: list[dict[str, Any]] = []
    trouble: list[str] = []
    client.connection.on_trouble = trouble.append

    def follow() -> None:
        for part in client.follow_log(1):
            parts.append((part.attempt, part.text))
            if part.end is not None:
                ends.append(dict(part.end))

    thread = threading.Thread(target=follow)
    thread.start()
    soon(lambda: (1, "one\n") in parts)
    api.stop()
    api.service.write(1, "two\n")
    before = api.url
    api.start()
    assert api.url != before
    soon(lambda: "two" in "".join(text for _, text in parts))
    api.service.preempt(1)
    api.service.run(1)
    api.service.write(1, "three\n")
    api.service.finish(1, 4)
    thread.join(20)
    assert not thread.is_alive()
    assert "".join(text for _, text in parts) == "one\ntwo\nthree\n"
    assert parts[-2] == (2, "three\n")
    assert [(end["state"], end["exit_code"]) for end in ends] == [("failed", 4)]
    assert len(trouble) == 1


def test_a_log_is_read_without_waiting(client: Client, api: Api) -> None:
    client.submit(JOB)
    assert client.log(1) == b""
    api.service.run(1)
    api.service.write(1, b"a\xff\nb\nc\n")
    assert client.log(1) == b"a\xff\nb\nc\n"
    assert client.log(1, tail=2) == b"b\nc\n"
    read = client.read_log(1, offset=3)
    assert (read.content, read.attempt, read.offset, read.ended) == (b"b\nc\n", 1, 7, False)
    with pytest.raises(NotFoundError, match="no attempt 2"):
        client.log(1, attempt=2)


def test_a_log_is_followed_from_the_last_attempt_or_from_the_first(client: Client, api: Api) -> None:
    client.submit(JOB)
    for text in ("one\n", "two\n"):
        api.service.run(1)
        api.service.write(1, text)
        if text == "one\n":
            api.service.preempt(1)
    api.service.finish(1)
    assert [part.text for part in client.follow_log(1)] == ["", "two\n", ""]
    parts = list(client.follow_log(1, from_first=True))
    assert [(part.attempt, part.text) for part in parts] == [(1, "one\n"), (2, ""), (2, "two\n"), (2, "")]
    assert "".join(part.text for part in client.follow_log(1, attempt=1)) == "one\n"


def test_events_are_followed_over_a_restart_without_gap_or_repetition(client: Client, api: Api) -> None:
    start = client.last_event()
    seen: list[int] = []

    def follow() -> None:
        for event in client.follow_events(after=start):
            seen.append(event["id"])
            if event["type"] == "job.cancelled":
                return

    thread = threading.Thread(target=follow)
    thread.start()
    client.submit(JOB)
    soon(lambda: len(seen) == 1)
    api.stop()
    api.service.hold([1])
    api.start()
    soon(lambda: len(seen) == 2)
    api.service.cancel([1])
    thread.join(20)
    assert not thread.is_alive()
    assert seen == [start + 1, start + 2, start + 3]
    assert [event["id"] for event in client.events(after=start, job=1)] == seen
    assert [event["type"] for event in client.events(types=["job.held"])] == ["job.held"]
    assert [event["id"] for event in client.events(limit=1, newest=True)] == [start + 3]


@given(st.sampled_from([b"\r\n", b"\n", b"\r"]), st.integers(1, 7))
def test_event_streams_are_read_however_they_are_cut(end: bytes, size: int) -> None:
    lines = [
        "id: 3",
        "event: log",
        "data: a\u2028b\x0b",
        "data:  c",
        "",
        ": beat",
        "data",
        "",
        "retry: 5",
        "",
        "data: cut",
    ]
    raw = b"".join(line.encode() + end for line in lines)
    found = list(messages(raw[i : i + size] for i in range(0, len(raw), size)))
    assert found == [Message("log", "a\u2028b\x0b\n c", "3"), Message("", "beat", "3"), Message("message", "", "3")]


# -- the cluster, errors -----------------------------------------------------------------------------------------------


def test_the_cluster(client: Client, api: Api) -> None:
    client.submit(JOB)
    api.service.run(1)
    assert client.nodes()[0]["gpus"][0]["jobs"] == [1]
    assert client.set_node("node0", "cordoned", reason="new driver")["reason"] == "new driver"
    assert client.set_policy("srtf", interval_s=30)["policy"] == "srtf"
    assert client.policy()["previous"] == "fifo"
    assert client.usage(by="name")[0]["key"] == "train"
    api.service.finish(1)
    assert len(client.history().splitlines()) == 2
    assert client.status()["jobs"] == {"finished": 1}
    assert client.health()["ok"] is True
    client.shutdown(stop_jobs=True)
    assert api.service.calls[-1] == ("stop", {"stop_jobs": True})


def test_errors_are_of_the_kind_and_in_the_words_of_the_scheduler(client: Client, api: Api) -> None:
    with pytest.raises(NotFoundError, match="no job 99") as missing:
        client.job(99)
    assert (missing.value.status, missing.value.exit_code) == (404, 2)
    with pytest.raises(ImpossibleError, match="asks for 5 GPUs, and there are 4"):
        client.submit({**JOB, "gpus": 5})
    with pytest.raises(RequestError, match=r"gpus is 0: .*greater than or equal to 1") as bad:
        client.submit({**JOB, "gpus": 0})
    assert bad.value.problems[0]["where"] == "/gpus"
    with pytest.raises(RequestError, match="did you mean 'gpus'"):
        client.submit({**JOB, "gpu": 1})
    client.submit(JOB)
    assert [job["changed"] for job in client.release([1])] == [False]
    client.cancel([1])
    with pytest.raises(ConflictError, match="job 1 is cancelled and can't be released") as conflict:
        client.release([1])
    assert conflict.value.exit_code == 1
    with pytest.raises(RequestError, match="frist"):
        client.set_policy("frist")
    api.service.broken = "disk full"
    with pytest.raises(ServerError, match="disk full"):
        client.submit(JOB)


def test_an_answer_that_is_no_problem_is_an_error_all_the_same() -> None:
    assert str(of_answer(502, "Bad Gateway", None)) == "the scheduler answered 502 Bad Gateway"
    assert isinstance(of_answer(418, "Teapot", ["x"]), ClientError)


def test_a_wrong_token_is_refused(api: Api) -> None:
    with Client(api.home, token="x" * 24) as client, pytest.raises(AccessError):
        client.status()


def test_another_scheduler_at_the_port_of_one_that_died_is_not_taken_for_it(api: Api, tmp_path: Path) -> None:
    """It refuses our token, but the token is not what is wrong."""
    home = tmp_path / "ours"
    home.mkdir()
    (home / "token").write_text("x" * 24)
    ours = {"pid": 2**22 + 5, "url": api.url, "version": "1", "started_s": 0.0}
    (home / "server.json").write_text(json.dumps(ours))
    with Client(home) as client:
        with pytest.raises(NoSchedulerError, match="has died"):
            client.status()
        with pytest.raises(NoSchedulerError, match="has died"):
            client.submit(JOB)
    with Client(home, patience_s=0.1) as client, pytest.raises(NoSchedulerError, match="has died"):
        list(client.follow_events(after=0))
    (home / "server.json").write_text(json.dumps({**ours, "pid": os.getpid()}))
    with Client(home) as client, pytest.raises(AccessError):
        client.status()
    assert not api.service.calls


def test_one_that_moved_is_found_though_another_has_its_port(api: Api, tmp_path: Path) -> None:
    with serving(tmp_path / "ours") as ours, Client(ours.home) as client:
        (ours.home / "token").write_text("x" * 24)  # as before it was started again
        record = ours.home / "server.json"
        now = record.read_text()
        record.write_text(json.dumps({"pid": os.getpid(), "url": api.url, "version": "1", "started_s": 0.0}))
        assert client.connection.address.url == api.url
        record.write_text(now)
        (ours.home / "token").write_text(TOKEN)
        assert client.submit(JOB) == [[1]]
    assert not api.service.calls


def test_where_no_scheduler_runs_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "none"
    remedy = re.escape(f"gpuloom up --home {home} --detach")
    with Client(home) as client, pytest.raises(NoSchedulerError, match=remedy):
        client.status()
    monkeypatch.setenv("GPULOOM_HOME", str(home))
    assert "gpuloom up --detach" in str(no_scheduler(home))
    home.mkdir()
    (home / "token").write_text(TOKEN)
    dead = {"pid": 2**22 + 5, "url": "http://127.0.0.1:9", "version": "1", "started_s": 0.0}
    (home / "server.json").write_text(json.dumps(dead))
    with Client() as client, pytest.raises(NoSchedulerError, match="has died"):
        client.status()
    (home / "server.json").write_text("{}")
    with Client() as client, pytest.raises(ClientError, match=r"server\.json"):
        client.status()


def test_where_the_scheduler_is_looked_for(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "elsewhere"))
    assert find(api.home).url == api.url
    token = tmp_path / "token"
    token.write_text(f"  {TOKEN}\n")
    monkeypatch.setenv("GPULOOM_URL", api.url + "/")
    monkeypatch.setenv("GPULOOM_TOKEN_FILE", str(token))
    with Client() as client:
        assert client.status()["policy"] == "fifo"
    token.write_text("two\nlines")
    with pytest.raises(AccessError, match="one line"):
        find()
    token.unlink()
    with pytest.raises(AccessError, match="GPULOOM_TOKEN_FILE"):
        find()
    with pytest.raises(InputError, match="https://HOST:PORT"):
        find(url="localhost:7411")
    monkeypatch.delenv("GPULOOM_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert home_directory() == Path.home() / ".local" / "share" / "gpuloom"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert home_directory() == Path("/data/gpuloom")
    with pytest.raises(InputError, match="patience_s"):
        Client(patience_s=-1)


def test_a_scheduler_that_was_there_is_waited_for(api: Api, client: Client) -> None:
    client.submit(JOB)
    api.stop()
    starts = threading.Timer(0.3, api.start)
    starts.start()
    assert client.job(1)["state"] == "queued"
    starts.join()
    assert client.hold([1])[0]["state"] == "held"
    api.stop()
    try:
        with Client(api.home, patience_s=0.2) as other, pytest.raises(NoSchedulerError, match="does not answer"):
            other.status()
    finally:
        api.start()
