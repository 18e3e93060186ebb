"""A list of the API that stays up to date: read once, then told of each change.

What is lost on the way is found again: a watch that is cut goes on from the last version; one whose version is too old
is begun anew from a list; who is asked to wait waits. A kind that the cluster does not have, or that may not be read,
is looked for again from time to time.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from gpuloom.kubernetes.api import Api, ApiError, CutOffError, Object

log = logging.getLogger("gpuloom.kubernetes")

T = TypeVar("T")

WATCH_S = 300
"""How long one watch lasts."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
PATIENCE_S = 5.0
"""So long a list may fail to be read at first."""
LOOK_AGAIN_S = 60.0
"""After so long it is seen whether there is a kind now that there was not, or that may be read now."""


class Informer(Generic[T]):
    """The objects of one kind, as what is read of each. `run` is the work of a thread; all else may be called from any.

    Args:
        path: of the list, such as '/api/v1/pods'. read: what is wanted of an object; None: it does not matter.
        changed: called after each change, in the informer's thread. pause: waits for so many seconds; True: it is to
            end. built_in: every cluster has the kind, so that an answer that it has not is one more failure. labels: a
            selector; '': all. passed: told of each object that has come, changed or gone, as it was and as it is (None:
            it was or is not there), before `changed` is called.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        read: Callable[[Object], T | None],
        changed: Callable[[], None],
        pause: Callable[[float], bool],
        *,
        built_in: bool = False,
        labels: str = "",
        passed: Callable[[T | None, T | None], None] = lambda before, after: None,
    ) -> None:
        self.path, self._built_in = path, built_in
        self._query = {"labelSelector": labels} if labels else {}
        self._api, self._read, self._changed, self._pause = api, read, changed, pause
        self._passed = passed
        self._lock = threading.Lock()
        self._items: dict[str, T] = {}
        self.settled = threading.Event()
        """The list has been read once, or it is known that it can't be for now."""
        self.problem = ""
        """Why it is not up to date now."""
        self.absent = ""
        """Why it is empty: the cluster has no such kind, or it may not be read."""
        self.version = ""

    def items(self) -> list[T]:
        """All of them, as they are now."""
        with self._lock:
            return list(self._items.values())

    def run(self) -> None:
        """List and watch until `pause` says that it is to end."""
        failures = 0
        while True:
            begun = time.monotonic()
            try:
                if not self.version:
                    self._list()
                self._follow()
                failures = 0
                if not self._pause(0.0 if time.monotonic() - begun > 1.0 else FIRST_PAUSE_S):
                    continue
                return
            except ApiError as error:
                failures = 1 if time.monotonic() - begun > LONGEST_PAUSE_S else failures + 1
                pause_s = self._troubled(error, failures)
            if self._pause(pause_s):
                return

    def _list(self) -> None:
        found, version = dict[str, T](), ""
        for page in self._api.pages(self.path, **self._query):  # objects are large, and what is read of them small
            found |= {_key(item): seen for item in page.items if (seen := self._read(item)) is not None}
            version = page.version
        self._replace(found)
        self.version, self.absent = version, ""
        self._well()
        self._changed()

    def _replace(self, found: dict[str, T]) -> None:
        with self._lock:
            before, self._items = self._items, found
        for key, was in before.items():
            self._passed(was, found.get(key))
        for key in found.keys() - before.keys():
            self._passed(None, found[key])

    def _follow(self) -> None:
        """One watch, to its end."""
        for change in self._api.watch(self.path, self.version, WATCH_S, **self._query):
            if change.kind != "BOOKMARK":
                key = _key(change.object)
                seen = None if change.kind == "DELETED" else self._read(change.object)
                with self._lock:
                    before = self._items.pop(key, None) if seen is None else self._items.get(key)
                    if seen is not None:
                        self._items[key] = seen
                self._passed(before, seen)
            self.version = change.object["metadata"]["resourceVersion"]
            self._well()
            if change.kind != "BOOKMARK":
                self._changed()
        self._well()

    def _well(self) -> None:
        if self.problem:
            log.warning("%s is up to date again", self.path)
            self.problem = ""
        self.settled.set()

    def _troubled(self, error: ApiError, failures: int) -> float:
        """What to do about it; for how long to wait."""
        if error.status == 410:
            self.version = ""  # too old to go on from
            return 0.0 if failures == 1 else FIRST_PAUSE_S
        if isinstance(error, CutOffError):
            return 0.0
        never = error.status in (401, 403) and not self.settled.is_set()
        if never or (error.status == 404 and not self._built_in):
            self.version = ""
            self._set_absent(str(error))
            return LOOK_AGAIN_S
        # What was read stays: rights that are gone for a while end no job.
        if str(error) != self.problem and (failures > 1 or not self.settled.is_set()):
            log.warning("%s", error)
            self.problem = str(error)
        least = min(FIRST_PAUSE_S * 2.0 ** (failures - 1), LONGEST_PAUSE_S)
        return max(error.retry_after_s or 0.0, least * random.uniform(0.5, 1.0))

    def _set_absent(self, why: str) -> None:
        if not self.absent:
            log.info("not read: %s", why)
        had = bool(self._items)
        self._replace({})
        self.absent, self.problem = why, ""
        self.settled.set()
        if had:
            self._changed()


def read_first(lists: Iterable[Informer[Any]]) -> None:
    """Wait until each of these has been read once, or is known to be absent. Their threads must have been started.

    Raises:
        ApiError: one has failed for PATIENCE_S.
    """
    begun_s = time.monotonic()
    for one in lists:
        while not one.settled.wait(0.05):
            if one.problem and time.monotonic() - begun_s > PATIENCE_S:
                raise ApiError(one.problem)


def _key(item: Object) -> str:
    about = item["metadata"]
    return str(about.get("uid") or f"{about.get('namespace', '')}/{about['name']}")
