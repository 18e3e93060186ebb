"""The formats that can be read: the built-in ones, and those that other packages add by entry point."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from gpuloom.core.errors import InputError
from gpuloom.core.words import did_you_mean
from gpuloom.files.source import Head
from gpuloom.traces import (
    acme,
    alibaba,
    elasticflow,
    gavel,
    helios,
    itp,
    muri,
    own,
    philly,
    pollux,
    shockwave,
    slurm,
    synergy,
    tiresias,
)
from gpuloom.traces.base import Reader

GROUP = "gpuloom.trace_readers"
BUILT_IN: Mapping[str, Reader] = {
    module.READER.id: module.READER
    for module in (
        own,
        muri,
        tiresias,
        gavel,
        shockwave,
        philly,
        itp,
        elasticflow,
        alibaba,
        pollux,
        synergy,
        helios,
        acme,
        slurm,
    )
}

# Files that lie beside traces and are easily taken for one: the columns of their header, and what they are.
_NO_TRACE = (
    ({"duration"}, "samples of GPU time for the gittins policy: pass it as --policy gittins:samples=FILE"),
    ({"runtime"}, "a list of run times without submission times"),
    ({"time", "active", "total"}, "the state of a cluster's nodes over time"),
    ({"sn", "cpu_milli", "memory_mib", "gpu", "model"}, "a list of nodes: it describes a cluster"),
    (
        {"num_switch", "num_node_p_switch", "num_gpu_p_node", "num_cpu_p_node", "mem_p_node"},
        "a description of a cluster",
    ),
)


def formats() -> dict[str, Reader]:
    """Every format by id: the built-in ones first, then those of installed plug-ins by id.

    Raises:
        InputError: a plug-in can't be loaded, is not a Reader, or takes an id that is in use.
    """
    return {**BUILT_IN, **_plugins()}


def find(format_id: str) -> Reader:
    """The format of this id.

    Raises:
        InputError: there is none; the message lists the known ones.
    """
    reader = BUILT_IN.get(format_id) or _plugins().get(format_id)
    if reader is None:
        known = formats()
        raise InputError(
            f"unknown trace format {format_id!r}{did_you_mean(format_id, known)} (known: {', '.join(known)})"
        )
    return reader


def detect(head: Head, name: str) -> Reader | None:
    """The format of a file by its content, or None.

    Raises:
        InputError: several formats claim the file.
    """
    claims = [reader for reader in BUILT_IN.values() if reader.detect(head)]
    if not claims:
        claims = [reader for reader in _plugins().values() if reader.detect(head)]
    if len(claims) > 1:
        ids = ", ".join(reader.id for reader in claims)
        raise InputError(f"{name} could be of the formats {ids}: say which with --format")
    return claims[0] if claims else None


def known_no_trace(head: Head) -> str | None:
    """What a file is that lies beside traces but is none, if it is known."""
    return next((what for columns, what in _NO_TRACE if head.header == columns), None)


@cache
def _plugins() -> dict[str, Reader]:
    found: dict[str, Reader] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        where = f"trace reader plug-in {entry.name!r} ({entry.value})"
        try:
            reader = entry.load()
        except Exception as error:  # whatever a stranger's module raises on import
            raise InputError(f"{where} can't be loaded: {error}") from error
        if not isinstance(reader, Reader):
            raise InputError(f"{where} is a {type(reader).__name__}, must be a gpuloom.traces.Reader")
        if reader.id in BUILT_IN or reader.id in found:
            raise InputError(f"{where} takes the id {reader.id!r}, which is in use")
        found[reader.id] = reader
    return found
