"""Unpacking of gzip that ends, however small a file says that it holds how much."""

from __future__ import annotations

import gzip
import io

GZIP = b"\x1f\x8b"
"""How such a file begins."""
PIECE = 16 * 2**20


class UnpackedTooLargeError(ValueError):
    """It holds more than it may."""


def gunzip(data: bytes, most: int) -> bytes:
    """Unpack it.

    Raises:
        UnpackedTooLargeError: it holds more than `most` bytes.
        OSError, EOFError, zlib.error: it is damaged.
    """
    pieces, size = [], 0
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
        while piece := packed.read(min(PIECE, most + 1 - size)):
            size += len(piece)
            if size > most:
                raise UnpackedTooLargeError(f"holds more than {most // 2**20:,} MiB")
            pieces.append(piece)
    return b"".join(pieces)
