"""`gpuloom up`: the live scheduler and its API in one process."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuloom import __version__
from gpuloom.core.errors import InputError, MissingDependencyError
from gpuloom.executors.open_files import ask_for_more
from gpuloom.executors.wire import write_atomic
from gpuloom.fleet.certificates import Certificate, given, own
from gpuloom.live.facade import LiveService
from gpuloom.live.parts import LiveScheduler
from gpuloom.live.steps import WARNINGS_TO, Start, Step
from gpuloom.server.auth import load_or_make_token
from gpuloom.server.log import begin as begin_log
from gpuloom.server.log import keep as keep_log
from gpuloom.server.options import KubernetesOptions, ObserveOptions
from gpuloom.server.run import Listening, is_loopback, serve, warn_on_stderr
from gpuloom.store.home import Home, home_of

if TYPE_CHECKING:  # what not every scheduler needs is loaded where it is
    from gpuloom.kubernetes.api import Api
    from gpuloom.live.pilots import Pilots
    from gpuloom.live.pod_nodes import PodNodes
    from gpuloom.live.watching import Watching
    from gpuloom.slurm.plan import Plan, SlurmOptions

log = logging.getLogger("gpuloom")

PORT = 7411
"""The default port; a free one is taken if another program uses it."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `gpuloom up` is given. None: as it was the last time, else the default. default_policy: where none was set
    before; '': the usual one."""

    home: Path
    slots: int | None = None
    local: bool = True
    host: str = "127.0.0.1"
    port: int | None = None
    policy: str | None = None
    default_policy: str = ""
    interval_s: float | None = None
    log_level: str = "info"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    slurm: SlurmOptions | None = None
    observe: ObserveOptions | None = None
    kubernetes: KubernetesOptions | None = None


def run(options: UpOptions) -> int:
    """Run a scheduler until it is told to stop; returns the exit code."""
    begin_log(options.log_level)
    ask_for_more()
    warn = _warnings()
    with Start(warn) as start:
        return _run(options, start, warn)


def _run(options: UpOptions, start: Start, warn: Callable[[str], None]) -> int:
    home = home_of(options.home)
    if options.kubernetes is not None:
        start.at(Step.CLUSTER)  # a new home asks which Jobs it has
    plan, api, pods = _elsewhere(options, home)
    slots = options.slots if plan is None else None
    stops: list[Callable[[], None]] = []

    def end() -> None:
        for stop in stops:
            stop()

    if pods is not None and options.kubernetes is not None:
        start.at(Step.LEASE)
        try:
            pods.lead(waits=options.kubernetes.standby, say=log.warning, on_lost=end)
        except BaseException:
            pods.close()
            raise
    gc.disable()  # hardly anything that is loaded is garbage: looking for it in a long queue takes a sixth of the start
    try:
        live = LiveScheduler(
            home,
            slots=slots,
            local=options.local and plan is None and pods is None,
            address=_address(options.host),
            policy=options.policy,
            default_policy=options.default_policy,
            interval_s=options.interval_s,
            watches="" if api is None else api.server,
            pods=pods,
            at=start.at,
        )
    except BaseException:
        if pods is not None:
            pods.close()
        raise
    finally:
        gc.enable()
    keep_log(home.log)  # once nobody else can have it
    watching: Watching | None = None
    if pods is not None:
        start.at(Step.CLUSTER)
        try:
            pods.open()
        except BaseException:
            live.close_unstarted()
            raise
    if api is not None and options.observe is not None:
        from gpuloom.server.observing import watching_of

        start.at(Step.CLUSTER)
        try:
            watching = watching_of(options.observe, api, live)
        except BaseException:
            live.close_unstarted()
            raise
    if watching is not None:
        from gpuloom.live.observed import ObservedService

        service: LiveService = ObservedService(
            watching, live.sights, store_path=str(home.db), on_stop=end, check=live.check
        )
    else:
        service = LiveService(
            live.scheduler,
            live.sights,
            store_path=str(home.db),
            on_stop=end,
            machine=live.machine,
            check=live.check,
            links=live.links_problem,
            refresh=live.online.refresh,
        )
    live.scheduler.on_end(end)
    token = load_or_make_token(home.token)
    started = False
    pilots: Pilots | None = None

    def ready(listening: Listening) -> None:
        nonlocal started, pilots
        stops.append(listening.stop)
        if pods is not None and pods.lease.lost:  # before there was anything to end
            listening.stop()
        live.start()
        started = True
        if watching is not None:
            watching.start()
        # What is loaded stays: collections need not look at it, nor often at thousands of jobs that are no garbage.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        _write_server(home, listening.url, certificate)
        if plan is not None:
            from gpuloom.server.pilots import keep_port, pilots_of

            pilots = pilots_of(
                plan, live, url=listening.url, fingerprint="" if certificate is None else certificate.fingerprint
            )
            service.pilots_of = pilots.view
            keep_port(home, listening.port)
            pilots.start()
        start.done()
        log.info("ready at %s, home %s", listening.url, home.path)

    start.at(Step.ADDRESS)
    try:
        certificate = certificate_of(options, home)
        with _described(home):
            port = options.port or (_port_before(home) if plan is not None else None)
            port = (PORT if options.port is None else 0) if port is None else port
            serve(
                service, host=options.host, port=port, or_any=not options.port,
                token=token, on_ready=ready, certificate=certificate, nodes=live.nodes if watching is None else None,
            )  # fmt: skip
    finally:
        if pilots is not None:
            pilots.stop()
        if watching is not None:
            watching.stop()
        if started:
            live.close()
        else:
            live.close_unstarted()
    lost = pods is not None and bool(pods.lease.lost)
    return 1 if live.scheduler.failed is not None or lost else 0


def _elsewhere(options: UpOptions, home: Home) -> tuple[Plan | None, Api | None, PodNodes | None]:
    """What is asked of Slurm, the cluster that is watched, and that in which jobs run; None: not so."""
    plan, api, pods = None, None, None
    if options.slurm is not None:
        from gpuloom.server.pilots import slurm_plan

        plan = slurm_plan(options.slurm, home, options.slots)
    if options.observe is not None:
        from gpuloom.server.observing import api_of

        api = api_of(options.observe)
    if options.kubernetes is not None:
        from gpuloom.server.pods import pod_nodes_of

        pods = pod_nodes_of(options.kubernetes, home)
    return plan, api, pods


def _port_before(home: Home) -> int | None:
    from gpuloom.server.pilots import port_before

    return port_before(home)


def _warnings() -> Callable[[str], None]:
    """Says a warning on standard error, and to whoever has started this process and asked for it."""
    asked = os.environ.pop(WARNINGS_TO, "")
    if not asked:
        return warn_on_stderr
    place = int(asked)
    os.set_inheritable(place, False)

    def warn(text: str) -> None:
        warn_on_stderr(text)
        with suppress(OSError):  # it listens no more
            os.write(place, f"{text}\n".encode())

    return warn


@contextmanager
def _described(home: Home) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            if json.loads(home.server_json.read_text())["pid"] == os.getpid():
                home.server_json.unlink()


def _address(host: str) -> str:
    """Where a machine that listens there is reached by the processes of gangs on other nodes."""
    if is_loopback(host):
        return "127.0.0.1"  # they are all here
    return socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound


def certificate_of(options: UpOptions, home: Home) -> Certificate | None:
    """What it speaks TLS with: what is given, else, where other machines reach it, one of its own.

    Raises:
        InputError: what is given is none. MissingDependencyError: one of its own can't be made.
    """
    if (options.tls_cert is None) != (options.tls_key is None):
        raise InputError("--tls-cert and --tls-key go together: the certificate and its key, both in PEM")
    if options.tls_cert is not None and options.tls_key is not None:
        return given(options.tls_cert.absolute(), options.tls_key.absolute())
    if is_loopback(options.host):
        return None
    try:
        return own(home.tls, [options.host])
    except MissingDependencyError as error:
        raise InputError(
            f"{options.host} can be reached by other machines, which needs TLS: {error}; or give a certificate with "
            "--tls-cert and --tls-key; or listen at 127.0.0.1, and use an SSH tunnel or a proxy with TLS"
        ) from None


def _write_server(home: Home, url: str, certificate: Certificate | None) -> None:
    data = {"pid": os.getpid(), "url": url, "version": __version__, "started_s": time.time()}
    if certificate is not None:
        data |= {"certificate": str(certificate.cert), "fingerprint": certificate.fingerprint}
    try:
        write_atomic(str(home.server_json), data)
    except OSError as error:
        raise InputError(f"{home.server_json} can't be written: {error.strerror}") from error
