"""The iteration time of woven jobs as the released simulator of Muri has it, written apart from the code under test."""

from collections.abc import Sequence

Stages = tuple[float, float, float]


def one_order_s(group: Sequence[Stages]) -> float:
    """The recurrence of the released simulator, word for word (../shared/data/muri/SEMANTICS.md)."""
    n, end = len(group), [0.0]
    for i in range(8):
        after = [0.0]
        if (i + 1) % 4 < n:
            after.append(end[i] + group[(i + 1) % 4][2])
        if (i + 2) % 4 < n:
            after.append(end[i] + group[(i + 2) % 4][1])
        if i > 0 and (i + 3) % 4 < n:
            after.append(end[i - 1] + group[(i + 3) % 4][0])
        end.append(max(after))
        if i >= 4:
            now, before = end[i + 1] - end[i - 3], end[i] - end[i - 4]
            if abs(now - before) <= 1e-3 * max(abs(now), abs(before)):
                return now
    return end[8] - end[4]
