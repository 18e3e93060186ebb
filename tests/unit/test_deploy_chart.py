"""The Helm chart in deploy/chart, rendered by Helm's own code, and what the plain YAML beside it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuloom.cli.service import up
from gpuloom.facts.inputs import load_policy
from gpuloom.server.pods import template_in
from tiers import mostly_slow

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PLAIN = ("run-rbac.yaml", "scheduler.yaml", "observe-rbac.yaml")
VERSIONS = ("1.27", "1.30", "1.33", "1.36")
"""Of Kubernetes: gates came with 1.27."""

Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def helm() -> Any:
    return pytest.importorskip("helm_python", reason="Helm has no wheel for this machine")


@pytest.fixture
def render(helm: Any) -> Render:
    """The objects that `helm install gpuloom deploy/chart --namespace train` makes, with these values."""

    def rendered(values: dict[str, Any] | None = None, namespace: str = "train") -> list[dict[str, Any]]:
        files = helm.Chart.load(DEPLOY / "chart").render(values or {}, name="gpuloom", namespace=namespace)
        texts = [text for name, text in files.items() if not name.endswith(".txt")]
        return [one for text in texts for one in yaml.safe_load_all(text) if one]

    return rendered


def plain(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((DEPLOY / name).read_text()) if one]


def of_kind(items: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [item for item in items if item["kind"] == kind]
    return found


def bare(item: Any) -> Any:
    """Without what Helm says of itself, and of a change of the configuration."""
    if isinstance(item, list):
        return [bare(one) for one in item]
    if not isinstance(item, dict):
        return item
    ours = ("app.kubernetes.io/name", "app.kubernetes.io/component")
    found = {}
    for name, value in item.items():
        if name in ("labels", "annotations"):
            value = {key: text for key, text in value.items() if key in ours}
        if name == "data":  # text that is YAML: comments and order don't count
            value = {key: yaml.safe_load(text) for key, text in value.items()}
        if not (name in ("labels", "annotations", "imagePullPolicy") and value in ({}, "IfNotPresent")):
            found[name] = bare(value)
    return found


def by_name(items: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    found = {}
    for item in items:
        one = bare(item)
        about = one["metadata"]
        about.pop("labels", None)  # those that select are in the specs
        name = "gpuloom" if one["kind"].startswith("ClusterRole") else about["name"]
        about["name"] = name
        if "roleRef" in one:
            one["roleRef"]["name"] = name
        found[one["kind"], name] = one
    return found


def test_the_plain_yaml_says_the_same(render: Render) -> None:
    there = by_name(plain("run-rbac.yaml") + plain("scheduler.yaml"))
    assert there.pop(("Namespace", "train"))
    assert by_name(render()) == there


def test_helm_finds_nothing_wrong_with_it(helm: Any) -> None:
    found = helm.lint(DEPLOY / "chart", strict=True, namespace="train")
    assert found["errors"] == []
    assert [one["error"] for one in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", mostly_slow(VERSIONS, "1.36"))
def test_all_objects_fit_the_schemas_of_kubernetes(render: Render, version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    values = {"replicas": 2, "persistence": {"storageClass": "nfs", "accessMode": "ReadWriteMany"},
              "imagePullSecrets": [{"name": "registry"}], "extraArgs": ["--image=here:1"]}  # fmt: skip
    for item in [*render(), *render(values), *(one for name in PLAIN for one in plain(name))]:
        schemas.validate(item, version, strict=True)
    broken = of_kind(render(), "Deployment")
    broken["spec"]["template"]["spec"]["containers"][0]["args"] = "up"
    with pytest.raises(schemas.ValidationError):
        schemas.validate(broken, version, strict=True)


def test_values_reach_the_scheduler(render: Render, tmp_path: Path) -> None:
    values = {
        "policy": "elastic:config=/etc/gpuloom/elastic.yaml",
        "elastic": {"expand_threshold": 0.2},
        "podTemplate": {"spec": {"tolerations": [{"key": "team", "operator": "Exists"}]}},
        "extraArgs": ["--image=here:1", "--gpu-resource=nvidia.com/gpu"],
        "service": {"port": 7500},
        "replicas": 2,
    }
    found = render(values, "research")
    deployment = of_kind(found, "Deployment")
    assert deployment["spec"]["replicas"] == 2
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for name, text in of_kind(found, "ConfigMap")["data"].items():
        (tmp_path / name).write_text(text)
    first, *words = [word.replace("/etc/gpuloom", str(tmp_path)) for word in container["args"]]
    assert first == "up"
    given = up.make_context("up", words).params
    assert (given["namespace"], given["port"], given["image"]) == ("research", 7500, "here:1")
    assert template_in(given["pod_template"])["spec"]["tolerations"][0]["key"] == "team"
    config = load_policy(given["written"]).values["config"]
    assert (config["expand_threshold"], config["shrink_threshold"]) == (0.2, 0.9)
    assert [one["containerPort"] for one in container["ports"]] == [7500]
    assert of_kind(found, "Service")["spec"]["ports"][0]["port"] == 7500
    assert of_kind(found, "NetworkPolicy")["spec"]["ingress"][0]["ports"][0]["port"] == 7500


def test_what_is_there_already_is_not_made(render: Render) -> None:
    found = render({
        "serviceAccount": {"create": False, "name": "ours"}, "rbac": {"create": False},
        "priorityClass": {"create": False}, "networkPolicy": {"enabled": False},
        "persistence": {"existingClaim": "store"},
    })  # fmt: skip
    assert sorted(one["kind"] for one in found) == ["ConfigMap", "Deployment", "Service"]
    pod = of_kind(found, "Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "ours"
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "store"}


def test_releases_of_two_namespaces_do_not_meet(render: Render) -> None:
    """What is of the whole cluster; the PriorityClass is the same for all, so the second one leaves it out."""
    one, other = render(), render({"priorityClass": {"create": False}}, "research")
    wide = [
        {(item["kind"], item["metadata"]["name"]) for item in items if "namespace" not in item["metadata"]}
        for items in (one, other)
    ]
    assert not wide[0] & wide[1]
    for items, namespace in ((one, "train"), (other, "research")):
        assert {item["metadata"].get("namespace", namespace) for item in items} == {namespace}
        assert of_kind(items, "ClusterRoleBinding")["subjects"][0]["namespace"] == namespace


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"replicas": "two"}, "'/replicas': got string, want integer"),
        ({"polcy": "fifo"}, "additional properties 'polcy' not allowed"),
        ({"image": {"tag": ""}}, "'/image/tag'"),
        ({"extraArgs": ["image=x"]}, "'/extraArgs/0'"),
        ({"persistence": {"size": "much"}}, "'/persistence/size'"),
    ],
)
def test_values_that_can_not_be_are_refused(render: Render, helm: Any, values: dict[str, Any], why: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=why):
        render(values)
