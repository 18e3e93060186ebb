"""`gpuloom up`, `down` and `status`: the scheduler itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli import background
from gpuloom.cli.live import connect, home_option, live_options, log_level_option, plain, say_json, short
from gpuloom.cli.pilots import chosen, left_in_slurm, left_words, own_name, slurm_options, words_of
from gpuloom.cli.pod_options import kubernetes_in, pod_options, words_of_pods
from gpuloom.cli.run_options import Duration
from gpuloom.core.errors import GpuloomError
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.client import Client
    from gpuloom.live.views.answers import ExecutorView, StatusView, StoreView

    class Ready(StatusView):
        """The status of a scheduler that runs, and where it is reached."""

        running: bool
        url: str


POLICY = "fifo:backfill=easy"
READY_S = 60.0
"""How long --detach waits for the scheduler to be ready."""


class UpError(GpuloomError):
    """The scheduler could not be started. code: what the scheduler ended with, where that is why."""

    def __init__(self, message: str, *, code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = code if code in (1, 2) else 1


@click.command()
@click.option("--slots", type=click.IntRange(1), metavar="N", help="Schedule N CPU slots in place of GPUs.")
@click.option(
    "--local/--no-local", default=True, help="Whether jobs may run on this machine [yes], or only on nodes that join."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port of the API; 0 for any free one [7411, or a free one if that is taken].",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen at. Other machines can connect unless it is a loopback address; then it speaks TLS.",
)
@click.option(
    "--tls-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Certificate (PEM) for TLS [where other machines can connect: one of its own].",
)
@click.option("--tls-key", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Its key (PEM).")
@click.option("--policy", "written", metavar="POLICY", help=f"Policy to start with [the last one, else {POLICY}].")
@click.option("--interval", type=Duration(), metavar="TIME", help="Time between preemptions [the last one].")
@log_level_option
@click.option(
    "--detach",
    "-d",
    is_flag=True,
    help="Return when it is ready. It runs on in the background, with its log in HOME/scheduler.log.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
@slurm_options
@pod_options
@home_option
@click.pass_context
def up(
    ctx: click.Context,
    /,
    slots: int | None,
    local: bool,
    port: int | None,
    host: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    written: str | None,
    interval: float | None,
    log_level: str,
    detach: bool,
    as_json: bool,
    home: Path | None,
    **about: Any,
) -> None:
    """Start the scheduler and its API, and continue where the last one stopped.

    All jobs run as the user who starts the scheduler, whoever submits them. GPUs are detected; without GPUs, --slots
    says how many CPU slots stand in for them. In the foreground Ctrl-C stops the scheduler; jobs keep running, and the
    next start finds them. If a scheduler runs already, the exit code is 1; with --detach it is 0, unless the options
    differ from those it runs with. With --slurm jobs run in allocations of Slurm that are asked for as jobs need them;
    what stands behind -- goes to sbatch. With --executor kubernetes they run as pods of a cluster.

    \b
    Examples:
      gpuloom up --detach
      gpuloom up --slurm -p gpu -G 16 --hours 8 --detach
      gpuloom up --executor kubernetes --namespace train --detach
      gpuloom up --slots 4 --policy tiresias
    """
    from gpuloom.client.home import home_directory

    if slots is not None and not local:
        raise click.UsageError("--slots are of this machine, and with --no-local no job runs here: give one of them")
    if not sys.platform.startswith("linux"):
        raise UpError("gpuloom up runs on Linux only: it needs process groups, cgroups and /proc")
    slurm = chosen(about)
    kubernetes = kubernetes_in(ctx.params)
    if slurm is not None and ctx.get_parameter_source("host") is click.core.ParameterSource.DEFAULT:
        host = ctx.params["host"] = own_name()
    if written is not None:
        from gpuloom.policies.registry import create_policy

        create_policy(written)  # what is wrong with it is told before anything starts
        if "=" in written:
            from gpuloom.facts.inputs import with_whole_paths

            written = ctx.params["written"] = with_whole_paths(written, Path.cwd())
    folder = home_directory(home)
    if (there := running_here(folder)) is not None and not (kubernetes and kubernetes.standby):
        text = f"a scheduler is running here already: pid {there['pid']}, {there['url']}, home {folder}"
        if not detach:
            raise UpError(text)
        if differing := _differences(ctx, there, there["url"]):
            raise UpError(f"{text}; but {'; '.join(differing)}")
        say_json(there) if as_json else click.echo(text)
        return
    if detach:
        ready = start_detached(folder, _arguments(ctx))
        say_json(ready) if as_json else click.echo(ready_line(ready))
        return
    from gpuloom.server.up import UpOptions, run

    say = threading.Thread(target=say_when_ready, args=(folder, os.getpid(), as_json), daemon=True)
    say.start()
    options = UpOptions(
        home=folder,
        slots=slots,
        local=local,
        host=host,
        port=port,
        policy=written,
        interval_s=interval,
        log_level=log_level,
        tls_cert=tls_cert,
        tls_key=tls_key,
        slurm=slurm,
        kubernetes=kubernetes,
    )
    ctx.exit(run(options))


FLAGS = {
    "slots": "--slots",
    "local": "--local",
    "port": "--port",
    "host": "--host",
    "tls_cert": "--tls-cert",
    "tls_key": "--tls-key",
    "written": "--policy",
    "interval": "--interval",
    "log_level": "--log-level",
}


def _given(ctx: click.Context) -> dict[str, Any]:
    """The options of this command that were given, but for --detach."""
    on_line = click.core.ParameterSource.COMMANDLINE
    return {
        name: ctx.params[name]
        for name in FLAGS
        if ctx.params[name] is not None and ctx.get_parameter_source(name) is on_line
    }


def _arguments(ctx: click.Context) -> list[str]:
    # The scheduler works in its home: files are named from there as well.
    given = _given(ctx)
    words = [] if "local" not in given else ["--local" if given.pop("local") else "--no-local"]
    found = [
        word
        for name, value in given.items()
        for word in (FLAGS[name], str(value.absolute() if isinstance(value, Path) else value))
    ]
    return [*words, *found, *words_of_pods(ctx.params), *words_of(ctx.params)]


def _differences(ctx: click.Context, running: Ready, url: str) -> list[str]:
    """Which options were given that the scheduler which runs does not have, and how to change that."""
    from urllib.parse import urlsplit

    given, address, gpus = _given(ctx), urlsplit(url), running["gpus"]
    anew = "gpuloom down, then up again"
    found = []
    if (slots := given.get("slots")) not in (None, gpus["total"] if gpus["kind"] == "cpu" else None):
        found.append(f"it has {_devices(running)}, and --slots is {slots} ({anew})")
    if given.get("port") not in (None, 0, address.port):  # 0: any
        found.append(f"its port is {address.port}, and --port is {given['port']} ({anew})")
    if "host" in given and not _same_host(given["host"], str(address.hostname)):
        found.append(f"it listens at {address.hostname}, and --host is {given['host']} ({anew})")
    if "written" in given and not _same_policy(given["written"], running["policy"]):
        found.append(f"its policy is {running['policy']}, and --policy is {given['written']} (gpuloom policy set)")
    if "interval" in given and given["interval"] != running["interval_s"]:
        found.append(
            f"its interval is {short(running['interval_s'])}, and --interval is {short(given['interval'])} "
            "(gpuloom policy set POLICY --interval TIME)"
        )
    return found


def _same_host(name: str, address: str) -> bool:
    import socket

    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False
    return address in {str(where[0]) for _, _, _, _, where in found}


def _same_policy(one: str, other: str) -> bool:
    from gpuloom.core.errors import PolicyError
    from gpuloom.policies.registry import parse_policy

    try:
        return parse_policy(one) == parse_policy(other)
    except PolicyError:
        return False


# -- ready ------------------------------------------------------------------------------------------------------------


def running_here(folder: Path) -> Ready | None:
    """The scheduler that runs in this home and answers; None: there is none.

    Raises:
        AccessError: it may not be asked.
    """
    from gpuloom.client.errors import AccessError, ClientError
    from gpuloom.client.home import alive, running

    try:
        found = running(folder)
    except AccessError:
        raise
    except ClientError:  # a crash of the machine left half of the file; this start writes it anew
        return None
    there = found is not None and alive(found.pid) and _answers(folder, found.pid)
    return _ready(folder, found.pid) if there and found is not None else None


def _answers(home: Path, pid: int) -> bool:
    """Whether the scheduler with this pid is ready."""
    from gpuloom.client import Client, ClientError
    from gpuloom.client.home import running

    try:
        found = running(home)
        if found is None or found.pid != pid:
            return False
        with Client(home, timeout_s=5.0, patience_s=0.0) as client:
            return client.health()["ok"]
    except ClientError:
        return False


def _ready(home: Path, pid: int) -> Ready:
    """What the ready line says, of a scheduler that answers."""
    from gpuloom.client import Client
    from gpuloom.client.home import running

    with Client(home) as client:
        status = client.status()
        found = running(home)
        return {
            "running": True,
            "url": client.connection.address.url if found is None else found.url,
            "home": str(home),
            **status,
        }


def ready_line(ready: Ready) -> str:
    """The line printed when the scheduler is ready: version, URL, devices."""
    where = f"{ready['url']} (pid {ready['pid']}, home {ready['home']})"
    return plain(f"gpuloom {ready['version']} is up at {where}, {_devices(ready)}")


def _devices(status: StatusView) -> str:
    gpus = status["gpus"]
    if gpus["kind"] == "cpu":
        return f"{plural(gpus['total'], 'CPU slot')}, no GPUs"
    return plural(gpus["total"], "GPU")


def say_when_ready(home: Path, pid: int, as_json: bool) -> None:
    from gpuloom.client import ClientError

    while not _answers(home, pid):
        time.sleep(0.05)
    try:
        ready = _ready(home, pid)
    except ClientError as error:  # it ended in the same moment
        click.echo(f"gpuloom: {error}", err=True)
        return
    if as_json:
        from gpuloom.cli.live import say_json_line

        say_json_line(ready)
    else:
        click.echo(ready_line(ready))
    sys.stdout.flush()


def start_detached(home: Path, arguments: Sequence[str], *, command: str = "up", timeout_s: float = READY_S) -> Ready:
    """Start `gpuloom up` in a session of its own and wait until it is ready. What `_ready` says of it.

    command: another one than `up` that runs a scheduler.

    Raises:
        UpError: it ended, or is not ready in time, and goes on; with the end of its log.
    """
    from gpuloom.live.steps import WARNINGS_TO

    warnings, place = os.pipe()
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = home / "scheduler.log"
        words = [command, "--home", str(home), *arguments]
        environment = {**os.environ, WARNINGS_TO: str(place)}
        process, start = background.start(words, cwd=home, log=log, env=environment, pass_fds=(place,))
    except OSError as error:
        raise UpError(f"{error.filename}: {error.strerror}") from None
    os.close(place)
    with open(warnings, "rb", buffering=0) as said:
        os.set_blocking(warnings, False)
        return _when_ready(process, home, log, start, said, timeout_s)


def _when_ready(
    process: subprocess.Popen[bytes], home: Path, log: Path, start: int, said: RawIOBase, timeout_s: float
) -> Ready:
    """Wait for a scheduler that starts, and pass its warnings on. start: of what it logs. said: the warnings."""
    until = time.monotonic() + timeout_s
    rest = b""
    while time.monotonic() < until:
        ended, ready = process.poll() is not None, _answers(home, process.pid)
        if not ended:
            # Such as what it waits for (live/steps.py), or that traffic is not encrypted (server/run.py).
            *lines, rest = (rest + (said.read(65_536) or b"")).split(b"\n")
            for line in lines:
                click.echo(f"gpuloom: warning: {line.decode('utf-8', 'replace')}", err=True)
        if ended:
            text = f"the scheduler ended with exit code {process.returncode}{_end_of(log, start)}"
            raise UpError(text, code=process.returncode)
        # It outlives this process on purpose, so nobody waits for it here.
        if ready:
            process.returncode = 0
            return _ready(home, process.pid)
        time.sleep(0.05)
    # What takes so long may be the update of a large store: to end it would only mean to begin anew.
    pid, process.returncode = process.pid, 0
    raise UpError(
        f"the scheduler (pid {pid}) is not ready after {timeout_s:g} s, and is still starting: `gpuloom status` says "
        f"when it is ready, `kill {pid}` stops it{_end_of(log, start)}"
    )


def _end_of(log: Path, start: int, lines: int = 15) -> str:
    """The last lines of what was written to a log from `start` on."""
    shown = "\n".join(background.written(log, start).splitlines()[-lines:])
    return f"; {log} says:\n{shown}" if shown else f"; {log} says nothing{_no_room(log.parent)}"


def _no_room(folder: Path) -> str:
    """That nothing can be written there, which may be why a log says nothing."""
    from gpuloom.store.faults import no_room

    lacking = no_room(folder)
    return f", as {lacking} on the disk of {folder}: make room there" if lacking else ""


# -- down, status -----------------------------------------------------------------------------------------------------


@click.command()
@click.option(
    "--stop-jobs",
    is_flag=True,
    help="Stop running jobs first, with their grace period. They queue, and go on at the next up.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    default="60",
    show_default=True,
    metavar="TIME",
    help="How long to wait for it to stop.",
)
@live_options
def down(stop_jobs: bool, timeout_s: float, as_json: bool, home: Path | None) -> None:
    """Stop the scheduler. Running jobs keep running, unless --stop-jobs; waiting jobs stay queued.

    With --stop-jobs running jobs are put back into the queue (not cancelled), and go on at the next gpuloom up.

    \b
    Examples:
      gpuloom down
      gpuloom down --stop-jobs --timeout 5m
    """
    from gpuloom.client import NoSchedulerError

    with connect(home) as client:
        try:
            found, pilots = client.status(), client.pilots()
        except NoSchedulerError as error:
            # What was asked for is so; but who mistook the home should see it.
            say_json({"was_running": False, "detail": str(error)}) if as_json else click.echo(
                f"nothing to stop: {error}"
            )
            return
        pid, jobs = found["pid"], found["jobs"]
        local = client.connection.address.home is not None
        client.shutdown(stop_jobs=stop_jobs)
        until = time.monotonic() + timeout_s
        while _there(client, pid, local):
            if time.monotonic() > until:
                raise UpError(f"the scheduler (pid {pid}) still runs after {short(timeout_s)}; it was asked to stop")
            time.sleep(0.05)
    left, trouble = left_in_slurm(Path(found["home"])) if local and pilots["most_nodes"] else ([], "")
    if as_json:
        say_json({"was_running": True, "pid": pid, "stopped_jobs": stop_jobs, "pilots_left": left})
        return
    count = sum(jobs.get(state, 0) for state in ("running", "starting", "stopping", "frozen"))
    more = f"; {'put back into the queue' if stop_jobs else 'left running'}: {plural(count, 'job')}" if count else ""
    click.echo(f"the scheduler (pid {pid}) has ended{more}")
    if left:
        click.echo(plain(left_words(left)))
    if trouble:
        click.echo(plain(f"pilots may be left in Slurm, which can't be asked now: {trouble}"), err=True)


def _there(client: Client, pid: int, local: bool) -> bool:
    from gpuloom.client import Client, ClientError
    from gpuloom.client.home import alive

    if local:
        return alive(pid)
    address = client.connection.address
    try:
        with Client(url=address.url, token=address.token, patience_s=0.0) as other:
            other.health()
    except ClientError:
        return False
    return True


@click.command()
@live_options
@click.pass_context
def status(ctx: click.Context, as_json: bool, home: Path | None) -> None:
    """Show the scheduler: pid, URL, version, store, executor, policy, jobs, GPUs. Exit code 1 if none runs.

    \b
    Examples:
      gpuloom status
      gpuloom status --json
    """
    from gpuloom.cli.pilots import summary
    from gpuloom.client import NoSchedulerError, home_directory

    folder = home_directory(home)
    with connect(home) as client:
        try:
            found, pilots = client.status(), client.pilots()
            address = client.connection.address
        except NoSchedulerError as error:
            if as_json:
                say_json({"running": False, "home": str(folder), "detail": str(error)})
            else:
                click.echo(str(error))
            ctx.exit(1)
    shown: Ready = {"running": True, "url": address.url, "home": found["home"], **found}
    if as_json:
        say_json({**shown, "pilots": pilots} if pilots["on"] else shown)
        return
    for title, text in [*_status_lines(shown), *([("pilots", summary(pilots))] if pilots["on"] else [])]:
        click.echo(f"{title + ':':<11}{plain(text)}")


def _status_lines(found: Ready) -> list[tuple[str, str]]:
    store, executor, sharing = found["store"], found["executor"], found["sharing"]
    jobs = ", ".join(f"{count:,} {state}" for state, count in found["jobs"].items() if count)
    return [
        (
            "scheduler",
            f"gpuloom {found['version']}, pid {found['pid']}, up {short(round(found['now_s'] - found['started_s']))}",
        ),
        ("url", found["url"]),
        ("home", found["home"] or "-"),
        ("store", f"{store['path']} (schema {store['schema_version']}): {_health(store)}"),
        ("executor", f"{executor['name']}: {_health(executor)}"),
        ("policy", _policy(found)),
        ("sharing", f"{'on' if sharing['on'] else 'off'}: {sharing['text']}"),
        ("devices", f"{_devices(found)}; {found['gpus']['busy']} busy"),
        ("jobs", jobs or "none"),
    ]


def _policy(found: StatusView) -> str:
    from gpuloom.cli.policy import preempts

    problem = found["policy_problem"]
    lacks = [lack["text"] for lack in found["policy_lacks"]]
    return "; ".join([preempts(found), *([problem] if problem else []), *lacks])


def _health(part: StoreView | ExecutorView) -> str:
    return "ok" if part["ok"] else part["problem"] or "not ok"
