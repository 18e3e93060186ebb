"""The health of GPUs and the flags on jobs, derived from samples of a machine. Pure: no clock, no I/O.

A GPU is 'unhealthy' while something is wrong and for `recovery_s` after, so that an unstable GPU gets no jobs. A
condition that only a reset repairs (XIDs in `xid.RESET`, broken memory) ends in one of three ways: the driver withdraws
its demand or reaches the GPU again (it was reset), the machine is rebooted, or a person says so (`gpuloom nodes NODE
up`, here `clear`). The person's word holds until something new happens. A GPU is 'foreign' from the first process of
others until `clean_samples` samples in a row have found none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuloom.agent.sample import Finding, FindingKind, RunOnNode, Sample
from gpuloom.agent.xid import PASSING, PROGRAM, RESET, xid_text
from gpuloom.core.job import RESET_WORDS, DeviceKind, Gpu, GpuState, NodeRecord
from gpuloom.core.units import format_duration
from gpuloom.core.usage import RunUsage
from gpuloom.core.words import plural

_RESETS_SEEN = frozenset({"lost", "recovery"})
"""Conditions whose end shows that the GPU was reset."""

_BLIND = frozenset({"lost", "unreachable"})
"""Conditions under which others can't be seen."""

_BUCKETS = 60


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """recovery_s: a GPU must have been well for so long. clean_samples: looks without strangers. idle_s: window over
    which a job must do nothing to be called idle (0: never); idle_gpu_percent, idle_cores: what counts as nothing.
    busy_s: span at the end of which an idle job counts as busy again. Only seconds of looking count, none in which the
    job was frozen."""

    recovery_s: float = 600.0
    clean_samples: int = 3
    idle_s: float = 1800.0
    idle_gpu_percent: float = 5.0
    idle_cores: float = 0.01
    busy_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Flag:
    """Something to say of the job of a run. An empty text takes it back."""

    run: str
    flag: str
    text: str


@dataclass(frozen=True, slots=True)
class Changes:
    """gpus: those whose state or reason changed, as they are now. flags: what changed. notes: by GPU, what is worth
    showing now and changes nothing."""

    gpus: tuple[Gpu, ...] = ()
    flags: tuple[Flag, ...] = ()
    notes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Problem:
    """last_s: when it was last so. present: it is so now. needs_reset: what happened once and only a reset mends."""

    text: str
    last_s: float
    present: bool
    needs_reset: bool


@dataclass(slots=True)
class _State:
    """What is known of a GPU."""

    gpu: Gpu
    problems: dict[str, _Problem] = field(default_factory=dict)
    strangers: str = ""
    clean: int = 0
    streak: dict[str, int] = field(default_factory=dict)
    """How many looks in a row had a finding, by code."""
    excused: set[str] = field(default_factory=set)
    """Conditions that a person knows of."""


class _Idle:
    """Mean of a rate over a sliding window of observed seconds, in at most `_BUCKETS` parts."""

    def __init__(self, window_s: float) -> None:
        self.width = window_s / _BUCKETS
        self.parts: deque[list[float]] = deque(maxlen=_BUCKETS)

    def add(self, seconds: float, rate: float) -> None:
        if not self.parts or self.parts[-1][0] >= self.width:
            self.parts.append([0.0, 0.0])
        self.parts[-1][0] += seconds
        self.parts[-1][1] += seconds * rate

    def mean(self, last_s: float) -> tuple[float, float]:
        """(seconds, mean) of the newest parts that make up at least `last_s`, or of all."""
        seconds = total = 0.0
        for span, amount in reversed(self.parts):
            seconds, total = seconds + span, total + amount
            if seconds >= last_s * (1.0 - 1e-9):
                break
        return seconds, total / seconds if seconds else 0.0


class Health:
    """See the module. Looks are given in order of time."""

    def __init__(
        self,
        node: NodeRecord,
        settings: HealthSettings | None = None,
        *,
        booted_s: float = 0.0,
        flags: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """node: as last recorded, with the states that a scheduler before this one gave its GPUs. booted_s: when the
        machine was booted, epoch seconds: what was found before may have been mended by that. flags: by run, what was
        said of its job before."""
        self.settings = settings or HealthSettings()
        self._kind = node.kind
        self._states = {gpu.index: _State(gpu) for gpu in node.gpus}
        self._idle: dict[str, _Idle] = {}
        self._flagged: dict[str, dict[str, str]] = {run: dict(said) for run, said in (flags or {}).items()}
        self._held: dict[str, tuple[int, ...]] = {}
        self._at_s: float | None = None
        for state in self._states.values():
            gpu = state.gpu
            if gpu.state == GpuState.UNHEALTHY:
                since = gpu.since_s or 0.0
                rebooted = since < booted_s
                state.problems["before"] = _Problem(
                    gpu.reason, since, present=False, needs_reset=gpu.needs_reset and not rebooted
                )
            elif gpu.state == GpuState.FOREIGN:
                state.strangers = gpu.reason

    def note(self, sample: Sample, runs: Mapping[str, RunOnNode]) -> Changes:
        """Record a sample; returns what it changes."""
        span = 0.0 if self._at_s is None else sample.at_s - self._at_s
        # Neither a clock that was set nor a night in suspension is time in which a job was seen.
        span = span if 0.0 < span < 300.0 else 0.0
        self._at_s = sample.at_s
        flags: list[Flag] = []
        by_gpu: dict[int, list[Finding]] = {index: [] for index in self._states}
        for finding in (*sample.findings, *_of_xids(sample)):
            if finding.gpu in by_gpu:
                by_gpu[finding.gpu].append(finding)
        changed = []
        notes = {}
        for index, state in self._states.items():
            before = state.gpu
            self._look(state, by_gpu[index], sample.at_s)
            if state.gpu != before:
                changed.append(state.gpu)
            said = tuple(finding.text for finding in by_gpu[index] if finding.kind == FindingKind.NOTE)
            if said:
                notes[index] = said
        holding = {run: known.gpus for run, known in runs.items()}
        for gpu, xid in sample.xids:
            # It happened since the last look: whoever held the GPU then, even if the error has ended it meanwhile.
            hit = [run for run, gpus in self._held.items() if gpu in gpus]
            whose = ": usually an error in the program" if xid in PROGRAM else ""
            for run in hit or [run for run, gpus in holding.items() if gpu in gpus]:
                flags.extend(self._flag(run, "gpu_error", f"{xid_text(xid)} on GPU {gpu}{whose}"))
        self._held = holding
        for run, known in runs.items():
            usage = sample.runs.get(run)
            if usage is not None and not known.frozen and self.settings.idle_s > 0:
                flags.extend(self._idleness(run, known, usage, span))
        for gone in set(self._idle) - set(runs):
            del self._idle[gone]
        for gone in set(self._flagged) - set(runs):
            # 'idle' is about now; an error on the GPU stays part of the job's story.
            if self._flagged.pop(gone).get("idle"):
                flags.append(Flag(gone, "idle", ""))
        return Changes(tuple(changed), tuple(flags), notes)

    def clear(self, gpus: Iterable[int] | None = None) -> tuple[Gpu, ...]:
        """A person says that these GPUs (None: all) are well again. Those that change by it, as they are now.

        Conditions that go on being found are excused until they end; strangers are not: they are there or not.
        """
        wanted = set(self._states) if gpus is None else set(gpus)
        changed = []
        for index, state in self._states.items():
            if index in wanted and state.problems:
                state.excused |= {code for code, problem in state.problems.items() if problem.present}
                state.problems.clear()
                before = state.gpu
                self._settle(state, self._at_s if self._at_s is not None else before.since_s)
                if state.gpu != before:
                    changed.append(state.gpu)
        return tuple(changed)

    # -- GPUs ------------------------------------------------------------------------------------------------

    def _look(self, state: _State, findings: list[Finding], at_s: float) -> None:
        found = {finding.code: finding for finding in findings}
        state.streak = {code: state.streak.get(code, 0) + 1 for code in found}
        if not _BLIND & set(found):
            state.excused &= set(found)
        for code, problem in state.problems.items():
            problem.last_s = min(problem.last_s, at_s)  # a clock that was set back must not keep it for long
            if problem.present and code not in found:
                problem.present = False
                problem.last_s = at_s
                if code in _RESETS_SEEN:
                    for other in state.problems.values():
                        other.needs_reset, other.last_s = False, at_s
        strangers = []
        for finding in findings:
            if state.streak[finding.code] < finding.patience:
                continue
            if finding.kind == FindingKind.FOREIGN:
                strangers.append(finding.text)
            elif finding.kind == FindingKind.UNHEALTHY and finding.code not in state.excused:
                lasting = finding.event and finding.needs_reset
                state.problems[finding.code] = _Problem(finding.text, at_s, not finding.event, lasting)
        if strangers:
            state.strangers, state.clean = "; ".join(strangers[:3]), 0
        elif state.strangers:
            state.clean += 1
            if state.clean >= self.settings.clean_samples:
                state.strangers, state.clean = "", 0
        state.problems = {
            code: problem
            for code, problem in state.problems.items()
            if problem.present or problem.needs_reset or at_s - problem.last_s < self.settings.recovery_s
        }
        self._settle(state, at_s)

    @staticmethod
    def _settle(state: _State, at_s: float | None) -> None:
        """The GPU's record by what is known of it."""
        needs_reset = False
        if state.problems:
            kind = GpuState.UNHEALTHY
            worst = sorted(state.problems.values(), key=lambda p: (not p.needs_reset, not p.present, p.last_s))
            reason = ""
            for problem in worst:
                if problem.text not in reason:
                    reason = f"{reason}; {problem.text}" if reason else problem.text
            needs_reset = worst[0].needs_reset
            if needs_reset and RESET_WORDS not in reason:
                reason = f"{reason}; {RESET_WORDS}"
        elif state.strangers:
            kind, reason = GpuState.FOREIGN, state.strangers
        else:
            kind, reason = GpuState.OK, ""
        if kind == state.gpu.state and (reason == state.gpu.reason or kind == GpuState.FOREIGN):
            # Strangers come and go by the second, and their memory changes: the first word stands.
            return
        since = state.gpu.since_s if kind == state.gpu.state else (None if kind == GpuState.OK else at_s)
        state.gpu = replace(state.gpu, state=kind, reason=reason, since_s=since, needs_reset=needs_reset)

    # -- jobs ------------------------------------------------------------------------------------------------

    def _flag(self, run: str, flag: str, text: str) -> list[Flag]:
        """[] if that is said already."""
        said = self._flagged.setdefault(run, {})
        if said.get(flag, "") == text:
            return []
        said[flag] = text
        return [Flag(run, flag, text)]

    def _idleness(self, run: str, known: RunOnNode, usage: RunUsage, span: float) -> Iterable[Flag]:
        on_gpus = self._kind == DeviceKind.GPU
        rate = usage.gpu_utilization if on_gpus else usage.cpu_cores
        if rate is None or span <= 0.0:
            return
        settings = self.settings
        window = self._idle.setdefault(run, _Idle(settings.idle_s))
        window.add(span, rate)
        limit = settings.idle_gpu_percent if on_gpus else settings.idle_cores
        flagged = bool(self._flagged.get(run, {}).get("idle"))
        seconds, mean = window.mean(settings.idle_s)
        if not flagged and seconds >= settings.idle_s * (1.0 - 1.0 / _BUCKETS) and mean < limit:
            what = f"{mean:.1f} % GPU use" if on_gpus else f"{100 * mean:.1f} % of a CPU core used"
            held = f"{plural(len(known.gpus), 'GPU' if on_gpus else 'CPU slot')}"
            text = f"idle: {what} on average in the last {format_duration(settings.idle_s)}, while it holds {held}"
            yield from self._flag(run, "idle", text)
        elif flagged and window.mean(settings.busy_s)[1] >= limit:
            self._idle.pop(run)
            yield from self._flag(run, "idle", "")


def _of_xids(sample: Sample) -> Iterable[Finding]:
    """What XID errors say of their GPUs."""
    for gpu, xid in sample.xids:
        text = xid_text(xid)
        if xid in RESET or xid in PASSING:
            yield Finding(FindingKind.UNHEALTHY, gpu, f"xid-{xid}", text, event=True, needs_reset=xid in RESET)
        else:
            yield Finding(FindingKind.NOTE, gpu, f"xid-{xid}", text, event=True)
