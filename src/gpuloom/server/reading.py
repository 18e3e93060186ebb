"""The API of a damaged store, for commands that read, while no scheduler can run."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuloom.live.stored import StoredService
from gpuloom.server.run import Listening, serve
from gpuloom.store.errors import StoreError
from gpuloom.store.faults import damaged_text
from gpuloom.store.home import Home
from gpuloom.store.sqlite import SqliteStore


@contextmanager
def readable(home: Path) -> Iterator[tuple[str, str, str] | None]:
    """(URL, token, what is wrong) of an API on loopback, as long as it is needed; None where nothing keeps a scheduler
    from being started, or where nothing can be read."""
    found = Home(home)
    try:
        store = SqliteStore(found.db, read_only=True, lenient=True) if found.db.is_file() else None
    except StoreError:
        store = None
    if store is None:
        yield None
        return
    with store:
        try:
            report = store.examine().report
            problem = damaged_text(found.db, report) if report.findings else ""
        except StoreError as error:
            problem = str(error)
        if not problem:
            yield None
            return
        token, ready = secrets.token_hex(16), threading.Event()
        places: list[Listening] = []

        def on_ready(listening: Listening) -> None:
            places.append(listening)
            ready.set()

        def run() -> None:
            try:
                serve(StoredService(store, found.runs, problem), token=token, on_ready=on_ready)
            finally:
                ready.set()

        thread = threading.Thread(target=run, name="store-reading", daemon=True)
        thread.start()
        ready.wait()
        try:
            yield (places[0].url, token, problem) if places else None
        finally:
            for place in places:
                place.stop()
            thread.join()
