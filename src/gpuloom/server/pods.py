"""`gpuloom up --executor kubernetes`: which cluster jobs run in, and how their pods are made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuloom.bounded.yaml_text import load_yaml
from gpuloom.core.errors import InputError
from gpuloom.executors.home_id import home_id_of
from gpuloom.executors.kubernetes.manifest import Setup
from gpuloom.executors.wire import write_atomic
from gpuloom.kubernetes.api import connect
from gpuloom.live.pod_nodes import PodNodes, PodOptions
from gpuloom.server.options import KubernetesOptions
from gpuloom.store.home import Home

_SET = ("restartPolicy", "schedulerName", "terminationGracePeriodSeconds", "nodeName")
"""Fields of a pod that are gpuloom's to say."""


def pod_nodes_of(options: KubernetesOptions, home: Home) -> PodNodes:
    """What runs jobs there, not opened yet.

    Raises:
        InputError: the kubeconfig or the template can't be used, or the home is of another cluster.
        MissingDependencyError.
    """
    template = {} if options.pod_template is None else template_in(options.pod_template)
    api = connect(options.kubeconfig, options.context)
    try:
        namespace = options.namespace or api.namespace
        _check_same(home, api.server, namespace)
        setup = Setup(
            namespace, home_id_of(home.path), home.runs, options.image, template, options.runs_claim, options.queue
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


def _check_same(home: Home, server: str, namespace: str) -> None:
    """Raises InputError: jobs of this home run in another cluster, where nobody would see them any more."""
    place, now = home.kubernetes, {"cluster": server, "namespace": namespace}
    try:
        before = json.loads(place.read_text())
    except FileNotFoundError:
        before = None
    except (OSError, ValueError) as error:
        raise InputError(f"{place} can't be read: {error}; it names the cluster that jobs run in") from error
    if before is not None and before != now:
        was = f"namespace {before.get('namespace')} of {before.get('cluster')}"
        raise InputError(f"the jobs of home {home.path} run in {was}: for another one give another --home")
    if before is None:
        try:
            home.create()
            write_atomic(str(place), now)
        except OSError as error:
            raise InputError(f"{place} can't be written: {error.strerror}") from error
