"""Host discovery as Horovod asks for it, with pretended hosts: its format, changes, hosts that are silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuloom.training import discover_hosts
from gpuloom.training.discover_hosts import Watch, count_in, hosts_in, main, parser
from until import until

PROGRAM = [sys.executable, "-I", "-S", discover_hosts.__file__]
SSH = """#!/bin/sh
echo "$1" >> "$(dirname "$0")/reached"
answer="$(dirname "$0")/$1"
test -f "$answer" || { echo "ssh: connect to host $1: No route to host" >&2; exit 255; }
test "$(cat "$answer")" = stuck && exec sleep 600
cat "$answer"
"""
TWO_GPUS = "GPU 0: Tesla V100 (UUID: GPU-a)\n  MIG 1g.5gb\nGPU 1: Tesla V100 (UUID: GPU-b)\n"


class Hosts:
    """Pretended hosts: each is a file with its answer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.list = folder, folder / "worker.host", folder / "list"
        ssh = folder / "ssh"
        ssh.write_text(SSH)
        ssh.chmod(0o755)
        self.reach = ["--reach", f"{ssh} {{host}}", "--timeout", "20"]

    def are(self, *names: str) -> None:
        """Replace the hosts file, as the platform does."""
        new = self.folder / "new"
        new.write_text("".join(f"{name}\n" for name in names))
        new.replace(self.file)

    def answers(self, **answers: str) -> None:
        for name, answer in answers.items():
            (self.folder / name).write_text(answer)

    def reached(self) -> list[str]:
        path = self.folder / "reached"
        return path.read_text().split() if path.exists() else []

    def watch(self, *options: str) -> Watch:
        return Watch(parser().parse_args([str(self.file), "--out", str(self.list), *self.reach, *options]))


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def read_by_horovod(text: str) -> dict[str, int]:
    """What Horovod makes of the output of its discovery script (0.28.1, runner/elastic/discovery.py), strictly."""
    found = {}
    for line in set(text.strip().split("\n")) - {""}:
        host, slots = line.split(":")
        found[host] = int(slots)
    return found


def test_it_prints_each_host_with_its_gpus_and_leaves_out_who_does_not_answer(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.are("job-worker-0.job", "b", "# a comment", "", "c  # the third", "none", "gone", "b", "odd")
    hosts.answers(**{"job-worker-0.job": TWO_GPUS, "b": "4\n", "c": "GPU 0: A100\n", "none": "0", "odd": "no driver"})
    main([str(hosts.file), *hosts.reach])
    said = capsys.readouterr()
    assert said.out == "job-worker-0.job:2\nb:4\nc:1\n"
    assert read_by_horovod(said.out) == {"job-worker-0.job": 2, "b": 4, "c": 1}
    assert said.err.splitlines() == [
        "discover_hosts: gone is left out: 'nvidia-smi -L' ended with 255: ssh: connect to host gone: No route to host",
        "discover_hosts: odd is left out: 'nvidia-smi -L' ended with 0: no driver",
    ]


def test_a_host_that_is_stuck_holds_nobody_up_for_longer_than_the_timeout(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.are("a", "stuck")
    hosts.answers(a="2", stuck="stuck")
    main([str(hosts.file), *hosts.reach[:2], "--timeout", "1.5"])
    said = capsys.readouterr()
    assert said.out == "a:2\n"
    assert said.err == "discover_hosts: stuck is left out: no answer within 1.5 s\n"


def test_this_machine_is_asked_without_ssh(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.are("localhost", "far")
    main([str(hosts.file), "--reach", "/no/such/ssh {host}", "--count", "echo 3"])
    said = capsys.readouterr()
    assert said.out == "localhost:3\n"
    assert "far is left out: /no/such/ssh can't be run: No such file or directory" in said.err


def test_the_list_is_made_anew_only_when_hosts_change_or_a_silent_one_is_due(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.answers(a="2", b="4")
    watch = hosts.watch("--again", "30")
    assert not watch.look(0.0)  # no hosts file yet
    hosts.are("a", "c")
    assert watch.look(1.0)
    assert hosts.list.read_text() == "a:2\n"
    hosts.are("a", "c")  # another file, the same names
    assert not watch.look(30.0)
    hosts.are("b", "a", "c")
    assert watch.look(30.5)
    assert hosts.list.read_text() == "b:4\na:2\n"
    hosts.answers(c="1")
    assert not watch.look(60.0)
    assert watch.look(60.5)
    assert hosts.list.read_text() == "b:4\na:2\nc:1\n"
    assert not watch.look(1e6)  # all answer
    hosts.are("a")
    assert watch.look(1e6)
    assert hosts.list.read_text() == "a:2\n"
    assert sorted(hosts.reached()) == sorted("ac bac bac a".replace(" ", ""))
    hosts.file.unlink()
    assert not watch.look(2e6)
    assert hosts.list.read_text() == "a:2\n", "what is known stays"
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"discover_hosts: the hosts file {hosts.file} can't be read")
    assert said[1].startswith("discover_hosts: 1 of 2 hosts; c is left out: 'nvidia-smi -L' ended with 255")
    assert said[3] == "discover_hosts: 3 of 3 hosts"


@pytest.fixture
def watching(hosts: Hosts) -> Iterator[Any]:
    hosts.answers(**{f"h{number}": "8" for number in range(40)})
    hosts.are("h0")
    options = [str(hosts.file), "--out", str(hosts.list), "--watch", "--every", "0.02", *hosts.reach]
    with subprocess.Popen([*PROGRAM, *options], stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


@pytest.mark.slow
def test_a_poller_like_horovod_s_sees_whole_lists_only(hosts: Hosts, watching: Any) -> None:
    until(hosts.list.exists, "the first list", 60.0)
    sizes: list[int] = []
    wrong: list[str] = []
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            text = hosts.list.read_text()
            found = read_by_horovod(text)
            if not text.endswith("\n") or set(found.values()) != {8}:
                wrong.append(text)
            sizes.append(len(found))
            time.sleep(0.001)

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        for size in (40, 1, 17):
            hosts.are(*(f"h{number}" for number in range(size)))
            until(lambda size=size: sizes and sizes[-1] == size, f"a list of {size} hosts", 60.0)
    finally:
        over.set()
        poller.join()
    assert not wrong
    assert set(sizes) == {1, 17, 40}
    script = subprocess.run([*PROGRAM, "--print", hosts.list], capture_output=True, text=True, check=True)
    assert read_by_horovod(script.stdout) == dict.fromkeys((f"h{number}" for number in range(17)), 8)
    os.kill(watching.pid, signal.SIGTERM)
    assert watching.wait(60) == 0


def test_what_is_wrong_is_said_and_the_exit_code_is_not_0(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"discover_hosts: the hosts file /none can't be read"):
        main(["/none"])
    with pytest.raises(SystemExit, match=r"there is no list /none yet: is the process with --watch running\?"):
        main(["--print", "/none"])
    hosts.are("localhost")
    with pytest.raises(SystemExit, match=r"the list /none/list can't be written"):
        main([str(hosts.file), "--count", "echo 1", "--out", "/none/list"])
    for words in ([], ["a", "--print", "b"], ["a", "--watch"]):
        with pytest.raises(SystemExit) as code:
            main(words)
        assert code.value.code == 2
    assert "--watch needs --out LIST" in capsys.readouterr().err


def test_hosts_and_counts_as_they_are_written(hosts: Hosts) -> None:
    hosts.file.write_text("a slots=4\n\n  b\n#c\na\n")
    assert hosts_in(str(hosts.file)) == ["a", "b"]
    assert [count_in(text) for text in ("3\n", "", TWO_GPUS, "No devices were found\n", "-1", "1\n2")] == [
        *(3, 0, 2, None, None, None),
    ]
