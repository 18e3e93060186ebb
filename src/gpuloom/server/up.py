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
        return _Up(options, start).run()


class _Up:
    """One start, its serving and its end; step by step, as each needs what the one before has made."""

    def __init__(self, options: UpOptions, start: Start) -> None:
        self.options, self.start = options, start
        self.home = home_of(options.home)
        if options.kubernetes is not None:
            start.at(Step.CLUSTER)  # a new home asks which Jobs it has
        self.plan, self.api, self.pods = _elsewhere(options, self.home)
        self.stops: list[Callable[[], None]] = []
        self.pilots: Pilots | None = None
        self.certificate: Certificate | None = None
        self.started = False

    def run(self) -> int:
        self._lead()
        self.live = self._scheduler()
        keep_log(self.home.log)  # once nobody else can have it
        try:
            self._open_pods()
            self.watching = self._watching()
        except BaseException:
            self.live.close_unstarted()
            raise
        self.service = self._service()
        self.live.scheduler.on_end(self.end)
        try:
            self._serve()
        finally:
            self._close()
        lost = self.pods is not None and bool(self.pods.lease.lost)
        return 1 if self.live.scheduler.failed is not None or lost else 0

    def end(self) -> None:
        for stop in self.stops:
            stop()

    def _lead(self) -> None:
        """Wait until no other scheduler has this home's jobs in the cluster."""
        if self.pods is None or self.options.kubernetes is None:
            return
        self.start.at(Step.LEASE)
        try:
            self.pods.lead(waits=self.options.kubernetes.standby, say=log.warning, on_lost=self.end)
        except BaseException:
            self.pods.close()
            raise

    def _scheduler(self) -> LiveScheduler:
        options = self.options
        gc.disable()  # hardly anything loaded is garbage; looking for it in a long queue is a sixth of the start
        try:
            return LiveScheduler(
                self.home,
                slots=options.slots if self.plan is None else None,
                local=options.local and self.plan is None and self.pods is None,
                address=_address(options.host),
                policy=options.policy,
                default_policy=options.default_policy,
                interval_s=options.interval_s,
                watches="" if self.api is None else self.api.server,
                pods=self.pods,
                at=self.start.at,
            )
        except BaseException:
            if self.pods is not None:
                self.pods.close()
            raise
        finally:
            gc.enable()

    def _open_pods(self) -> None:
        if self.pods is not None:
            self.start.at(Step.CLUSTER)
            self.pods.open()

    def _watching(self) -> Watching | None:
        if self.api is None or self.options.observe is None:
            return None
        from gpuloom.server.observing import watching_of

        self.start.at(Step.CLUSTER)
        return watching_of(self.options.observe, self.api, self.live)

    def _service(self) -> LiveService:
        live, path = self.live, str(self.home.db)
        if self.watching is not None:
            from gpuloom.live.observed import ObservedService

            return ObservedService(self.watching, live.sights, store_path=path, on_stop=self.end, check=live.check)
        return LiveService(
            live.scheduler,
            live.sights,
            store_path=path,
            on_stop=self.end,
            machine=live.machine,
            check=live.check,
            links=live.links_problem,
            refresh=live.online.refresh,
        )

    def _serve(self) -> None:
        options, token = self.options, load_or_make_token(self.home.token)
        self.start.at(Step.ADDRESS)
        self.certificate = certificate_of(options, self.home)
        with _described(self.home):
            serve(
                self.service,
                host=options.host,
                port=self._port(),
                or_any=not options.port,
                token=token,
                on_ready=self._ready,
                certificate=self.certificate,
                nodes=self.live.nodes if self.watching is None else None,
            )

    def _port(self) -> int:
        """The one that is asked for, or, as waiting pilots know it, the one of before."""
        port = self.options.port
        if not port and self.plan is not None:
            from gpuloom.server.pilots import port_before

            port = port_before(self.home)
        if port is None:
            return PORT if self.options.port is None else 0
        return port

    def _ready(self, listening: Listening) -> None:
        self.stops.append(listening.stop)
        if self.pods is not None and self.pods.lease.lost:  # before there was anything to end
            listening.stop()
        self.live.start()
        self.started = True
        if self.watching is not None:
            self.watching.start()
        # What is loaded stays: collections need not look at it, nor often at thousands of jobs that are no garbage.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        _write_server(self.home, listening.url, self.certificate)
        if self.plan is not None:
            self._start_pilots(self.plan, listening)
        self.start.done()
        log.info("ready at %s, home %s", listening.url, self.home.path)

    def _start_pilots(self, plan: Plan, listening: Listening) -> None:
        from gpuloom.server.pilots import keep_port, pilots_of

        fingerprint = "" if self.certificate is None else self.certificate.fingerprint
        self.pilots = pilots_of(plan, self.live, url=listening.url, fingerprint=fingerprint)
        self.service.pilots_of = self.pilots.view
        keep_port(self.home, listening.port)
        self.pilots.start()

    def _close(self) -> None:
        if self.pilots is not None:
            self.pilots.stop()
        if self.watching is not None:
            self.watching.stop()
        if self.started:
            self.live.close()
        else:
            self.live.close_unstarted()


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
