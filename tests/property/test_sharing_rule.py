"""The admission rule in C against a plain re-telling of it in Python, and what must hold of any rule."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.sharing.rule import (
    CLASSES,
    KINDS,
    RULES,
    Kernel,
    Params,
    Situation,
    admit,
    block_ns,
    interference,
)

U64 = 2**64 - 1
THETA = (4.51, 3.62, 2.66, 2.07, 1.62, 1.26, 0.95, 0.67, 0.43, 0.21, 0.0)


# The re-telling. Whole numbers of Python instead of saturating ones, lists instead of loops with flags.


def util(p: Params, value: float | None) -> float:
    return p.unknown_utilisation if value is None or math.isnan(value) or value < 0 else min(1.0, value)


def lasts(p: Params, k: Kernel) -> int:
    return k.duration_ns or p.unknown_duration_ns


def width(k: Kernel, all_sms: int) -> int:
    return min(max(k.sm, 1), all_sms)


def score(p: Params, k: Kernel, hp: Kernel, all_sms: int) -> float:
    total = max(0.0, util(p, k.compute) + util(p, hp.compute) - 1) + max(0.0, util(p, k.dram) + util(p, hp.dram) - 1)
    total += max(0.0, (width(k, all_sms) + width(hp, all_sms)) / all_sms - 1)
    if k.klass == hp.klass != "unknown":
        total += p.same_class_penalty
    return min(1.0, total)


def part(share: float, of: int) -> int:
    return min(U64, int(share * of)) if share > 0 else 0


def remaining(p: Params, s: Situation) -> list[int]:
    times = [lasts(p, hp) for hp in s.hp]
    return [max(0, times[0] - s.hp_elapsed_ns), *times[1:]] if times else []


def met(p: Params, s: Situation, k: Kernel) -> list[Kernel]:
    """The high-priority kernels that run before ours would have ended."""
    if not p.look_ahead:
        return list(s.hp[:1])
    end, start, found = s.outstanding_ns + lasts(p, k), 0, []
    for index, (hp, time) in enumerate(zip(s.hp, remaining(p, s), strict=True)):
        if index and start >= min(end, U64):
            break
        found.append(hp)
        start += time
    return found


def specified(p: Params, s: Situation, k: Kernel) -> tuple[str, float]:
    worst = max((score(p, k, hp, s.sm_count) for hp in met(p, s, k)), default=0.0)
    own = width(k, s.sm_count)
    if worst > p.interference_threshold:
        return "interference", worst
    if any(
        own + width(hp, s.sm_count) + s.outstanding_sm > s.sm_count for hp in (*met(p, s, k), Kernel(1)) if hp in s.hp
    ):
        return "sm", worst
    if own + s.outstanding_sm > s.sm_count:
        return "sm", worst
    if min(U64, s.outstanding_ns + lasts(p, k)) > part(p.duration_threshold, s.request_ns):
        return "duration", worst
    return "beside", worst


def delay(p: Params, s: Situation, k: Kernel) -> int:
    all_sms, block = s.sm_count, -(-lasts(p, k) // max(1, -(-k.sm // s.sm_count)))
    pending, overrun, cost = float(max(1, k.sm)), 0.0, 0
    for index, (hp, time) in enumerate(zip(s.hp, remaining(p, s), strict=True)):
        need = width(hp, all_sms)
        if index or not s.hp_elapsed_ns:  # a boundary: what waits takes the free SMs first
            taken = min(pending + overrun, float(all_sms))
            if taken + need > all_sms:
                cost += part((taken + need - all_sms) / all_sms, block) if hp.sm > all_sms else block
            pending -= taken - overrun
        if pending <= 0:
            break
        left_over = all_sms - need
        on = min(int(pending), left_over)
        fraction = min(1.0, on / width(k, all_sms))
        slow = max(0.0, util(p, k.compute) * fraction + util(p, hp.compute) - 1)
        slow += max(0.0, util(p, k.dram) * fraction + util(p, hp.dram) - 1)
        cost += part(slow, time)
        waves = float(time // block) if block else 0.0
        overrun = float(on) if pending > waves * left_over else 0.0
        pending = max(0.0, pending - (waves + (overrun > 0)) * left_over)
        if not pending and not overrun:
            break
    return min(U64, cost)


def price(p: Params, s: Situation) -> float:
    at = (s.load if s.load > 0 else 0.5) * 10
    low = min(9, int(at))
    theta = THETA[low] + (THETA[low + 1] - THETA[low]) * (at - low)
    x = p.steepness * theta * (s.backlog_ns / s.request_ns) if s.request_ns else 0.0
    power = 1 + x / 64
    for _ in range(6):
        power *= power  # of floats: infinite where ** would raise
    return p.price * (s.price_scale or 1.0) / power


def retold(p: Params, s: Situation, k: Kernel) -> tuple[bool, str]:
    if p.rule in ("none", "priority"):
        return True, "free"
    if s.kind in ("memory", "warm-up"):
        return True, "exempt"
    if s.held_ns >= p.max_hold_ns:
        return True, "max_hold"
    if p.rule == "orion":
        if s.outstanding and s.request_ns and s.accumulated_ns > part(p.duration_threshold, s.request_ns):
            return False, "duration"
        if not s.hp_busy:
            return True, "idle"
        if s.pass_sm + max(1, k.sm) >= s.sm_count:
            return False, "sm"
        if s.hp and k.klass in (s.hp[0].klass, "unknown"):
            return False, "class"
        return True, "beside"
    queued = max(p.idle_window_ns, part(p.idle_window, s.request_ns))
    if not s.hp_busy:
        if queued and s.outstanding and s.outstanding_ns > queued:
            return False, "window"
        if p.gap_margin and s.gap_ns and s.outstanding_ns + lasts(p, k) > part(p.gap_margin, s.gap_ns):
            return False, "gap"
        return True, "idle"
    if s.kind == "graph":
        return False, "graph"
    reason, _ = specified(p, s, k)
    if not p.budget or s.slack_ns is None:
        return reason == "beside", reason
    if s.slack_ns < delay(p, s, k):
        return False, "budget"
    if reason == "beside":
        return True, reason
    if not p.price or (p.lone and s.requests > p.lone):
        return False, reason
    if not s.hp or delay(p, s, k) > part(price(p, s), lasts(p, k)):
        return False, "price"
    if s.outstanding and s.outstanding_ns > queued:
        return False, "window"
    return True, "priced"


def drawn_kernel(rng: random.Random) -> Kernel:
    def utilisation() -> float | None:
        return rng.choice([None, 0.0, 1.0, math.nan, -1.0, 7.0, rng.random(), rng.random(), rng.random() / 2])

    sm = rng.choice([0, 1, 79, 80, 81, rng.randrange(1, 80), rng.randrange(1, 80), rng.randrange(80, 2000)])
    duration = rng.choice([0, 1, rng.randrange(1, 10_000), rng.randrange(1, 10_000_000), 2**62])
    return Kernel(sm, rng.choice(CLASSES), utilisation(), utilisation(), duration)


def drawn(rng: random.Random) -> tuple[Params, Situation, Kernel]:
    rule = rng.choice(["orion", "gpuloom", "gpuloom", "gpuloom", "gpuloom", "none", "priority"])
    p = replace(Params.default(rule), interference_threshold=rng.choice([0.1, 0.5, 0.9, 1.0]))
    if rng.random() < 0.4:  # the rule as specified
        p = replace(p, idle_window_ns=0, idle_window=0.0, look_ahead=0, budget=0.0, price=0.0)
    p = replace(p, gap_margin=rng.choice([0.0, 0.0, 0.5]), lone=rng.choice([0, 1, 2]))
    request = rng.choice([0, 10_000, rng.randrange(10**5, 10**8), 2**63])
    s = Situation(
        sm_count=rng.choice([1, 14, 80, 80, 80, 132]),
        hp_busy=rng.random() < 0.8,
        hp=tuple(drawn_kernel(rng) for _ in range(rng.randrange(5))),
        hp_elapsed_ns=rng.choice([0, 0, rng.randrange(10**6)]),
        request_ns=request,
        outstanding_ns=rng.choice([0, rng.randrange(10**5), rng.randrange(10**7), 2**63, U64]),
        outstanding=rng.choice([0, 1, 5]),
        outstanding_sm=rng.choice([0, 0, 10, 80]),
        accumulated_ns=rng.choice([0, rng.randrange(10**7)]),
        pass_sm=rng.choice([0, 0, 40, 2**32 - 1]),
        kind=rng.choice([*KINDS, "kernel", "kernel", "kernel", "kernel"]),
        held_ns=rng.choice([0, 0, 0, 10**6, 10**8, U64]),
        slack_ns=rng.choice([None, 0, -5, rng.randrange(10**7), rng.randrange(10**7), 2**62]),
        requests=rng.randrange(4),
        backlog_ns=rng.choice([0, rng.randrange(10**8), U64]),
        price_scale=rng.choice([0.0, 0.1, 2.0]),
        load=rng.choice([0.0, rng.random(), 1.0]),
        gap_ns=rng.choice([0, rng.randrange(10**7)]),
    )
    return p, s, drawn_kernel(rng)


@pytest.mark.parametrize("seed", range(4))
def test_c_agrees_with_the_retelling(seed: int) -> None:
    rng, seen = random.Random(seed), set()
    for _ in range(5000):
        p, s, k = drawn(rng)
        verdict = admit(p, s, k)
        assert (verdict.admit, verdict.reason) == retold(p, s, k), (p, s, k)
        seen.add(verdict.reason)
    admits = {"free", "idle", "beside", "exempt", "max_hold", "priced"}
    holds = {"interference", "sm", "duration", "window", "budget", "graph", "class", "gap", "price"}
    assert seen == admits | holds


utils = st.none() | st.floats(0, 1) | st.just(math.nan) | st.floats(allow_infinity=True, allow_nan=True)
kernels = st.builds(Kernel, st.integers(0, 2**32 - 1), st.sampled_from(CLASSES), utils, utils, st.integers(0, U64))


@given(kernels, kernels, st.integers(1, 2**32 - 1))
@settings(max_examples=500)
def test_score_is_from_0_to_1_and_symmetrical(one: Kernel, other: Kernel, sms: int) -> None:
    p = Params.default("gpuloom")
    value = interference(p, one, other, sms)
    assert 0 <= value <= 1
    assert value == pytest.approx(interference(p, other, one, sms), abs=1e-12)
    assert value == pytest.approx(score(p, one, other, sms), abs=1e-12)


@given(kernels, kernels, st.integers(1, 200), st.floats(0, 1))
@settings(max_examples=500)
def test_score_grows_with_what_is_used(one: Kernel, other: Kernel, sms: int, more: float) -> None:
    p = Params.default("gpuloom")
    low = replace(one, compute=util(p, one.compute) * more, sm=int(one.sm * more))
    high = replace(one, compute=util(p, one.compute))
    assert interference(p, low, other, sms) <= interference(p, high, other, sms) + 1e-12


@given(kernels)
def test_unknown_utilisation_counts_as_half(k: Kernel) -> None:
    p, hp = Params.default("gpuloom"), Kernel(1, "compute", 0.9, 0.9)
    unknown, half = replace(k, compute=None, dram=None), replace(k, compute=0.5, dram=0.5)
    assert interference(p, unknown, hp, 80) == interference(p, half, hp, 80)


@given(kernels, kernels, st.integers(0, U64), st.integers(0, U64), st.integers(0, U64))
@settings(max_examples=500)
def test_no_hold_outlasts_max_hold(k: Kernel, hp: Kernel, held: int, outstanding: int, request: int) -> None:
    for rule in RULES:
        p = Params.default(rule)
        s = Situation(80, True, (hp,), 0, request, outstanding, 1, held_ns=held, slack_ns=0)
        verdict = admit(p, s, k)
        if held >= p.max_hold_ns:
            assert verdict.admit
        if not verdict.admit:
            assert 0 < verdict.recheck_ns <= p.max_hold_ns - held


@given(kernels, kernels, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
@settings(max_examples=500)
def test_what_is_admitted_is_admitted_with_less_outstanding_and_more_slack(
    k: Kernel, hp: Kernel, outstanding: int, less: int, slack: int
) -> None:
    p = Params.default("gpuloom")
    s = Situation(80, True, (hp,), 0, 10**9, max(outstanding, less), 1, slack_ns=slack, backlog_ns=10**9)
    easier = replace(s, outstanding_ns=min(outstanding, less), slack_ns=slack + 10**6, backlog_ns=0)
    if admit(p, s, k).admit:
        assert admit(p, easier, k).admit


@given(kernels, st.integers(1, 200))
def test_waves_of_blocks(k: Kernel, sms: int) -> None:
    p = Params.default("gpuloom")
    waves = max(1, -(-k.sm // sms))
    assert block_ns(p, k, sms) == -(-min(lasts(p, k), U64) // waves) or lasts(p, k) > U64 - waves
