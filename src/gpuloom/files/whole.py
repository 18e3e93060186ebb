"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, TextIO, cast

STDOUT = "-"


@contextmanager
def text_output(target: str | Path) -> Iterator[TextIO]:
    """A UTF-8 text stream to a file, which appears under its name only when it is complete, or to stdout ('-').

    Raises:
        OSError: can't be written (no space, no permission, …); carries the name of the target.
    """
    if str(target) == STDOUT:
        yield sys.stdout
        sys.stdout.flush()
        return
    with _output(Path(target), text=True) as file:
        yield cast(TextIO, file)


@contextmanager
def binary_output(path: Path) -> Iterator[BinaryIO]:
    """As `text_output`, for bytes (no '-').

    Raises:
        OSError: as there.
    """
    with _output(path, text=False) as file:
        yield cast(BinaryIO, file)


@contextmanager
def _output(path: Path, *, text: bool) -> Iterator[IO[str] | IO[bytes]]:
    with _naming(path):
        final = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
        mode = final.stat().st_mode if final.exists() else None
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(21, "Is a directory", str(path))
        atomic = mode is None or stat.S_ISREG(mode)  # /dev/null and pipes are written to, never replaced
        written = final.with_name(f".{final.name[:200]}.{uuid.uuid4().hex[:8]}.tmp") if atomic else final
        flags = os.O_WRONLY | (os.O_CREAT | os.O_EXCL if atomic else 0)
        descriptor = os.open(written, flags, 0o666)
        try:
            opened: IO[str] | IO[bytes] = (
                os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="")
                if text
                else os.fdopen(descriptor, "wb")
            )
            with opened as file:
                yield file
                if atomic:
                    file.flush()
                    os.fsync(file.fileno())
            if atomic:
                if mode is not None:
                    written.chmod(stat.S_IMODE(mode))
                written.replace(final)
        except BaseException:
            if atomic:
                with suppress(OSError):
                    written.unlink()
            raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Makes an OSError carry the name the user gave (a write to a full disk carries none)."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename == str(path):
            raise
        raise OSError(error.errno, error.strerror or os.strerror(error.errno), str(path)) from error
