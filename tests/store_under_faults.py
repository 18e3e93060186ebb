"""Writes to a store while each system call that it makes fails in turn; a program of test_store_syscalls.py, with
failing_calls.so preloaded.

    python tests/store_under_faults.py FOLDER STEP      every STEP-th fault; one JSON object of what was tried
"""

from __future__ import annotations

import ctypes
import errno
import json
import shutil
import sys
from collections import Counter
from pathlib import Path

from gpuloom.core.events import Event
from gpuloom.store.errors import StoreError
from gpuloom.store.sqlite import SqliteStore
from store_builders import Writer, ended, starting, submitted

CALLS = ("open", "write", "sync", "truncate", "read", "unlink", "mode")
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
ERRNOS = {
    "open": (errno.EACCES, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOSPC, errno.EROFS),
    "write": DISK,
    "sync": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "truncate": DISK,
    "read": (errno.EIO,),
    "unlink": (errno.EIO, errno.EROFS, errno.EACCES),
    "mode": (errno.EPERM, errno.EROFS),
}
LIBRARY = ctypes.CDLL(None)
LIBRARY.gl_count.restype = ctypes.c_long


def story(folder: Path) -> tuple[list[int], list[str]]:
    """Write a job's life, trying again at each error; numbers of events that were acknowledged, and the errors."""
    errors: list[str] = []
    acknowledged: list[int] = []
    store = None
    while store is None:
        try:
            store = SqliteStore(folder / "store.db")
        except StoreError as error:
            errors.append(str(error))
            if len(errors) > 3:
                return acknowledged, errors
    with store:
        writer = Writer(store)
        lives = [
            ("jobs.submitted", 1, submitted(1, env={"A": "b"})),
            ("attempt.starting", 1, starting()),
            ("attempt.running", 1, {"pid": 7, "start_ticks": 1, "boot_id": "b"}),
            ("attempt.ended", 1, ended(message="x" * 9000)),
        ]
        for kind, job, data in lives:
            for _ in range(4):
                event = Event(writer.last + 1, 10.0, kind, job, data)
                try:
                    writer.put([event])
                except StoreError as error:
                    errors.append(str(error))
                else:
                    acknowledged.append(event.id)
                    break
            else:
                break
        try:
            store.load()
            store.forget_environments(0.0)
        except StoreError as error:
            errors.append(str(error))
    return acknowledged, errors


def tried(folder: Path, kind: str, nth: int, number: int, lasting: bool) -> tuple[bool, list[str]]:
    """(whether the fault was met by an error, what is wrong) after this fault."""
    wrong: list[str] = []
    LIBRARY.gl_arm(str(folder).encode(), CALLS.index(kind), ctypes.c_long(nth), number, int(lasting))
    acknowledged, errors = story(folder)
    LIBRARY.gl_disarm()
    wrong += [f"no help in: {error}" for error in errors if ":" not in error or str(folder) not in error]
    if not lasting and len(acknowledged) != 4:
        wrong.append(f"only {len(acknowledged)} of 4 events could be written: {errors}")
    with SqliteStore(folder / "store.db") as store:
        found = [event.id for event in store.events()]
        if found[: len(acknowledged)] != acknowledged or len(found) > len(acknowledged) + lasting:
            wrong.append(f"acknowledged {acknowledged}, found {found}")
        if findings := store.check().findings:
            wrong.append(f"not sound: {findings}")
        writer = Writer(store)
        writer.last = found[-1] if found else 0
        writer.book.next_job = store.load().next_job
        writer.submit()  # and all goes on
    return bool(errors), wrong


def main() -> None:
    base, step = Path(sys.argv[1]), int(sys.argv[2])
    folder = base / "store"
    folder.mkdir()
    LIBRARY.gl_arm(str(folder).encode(), -1, ctypes.c_long(0), 0, 0)
    story(folder)
    counts = {kind: int(LIBRARY.gl_count(index)) for index, kind in enumerate(CALLS)}
    LIBRARY.gl_disarm()
    faults = [
        (kind, nth, number, lasting)
        for kind, count in counts.items()
        for nth in range(1, count + 1)
        for number in ERRNOS[kind]
        for lasting in (False, True)
    ]
    met: Counter[str] = Counter()
    wrong: list[str] = []
    chosen = faults[::step]
    for fault in chosen:
        shutil.rmtree(folder)
        folder.mkdir()
        met_here, wrong_here = tried(folder, *fault)
        met[fault[0]] += met_here
        wrong += [f"{fault}: {text}" for text in wrong_here]
    print(json.dumps({"calls": counts, "faults": len(chosen), "met": met, "wrong": wrong}))


main()
