"""The log of a job: read whole or in part, or followed as it is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Header, Path, Query
from starlette.responses import Response, StreamingResponse

from gpuloom.core.errors import NotFoundError
from gpuloom.core.job import ENDED
from gpuloom.core.words import plural
from gpuloom.executors.logs import NoLogError
from gpuloom.executors.node import RunFiles
from gpuloom.live.service import LogOf
from gpuloom.server import docs
from gpuloom.server.context import Context
from gpuloom.server.log_stream import CHUNK, TAIL_BYTES, Asked, Following
from gpuloom.server.parameters import JobNumber
from gpuloom.server.problems import ProblemError
from gpuloom.server.sse import EventStream


def router(context: Context) -> APIRouter:
    """The route /v1/jobs/{job}/log."""
    service = context.service
    routes = APIRouter(tags=["logs"])

    @routes.get("/v1/jobs/{job}/log", **docs.log)
    def read_log(
        job: Annotated[JobNumber, Path()],
        attempt: Annotated[int | None, Query(ge=1, le=2**31, description="Which run; by default the last.")] = None,
        member: Annotated[
            int | None,
            Query(ge=0, le=2**31, description="Which member of a gang; by default the master, and all where followed."),
        ] = None,
        offset: Annotated[int | None, Query(ge=0, le=2**53, description="Bytes to pass over.")] = None,
        tail: Annotated[int | None, Query(ge=0, le=100_000, description="Only the last lines, of each member.")] = None,
        accept: Annotated[str, Header(include_in_schema=False, description="text/event-stream follows the log.")] = "",
        last_event_id: Annotated[str | None, Header(description="Continue a stream after this event.")] = None,
    ) -> Response:
        if offset is not None and tail is not None:
            raise ProblemError("bad-request", "give only one of query offset and query tail")
        state = service.job(job)["state"]
        logs = service.logs(job, attempt)
        last = [log for log in logs if log.attempt == logs[-1].attempt]
        if member is not None and last and member >= len(last):
            had = f"attempt {last[0].attempt} of job {job} has {plural(len(last), 'member')}"
            raise NotFoundError(f"{had}, so none with number {member}")
        if "text/event-stream" in accept:
            if offset is not None and member is None and len(last) > 1:
                raise ProblemError("bad-request", "query offset of a gang needs query member: each has its own log")
            resume = resume_place(last_event_id)
            asked = Asked(job, attempt, member, offset, tail, resume)
            return EventStream(context.hub, Following(context, asked).parts())
        if not last:
            return Response(b"", media_type="text/plain", headers=_headers(0, 0, 0, state in ENDED))
        log = last[member or 0]
        files = service.files_of(log)
        more = _of_gang(log, len(last))
        if tail is not None:
            data, end = files.read_log(log.run, None, tail, TAIL_BYTES)
            headers = _headers(log.attempt, end - len(data), end, not log.live) | more
            return Response(data, media_type="text/plain", headers=headers)
        _, end = files.read_log(log.run, None, 0, 1)
        data, at = files.read_log(log.run, offset, None, CHUNK)
        # An offset beyond the end is the client's own: nothing comes, and it is said where the end is.
        headers = _headers(log.attempt, min(at - len(data), end), end, not log.live) | more
        return StreamingResponse(_rest(files, log.run, data, at, end), media_type="text/plain", headers=headers)

    return routes


def resume_place(last_event_id: str | None) -> tuple[int, tuple[int, ...]] | None:
    """Attempt, and the offset in the log of each member, of an id of ours."""
    found = re.fullmatch(r"(\d{1,9}):(\d{1,16}(?:,\d{1,16})*)", last_event_id or "", re.ASCII)
    return None if found is None else (int(found[1]), tuple(int(at) for at in found[2].split(",")))


def _headers(attempt: int, start: int, offset: int, ended: bool) -> dict[str, str]:
    return {
        "X-Gpuloom-Attempt": str(attempt),
        "X-Gpuloom-Start": str(start),
        "X-Gpuloom-Offset": str(offset),
        "X-Gpuloom-Ended": str(ended).lower(),
    }


def _of_gang(log: LogOf, members: int) -> dict[str, str]:
    if members == 1:
        return {}
    node = quote(log.node, safe="")
    return {"X-Gpuloom-Member": str(log.member), "X-Gpuloom-Members": str(members), "X-Gpuloom-Node": node}


def _rest(files: RunFiles, run: str, data: bytes, at: int, end: int) -> Iterator[bytes]:
    """Bytes up to the offset `end`, which was the end when the headers were made."""
    while data:
        start = at - len(data)
        yield data[: max(end - start, 0)]
        if at >= end:
            return
        try:
            data, at = files.read_log(run, at, None, CHUNK)
        except NoLogError:  # since the answer began
            return
