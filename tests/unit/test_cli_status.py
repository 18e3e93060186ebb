"""What `status` and `up` say of a scheduler, and `share simulate` of a pair, word by word."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.cli import background, service
from gpuloom.cli.share import profiles, simulate
from gpuloom.core.errors import InputError
from gpuloom.sharing.profiles import KernelRecord, collect

STATUS: dict[str, Any] = {
    "running": True, "url": "http://h:80", "home": "/h", "version": "1", "pid": 7, "started_s": 100.0, "now_s": 165.6,
    "store": {"path": "/s", "schema_version": 3, "ok": True, "problem": "x"},
    "executor": {"name": "e", "ok": False, "problem": ""}, "policy": "fifo", "policy_problem": "", "policy_lacks": [],
    "sharing": {"on": False, "text": "no GPU"}, "gpus": {"kind": "cpu", "total": 4, "busy": 1}, "interval_s": 60.0,
    "jobs": {"running": 1500, "queued": 0, "held": 2},
}  # fmt: skip


def test_lines_of_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuloom.cli.policy.preempts", lambda found: found["policy"])
    given: Any = STATUS
    assert service._status_lines(given) == [
        ("scheduler", "gpuloom 1, pid 7, up 1m 06s"), ("url", "http://h:80"), ("home", "/h"),
        ("store", "/s (schema 3): ok"),
        ("executor", "e: not ok"), ("policy", "fifo"), ("sharing", "off: no GPU"),
        ("devices", "4 CPU slots, no GPUs; 1 busy"), ("jobs", "1,500 running, 2 held"),
    ]  # fmt: skip
    other: Any = {
        **STATUS, "home": "", "jobs": {"queued": 0}, "gpus": {"kind": "gpu", "total": 1, "busy": 0},
        "sharing": {"on": True, "text": "by kernels"}, "policy_problem": "it fails",
        "policy_lacks": [{"text": "no speeds"}],
        "store": {**STATUS["store"], "ok": False}, "executor": {"name": "e", "ok": True, "problem": "x"},
    }  # fmt: skip
    assert service._status_lines(other)[2:] == [
        ("home", "-"), ("store", "/s (schema 3): x"), ("executor", "e: ok"), ("policy", "fifo; it fails; no speeds"),
        ("sharing", "on: by kernels"), ("devices", "1 GPU; 0 busy"), ("jobs", "none"),
    ]  # fmt: skip
    assert service.ready_line(given) == "gpuloom 1 is up at http://h:80 (pid 7, home /h), 4 CPU slots, no GPUs"


@pytest.mark.parametrize(
    ("asked", "differing"),
    [
        ({}, []),
        ({"slots": 4, "port": 80, "host": "127.0.0.1", "written": "fifo", "interval": 60.0}, []),
        ({"port": 0, "log_level": "debug"}, []),
        ({"slots": 3}, ["it has 4 CPU slots, no GPUs, and --slots is 3 (gpuloom down, then up again)"]),
        ({"port": 81}, ["its port is 80, and --port is 81 (gpuloom down, then up again)"]),
        ({"host": "127.0.0.2"}, ["it listens at 127.0.0.1, and --host is 127.0.0.2 (gpuloom down, then up again)"]),
        ({"written": "srtf"}, ["its policy is fifo, and --policy is srtf (gpuloom policy set)"]),
        (
            {"interval": 6.0},
            ["its interval is 1m 00s, and --interval is 6s (gpuloom policy set POLICY --interval TIME)"],
        ),
    ],
)
def test_what_a_scheduler_that_runs_has_not(
    asked: dict[str, Any], differing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_given", lambda ctx: asked)
    running: Any = STATUS
    context: Any = None
    assert service._differences(context, running, "http://127.0.0.1:80") == differing
    on_gpus: Any = {**STATUS, "gpus": {"kind": "gpu", "total": 4, "busy": 0}}
    assert len(service._differences(context, on_gpus, "http://127.0.0.1:80")) == (len(differing) or "slots" in asked)


def test_the_end_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "s.log"
    log.write_text("before\n" + "".join(f"{n}\n" for n in range(20)))
    assert service._end_of(log, 7) == f"; {log} says:\n" + "\n".join(str(n) for n in range(5, 20))
    assert background.written(log, 0).startswith("before\n0\n1")
    log.write_bytes(b"a" * 20_000)
    assert len(background.written(log, 0)) == 16_384
    assert len(background.written(log, 19_990)) == 10
    assert service._end_of(log, 20_000) == f"; {log} says nothing"
    monkeypatch.setattr("gpuloom.store.faults.no_room", lambda folder: "no space is left")
    assert service._end_of(log, 20_000).endswith(f"as no space is left on the disk of {tmp_path}: make room there")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a", ("a", None)),
        ("a:15rps", ("a", 15.0)),
        ("a: 2.5/s ", ("a", 2.5)),
        ("a:b:3", ("a:b", 3.0)),
        ("a:1 RPS", ("a", 1.0)),
    ],
)
def test_a_service_and_its_rate(text: str, found: tuple[str, float | None]) -> None:
    assert simulate._name_and_rate(text) == found


@pytest.mark.parametrize("text", ["a:", ":3", "a:x", "a:0", "a:-1", "a:inf", "a:nan"])
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="as in resnet50:15rps"):
        simulate._name_and_rate(text)


def test_which_part_of_a_run_is_drawn() -> None:
    arrivals = [int(n * 1e9) for n in (1, 2, 10, 20)]
    assert simulate._window(arrivals, 1e9) == (8.0, 20.0)
    assert simulate._window(arrivals[:1], 1e9) == (0.0, 11.0)


def test_a_pair_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    one = SimpleNamespace(
        requests=1500, duration_s=12.3456, load=0.256, alone_p50_ms=1.23456, alone_p99_ms=2.5, rule="orion", p50_ms=1.5,
        best_effort_alone_it_per_s=3.14159, p95_ms=2.0, p99_ms=2.75, p99_over_alone=1.1, best_effort_it_per_s=1.57,
        best_effort_over_alone=0.5, sm_utilisation=0.876, max_held_ms=12.34,
        held_ms={"a": 1234.56, "b": 6000.0, "c": 1.0, "d": 0.0, "e": 2.0, "f": 3.0},
    )  # fmt: skip
    given: Any = [one, SimpleNamespace(**{**vars(one), "rule": "none", "held_ms": {}})]
    simulate._print(given)
    assert capsys.readouterr().out == (
        "1,500 requests over 12.35 s, load 26%; alone p50 1.235 ms, p99 2.5 ms; training alone 3.142 it/s\n\n"
        "rule   p50 ms  p95 ms  p99 ms  p99/alone  training it/s  of alone  SMs busy  longest hold ms\n"
        "orion     1.5       2    2.75      1.100           1.57     0.500       88%             12.3\n"
        "none      1.5       2    2.75      1.100           1.57     0.500       88%             12.3\n"
        "\norion: a launch waits for b 48.6%, a 10.0%, f 0.0%, e 0.0%, c 0.0% of the time\n"
    )


def test_kernels_of_one_name() -> None:
    kernels = [
        KernelRecord("a", 4, 30, klass="compute", grid=(1, 1, 1)), KernelRecord("a", 9, 20, klass="memory"),
        KernelRecord("b", 1, 50, klass="memory"), KernelRecord("a", 2, 1, klass="memory", grid=(2, 1, 1)),
        KernelRecord("c", 1, 60, klass="unknown"),
    ]  # fmt: skip
    profile = collect("p", 8, kernels)
    assert profiles._by_name(profile) == [
        ("c", {"launches": 1, "duration_ns": 60, "sm_slots": 1, "longest_ns": 60, "class": "unknown"}),
        ("a", {"launches": 3, "duration_ns": 51, "sm_slots": 9, "longest_ns": 30, "class": "mixed"}),
        ("b", {"launches": 1, "duration_ns": 50, "sm_slots": 1, "longest_ns": 50, "class": "memory"}),
    ]
    twice = collect("p", 8, [kernels[1], *[kernels[0]] * 2])
    assert [(record.duration_ns, count) for record, count in profiles._by_time(twice)] == [(30, 2), (20, 1)]
