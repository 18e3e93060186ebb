"""The Python client of a scheduler: what the command line and other programs use."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpuloom.client.errors import ConnectionLostError, RequestError, WaitTimeoutError
from gpuloom.client.http import SILENCE_S, Connection
from gpuloom.client.logs import LogPart, LogPiece, LogRead, gang_of
from gpuloom.core.errors import InputError
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from types import TracebackType

    from gpuloom.live.submission.spec import JobSpec
    from gpuloom.live.views.answers import Health, StatusView
    from gpuloom.live.views.cluster_answers import (
        EachSeriesView,
        GroupList,
        GroupView,
        NodeList,
        NodeView,
        PolicyView,
        SeriesView,
        StatsView,
        UsageList,
        UsageRow,
    )
    from gpuloom.live.views.job_answers import (
        ActionOnArray,
        ArrayChange,
        EventPage,
        EventView,
        JobList,
        JobPage,
        JobView,
        LogAttempt,
        LogText,
        ShowView,
        StateOfJob,
        Submitted,
        WhyView,
    )
    from gpuloom.live.views.pilots import PilotsView

ENDED: frozenset[StateOfJob] = frozenset({"finished", "failed", "cancelled"})
PAGE = 1000
MOST_JOBS = 10_000
"""What the API takes in one request."""
IDS_A_REQUEST = 200
"""So many numbers in one URL stay below every limit on its length."""


class Client:
    """Talks to the scheduler of a home directory, or to one at a URL.

    Args:
        home: as of `gpuloom up --home`; by default GPULOOM_HOME, else the user's data directory.
        url, token: instead of what the home says; by default GPULOOM_URL and the content of GPULOOM_TOKEN_FILE.
        user: in whose name jobs are submitted; by default whoever runs this process.
        timeout_s: longest time for one answer. patience_s: how long to look for a scheduler that went away.

    Nothing is connected before the first call. Every call may raise ClientError, whose kinds stand in `errors.py`.
    """

    def __init__(
        self,
        home: Path | str | None = None,
        url: str | None = None,
        token: str | None = None,
        *,
        user: str | None = None,
        timeout_s: float = 30.0,
        patience_s: float = 30.0,
    ) -> None:
        self.connection = Connection(
            home, url, token, user=user or current_user(), timeout_s=timeout_s, patience_s=patience_s
        )

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- jobs -------------------------------------------------------------------------------------------------------

    def submit(
        self,
        specs: JobSpec | Mapping[str, Any] | Sequence[JobSpec | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
    ) -> list[list[int]]:
        """Submit one job or several, all or none. The numbers of the jobs of each (several for an array).

        A job that does not say where runs in the present directory, as one of `gpuloom submit`; its environment is what
        its `env` says. With `workdir` empty it runs in the home of whoever started the scheduler.

        A key of its own goes along if none is given, so that a broken connection never submits twice.
        """
        many = [specs] if isinstance(specs, Mapping) or not isinstance(specs, Sequence) else list(specs)
        if not many:
            raise InputError("no job to submit")
        told = [dict(s) if isinstance(s, Mapping) else s.model_dump(mode="json", exclude_defaults=True) for s in many]
        jobs = [job if "workdir" in job else {"workdir": _here(), **job} for job in told]
        if idempotency_key is not None and not (
            idempotency_key.isascii() and idempotency_key.isprintable() and idempotency_key.strip()
        ):
            raise InputError(f"{idempotency_key!r} is not a valid idempotency key: give one line of plain characters")
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        body = jobs[0] if len(jobs) == 1 else {"jobs": jobs}
        answer: Submitted = self.connection.request("POST", "/v1/jobs", body=body, headers=headers, again=True).json()
        return [[int(number) for number in numbers] for numbers in answer["submitted"]]

    def job(self, job: int) -> JobView:
        """One job."""
        return self.show(job)["job"]

    def show(self, job: int) -> ShowView:
        """Everything about one job."""
        found: ShowView = self._get(f"/v1/jobs/{int(job)}")
        return found

    def jobs(
        self,
        *,
        states: Collection[str] = (),
        users: Collection[str] = (),
        names: Collection[str] = (),
        ids: Sequence[int] | None = None,
        array: int | None = None,
        submitted_from_s: float | None = None,
        submitted_until_s: float | None = None,
        oldest_first: bool = False,
        limit: int | None = None,
    ) -> Iterator[JobView]:
        """Jobs, newest first, page by page as they are asked for. names: with * and ?. limit: at most so many."""
        left = limit
        chunks: list[Sequence[int] | None] = [None]
        if ids is not None:
            ordered = sorted(set(ids), reverse=not oldest_first)
            chunks = [ordered[i : i + IDS_A_REQUEST] for i in range(0, len(ordered), IDS_A_REQUEST)]
        for chunk in chunks:
            cursor: Any = None
            while left is None or left > 0:
                params = {
                    "state": sorted(states),
                    "user": sorted(users),
                    "name": sorted(names),
                    "id": chunk,
                    "array": array,
                    "submitted_from": submitted_from_s,
                    "submitted_until": submitted_until_s,
                    "order": "oldest" if oldest_first else "newest",
                    "limit": PAGE if left is None else min(PAGE, left),
                    "cursor": cursor,
                }
                page: JobPage = self._get("/v1/jobs", params)
                for job in page["jobs"]:
                    yield job
                    left = None if left is None else left - 1
                cursor = page["next"]
                if cursor is None:
                    break

    def cancel(self, jobs: Sequence[int], *, grace_s: float | None = None) -> list[JobView]:
        """End jobs: those that run are given notice and `grace_s` (by default what their spec says)."""
        return self._act("cancel", jobs, {} if grace_s is None else {"grace": grace_s})

    def hold(self, jobs: Sequence[int]) -> list[JobView]:
        """Keep back jobs that wait."""
        return self._act("hold", jobs)

    def release(self, jobs: Sequence[int]) -> list[JobView]:
        """Let jobs that were held queue."""
        return self._act("release", jobs)

    def suspend(self, jobs: Sequence[int]) -> list[JobView]:
        """Have running jobs leave their GPUs; they go on in the same attempt once they are resumed."""
        return self._act("suspend", jobs)

    def resume(self, jobs: Sequence[int]) -> list[JobView]:
        """Let suspended jobs go on, and held ones queue again."""
        return self._act("resume", jobs)

    def requeue(self, jobs: Sequence[int]) -> list[JobView]:
        """Put jobs that run or have ended back into the queue."""
        return self._act("requeue", jobs)

    def top(self, jobs: Sequence[int]) -> list[JobView]:
        """First in the queue."""
        return self._act("top", jobs)

    def act_on_array(self, array: int, action: ActionOnArray, *, grace_s: float | None = None) -> dict[str, int]:
        """Do something to all jobs of an array with which it can be done: {state: jobs changed}."""
        body = {} if grace_s is None else {"grace": grace_s}
        found: ArrayChange = self._send("POST", f"/v1/arrays/{int(array)}/{action}", body)
        return found["changed"]

    def update_array(self, array: int, changes: Mapping[str, Any]) -> dict[str, int]:
        """As `update`, for all jobs of an array that have not ended: {state: jobs changed}."""
        found: ArrayChange = self._send("PATCH", f"/v1/arrays/{int(array)}", dict(changes))
        return found["changed"]

    def update(self, jobs: Sequence[int], changes: Mapping[str, Any]) -> list[JobView]:
        """Change fields of the spec. Of a running job: name, priority, time_limit, retries, estimate, grace."""
        return self._act("update", jobs, {"changes": dict(changes)})

    def why(self, job: int, *, forecast: bool = True) -> WhyView:
        """Why it waits, and when it will start."""
        found: WhyView = self._get(f"/v1/jobs/{int(job)}/why", {"forecast": forecast})
        return found

    def wait(self, jobs: Sequence[int], *, timeout_s: float | None = None) -> list[JobView]:
        """Return the jobs once all have ended, in the order given.

        Raises:
            WaitTimeoutError: names those that had not. NotFoundError.
        """
        followed = self.follow_jobs(jobs, timeout_s=timeout_s, ends_only=True)
        ended = {job["id"]: job for job in followed if job["state"] in ENDED}
        return [ended[job] for job in jobs]

    def follow_jobs(
        self, jobs: Sequence[int], *, timeout_s: float | None = None, ends_only: bool = False
    ) -> Iterator[JobView]:
        """Each job as it is now, and again whenever its state has changed, until all have ended.

        A job that ends and is requeued at once is followed on. ends_only: look at nothing but ends, which asks less of
        the scheduler. Raises as `wait` does.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        open_jobs = dict.fromkeys(int(job) for job in jobs)
        seen: dict[int, tuple[Any, ...]] = {}
        types = ["attempt.ended", "job.cancelled"] if ends_only else []
        last = self.last_event()
        found = {job["id"]: job for job in self.jobs(ids=list(open_jobs))}
        if missing := [job for job in open_jobs if job not in found]:
            raise self._missing(missing)

        def changed(job: JobView) -> bool:
            if job["state"] in ENDED:
                open_jobs.pop(job["id"], None)
            now = (job["state"], job["attempts"])
            before, seen[job["id"]] = seen.get(job["id"]), now
            return now != before

        for number in list(open_jobs):
            if changed(found[number]):
                yield found[number]
        while open_jobs:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                text = f"{len(open_jobs):,} of {plural(len(set(jobs)), 'job')} had not ended after {timeout_s:g} s"
                raise WaitTimeoutError(text, list(open_jobs))
            silence_s = SILENCE_S if left is None else max(min(left, SILENCE_S), 0.01)
            for message in self.connection.stream(
                "/v1/events", {"after": last, "type": types}, last_id=str(last), silence_s=silence_s
            ):
                if message.type == "":
                    if until is None:
                        continue
                    break  # look at the clock
                event: EventView = json.loads(message.data)
                last, about = event["id"], event["job"]
                if about is not None and about in open_jobs and changed(job := self.job(about)):
                    yield job
                if not open_jobs:
                    return

    def numbers(self, written: Sequence[str]) -> list[int]:
        """Job numbers as people write them: '12', '12-20', '12_3' (index 3 of the array whose first job is 12), '12_'
        (all of that array). In order, each once.

        Raises:
            InputError: not a number; NotFoundError: no such array or index.
        """
        from gpuloom.client.numbers import parse

        found: dict[int, None] = {}
        for text in written:
            low, high, wanted = parse(text)
            if wanted is None:
                found.update(dict.fromkeys(range(low, high + 1)))
                continue
            array = list(self.jobs(array=low, oldest_first=True))
            if not array:
                raise RequestError(f"{text}: job {low} is not the first job of an array")
            chosen = [job["id"] for job in array if wanted == "" or str(job["array_index"]) == wanted]
            if not chosen:
                known = sorted(i for job in array if (i := job["array_index"]) is not None)
                raise RequestError(f"{text}: array {low} has no index {wanted}; it has {known[0]} to {known[-1]}")
            found.update(dict.fromkeys(chosen))
        return list(found)

    # -- logs and events --------------------------------------------------------------------------------------------

    def log(self, job: int, *, attempt: int | None = None, tail: int | None = None, member: int | None = None) -> bytes:
        """What a job has written so far (in its last attempt), as it is. tail: its last lines.
        member: of a gang, whose; by default the master's."""
        return self.read_log(job, attempt=attempt, tail=tail, member=member).content

    def read_log(
        self,
        job: int,
        *,
        attempt: int | None = None,
        offset: int | None = None,
        tail: int | None = None,
        member: int | None = None,
    ) -> LogRead:
        """The same with where it stops, as a whole in memory. offset: from this byte on."""
        params = {"attempt": attempt, "offset": offset, "tail": tail, "member": member}
        path = f"/v1/jobs/{int(job)}/log"
        answer = self.connection.request("GET", path, params=params, headers={"Accept": "text/plain"}, again=True)
        head = answer.headers
        number, end = int(head.get("X-Gpuloom-Attempt") or 0), int(head.get("X-Gpuloom-Offset") or 0)
        rank = int(head.get("X-Gpuloom-Member") or 0)
        return LogRead(answer.content, number, end, head.get("X-Gpuloom-Ended") == "true", rank, *gang_of(head))

    def log_pieces(
        self, job: int, *, attempt: int | None = None, tail: int | None = None, member: int | None = None
    ) -> Iterator[LogPiece]:
        """The log up to now, piece by piece: it may be larger than memory.

        A piece that does not start where the one before ended follows bytes that are no longer kept. The last one is
        empty, and starts at the end. A broken connection leaves no gap.
        """
        import httpx

        at: int | None = None
        path = f"/v1/jobs/{int(job)}/log"
        until = time.monotonic() + self.connection.patience_s
        while True:
            params = {"attempt": attempt, "tail": tail if at is None else None, "offset": at, "member": member}
            headers = {"Accept": "text/plain"}
            answer = self.connection.request("GET", path, params=params, headers=headers, again=True, opened=True)
            try:
                head = answer.headers
                attempt = int(head.get("X-Gpuloom-Attempt") or 0) or attempt
                end = int(head.get("X-Gpuloom-Offset") or 0)
                at = max(int(head.get("X-Gpuloom-Start") or 0), at or 0)
                for content in answer.iter_bytes():
                    yield LogPiece(attempt or 0, at, content, *gang_of(head))
                    at += len(content)
                    until = time.monotonic() + self.connection.patience_s
                yield LogPiece(attempt or 0, end, b"", *gang_of(head))
                return
            except httpx.TransportError as error:
                if time.monotonic() > until:
                    raise ConnectionLostError(
                        f"the connection broke while reading the log of job {job} ({error})"
                    ) from None
            finally:
                answer.close()

    def follow_log(
        self,
        job: int,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        from_first: bool = False,
        member: int | None = None,
    ) -> Iterator[LogPart]:
        """The log as it is written, over all restarts and preemptions, until the job ends (or that attempt does).

        It begins with the last attempt, or with the first if `from_first`. Of a gang it is that of all members, as they
        write, or of one. Broken connections and restarts of the
        scheduler leave no gap and no repetition.
        """
        present = 1 if from_first else attempt or 0
        params = {"attempt": attempt, "tail": tail, "member": member}
        nodes: tuple[str, ...] = ()
        path = f"/v1/jobs/{int(job)}/log"
        for message in self.connection.stream(path, params, last_id="1:0" if from_first else "", ends_with="end"):
            if message.type == "log":
                present = int(message.id.partition(":")[0] or present)
                piece: LogText = json.loads(message.data)
                yield LogPart(present, piece["text"], skipped=piece.get("skipped", 0), member=piece.get("member"))
            elif message.type == "attempt":
                begun: LogAttempt = json.loads(message.data)
                told, present = (present, nodes), begun["attempt"]
                nodes = tuple(begun.get("members", ()))
                if not nodes or (present, nodes) != told:  # of a gang it is said again where a stream goes on
                    yield LogPart(present, "", nodes=nodes)
            elif message.type == "end":
                yield LogPart(present, "", end=json.loads(message.data))

    def last_event(self) -> int:
        """Number of the newest event."""
        page: EventPage = self._get("/v1/events", {"newest": True, "limit": 1})
        return page["last"]

    def events(
        self,
        *,
        after: int = 0,
        job: int | None = None,
        types: Collection[str] = (),
        limit: int = 1000,
        newest: bool = False,
    ) -> list[EventView]:
        """Events after that number, in order; `newest`: the last `limit` of them."""
        params = {"after": after, "job": job, "type": sorted(types), "limit": limit, "newest": newest}
        page: EventPage = self._get("/v1/events", params)
        return page["events"]

    def follow_events(
        self, *, after: int | None = None, job: int | None = None, types: Collection[str] = ()
    ) -> Generator[EventView, None, None]:
        """Events as they come, for ever: those after that number, by default those from now on.

        None is missed or repeated when the connection breaks or the scheduler is started again.
        """
        start = self.last_event() if after is None else after
        params = {"after": start, "job": job, "type": sorted(types)}
        for message in self.connection.stream("/v1/events", params):
            if message.type != "":
                yield json.loads(message.data)

    # -- the cluster ------------------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeView]:
        """Nodes with their GPUs, rates and jobs."""
        found: NodeList = self._get("/v1/nodes")
        return found["nodes"]

    def set_node(self, node: str, state: str, *, reason: str = "") -> NodeView:
        """state: 'up', 'cordoned' (nothing new starts) or 'draining' (jobs are moved away as well)."""
        from urllib.parse import quote

        body = {"state": state, "reason": reason}
        found: NodeView = self._send("POST", f"/v1/nodes/{quote(node, safe='')}", body, again=True)
        return found

    def pilots(self) -> PilotsView:
        """Allocations of Slurm on whose nodes jobs run."""
        found: PilotsView = self._get("/v1/pilots")
        return found

    def policy(self, *, state: bool = False) -> PolicyView:
        """The policy in use; state: with its own state, of each job."""
        found: PolicyView = self._get("/v1/policy", {"state": True} if state else None)
        return found

    def set_policy(self, policy: str, *, interval_s: float | None = None) -> PolicyView:
        """Swap the policy of the running scheduler. Written as for `simulate --policy`."""
        body = {"policy": policy} | ({} if interval_s is None else {"interval": interval_s})
        found: PolicyView = self._send("PUT", "/v1/policy", body, again=True)
        return found

    def usage(self, *, by: str = "user", since_s: float | None = None, until_s: float | None = None) -> list[UsageRow]:
        """GPU-seconds held, by 'user', 'name', 'day' or 'node'. Times are epoch seconds."""
        found: UsageList = self._get("/v1/usage", {"by": by, "since": since_s, "until": until_s})
        return found["usage"]

    def groups(self) -> list[GroupView]:
        """Jobs that hold the same GPUs at the same time, and since when."""
        found: GroupList = self._get("/v1/groups")
        return found["groups"]

    def stats(
        self, *, user: str | None = None, since_s: float | None = None, until_s: float | None = None
    ) -> StatsView:
        """Figures of what ran in a span of time, by default the last day: JCT, makespan, queue, utilisation."""
        found: StatsView = self._get("/v1/stats", {"user": user, "since": since_s, "until": until_s})
        return found

    def series(
        self, *, user: str | None = None, since_s: float | None = None, until_s: float | None = None
    ) -> SeriesView:
        """The same over time, sample by sample, with the rates of the machines."""
        found: SeriesView = self._get("/v1/stats/series", {"user": user, "since": since_s, "until": until_s})
        return found

    def each_series(
        self,
        by: Literal["node", "gpu", "user", "job"],
        *,
        name: str | None = None,
        since_s: float | None = None,
        until_s: float | None = None,
    ) -> EachSeriesView:
        """What each of them used over time, by default in the last hour. name: of one alone; a GPU: NODE:INDEX."""
        params = {"name": name, "since": since_s, "until": until_s}
        found: EachSeriesView = self._get(f"/v1/stats/series/{by}", params)
        return found

    def history(self, *, since_s: float | None = None, until_s: float | None = None) -> str:
        """Past jobs as a trace (CSV) for `gpuloom simulate` and `compare`."""
        params = {"since": since_s, "until": until_s}
        return self.connection.request("GET", "/v1/history.csv", params=params, again=True).text

    def status(self) -> StatusView:
        """The scheduler about itself."""
        found: StatusView = self._get("/v1/status")
        return found

    def health(self) -> Health:
        """Whether it answers."""
        found: Health = self._get("/v1/health")
        return found

    def shutdown(self, *, stop_jobs: bool = False) -> None:
        """Ask the scheduler to end. Jobs go on; with stop_jobs they are put back into the queue before."""
        self.connection.request("POST", "/v1/shutdown", body={"stop_jobs": stop_jobs})

    # -- inside -----------------------------------------------------------------------------------------------------

    def _get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        return self.connection.request("GET", path, params=params, again=True).json()

    def _send(self, method: str, path: str, body: Any, *, again: bool = False) -> Any:
        return self.connection.request(method, path, body=body, again=again).json()

    def _act(self, action: str, jobs: Sequence[int], more: Mapping[str, Any] | None = None) -> list[JobView]:
        numbers = [int(job) for job in jobs]
        found: list[JobView] = []
        # One request for as many as the API takes, so that it is done for all of them or for none. Not repeated: a
        # requeue done twice is two.
        for start in range(0, len(numbers), MOST_JOBS):
            body = {"jobs": numbers[start : start + MOST_JOBS], **(more or {})}
            done: JobList = self._send("POST", f"/v1/actions/{action}", body)
            found += done["jobs"]
        return found

    @staticmethod
    def _missing(jobs: Sequence[int]) -> RequestError:
        from gpuloom.client.errors import NotFoundError

        return NotFoundError(
            f"there is no job {', '.join(map(str, jobs[:10]))}{', …' if len(jobs) > 10 else ''}", status=404
        )


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise InputError("the current folder has been removed: give the job's workdir") from None


def current_user() -> str:
    """Who runs this process, by the system's own list of users; its number where it has no name."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
