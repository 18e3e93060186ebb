"""`gpuloom up --executor kubernetes`: which cluster jobs run in, and how their pods are made."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuloom.bounded.yaml_text import load_yaml
from gpuloom.core.errors import InputError
from gpuloom.executors.home_id import home_id_of
from gpuloom.executors.kubernetes.kinds import INDEXED, KINDS, VOLCANO, JobKind
from gpuloom.executors.kubernetes.manifest import Setup
from gpuloom.executors.wire import write_atomic
from gpuloom.kubernetes.api import Api, ApiError, connect
from gpuloom.kubernetes.informer import PATIENCE_S
from gpuloom.live.pod_nodes import PodNodes, PodOptions
from gpuloom.server.options import KubernetesOptions
from gpuloom.store.home import Home

_SET = ("restartPolicy", "schedulerName", "terminationGracePeriodSeconds", "nodeName")
"""Fields of a pod that are gpuloom's to say."""


def pod_nodes_of(options: KubernetesOptions, home: Home) -> PodNodes:
    """What runs jobs there, not opened yet.

    Raises:
        InputError: the kubeconfig or the template can't be used, or the home is of another cluster.
        ApiError: the cluster does not answer. MissingDependencyError.
    """
    template = {} if options.pod_template is None else template_in(options.pod_template)
    api = connect(options.kubeconfig, options.context)
    try:
        namespace = options.namespace or api.namespace
        kind = _kind_of_jobs(home, api, namespace, options.job_kind)
        setup = Setup(
            namespace,
            home_id_of(home.path),
            home.runs,
            options.image,
            template,
            options.runs_claim,
            options.queue,
            kind,
            options.placement == "bind",
        )
        return PodNodes(api, PodOptions(setup, options.gpu_resources))
    except BaseException:
        api.close()
        raise


def template_in(path: Path) -> Mapping[str, Any]:
    """The pod template of a file.

    Raises:
        InputError: it can't be read, or is none.
    """
    try:
        found = load_yaml(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--pod-template {path}: {getattr(error, 'strerror', None) or error}") from error
    except ValueError as error:
        raise InputError(f"--pod-template {path}: {error}") from error
    if not isinstance(found, dict) or found.keys() - {"metadata", "spec", "apiVersion", "kind"}:
        raise InputError(f"--pod-template {path}: must be a part of a pod, with `metadata` and `spec` (YAML)")
    spec, about = found.get("spec") or {}, found.get("metadata") or {}
    if not isinstance(spec, dict) or not isinstance(about, dict):
        raise InputError(f"--pod-template {path}: `metadata` and `spec` must be mappings")
    if others := about.keys() - {"labels", "annotations"}:
        raise InputError(f"--pod-template {path}: metadata.{min(others)}: only labels and annotations are taken")
    if wrong := [name for name in _SET if name in spec]:
        raise InputError(f"--pod-template {path}: spec.{wrong[0]} is gpuloom's to say: leave it out")
    if "preemptionPolicy" in spec or "priority" in spec:
        raise InputError(
            f"--pod-template {path}: a cluster takes priorities from a class alone: give priorityClassName"
        )
    containers = spec.get("containers") or []
    if not isinstance(containers, list) or not all(isinstance(one, dict) for one in containers):
        raise InputError(f"--pod-template {path}: spec.containers must be a list of mappings")
    main = [one for one in containers if one.get("name") in (None, "main")]
    if len(main) > 1:
        raise InputError(f"--pod-template {path}: spec.containers: several are the job's own (name: main)")
    return {"metadata": about, "spec": spec}


def _kind_of_jobs(home: Home, api: Api, namespace: str, asked: str | None) -> JobKind:
    """What jobs are made as: what this home began with, else what was asked for, else what the cluster has.

    Raises:
        InputError: jobs of this home run in another cluster, or as other Jobs, where nobody would see them any more.
        ApiError: the cluster does not say what it has.
    """
    place, now = home.kubernetes, {"cluster": api.server, "namespace": namespace}
    try:
        before = json.loads(place.read_text())
    except FileNotFoundError:
        before = None
    except (OSError, ValueError) as error:
        raise InputError(f"{place} can't be read: {error}; it names the cluster that jobs run in") from error
    if before is not None:
        was = before.get("jobs", VOLCANO.word)
        if {**before, "jobs": was} != {**now, "jobs": was}:
            there = f"namespace {before.get('namespace')} of {before.get('cluster')}"
            raise InputError(f"the jobs of home {home.path} run in {there}: for another one give another --home")
        if was not in KINDS:
            raise InputError(f"{place}: jobs: {was!r} is none of {', '.join(KINDS)}")
        if asked not in (None, was):
            text = f"the jobs of home {home.path} are {KINDS[was].title}s: for --job-kind {asked} give another --home"
            raise InputError(text)
        return KINDS[was]
    kind = KINDS[asked] if asked is not None else VOLCANO if _has_volcano(api) else INDEXED
    try:
        home.create()
        write_atomic(str(place), {**now, "jobs": kind.word})
    except OSError as error:
        raise InputError(f"{place} can't be written: {error.strerror}") from error
    return kind


def _has_volcano(api: Api) -> bool:
    """Raises ApiError: it does not say for PATIENCE_S."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = api.get(VOLCANO.path)
        except ApiError as error:
            if error.status == 404:
                return False
            if time.monotonic() > until_s or (400 <= error.status < 500 and error.status != 429):
                raise
            time.sleep(error.retry_after_s or 0.5)
        else:
            return any(one.get("name") == "jobs" for one in found.get("resources") or ())
