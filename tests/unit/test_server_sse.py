"""Streams: events and logs as they come, without gap or repetition, and nothing left over when a client goes."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from api_client import Stream, http, served
from fake_service import FakeService
from gpuloom.executors.local_files import LocalFiles
from gpuloom.executors.node import RunFiles
from gpuloom.live.service import LogOf
from gpuloom.live.submission.spec import job_spec
from gpuloom.server import log_stream, sse
from gpuloom.server.log_stream import whole_characters
from gpuloom.server.run import Listening
from until import until

SPEC = {"command": ["python", "train.py"]}


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    return FakeService(tmp_path)


@pytest.fixture
def place(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.3)
    monkeypatch.setattr(sse, "LOG_PERIOD_S", 0.02)
    with served(service) as found:
        yield found


def submit(service: FakeService, count: int = 1, **more: Any) -> list[int]:
    return [
        number for numbers in service.submit([job_spec({**SPEC, **more})] * count, user="ada") for number in numbers
    ]


def threads() -> int:
    return sum(thread.name == "event hub" for thread in threading.enumerate())


# -- events -----------------------------------------------------------------------------------------------------------


def test_events_come_as_they_happen(place: Listening, service: FakeService) -> None:
    submit(service)
    with Stream(place, "/v1/events") as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert stream.comment() == ": heartbeat"  # what was before is not told
        service.run(1)
        service.finish(1)
        found = [stream.next() for _ in range(3)]
    assert [event[0] for event in found if event] == ["attempt.starting", "attempt.running", "attempt.ended"]
    assert [event[1] for event in found if event] == ["5", "6", "7"]
    assert found[2] is not None
    assert found[2][2]["job"] == 1
    assert found[2][2]["data"]["reason"] == "finished"


def test_where_no_thread_is_to_be_had_the_next_follower_asks_again(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "event hub":
            raise RuntimeError("can't start new thread")
        begin(thread)

    async def follow() -> None:
        hub = sse.Hub(service)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            with pytest.raises(RuntimeError):
                await hub.join()
        follower, _ = await hub.join()
        submit(service)
        assert await follower.wait()
        hub.close()

    asyncio.run(follow())
    submit(service)  # wakes its thread


def test_an_event_is_told_at_once(place: Listening, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    with Stream(place, "/v1/events") as stream:
        stream.comment()
        monkeypatch.setattr(sse, "HEARTBEAT_S", 600.0)  # nobody polls: what comes with a heartbeat comes too late
        for _ in range(3):
            submit(service)
            assert stream.next()
    until(lambda: bool(submit(service)) and threads() == 0)  # the hub's thread waits for an event as long


def test_a_stream_begins_after_a_number_and_resumes_after_an_id(place: Listening, service: FakeService) -> None:
    submit(service, 3)
    with Stream(place, "/v1/events?after=3") as stream:
        assert [(stream.next() or ())[1] for _ in range(3)] == ["4", "5", "6"]
    with Stream(place, "/v1/events?after=3", last_id="5") as stream:
        assert (stream.next() or ())[1] == "6"
        submit(service)
        assert (stream.next() or ())[1] == "7"


def test_only_what_was_asked_for(place: Listening, service: FakeService) -> None:
    submit(service, 2)
    with Stream(place, "/v1/events?after=0&job=2&type=jobs.submitted&type=job.held") as stream:
        assert (stream.next() or ())[1] == "5"
        service.hold([1])
        service.hold([2])
        service.release([2])
        service.hold([2])
        assert [(stream.next() or ())[1] for _ in range(2)] == ["7", "9"]


@pytest.mark.parametrize(("limit", "value"), [("KEPT", 20), ("KEPT_BYTES", 20_000), ("KEPT_BYTES", 10)])
def test_nobody_misses_or_sees_twice_while_many_come_in(
    place: Listening, service: FakeService, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(sse, limit, value)
    monkeypatch.setattr(sse, "PAGE", 7)
    writer = threading.Thread(target=lambda: [submit(service) for _ in range(400)])
    with ExitStack() as stack:
        streams = [stack.enter_context(Stream(place, "/v1/events?after=0")) for _ in range(5)]
        writer.start()
        writer.join()
        late = stack.enter_context(Stream(place, "/v1/events?after=0"))
        for stream in [*streams, late]:
            assert [(stream.next() or ())[1] for _ in range(403)] == [str(i) for i in range(1, 404)]


def test_the_store_is_not_asked_again_for_what_did_not_match(
    place: Listening, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEPT_BYTES", 10)  # nothing stays in memory
    submit(service, 5)
    asked: list[int] = []
    events = service.events

    def counted(**what: Any) -> Any:
        asked.append(what["after"])
        return events(**what)

    monkeypatch.setattr(service, "events", counted)
    with Stream(place, "/v1/events?after=0&type=job.held") as stream:
        submit(service, 5)
        assert [stream.comment() for _ in range(2)] == [": heartbeat"] * 2
        service.hold([2])
        assert (stream.next() or ())[0] == "job.held"
    assert len(asked) < 20


@pytest.mark.parametrize(("most", "bytes_each", "kept"), [(10, 100, 10), (1_000, 100, 20), (1_000, 2_001, 0)])
def test_events_in_memory_are_bounded_in_number_and_in_bytes(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, most: int, bytes_each: int, kept: int
) -> None:
    """4,000 bytes at most; the newest stay, of half the bytes at most, and who wants older ones reads the store."""
    monkeypatch.setattr(sse, "KEPT", most)
    monkeypatch.setattr(sse, "KEPT_BYTES", 4_000)
    hub = sse.Hub(service)
    stop = threading.Event()
    thinned = []
    for number in range(1, 101):
        before = len(hub._recent)
        hub._publish(stop, [sse.WireEvent(number, "submitted", range(1), bytes(bytes_each))])
        assert len(hub._recent) <= min(2 * most, 4_000 // bytes_each)
        if len(hub._recent) <= before:
            thinned.append(len(hub._recent))
        assert hub._bytes == sum(len(event.wire) for event in hub._recent)
        oldest = number - len(hub._recent)
        assert [event.id for event in hub.after(oldest) or ()] == list(range(oldest + 1, number + 1))
        assert oldest == 0 or hub.after(oldest - 1) is None
    assert set(thinned) == {kept}


def test_one_thread_for_all_and_none_for_nobody(place: Listening, service: FakeService) -> None:
    until(lambda: threads() == 0)
    before = threading.active_count()
    with ExitStack() as stack:
        streams = [stack.enter_context(Stream(place, "/v1/events")) for _ in range(60)]
        for stream in streams:
            stream.comment()
        assert threads() == 1
        assert threading.active_count() - before <= 41  # the pool's, that all requests share
        submit(service)
        assert {(stream.next() or ())[1] for stream in streams} == {"4"}
    until(lambda: threads() == 0)


def test_a_client_that_stops_reading_holds_up_nobody(
    place: Listening, service: FakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sse, "STALLED_S", 0.5)
    caplog.set_level(logging.INFO, sse.__name__)
    with Stream(place, "/v1/events?after=0") as slow, Stream(place, "/v1/events?after=0") as quick:
        assert slow.next()
        large = {f"V{i}": "x" * 1000 for i in range(400)}
        for _ in range(40):  # 16 MB: more than the system keeps for a connection
            submit(service, env=large)
        assert [(quick.next() or ())[1] for _ in range(43)] == [str(i) for i in range(1, 44)]
        until(lambda: "read nothing for 0.5 s" in caplog.text, "the connection to be given up")
        # What lay in the buffers still comes, then it is over, and the last id is where to go on from.
        last = 1
        try:
            while (event := slow.next()) is not None:
                last = int(event[1])
        except (OSError, ValueError):
            pass
        assert last < 43
    with Stream(place, "/v1/events", last_id=str(last)) as again:
        assert [(again.next() or ())[1] for _ in range(43 - last)] == [str(i) for i in range(last + 1, 44)]


def test_trouble_with_the_store_delays_but_loses_nothing(
    place: Listening, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuloom.store.errors import StoreError

    with Stream(place, "/v1/events") as stream:
        stream.comment()
        right = service.events
        failures = []

        def broken(**arguments: Any) -> Any:
            failures.append(arguments)
            monkeypatch.setattr(service, "events", right)
            raise StoreError("store.db: the disk does not answer")

        monkeypatch.setattr(service, "events", broken)
        submit(service)
        assert (stream.next() or ())[1] == "4"
        assert len(failures) == 1


# -- logs -------------------------------------------------------------------------------------------------------------


def test_a_log_is_followed_over_all_attempts_to_its_end(place: Listening, service: FakeService) -> None:
    submit(service)
    with Stream(place, "/v1/jobs/1/log") as stream:
        stream.comment()
        service.run(1)
        assert stream.next() == ("attempt", "1:0", {"attempt": 1})
        service.write(1, "one\n")
        assert stream.next() == ("log", "1:4", {"text": "one\n"})
        service.write(1, "two\n")
        assert stream.next() == ("log", "1:8", {"text": "two\n"})
        service.write(1, "last words\n")
        service.preempt(1)
        assert stream.next() == ("log", "1:19", {"text": "last words\n"})
        stream.comment()
        service.run(1)
        assert stream.next() == ("attempt", "2:0", {"attempt": 2})
        service.write(1, "done")
        service.finish(1, 3)
        assert stream.next() == ("log", "2:4", {"text": "done"})
        assert stream.next() == ("end", "2:4", {"state": "failed", "exit_code": 3, "reason": "failed"})
        assert stream.next() is None


def test_a_log_resumes_after_an_id(place: Listening, service: FakeService) -> None:
    submit(service)
    service.run(1)
    service.write(1, "one\ntwo\n")
    service.preempt(1)
    service.run(1)
    service.write(1, "three\n")
    service.finish(1)
    with Stream(place, "/v1/jobs/1/log?tail=1", last_id="1:4") as stream:
        assert stream.next() == ("log", "1:8", {"text": "two\n"})
        assert stream.next() == ("attempt", "2:0", {"attempt": 2})
        assert stream.next() == ("log", "2:6", {"text": "three\n"})
        assert (stream.next() or ())[0] == "end"
        assert stream.next() is None


def test_the_end_of_a_log_that_is_over(place: Listening, service: FakeService) -> None:
    submit(service, 2)
    service.run(1)
    service.write(1, "one\ntwo\n")
    service.finish(1)
    with Stream(place, "/v1/jobs/1/log?tail=1") as stream:
        assert [(stream.next() or ())[0::2] for _ in range(3)] == [
            ("attempt", {"attempt": 1}),
            ("log", {"text": "two\n"}),
            ("end", {"state": "finished", "exit_code": 0, "reason": "finished"}),
        ]
    service.cancel([2])
    with Stream(place, "/v1/jobs/2/log") as stream:  # never ran
        assert stream.next() == ("end", "0:0", {"state": "cancelled", "exit_code": None, "reason": "cancelled"})


def test_one_attempt_is_followed_to_its_end_alone(place: Listening, service: FakeService) -> None:
    submit(service)
    service.run(1)
    with Stream(place, "/v1/jobs/1/log?attempt=1") as stream:
        assert (stream.next() or ())[0] == "attempt"
        service.write(1, "one")
        assert stream.next() == ("log", "1:3", {"text": "one"})
        service.preempt(1)
        assert (stream.next() or ())[0] == "end"
        assert stream.next() is None


def test_characters_are_never_cut(place: Listening, service: FakeService) -> None:
    submit(service)
    service.run(1)
    with Stream(place, "/v1/jobs/1/log") as stream:
        stream.next()
        euro = "€".encode()
        service.write(1, b"a" + euro[:1])
        assert stream.next() == ("log", "1:1", {"text": "a"})
        service.write(1, euro[1:] + b"\xff" + euro[:2])
        assert stream.next() == ("log", "1:5", {"text": "€\ufffd"})
        service.finish(1)
        assert stream.next() == ("log", "1:7", {"text": "\ufffd"})
        assert (stream.next() or ())[0] == "end"


@pytest.mark.parametrize("text", ["", "a", "é", "€", "𝄞", "a€", "𝄞é"])
def test_whole_characters(text: str) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        whole = whole_characters(data[:cut])
        assert data[:whole].decode() == data[:cut].decode(errors="ignore")
    assert whole_characters(data + b"\xff") == len(data) + 1
    assert whole_characters(b"\x80" * 9) == 9


def test_a_job_that_is_not_there_is_told_before_the_stream(place: Listening) -> None:
    with Stream(place, "/v1/jobs/9/log") as stream:
        assert stream.status == 404


# -- logs of gangs ----------------------------------------------------------------------------------------------------


def gang(service: FakeService, *nodes: str) -> None:
    submit(service, gpus=2)
    service.run_gang(1, *nodes)


def test_all_members_are_followed_together(place: Listening, service: FakeService) -> None:
    submit(service, gpus=2)
    with Stream(place, "/v1/jobs/1/log") as stream:
        stream.comment()
        service.run_gang(1, "node-a", "node-b")
        assert stream.next() == ("attempt", "1:0,0", {"attempt": 1, "members": ["node-a", "node-b"]})
        service.write(1, "one\n", member=1)
        assert stream.next() == ("log", "1:0,4", {"text": "one\n", "member": 1})
        service.write(1, "two")
        assert stream.next() == ("log", "1:3,4", {"text": "two", "member": 0})
        service.write(1, "last words\n", member=1)
        service.preempt(1)
        assert stream.next() == ("log", "1:3,15", {"text": "last words\n", "member": 1})
        stream.comment()
        service.run(1)  # alone
        assert stream.next() == ("attempt", "2:0", {"attempt": 2})
        service.write(1, "done")
        service.finish(1)
        assert stream.next() == ("log", "2:4", {"text": "done"})
        assert (stream.next() or ())[0] == "end"
        assert stream.next() is None


def test_one_member_is_followed_alone(place: Listening, service: FakeService) -> None:
    gang(service, "node-a", "node-b")
    service.write(1, "of others\n")
    service.write(1, "one\ntwo\n", member=1)
    with Stream(place, "/v1/jobs/1/log?member=1&offset=4") as stream:
        assert stream.next() == ("attempt", "1:4", {"attempt": 1, "members": ["node-a", "node-b"]})
        assert stream.next() == ("log", "1:8", {"text": "two\n", "member": 1})
        service.write(1, "of others\n")
        service.write(1, "three\n", member=1)
        assert stream.next() == ("log", "1:14", {"text": "three\n", "member": 1})
        service.preempt(1)
        service.run(1)  # alone: it has no such member
        service.write(1, "of others\n")
        service.finish(1)
        assert (stream.next() or ())[0::2] == ("attempt", {"attempt": 2})
        assert (stream.next() or ())[0] == "end"


def test_a_gang_s_logs_resume_where_each_was(place: Listening, service: FakeService) -> None:
    gang(service, "node-a", "node-b", "node-c")
    for member in range(3):
        service.write(1, "one\ntwo\n", member)
    service.finish(1)
    with Stream(place, "/v1/jobs/1/log?tail=1", last_id="1:8,4,0") as stream:
        begun = stream.next()
        assert begun == ("attempt", "1:8,4,0", {"attempt": 1, "members": ["node-a", "node-b", "node-c"]})
        told = [stream.next() or () for _ in range(2)]
        assert sorted(text["member"] for _, _, text in told) == [1, 2]
        assert {text["member"]: text["text"] for _, _, text in told} == {1: "two\n", 2: "one\ntwo\n"}
        assert told[-1][1] == "1:8,8,8"
        assert (stream.next() or ())[0] == "end"
    with Stream(place, "/v1/jobs/1/log", last_id="1:0") as stream:  # from the beginning of all
        assert (stream.next() or ())[1] == "1:0,0,0"
        told = [stream.next() or () for _ in range(3)]
        assert sorted(text["member"] for _, _, text in told) == [0, 1, 2]


def test_the_last_lines_are_those_of_each_member(place: Listening, service: FakeService) -> None:
    gang(service, "node-a", "node-b")
    service.write(1, "one\ntwo\n")
    service.finish(1)
    with Stream(place, "/v1/jobs/1/log?tail=1") as stream:
        assert (stream.next() or ())[0] == "attempt"
        assert stream.next() == ("log", "1:8,0", {"text": "two\n", "member": 0})
        assert (stream.next() or ())[0] == "end"


def test_characters_of_members_are_not_mixed(place: Listening, service: FakeService) -> None:
    gang(service, "node-a", "node-b")
    euro = "€".encode()
    with Stream(place, "/v1/jobs/1/log") as stream:
        stream.next()
        service.write(1, b"a" + euro[:1])
        assert stream.next() == ("log", "1:1,0", {"text": "a", "member": 0})
        service.write(1, b"b" + euro[:2], member=1)
        assert stream.next() == ("log", "1:1,1", {"text": "b", "member": 1})
        service.write(1, euro[1:])
        assert stream.next() == ("log", "1:4,1", {"text": "€", "member": 0})
        service.write(1, euro[2:], member=1)
        assert stream.next() == ("log", "1:4,4", {"text": "€", "member": 1})


def test_a_node_that_does_not_answer_says_so_once_and_the_rest_goes_on(
    place: Listening, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "AGAIN_S", 0.05)
    gang(service, "node-a", "node-b")
    service.write(1, "half", member=1)
    with Stream(place, "/v1/jobs/1/log") as stream:
        stream.next()
        assert stream.next() == ("log", "1:0,4", {"text": "half", "member": 1})
        service.silent.add("node-b")
        assert stream.next() == ("log", "1:0,4", {"text": "\n(node node-b does not answer)\n", "member": 1})
        service.write(1, " a line\n", member=1)
        service.write(1, "one\n")
        assert stream.next() == ("log", "1:4,4", {"text": "one\n", "member": 0})
        service.silent.clear()
        assert stream.next() == ("log", "1:4,12", {"text": " a line\n", "member": 1})
        time.sleep(4 * sse.LOG_PERIOD_S)  # it is seen to answer: else it would be as it was
        service.silent.add("node-b")
        assert (stream.next() or ())[2] == {"text": "(node node-b does not answer)\n", "member": 1}
        service.finish(1)
        assert (stream.next() or ())[0] == "end"  # what node-b may have had beyond that is not waited for


def test_a_node_that_hangs_holds_up_nobody(
    place: Listening, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, files_of = threading.Event(), service.files_of

    def hangs(log: LogOf) -> RunFiles:
        if log.node == "node-b":
            go_on.wait(60.0)
        return files_of(log)

    monkeypatch.setattr(service, "files_of", hangs)
    gang(service, "node-a", "node-b")
    service.write(1, "late\n", member=1)
    with Stream(place, "/v1/jobs/1/log") as stream:
        stream.next()
        for number in range(3):
            service.write(1, f"{number}\n")
            assert stream.next() == ("log", f"1:{2 * number + 2},0", {"text": f"{number}\n", "member": 0})
        go_on.set()
        assert stream.next() == ("log", "1:6,5", {"text": "late\n", "member": 1})


def test_what_should_not_be_delays_a_log_but_loses_nothing(
    place: Listening, service: FakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sse, "AGAIN_S", 0.02)
    failures: list[int] = []
    right = LocalFiles.log_mark

    def mark(files: LocalFiles, run: str) -> tuple[int, ...]:
        if len(failures) < 3:
            failures.append(1)
            raise RuntimeError("a bug")
        return right(files, run)

    monkeypatch.setattr(LocalFiles, "log_mark", mark)
    submit(service)
    service.run(1)
    with Stream(place, "/v1/jobs/1/log") as stream:
        stream.next()
        until(lambda: failures, "the first look")
        service.write(1, "one\n")
        assert stream.next() == ("log", "1:4", {"text": "one\n"})
    assert "logs can't be looked at; trying again" in caplog.text


def test_an_offset_in_a_gang_s_logs_needs_a_member(place: Listening, service: FakeService) -> None:
    gang(service, "node-a", "node-b")
    with Stream(place, "/v1/jobs/1/log?offset=3") as stream:
        assert stream.status == 400
    with Stream(place, "/v1/jobs/1/log?member=2") as stream:
        assert stream.status == 404


# -- ends -------------------------------------------------------------------------------------------------------------


def test_a_file_that_nobody_follows_is_not_looked_at(
    place: Listening, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[list[str]] = []
    right = sse._marks

    def marks(service: Any, logs: Any) -> Mapping[Any, object]:
        looks.append([log.run for log in logs])
        return right(service, logs)

    monkeypatch.setattr(sse, "_marks", marks)
    submit(service, 2)
    with Stream(place, "/v1/jobs/1/log") as one, Stream(place, "/v1/jobs/2/log"):
        for job in (1, 2):
            service.run(job)
            service.write(job, "words")
        first, second = "1.1", "2.1"
        until(lambda: bool(looks) and set(looks[-1]) == {first, second}, "both files to be looked at")
        service.preempt(1)
        service.run(1)
        service.write(1, "words")
        again = "1.2"
        until(lambda: set(looks[-1]) == {again, second}, "the file of the new attempt")
        assert [(one.next() or ())[0] for _ in range(4)] == ["attempt", "log", "attempt", "log"]

    def over() -> bool:
        before = len(looks)
        time.sleep(10 * sse.LOG_PERIOD_S)
        return len(looks) == before

    until(over, "looking to end")


def test_streams_end_in_order_with_the_server(service: FakeService) -> None:
    submit(service)
    with ExitStack() as stack:
        with served(service) as place:
            events = stack.enter_context(Stream(place, "/v1/events?after=3"))
            log = stack.enter_context(Stream(place, "/v1/jobs/1/log"))
            assert events.next()
            service.run(1)
            assert (log.next() or ())[0] == "attempt"
            service.write(1, "one\n")
            assert (log.next() or ())[0] == "log"
        while events.next() is not None:
            pass
        assert log.next() is None


def test_other_requests_go_on_beside_streams(place: Listening) -> None:
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(Stream(place, "/v1/events"))
        with http(place) as client:
            assert client.get("/v1/status").status_code == 200
