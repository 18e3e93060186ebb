"""Requests to a scheduler. It is looked up again if it moved, requests are repeated where that is safe, and its own
error messages are passed on."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpuloom.client.errors import ClientError, ConnectionLostError, NoSchedulerError, of_answer
from gpuloom.client.home import Address, alive, find, home_directory, no_scheduler, running
from gpuloom.client.sse import Message, messages
from gpuloom.core.errors import InputError
from gpuloom.core.waiting import one_wait_s

if TYPE_CHECKING:
    import httpx

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
SILENCE_S = 60.0
"""A stream on which nothing comes for so long, not even a heartbeat, counts as broken."""


class Connection:
    """Keeps one pool of connections. Safe to use from several threads."""

    def __init__(
        self,
        home: Path | str | None,
        url: str | None,
        token: str | None,
        *,
        user: str | None,
        timeout_s: float,
        patience_s: float,
    ) -> None:
        if not timeout_s > 0 or not patience_s >= 0:
            raise InputError(
                f"timeout_s is {timeout_s}, must be above 0; patience_s is {patience_s}, must be 0 or more"
            )
        self._given = (home, url, token)
        self._user, self._timeout_s, self.patience_s = user, one_wait_s(timeout_s), patience_s
        self._address: Address | None = None
        self._http: httpx.Client | None = None
        self._met = False
        """Whether a scheduler has answered. Who never has is not waited for; one that went away may come back."""
        self.on_trouble: Callable[[str], None] | None = None
        """Called once for every break of a stream, with a sentence."""

    @property
    def address(self) -> Address:
        """Where the scheduler is. Raises NoSchedulerError, AccessError."""
        if self._address is None:
            self._address = find(*self._given)
        return self._address

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
        opened: bool = False,
    ) -> httpx.Response:
        """Send it and return a good answer.

        again: sending it twice does no harm, so that it may be repeated where the connection breaks. Without, it is
        repeated only while nothing of it was sent. opened: its body is not read yet; the caller reads and closes it.

        Raises:
            ClientError: of the kind that fits.
        """
        import httpx

        until, pause_s = time.monotonic() + self.patience_s, FIRST_PAUSE_S
        sent = False
        while True:
            try:
                pool = self._pool()
                request = pool.build_request(
                    method,
                    path,
                    params=_plain(params),
                    headers={**({} if body is None else {"Content-Type": "application/json"}), **(headers or {})},
                    content=_bytes(body),
                )
                response = pool.send(request, stream=opened)
                if response.is_success:
                    self._met = True
                    return response
                response.read()
                self._look_who_answers(response)
                self._met = True
                raise _problem(response)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                self._give_up_if_none(error, sent=sent)
                failed: Exception = error
            except httpx.TransportError as error:
                # Of what only reads, nothing can have been done.
                sent = method != "GET"
                failed = error
                if not again:
                    raise ConnectionLostError(
                        f"{_broken_text(error)}; it is not known whether {method} {path} was done"
                    ) from None
            except httpx.InvalidURL as error:
                raise InputError(f"{self.address.url!r} is not the URL of a scheduler: {error}") from None
            if time.monotonic() + pause_s > until:
                if sent:
                    raise ConnectionLostError(
                        f"{_broken_text(failed)}, and no scheduler answered for {self.patience_s:g} s"
                    ) from None
                raise self._no_answer(failed) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._find_again()

    def stream(
        self,
        path: str,
        params: Mapping[str, Any] | None = None,
        *,
        last_id: str = "",
        ends_with: str | None = None,
        silence_s: float = SILENCE_S,
    ) -> Iterator[Message]:
        """Messages of a stream up to one of the type `ends_with`; broken, it goes on after the last id that was seen.

        A Message of type '' comes for heartbeats, after `silence_s` without any, and after every break: a chance to
        look at the clock.

        Raises:
            ClientError: nobody answered for `patience_s`, or the scheduler refused.
        """
        import httpx

        lost_s: float | None = None
        pause_s = FIRST_PAUSE_S
        while True:
            opened = False
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
            timeout = httpx.Timeout(self._timeout_s, read=silence_s)
            try:
                with self._pool().stream(
                    "GET", path, params=_plain(params), headers=headers, timeout=timeout
                ) as response:
                    if not response.is_success:
                        response.read()
                        self._look_who_answers(response)
                        raise _problem(response)
                    opened = self._met = True
                    lost_s, pause_s = None, FIRST_PAUSE_S
                    for message in messages(response.iter_raw()):
                        last_id = message.id or last_id
                        yield message
                        if ends_with is not None and message.type == ends_with:
                            return
                # An end in order, but not of what was asked for: the scheduler went.
                raise httpx.RemoteProtocolError("the scheduler ended the stream")
            except httpx.TransportError as error:
                if opened and isinstance(error, httpx.ReadTimeout):
                    yield Message("", "", last_id)
                    continue
                if lost_s is None:
                    lost_s = time.monotonic()
                    if self.on_trouble is not None:
                        self.on_trouble(f"{_broken_text(error)}; trying again for {self.patience_s:g} s")
                if time.monotonic() - lost_s > self.patience_s:
                    raise self._no_answer(error) from None
            except ClientError as error:
                # A scheduler that begins or ends answers 503: for a stream that is a break like others.
                if error.status != 503:
                    raise
                lost_s = time.monotonic() if lost_s is None else lost_s
                if time.monotonic() - lost_s > self.patience_s:
                    raise
            yield Message("", "", last_id)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._find_again()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _pool(self) -> httpx.Client:
        if self._http is None:
            import httpx

            address = self.address
            # Loopback is no business of a proxy, and reading certificates costs more than a request.
            local = urlsplit(address.url).hostname in ("127.0.0.1", "::1", "localhost")
            headers = {b"Authorization": f"Bearer {address.token}".encode()}
            if self._user:
                headers[b"X-Gpuloom-User"] = self._user.encode()
            try:
                self._http = httpx.Client(
                    base_url=address.url,
                    headers=headers,
                    timeout=httpx.Timeout(self._timeout_s),
                    trust_env=not local,
                    verify=_trusted(address),
                )
            except (httpx.InvalidURL, ValueError) as error:
                raise InputError(f"{address.url!r} is not the URL of a scheduler: {error}") from None
        return self._http

    def _find_again(self) -> None:
        """After a break: a scheduler that was started again may listen elsewhere, with another token."""
        try:
            address = find(*self._given)
        except ClientError:
            return
        if address != self._address:
            self.close()
            self._address = address

    def _look_who_answers(self, response: httpx.Response) -> None:
        """Who refuses the token may be another scheduler, which took the port after ours had gone.

        Raises:
            httpx.ConnectError: it is; ours was not met.
        """
        import httpx

        home = self.address.home
        if response.status_code != HTTPStatus.UNAUTHORIZED or home is None:
            return
        found = running(home)
        if found is None or not alive(found.pid) or found.url.rstrip("/") != self.address.url:
            raise httpx.ConnectError("another program listens where it did")

    def _give_up_if_none(self, error: Exception, *, sent: bool) -> None:
        """Give up at once where nobody has ever answered and the home says that nobody is there."""
        home = self.address.home
        if sent or self._met or home is None:
            return
        found = running(home)
        if found is None or not alive(found.pid):
            raise no_scheduler(home) from None

    def _no_answer(self, error: Exception) -> ClientError:
        address = self._address
        if address is not None and address.home is not None:
            return no_scheduler(address.home)
        where = address.url if address is not None else home_directory()
        return NoSchedulerError(f"no scheduler answers at {where}: {_broken_text(error)}")


def _broken_text(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return f"the connection to the scheduler broke ({text})"


def _plain(params: Mapping[str, Any] | None) -> list[tuple[str, str | int | float | bool | None]]:
    """Parameters without those that are None; sequences are repeated."""
    found: list[tuple[str, str | int | float | bool | None]] = []
    for key, value in (params or {}).items():
        if value is None:
            continue
        for one in value if isinstance(value, list | tuple | set | frozenset) else [value]:
            found.append((key, str(one).lower() if isinstance(one, bool) else one))
    return found


def _bytes(body: Any) -> bytes | None:
    return None if body is None else json.dumps(body, allow_nan=False, separators=(",", ":")).encode()


def _problem(response: httpx.Response) -> ClientError:
    try:
        problem: Any = response.json()
    except ValueError:
        problem = None
    return of_answer(response.status_code, response.reason_phrase, problem)


def _trusted(address: Address) -> ssl.SSLContext | bool:
    """Which certificates are taken for the scheduler's. Raises InputError."""
    if not address.url.startswith("https:") or not address.certificate:
        return address.url.startswith("https:")
    try:
        # Whoever has this very certificate is the scheduler, whatever name it is reached by.
        context = ssl.create_default_context(cafile=address.certificate)
    except OSError as error:  # SSLError is one
        raise InputError(
            f"{address.certificate}: must hold the scheduler's certificate in PEM ({error.strerror or error})"
        ) from None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
