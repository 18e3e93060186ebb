"""The log of a job: read whole or in part, or followed as it is written."""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from gpuloom.core.job import ENDED
from gpuloom.executors.logs import NoLogError
from gpuloom.live.service import LogFile
from gpuloom.live.views.answers import JobView, LogAttempt, LogEnd, LogText
from gpuloom.server import docs
from gpuloom.server.context import Context
from gpuloom.server.parameters import JobNumber
from gpuloom.server.problems import ProblemError
from gpuloom.server.sse import HEARTBEAT, EventStream, message

CHUNK = 256 * 1024
"""Bytes of one read."""
TAIL_BYTES = 16 * 1024 * 1024
"""The most that 'the last lines' may be."""


def router(context: Context) -> APIRouter:
    """The route /v1/jobs/{job}/log."""
    service = context.service
    routes = APIRouter(tags=["logs"])

    @routes.get("/v1/jobs/{job}/log", **docs.log)
    def read_log(
        job: Annotated[JobNumber, Path()],
        attempt: Annotated[int | None, Query(ge=1, le=2**31, description="Which run; by default the last.")] = None,
        offset: Annotated[int | None, Query(ge=0, le=2**53, description="Bytes to pass over.")] = None,
        tail: Annotated[int | None, Query(ge=0, le=100_000, description="Only the last lines.")] = None,
        accept: Annotated[str, Header(include_in_schema=False, description="text/event-stream follows the log.")] = "",
        last_event_id: Annotated[str | None, Header(description="Continue a stream after this event.")] = None,
    ) -> Response:
        if offset is not None and tail is not None:
            raise ProblemError("bad-request", "give only one of query offset and query tail")
        if "text/event-stream" in accept:
            service.job(job)
            service.log_files(job, attempt)
            resume = re.fullmatch(r"(\d{1,9}):(\d{1,16})", last_event_id or "", re.ASCII)
            start = None if resume is None else (int(resume[1]), int(resume[2]))
            return EventStream(context.hub, _Following(context, job, attempt, start, offset, tail).parts())
        state = service.job(job)["state"]
        files = service.log_files(job, attempt)
        if not files:
            return _plain(b"", 0, 0, ended=state in ENDED)
        run = files[-1]
        directory = run.path.parent
        if tail is not None:
            data, end = context.logs(directory, None, tail, TAIL_BYTES)
            return _plain(data, run.attempt, end, ended=not run.live)
        _, end = context.logs(directory, None, 0, 1)
        data, at = context.logs(directory, offset, None, CHUNK)
        # An offset beyond the end is the client's own: nothing comes, and it is said where the end is.
        parts = _rest(context, directory, data, at, end)
        headers = _headers(run.attempt, min(at - len(data), end), end, not run.live)
        return StreamingResponse(parts, media_type="text/plain", headers=headers)

    return routes


def _headers(attempt: int, start: int, offset: int, ended: bool) -> dict[str, str]:
    return {
        "X-Gpuloom-Attempt": str(attempt),
        "X-Gpuloom-Start": str(start),
        "X-Gpuloom-Offset": str(offset),
        "X-Gpuloom-Ended": str(ended).lower(),
    }


def _plain(data: bytes, attempt: int, offset: int, *, ended: bool) -> Response:
    return Response(data, media_type="text/plain", headers=_headers(attempt, offset - len(data), offset, ended))


def _rest(context: Context, directory: FilePath, data: bytes, at: int, end: int) -> Iterator[bytes]:
    """Bytes up to the offset `end`, which was the end when the headers were made."""
    while data:
        start = at - len(data)
        yield data[: max(end - start, 0)]
        if at >= end:
            return
        try:
            data, at = context.logs(directory, at, None, CHUNK)
        except NoLogError:  # since the answer began
            return


def whole_characters(data: bytes) -> int:
    """How many of the bytes are whole characters in UTF-8; up to 3 at the end may begin one that is not complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])


class _Following:
    """One stream: from a place in an attempt's log over all later attempts (unless one was asked for) to the end.

    attempt: the one that is read, 0 before the first. at: offset in its log.
    """

    def __init__(
        self,
        context: Context,
        job: int,
        only: int | None,
        start: tuple[int, int] | None,
        offset: int | None,
        tail: int | None,
    ) -> None:
        self.context, self.job, self.only = context, job, only
        self.resumes = start is not None and only in (None, start[0])
        self.attempt, self.at = start if start is not None and self.resumes else (0, offset or 0)
        self.tail = None if self.resumes else tail
        self.trouble = ""
        self.state: JobView
        self.runs: Sequence[LogFile] = ()

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The stream, event by event."""
        hub = self.context.hub
        follower, seen = await hub.join()
        try:
            await run_in_threadpool(self._ask)
            if not self.resumes and self.runs:
                self.attempt = self.runs[-1].attempt
                yield self._begun()
            while not hub.closed:
                run = next((run for run in self.runs if run.attempt == self.attempt), None)
                if run is not None:
                    while (part := await run_in_threadpool(self._read, run.path, not run.live)) is not None:
                        yield part
                live = run is not None and run.live
                after = next((run.attempt for run in self.runs if run.attempt > self.attempt), None)
                if not live and after is not None:
                    self.attempt, self.at, self.tail = after, 0, None
                    yield self._begun()
                    continue
                if not live and (self.state["state"] in ENDED or (self.only is not None and run is not None)):
                    yield self._ended()
                    return
                hub.look_at(follower, str(run.path) if run is not None and live else None)
                if not await follower.wait():
                    yield HEARTBEAT
                found = hub.after(seen)
                if found is None or any(told.concerns(self.job) for told in found):
                    await run_in_threadpool(self._ask)
                seen = hub.last if found is None else found[-1].id if found else seen
        finally:
            hub.leave(follower)

    def _ask(self) -> None:
        """The job first: if it has ended by then, its attempts say all there is."""
        self.state = self.context.service.job(self.job)
        self.runs = self.context.service.log_files(self.job, self.only)

    def _read(self, path: FilePath, complete: bool) -> bytes | None:
        """The next event with text; None: no more for now. complete: nothing will be written any more."""
        try:
            return self._next(path.parent, complete)
        except NoLogError as error:
            if not complete or str(error) == self.trouble:
                return None
            # Told once: the stream goes on to the end of the job.
            self.trouble = str(error)
            return message(LogText(text=f"({error})\n"), event="log", id_=self._id())

    def _next(self, directory: FilePath, complete: bool) -> bytes | None:
        if self.tail is not None:
            data, after = self.context.logs(directory, None, self.tail, TAIL_BYTES)
            self.tail, self.at = None, after - len(data)  # what comes before was not asked for
        else:
            data, after = self.context.logs(directory, self.at, None, CHUNK)
        start = after - len(data)
        whole = whole_characters(data)
        if complete and not whole:
            whole = len(data)  # the log ends within a character
        if not whole:
            return None
        fields: LogText = {"text": data[:whole].decode("utf-8", "replace")}
        if start > self.at:
            fields["skipped"] = start - self.at  # gone: rotated away before it was read
        self.at = start + whole
        return message(fields, event="log", id_=self._id())

    def _id(self) -> str:
        return f"{self.attempt}:{self.at}"

    def _begun(self) -> bytes:
        return message(LogAttempt(attempt=self.attempt), event="attempt", id_=self._id())

    def _ended(self) -> bytes:
        job = self.state
        fields = LogEnd(state=job["state"], exit_code=job["exit_code"], reason=job["reason"])
        return message(fields, event="end", id_=self._id())
