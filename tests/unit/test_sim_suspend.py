"""The simulator's model of suspending: what it costs, where it can't be done, and who goes on where."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from builders import jobs
from gpuloom.cli.main import cli
from gpuloom.core.cluster import Cluster, Node
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.errors import InputError
from gpuloom.core.state import State
from gpuloom.engine.suspending import goes_on, homed
from gpuloom.sim import Failure, simulate
from gpuloom.sim.suspend import Restart, Suspend, parse_preempt

GB_PER_MIB = 1024 * 1024 / 1e9
MIB = 16_000


def node(gpus: int = 1, *, memory_mib: int | None = None, name: str = "n0") -> Node:
    return Node(name, gpus, "A100", gpu_memory_mib=40_960, memory_mib=memory_mib)


def two(way: str, *nodes: Node, first: tuple[float, float, int] = (0.0, 1000.0, 1), **settings: Any) -> Any:
    """A long job that makes way for a short one after 100 s."""
    workload = jobs([first, (100.0, 100.0, 1)], gpu_memory_mib=np.array([float(MIB), 1000.0]))
    cluster = Cluster(nodes or (node(),))
    return simulate(workload, cluster, "srtf", preempt=way, interval_s=0.0, restart_overhead_s=10.0, **settings)


OUT_S, IN_S = MIB * GB_PER_MIB / 2.0, MIB * GB_PER_MIB / 4.0


class TestCosts:
    def test_out_first_then_the_next_one_starts_and_back_it_goes_on(self) -> None:
        result = two("suspend:out=2,in=4")
        ended_s = 100.0 + OUT_S + 10.0 + 100.0
        assert result.end_s == pytest.approx([ended_s + IN_S + 910.0, ended_s])
        assert (result.suspensions, result.restarts, result.starts.tolist()) == (1, 0, [1, 1])
        assert result.settings["preempt"] == "suspend:out=2,in=4"

    def test_saving_and_killing(self) -> None:
        saved = two("restart")
        assert saved.end_s == pytest.approx([210.0 + 10.0 + 910.0, 210.0])
        killed = two("kill", checkpoint_s=60.0)  # 90 s are done, 60 s saved
        assert killed.end_s == pytest.approx([210.0 + 10.0 + 940.0, 210.0])
        assert [r.restarts for r in (saved, killed)] == [1, 1]

    def test_little_memory_takes_its_time_too(self) -> None:
        workload = jobs([(0.0, 1000.0, 1), (100.0, 100.0, 1)], gpu_memory_mib=np.array([10.0, 10.0]))
        result = simulate(
            workload, Cluster((node(),)), "srtf", preempt="suspend", interval_s=0.0, restart_overhead_s=0.0
        )
        assert result.end_s == pytest.approx([201.0 + 0.5 + 900.0, 201.0])  # a second out, half a second back

    def test_who_does_not_say_how_much_fills_its_gpus(self) -> None:
        workload = jobs([(0.0, 1000.0, 1), (100.0, 100.0, 1)])
        result = simulate(workload, Cluster((node(),)), "srtf", preempt="suspend:out=1,in=1", interval_s=0.0)
        assert result.end_s[1] == pytest.approx(100.0 + 40_960 * GB_PER_MIB + 10.0 + 100.0)
        assert "2 jobs of 2 count as filling their GPUs' memory" in result.notes
        bare = simulate(workload, "1x1", "srtf", preempt="suspend", interval_s=0.0)
        assert bare.suspensions == 0
        assert bare.restarts == 1
        assert any("nobody knows what 2 jobs of 2 have on their GPUs" in note for note in bare.notes)


class TestWhereItCannotBe:
    def test_memory_of_the_node(self) -> None:
        fits = two("suspend", node(memory_mib=MIB + 1024))
        assert (fits.suspensions, fits.restarts) == (1, 0)
        full = two("suspend", node(memory_mib=MIB + 1023))
        assert (full.suspensions, full.restarts) == (0, 1)
        assert "1 time a job began anew as its node had no memory left to suspend it" in full.notes
        said = two(f"suspend:memory={MIB + 1023}")
        assert said.suspensions == 0

    def test_memory_is_given_back(self) -> None:
        rows = [(0.0, 10_000.0, 1), *((1000.0 * k, 100.0, 1) for k in range(1, 6))]
        workload = jobs(rows, gpu_memory_mib=np.full(6, float(MIB)))
        cluster = Cluster((node(memory_mib=MIB + 1024),))
        result = simulate(workload, cluster, "srtf", preempt="suspend", interval_s=0.0)
        assert (result.suspensions, result.restarts) == (5, 0)

    def test_gangs_only_where_it_is_said(self) -> None:
        first = (0.0, 1000.0, 2)
        assert two("suspend", node(2), first=first).suspensions == 0
        result = two("suspend:out=2,in=4,gpus=2", node(2), first=first)
        assert result.suspensions == 1
        assert result.end_s[1] == pytest.approx(100.0 + 2 * OUT_S + 10.0 + 100.0)
        apart = two("suspend:gpus=2", node(1), node(1, name="n1"), first=first)
        assert apart.suspensions == 0

    def test_a_node_that_fails_takes_what_lies_there_along(self) -> None:
        result = two("suspend:out=2,in=4", checkpoint_s=60.0, failures=(Failure(0, 150.0, 1000.0),))
        assert (result.suspensions, result.restarts) == (1, 2)
        # 60 s of the long one are saved, and nothing of the short one's 40 s.
        assert result.end_s == pytest.approx([1110.0 + 10.0 + 940.0, 1110.0])


def state_of(cluster: Cluster, running: dict[int, Placement], away: dict[int, Placement], gpus: int = 1) -> State:
    count = 1 + max([*running, *away, 5])
    state = State(jobs([(0.0, 100.0, gpus)] * count), cluster)
    for job in range(count):
        state.submit(job, 0.0)
    for job, placement in running.items():
        state.start(job, placement, 0.0, 0.0, 1.0)
    for job, placement in away.items():
        state.suspended(job, placement)
    return state


def at(gpu: int, machine: int = 0) -> Placement:
    return Placement((machine,), (1 << gpu,))


class TestHome:
    """`homed`: jobs that lie suspended get their own GPUs where that changes nothing else."""

    cluster = Cluster((node(4), node(4, name="n1")))

    def run(self, state: State, decision: dict[int, Placement], wait: tuple[int, ...] = ()) -> dict[int, Placement]:
        return dict(homed(state, Decision(decision, wait)).run)

    def test_free(self) -> None:
        state = state_of(self.cluster, {1: at(0)}, {0: at(2)})
        assert self.run(state, {0: at(1)}) == {0: at(2)}
        assert self.run(state, {0: at(3, 1)}) == {0: at(2)}

    def test_free_once_others_have_stopped_or_moved(self) -> None:
        state = state_of(self.cluster, {1: at(2)}, {0: at(2)})
        assert self.run(state, {0: at(1)}) == {0: at(1)}
        assert self.run(state, {0: at(1)}, (1,)) == {0: at(2)}
        assert self.run(state, {0: at(1), 1: at(3)}) == {0: at(2), 1: at(3)}

    def test_whoever_starts_there_can_as_well_have_the_other(self) -> None:
        state = state_of(self.cluster, {}, {0: at(2)})
        assert self.run(state, {0: at(1), 3: at(2)}) == {0: at(2), 3: at(1)}
        both = state_of(self.cluster, {}, {0: at(2), 3: at(1)})
        assert self.run(both, {0: at(1), 3: at(2)}) == {0: at(2), 3: at(1)}
        rival = state_of(self.cluster, {}, {0: at(2), 3: at(2)})
        assert self.run(rival, {0: at(1), 3: at(2)}) == {0: at(1), 3: at(2)}

    def test_not_onto_other_models_or_nodes_out_of_service(self) -> None:
        mixed = Cluster((node(4), replace(node(4, name="n1"), gpu_model="K80")))
        state = state_of(mixed, {}, {0: at(2)})
        assert self.run(state, {0: at(0, 1)}) == {0: at(0, 1)}
        state = state_of(self.cluster, {}, {0: at(2)})
        state.node_down(0)
        assert self.run(state, {0: at(0, 1)}) == {0: at(0, 1)}

    def test_any_gpu_of_a_node_where_jobs_can_go_on_on_others(self) -> None:
        state = state_of(self.cluster, {1: at(2), 2: at(0)}, {0: at(2)})
        state.moves_on = frozenset({0})
        assert self.run(state, {0: at(3)}) == {0: at(3)}
        assert self.run(state, {0: at(0, 1)}) == {0: at(1)}
        full = state_of(self.cluster, {job: at(job) for job in range(1, 4)}, {0: at(2)})
        full.moves_on = frozenset({0})
        assert self.run(full, {0: at(0, 1), 4: at(0)}) == {0: at(0), 4: at(0, 1)}

    def test_another_number_of_gpus_is_a_start(self) -> None:
        state = state_of(self.cluster, {}, {0: Placement((0,), (0b11,))})
        state.moves_on = frozenset({0})
        assert goes_on(state, 0, Placement((0,), (0b1100,)))
        assert not goes_on(state, 0, at(2))

    def test_what_needs_no_change_is_the_same_object(self) -> None:
        state = state_of(self.cluster, {}, {0: at(2)})
        for decision in (Decision({0: at(2)}), Decision({3: at(1)}), Decision()):
            assert homed(state, decision) is decision


class TestWritten:
    @pytest.mark.parametrize(
        ("text", "way"),
        [
            ("restart", Restart()),
            ("kill", Restart(saves=False)),
            ("suspend", Suspend()),
            ("suspend:out=2.7,in=4.3", Suspend(2.7, 4.3)),
            ("suspend:gpus=8;memory=512GiB;on=node", Suspend(most_gpus=8, memory_mib=524_288, on_node=True)),
        ],
    )
    def test_read(self, text: str, way: Restart | Suspend) -> None:
        assert parse_preempt(text) == way
        assert parse_preempt(str(way)) == way

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("", "by restart, kill or suspend, not by ''"),
            ("restart:out=2", "not by 'restart:out=2'"),
            ("suspend:out", "'out' in 'suspend:out' is none of out=, in=, gpus=, memory=, on="),
            ("suspend:speed=2", "is none of out="),
            ("suspend:out=2,out=3", "out= stands twice"),
            ("suspend:out=0", "no rate: give GB/s, above 0"),
            ("suspend:in=nan", "no rate"),
            ("suspend:gpus=0", "no number of GPUs"),
            ("suspend:memory=lots", "'memory=lots' in 'suspend:memory=lots': "),
            ("suspend:on=rack", "neither 'gpu'"),
        ],
    )
    def test_refused(self, text: str, why: str) -> None:
        with pytest.raises(InputError) as error:
            parse_preempt(text)
        assert why in str(error.value)

    def test_what_does_not_go_together(self) -> None:
        with pytest.raises(InputError, match="kill needs a checkpoint interval"):
            two("kill")
        with pytest.raises(InputError, match="--compat muri has jobs save"):
            two("suspend", compat="muri")


class TestCommands:
    def test_compare_shows_several_ways(self, tmp_path: Path) -> None:
        trace = tmp_path / "jobs.csv"
        trace.write_text("job_id,submit_s,duration_s,gpus,gpu_memory_mib\na,0,1000,1,16000\nb,100,100,1,1000\n")
        asked = ["--policies", "srtf,fifo", "--interval", "0", "--checkpoint", "60", "--json", "-"]
        ways = ["--preempt", "restart", "--preempt", "kill", "--preempt", "suspend:out=2,in=4"]
        done = CliRunner().invoke(cli, ["compare", str(trace), "--cluster", "1x1:A100", *asked, *ways])
        assert done.exit_code == 0, done.output
        found = {result["policy"]: result for result in json.loads(done.stdout)}
        assert list(found) == [
            *("srtf", "srtf, kill", "srtf, suspend:out=2,in=4"), *("fifo", "fifo, kill", "fifo, suspend:out=2,in=4"),
        ]  # fmt: skip
        assert [result["suspensions"] for result in found.values()] == [0, 0, 1, 0, 0, 0]
        assert found["srtf, kill"]["settings"]["preempt"] == "kill"

    def test_explain_tells_who_goes_on_where_it_was(self, tmp_path: Path) -> None:
        trace = tmp_path / "jobs.csv"
        trace.write_text("job_id,submit_s,duration_s,gpus,gpu_memory_mib\na,0,1000,1,16000\nb,100,100,1,1000\n")
        asked = ["explain", str(trace), "--cluster", "1x1:A100", "--policy", "srtf", "--interval", "0", "--job", "a"]
        shown = CliRunner().invoke(cli, [*asked, "--preempt", "suspend", "--json"])
        steps = json.loads(shown.stdout)["steps"]
        assert [step["what"] for step in steps] == ["submit", "start", "stop", "resume", "end"]
        assert (
            "was suspended, and goes on on 1 A100" in CliRunner().invoke(cli, [*asked, "--preempt", "suspend"]).stdout
        )

    @pytest.mark.parametrize(
        ("command", "why"),
        [
            (["simulate", "--preempt", "kill", "--preempt", "suspend"], "simulate takes one --preempt, not 2"),
            (["explain", "--job", "a", "--preempt", "kill", "--preempt", "suspend"], "explain takes one --preempt"),
            (["compare", "--preempt", "suspend", "--preempt", "suspend"], "--preempt names a way twice"),
            (["simulate", "--preempt", "freeze"], "by restart, kill or suspend, not by 'freeze'"),
        ],
    )
    def test_what_is_refused(self, tmp_path: Path, command: list[str], why: str) -> None:
        trace = tmp_path / "jobs.csv"
        trace.write_text("job_id,submit_s,duration_s,gpus\na,0,1000,1\n")
        name, *options = command
        done = CliRunner().invoke(cli, [name, str(trace), "--cluster", "1x1", "--checkpoint", "60", *options])
        assert isinstance(done.exception, InputError)
        assert why in str(done.exception)
