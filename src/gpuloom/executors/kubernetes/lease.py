"""Which of several schedulers acts: the one that holds the Lease of their namespace and home.

As Kubernetes' own leader election has it (client-go), a holder writes its time down again and again, and others take
the Lease when they have seen no such change for as long as it lasts: by their own clocks, as those of two machines
differ.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuloom.executors.port import ExecutorError
from gpuloom.kubernetes.api import Api, ApiError, Object
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.kubernetes")

LASTS_S = 15
"""So long a Lease is held after it was last renewed."""
RENEWED_S = 3.0
"""It is renewed so often."""
MARGIN_S = 2.0
"""So much earlier than others may take it nothing is written any more."""
LOOK_S = 1.0
_LEASES = "/apis/coordination.k8s.io/v1"


class Lease:
    """`take` it, `start` to keep it, `close` to let it go.

    Args:
        home: what marks the objects of these schedulers. identity: of this process; '': made here.
    """

    def __init__(self, api: Api, namespace: str, home: str, identity: str = "") -> None:
        self.api, self.namespace, self.name = api, namespace, f"gpuloom-{home}"
        self.identity = identity or f"{_machine()}_{os.getpid()}"
        self._ended = threading.Event()
        self._worker = Worker(f"lease {self.name}", self._keep)
        self._version = ""
        self._until_s = 0.0
        self._problem = ""
        self._on_lost: Callable[[], None] = lambda: None
        self.lost = ""
        """'' or who has taken it, and that this scheduler acts no more."""

    # -- taking it --------------------------------------------------------------------------------------------------

    def take(self, *, waits: bool, say: Callable[[str], None] = lambda text: None) -> None:
        """Have the Lease. waits: for as long as another one holds it. say: told for whom it waits.

        Raises:
            ExecutorError: another one holds it, and `waits` is not set; or it can't be read or written.
        """
        seen, since_s, told = ("", ""), time.monotonic(), ""
        while True:
            try:
                found = self._there()
                spec = {} if found is None else _spec(found)
                holder, now = str(spec.get("holderIdentity") or ""), (str(spec.get("renewTime")), _version(found))
                renewed = now != seen and seen != ("", "")
                if now != seen:
                    seen, since_s = now, time.monotonic()
                silent = time.monotonic() - since_s > float(spec.get("leaseDurationSeconds") or LASTS_S)
                if holder in ("", self.identity) or silent or _has_ended(holder):
                    if self._taken(found):
                        return
                    continue  # somebody was faster
            except ApiError as error:
                if not waits or error.status in (401, 403):
                    rights = " (deploy/run-rbac.yaml has the rights that it needs)" if error.status == 403 else ""
                    raise ExecutorError(f"the Lease {self.namespace}/{self.name}: {error}{rights}") from error
                why = str(error)
            else:
                why = f"another scheduler acts for this home: {holder} holds the Lease {self.namespace}/{self.name}"
                if renewed and not waits:
                    raise ExecutorError(f"{why}. End it (`gpuloom down` there), or wait for its end with --standby")
            if why != told:
                say(told := why)
            time.sleep(LOOK_S)

    def _there(self) -> Object | None:
        try:
            return self.api.get(self._path(self.name))
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def _taken(self, found: Object | None) -> bool:
        """Write it down; whether nobody else has in between."""
        begun_s, now = time.monotonic(), _now()
        before = {} if found is None else _spec(found)
        others = found is not None and before.get("holderIdentity") != self.identity
        changes = int(before.get("leaseTransitions") or 0) + others
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LASTS_S,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": changes,
        }
        about: dict[str, Any] = {"labels": {"app.kubernetes.io/managed-by": "gpuloom"}}
        try:
            if found is None:
                item = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
                about |= {"name": self.name, "namespace": self.namespace}
                made = self.api.create(self._path(), {**item, "metadata": about})
            else:
                about["resourceVersion"] = _version(found)
                made = self.api.change(self._path(self.name), {"metadata": about, "spec": spec})
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        self._renewed(made, begun_s)
        return True

    # -- keeping it -------------------------------------------------------------------------------------------------

    def start(self, on_lost: Callable[[], None]) -> None:
        """Renew it from now on. on_lost: called in another thread once somebody else has taken it (`lost`)."""
        self._on_lost = on_lost
        self._worker.start()

    @property
    def why_not(self) -> str:
        """'' or why nothing may be written now."""
        if self.lost:
            return self.lost
        if time.monotonic() < self._until_s:
            return ""
        return f"the Lease {self.name} could not be renewed, so that another scheduler may act: {self._problem}"

    @property
    def problem(self) -> str:
        """'' or what is wrong with it."""
        return self.lost or self._worker.problem or self._problem

    def close(self) -> None:
        """Let it go, so that another one need not wait for its end."""
        self._ended.set()
        self._worker.end(5.0)
        held, self._until_s = bool(self._version) and not self.lost, 0.0
        if held:
            spec = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": _now()}
            with suppress(ApiError):  # then it ends by itself
                self.api.change(self._path(self.name), {"metadata": {"resourceVersion": self._version}, "spec": spec})

    def _keep(self) -> None:
        while not self._ended.wait(RENEWED_S if not self._problem else LOOK_S):
            try:
                self._renew()
                self._problem = ""
            except ApiError as error:
                self._problem = str(error)
            if self.lost:
                log.critical("%s", self.lost)
                self._on_lost()
                return

    def _renew(self) -> None:
        begun_s = time.monotonic()
        about = {"resourceVersion": self._version}
        try:
            made = self.api.change(self._path(self.name), {"metadata": about, "spec": {"renewTime": _now()}})
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            found = self._there()
            holder = "" if found is None else str(_spec(found).get("holderIdentity") or "")
            if holder not in ("", self.identity):
                self.lost = f"{holder} has taken the Lease {self.name}: this scheduler acts no more, and ends"
            else:  # an answer was lost, or somebody has let it go by hand
                self._taken(found)
            return
        self._renewed(made, begun_s)

    def _renewed(self, made: Object, begun_s: float) -> None:
        self._version = _version(made)
        self._until_s = begun_s + LASTS_S - MARGIN_S

    def _path(self, name: str = "") -> str:
        path = f"{_LEASES}/namespaces/{self.namespace}/leases"
        return f"{path}/{name}" if name else path


def _spec(item: Object) -> Mapping[str, Any]:
    return item.get("spec") or {}


def _version(item: Object | None) -> str:
    return "" if item is None else str(item["metadata"]["resourceVersion"])


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # the API takes six decimals and no others


def _machine() -> str:
    """Where the numbers of processes are the same: this machine since it last started, or this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        numbers = Path("/proc/self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        boot = numbers = secrets.token_hex(4)
    return f"{socket.gethostname()}_{boot}_{numbers}"


def _has_ended(holder: str) -> bool:
    """Whether it was a process of this machine that is there no more, or one in whose place this one runs."""
    machine, _, pid = holder.rpartition("_")
    if machine != _machine() or not pid.isdecimal():
        return False
    return int(pid) == os.getpid() or not Path(f"/proc/{pid}").exists()
