"""What Slurm prints, of several versions. The samples are written by hand, in the shapes that versions have."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.slurm.parse import (
    Gres,
    SlurmTextError,
    duration_of,
    gres_of,
    hosts_of,
    jobs_of_json,
    jobs_of_table,
    nodes_of_json,
    nodes_of_table,
    number_of,
    states_of,
)

OLD_JOBS = {
    "meta": {"Slurm": {"version": {"major": 22, "micro": 8, "minor": 5}}},
    "errors": [],
    "jobs": [
        {
            "job_id": 11, "name": "pilot", "job_state": "RUNNING", "state_reason": "None", "nodes": "n[0-1]",
            "end_time": 1795395096, "time_limit": 60, "node_count": 2, "tres_per_node": "gres:gpu:4",
        },
        {
            "job_id": 12, "name": "pilot", "job_state": "PENDING", "state_reason": "Resources", "nodes": "",
            "end_time": 0, "time_limit": None, "node_count": 1, "tres_per_node": "",
        },
        {
            "job_id": 13, "name": "other", "job_state": "CANCELLED", "state_reason": "None", "nodes": "n3",
            "end_time": 1795395000, "time_limit": 5, "node_count": 1, "tres_per_node": "gres:gpu:a100:1",
        },
    ],
}  # fmt: skip

NEW_JOBS = {
    "meta": {"slurm": {"version": {"major": "24", "micro": "3", "minor": "05"}}},
    "jobs": [
        {
            "job_id": 11, "name": "pilot", "job_state": ["RUNNING"], "state_reason": "None", "nodes": "n[0-1]",
            "end_time": {"set": True, "infinite": False, "number": 1795395096},
            "time_limit": {"set": True, "infinite": False, "number": 60},
            "node_count": {"set": True, "infinite": False, "number": 2}, "tres_per_node": "gres/gpu:4",
        },
        {
            "job_id": 12, "name": "pilot", "job_state": ["PENDING"], "state_reason": "Resources", "nodes": "",
            "end_time": {"set": True, "infinite": False, "number": 0},
            "time_limit": {"set": False, "infinite": True, "number": 0},
            "node_count": {"set": True, "infinite": False, "number": 1}, "tres_per_node": "",
        },
        {
            "job_id": 13, "name": "other", "job_state": ["CANCELLED", "COMPLETING"], "state_reason": "None",
            "nodes": "n3", "end_time": {"set": True, "infinite": False, "number": 1795395000},
            "time_limit": {"set": True, "infinite": False, "number": 5},
            "node_count": {"set": True, "infinite": False, "number": 1}, "tres_per_node": "gres/gpu:a100=1",
        },
    ],
    "warnings": [],
    "errors": [],
}  # fmt: skip

TABLE_JOBS = """\
11|RUNNING|None|n[0-1]|1795395096|1:00:00|gres:gpu:4|2|pilot
12|PENDING|Resources||N/A|UNLIMITED|N/A|1|pilot
13|CANCELLED|None|n3|1795395000|5:00|gres/gpu:a100:1|1|other
14_[1-9]|PENDING|Priority||N/A|5:00|N/A|1|array
"""

OLD_NODES = {
    "nodes": [
        {
            "name": "n0", "state": "mixed", "state_flags": ["DRAIN"], "gres": "gpu:a100:4(S:0-1)", "cpus": 64,
            "real_memory": 512000, "partitions": ["gpu", "all"],
        },
        {
            "name": "n1", "state": "idle", "state_flags": [], "gres": "", "cpus": 16, "real_memory": 64000,
            "partitions": ["all"],
        },
    ]
}  # fmt: skip

NEW_NODES = {
    "sinfo": [
        {
            "node": {"state": ["MIXED", "DRAIN"]}, "nodes": {"nodes": ["n0"], "total": 1},
            "gres": {"total": "gpu:a100:4(S:0-1)", "used": "gpu:a100:1"}, "cpus": {"minimum": 64, "maximum": 64},
            "memory": {"minimum": 512000, "maximum": 512000}, "partition": {"name": "gpu"},
        },
        {
            "node": {"state": ["MIXED", "DRAIN"]}, "nodes": {"nodes": ["n0"], "total": 1},
            "gres": {"total": "gpu:a100:4(S:0-1)", "used": ""}, "cpus": {"minimum": 64, "maximum": 64},
            "memory": {"minimum": 512000, "maximum": 512000}, "partition": {"name": "all"},
        },
        {
            "node": {"state": ["IDLE"]}, "nodes": {"nodes": ["n1"], "total": 1}, "gres": {"total": "", "used": ""},
            "cpus": {"minimum": 16, "maximum": 16}, "memory": {"minimum": 64000, "maximum": 64000},
            "partition": {"name": "all"},
        },
    ]
}  # fmt: skip

TABLE_NODES = """\
n0|mixed+drain|gpu:a100:4(S:0-1)|64|512000|gpu*
n0|mixed+drain|gpu:a100:4(S:0-1)|64|512000|all
n1|idle|(null)|16+|64000|all
"""


def test_jobs_of_old_and_new_versions_and_of_tables_are_the_same() -> None:
    old = jobs_of_json(json.dumps(OLD_JOBS))
    running, pending, ended = old
    assert (running.nodes, running.end_s, running.limit_s, running.gpus) == (("n0", "n1"), 1795395096.0, 3600.0, 4)
    assert (running.running, running.ended, running.reason) == (True, False, "")
    assert (pending.reason, pending.end_s, pending.limit_s, pending.gpus) == ("Resources", None, None, None)
    assert (pending.running, pending.ended) == (False, False)
    assert (ended.running, ended.ended, ended.gpus) == (False, True, 1)
    new = jobs_of_json(json.dumps(NEW_JOBS))
    assert new[:2] == old[:2]
    assert (new[2].ended, new[2].running, new[2].end_s) == (False, False, ended.end_s), "its processes are being ended"
    assert jobs_of_table(TABLE_JOBS) == old


def test_nodes_of_old_and_new_versions_and_of_tables_are_the_same() -> None:
    old = nodes_of_json(json.dumps(OLD_NODES))
    assert [(node.name, node.gpus, node.cpus, node.memory_mib) for node in old] == [
        ("n0", 4, 64, 512000),
        ("n1", 0, 16, 64000),
    ]
    assert old[0].states == ("MIXED", "DRAIN")
    assert old[0].partitions == ("gpu", "all")
    assert nodes_of_json(json.dumps(NEW_NODES)) == old
    assert nodes_of_table(TABLE_NODES) == old


@pytest.mark.parametrize("text", ["", "squeue: error: no", "[]", "{}", '{"jobs": 3}', '{"jobs": NaN}', "[" * 100])
def test_what_is_no_answer_is_told(text: str) -> None:
    with pytest.raises(SlurmTextError, match="squeue --json prints"):
        jobs_of_json(text)


def test_an_empty_list_with_errors_is_no_answer() -> None:
    """What squeue --json of 22.05 prints, with exit code 0, where slurmctld does not answer."""
    errors = [{"description": "Failed while looking for jobs", "error_number": -1, "source": "slurm_load_jobs"}]
    with pytest.raises(SlurmTextError, match="Failed while looking for jobs"):
        jobs_of_json(json.dumps({"meta": {}, "errors": errors, "jobs": []}))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("n[0-3,7]", ["n0", "n1", "n2", "n3", "n7"]),
        ("n[008-011],login1", ["n008", "n009", "n010", "n011", "login1"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("", []),
        ("a", ["a"]),
    ],
)
def test_lists_of_hosts(text: str, found: list[str]) -> None:
    assert list(hosts_of(text)) == found


@pytest.mark.parametrize(
    "text", ["n[0-", "n0-3]", "n[3-1]", "n[a-b]", "n[]", "n[1-]", "n[0-99999999]", "n[1[2]]", "n[٣]"]
)
def test_lists_of_hosts_that_can_not_be_read(text: str) -> None:
    with pytest.raises(SlurmTextError, match="list of hosts"):
        hosts_of(text)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20), st.integers(1, 4))
def test_a_list_of_hosts_written_with_ranges_is_read_back(numbers: list[int], width: int) -> None:
    names = [f"n{number:0{width}d}" for number in numbers]
    assert list(hosts_of("n[" + ",".join(f"{number:0{width}d}" for number in numbers) + "]")) == names
    assert list(hosts_of(",".join(names))) == names
    first = min(numbers)
    assert len(hosts_of(f"n[{first}-{max(numbers)}]")) == max(numbers) - first + 1


@given(st.text("n0123[],-", max_size=30))
def test_any_text_is_a_list_of_hosts_or_told(text: str) -> None:
    try:
        found = hosts_of(text)
    except SlurmTextError:
        return
    assert all(found)
    assert not set("[],") & set("".join(found))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:a100:4(S:0-1)", [("gpu", "a100", 4)]),
        ("gpu:2(IDX:0,2),shard:8", [("gpu", "", 2), ("shard", "", 8)]),
        ("gres:gpu:2", [("gpu", "", 2)]),
        ("gres/gpu:h100=8", [("gpu", "h100", 8)]),
        ("gres/gpu=8", [("gpu", "", 8)]),
        ("gpu", [("gpu", "", 1)]),
        ("gpu:a100", [("gpu", "a100", 1)]),
        ("bandwidth:lustre:no_consume:4G", [("bandwidth", "lustre", 4 << 30)]),
        ("(null)", []),
        ("N/A", []),
        ("", []),
    ],
)
def test_generic_resources(text: str, found: list[tuple[str, str, int]]) -> None:
    assert [(one.name, one.type, one.count) for one in gres_of(text)] == found


def test_a_count_that_can_not_be_read_is_told() -> None:
    with pytest.raises(SlurmTextError, match="4X"):
        gres_of("gpu:4X")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["gpu", "shard", "mps"]), st.sampled_from(["", "a100", "h100-nvl"]), st.integers(0, 99)
        )
    )
)
def test_generic_resources_are_read_back(parts: list[tuple[str, str, int]]) -> None:
    text = ",".join(":".join(filter(None, [name, kind, str(count)])) + "(S:0,1)" for name, kind, count in parts)
    assert gres_of(text) == tuple(Gres(*part) for part in parts)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (5, 5.0),
        (None, None),
        (True, None),
        ("5", None),
        ({"set": True, "infinite": False, "number": 5}, 5.0),
        ({"set": False, "infinite": False, "number": 0}, None),
        ({"set": True, "infinite": True, "number": 0}, None),
        ({}, None),
    ],
)
def test_numbers_of_all_versions(value: object, found: float | None) -> None:
    assert number_of(value) == found


def test_states_of_all_versions() -> None:
    assert states_of("idle*") == states_of(["IDLE"]) == ("IDLE",)
    assert states_of("mixed+drain") == states_of(["MIXED", "DRAIN"])
    assert states_of("drained$") == ("DRAINED",)
    assert states_of(None) == states_of("") == ()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5:00", 300.0), ("1:00:00", 3600.0), ("1-0", 86400.0), ("2-01:30:05", 178205.0), ("90", 5400.0),
     ("UNLIMITED", None), ("", None), ("a:b", None), ("-1", None)],
)  # fmt: skip
def test_time_limits(text: str, seconds: float | None) -> None:
    assert duration_of(text) == seconds
