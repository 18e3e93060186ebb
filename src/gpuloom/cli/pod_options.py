"""The options of `gpuloom up` that are about Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gpuloom.server.options import KubernetesOptions

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(dir_okay=False, path_type=Path)
OPTIONS = (
    click.option(
        "--executor",
        type=click.Choice(["local", "kubernetes"]),
        default="local",
        show_default=True,
        help="Where jobs run: on this machine and on nodes that join, or as pods of a Kubernetes cluster.",
    ),
    click.option(
        "--kubeconfig",
        type=_FILE,
        metavar="FILE",
        help="With kubernetes: how to reach the cluster [in a pod its service account, else $KUBECONFIG, else "
        "~/.kube/config].",
    ),
    click.option("--context", metavar="NAME", help="With kubernetes: context of the kubeconfig [its current one]."),
    click.option("--namespace", metavar="NAME", help="With kubernetes: where jobs are made [the context's]."),
    click.option("--image", metavar="IMAGE", help="With kubernetes: image of jobs that name none."),
    click.option(
        "--pod-template",
        type=_FILE,
        metavar="FILE",
        help="With kubernetes: a part of a pod that all jobs have (volumes, tolerations, secrets; YAML).",
    ),
    click.option(
        "--runs-claim",
        metavar="CLAIM[/FOLDER]",
        help="With kubernetes: PersistentVolumeClaim that holds HOME/runs, so that jobs can report progress.",
    ),
    click.option(
        "--job-kind",
        type=click.Choice(["volcano", "indexed"]),
        help="With kubernetes: jobs run as Volcano Jobs, or as Indexed Jobs of Kubernetes itself [what this home had; "
        "at first Volcano's, if the cluster has them].",
    ),
    click.option("--queue", metavar="NAME", help="With Volcano: its queue [default]."),
    click.option(
        "--placement",
        type=click.Choice(["gate", "bind"]),
        help="With kubernetes: gate: pods wait at a gate, are pinned to a node, and kube-scheduler binds them there; "
        "bind: gpuloom binds them itself, without regard to volumes and claims [gate].",
    ),
    click.option(
        "--gpu-resource",
        "gpu_resources",
        multiple=True,
        metavar="NAME",
        help="With kubernetes: name under which nodes offer GPUs (may be given again) [the usual ones].",
    ),
    click.option(
        "--standby",
        is_flag=True,
        help="With kubernetes: if another scheduler acts for this home, wait until it ends, and go on in its place.",
    ),
)
_NAMES = {
    "kubeconfig": "--kubeconfig",
    "context": "--context",
    "namespace": "--namespace",
    "image": "--image",
    "pod_template": "--pod-template",
    "runs_claim": "--runs-claim",
    "job_kind": "--job-kind",
    "queue": "--queue",
    "placement": "--placement",
    "gpu_resources": "--gpu-resource",
    "standby": "--standby",
}


def pod_options(command: F) -> F:
    """The options of `up` that are about Kubernetes."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def kubernetes_in(parameters: dict[str, Any]) -> KubernetesOptions | None:
    """What was said of Kubernetes; None: jobs don't run there.

    Raises:
        click.UsageError: options without --executor kubernetes, or with some that say otherwise.
    """
    from gpuloom.server.options import KubernetesOptions

    given = {name: value for name in _NAMES if (value := parameters[name]) not in (None, (), False)}
    if parameters["executor"] != "kubernetes":
        if given:
            what = ", ".join(_NAMES[name] for name in given)
            raise click.UsageError(f"{what}: goes with --executor kubernetes")
        return None
    if parameters["slurm"]:
        raise click.UsageError("--slurm and --executor kubernetes: jobs run in one of them")
    if parameters["slots"] is not None:
        raise click.UsageError("--slots are of this machine, and with --executor kubernetes no job runs here")
    if "standby" in given and parameters["detach"]:
        raise click.UsageError(
            "--standby may wait for long, and --detach returns when it is ready: leave one of them out"
        )
    for name in ("kubeconfig", "pod_template"):
        if name in given:
            given[name] = given[name].absolute()
    return KubernetesOptions(**given)


def words_of_pods(parameters: dict[str, Any]) -> list[str]:
    """The same options as words of a command line."""
    if (options := kubernetes_in(parameters)) is None:
        return []
    found = ["--executor", "kubernetes"]
    for name, flag in _NAMES.items():
        value = getattr(options, name)
        for one in value if isinstance(value, tuple) else (value,):
            if one not in (None, "", False):
                found += [flag, str(one)]
    return found
