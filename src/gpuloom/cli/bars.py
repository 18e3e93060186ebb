"""Values over time as a line of bars."""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"


def binned(
    from_s: Sequence[float], span_s: Sequence[float], values: Sequence[float | None], bins: int
) -> list[float | None]:
    """Means over equal bins of the time that samples span, weighed by their spans; None where nothing is known."""
    begin_s = from_s[0]
    width_s = max(from_s[-1] + span_s[-1] - begin_s, 1e-9) / bins
    sums, spans = [0.0] * bins, [0.0] * bins
    for at_s, lasts_s, value in zip(from_s, span_s, values, strict=True):
        if value is None:
            continue
        since_s, until_s = at_s - begin_s, at_s - begin_s + lasts_s
        for place in range(min(int(since_s / width_s), bins - 1), min(int(until_s / width_s), bins - 1) + 1):
            span = min(until_s, (place + 1) * width_s) - max(since_s, place * width_s)
            if span > 0:
                sums[place] += value * span
                spans[place] += span
    return [total / span if span else None for total, span in zip(sums, spans, strict=True)]


def bars(values: Sequence[float | None]) -> str:
    """A letter for each value, from the least to the most of them; a blank where it is not known."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)

    def bar(value: float) -> str:
        return BARS[round((len(BARS) - 1) * (value - low) / (high - low))] if high > low else BARS[0]

    return "".join(" " if value is None else bar(value) for value in values).rstrip()
