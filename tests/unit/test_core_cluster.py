"""Cluster descriptions: the short form and the content of a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.core.cluster import Cluster, Node, cluster_from_mapping, parse_cluster
from gpuloom.core.errors import ClusterError
from gpuloom.facts.inputs import load_cluster


def mapped(*entries: Any, **more: Any) -> Cluster:
    return cluster_from_mapping({"nodes": list(entries), **more}, source="c.yaml")


def test_the_short_form_gives_nodes_gpus_and_models() -> None:
    cluster = parse_cluster("4x8:V100, 16x4:K80")
    assert len(cluster.nodes) == 20
    assert cluster.gpus == 96
    assert cluster.models == ("V100", "K80")
    assert cluster.nodes[0] == Node("n0", 8, "V100")
    assert cluster.nodes[19] == Node("n19", 4, "K80")


def test_names_are_unique_over_several_parts() -> None:
    names = [node.name for node in parse_cluster("2x8,2x8,1x4:K80").nodes]
    assert len(set(names)) == 5


def test_gpus_without_a_model_are_called_gpu() -> None:
    assert parse_cluster("1x2").models == ("GPU",)


PARTS = st.tuples(st.integers(1, 5), st.integers(1, 16), st.sampled_from(["", ":V100", ":A100-80G", ":k80_x2"]))


@given(st.lists(PARTS, min_size=1, max_size=5))
def test_the_short_form_reads_back_what_it_writes(parts: list[tuple[int, int, str]]) -> None:
    cluster = parse_cluster(",".join(f"{n}x{g}{m}" for n, g, m in parts))
    again = parse_cluster(str(cluster))
    assert again.nodes == cluster.nodes
    assert str(again) == str(cluster)


@pytest.mark.parametrize(
    "text", ["", "8", "8*8", "8x", "x8", "-1x8", "8x8:", "8x8:V 100", "8x8,,4x4", "1.5x8", "８ｘ８"]
)
def test_a_part_that_can_not_be_read_is_quoted_with_a_right_form(text: str) -> None:
    with pytest.raises(ClusterError, match=r"is not NODESxGPUS or NODESxGPUS:MODEL"):
        parse_cluster(text)


@pytest.mark.parametrize("text", ["0x8", "8x0", "1000001x1", "2x2,0x4"])
def test_numbers_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(ClusterError, match="nodes must be 1 to 1,000,000, GPUs 1 or more"):
        parse_cluster(text)


def test_a_cluster_refuses_no_nodes_and_nodes_without_gpus_and_equal_names() -> None:
    with pytest.raises(ClusterError, match="at least one node"):
        Cluster(())
    with pytest.raises(ClusterError, match="node 'a' has 0 GPUs"):
        Cluster((Node("a", 0),))
    with pytest.raises(ClusterError, match="two nodes are named 'a'"):
        Cluster((Node("a", 1), Node("b", 1), Node("a", 2)))


def test_a_mapping_gives_all_that_it_says() -> None:
    cluster = mapped(
        {"count": 2, "gpus": 8, "gpu_model": "V100", "gpu_memory": "16GiB", "memory": "256G", "network_gbps": 25},
        {"name": "big", "gpus": 16, "cpus": 96},
        {"name": "rack", "count": 2, "gpus": 4},
        name="lab",
    )
    assert [node.name for node in cluster.nodes] == ["n0", "n1", "big", "rack0", "rack1"]
    assert cluster.nodes[0] == Node("n0", 8, "V100", 16384, None, 262144, 25.0)
    assert cluster.nodes[2].cpus == 96
    assert cluster.name == "lab"
    assert cluster.gpus == 40


@pytest.mark.parametrize("data", [None, [], "8x8", {"nodes": {"gpus": 8}}, {}])
def test_a_mapping_without_a_list_of_nodes_is_refused(data: object) -> None:
    with pytest.raises(ClusterError, match=r"^c.yaml: must hold a list under the key 'nodes'"):
        cluster_from_mapping(data, source="c.yaml")


def test_unknown_keys_are_named_with_the_known_ones() -> None:
    with pytest.raises(ClusterError, match=r"c.yaml: unknown key 'node'; known: name, nodes"):
        mapped({"gpus": 8}, node=3)
    with pytest.raises(ClusterError, match=r"c.yaml: nodes\[2\]: unknown key 'gpu'; known: count, cpus, gpu_memory"):
        mapped({"gpus": 8}, {"gpu": 8})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("8x8", r"nodes\[1\] is '8x8', must be a mapping"),
        ({}, r"nodes\[1\].gpus is None, must be a whole number"),
        ({"gpus": 0}, r"nodes\[1\].gpus is 0"),
        ({"gpus": True}, r"nodes\[1\].gpus is True"),
        ({"gpus": 8.0}, r"nodes\[1\].gpus is 8.0"),
        ({"gpus": "8"}, r"nodes\[1\].gpus is '8'"),
        ({"gpus": 8, "count": 0}, r"nodes\[1\].count is 0, must be a whole number, 1 to 1,000,000"),
        ({"gpus": 8, "count": 10**7}, r"nodes\[1\].count is 10000000"),
        ({"gpus": 8, "cpus": -1}, r"nodes\[1\].cpus is -1"),
        ({"gpus": 8, "network_gbps": 0}, r"nodes\[1\].network_gbps is 0"),
        ({"gpus": 8, "network_gbps": "fast"}, r"nodes\[1\].network_gbps is 'fast'"),
        ({"gpus": 8, "network_gbps": True}, r"nodes\[1\].network_gbps is True"),
        ({"gpus": 8, "network_gbps": float("nan")}, r"nodes\[1\].network_gbps is nan"),
    ],
)
def test_a_bad_value_is_named_with_file_entry_and_key(entry: object, message: str) -> None:
    with pytest.raises(ClusterError, match="c.yaml: " + message):
        mapped(entry)


@pytest.mark.parametrize("key", ["gpu_memory", "memory"])
def test_a_bad_memory_size_is_named_with_file_entry_and_key(key: str) -> None:
    with pytest.raises(ClusterError, match=rf"c.yaml: nodes\[2\].{key}.*'lots'"):
        mapped({"gpus": 1}, {"gpus": 8, key: "lots"})


@pytest.mark.parametrize("model", [None, ["V100"], {"a": 1}])
def test_a_gpu_model_that_is_no_word_is_refused(model: object) -> None:
    with pytest.raises(ClusterError, match=r"nodes\[1\].gpu_model"):
        mapped({"gpus": 8, "gpu_model": model})


def test_a_gpu_model_that_yaml_reads_as_a_number_is_a_word() -> None:
    assert mapped({"gpus": 8, "gpu_model": 3090}).models == ("3090",)


def test_equal_names_in_a_mapping_are_refused() -> None:
    with pytest.raises(ClusterError, match="two nodes are named 'a1'"):
        mapped({"gpus": 1, "name": "a", "count": 2}, {"gpus": 1, "name": "a1"})


def test_numbered_names_keep_out_of_the_way_of_given_ones() -> None:
    names = [node.name for node in mapped({"gpus": 1, "name": "n1"}, {"gpus": 1}).nodes]
    assert len(set(names)) == 2


# -- load_cluster --------------------------------------------------------------------------------------------


def test_a_yaml_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text("name: lab\nnodes:\n- {count: 3, gpus: 8, gpu_model: A100}\n")
    cluster = load_cluster(str(file))
    assert (cluster.gpus, cluster.models, cluster.name) == (24, ("A100",), "lab")


def test_a_missing_yaml_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"nothing.yaml: No such file"):
        load_cluster(str(tmp_path / "nothing.yaml"))


@pytest.mark.parametrize("content", ["nodes: [", "\tnodes:\n", "nodes:\n- {gpus: 8\n"])
def test_a_file_that_is_not_yaml_is_named_in_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(content)
    with pytest.raises(ClusterError, match=r"bad.yaml: is not YAML: line \d") as caught:
        load_cluster(str(file))
    assert "\n" not in str(caught.value)


def test_binary_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ClusterError, match="is not YAML"):
        load_cluster(str(file))


def test_a_short_form_longer_than_a_file_name_may_be_is_read() -> None:
    text = ",".join(["1x8:V100"] * 60)
    assert len(text) > 255
    assert load_cluster(text).gpus == 480
