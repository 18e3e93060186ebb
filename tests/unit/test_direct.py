"""A command once per GPU: real processes with torchrun's variables, ends, signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuloom.executors import direct

WHERE = ("--processes", "3", "--first", "2", "--world", "7", "--node", "1", "--nodes", "3", "--run", "12.1-ab")
OWN = {"PATH": os.environ["PATH"], "GPULOOM_GRACE_S": "20"}


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


HEAD = "import os, signal, sys, time\nsay = lambda text: os.write(1, f'{text}\\n'.encode())\n"
# In short naps: a signal between Python's last look and the call that sleeps would wake nobody.
HEAD += "def rest():\n    while True: time.sleep(0.05)\n"
"""`say`: a line in one piece, however many write at once."""


def started(code: str, *, env: dict[str, str] | None = None, where: tuple[str, ...] = WHERE) -> subprocess.Popen[str]:
    python = (sys.executable, "-I", "-S")
    return subprocess.Popen(
        (*python, direct.__file__, *where, "--", *python, "-c", f"{HEAD}{code}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**OWN, **(env or {})},
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, sorted(out.split()), err


def test_each_process_has_the_variables_of_torchrun() -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE "
    names += "ROLE_NAME "
    names += "TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE OMP_NUM_THREADS MASTER_PORT CUDA_VISIBLE_DEVICES"
    code, out, err = ended(
        started(
            f"say(':'.join(os.environ.get(name, '-') for name in {names.split()!r}))",
            env={"MASTER_PORT": "20001", "CUDA_VISIBLE_DEVICES": "G1,G2,G3"},
        )
    )
    assert (code, err) == (0, "")
    same = "default:12.1-ab:False:1:20001:G1,G2,G3"
    assert out == [f"{2 + local}:{local}:7:3:1:3:{2 + local}:7:{same}" for local in range(3)]


def test_slurm_s_numbers_where_they_are_asked_for() -> None:
    found = ended(
        started(
            "say(os.environ['SLURM_PROCID'] + ':' + os.environ['SLURM_LOCALID'] + os.environ['OMP_NUM_THREADS'])",
            env={"SLURM_PROCID": "2", "OMP_NUM_THREADS": "4"},
        )
    )
    assert found == (0, ["2:04", "3:14", "4:24"], "")


def test_the_first_to_fail_ends_the_others_and_is_named() -> None:
    code, out, err = ended(
        started("if os.environ['LOCAL_RANK'] == '1': sys.exit(7)\nrest()"),
    )
    assert (code, out) == (7, [])
    assert err == "gpuloom: rank 3 (local rank 1) ended with exit code 7; the other 2 here are ended\n"


def test_of_an_elastic_job_the_others_get_notice_and_who_failed_is_left_in_a_file(tmp_path: Path) -> None:
    env = {"GPULOOM_NOTICE_FILE": str(tmp_path / "notice"), "GPULOOM_REPLICAS": "3", "GPULOOM_GRACE_S": "45"}
    code, out, _ = ended(
        started(
            "notice = os.environ['GPULOOM_NOTICE_FILE']\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "open(notice + os.environ['LOCAL_RANK'], 'w').close()\n"
            "if os.environ['LOCAL_RANK'] == '1':\n"
            "    while not (os.path.exists(notice + '0') and os.path.exists(notice + '2')): time.sleep(0.02)\n"
            "    sys.exit(7)\n"
            "while not os.path.exists(notice): time.sleep(0.02)\n"
            "say('saved')\n"
            "sys.exit(85)",
            env=env,
        )
    )
    assert (code, out) == (7, ["saved", "saved"])
    assert json.loads((tmp_path / "failed.json").read_text()) == {"rank": 1, "others_code": 85}
    notice = json.loads((tmp_path / "notice").read_text())
    assert (notice["reason"], notice["message"]) == ("resized", "")
    assert 0 < notice["monotonic"] - time.monotonic() <= 45, "the job's own grace"


def test_without_sizes_nobody_is_given_notice(tmp_path: Path) -> None:
    env = {"GPULOOM_NOTICE_FILE": str(tmp_path / "notice")}
    code, _, _ = ended(started("if os.environ['LOCAL_RANK'] == '0': sys.exit(3)\nrest()", env=env))
    assert code == 3
    assert json.loads((tmp_path / "failed.json").read_text()) == {"rank": 0, "others_code": -signal.SIGTERM}
    assert not (tmp_path / "notice").exists()


def test_one_that_does_not_heed_is_killed_after_the_grace() -> None:
    code, _, err = ended(
        started(
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "if os.environ['LOCAL_RANK'] == '0': time.sleep(0.5), os.kill(os.getpid(), signal.SIGSEGV)\n"
            "rest()",
            env={"GPULOOM_GRACE_S": "0.3"},
        )
    )
    assert code == -signal.SIGSEGV
    assert err == "gpuloom: rank 2 (local rank 0) was killed by signal 11; the other 2 here are ended\n"


def test_one_that_ends_well_waits_for_the_others() -> None:
    code, out, _ = ended(started("time.sleep(0.2 * int(os.environ['LOCAL_RANK'])); say(os.environ['RANK'])"))
    assert (code, out) == (0, ["2", "3", "4"])


NOTICED = """
def save(*_):
    time.sleep(0.1 * int(os.environ['LOCAL_RANK']))
    say('saved' + os.environ['LOCAL_RANK'])
    sys.exit(85)
signal.signal(signal.SIGTERM, save)
say('up')
while True: rest()
"""


def test_a_notice_reaches_each_once_and_all_may_save() -> None:
    process = started(NOTICED)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["up\n"] * 3
    os.killpg(process.pid, signal.SIGTERM)  # as the runner gives notice
    assert ended(process) == (85, ["saved0", "saved1", "saved2"], "")


def test_after_a_notice_the_lowest_rank_counts(tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    process = started(
        "say('up')\nwhile not os.path.exists(os.environ['GPULOOM_NOTICE_FILE']): time.sleep(0.01)\n"
        "time.sleep(0.1 * int(os.environ['LOCAL_RANK']))\nsys.exit(85 + int(os.environ['LOCAL_RANK']))",
        env={"GPULOOM_NOTICE_FILE": str(notice)},
    )
    notice.write_text("{}")
    code, _, err = ended(process)
    assert (code, err) == (85, "")


def test_what_they_started_gets_the_signals_too() -> None:
    process = started("if os.fork() == 0: say('child'); rest()\nrest()", where=("--processes", "1", *WHERE[2:]))
    assert process.stdout is not None
    assert process.stdout.readline() == "child\n"
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == -signal.SIGINT


def test_a_program_that_is_not_there() -> None:
    found = subprocess.run(
        (sys.executable, "-I", "-S", direct.__file__, *WHERE, "--", "no-such-program"),
        capture_output=True,
        text=True,
        env=OWN,
        timeout=60,
    )
    assert (found.returncode, found.stderr) == (
        127,
        "gpuloom: can't run 'no-such-program': No such file or directory\n",
    )


@pytest.mark.parametrize(("status", "words"), [(9, "was killed by signal 9"), (7 << 8, "ended with exit code 7")])
def test_ends_in_words(status: int, words: str) -> None:
    assert direct.worded(status) == words


# -- JAX, Horovod, TensorFlow ------------------------------------------------------------------------------------

HERE = ("--processes", "2", "--first", "0", "--world", "3", "--node", "0", "--nodes", "2", "--run", "12.1-ab")
BESIDE = ("--counts", "2,1", "--addresses", "10.0.0.1,fd00::2")


def of(*words: str, where: tuple[str, ...] = HERE) -> list[dict[str, str]]:
    return direct.environments(direct.Asked((*where, *words)))


def test_what_jax_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS")
    second = of("--port", "20001")[1]
    assert [second[name] for name in names] == ["10.0.0.1:20001", "3", "1", "1"]
    monkeypatch.delenv("MASTER_ADDR")
    assert "JAX_PROCESS_ID" not in of("--port", "20001")[0]


def test_horovod_s_numbers_on_nodes_of_different_sizes() -> None:
    given = (*BESIDE, "--kind", "horovod", "--port", "20001")
    first, second = of(*given)
    (last,) = of(*given, where=("--processes", "1", "--first", "2", "--world", "3", "--node", "1", *HERE[8:]))
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    numbers = [[one[f"HOROVOD_{name}"] for name in names] for one in (first, second, last)]
    assert [" ".join(one) for one in numbers] == ["0 3 0 2 0 2", "1 3 1 2 0 1", "2 3 0 1 1 2"]
    assert first["HOROVOD_HOSTNAME"] == second["HOROVOD_HOSTNAME"] != last["HOROVOD_HOSTNAME"]
    assert (last["HOROVOD_GLOO_RENDEZVOUS_ADDR"], last["HOROVOD_GLOO_RENDEZVOUS_PORT"]) == ("10.0.0.1", "20001")
    assert "HOROVOD_GLOO_IFACE" not in first
    assert first["TORCHELASTIC_RUN_ID"] == "12.1-ab"


MEETS = """
import urllib.request, urllib.error
at = 'http://%s:%s/' % (os.environ['HOROVOD_GLOO_RENDEZVOUS_ADDR'], os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT'])
mine, other = int(os.environ['RANK']), 1 - int(os.environ['RANK'])
def ask(path, how, data=None):
    request = urllib.request.Request(at + path, data=data, method=how)
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).read()
ask('global/%d' % mine, 'PUT', b'\\x00at%d' % mine)
while True:
    try:
        found = ask('global/%d' % other, 'GET')
        break
    except urllib.error.HTTPError as error:
        assert error.code == 404
        time.sleep(0.02)
ask('global/%d' % mine, 'DELETE')
say(found.hex())
"""


def test_horovod_s_processes_meet_at_the_master(unused_port: int) -> None:
    one = ("--processes", "2", "--first", "0", "--world", "2", "--node", "0", "--nodes", "1", "--run", "1.1-ab")
    where = (*one, "--kind", "horovod", "--counts", "2", "--addresses", "127.0.0.1", "--port", str(unused_port))
    assert ended(started(MEETS, where=where)) == (0, [b"\0at0".hex(), b"\0at1".hex()], "")


def test_tf_config_of_workers_that_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "G1,G2")
    found = of(*BESIDE, "--kind", "tensorflow", "--port", "20001", "--each", "gpu")
    told = [json.loads(one["TF_CONFIG"]) for one in found]
    more = direct.port_at(20001, 1)
    assert told[0]["cluster"] == {"worker": ["10.0.0.1:20001", f"10.0.0.1:{more}", "[fd00::2]:20001"]}
    assert [one["task"] for one in told] == [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}]
    assert [(one["RANK"], one["CUDA_VISIBLE_DEVICES"]) for one in found] == [("0", "G1"), ("1", "G2")]
    assert "CUDA_VISIBLE_DEVICES" not in of(*BESIDE, "--kind", "tensorflow", "--port", "20001")[0]


def test_parameter_servers_are_dealt_out_and_have_no_gpu() -> None:
    found = of(*BESIDE, "--kind", "tensorflow", "--port", "20001", "--ps", "3")
    told = [json.loads(one["TF_CONFIG"]) for one in found]
    assert [(one["task"]["type"], one["task"]["index"]) for one in told] == [
        *(("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1)),
    ]
    assert {kind: len(at) for kind, at in told[0]["cluster"].items()} == {"chief": 1, "worker": 3, "ps": 3}
    addresses = [at for of_kind in told[0]["cluster"].values() for at in of_kind]
    assert len(set(addresses)) == len(addresses)
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in found] == ["", None, None, "", ""]
    ports = [direct.port_at(port, place) for port in (20000, 26999) for place in range(1, 16)]
    assert len(set(ports)) == len(ports)
    assert 27_000 <= min(ports) <= max(ports) < 32_000


SERVES = "kind = __import__('json').loads(os.environ['TF_CONFIG'])['task']['type']\n"
WITH_PS = ("--processes", "1", "--first", "0", "--world", "1", "--node", "0", "--nodes", "1", "--run", "1.1-ab")
WITH_PS += ("--kind", "tensorflow", "--counts", "1", "--addresses", "127.0.0.1", "--port", "20001", "--ps", "1")


@pytest.mark.parametrize(("code", "said"), [(0, ""), (3, "gpuloom: rank 0 (local rank 0) ended with exit code 3; the")])
def test_the_chief_s_end_is_the_job_s_and_ends_the_others(code: int, said: str) -> None:
    process = started(f"{SERVES}say(kind)\nif kind == 'chief': sys.exit({code})\nrest()", where=WITH_PS)
    found = ended(process)
    assert found[0] == code
    assert found[2].startswith(said)
    assert bool(found[2]) == bool(said)


def test_a_notice_goes_to_the_chief_while_the_others_serve_it() -> None:
    chief = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), say('saved'), sys.exit(85)))\n"
    other = "signal.signal(signal.SIGTERM, lambda *_: (say('served'), os._exit(0)))\n"
    process = started(f"{SERVES}exec({chief!r} if kind == 'chief' else {other!r})\nsay('up')\nrest()", where=WITH_PS)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["up\n"] * 3
    os.killpg(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.split()) == (85, ["saved", "served", "served"])


def test_where_the_chief_is_not_a_notice_is_passed_on_after_half_the_grace() -> None:
    where = tuple("1" if before == "--node" else word for before, word in zip(("", *WITH_PS), WITH_PS, strict=False))
    two = {"--nodes": "2", "--counts": "1,1", "--addresses": "127.0.0.1,127.0.0.1"}
    where = tuple(two.get(before, word) for before, word in zip(("", *where), where, strict=False))
    process = started("say('up')\nrest()", where=where, env={"GPULOOM_GRACE_S": "0.6"})
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    begun_s = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM)
    assert ended(process)[0] == -signal.SIGTERM
    assert time.monotonic() - begun_s >= 0.25


def test_a_command_has_the_signals_of_a_broken_pipe_as_in_a_shell() -> None:
    """Else a loop of the shell that writes to `head` would never end."""
    ignored = ("/bin/sh", "-c", "grep SigIgn /proc/self/status")
    command = (sys.executable, "-I", "-S", direct.__file__, "--processes", "1", *WHERE[2:], "--", *ignored)
    done = subprocess.run(command, env=OWN, capture_output=True, text=True, timeout=60, check=True)
    assert not int(done.stdout.split()[1], 16) & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))
