"""The recorded answers of a real cluster, replayed against the fake: does it answer the same?

Names, times, uids and versions vary; what a client reads has to be the same: the status, the reason and the message of
a refusal, the fields that were asked for, which objects are listed, which events a watch tells of.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import httpx

from fake_kubernetes.kinds import BY_PATH, Kind
from fake_kubernetes.server import FakeApi
from fake_kubernetes.store import Store

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
    store: Store
    versions: dict[str, str] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def prepare(self, pair: Pair, made: set[tuple[str, str]]) -> None:
        """Put in place what the recording had before its first call: objects that are told of, and that no recorded
        call has made. made: (path of its list, name) of those, which grows."""
        base = pair.path.partition("?")[0]
        if pair.method == "POST" and pair.status == 201 and isinstance(pair.response, Mapping):
            made.add((base, str((pair.response.get("metadata") or {}).get("name"))))
            return
        if pair.status != 200 or not isinstance(pair.response, Mapping) or _is_watch(pair):
            return
        items = pair.response.get("items")
        if items is not None:
            folder = base
        elif pair.response.get("kind") == "Status" or "metadata" not in pair.response or base.count("/") < 4:
            return
        else:
            parts = base.split("/")
            named = pair.response["metadata"].get("name")
            if named not in parts:
                return
            folder, items = "/".join(parts[: parts.index(named)]), [pair.response]
        for item in items:
            about = item["metadata"]
            where = folder
            if about.get("namespace") and "/namespaces/" not in folder:
                head, _, kind = folder.rpartition("/")
                where = f"{head}/namespaces/{about['namespace']}/{kind}"
            if (where, about["name"]) not in made:
                made.add((where, about["name"]))
                self.put(where, item, pair)

    def put(self, folder: str, item: Mapping[str, Any], pair: Pair) -> None:
        """An object as it was before a call."""
        kind = kind_of(folder)
        if kind is None:
            return
        item = json.loads(json.dumps(item))
        about = item["metadata"]
        if pair.method in ("PATCH", "PUT", "DELETE"):
            _before(item, pair)
        recorded = about.pop("resourceVersion", None), about.pop("uid", None)
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            about.pop(name, None)
        item |= {"kind": kind.kind, "apiVersion": kind.api_version}
        with self.store.changed:
            about |= {"uid": str(uuid.uuid4())}
            written = self.store._put(kind, None, item)
        if recorded[0]:
            self.versions.setdefault(str(recorded[0]), written["metadata"]["resourceVersion"])
        if recorded[1]:
            self.uids.setdefault(str(recorded[1]), about["uid"])

    def ask(self, pair: Pair) -> tuple[int, Any]:
        """What the fake answers."""
        address = urlsplit(pair.path)
        query = [(name, self._here(value)) for name, value in parse_qsl(address.query, keep_blank_values=True)]
        query = [(name, "0.3" if name == "timeoutSeconds" else value) for name, value in query]
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
        if _is_watch(pair) and answer.status_code == 200:
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


def kind_of(folder: str) -> Kind | None:
    """The kind of the objects of a list."""
    parts = folder.strip("/").split("/")
    group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
    return BY_PATH.get((group, version, parts[-1]))


def _before(item: dict[str, Any], pair: Pair) -> None:
    """Take from an object what a call has made of it, as far as that can be told."""
    about, told = item["metadata"], pair.request
    if pair.method == "DELETE" and isinstance(told, Mapping) and told.get("propagationPolicy") == "Foreground":
        about["finalizers"] = [one for one in about.get("finalizers") or () if one != "foregroundDeletion"]
    if "generation" in about and int(about["generation"]) > 1:
        about["generation"] = int(about["generation"]) - 1
    if isinstance(told, Mapping) and pair.method == "PATCH":
        for field, value in told.items():
            if isinstance(value, Mapping) and isinstance(item.get(field), dict):
                for name in value:
                    if field != "metadata":
                        item[field].pop(name, None)


def _is_watch(pair: Pair) -> bool:
    return pair.method == "GET" and "watch=1" in pair.path


def differences(pair: Pair, status: int, found: Any) -> Iterator[str]:
    """How an answer differs from the recorded one; nothing: it is the same to a client."""
    if status != pair.status:
        yield f"status {status}, recorded {pair.status}"
        return
    if _is_watch(pair) and status == 200:
        told = pair.response
        recorded = told if isinstance(told, list) else told.get("events", []) if isinstance(told, Mapping) else []
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
    about, theirs = ((one.get("metadata") or {}) for one in (found, recorded))
    for name in ("labels", "annotations", "finalizers", "deletionGracePeriodSeconds", "generation"):
        if _without_uids(about.get(name)) != _without_uids(theirs.get(name)):
            yield f"metadata.{name} {about.get(name)!r}, recorded {theirs.get(name)!r}"
    for name in ("deletionTimestamp", "resourceVersion"):
        if (name in about) != (name in theirs):
            yield f"metadata.{name} {about.get(name)!r}, recorded {theirs.get(name)!r}"
    if "data" in recorded and found.get("data") != recorded["data"]:
        yield f"data {found.get('data')!r}, recorded {recorded['data']!r}"
    one, other = (
        status.get("phase") if isinstance(status := each.get("status"), Mapping) else None for each in (found, recorded)
    )
    if one != other:
        yield f"status.phase {one!r}, recorded {other!r}"
    spec, wanted = found.get("spec") or {}, recorded.get("spec") or {}
    for name in ("nodeName", "schedulingGates", "replicas", "suspend", "parallelism", "completions", "minAvailable"):
        if spec.get(name) != wanted.get(name):
            yield f"spec.{name} {spec.get(name)!r}, recorded {wanted.get(name)!r}"


def _without_uids(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _UID.sub("UID", text) for name, text in value.items()}
    return value


def _plain(text: object) -> str:
    """A message without what varies, and without the lines of a comparison, which nobody reads but people."""
    said = _UID.sub("UID", str(text).partition("\n@@")[0])
    return re.sub(r"\b\d{3,}\b", "N", said)


def replayed(group: str) -> tuple[int, list[str]]:
    """A group, replayed: how many of its pairs the fake answers alike, and of the others how they differ."""
    same, others = 0, []
    with FakeApi() as api:
        mine = [pair for pair in pairs() if pair.group == group and pair.method != "NOTE" and pair.status and pair.path]
        for name in sorted({found[1] for pair in mine if (found := re.search(r"/namespaces/([^/?]+)", pair.path))}):
            if name not in ("default", "nope"):
                api.store.create(BY_PATH["", "v1", "namespaces"], {"metadata": {"name": name}})
        with httpx.Client(base_url=api.url, timeout=30.0) as client:
            replay, made = Replay(client, api.store), set[tuple[str, str]]()
            for pair in mine:
                replay.prepare(pair, made)
                told = list(differences(pair, *replay.ask(pair)))
                if told:
                    others.append(f"{pair.number} {pair.label}: {pair.method} {pair.path}: {told[0]}")
                else:
                    same += 1
    return same, others
