"""The page of a set of devices: a mapped file through which jobs that share these devices know of each other.

gpuloom's node makes it, and says in it who is together (`gpuloom/executors/devices.py`, which has the same layout).
The processes of the jobs write what comes after that: who holds a token, who waits for one, and since when. Each word
has one writer at a time; where two write at once, a turn goes to another one than it should, and no more.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import mmap
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

FILE = "page"
BYTES = 4096
MAGIC = 0x4E564157
VERSION = 1
RESOURCES = 4
"""Storage, CPU, GPU, network."""

# Words of 32 bits.
AT_MAGIC, AT_VERSION = 0, 1
AT_ON = 2
"""1: several jobs share the devices, and take turns."""
AT_GENERATION = 3
"""One more whenever members or order have changed."""
AT_MEMBERS = 4
AT_ORDER = 5
"""Job numbers, in the order in which their stages follow each other."""
MOST_MEMBERS = 8
AT_STUCK = 16
"""By resource: 1 + the seat of who has held its token for too long; others go on without it. 0: nobody."""
AT_GAVE_UP = 20
"""By resource: how often somebody waited in vain."""
AT_HOLDER = 24
"""By resource: 1 + the seat of who holds the token; 0: nobody."""
AT_CYCLE = 28
"""In how many turns tokens go round, and then the seats in their order; 0: who has waited longest goes next."""
AT_CYCLE_US = 37
"""Microseconds of a round, at most: who waits longer for its turn goes without."""
AT_SLIPS = 38
"""How often that happened."""
AT_CYCLE_ID = 39
"""Which order it is, counted from 1."""

# Words of 64 bits.
AT_LONGEST = 32
"""The longest time that a token was held since the generation began, microseconds."""
AT_SEATS, SEATS, SEAT_WORDS = 64, 16, 24
"""A process has a seat while it lives: so many words each."""
PID, JOB, SINCE, TURNS, WAITED_NS, APART, ITERATIONS = 0, 1, 2, 6, 7, 8, 9
STAGE_NS, ONCE, COUNTS, ROUNDS, PASSED = 10, 14, 15, 16, 20
"""Of a seat. SINCE: by resource, when it began to wait for the token (monotonic clock, nanoseconds); 0: it does not.
TURNS: tokens taken. WAITED_NS: for all of them. APART: 1: it fetches ahead, and takes no tokens. STAGE_NS: by resource,
for how long it usually holds the token. ONCE: 1: in each iteration it takes each token at most once. COUNTS: the order
in which its turns are counted, from an iteration's begin on. ROUNDS: by resource, so many. PASSED: by resource, turns
that it has lost as it came too late."""

_kept = []  # type: list[mmap.mmap]
"""A mapping has a descriptor of its own, which it closes when it goes; if the script has closed all descriptors, that
is one of the script's files by then. So none goes."""


class Page:
    """The page of a folder, mapped. words: of 32 bits; longs: of 64 bits.

    Raises:
        OSError: there is none. ValueError: it is one of another version, or none at all.
    """

    def __init__(self, folder: str) -> None:
        file = os.open(os.path.join(folder, FILE), os.O_RDWR | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(file, BYTES)
        finally:
            os.close(file)
        _kept.append(mapped)
        view = memoryview(mapped)
        self.words, self.longs = view.cast("I"), view.cast("Q")
        view.release()
        found = self.words[AT_MAGIC], self.words[AT_VERSION]
        if found != (MAGIC, VERSION):
            self.close()
            raise ValueError(f"{folder}/{FILE} is no page of version {VERSION}: it begins with {found}")

    def close(self) -> None:
        """Let go of it."""
        self.words.release()
        self.longs.release()

    def others(self, mine: int, resource: int) -> Iterator[tuple[int, int]]:
        """Seats but this one that wait for a resource's token, and since when."""
        longs = self.longs
        for seat in range(SEATS):
            if seat != mine:
                since = longs[AT_SEATS + seat * SEAT_WORDS + SINCE + resource]
                if since:
                    yield seat, since
