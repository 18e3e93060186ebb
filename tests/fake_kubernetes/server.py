"""The HTTP side of the fake API server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fake_kubernetes.checks import check_body
from fake_kubernetes.errors import (
    Refused,
    bad,
    invalid,
    no_resource,
    not_allowed,
    not_found,
    page_not_found,
    refused,
    status_object,
    too_large,
    too_old,
    unsupported,
)
from fake_kubernetes.kinds import BY_PATH, GROUPS, KINDS, Kind
from fake_kubernetes.patches import json_patch, merge_patch, strategic_patch
from fake_kubernetes.store import Happened, Item, Store, listed, selected

BOOKMARK_S = 60.0
WATCH_S = 1800.0
PATCHES = {
    "application/json-patch+json": json_patch,
    "application/merge-patch+json": merge_patch,
    "application/strategic-merge-patch+json": strategic_patch,
}
MOST_OPERATIONS = 10_000


@dataclass
class Request:
    """A request, as it was taken apart."""

    method: str
    path: str
    query: Mapping[str, str]
    content_type: str
    body: bytes
    kind: Kind | None = None
    namespace: str = ""
    name: str | None = None
    sub: str = ""

    @property
    def dry(self) -> bool:
        return "dryRun" in self.query


@dataclass
class Fault:
    """What goes wrong with requests. wanted: which; times: how often (endless: None). status 0: the connection is cut,
    after the request was done if `done`."""

    wanted: Callable[[Request], bool]
    status: int = 500
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int | None = 1
    done: bool = False


class FakeApi:
    """A running server. `url` is where it is reached; `store` what it has; `requests` what was asked."""

    def __init__(self, *, bookmark_s: float = BOOKMARK_S) -> None:
        self.store = Store()
        self.requests: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self.bookmark_s = bookmark_s
        self.logs: Callable[[str], list[tuple[float, bytes]]] = lambda uid: []
        """What the pod of a uid has printed: (when, line)."""
        self._cut = threading.Event()
        self._epoch = 0
        self.store.create(BY_PATH["", "v1", "namespaces"], {"metadata": {"name": "default"}})

        api = self

        class Handler(_Handler):
            fake = api

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that is gone

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def kubeconfig(self, path: Path, *, token: str = "secret") -> Path:
        """A file with which clients reach it."""
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "fake",
                    "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
                    "users": [{"name": "me", "user": {"token": token}}],
                    "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
                }
            )
        )
        return path

    def cut_watches(self) -> None:
        """End all watches without a word."""
        with self.store.changed:
            self._epoch += 1
            self.store.changed.notify_all()

    def close(self) -> None:
        self.cut_watches()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> FakeApi:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what is done -------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> tuple[int, Any]:
        """(status, body) of everything but a watch. Raises Refused."""
        if request.method == "HEAD":
            raise Refused(405, "")
        if request.path in ("/readyz", "/livez", "/healthz"):
            return 200, "ok"
        if (found := self._discovery(request.path)) is not None:
            return 200, found
        kind = self._resolve(request)
        match request.method, request.name, request.sub:
            case "GET", None, "":
                return 200, listed(self.store, kind, request.namespace, request.query)
            case "GET", str(name), "" | "status":
                wanted = request.query.get("resourceVersion", "")
                if wanted.isdigit() and int(wanted) > self.store.version:
                    time.sleep(0.05)
                    raise too_large(int(wanted), self.store.version)
                return 200, self.store.get(kind, request.namespace, name)
            case "POST", None, "":
                body = check_body(kind, _json(request, kind), request.namespace, None)
                return 201, self.store.create(kind, body, dry=request.dry)
            case "GET", str(name), "log":
                return 200, self._log(request, kind, name)
            case "POST", str(name), "binding":
                return 201, self._bind(request, name)
            case "POST", str(name), "eviction":
                return 201, self._evict(request, kind, name)
            case "PUT", str(name), "" | "status":
                body = check_body(kind, _json(request, kind), request.namespace, name)
                return 200, self.store.update(
                    kind, request.namespace, name, lambda _: body, status=request.sub == "status", dry=request.dry
                )
            case "PATCH", str(name), "" | "status":
                return 200, self._patch(request, kind, name)
            case "DELETE", str(name), "":
                options = json.loads(request.body) if request.body else {}
                if "gracePeriodSeconds" in request.query:
                    options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
                if "propagationPolicy" in request.query:
                    options["propagationPolicy"] = request.query["propagationPolicy"]
                return self.store.delete(kind, request.namespace, name, options, dry=request.dry)
            case "DELETE", None, "":
                meant = selected(kind, request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
                before = listed(self.store, kind, request.namespace, request.query)
                for item in [one for one in self.store.at(kind, request.namespace, self.store.version) if meant(one)]:
                    about = item["metadata"]
                    self.store.delete(kind, about.get("namespace", ""), about["name"])
                return 200, before
            case _:
                raise not_allowed()

    def _discovery(self, path: str) -> Any:
        if path == "/version":
            return {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        parts = path.strip("/").split("/")
        if parts[0] == "apis" and len(parts) == 2 and parts[1] in {group for group, _ in GROUPS}:
            versions = [
                {"groupVersion": f"{group}/{version}", "version": version}
                for group, version in sorted(GROUPS)
                if group == parts[1]
            ]
            return {
                "kind": "APIGroup",
                "apiVersion": "v1",
                "name": parts[1],
                "versions": versions,
                "preferredVersion": versions[0],
            }
        group = ("", parts[1]) if parts[0] == "api" and len(parts) == 2 else tuple(parts[1:]) if len(parts) == 3 else ()
        if group in GROUPS and (parts[0], len(parts)) in (("api", 2), ("apis", 3)):
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": "/".join(filter(None, group)),
                "resources": [
                    {
                        "name": kind.plural,
                        "singularName": kind.singular,
                        "namespaced": kind.namespaced,
                        "kind": kind.kind,
                    }
                    for kind in KINDS
                    if (kind.group, kind.version) == group
                ],
            }
        return None

    def _resolve(self, request: Request) -> Kind:
        """The kind of a path; what else the path says is put into the request. Raises Refused."""
        parts = request.path.strip("/").split("/")
        if parts[:1] == ["api"]:
            group, version, rest = "", parts[1] if len(parts) > 1 else "", parts[2:]
        elif parts[:1] == ["apis"] and len(parts) > 2:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise page_not_found()
        if (group, version) not in GROUPS:
            raise page_not_found()
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            request.namespace, rest = rest[1], rest[2:]
        kind = BY_PATH.get((group, version, rest[0] if rest else ""))
        if kind is None:
            custom = any(one.custom for one in KINDS if (one.group, one.version) == (group, version))
            raise page_not_found() if custom else no_resource()
        request.kind = kind
        request.name = rest[1] if len(rest) > 1 else None
        request.sub = rest[2] if len(rest) > 2 else ""
        if request.sub and request.sub not in kind.subresources:
            if kind.custom and request.name is not None:
                raise not_found(request.name, kind.plural, kind.group)
            raise no_resource()
        return kind

    def _patch(self, request: Request, kind: Kind, name: str) -> Item:
        patch = PATCHES.get(request.content_type)
        accepted = [*PATCHES, "application/apply-patch+yaml"]
        if kind.custom:
            accepted.remove("application/strategic-merge-patch+json")
        if request.content_type not in accepted or patch is None:
            if request.content_type == "application/json":
                raise refused(415, "415: Unsupported Media Type", "UnsupportedMediaType", {})
            raise unsupported(accepted)
        told = _patch_body(request)
        return self.store.update(
            kind,
            request.namespace,
            name,
            lambda item: patch(item, told),
            status=request.sub == "status",
            dry=request.dry,
        )

    def _bind(self, request: Request, name: str) -> Item:
        """A pod gets its node; nothing of it is checked but whether it has one already, or is gated."""
        told = json.loads(request.body)
        target = told["target"]["name"]
        kind = BY_PATH["", "v1", "pods"]

        def change(pod: Item) -> Item:
            if "deletionTimestamp" in pod["metadata"]:
                raise _conflict(name, f"pod {name} is being deleted, cannot be assigned to a host")
            if pod["spec"].get("nodeName"):
                text = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
                raise _conflict(name, text)
            if pod["spec"].get("schedulingGates"):
                raise _conflict(name, f"pod {name} has non-empty .spec.schedulingGates")
            pod["spec"]["nodeName"] = target
            self._condition(pod, "PodScheduled", "True")
            return pod

        with self.store.changed:
            before = self.store.get(kind, request.namespace, name)
            after = change(json.loads(json.dumps(before)))
            self.store._put(kind, before, after)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _condition(self, pod: Item, kind: str, status: str, **more: str) -> None:
        conditions = pod.setdefault("status", {}).setdefault("conditions", [])
        conditions[:] = [one for one in conditions if one["type"] != kind]
        stamp = self.store.stamp()
        conditions.append({"type": kind, "status": status, "lastTransitionTime": stamp, **more})

    def _log(self, request: Request, kind: Kind, name: str) -> str:
        lines = self.logs(self.store.get(kind, request.namespace, name)["metadata"]["uid"])
        if since := request.query.get("sinceTime"):
            from_s = datetime.fromisoformat(since).timestamp()
            lines = [one for one in lines if one[0] >= from_s]
        if request.query.get("timestamps") == "true":
            lines = [(at_s, f"{_nanoseconds(at_s)} ".encode() + text) for at_s, text in lines]
        return b"".join(text for _, text in lines).decode("utf-8", "surrogateescape")

    def _evict(self, request: Request, kind: Kind, name: str) -> Item:
        told = json.loads(request.body) if request.body else {}
        self.store.delete(kind, request.namespace, name, told.get("deleteOptions"))
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    # -- watches ----------------------------------------------------------------------------------------------

    def watch(self, request: Request) -> Iterator[Item | None]:
        """Events, one by one; None now and then, so that who is gone is noticed. Raises Refused before the first."""
        kind = self._resolve(request)
        query = request.query
        _check_watch(query)
        fields = query.get("fieldSelector", "")
        if request.name is not None:
            fields = ",".join(filter(None, (fields, f"metadata.name={request.name}")))
        meant = selected(kind, query.get("labelSelector", ""), fields)
        wanted, initial = query.get("resourceVersion", ""), query.get("sendInitialEvents") == "true"
        if wanted and not wanted.isdigit():
            text = f'resourceVersion: Invalid value: "{wanted}": strconv.ParseUint: parsing "{wanted}": invalid syntax'
            raise refused(500, text)
        until = time.monotonic() + float(query.get("timeoutSeconds", WATCH_S))
        return self._events(kind, request.namespace, meant, query, wanted, initial, until)

    def _events(
        self,
        kind: Kind,
        namespace: str,
        meant: Callable[[Mapping[str, Any]], bool],
        query: Mapping[str, str],
        wanted: str,
        initial: bool,
        until: float,
    ) -> Iterator[Item | None]:
        store = self.store
        bookmarks = query.get("allowWatchBookmarks") == "true"
        with store.changed:
            epoch = self._epoch
            seen = int(wanted or 0)
            if initial or seen == 0:
                seen = store.version
                first = [item for item in store.at(kind, namespace, seen) if meant(item)]
            else:
                first = []
                if seen < store.oldest or seen < 1000:
                    yield {"type": "ERROR", "object": too_old(seen, max(store.oldest, 1000))}
                    return
        for item in first:
            yield {"type": "ADDED", "object": item}
        if initial and bookmarks:
            yield self._bookmark(kind, seen, {"annotations": {"k8s.io/initial-events-end": "true"}})
        marked = time.monotonic()
        while time.monotonic() < until:
            with store.changed:
                if epoch != self._epoch:
                    return
                news = store.since(kind, seen)
                if not news:
                    store.changed.wait(min(until - time.monotonic(), 0.25))
                    if epoch != self._epoch:
                        return
                    news = store.since(kind, seen)
                newest = store.version
            for one in news:
                if (event := _event(one, namespace, meant)) is not None:
                    yield event
            seen = max(seen, newest)
            if bookmarks and time.monotonic() - marked >= self.bookmark_s:
                marked = time.monotonic()
                yield self._bookmark(kind, seen, {})
            elif not news:
                yield None

    @staticmethod
    def _bookmark(kind: Kind, version: int, more: Mapping[str, Any]) -> Item:
        about = {"resourceVersion": str(version), **more}
        return {
            "type": "BOOKMARK",
            "object": {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": about},
        }


def _event(one: Happened, namespace: str, meant: Callable[[Mapping[str, Any]], bool]) -> Item | None:
    """What a watch with these selectors tells of a change: entering and leaving them is coming and going."""
    there = one.after or one.before
    assert there is not None
    if namespace and there["metadata"].get("namespace") != namespace:
        return None
    before = one.before is not None and meant(one.before)
    after = one.after is not None and meant(one.after)
    if after and one.after is not None:
        return {"type": "MODIFIED" if before else "ADDED", "object": one.after}
    if before and one.before is not None:
        last = {**one.before, "metadata": {**one.before["metadata"], "resourceVersion": str(one.version)}}
        return {"type": "DELETED", "object": last}
    return None


def _nanoseconds(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def _conflict(name: str, text: str) -> Refused:
    message = f'Operation cannot be fulfilled on pods/binding "{name}": {text}'
    return refused(409, message, "Conflict", {"name": name, "kind": "pods/binding"})


def _check_watch(query: Mapping[str, str]) -> None:
    match, initial = query.get("resourceVersionMatch", ""), query.get("sendInitialEvents")
    causes = []
    if initial and match != "NotOlderThan":
        text = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        causes.append(("resourceVersionMatch", "FieldValueForbidden", text))
    elif match and not initial:
        text = "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        causes.append(("resourceVersionMatch", "FieldValueForbidden", text))
    if causes:
        raise invalid("ListOptions", "meta.k8s.io", "", causes)


def _json(request: Request, kind: Kind) -> Any:
    if request.content_type not in ("application/json", "application/yaml", ""):
        accepted = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"]
        raise unsupported(accepted[:2] if kind.custom else accepted)
    try:
        return json.loads(request.body)
    except ValueError:
        said = request.body.decode("utf-8", "replace") or "<empty>"
        raise bad(
            f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get version/kind; json parse "
            f"error: unexpected end of JSON input ({said})"
        ) from None


def _patch_body(request: Request) -> Any:
    try:
        told = json.loads(request.body)
    except ValueError:
        raise bad("error decoding patch: unexpected end of JSON input") from None
    wants_list = request.content_type == "application/json-patch+json"
    if isinstance(told, list) and len(told) > MOST_OPERATIONS:
        text = f"The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {len(told)}"
        raise Refused(413, status_object(413, f"Request entity too large: {text}", "RequestEntityTooLarge"))
    if wants_list and not isinstance(told, list):
        raise bad("error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp")
    if not wants_list and not isinstance(told, dict):
        raise bad("error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}")
    return told


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as in the real one: else what follows the headers waits 40 ms for the client
    wbufsize = -1
    fake: FakeApi

    def _handle(self) -> None:
        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        content_type = (self.headers.get("Content-Type") or "").partition(";")[0].strip()
        request = Request(self.command, address.path, query, content_type, body)
        fake = self.fake
        fake.requests.append((self.command, self.path))
        fault = next((one for one in fake.faults if one.times != 0 and one.wanted(request)), None)
        if fault is not None:
            if fault.times is not None:
                fault.times -= 1
            if fault.done:
                fake.answer(request)
            if fault.status == 0:
                self.close_connection = True
                self.connection.close()
                return
            self._send(fault.status, fault.body, fault.headers)
            return
        try:
            if self.command == "GET" and query.get("watch") in ("1", "true"):
                self._stream(fake.watch(request))
                return
            status, found = fake.answer(request)
        except Refused as error:
            self._send(error.status, error.body, error.headers)
            return
        self._send(status, found)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _handle  # noqa: N815

    def _send(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        plain = isinstance(body, str)
        data = body.encode("utf-8", "surrogateescape") if plain else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8" if plain else "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, events: Iterator[Item | None]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()  # nothing may happen for a while
        for event in events:
            if event is not None:
                self._chunk(json.dumps(event).encode() + b"\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n" % len(data) + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass
