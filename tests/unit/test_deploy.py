"""The files in deploy/ fit together, and what they say to gpuloom is what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuloom.cli.service import up
from gpuloom.policies.registry import create_policy
from gpuloom.server.pods import template_in

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def objects(name: str) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all((DEPLOY / name).read_text()) if item]


def of_kind(items: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [item for item in items if item["kind"] == kind]
    return found


@pytest.fixture
def scheduler() -> list[dict[str, Any]]:
    return objects("scheduler.yaml")


def test_each_name_is_that_of_an_object_that_is_there(scheduler: list[dict[str, Any]]) -> None:
    there = {(one["kind"], one["metadata"]["name"]) for one in scheduler + objects("run-rbac.yaml")}
    assert {one["metadata"]["namespace"] for one in scheduler} == {"train"}
    assert ("Namespace", "train") in there
    template = of_kind(scheduler, "Deployment")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert ("ServiceAccount", template["spec"]["serviceAccountName"]) in there
    volumes = {one["name"]: one for one in template["spec"]["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} == volumes.keys()
    assert ("PersistentVolumeClaim", volumes["home"]["persistentVolumeClaim"]["claimName"]) in there
    assert ("ConfigMap", volumes["config"]["configMap"]["name"]) in there
    labels = template["metadata"]["labels"]
    assert of_kind(scheduler, "Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert of_kind(scheduler, "Service")["spec"]["selector"] == labels
    assert of_kind(scheduler, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    (port,) = of_kind(scheduler, "Service")["spec"]["ports"]
    assert ports[port["targetPort"]] == port["port"]
    assert container["readinessProbe"]["httpGet"]["port"] in ports


def test_the_scheduler_takes_its_options_and_files(scheduler: list[dict[str, Any]], tmp_path: Path) -> None:
    (container,) = of_kind(scheduler, "Deployment")["spec"]["template"]["spec"]["containers"]
    for name, text in of_kind(scheduler, "ConfigMap")["data"].items():
        (tmp_path / name).write_text(text)
    mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert mounted["/etc/gpuloom"] == "config"
    first, *words = [word.replace("/etc/gpuloom", str(tmp_path)) for word in container["args"]]
    assert first == "up"
    given = up.make_context("up", words).params
    assert (given["executor"], given["namespace"], given["standby"]) == ("kubernetes", "train", True)
    assert template_in(given["pod_template"])["spec"]["priorityClassName"] == "gpuloom"
    assert [one["metadata"]["name"] for one in objects("run-rbac.yaml") if one["kind"] == "PriorityClass"] == [
        "gpuloom"
    ]
    create_policy(given["written"])


def test_the_image_has_what_the_deployment_asks_of_it(scheduler: list[dict[str, Any]]) -> None:
    spec = of_kind(scheduler, "Deployment")["spec"]["template"]["spec"]
    text = (DEPLOY / "Dockerfile").read_text()
    (container,) = spec["containers"]
    user = spec["securityContext"]["runAsUser"]
    assert f"USER {user}:{spec['securityContext']['runAsGroup']}" in text
    home = next(one["mountPath"] for one in container["volumeMounts"] if one["name"] == "home")
    assert f"GPULOOM_HOME={home}" in text
