"""The table of a measured stage profile, and what is said around it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from gpuloom.cli.live_tables import Column
from gpuloom.core.measured import Measured
from gpuloom.core.words import plural
from gpuloom.report.stages import PARTS, parts_of


@dataclass(frozen=True, slots=True)
class PartRow:
    """A line of the table: a part of an iteration, or a resource."""

    part: str
    ms: str
    share: str
    bar: str
    stage: str


PART_COLUMNS = (
    Column("part of an iteration", attrgetter("part")),
    Column("ms", attrgetter("ms"), right=True),
    Column("share", attrgetter("share"), right=True),
    Column("", attrgetter("bar"), least=70),
    Column("in all", attrgetter("stage"), right=True, least=50),
)


def part_rows(measured: Measured) -> list[PartRow]:
    """Parts of an iteration, and beside them the time on each resource, hidden or not."""
    in_all = dict(zip(PARTS, (*measured.stages_s, None, None), strict=True))
    rows = []
    for name, seconds in zip(PARTS, parts_of(measured), strict=True):
        share, whole = seconds / measured.iteration_s, in_all[name]
        if name == "turns" and share < 0.005:
            continue
        shown = "" if whole is None else f"{whole * 1e3:,.4g}"
        rows.append(PartRow(name, f"{seconds * 1e3:,.4g}", f"{share:.0%}", "█" * round(share * 30), shown))
    return rows


def measured_lines(measured: Measured) -> list[str]:
    """What stands above and below the table: speed, ratio, memory, noise; what was not measured; the advice."""
    from gpuloom.facts.measured_profiles import DOUBTS, advice_of

    m = measured
    facts = [
        f"{m.rate_per_s:,.4g} it/s ({m.iteration_s * 1e3:,.4g} ms), {plural(m.timed, 'iteration')} of {m.framework}"
    ]
    if m.noise is not None:
        facts.append(f"noise {m.noise:.1%}")
    if m.drift is not None and abs(m.drift) > 0.05:
        facts.append(f"drift {m.drift:+.0%}")
    if m.compute_ratio is not None:
        facts.append(f"compute/communication {m.compute_ratio:.3g}")
    facts.append(f"{m.memory_mib:,} MiB of GPU memory" if m.memory_mib else "no GPU memory seen")
    facts.append(f"prefetches with {plural(m.workers, 'worker')}" if m.prefetches else "does not prefetch")
    return [", ".join(facts), *(f"not measured: {DOUBTS[doubt]}" for doubt in m.doubts), f"advice: {advice_of(m).text}"]
