"""Measured pairs: what is read, what groups are worth by them, and how fast jobs then run."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.errors import InputError
from gpuloom.core.pairs import PairSpeeds, PairTable
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.facts.gavel_rates import load_rates, speeds_of_pairs
from gpuloom.facts.inputs import load_policy
from gpuloom.facts.pairs import read_pairs, with_pairs
from gpuloom.interleave.efficiency import Interleaving
from gpuloom.interleave.groups import UNKNOWN, GroupTimes
from gpuloom.interleave.tables import SetTable
from gpuloom.interleave.valued import Filler, Group, exchange
from gpuloom.interleave.worth import GroupSharing, GroupWorth, Source
from gpuloom.placement.upgrades import Upgrades
from gpuloom.sim.explain import Company, explain, plain
from gpuloom.sim.simulator import simulate
from gpuloom.traces import read_trace

NAN = float("nan")
HEAD = "model_a,model_b,gpu_model,gpus,speed_a,speed_b\n"


def paired(
    names: str,
    share: dict[tuple[str, str, str], tuple[float, float]],
    *,
    durations: list[float] | None = None,
    **columns: Any,
) -> Workload:
    """Jobs of one GPU at second 0 of these models (a letter each), with these pairs by GPU model."""
    rows = [(0.0, duration, 1) for duration in durations or [1000.0] * len(names)]
    workload = jobs(rows, model=Labels.of(names), **columns)
    table = {(gpu, (one, 1), (two, 1)): shares for (gpu, one, two), shares in share.items()}
    return with_pairs(workload, PairTable("test", table))


# -- reading ---------------------------------------------------------------------------------------------------


def test_a_csv_of_pairs_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("# measured in May\n" + HEAD + "a,b,v100,1,0.9,0.6\na,a,V100,2,0.5,0.5\nb,a,K80,1,0,0\n")
    table = read_pairs(path)
    assert dict(table.share) == {
        ("V100", ("a", 1), ("b", 1)): (0.9, 0.6),
        ("V100", ("a", 2), ("a", 2)): (0.5, 0.5),
        ("K80", ("b", 1), ("a", 1)): (0.0, 0.0),
    }
    assert table.source.endswith("pairs.csv")


def test_pairs_are_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (HEAD + "a,b,V100,1,0.9,0.6\n").encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    table = read_pairs("-")
    assert dict(table.share) == {("V100", ("a", 1), ("b", 1)): (0.9, 0.6)}
    assert table.source == "<stdin>"


def test_gpus_are_one_where_the_csv_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("model_a,model_b,gpu_model,speed_a,speed_b\na,b,V100,0.9,0.6\n")
    assert list(read_pairs(path).share) == [("V100", ("a", 1), ("b", 1))]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a,b,V100,1,90,0.6\n", r"pairs.csv:2, column 'speed_a': 90 is not a share of the speed alone"),
        ("a,b,V100,1,0.9,0.6\nb,a,V100,1,0.6,0.9\n", r"pairs.csv:3.*told before, on line 2"),
        ("a,b,V100,1,0,0.6\n", r"pairs.csv:2: one speed is 0, the other not"),
        ("a,b,V100,0,0.9,0.6\n", r"pairs.csv:2.*gpus"),
        ("a,b,V100,1,x,0.6\n", r"pairs.csv:2.*speed_a"),
        ("a,b,V100,1,-0.1,0.6\n", r"pairs.csv:2.*speed_a"),
        (",b,V100,1,0.9,0.6\n", r"pairs.csv:2.*model_a"),
        ("", r"holds no pairs"),
    ],
)
def test_what_is_wrong_with_a_csv_is_said_with_its_line(tmp_path: Path, rows: str, said: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(HEAD + rows)
    with pytest.raises(InputError, match=said):
        read_pairs(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_pairs(tmp_path / "none.csv")
    other = tmp_path / "other.json"
    other.write_text('{"v100": {"(ResNet)": {"null": 1}}}')
    with pytest.raises(InputError, match="is not a throughput file of Gavel"):
        read_pairs(other)
    other.write_text(json.dumps({"v100": {"('a', 1)": {"null": 1.0}}}))
    with pytest.raises(InputError, match="holds no pairs, only speeds alone"):
        read_pairs(other)
    for both in ([0.5], 0.5, [0.5, 0.5, 0.5], {"0": 1}):
        other.write_text(json.dumps({"v100": {"('a', 1)": {"null": 1.0, "('a', 1)": both}}}))
        with pytest.raises(InputError, match="must be a list of two numbers"):
            read_pairs(other)
    other.write_text("model_a,model_b,gpu_model,speed_a,speed_b,speed_c\n")
    with pytest.raises(InputError, match="speed_c"):
        read_pairs(other)


GAVEL = {
    "v100": {
        "('a', 1)": {"null": 10.0, "('b', 1)": [9.0, 3.0], "('a', 1)": [5.0, 5.0], "('a', 2)": [1.0, 1.0]},
        "('b', 1)": {"null": 5.0, "('a', 1)": [3.0, 9.0], "('b', 1)": [0.0, 0.0]},
        "('a', 2)": {"null": 18.0},
    },
    "k80": {"('a', 1)": {"null": 0.0, "('b', 1)": [0.0, 0.0]}, "('b', 1)": {"null": 1.0, "('a', 1)": [0.0, 0.0]}},
    "v100_unconsolidated": {"('a', 1)": {"null": 10.0, "('a', 1)": [9.0, 9.0]}},
}


def test_gavels_pairs_are_shares_of_the_speed_alone() -> None:
    assert speeds_of_pairs(load_rates(json.dumps(GAVEL).encode(), "t.json"), "t.json") == {
        ("V100", ("a", 1), ("b", 1)): (0.9, 0.6),
        ("V100", ("a", 1), ("a", 1)): (0.5, 0.5),
        ("V100", ("b", 1), ("b", 1)): (0.0, 0.0),
    }, "each once, of equally many GPUs, and none of a GPU model on which one does not fit alone"


def test_a_gavel_trace_brings_its_pairs_and_the_users_own_win(tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(json.dumps(GAVEL).encode()))
    row = "{}\tpython3 main.py --dir=%s\tdata\t--steps\t1\t{}\t1\t1\t-1.0\t{}\n"
    (tmp_path / "t.trace").write_text(row.format("a", 1000, 0.0) + row.format("b", 1000, 5.0))
    throughputs = tmp_path / "t.json.gz"
    pairs = read_trace(tmp_path / "t.trace", throughputs=throughputs).workload.pairs
    assert pairs is not None
    assert (pairs.kinds, pairs.models) == ((("a", 1), ("b", 1)), ("V100",))
    np.testing.assert_allclose(pairs.share[0], [[0.5, 0.9], [0.6, 0.0]])
    own = tmp_path / "own.csv"
    own.write_text(HEAD + "b,a,V100,1,0.2,0.95\n")
    both = read_trace(tmp_path / "t.trace", throughputs=throughputs, pairs=own).workload.pairs
    assert both is not None
    np.testing.assert_allclose(both.share[0], [[0.5, 0.95], [0.2, 0.0]])
    assert both.source.endswith("own.csv, t.json.gz")
    own.write_text(HEAD + "x,y,V100,1,0.2,0.95\n")
    (tmp_path / "own.trace.csv").write_text("submit_s,duration_s,gpus,model\n0,10,1,a\n")
    with pytest.raises(InputError, match="knows none of the trace's jobs beside each other"):
        read_trace(tmp_path / "own.trace.csv", pairs=own)


def test_pairs_go_by_model_and_number_of_gpus() -> None:
    workload = jobs([(0, 1, 1), (0, 1, 2), (0, 1, 1), (0, 1, 1)], model=Labels.of(["a", "a", "b", "c"]))
    found = with_pairs(workload, PairTable("test", {("V100", ("a", 1), ("b", 1)): (0.9, 0.6)}))
    assert found.pairs is not None
    assert found.pairs.of_job.tolist() == [0, -1, 1, -1]
    assert found.pairs.may_share().tolist() == [True, False, True, False]
    assert found.take([2, 3]).pairs.of_job.tolist() == [1, -1]  # type: ignore[union-attr]
    assert "2 kinds of jobs, 2 of 4 jobs, on V100" in found.notes[-1]
    nothing = with_pairs(workload, PairTable("test", {("V100", ("a", 4), ("b", 4)): (0.9, 0.6)}))
    assert nothing is workload
    with pytest.raises(InputError, match="pairs has 1 rows, submit_s has 4"):
        replace(workload, pairs=PairSpeeds(np.zeros(1, np.int32), (), (), np.zeros((0, 0, 0))))


# -- what groups are worth -------------------------------------------------------------------------------------

SHARE = {
    ("V100", "a", "b"): (0.9, 0.6),
    ("V100", "a", "a"): (0.7, 0.7),
    ("K80", "a", "b"): (0.5, 0.7),
    ("K80", "a", "a"): (0.0, 0.0),
}


def worth_of(workload: Workload, *models: str) -> tuple[GroupTimes, GroupWorth]:
    times = GroupTimes(workload, Interleaving(overhead=(1.0,) * 4))
    return times, GroupWorth(times, models)


def test_measured_pairs_are_worth_what_was_measured_on_the_gpu_model() -> None:
    times, worth = worth_of(paired("abac", SHARE), "v100")
    a, b, _, c = times.of_job
    assert c == UNKNOWN
    assert worth.rates(times.profiles_of([0, 1])) == (0.9, 0.6)
    assert worth.rates(times.profiles_of([0, 2])) == (0.7, 0.7)
    assert worth.rates((b, b)) is None, "was not measured"
    assert worth.gains([(a, b), (b, b), (a,), (a, a, b)]) == [1.5, 0.0, 1.0, 0.0]
    assert [worth.source(group) for group in ((a,), (a, b), (b, b))] == [Source.ALONE, Source.MEASURED, Source.NONE]
    on_k80 = GroupWorth(times, ["K80"])
    assert on_k80.rates((a, b)) == (0.5, 0.7)
    assert on_k80.rates((a, a)) is None, "does not fit"
    anywhere = GroupWorth(times, ["V100", "K80"])
    assert anywhere.rates((a, b)) == (0.5, 0.6), "the least of each"
    assert anywhere.rates((a, a)) is None
    assert GroupWorth(times, ["A100"]).rates((a, b)) is None
    assert not GroupWorth(times, ["A100"]).measured


def test_a_measured_pair_wins_over_stage_times() -> None:
    stages = np.array([(3.0, 0.2, 0.1), (0.2, 3.0, 0.1), (0.2, 3.0, 0.1)])
    workload = paired("aba", {("V100", "a", "b"): (0.4, 0.3), ("V100", "a", "a"): (0.0, 0.0)}, stage_s=stages)
    times, worth = worth_of(workload, "V100")
    first, b, second = times.of_job
    together = tuple(sorted((first, b)))
    assert worth.source(together) is Source.MEASURED
    assert sum(worth.rates(together) or ()) == pytest.approx(0.7)
    assert not worth.pays(together)
    by_stages = GroupWorth(times, ["K80"])
    assert by_stages.source(together) is Source.STAGES
    assert by_stages.gains([together]) == times.gains([together])
    assert by_stages.gains([together])[0] > 1.5
    three = tuple(sorted((first, b, second)))
    assert by_stages.rates(three) is not None
    assert worth.rates(three) is None, "two of them do not fit together"


def test_shared_gpus_run_at_the_measured_speeds_of_their_model() -> None:
    times = GroupTimes(paired("abac", SHARE), Interleaving())
    sharing = GroupSharing(times)
    assert sharing.rate(0, 0, [(1, 1)], "V100") == 0.9
    assert sharing.rate(1, 1, [(0, 0)], "v100") == 0.6
    assert sharing.rate(1, 1, [(0, 0)], "K80") == 0.7
    assert sharing.rate(0, 0, [(1, 1)]) == 0.5, "nothing is known of these GPUs: they take turns"
    assert sharing.rate(0, 0, [(1, 3)], "V100") == 0.5, "nor of this job"
    assert sharing.rate(0, 0, [(1, 1), (2, 2)], "V100") == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "policy", ["muri-s", "muri-l", "muri-l:grouping=greedy", "muri-l:grouping=exact", "muri-xs", "muri-xl", "weave"]
)
@pytest.mark.parametrize(("model", "first_s", "second_s"), [("V100", 1000 / 0.9, 0.0), ("K80", 0.0, 1000 / 0.7)])
def test_jobs_that_share_a_gpu_end_when_their_measured_speeds_say(
    policy: str, model: str, first_s: float, second_s: float
) -> None:
    result = simulate(paired("ab", SHARE), parse_cluster(f"1x1:{model}"), policy, restart_overhead_s=0.0)
    mine, its = SHARE[model, "a", "b"]
    end = first_s or second_s
    slower = min(mine, its)
    rest = end + 1000 - end * slower
    assert sorted(result.end_s.tolist()) == pytest.approx([end, rest])


@pytest.mark.parametrize("policy", ["muri-s", "muri-l", "muri-l:grouping=exact", "muri-xl", "weave"])
def test_jobs_that_do_not_fit_together_never_share(policy: str) -> None:
    result = simulate(paired("aa", SHARE), parse_cluster("1x1:K80"), policy, restart_overhead_s=0.0)
    assert sorted(result.end_s.tolist()) == pytest.approx([1000, 2000])


@pytest.mark.parametrize(("on_v100", "moves"), [((0.9, 0.9), True), ((0.0, 0.0), False), ((0.9, 0.4), False)])
def test_a_pair_moves_to_a_faster_gpu_only_if_both_run_faster_there_together(
    on_v100: tuple[float, float], moves: bool
) -> None:
    """Alone both are twice as fast on the V100, which is idle; on the K80 they keep 0.9 of their speeds."""
    workload = paired("ab", {("K80", "a", "b"): (0.9, 0.9), ("V100", "a", "b"): on_v100}, durations=[20_000.0] * 2)
    workload = replace(workload, speeds=Speeds(("V100", "K80"), np.array([[2.0, 1.0]] * 2)))
    cluster = parse_cluster("1x1:V100,1x1:K80")
    sharing = GroupSharing(GroupTimes(workload, Interleaving()))
    state = State(workload, cluster, layers=2)
    state.submit_all(np.arange(2, dtype=np.intp))
    for job in range(2):
        state.start(job, Placement((1,), (1,), job), 0.0, 0.0, 0.9)
    snapshot = Snapshot(state, np.zeros(2), np.zeros(2))
    snapshot.now_s, snapshot.may_preempt = 100.0, True
    found = Upgrades(workload, cluster, known=True, sharing=sharing).plan(snapshot, Decision())
    assert sorted(found.to) == ([0, 1] if moves else [])


def test_explain_names_the_source_of_a_speed_beside_others() -> None:
    workload = paired("ab", SHARE)
    found = explain(workload, parse_cluster("1x1:V100"), load_policy("muri-l"), "1", restart_overhead_s=0.0)
    company = next(step.company for step in found.steps if step.what == "start")
    assert company == Company(("0",), 0.6, "measured pair of test")
    beside = [step["beside"] for step in plain(found)["steps"] if "beside" in step]
    assert beside[0] == {"jobs": ["0"], "share": 0.6, "source": "measured pair of test"}
    staged = replace(workload, pairs=None, stage_s=np.array([(3.0, 0.2, 0.1), (0.2, 3.0, 0.1)]))
    told = explain(staged, parse_cluster("1x1:V100"), load_policy("muri-l"), "1", restart_overhead_s=0.0)
    assert [step.company.source for step in told.steps if step.company] == ["stage times"]


# -- tables of groups ------------------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> tuple[SetTable, GroupTimes, GroupWorth]:
    """A table of four kinds with random pairs, some of them with stage times besides."""
    shares = st.sampled_from([0.0, 0.3, 0.5, 0.6, 0.8, 0.95, 1.0])
    found = {}
    for one, two in combinations_with_replacement("abcd", 2):
        if draw(st.booleans()):
            mine = draw(shares)
            its = mine if one == two else draw(shares)
            found["V100", one, two] = (mine, its) if mine and its else (0.0, 0.0)
    columns: dict[str, Any] = {}
    if draw(st.booleans()):
        columns["stage_s"] = np.array([(3.0, 0.2, 0.1), (0.2, 3.0, 0.1), (0.1, 0.4, 2.0), (NAN,) * 3])
    workload = paired("abcd", found, **columns)
    times, worth = worth_of(workload, "V100")
    return SetTable(1, sorted(set(times.of_job)), times, 4, worth.pays, worth=worth), times, worth


def value_of(worth: GroupWorth, table: SetTable, columns: list[int], values: list[float]) -> float:
    """By the definition: the sum of value · share of solo speed / solo seconds."""
    profiles = [table.profiles[column] for column in columns]
    order = sorted(range(len(columns)), key=lambda place: profiles[place])
    rates = worth.rates(tuple(profiles[place] for place in order))
    assert rates is not None
    return sum(
        values[place] * rate / float(table.solo_s[columns[place]]) for place, rate in zip(order, rates, strict=True)
    )


@given(tables())
def test_a_table_holds_every_group_that_pays_at_the_value_of_its_members(
    drawn: tuple[SetTable, GroupTimes, GroupWorth],
) -> None:
    table, _, worth = drawn
    for number, columns in enumerate(table.sets):
        group = tuple(sorted(table.profiles[column] for column in columns))
        if len(columns) > 1:
            able = UNKNOWN not in group and worth.known(group) and worth.pays(group)
            assert (table.inverse[number] > 0) == able
            if able:
                values = [1.0 + 0.7 * place for place in range(len(columns))]
                found = table.value(number, columns, values, sum(values))
                assert found == pytest.approx(value_of(worth, table, [*columns], values))


@given(tables(), st.data())
def test_exchanges_never_lower_the_value_and_keep_everybody(
    drawn: tuple[SetTable, GroupTimes, GroupWorth], data: st.DataObject
) -> None:
    table, _, worth = drawn
    formed = [number for number in range(1, len(table.sets)) if table.inverse[number] > 0]
    groups, job = [], 0
    for _ in range(data.draw(st.integers(2, 5))):
        columns = [*table.sets[data.draw(st.sampled_from(formed))]]
        values = [data.draw(st.sampled_from([0.2, 1.0, 3.0])) for _ in columns]
        groups.append(Group(table, 0, [*range(job, job + len(columns))], columns, values))
        job += len(columns)
    before = sum(group.value for group in groups)
    exchange(groups)
    assert sorted(member for group in groups for member in group.jobs) == [*range(job)]
    assert sum(group.value for group in groups) >= before - 1e-9
    for group in groups:
        assert group.value == pytest.approx(value_of(worth, table, group.columns, group.values))


@given(tables())
def test_the_first_group_is_the_best_there_is(drawn: tuple[SetTable, GroupTimes, GroupWorth]) -> None:
    table, _, worth = drawn
    stacks = {0: {column: ([10 * column, 10 * column + 1], [2.0, 1.5]) for column in range(len(table.profiles))}}
    filler = Filler([table], [0], stacks)
    filler.fill(1)
    best = 0.0
    for number, columns in enumerate(table.sets):
        if table.inverse[number] > 0 and all(columns.count(column) <= 2 for column in columns):
            values = [2.0 if columns[:place].count(column) == 0 else 1.5 for place, column in enumerate(columns)]
            best = max(best, value_of(worth, table, [*columns], values))
    assert filler.groups[0].value == pytest.approx(best)
