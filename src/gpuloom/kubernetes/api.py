"""The API of a Kubernetes cluster: requests and watches, in plain JSON.

Who may do what, certificates and tokens are the library's business (lightkube reads kubeconfigs and renews tokens);
here are addresses, lists in pages, streams of changes, and errors in words.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gpuloom.core.errors import GpuloomError, InputError, MissingDependencyError

if TYPE_CHECKING:
    import httpx2

Object = Mapping[str, Any]
"""An object of the API as it is sent."""

PAGE = 500
"""Objects that are asked for at once."""
ANSWER_S = 30.0
"""How long an answer may take."""
QUIET_S = 20.0
"""How much longer than asked for a watch may last before the connection counts as dead."""
CLOSE_S = 5.0
"""How long closing waits for requests that are under way."""


class ApiError(GpuloomError):
    """The API refused, failed, or could not be reached.

    Attributes:
        status: of HTTP; 0: there was no answer. reason: Kubernetes' word for it ('NotFound', 'Expired', …), or ''.
        retry_after_s: when it may be asked again, as it says; None: it does not.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s


class CutOffError(ApiError):
    """A watch ended within a line."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch tells. kind: 'ADDED', 'MODIFIED', 'DELETED', or 'BOOKMARK' (nothing but a version)."""

    kind: str
    object: Object


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects of a list, and the version at which all of it was so."""

    items: list[Object]
    version: str


class Api:
    """Requests to one cluster. Threads may share it.

    Args:
        client: of httpx2, with address, certificates and login. server: its address. name: of the cluster, for
            messages. namespace: that the login is for.
    """

    def __init__(self, client: httpx2.Client, server: str, name: str, namespace: str = "default") -> None:
        self._client, self.server, self.name, self.namespace = client, server, name, namespace
        self._out = threading.Condition()
        self._closed = False
        self._under_way = 0
        self._watches: set[httpx2.Response] = set()

    def get(self, path: str, **query: str) -> Object:
        """One object, or one page of a list. Raises ApiError."""
        with self._described(f"GET {path}"):
            answer = self._client.get(path, params=query, timeout=ANSWER_S)
            _check(answer.status_code, answer.headers, answer.content, f"{self.name}: GET {path}")
            return _object(answer.content)

    def text(self, path: str, **query: str) -> bytes:
        """What is no object, such as a log. Raises ApiError."""
        with self._described(f"GET {path}"):
            answer = self._client.get(path, params=query, timeout=ANSWER_S)
            _check(answer.status_code, answer.headers, answer.content, f"{self.name}: GET {path}")
            return answer.content

    def create(self, path: str, item: Object) -> Object:
        """Make an object in the list at this path.

        Raises:
            ApiError: it was refused; or, with status 0 or 500 and above, nobody knows whether it was made.
        """
        return self._send("POST", path, item, "application/json")

    def change(self, path: str, patch: Sequence[Object] | Object) -> Object:
        """Change an object: by a JSON patch (a list) or a merge patch. Raises ApiError."""
        kind = "json-patch" if isinstance(patch, list) else "merge-patch"
        return self._send("PATCH", path, patch, f"application/{kind}+json")

    def delete(self, path: str, **options: Any) -> Object:
        """Delete an object. options: of `DeleteOptions`. Raises ApiError."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        return self._send("DELETE", path, body, "application/json")

    def _send(self, method: str, path: str, body: object, content_type: str) -> Object:
        with self._described(f"{method} {path}"):
            headers, content = {"Content-Type": content_type}, json.dumps(body).encode()
            answer = self._client.request(method, path, content=content, headers=headers, timeout=ANSWER_S)
            _check(answer.status_code, answer.headers, answer.content, f"{self.name}: {method} {path}")
            return _object(answer.content)

    def pages(self, path: str, **query: str) -> Iterator[Page]:
        """All objects of a kind, page by page. Raises ApiError: Expired if it took longer than the cluster keeps."""
        query = {**query, "limit": str(PAGE)}
        while True:
            page = self.get(path, **query)
            about = page["metadata"]
            yield Page(page.get("items") or [], about["resourceVersion"])
            if not about.get("continue"):
                return
            query["continue"] = about["continue"]

    def watch(self, path: str, version: str, lasts_s: int, **query: str) -> Iterator[Change]:
        """Changes since a version, for so many seconds; ends when the time or the connection does.

        Raises:
            ApiError: it can't be had; Expired: the version is too old, so that the list is to be read anew.
        """
        import httpx2

        query = {
            **query,
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(lasts_s),
        }
        timeout = httpx2.Timeout(ANSWER_S, read=lasts_s + QUIET_S)
        with (
            self._described(f"watch {path}"),
            self._client.stream("GET", path, params=query, timeout=timeout) as answer,
            self._watched(answer),
        ):
            if answer.status_code != 200:
                _check(answer.status_code, answer.headers, answer.read(), f"{self.name}: watch {path}")
            for line in answer.iter_lines():
                if line:
                    yield _change(line, f"{self.name}: watch {path}")

    def close(self) -> None:
        """End what is under way: a watch at once, a request within seconds. What is asked for later is refused."""
        # The library must not be closed while a thread opens a connection: nobody would close that one.
        until_s = time.monotonic() + CLOSE_S
        with self._out:
            self._closed = True
            for answer in self._watches:
                _cut(answer)
            while self._under_way and (left_s := until_s - time.monotonic()) > 0:
                self._out.wait(left_s)
        self._client.close()

    @contextmanager
    def _watched(self, answer: httpx2.Response) -> Iterator[None]:
        with self._out:
            if self._closed:
                raise ApiError(f"{self.name}: the connection was closed")
            self._watches.add(answer)
        try:
            yield
        finally:
            with self._out:
                self._watches.discard(answer)

    @contextmanager
    def _described(self, what: str) -> Iterator[None]:
        import httpx2
        from lightkube.core.exceptions import ConfigError

        with self._out:
            if self._closed:
                raise ApiError(f"{self.name}: {what}: the connection was closed")
            self._under_way += 1
        try:
            yield
        except httpx2.HTTPError as error:
            how = str(error) or type(error).__name__
            raise ApiError(f"{self.name}: {what}: {how}", status=0) from error
        except (ConfigError, OSError, ValueError, KeyError) as error:  # of a program or a file that has the token
            raise ApiError(f"{self.name}: {what}: can't log in: {error}", status=0) from error
        finally:
            with self._out:
                self._under_way -= 1
                self._out.notify_all()


def _cut(answer: httpx2.Response) -> None:
    """Have the thread that reads it see the end."""
    connection = answer.extensions["network_stream"].get_extra_info("socket")
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself


def _object(content: bytes) -> Object:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ApiError(f"the answer is no JSON: {content[:100]!r}") from error
    if not isinstance(found, dict):
        raise ApiError(f"the answer is no object of Kubernetes: {content[:100]!r}")
    return found


def _check(status: int, headers: Mapping[str, str], content: bytes, what: str) -> None:
    if status < 300:
        return
    reason, message = "", content.decode("utf-8", "replace").strip()[:500]
    try:
        told = json.loads(content)
        reason, message = str(told.get("reason", "")), str(told.get("message", message))
    except (ValueError, AttributeError):  # too many requests, for one, is told in plain text
        pass
    raise ApiError(f"{what}: {status}: {message}", status=status, reason=reason, retry_after_s=_after_s(headers))


def _after_s(headers: Mapping[str, str]) -> float | None:
    try:
        return float(headers.get("retry-after", ""))
    except ValueError:
        return None


def _change(line: str, what: str) -> Change:
    try:
        told = json.loads(line)
        kind, thing = str(told["type"]), told["object"]
    except (ValueError, KeyError, TypeError) as error:  # the connection was cut within a line
        raise CutOffError(f"{what}: a line is cut off: {line[:100]!r}") from error
    if kind == "ERROR":
        code, reason, message = thing.get("code", 0), thing.get("reason", ""), thing.get("message", "")
        raise ApiError(f"{what}: {code}: {message}", status=int(code), reason=str(reason))
    return Change(kind, thing)


def connect(kubeconfig: Path | None = None, context: str | None = None) -> Api:
    """The API of a cluster.

    Args:
        kubeconfig: None: in a pod of the cluster its service account, else the file that $KUBECONFIG names, else
            ~/.kube/config. context: of its contexts; None: the current one.

    Raises:
        MissingDependencyError: lightkube is not installed. InputError: there is no such file or context, or it can't be
            read.
    """
    try:
        from lightkube.config.client_adapter import Client, ConnectionParams
        from lightkube.config.kubeconfig import KubeConfig
        from lightkube.core.exceptions import ConfigError
    except ModuleNotFoundError as error:
        raise MissingDependencyError("Kubernetes", "lightkube", "kubernetes") from error
    where = "kubeconfig" if kubeconfig is None else str(kubeconfig)
    try:
        known = KubeConfig.from_env() if kubeconfig is None else KubeConfig.from_file(kubeconfig)
    except ConfigError as error:
        raise InputError(f"{where}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise InputError(f"{where} can't be read as a kubeconfig: {error or type(error).__name__}") from error
    contexts = ", ".join(sorted(known.contexts))
    if context is None and known.current_context is None:
        raise InputError(f"{where}: no context is set: give --context (there are: {contexts})")
    try:
        one = known.get(context)
    except ConfigError:
        asked = context or known.current_context
        raise InputError(f"{where} has no context {asked!r} (there are: {contexts})") from None
    except KeyError as error:
        raise InputError(
            f"{where}: context {context or known.current_context!r} names {error}, which is not there"
        ) from None
    if one is None:  # it is one of the two above
        raise InputError(f"{where}: no context is set")
    if one.user is None:
        raise InputError(f"{where}: context {one.context_name!r} names no user that the file has")
    try:
        client = Client(one, ConnectionParams())
    except (ConfigError, OSError, ValueError) as error:
        raise InputError(f"{where}: context {one.context_name!r} can't be used: {error}") from error
    return Api(client, one.cluster.server, f"{one.context_name} ({one.cluster.server})", one.namespace or "default")


def unless_gone(call: Callable[[], object]) -> None:
    """A write that is not needed any more where what it is about is gone, or has changed."""
    try:
        call()
    except ApiError as error:
        # 409: one of the same name is there by now; 422: a test failed, as it has changed. What is seen next tells.
        if error.status not in (404, 409, 422):
            raise
