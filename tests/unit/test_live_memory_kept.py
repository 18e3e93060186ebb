"""A scheduler that ends in order has written down the policy's memory as it was then."""

from __future__ import annotations

import json
from pathlib import Path

from fake_executor import FakeExecutor
from gpuloom.live.planning import record
from gpuloom.store.home import home_of
from gpuloom.store.sqlite import SqliteStore
from live_builders import living


def test_the_memory_is_written_at_the_end_however_long_ago_it_was_written(tmp_path: Path) -> None:
    with living(tmp_path, FakeExecutor(), policy="tiresias") as live:
        live.submit()
        live.scheduler.do(lambda: setattr(live.scheduler.policy_record, "saved_s", live.scheduler.clock.now()))
        last = live.submit()
        assert live.scheduler.policy_record.unsaved
    assert record.SAVE_MEMORY_S >= 1.0  # else it was due
    with SqliteStore(home_of(tmp_path).db) as store:
        memory = store.load().memory
    assert memory is not None
    assert last in json.loads(memory[1].partition(b"\n")[0])["jobs"]
