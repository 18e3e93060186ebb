"""What a head must know of its nodes after a restart, in a file: how long each may go on without being heard of.

A lease is written down before it is given. So a node that the file does not name has the usual one at most; and where
there is no file, or none that can be read, any lease may have been given.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.executors.wire import write_atomic
from gpuloom.fleet.codec import of_plain
from gpuloom.fleet.lease import terms_of

log = logging.getLogger("gpuloom.nodes")


@dataclass(frozen=True, slots=True)
class Remembered:
    """Of a node. home: identifies its home directory. lease_s: that it was given last, seconds; None: the usual one.
    hold_s: for so long it may go on when the next head has begun."""

    home: str = ""
    lease_s: float | None = None
    hold_s: float = 0.0


NOTHING = Remembered()


class NodesFile:
    """path: the file; its folder must be there.

    Attributes:
        unsure: '' or why it is not known what was given: the file is gone, or can't be read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.unsure = path, ""
        self._of: dict[str, Remembered] = {}
        try:
            found = of_plain(dict[str, Remembered], json.loads(path.read_text(encoding="utf-8")))
            for known in found.values():
                terms_of(known.lease_s)
            self._of = found
        except FileNotFoundError:
            self.unsure = f"{path} is gone"
        except (OSError, ValueError, InputError) as error:  # CodecError is a ValueError
            self.unsure = f"{path} can't be read ({error})"

    def of(self, name: str) -> Remembered:
        """What is known of a node."""
        return self._of.get(name, NOTHING)

    def keep(self, name: str, known: Remembered) -> bool:
        """This is so of a node from now on. False: it could not be written down, and nothing has changed."""
        return known == self.of(name) or self._write({**self._of, name: known})

    def hold(self, names: Iterable[str], hold_s: float) -> bool:
        """These may go on for so long. False: it could not be written down, and nothing has changed."""
        return self._write({**self._of, **self._held(names, hold_s)})

    def fear(self, names: Iterable[str], hold_s: float) -> None:
        """Nobody knows for how long these may go on: so long at most."""
        self._of |= self._held(names, hold_s)
        self._write(self._of)

    def release(self, name: str) -> None:
        """What it was to go on for is over. A file that can't be written holds it for longer, which does no harm."""
        self._of[name] = replace(self.of(name), hold_s=0.0)
        self._write(self._of)

    def _held(self, names: Iterable[str], hold_s: float) -> dict[str, Remembered]:
        return {name: replace(self.of(name), hold_s=max(self.of(name).hold_s, hold_s)) for name in names}

    def _write(self, of: dict[str, Remembered]) -> bool:
        try:
            if self.unsure:  # a person may want to look at what is there
                with suppress(FileNotFoundError):
                    self.path.rename(self.path.with_suffix(".damaged"))
            write_atomic(str(self.path), {name: asdict(known) for name, known in of.items()}, durable=True)
        except OSError as error:
            log.error("%s can't be written: %s", self.path, error.strerror)
            return False
        self._of, self.unsure = dict(of), ""
        return True
