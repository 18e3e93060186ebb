"""Images and examples of jobs in pods: what they copy is there, what they ask for is taken, and workers let the master
in over ssh without root."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fake_kubernetes.cluster import VCJOB, Cluster
from fake_kubernetes.server import FakeApi
from gpuloom.core.replicas import replicas_of
from gpuloom.core.spec import Launcher
from gpuloom.executors.recognise import launcher_for, may_resize
from gpuloom.kubernetes.objects import Reader
from gpuloom.live.submission.spec import job_spec
from until import until

TOP = Path(__file__).resolve().parents[2]
RUNTIMES, EXAMPLES = TOP / "deploy" / "runtimes", TOP / "examples" / "kubernetes"
DISCOVER = TOP / "src" / "gpuloom" / "training" / "discover_hosts.py"
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def files() -> list[Path]:
    return sorted(RUNTIMES.glob("*.Dockerfile"))


def test_there_is_one_for_each_framework() -> None:
    assert [one.stem for one in files()] == ["horovod", "pytorch", "tensorflow"]


@pytest.mark.parametrize("place", files(), ids=lambda one: one.stem)
def test_what_an_image_copies_is_there_and_it_is_not_root(place: Path) -> None:
    text = re.sub(r"\\\n", " ", "\n".join(one for one in place.read_text().splitlines() if not one.startswith("#")))
    lines = [line.split() for line in text.splitlines() if line.strip()]
    for words in lines:
        if words[0] == "COPY":
            assert all((TOP / source).exists() for source in words[1:-1]), words
    users = [words[1] for words in lines if words[0] == "USER"]
    assert users[-1] == "10001:10001"
    assert "--uid 10001" in text
    assert lines[0][0] in ("FROM", "ARG")


@pytest.mark.parametrize("name", ["pytorch", "tensorflow"])
def test_an_example_is_an_elastic_job_with_a_script_of_its_image(name: str) -> None:
    given = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    spec = job_spec(given)
    assert spec.elastic == "1-4"
    assert spec.checkpoint in spec.command
    (script,) = (word for word in spec.command if word.endswith(".py"))
    image = (RUNTIMES / f"{name}.Dockerfile").read_text()
    assert f"/{Path(script).name} " in image
    if name == "pytorch":
        assert may_resize(spec.kept()), "those that are there train on"
    else:
        assert launcher_for(spec.kept()) is Launcher.TENSORFLOW


def test_the_horovod_example_is_a_job_that_volcano_takes() -> None:
    item: dict[str, Any] = yaml.safe_load((EXAMPLES / "horovod.yaml").read_text())
    master, worker = item["spec"]["tasks"]
    api = FakeApi()
    try:
        about = {name: text for name, text in item["metadata"].items() if name != "namespace"}
        made = Cluster(api).create({**item, "metadata": about}, VCJOB)
        assert made["metadata"]["name"] == "horovod"
    finally:
        api.close()
    assert "schedulingGates" not in master["template"]["spec"], "it has no GPU, and waits for nothing"
    seen = Reader().volcano_job(made)
    assert seen is not None
    assert (seen.replicas, seen.task) == (2, 1), "the number of its workers can be changed"
    assert replicas_of(worker["template"]["metadata"]["annotations"]["gpuloom.io/elastic"]).sizes == (1, 2, 3, 4)
    assert worker["template"]["spec"]["schedulingGates"] == [{"name": "gpuloom.io/queue"}]
    for task in (master, worker):
        pod = task["template"]["spec"]
        assert pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001}
        assert (RUNTIMES / pod["containers"][0]["command"][0]).exists()
    assert item["spec"]["plugins"]["ssh"] == ["--ssh-key-file-path=/home/trainer/.ssh"]
    asks = worker["template"]["spec"]["containers"][0]["resources"]
    assert asks["limits"] == asks["requests"], "with limits alone Volcano counts no GPUs"


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A worker's sshd: its port, and a home with the job's key. Skips where there is none."""
    if SSHD is None:
        pytest.skip("sshd is not installed: scripts/install-system-parts")
    home = tmp_path / "home"
    keys = home / ".ssh"
    keys.mkdir(parents=True)
    make_key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / "id")]
    subprocess.run(make_key, check=True)
    shutil.copy(keys / "id.pub", keys / "authorized_keys")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["-o", f"Port={port}", "-o", "ListenAddress=127.0.0.1", "-o"]
    options += [f"AuthorizedKeysFile={keys / 'authorized_keys'}"]
    if os.geteuid() == 0:  # sshd of root wants its folder
        Path("/run/sshd").mkdir(exist_ok=True)
    with (tmp_path / "sshd.log").open("wb") as log:
        process = subprocess.Popen(
            [RUNTIMES / "workers-sshd", *options],
            env={**os.environ, "GPULOOM_SSHD": str(tmp_path / "sshd")},
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: b"listening" in (tmp_path / "sshd.log").read_bytes(), "sshd to listen", 30.0)
        yield port, home
    finally:
        process.terminate()
        process.wait()
    assert stat.S_IMODE((tmp_path / "sshd" / "host_key").stat().st_mode) == 0o600


def reach(port: int, home: Path) -> str:
    quiet = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    return f"ssh -o BatchMode=yes -o IdentitiesOnly=yes {quiet} -i {home / '.ssh' / 'id'} -p {port} {{host}}"


def test_the_discovery_program_reaches_a_worker_with_the_job_s_key(sshd: tuple[int, Path], tmp_path: Path) -> None:
    port, home = sshd
    words = [sys.executable, str(DISCOVER), str(tmp_path / "hosts"), "--count", "echo 3", "--timeout", "20"]
    # It would ask this machine without ssh by its usual names.
    (tmp_path / "hosts").write_text("127.0.0.3\n::1\n")
    words += ["--reach", reach(port, home).replace("{host}", "127.0.0.1")]
    told = subprocess.run(words, capture_output=True, text=True, check=True)
    assert told.stdout == "127.0.0.3:3\n::1:3\n"
    (home / ".ssh" / "authorized_keys").write_text("")
    told = subprocess.run(words, capture_output=True, text=True, check=True)
    assert told.stdout == ""
    assert "Permission denied" in told.stderr


def test_the_master_runs_horovodrun_with_the_hosts_as_they_are(tmp_path: Path) -> None:
    """Stand-ins for ssh and for horovodrun: it waits for the first host, asks anew, and passes signals and codes on."""
    horovodrun = tmp_path / "horovodrun"
    horovodrun.write_text(
        '#!/bin/sh\ntrap "echo told; exit 7" TERM\nshift\nscript=$1\nshift\necho "$@"\n"$script"\n'
        'while ! test -e "$END"; do sleep 0.05; done\n"$script"\nexit 3\n'
    )
    horovodrun.chmod(0o755)
    hosts, end, out = tmp_path / "hosts", tmp_path / "end", tmp_path / "out"
    hosts.write_text("")
    env = {**os.environ, "HOROVODRUN": str(horovodrun), "GPULOOM_HOSTS": str(hosts), "END": str(end)}

    def begun(**more: str) -> subprocess.Popen[bytes]:
        with out.open("wb") as log:
            words = [RUNTIMES / "master-horovodrun", "--min-np", "1", "python", "train.py"]
            return subprocess.Popen(words, env={**env, **more}, stdout=log, stderr=subprocess.STDOUT)

    count = tmp_path / "count"
    count.write_text("#!/bin/sh\necho 2\n")
    count.chmod(0o755)
    env["GPULOOM_DISCOVER"] = f"--reach env --every 0.1 --count {count}"
    process = begun()
    hosts.write_text("worker-0\n")
    until(lambda: b"worker-0:2" in out.read_bytes().replace(b"\r", b""), "the first host", 30.0)
    assert b"--min-np 1 python train.py" in out.read_bytes()
    hosts.write_text("worker-0\nworker-1\n")
    until(lambda: b"2 of 2 hosts" in out.read_bytes(), "the second host", 30.0)
    end.touch()
    assert process.wait(30) == 3
    assert out.read_bytes().count(b"worker-1:2") == 1
    end.unlink()
    process = begun()
    until(lambda: b"python train.py" in out.read_bytes(), "horovodrun", 30.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 7
    assert b"told" in out.read_bytes()
