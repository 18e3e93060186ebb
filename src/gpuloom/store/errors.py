"""What can be wrong with a store. On its own, so that commands that only ask a scheduler start fast."""

from __future__ import annotations

from gpuloom.core.errors import GpuloomError


class StoreError(GpuloomError):
    """The store can't be read or written: says which file and why (disk full, read-only, damaged, in use)."""


class StoreBusy(StoreError):  # noqa: N818 - what it says
    """Another scheduler has this store open."""


class StoreDamagedError(StoreError):
    """The store holds what no scheduler may go on with; it can still be read."""
