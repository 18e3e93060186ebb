"""The recorded answers of a real cluster, replayed against the fake: does it answer the same?

Names, times, uids and versions vary; what a client reads has to be the same: the status, the reason and the message of
a refusal, the fields that were asked for, which objects are listed, which events a watch tells of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import httpx

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "kubernetes"
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Pair:
    """A request and its answer. number: its place in its group."""

    group: str
    number: int
    label: str
    method: str
    path: str
    content_type: str
    request: Any
    status: int
    response: Any


def pairs() -> list[Pair]:
    """All of them, in order; those of the first file are the group 'first'."""
    found: list[Pair] = []
    counts: dict[str, int] = {}
    for name in ("contract.jsonl", "contract-2.jsonl"):
        for line in (FOLDER / name).read_text().splitlines():
            told = json.loads(line)
            group = told.get("group", "first")
            number = counts[group] = counts.get(group, -1) + 1
            found.append(
                Pair(
                    group,
                    number,
                    told["label"],
                    told.get("method") or "NOTE",
                    told.get("path") or "",
                    told.get("content_type") or "",
                    told.get("request"),
                    told["status"],
                    told.get("response"),
                )
            )
    return found


@dataclass
class Replay:
    """A group on its way through the fake: what stands for what was recorded."""

    client: httpx.Client
    versions: dict[str, str] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def ask(self, pair: Pair) -> tuple[int, Any]:
        """What the fake answers."""
        address = urlsplit(pair.path)
        query = [(name, self._here(value)) for name, value in parse_qsl(address.query, keep_blank_values=True)]
        path = self._here(address.path)
        if query:
            path += "?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in query)
        body = pair.request
        if body is not None:
            data = body if isinstance(body, str) else json.dumps(body)
            content: bytes | None = self._here(data).encode()
        else:
            content = None
        headers = {"Content-Type": pair.content_type or "application/json"}
        if pair.content_type == "":
            headers = {"Content-Type": "application/json"} if content is not None else {}
        answer = self.client.request(pair.method, path, content=content, headers=headers)
        found: Any = answer.text
        if _is_watch(pair):
            found = [json.loads(line) for line in answer.text.splitlines() if line]
        elif answer.headers.get("content-type", "").startswith("application/json"):
            found = answer.json()
        self._learn(pair.response, found)
        return answer.status_code, found

    def _here(self, text: str) -> str:
        """With our uids, versions, tokens and generated names in place of those recorded."""
        for kept in (self.tokens, self.uids, self.names):
            for old, new in kept.items():
                text = text.replace(old, new)
        if text.isdigit() and text in self.versions:
            return self.versions[text]
        return re.sub(
            r'("resourceVersion": ?")(\d+)(")',
            lambda found: found[1] + self.versions.get(found[2], found[2]) + found[3],
            text,
        )

    def _learn(self, recorded: Any, ours: Any) -> None:
        if isinstance(recorded, Mapping) and isinstance(ours, Mapping):
            about, mine = recorded.get("metadata"), ours.get("metadata")
            if isinstance(about, Mapping) and isinstance(mine, Mapping):
                for name, kept in (("resourceVersion", self.versions), ("uid", self.uids), ("continue", self.tokens)):
                    if about.get(name) and mine.get(name):
                        kept.setdefault(str(about[name]), str(mine[name]))
                if about.get("generateName") and about.get("name") != mine.get("name"):
                    self.names.setdefault(str(about["name"]), str(mine.get("name")))
            for one, other in zip(recorded.get("items") or (), ours.get("items") or (), strict=False):
                self._learn(one, other)


def _is_watch(pair: Pair) -> bool:
    return pair.method == "GET" and "watch=1" in pair.path


def differences(pair: Pair, status: int, found: Any) -> Iterator[str]:
    """How an answer differs from the recorded one; nothing: it is the same to a client."""
    if status != pair.status:
        yield f"status {status}, recorded {pair.status}"
        return
    if _is_watch(pair):
        recorded = pair.response if isinstance(pair.response, list) else (pair.response or {}).get("events", [])
        mine, theirs = [_told(one) for one in found], [_told(one) for one in recorded]
        if mine != theirs:
            yield f"events {mine}, recorded {theirs}"
        return
    yield from _different(found, pair.response)


def _told(event: Mapping[str, Any]) -> tuple[str, str]:
    thing = event["object"]
    return event["type"], str(thing.get("reason") or (thing.get("metadata") or {}).get("name") or "")


def _different(found: Any, recorded: Any) -> Iterator[str]:
    if not isinstance(recorded, Mapping):
        if isinstance(recorded, str) and found != recorded:
            yield f"{found!r}, recorded {recorded!r}"
        return
    if not isinstance(found, Mapping):
        yield f"{found!r}, recorded an object"
        return
    if recorded.get("kind") == "Status":
        for name in ("status", "reason", "code"):
            if found.get(name) != recorded.get(name):
                yield f"{name} {found.get(name)!r}, recorded {recorded.get(name)!r}"
        if _plain(found.get("message")) != _plain(recorded.get("message")):
            yield f"message {found.get('message')!r}, recorded {recorded.get('message')!r}"
        return
    if "items" in recorded:
        mine, theirs = ([one["metadata"]["name"] for one in each.get("items") or ()] for each in (found, recorded))
        cut = recorded.get("_recorder_items_cut")
        if (mine[: len(theirs)] if cut else mine) != theirs:
            yield f"items {mine}, recorded {theirs}"
        for name in ("continue", "remainingItemCount"):
            one, other = found["metadata"].get(name), recorded["metadata"].get(name)
            if (one is None) != (other is None) or (name == "remainingItemCount" and one != other):
                yield f"{name} {one!r}, recorded {other!r}"
        return
    about, theirs = found.get("metadata") or {}, recorded.get("metadata") or {}
    for name in ("labels", "annotations", "finalizers", "deletionGracePeriodSeconds", "generation"):
        if about.get(name) != theirs.get(name):
            yield f"metadata.{name} {about.get(name)!r}, recorded {theirs.get(name)!r}"
    for name in ("deletionTimestamp", "resourceVersion"):
        if (name in about) != (name in theirs):
            yield f"metadata.{name} {about.get(name)!r}, recorded {theirs.get(name)!r}"
    if "data" in recorded and found.get("data") != recorded["data"]:
        yield f"data {found.get('data')!r}, recorded {recorded['data']!r}"
    for name in ("phase",):
        one, other = (found.get("status") or {}).get(name), (recorded.get("status") or {}).get(name)
        if one != other:
            yield f"status.{name} {one!r}, recorded {other!r}"
    spec, wanted = found.get("spec") or {}, recorded.get("spec") or {}
    for name in ("nodeName", "schedulingGates", "replicas", "suspend", "parallelism", "completions", "minAvailable"):
        if spec.get(name) != wanted.get(name):
            yield f"spec.{name} {spec.get(name)!r}, recorded {wanted.get(name)!r}"


def _plain(text: object) -> str:
    """A message without what varies."""
    said = _UID.sub("UID", str(text))
    return re.sub(r"\b\d{3,}\b", "N", said)
