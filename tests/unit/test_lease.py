"""The lease of a node: its file, and what node and head make of it."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from gpuloom.core.errors import InputError
from gpuloom.executors import lease
from gpuloom.executors.lease import LAST_NS, NO_LEASE, OVER, LeaseFile, boottime_ns
from gpuloom.fleet.lease import MOST_WAITING, HeadLease, NodeLease, Terms, least_margin_s

LATER = 1 << 62


def made(home: Path) -> LeaseFile:
    file = LeaseFile(str(home))
    file.make()
    return file


def test_no_file_is_no_lease(tmp_path: Path) -> None:
    file = LeaseFile(str(tmp_path))
    assert (file.there(), file.deadline_ns(), file.left_s(), file.over()) == (False, NO_LEASE, None, False)
    assert (file.fences(), file.settled()) == (0, True)


def test_a_new_one_is_over_until_it_is_extended(tmp_path: Path) -> None:
    file = made(tmp_path)
    assert file.there()
    assert file.over()
    later = boottime_ns() + 10**10
    assert file.extend(later)
    assert not file.over()
    assert file.deadline_ns() == later
    left = file.left_s()
    assert left is not None
    assert 9 < left <= 10


def test_it_is_only_put_off(tmp_path: Path) -> None:
    file = made(tmp_path)
    assert file.extend(LATER)
    assert not file.extend(LATER)
    assert not file.extend(LATER - 1)
    assert file.deadline_ns() == LATER
    file.remove()
    file.remove()
    assert file.over()


def test_one_that_has_run_out_is_final_until_all_was_ended(tmp_path: Path) -> None:
    now = [10**12]
    file = LeaseFile(str(tmp_path), lambda: now[0])
    file.make()
    assert file.extend(10**12 + 10**9), "before the first lease nothing can have run"
    now[0] += 10**9 - LAST_NS
    assert not file.over(), "it has LAST_NS still"
    assert not file.extend(10**13), "too late, even if it is not over yet"
    assert not file.settled()
    now[0] += LAST_NS - 1
    assert not file.over()
    now[0] += 1
    assert file.over()
    assert not file.extend(10**13)
    file.count_fence()
    assert file.settled()
    assert file.extend(10**13)
    assert not file.settled()


def test_what_is_there_stays(tmp_path: Path) -> None:
    made(tmp_path).extend(LATER)
    assert made(tmp_path).deadline_ns() == LATER


def test_another_boot_is_over_and_made_anew(tmp_path: Path) -> None:
    file = made(tmp_path)
    file.extend(boottime_ns() + 10**12)
    file.count_fence()
    file.boot = "00000000-0000-0000-0000-000000000001"
    assert file.over()
    file.make()
    assert file.deadline_ns() == OVER
    assert file.fences() == 0


@pytest.mark.parametrize("damage", [b"", b"gpulease", b"x" * 64, b"\0" * 4096])
def test_a_damaged_one_is_over(tmp_path: Path, damage: bytes) -> None:
    file = made(tmp_path)
    file.extend(boottime_ns() + 10**12)
    Path(file.path).write_bytes(damage)
    assert file.over()
    assert file.extend(boottime_ns() + 10**12)  # an answered heartbeat heals it
    assert not file.over()


def test_taken_away_it_is_over(tmp_path: Path) -> None:
    file = made(tmp_path)
    file.extend(boottime_ns() + 10**12)
    assert not file.over()
    Path(file.path).unlink()
    assert file.over()
    assert file.fences() == 0


def test_one_that_cannot_be_read_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without file handles ends no runs, and starts none for want of a lease that it can't read."""
    file = made(tmp_path)
    file.extend(LATER)
    assert not file.over()

    def fails(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(lease.os, "open", fails)
    assert file.deadline_ns() == LATER
    other = LeaseFile.__new__(LeaseFile)
    other.__dict__.update(file.__dict__, _last=None)
    with pytest.raises(OSError, match="Too many open files"):
        other.over()


def test_half_written_the_earlier_deadline_counts(tmp_path: Path) -> None:
    file = made(tmp_path)
    file.extend(LATER)
    fd = os.open(file.path, os.O_WRONLY)
    os.pwrite(fd, (LATER + 5).to_bytes(8, sys.byteorder), lease._DEADLINE_AT)
    os.close(fd)
    assert file.deadline_ns() == LATER


def test_fences_are_counted(tmp_path: Path) -> None:
    file = made(tmp_path)
    file.extend(LATER)
    file.count_fence()
    file.count_fence()
    assert file.fences() == 2
    assert file.deadline_ns() == LATER


def test_terms_that_cannot_keep_the_promise() -> None:
    assert 3.06 < least_margin_s(30.0) < 3.07
    with pytest.raises(InputError, match=r"needs a margin of at least 3\.06 s"):
        Terms(margin_s=3.0)
    with pytest.raises(InputError, match="at least every 15 s, not every 20 s"):
        Terms(every_s=20.0)


def test_a_node_takes_only_answers_to_its_own_heartbeats(tmp_path: Path) -> None:
    file = LeaseFile(str(tmp_path), lambda: 5 * 10**9)
    file.make()
    node = NodeLease(file, Terms(), lambda: 5 * 10**9)
    first, second = node.beat(), node.beat()
    assert second == first + 1
    assert not node.answered(first + 7)
    assert node.answered(second)
    assert node.file.deadline_ns() == second + 30 * 10**9
    assert not node.answered(second)
    assert not node.answered(first), "an earlier one says nothing new"
    for _ in range(MOST_WAITING + 1):
        last = node.beat()
    assert not node.answered(last - MOST_WAITING)
    assert node.answered(last)


def test_a_head_counts_from_its_beginning_and_then_from_its_answers() -> None:
    head = HeadLease(Terms(), 100.0)
    assert head.left_s(100.0) == 35.0
    assert head.answer(120.0)
    assert not head.over(154.9)
    assert head.over(155.0)
    assert not head.answer(155.1), "given away it is not answered"
    assert head.over(0.0), "and stays so"
    head.begin_again(200.0)
    assert head.answer(201.0)
