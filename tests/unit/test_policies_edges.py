"""Parameters, figures and reasons of policies, each on the smallest case that shows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builders import engine_of, jobs
from gpuloom.core.cluster import Cluster, parse_cluster
from gpuloom.core.decision import Reason
from gpuloom.core.errors import PolicyError
from gpuloom.core.scaling import Scaling
from gpuloom.core.state import State
from gpuloom.core.workload import Labels, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.interleave.efficiency import MEASURED_OVERHEAD
from gpuloom.policies import base, blame, gavel_objectives, gittins, hlas_terms, sjf, weaving
from gpuloom.policies import memory as memory_of
from gpuloom.policies.composed import Composed
from gpuloom.policies.gavel_ledger import Memory as Ledger
from gpuloom.policies.gavel_objectives import Present
from gpuloom.policies.hlas_why import Explanations, waits_in_q2
from gpuloom.policies.memory import dump, load
from gpuloom.policies.pair_speeds import Expected, KernelSharing
from gpuloom.sim import simulate

# -- parameters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (base.whole, "1", 1),
        (base.seed, "0", 0),
        (base.number, "-1.5", -1.5),
        (base.positive, "0.001", 0.001),
        (base.not_negative, "0", 0.0),
        (base.fraction, "0", 0.0),
        (base.fraction, "1", 1.0),
        (base.share, "1", 1.0),
        (base.duration, "2m", 120.0),
        (base.duration_or_0, "0s", 0.0),
        (base.yes_or_no, "ON", True),
        (base.yes_or_no, "1", True),
        (base.yes_or_no, "True", True),
        (base.yes_or_no, "off", False),
        (base.yes_or_no, "0", False),
        (base.yes_or_no, "FALSE", False),
        (base.one_of("a", "b"), "b", "b"),
        (base.rising_numbers, "1/2", (1.0, 2.0)),
        (base.rising_numbers, "5", (5.0,)),
        (base.by_model("flops"), "flops", "flops"),
        (weaving.group_size, "1", 1),
        (weaving.group_size, "4", 4),
        (weaving.overhead, "measured", MEASURED_OVERHEAD),
        (weaving.overhead, "none", (1.0, 1.0, 1.0, 1.0)),
        (weaving.overhead, "1", (1.0, 1.0, 1.0, 1.0)),
        (weaving.overhead, "1.5", (1.0, 1.5, 1.5, 1.5)),
        (weaving.overhead, "1.3/1.5/1.4", (1.0, 1.3, 1.5, 1.4)),
        (weaving.overhead, "1/1.3/1.5/1.4", (1.0, 1.3, 1.5, 1.4)),
    ],
)
def test_values_that_are_taken(parse: Callable[[str], Any], text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (base.whole, "0", "a whole number of at least 1"),
        (base.whole, "1.5", "must be a whole number$"),
        (base.seed, "-1", "a whole number of at least 0"),
        (base.number, "x", "must be a number, not 'x'"),
        (base.number, "inf", "must be a finite number"),
        (base.positive, "0", "must be above 0"),
        (base.not_negative, "-0.001", "must not be below 0"),
        (base.fraction, "-0.001", "must be between 0 and 1"),
        (base.fraction, "1.001", "must be between 0 and 1"),
        (base.share, "0", "must be above 0 and at most 1"),
        (base.share, "1.001", "must be above 0 and at most 1"),
        (base.duration, "0s", "must be above 0"),
        (base.yes_or_no, "maybe", "must be yes or no"),
        (base.one_of("a", "b"), "c", "must be one of a, b"),
        (base.rising_numbers, "1,2", "separated by '/'"),
        (base.rising_numbers, "2/2", "must rise"),
        (base.rising_numbers, "0/2", "must be above 0"),
        (base.by_model("flops"), "V100:2/:3", "must be flops, or numbers as in"),
        (base.by_model("flops"), "V100:2/K80", "must be flops, or numbers as in"),
        (base.by_model("flops"), "V100:0", "must be above 0"),
        (weaving.group_size, "5", "must be 1 to 4"),
        (weaving.overhead, "0.99", "at least 1: sharing makes no job faster"),
        (weaving.overhead, "1.1/1.2", "one factor, or three"),
        (weaving.overhead, "1.1/1.2/1.3/1.4", "one factor, or three"),
    ],
)
def test_values_that_are_refused(parse: Callable[[str], Any], text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(text)


def test_traits_of_a_policy() -> None:
    row = {"summary": "", "knows": "", "heterogeneity": False, "sharing": False, "paper": "", "weights": ""}
    assert [base.Traits(preemptive=word, **row).preempts for word in base.Preemptive] == [  # type: ignore[arg-type]
        False, True, True, True, True,
    ]  # fmt: skip
    with pytest.raises(PolicyError, match="preemptive is 'often': must be one of no, yes, at rounds"):
        base.Traits(preemptive="often", **row)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "says"), [(None, "promote is None"), (-1, "promote=-1: must not be below 0"), ("x", "promote='x': must")]
)
def test_values_of_parameters_are_checked_however_they_are_given(value: Any, says: str) -> None:
    with pytest.raises(PolicyError, match=f"policy 'tiresias': {says}"):
        type(load_policy("tiresias"))(promote=value)


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("fifo:backfill=x", "no, easy, greedy"),
        ("srtf:placement=x", "sticky, scatter, repack"),
        ("themis:mode=x", "lease, muri"),
        ("themis:solver=x", "exact, ecos"),
        ("elastic-goodput:weight=x", "asked, remaining"),
        ("muri-s:ordering=x", "best, worst, none"),
    ],
)
def test_choices_are_named_the_default_first(text: str, choices: str) -> None:
    with pytest.raises(PolicyError, match=f"must be one of {choices} "):
        load_policy(text)


def test_a_parameter_that_there_is_not() -> None:
    with pytest.raises(PolicyError, match=r"has no parameter 'promot'; did you mean 'promote'\? \(it has: thresholds,"):
        type(load_policy("tiresias"))(promot=1)


@pytest.mark.parametrize(
    ("free", "code", "says"),
    [
        (1, "not_enough_free_gpus", "It needs 2 GPUs at once and 1 is free."),
        (2, "behind_others", "2 GPUs are free, but not 2 together where fifo would place this job"),
    ],
)
def test_why_a_job_waits(free: int, code: str, says: str) -> None:
    snapshot: Any = SimpleNamespace(workload=jobs([(0, 1, 2)]), free_gpus=free, waiting_count=5)
    why = base.Policy.reason(load_policy("fifo"), snapshot, 0)
    assert why.code == code
    assert why.text.startswith(says)
    assert why.numbers == {"gpus": 2, "free_gpus": free, "waiting": 5}


# -- what failed ---------------------------------------------------------------------------------------------


class Mute(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError(3), "KeyError: 3"),
        (ValueError("a\n  b"), "ValueError: a b"),
        (ValueError(), "ValueError"),
        (PolicyError("of ours"), "of ours"),
        (PolicyError(), "PolicyError"),
        (Mute(), "Mute"),
    ],
)
def test_an_error_in_a_few_words(error: Exception, text: str) -> None:
    assert blame.said(error) == text


def test_a_long_error_is_cut() -> None:
    assert blame.said(ValueError("x" * 488)) == "ValueError: " + "x" * 488
    assert len(blame.said(ValueError("x" * 489))) == 500


class Failing(type(load_policy("fifo"))):  # type: ignore[misc]
    def decide(self, snapshot: Any, memory: Any) -> Any:
        raise KeyError(3)


def test_the_line_of_the_policy_s_own_module_is_named() -> None:
    policy = Failing()
    with pytest.raises(KeyError) as error:
        policy.decide(None, None)
    assert blame.where(error.value, policy).startswith("test_policies_edges.py:")
    outer = load_policy("elastic-goodput:base=fifo")
    outer.inner = policy
    assert blame.where(error.value, outer).startswith("test_policies_edges.py:")
    assert blame.where(error.value, load_policy("srtf")) == ""
    assert blame.where(error.value, None).startswith("test_policies_edges.py:")


# -- weaving, sjf, composed ----------------------------------------------------------------------------------


def test_the_smallest_memory_of_a_cluster() -> None:
    node = parse_cluster("1x1").nodes[0]
    sized = [replace(node, name=f"n{mib}", gpu_memory_mib=mib) for mib in (32_000, None, 16_000)]
    assert weaving.smallest_memory_mib(Cluster(tuple(sized))) == 16_000.0
    assert weaving.smallest_memory_mib(Cluster((sized[1],))) == math.inf


def test_shortest_by_weight() -> None:
    snapshot: Any = SimpleNamespace(remaining_s=lambda job: 100.0)
    weighted = jobs([(0, 100, 1), (0, 100, 1)], weight=np.array([1.0, 4.0]))
    assert [sjf.DurationOrder(weighted).waiting_key(snapshot, job) for job in (0, 1)] == [100.0, 25.0]
    assert sjf.DurationOrder(jobs([(0, 100, 1)])).running_key(snapshot, 0) == 100.0
    assert load_policy("sjf").sees(8) == 9
    assert load_policy("srtf").sees(8) == 9
    assert load_policy("srtf:placement=repack").sees(8) is None


def elastic(jobs_there: int, most: int) -> Workload:
    """Jobs of a GPU that run on up to `most`, as much faster; all but the first come at 10 s."""
    ones = np.ones(jobs_there, dtype=np.int32)
    speeds = (np.arange(most + 1.0)[:, None],)
    scaling = Scaling(ones, ones, ones * most, np.zeros(jobs_there, dtype=np.int32), np.ones(jobs_there), speeds)
    return jobs([(0, 9000, 1)] + [(10, 9000, 1)] * (jobs_there - 1), scaling=scaling)


@pytest.mark.parametrize("text", ["elastic", "elastic-goodput:base=fifo"])
def test_a_job_that_grew_and_had_to_give_back_is_known_to_have(text: str) -> None:
    """The first has all four GPUs until another comes, which takes one of them."""
    memory, state = later(text, elastic(2, 4), "1x4")
    assert memory.expansions.item(0) == 1
    assert memory.last_expansion_s.item(0) == 0.0
    assert (memory.shrinks.tolist(), memory.last_shrink_s.item(0)) == ([1, 0], 10.0)
    assert memory.stirred_s == 10.0
    assert sorted(memory.home) == [0, 1]
    assert state.placements[0].gpus < 4


def test_a_file_that_nobody_has_read_is_refused() -> None:
    policy: Any = type(load_policy("elastic"))(config="some.yaml")
    with pytest.raises(
        PolicyError, match=r"policy 'elastic': config must be a mapping here \(the caller reads the file\)"
    ):
        policy.new_memory(jobs([(0, 1, 1)]), parse_cluster("1x1"))


def test_what_a_file_says_counts_where_nothing_is_written() -> None:
    policy: Any = type(load_policy("elastic"))(config={"proportion": 0.5, "check_minutes": 2.0}, proportion=0.25)
    rules, period_s = policy.rules()
    assert (rules.proportion, rules.shrink_threshold, period_s) == (0.25, 1.2, 120.0)
    letter: Any = type(load_policy("elastic"))(config={"literal": True, "proportion": 0.5})
    assert (letter.rules()[0].proportion, letter.rules()[0].shrink_threshold) == (0.5, 0.9)


def test_gpus_that_are_borrowed_count_as_free() -> None:
    """Of four GPUs the first job of one has all: to one that needs five that is three."""
    workload, cluster = elastic(2, 4), parse_cluster("1x4")
    policy: Any = load_policy("elastic-goodput:base=fifo")
    state = State(workload, cluster)
    engine = engine_of(policy, workload, cluster, state)
    engine.take_in(0.0, arrived=[0])
    engine.decide(0.0)
    assert state.placements[0].gpus == 4
    why = policy.reason(engine.snapshot, 1)
    assert (why.code, why.numbers) == ("behind_others", {"gpus": 1, "free_gpus": 3, "waiting": 0})
    assert why.text.startswith("3 GPUs are free or borrowed, but fifo reserves them")


def test_resizes_are_counted_and_dated() -> None:
    policy: Any = load_policy("elastic-goodput:base=fifo")
    assert isinstance(policy, Composed)
    workload, cluster = jobs([(0, 100, 1), (0, 100, 1)]), parse_cluster("1x2")
    memory = policy.new_memory(workload, cluster)
    snapshot: Any = SimpleNamespace(now_s=7.0)
    for _ in range(2):
        policy.note_shrink(snapshot, memory, 0)
    policy.note_expansion(snapshot, memory, 1)
    assert (memory.shrinks.tolist(), memory.expansions.tolist()) == ([2, 0], [0, 1])
    assert (memory.last_shrink_s.tolist(), memory.last_expansion_s.tolist()) == ([7.0, -math.inf], [-math.inf, 7.0])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("antman", "antman lets jobs share GPUs; the base must"),
        ("elastic", "elastic chooses sizes itself; the base must"),
        ("nobody", "unknown policy 'nobody'"),
    ],
)
def test_who_can_not_be_a_base(text: str, says: str) -> None:
    with pytest.raises(PolicyError, match=f"policy 'elastic-goodput': base={text}: {says}"):
        load_policy(f"elastic-goodput:base={text}")


def later(text: str, workload: Workload, cluster: str, arrives_s: float = 10.0) -> tuple[Any, State]:
    """A policy's memory after the first job came at 0 and the others at `arrives_s`."""
    policy, nodes = load_policy(text), parse_cluster(cluster)
    state = State(workload, nodes, layers=policy.max_jobs_per_gpu)
    engine = engine_of(policy, workload, nodes, state)
    engine.take_in(0.0, arrived=[0])
    engine.decide(0.0)
    engine.take_in(arrives_s, arrived=list(range(1, len(workload))))
    engine.decide(arrives_s)
    return engine.memory, state


def test_themis_remembers_how_unfair_waiting_is() -> None:
    """Of one GPU, which the first has leased: the other would end in 100 s, alone in 50 (2 jobs share it then)."""
    memory, _ = later("themis", jobs([(0, 100, 1), (10, 50, 1)]), "1x1")
    assert math.isnan(memory.key[0])
    assert memory.key[1] == pytest.approx(-50 / (50 * 2))
    assert memory.present == 2
    assert memory.present_s == pytest.approx(10.0)
    assert memory.at_submit.tolist() == pytest.approx([0.0, 10.0])
    assert memory.auction_at_s == 1200.0


# -- gavel ---------------------------------------------------------------------------------------------------


def present(speed: list[list[float]], capacity: list[float], **columns: Any) -> Present:
    n = len(speed)
    plain: dict[str, Any] = dict.fromkeys(("gpus", "weight", "left_s"), np.ones(n))
    plain |= {"age_s": np.zeros(n), "had": np.zeros((n, len(capacity))), "kind": np.arange(n), "price": None}
    columns = {name: value if value is None else np.asarray(value) for name, value in columns.items()}
    return Present(speed=np.array(speed), capacity=np.array(capacity), **{**plain, **columns})


def test_what_throughputs_are_measured_by() -> None:
    found = present([[4.0, 1.0], [0.0, 0.0]], [1.0, 3.0])
    assert found.equal.tolist() == [1.75, 1.0]
    assert found.isolated.tolist() == [4.0 / 4 + 3.0 / 4, 1.0]  # half of 4 GPUs is more than it needs: 1/4 and 3/4
    small = present([[4.0, 1.0], [2.0, 2.0]], [1.0, 1.0], weight=[3.0, 1.0], gpus=[2.0, 1.0])
    assert small.isolated == pytest.approx([0.375 * 4 + 0.375, 0.25 * 2 + 0.25 * 2])


def test_makespan_gives_twice_the_work_twice_the_time() -> None:
    share = gavel_objectives.makespan(present([[1.0], [1.0]], [1.0], left_s=[200.0, 100.0], weight=[1.0, 9.0]))
    assert share[:, 0] == pytest.approx([2 / 3, 1 / 3])
    assert {"makespan", "allox"} == gavel_objectives.WITHOUT_WEIGHTS


def test_water_filling_lets_nobody_stay_low_who_can_rise() -> None:
    """The first job can use the small model alone, which two others need as well; the last has the large one."""
    share = gavel_objectives.water_filling(present([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [1.0, 1.0]))
    assert share.tolist() == pytest.approx(np.array([[0.5, 0.0], [0.5, 0.0], [0.0, 1.0]]), abs=1e-6)


def test_allox_looks_at_the_oldest() -> None:
    """No GPU is free: of ten jobs that wait nobody gets one; of one that is free one does, the shortest of three."""
    ages = np.arange(10.0)
    left = np.array([1.0] * 7 + [5.0, 3.0, 4.0])
    share = gavel_objectives.allox(present([[1.0]] * 10, [1.0], age_s=ages, left_s=left))
    assert share[:, 0].tolist() == [0.0] * 8 + [1.0, 0.0]
    had = np.zeros((10, 1))
    had[0] = 1.0
    share = gavel_objectives.allox(present([[1.0]] * 10, [1.0], age_s=ages, left_s=left, had=had))
    assert share[:, 0].tolist() == [1.0] + [0.0] * 9


def test_what_a_ledger_owes_jobs() -> None:
    ledger = Ledger.of(3, ("A", "B"))
    both = np.arange(2)
    ledger.allocate(both, 100.0, 60.0)
    assert ledger.worked_s.tolist() == [60.0, 60.0]  # half a round for each
    assert (ledger.solved_at_s, ledger.stale, ledger.known.tolist()) == (100.0, False, [True, True, False])
    assert ledger.deficit_s.tolist() == [[0.0, 0.0]] * 3
    ledger.share[0], ledger.share[1] = (0.5, 0.25), (0.0, 0.75)
    ledger.receive(0, 0, 30.0)
    ledger.receive(0, 0, 10.0)
    assert (ledger.received_s[0, 0], ledger.worked_s.tolist()) == (40.0, [100.0, 60.0])
    assert ledger.priorities(np.arange(3), 60.0).tolist() == pytest.approx(
        np.array([[0.5 / 0.7, 0.25 / 0.5], [0.0, 0.75 / 0.5], [0.0, 0.0]])
    )
    ledger.allocate(np.array([0, 2]), 200.0, 60.0)
    assert ledger.deficit_s.tolist() == [[10.0, 25.0], [0.0, 0.0], [0.0, 0.0]]
    assert ledger.received_s.tolist() == [[0.0, 0.0]] * 3
    assert ledger.known.tolist() == [True, False, True]


def test_who_is_most_behind_on_a_model_goes_first() -> None:
    ledger = Ledger.of(4, ("A",))
    ledger.deficit_s[:, 0], ledger.share[:, 0] = (0.0, 5.0, 5.0, 9.0), (0.1, 0.2, 0.3, 0.9)
    priority = np.array([[2.0], [1.0], [1.0], [0.5]])
    assert ledger.queue(np.arange(4), 0, priority).tolist() == [0, 2, 1, 3]
    ledger.share[:] = ledger.deficit_s[:] = 0.0
    assert ledger.queue(np.arange(4), 0, np.zeros((4, 1))).tolist() == [0, 1, 2, 3]


# -- gittins -------------------------------------------------------------------------------------------------


def test_the_gittins_index_of_two_samples() -> None:
    """At 0: one of two ends within 1 (spent: 1 + 1), both within 10 (1 + 10). At 1: the other within 9 more."""
    samples = np.array([10.0, 1.0])
    found = gittins.gittins_index(samples, np.array([0.0, 1.0, 4.0, 10.0]))
    assert found == pytest.approx([0.5, 1 / 9, 1 / 6, 0.0])


@pytest.mark.parametrize(("ended", "limits"), [(19, (3250.0, 7200.0)), (20, (5.0, 10.0, 15.0))])
def test_levels_are_learnt_from_enough_jobs(ended: int, limits: tuple[float, ...]) -> None:
    policy: Any = load_policy("gittins:levels=4")
    policy.learn_from(np.concatenate([np.arange(1.0, ended + 1), [0.0, -1.0]]))
    memory = policy.new_memory(jobs([(0, 1, 1)]), parse_cluster("1x1"))
    assert memory.limits_gpu_s == limits
    assert len(memory.ranks) == len(limits) + 1
    if ended < gittins.FEWEST_SAMPLES:
        assert memory.ranks == (0, 1, 2)


def test_levels_of_a_trace_s_own_gpu_times() -> None:
    workload = jobs([(0, 10.0, 1), (0, 10.0, 2), (0, 0.0, 8)])
    cluster = parse_cluster("1x8")
    memory: Any = load_policy("gittins:levels=2").new_memory(workload, cluster)
    assert memory.limits_gpu_s == (10.0,)
    assert memory.ranks == (1, 0)  # after 10 GPU-seconds the other ends within 10 more; before that, 2 within 30
    one: Any = load_policy("gittins:levels=1").new_memory(workload, cluster)
    assert (one.limits_gpu_s, one.ranks) == ((), (0,))
    none: Any = load_policy("gittins").new_memory(jobs([(0, 0.0, 1)]), cluster)
    assert (none.limits_gpu_s, none.ranks) == ((), (0,))


# -- hlas ----------------------------------------------------------------------------------------------------


def options(text: str = "", **changes: Any) -> hlas_terms.Options:
    return replace(hlas_terms.Options.of(load_policy(f"hlas{text}").values), **changes)


def test_by_the_letter_every_switch_is_off() -> None:
    letter = options(":literal=yes;tick=7s;priority_threshold_ratio=3;starve_threshold_ratio=4")
    assert (letter.over, letter.starve, letter.tick_s, letter.between_moves_s) == (3.0, 4.0, 7.0, 0.0)
    assert letter.iterations
    assert not any([letter.work_conserving, letter.only_if_waiting, letter.horizon, letter.upgrade, letter.blind])
    plain = options()
    assert all([plain.work_conserving, plain.only_if_waiting, plain.horizon, plain.upgrade])
    assert not plain.iterations
    assert options(":gain=iterations").iterations
    assert plain.between_moves_s == load_policy("hlas").values["min_seconds_between_moves"] > 0
    assert (plain.settle, letter.settle) == (2.0, 1.0)


def test_performance_is_relative_to_the_slowest_known() -> None:
    cluster = parse_cluster("1x1:V100,1x1:K80,1x1:T4")
    given = {"v100": 6.0, "k80": 2.0}
    named = {base.plain_model(name): value for name, value in given.items()}
    found = hlas_terms.performance_of(cluster, options(performance=named))
    assert dict(zip(cluster.models, found.tolist(), strict=True)) == {"V100": 3.0, "K80": 1.0, "T4": 1.0}
    assert hlas_terms.performance_of(cluster, options(performance={})).tolist() == [1.0, 1.0, 1.0]
    assert hlas_terms.performance_of(cluster, options(performance=named, blind=True)).tolist() == [1.0, 1.0, 1.0]
    assert hlas_terms.performance_of(parse_cluster("1x1:V100"), options(performance="flops")).tolist() == [1.0]
    with pytest.raises(PolicyError, match="performance=flops names a measure"):
        hlas_terms.performance_of(cluster, options(performance="flops"))


def test_throughput_per_gpu() -> None:
    workload = jobs([(0, 1, 2), (0, 1, 1), (0, 1, 1)], iteration_s=np.array([0.5, 0.0, np.nan]))
    speed = np.array([[4.0, 1.0], [0.0, 2.0], [0.0, 0.0]])
    by_steps = hlas_terms.per_gpu_throughput(workload, speed, options(iterations=True))
    assert by_steps.tolist() == [[4.0, 1.0], [0.0, 2.0], [0.0, 0.0]]
    assert hlas_terms.per_gpu_throughput(jobs([(0, 1, 2)]), speed[:1], options(iterations=True)).tolist() == [
        [2.0, 0.5]
    ]
    relative = hlas_terms.per_gpu_throughput(workload, speed, options(iterations=False))
    assert relative.tolist() == [[1.0, 0.25], [0.0, 1.0], [0.0, 0.0]]
    blind = hlas_terms.per_gpu_throughput(workload, speed, options(blind=True))
    assert blind.tolist() == [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]


def explanations(about: set[int], *, iterations: bool = True) -> Explanations:
    snapshot: Any = SimpleNamespace(
        workload=jobs([(0, 1, 2), (0, 1, 1)], job_ids=("one", "two")), cluster=parse_cluster("1x4:V100,1x4:K80")
    )
    per_gpu = np.array([[4.0, 1.0], [3.0, 2.0]])
    return Explanations(snapshot, per_gpu, frozenset(about), iterations=iterations)


def test_why_hlas_moves_jobs_between_queues() -> None:
    found = explanations({0})
    found.demoted(0, 30.0, 20.0, 2.0, needed=True)
    assert found.why[0] == Reason(
        "demoted",
        "Its attained service 30 is above 2 times 10, the mean of the running jobs, and a job of Q1 needs its GPUs: "
        "it is suspended to Q2.",
        {"attained": 30.0, "mean": 10.0, "limit": 20.0, "priority_threshold_ratio": 2.0},
    )
    found.promoted(0, 90.4, 30.0, 3.0)
    assert found.why[0].code == "promoted"
    assert found.why[0].text.endswith("Q2. It waited 90 s in Q2, more than 3 times the 30 s that it ran: it is in Q1 "
                                      "again, with its service reset to 0.")  # fmt: skip
    assert found.why[0].numbers["limit"] == 20.0
    assert found.why[0].numbers["waited_s"] == 90.4
    found.demoted(1, 30.0, 20.0, 2.0, needed=False)
    assert "mean of the running jobs: it is" in found.why[1].text


@pytest.mark.parametrize(
    ("from_q2", "code", "says"),
    [(True, "placed_from_q2", "so Q2 was offered them."), (False, "placed_from_q1", "no swap with a running job")],
)
def test_why_hlas_places_a_job(from_q2: bool, code: str, says: str) -> None:
    found = explanations({0})
    found.placed(0, 0, 5.0, from_q2=from_q2)
    assert (found.why[0].code, found.why[0].numbers) == (code, {"attained": 5.0})
    assert says in found.why[0].text
    assert found._models[0] in found.why[0].text


@pytest.mark.parametrize("about", [set(), {0}, {1}, {0, 1}])
def test_why_hlas_swaps_two_jobs(about: set[int]) -> None:
    """Job 1 moves from model 1 to model 0, job 0 takes its place."""
    found = explanations(about, iterations=False)
    onto, pool = (found._models[index] for index in (0, 1))
    found.swapped(0, 1, 0, 1, 7.0)
    assert set(found.why) == about
    formula = "1·(3 - 2) + 2·(1 - 4) = 7 GPUs at full worth"
    numbers = {"gain": 7.0, "n_i": 1, "n_s": 2, "i_on_k": 3.0, "i_on_j": 2.0, "s_on_j": 1.0, "s_on_k": 4.0}
    if 0 in about:
        text = f"It could have started on {onto}. Job two moved there from {pool} instead and made room: total " + (
            f"throughput gains {formula}."
        )
        assert found.why[0] == Reason("swapped_in", text, {**numbers, "other": 1})
    if 1 in about:
        text = f"It moves from {pool} to free {onto}, and job one takes its place: total throughput gains {formula}."
        assert found.why[1] == Reason("swapped_out", text, {**numbers, "other": 0})


def test_why_hlas_moves_a_job_to_faster_gpus() -> None:
    found = explanations({0})
    found.upgraded(0, 1, 0, 2.5)
    onto, pool = (found._models[index] for index in (0, 1))
    text = f"No waiting job could use the free {onto} GPUs. It gains 2.5 it/s over {pool} there, more than the restart"
    assert found.why[0] == Reason("upgraded", f"{text} costs.", {"gain": 2.5})


@pytest.mark.parametrize(
    ("code", "shown"), [("not_enough_free_gpus", "not_enough_free_gpus"), ("behind_others", "demoted")]
)
def test_why_a_job_waits_in_q2(code: str, shown: str) -> None:
    assert waits_in_q2(Reason(code, "So.", {"gpus": 1}), 10.0, 20.0, 30.0) == Reason(
        shown,
        "It was suspended to Q2 10 s ago, as it had more service than others, and returns to Q1 once it has waited "
        "30 s there. So.",
        {"gpus": 1, "waited_s": 10.0, "ran_s": 20.0, "rises_after_s": 30.0},
    )


# -- fifo, kernel sharing, rl, a memory as bytes -------------------------------------------------------------


@pytest.mark.parametrize(("depth", "passes"), [(1, False), (2, True)])
def test_how_many_waiting_jobs_are_tried_for_backfill(depth: int, passes: bool) -> None:
    """Behind a job of two GPUs, for one of which it waits, stand one that is too long and one that is short."""
    workload = jobs([(0, 100, 1), (1, 10, 2), (2, 500, 1), (3, 10, 1)])
    found = simulate(workload, "1x2", f"fifo:backfill=easy;depth={depth}", restart_overhead_s=0.0, interval_s=0.0)
    assert found.start_s.tolist() == ([0.0, 100.0, 110.0, 3.0] if passes else [0.0, 100.0, 110.0, 110.0])
    assert load_policy(f"fifo:backfill=easy;depth={depth}").sees(2) == 3 + depth
    assert load_policy("fifo:backfill=greedy").sees(2) == 3


def test_the_job_right_behind_the_first_is_tried_where_no_more_are() -> None:
    workload = jobs([(0, 100, 1), (1, 10, 2), (2, 90, 1)])
    found = simulate(workload, "1x2", "fifo:backfill=easy;depth=1", restart_overhead_s=0.0, interval_s=0.0)
    assert found.start_s.tolist() == [0.0, 100.0, 2.0]


def test_who_slows_whom_beside_a_high_priority_job() -> None:
    labelled = jobs([(0, 1, 1)] * 3, share_class=Labels.of(["high", "best-effort", ""]))
    sharing = KernelSharing(labelled, Expected(labelled, 0.4, 1.05))
    assert [sharing.rate(job, 0, [(9, 1)]) for job in range(3)] == [1.0, 0.4, 1.0]
    assert sharing.rate(1, 0, []) == 1.0
    assert [sharing.most(job) for job in range(3)] == [2, 2, 1]
    unlabelled = jobs([(0, 1, 1)])
    plain = KernelSharing(unlabelled, Expected(unlabelled, 0.4, 1.05))
    assert (plain.rate(0, 0, [(9, 1)]), plain.most(0), plain.starts_together) == (1.0, 1, False)


def test_choices_that_are_offered_no_more_keep_their_place_behind_the_others() -> None:
    policy: Any = load_policy("rl")
    workload, small, large = jobs([(0, 1, 1), (0, 1, 2)]), parse_cluster("1x2"), parse_cluster("2x4")
    memory = policy.new_memory(workload, large)
    offered = policy.new_memory(workload, small).choices
    rows = nodes = np.arange(2)
    found = policy.carried(memory, rows, np.array([0, -1]), workload, small)
    assert found.choices == (*offered, *[name for name in memory.choices if name not in offered])
    again = policy.carried(found, rows, nodes, workload, large)
    assert sorted(again.choices) == sorted(found.choices)


@pytest.mark.parametrize(("most", "fits"), [(7, False), (8, True)])
def test_a_memory_that_is_too_large_is_not_unpacked(most: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy("fifo")
    written = dump({"x": np.zeros(1)}, policy)
    monkeypatch.setattr(memory_of, "_MOST_BYTES", most)
    if fits:
        assert load(written, policy)["x"].tolist() == [0.0]
    else:
        with pytest.raises(PolicyError, match="is damaged: the arrays are cut off"):
            load(written, policy)
    assert memory_of.FORMAT in written.decode("latin-1").splitlines()[0]
