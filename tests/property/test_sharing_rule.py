"""The admission rule in C against a plain re-telling of it in Python, and what must hold of any rule."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.sharing.rule import (
    CLASSES,
    RULES,
    Kernel,
    Params,
)
from sharing_gate import KINDS, Situation, Verdict, admit, interference
from tiers import examples

pytestmark = pytest.mark.slow

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


class Beside:
    """A device on which the service's kernel ("h") and the training kernel ("k") hold SMs, wave by wave."""

    def __init__(self, sms: int) -> None:
        self.sms, self.now = sms, 0.0
        self.groups: list[tuple[str, float, int]] = []  # who, end, SMs
        self.waiting, self.block = {"h": 0, "k": 0}, {"h": 0.0, "k": 0.0}

    def held(self, who: str) -> int:
        return sum(g[2] for g in self.groups if g[0] == who)

    def put(self, p: Params, k: Kernel, who: str) -> None:
        portions = max(1, k.sm)
        waves = math.ceil(portions / self.sms)
        lump = math.ceil(waves / 16)
        self.waiting[who] = -(-portions // lump)
        self.block[who] = float(lasts(p, k)) / float(-(-self.waiting[who] // self.sms))

    def fill(self, who: str, block: float | None = None) -> None:
        take = min(self.waiting[who], self.sms - self.held("h") - self.held("k"))
        end = self.now + (self.block[who] if block is None else block)
        if not take:
            return
        self.waiting[who] -= take
        for i, (owner, other, held) in enumerate(self.groups):
            if owner == who and (other == end or len(self.groups) >= 23):
                self.groups[i] = (who, max(other, end), held + take)
                return
        self.groups.append((who, end, take))

    def go_on(self, until: float) -> None:
        self.now = max(self.now, min([until, *(g[1] for g in self.groups)]))
        self.groups = [g for g in self.groups if g[1] > self.now]


def slowdown(p: Params, k: Kernel, hp: Kernel, on: int, all_sms: int) -> float:
    fraction = min(1.0, on / width(k, all_sms))
    dram = util(p, k.dram) * fraction
    slow = max(0.0, util(p, k.compute) * fraction + util(p, hp.compute) - 1)
    return slow + max(0.0, dram + util(p, hp.dram) - 1) + p.cache * dram


def delay(p: Params, s: Situation, k: Kernel) -> int:
    device, begin, begun = Beside(s.sm_count), float(max(s.outstanding_ns, p.launch_ns)), False
    alone = slowed = 0.0
    steps = 0
    for index, hp in enumerate(s.hp):
        time, gone = float(lasts(p, hp)), float(s.hp_elapsed_ns) if index == 0 else 0.0
        if begun and not device.waiting["k"] and not device.held("k"):
            break
        if gone >= time:
            continue
        if not gone:  # a boundary: what waits takes the free SMs first
            if not begun and begin <= device.now:
                begun = True
                device.put(p, k, "k")
            device.fill("k")
        device.put(p, hp, "h")
        if gone:
            block = device.block["h"]
            waves = int(gone / block)
            device.waiting["h"] = max(1, device.waiting["h"] - waves * s.sm_count)
            device.fill("h", block - (gone - waves * block))
        else:
            device.fill("h")
        alone += time - gone
        while (device.waiting["h"] or device.held("h")) and steps < 192:
            steps += 1
            if not begun and begin <= device.now:
                begun = True
                device.put(p, k, "k")
            device.fill("k")
            before, on, of = device.now, device.held("k"), device.held("h")
            device.go_on(math.inf if begun else begin)
            if on and of:
                slowed += slowdown(p, k, hp, on, s.sm_count) * (device.now - before)
            device.fill("h")
        if steps >= 192:
            break
    lost = max(0.0, device.now - alone) + slowed
    if not begun:
        device.put(p, k, "k")
    if steps >= 192 or not s.backlog_ns or float(s.backlog_ns) > sum(lasts(p, hp) for hp in s.hp) - s.hp_elapsed_ns:
        left = max((g[1] - device.now for g in device.groups if g[0] == "k"), default=0.0)
        lost += left + device.block["k"] * float(-(-device.waiting["k"] // s.sm_count))
    return int(lost) if lost < 9e18 else 2**63 - 1


def price(p: Params, s: Situation) -> float:
    at = (s.load if s.load > 0 else 0.5) * 10
    low = min(9, int(at))
    theta = THETA[low] + (THETA[low + 1] - THETA[low]) * (at - low)
    x = p.steepness * theta * (s.backlog_ns / s.request_ns) if s.request_ns else 0.0
    power = 1 + x / 64
    for _ in range(6):
        power *= power  # of floats: infinite where ** would raise
    worth = 4.0 * s.load * s.load if 0.0 < s.load < 0.5 else 1.0
    return p.price * worth * (s.price_scale or p.begin) / power


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
        return True, "idle"
    if s.kind == "graph":
        return False, "graph"
    if p.budget and not k.duration_ns:
        return False, "unknown"
    reason, _ = specified(p, s, k)
    spare = part(p.absorb * min(1.0, s.price_scale or p.begin), s.spare_ns)
    if not p.budget or s.slack_ns is None:
        return reason == "beside", reason
    if s.slack_ns < 0:
        return False, "budget"
    if reason != "beside":
        if not p.price or (p.lone and s.requests > p.lone):
            return False, reason
        if not s.hp and not spare:
            return False, "price"
        if s.outstanding and s.outstanding_ns > queued:
            return False, "window"
    cost = delay(p, s, k)
    if spare:
        cost = max(0, min(U64, s.lag_ns + cost) - spare) - max(0, s.lag_ns - spare)
    if s.slack_ns < cost:
        return False, "budget"
    if reason == "beside":
        return True, reason
    return (False, "price") if cost > part(price(p, s), lasts(p, k)) else (True, "priced")


def drawn_kernel(rng: random.Random) -> Kernel:
    def utilisation() -> float | None:
        return rng.choice([None, 0.0, 1.0, math.nan, -1.0, 7.0, rng.random(), rng.random(), rng.random() / 2])

    sm = rng.choice([0, 1, 79, 80, 81, rng.randrange(1, 80), rng.randrange(1, 80), rng.randrange(80, 2000)])
    duration = rng.choice([0, 1, rng.randrange(1, 10_000), rng.randrange(1, 10_000_000), 2**62])
    return Kernel(sm, rng.choice(CLASSES), utilisation(), utilisation(), duration)


def drawn(rng: random.Random) -> tuple[Params, Situation, Kernel]:
    rule = rng.choice(["orion", "gpuloom", "gpuloom", "gpuloom", "gpuloom", "literal", "none", "priority"])
    p = replace(Params.default(rule), interference_threshold=rng.choice([0.1, 0.5, 0.9, 1.0]))
    if rng.random() < 0.4:  # the rule as specified
        p = replace(p, idle_window_ns=0, idle_window=0.0, look_ahead=0, budget=0.0, price=0.0)
    p = replace(p, lone=rng.choice([0, 1, 2]))
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
        spare_ns=rng.choice([0, 0, rng.randrange(10**7), U64]),
        lag_ns=rng.choice([0, rng.randrange(10**7), U64]),
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
    holds = {"interference", "sm", "duration", "window", "budget", "graph", "class", "price", "unknown"}
    assert seen == admits | holds


utils = st.none() | st.floats(0, 1) | st.just(math.nan) | st.floats(allow_infinity=True, allow_nan=True)
kernels = st.builds(Kernel, st.integers(0, 2**32 - 1), st.sampled_from(CLASSES), utils, utils, st.integers(0, U64))


@given(kernels, kernels, st.integers(1, 2**32 - 1))
@settings(max_examples=examples(500))
def test_score_is_from_0_to_1_and_symmetrical(one: Kernel, other: Kernel, sms: int) -> None:
    p = Params.default("gpuloom")
    value = interference(p, one, other, sms)
    assert 0 <= value <= 1
    assert value == pytest.approx(interference(p, other, one, sms), abs=1e-12)
    assert value == pytest.approx(score(p, one, other, sms), abs=1e-12)


@given(kernels, kernels, st.integers(1, 200), st.floats(0, 1))
@settings(max_examples=examples(500))
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
@settings(max_examples=examples(500))
def test_no_hold_outlasts_max_hold(k: Kernel, hp: Kernel, held: int, outstanding: int, request: int) -> None:
    for rule in RULES:
        p = Params.default(rule)
        s = Situation(80, True, (hp,), 0, request, outstanding, 1, held_ns=held, slack_ns=0)
        verdict = admit(p, s, k)
        if held >= p.max_hold_ns:
            assert verdict.admit
        if not verdict.admit:
            assert 0 < verdict.recheck_ns <= p.max_hold_ns - held


def test_the_literal_rule_is_gpulooms_without_what_it_adds() -> None:
    added = dict.fromkeys(("idle_window_ns", "look_ahead"), 0) | dict.fromkeys(("idle_window", "budget", "price"), 0.0)
    assert added.items() <= asdict(Params.default("literal")).items()
    assert not added.items() & asdict(Params.default("gpuloom")).items()
    same = ("interference_threshold", "same_class_penalty", "duration_threshold", "max_hold_ns", "unknown_duration_ns")
    for name in same:
        assert getattr(Params.default("literal"), name) == getattr(Params.default("gpuloom"), name)


@given(kernels, kernels, st.integers(0, 10**7), st.integers(0, 10**9), st.floats(0.01, 1))
@settings(max_examples=examples(500))
def test_what_is_admitted_is_admitted_with_more_slack_and_a_higher_price(
    k: Kernel, hp: Kernel, outstanding: int, slack: int, scale: float
) -> None:
    p = Params.default("gpuloom")
    s = Situation(80, True, (hp,), 0, 10**9, outstanding, 1, slack_ns=slack, backlog_ns=10**9, price_scale=scale)
    if admit(p, s, k).admit:
        assert admit(p, replace(s, slack_ns=slack + 10**6, price_scale=scale + 0.1), k).admit


def test_delay_by_hand() -> None:
    # A kernel of the service of 100 us on 60 of 80 SMs has run for 20 us; another of 50 us on all SMs follows, the last
    # of the request. Training kernels of 20 SMs.
    p = replace(Params.default("gpuloom"), price=100.0, steepness=0.0, launch_ns=0)
    hp = (Kernel(60, "compute", 0.0, 0.0, 100_000), Kernel(80, "compute", 0.0, 0.0, 50_000))
    s = Situation(80, True, hp, 20_000, 10**9, slack_ns=10**9, backlog_ns=130_000, price_scale=1.0)

    def charge(us: int, **more: float) -> int:
        return admit(p, replace(s, **more), Kernel(20, "memory", 0.0, 0.0, us * 1000)).charge_ns  # type: ignore[arg-type]

    assert charge(80) == 0  # ends with the first kernel
    assert charge(100) == 20_000  # the second waits for 20 SMs for 20 us
    assert charge(125) == 45_000
    assert charge(500) == 50_000  # ... and no longer than its own first blocks take: then it has 60 SMs
    assert charge(80, outstanding_ns=30_000) == 30_000  # begins later
    assert charge(500, backlog_ns=10**6) == 50_000 + 500_000 - 80_000 - 100_000  # others come and find it there
    # Its program is slower than the GPU by 1 ms until its end: 0.8 of that makes up for delays, less what is behind.
    assert charge(125, spare_ns=10**6) == 0
    assert charge(125, spare_ns=10**6, lag_ns=780_000) == 25_000
    assert charge(125, spare_ns=10**6, lag_ns=900_000) == 45_000
    slow = replace(s, spare_ns=10**6, price_scale=0.1)  # the tail is late: less is counted on
    assert admit(p, slow, Kernel(20, "memory", 0.0, 0.0, 500_000)).charge_ns == 0
    assert admit(p, replace(slow, lag_ns=50_000), Kernel(20, "memory", 0.0, 0.0, 500_000)).charge_ns == 20_000
    # The GPU has nothing of the request: whoever fits into what is spare goes.
    empty = replace(s, hp=(), spare_ns=10**6, backlog_ns=0, request_ns=10**6)
    long = Kernel(20, "memory", 0.0, 0.0, 500_000)
    assert admit(p, empty, long) == Verdict(True, "priced", 0.0, 0, 0, 500_000)
    assert admit(p, replace(empty, spare_ns=0), long).reason == "price"
    # Memory traffic beside the first kernel: 0.6 + 0.6 of the bandwidth, and the caches.
    busy = replace(s, hp=(replace(hp[0], dram=0.6), hp[1]))
    found = admit(p, busy, Kernel(20, "memory", 0.0, 0.6, 80_000)).charge_ns
    assert found == pytest.approx(80_000 * (0.2 + 0.05 * 0.6), abs=2)
