"""The Job of an attempt, as it is sent: Volcano's, or Kubernetes' own.

All members of a task have the same template, so what differs between them (their rank, say) is an annotation of each
pod, written when it is pinned, from which its kubelet takes the variable (`fieldRef`). A word of the command that
differs is such a variable too: kubelets replace `$(NAME)`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from gpuloom.core.errors import InputError
from gpuloom.core.job import DeviceKind
from gpuloom.core.run_name import run_name_of
from gpuloom.executors.containers import OUTSIDE
from gpuloom.executors.kubernetes.kinds import VOLCANO, JobKind, replicas_in, spare_in
from gpuloom.executors.kubernetes.marks import (
    FINALIZER,
    GATE,
    GRACE,
    HOLD,
    HOME,
    IN_PLACE,
    JOB,
    LIMIT,
    MEMBERS,
    NAME,
    OWN_TASK,
    PART_OF,
    RANK,
    RUN,
    SERVICE,
    SIZED_TASK,
    VALUE,
    VALUES,
    VARIABLES,
    Task,
    attempt_of,
    host_of,
    job_of_task,
    name_of,
    sized_task,
    tasks_of,
)
from gpuloom.executors.launchers import DIRECT, is_direct, launched, told
from gpuloom.executors.local_files import run_directory
from gpuloom.executors.node import RunSpec
from gpuloom.executors.wire import NOTICE_FILE, PROGRESS_FILE
from gpuloom.kubernetes.objects import SCHEDULER
from gpuloom.training import inject

MAX_RETRY = 1_000_000
"""Both count what they restart, and end a Job at so many."""
CONTAINER = "main"
SAID = frozenset(
    f"GPULOOM_{what}"
    for what in ("JOB_NAME", "JOB_KEY", "ARRAY_ID", "ARRAY_INDEX", "REPLICAS", "MIN_REPLICAS", "MAX_REPLICAS")
)
"""Variables that gpuloom sets itself for a job: they are no secrets."""
_WORD = "GPULOOM_WORD_"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Setup:
    """How pods are made.

    image: of jobs that name none. template: a part of a pod, over which theirs is laid (docs/howto/kubernetes.md).
    claim: PersistentVolumeClaim that holds the runs' folder ('CLAIM' or 'CLAIM/FOLDER'), mounted at the place that it
    has here; '' where pods don't see it. queue: of Volcano. home: what marks the objects of this scheduler.
    binds: pods have no gate, and wait for a scheduler of our name, which binds them; else kube-scheduler does.
    """

    namespace: str
    home: str
    runs: Path
    image: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)
    claim: str = ""
    queue: str = "default"
    kind: JobKind = VOLCANO
    binds: bool = False

    def path(self, group: str, plural: str, name: str = "") -> str:
        """Where objects of the namespace are, or the one of this name."""
        path = f"{group}/namespaces/{self.namespace}/{plural}"
        return f"{path}/{name}" if name else path


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is sent for an attempt. secret: the job's own variables, which may hold tokens; None: it has none. direct:
    its pods mount our program that starts a process for each GPU. others: Jobs of further tasks, which go with the
    first one. service: by which its pods reach each other; None: Volcano makes it, or there is nobody to reach."""

    job: dict[str, Any]
    secret: dict[str, Any] | None
    direct: bool
    others: tuple[dict[str, Any], ...] = ()
    service: dict[str, Any] | None = None


def direct_name() -> str:
    """The ConfigMap with direct.py. Another text has another name, as running pods keep theirs."""
    import hashlib

    return f"gpuloom-direct-{hashlib.sha256(Path(DIRECT).read_bytes()).hexdigest()[:10]}"


def manifest(
    specs: Sequence[RunSpec], nodes: Sequence[str], setup: Setup, resources: Sequence[str], *, name: str = ""
) -> Manifest:
    """The Job of an attempt, and what goes with it.

    Args:
        specs: its members, in the order of ranks. nodes: theirs. resources: the names under which these offer GPUs.
        name: of the Job, where it is that of an attempt before.

    Raises:
        InputError: it can't be run in pods; says why, and what would be right.
    """
    first = specs[0]
    attempt, counts = attempt_of(first.run), [len(spec.gpus) for spec in specs]
    if (image := first.container or setup.image) == "":
        raise InputError("it names no image to run in: submit it with --container IMAGE")
    for what in ("venv", "conda"):
        if place := getattr(first, what):
            raise InputError(f"{what} {place}: in Kubernetes a job has what its image has; leave --{what} out")
    if first.kernel_profile or first.sharing_class:
        raise InputError("--class and --kernel-profile share a GPU with another job, which pods can't: leave them out")
    name, in_place = name or name_of(attempt), first.sizes is not None and len(set(counts)) == 1
    named = [_named(spec, name, counts, setup.kind) for spec in specs]
    commands = [launched(spec, spec.env) for spec in named]
    shared, each = _split([_environment(spec, setup) for spec in named], in_place=in_place)
    words, of_words = _words(commands)
    values = [{**env, **of_word} for env, of_word in zip(each, of_words, strict=True)]
    names = sorted(values[0])
    own = {name: text for name, text in shared.items() if first.env.get(name) == text and name not in SAID}
    shared = {name: text for name, text in shared.items() if name not in own}
    env: list[dict[str, Any]] = [{"name": name, "value": text.replace("$", "$$")} for name, text in shared.items()]
    env += [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{VALUE}{name}']"}}}
        for name in names
    ]
    about = {
        "labels": {
            HOME: setup.home,
            RUN: attempt,
            "app.kubernetes.io/managed-by": "gpuloom",
            **({} if (number := run_name_of(attempt)) is None else {JOB: str(number.job)}),
        },
        "annotations": {
            NAME: first.env.get("GPULOOM_JOB_NAME", ""),
            MEMBERS: json.dumps([list(member) for member in zip(nodes, counts, strict=True)]),
            GRACE: f"{first.grace_s:g}",
            **({} if first.limit_s is None else {LIMIT: f"{first.limit_s:g}"}),
            **({HOLD: "true"} if first.hold else {}),
            **({IN_PLACE: "true"} if in_place else {}),
        },
    }
    direct = is_direct(first)
    tasks = []
    for task in tasks_of(counts):
        one = specs[task.ranks[0]]
        pod = _pod(one, image, words, env, setup, resources[task.ranks[0]], name, secret=bool(own), direct=direct)
        template = {"metadata": _merged(setup.template.get("metadata") or {}, about), "spec": pod}
        tasks.append((task, template))
    marks = [
        {RANK: str(rank), **{f"{VALUE}{name}": values[rank][name] for name in names}} for rank in range(len(specs))
    ]
    of_job = {VALUES: json.dumps(marks), **({VARIABLES: "true"} if own else {})}
    metadata = {"name": name, "namespace": setup.namespace, **_merged(about, {"annotations": of_job})}
    others: tuple[dict[str, Any], ...] = ()
    service = None
    if setup.kind is VOLCANO:
        job = _volcano_job(metadata, tasks, setup)
    else:
        (job, *rest), service = _indexed_jobs(metadata, tasks, alone=len(specs) == 1 and not in_place)
        others = tuple(rest)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": setup.namespace, "labels": about["labels"]},
        "type": "Opaque",
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in own.items()},
    }
    return Manifest(job, secret if own else None, direct, others, service)


_Tasks = Sequence[tuple[Task, dict[str, Any]]]
"""The tasks of an attempt, each with the template of its pods."""


def _volcano_job(metadata: Mapping[str, Any], tasks: _Tasks, setup: Setup) -> dict[str, Any]:
    return {
        "apiVersion": VOLCANO.api_version,
        "kind": "Job",
        "metadata": dict(metadata),
        "spec": {
            # gpuloom says where pods go; kube-scheduler binds them there.
            "schedulerName": SCHEDULER if setup.binds else "default-scheduler",
            "queue": setup.queue,
            "minAvailable": sum(len(task.ranks) for task, _ in tasks),
            "maxRetry": MAX_RETRY,
            "plugins": {"env": [], "svc": []},
            # Who fails is told of, and gpuloom decides.
            "policies": [],
            "tasks": [
                {
                    "name": task.name,
                    "replicas": len(task.ranks),
                    "minAvailable": len(task.ranks),
                    "maxRetry": MAX_RETRY,
                    "template": template,
                }
                for task, template in tasks
            ],
        },
    }


def _indexed_jobs(
    metadata: Mapping[str, Any], tasks: _Tasks, *, alone: bool
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """A Job for each task, and the Service by whose name their pods reach each other. The first Job is made suspended
    until all others are there. alone: it is the only member, and stays so."""
    name, found = metadata["name"], list[dict[str, Any]]()
    for number, (task, template) in enumerate(tasks):
        own, of_pods = job_of_task(name, number, task), {OWN_TASK: task.name}
        spec = template["spec"]
        if not alone:
            of_pods[SERVICE] = name
            spec = {**spec, "subdomain": name}
        about = {**metadata, "name": own}
        if number:
            marks = {key: text for key, text in metadata["annotations"].items() if key != VALUES}
            about["annotations"] = {**marks, PART_OF: name}
        found.append(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": about,
                "spec": {
                    "completionMode": "Indexed",
                    "completions": len(task.ranks),
                    "parallelism": len(task.ranks),
                    "backoffLimit": MAX_RETRY,
                    # Not beside one that is being ended: it still has its GPUs.
                    "podReplacementPolicy": "Failed",
                    **({"suspend": True} if not alone and not number else {}),
                    "template": {"metadata": _merged(template["metadata"], {"labels": of_pods}), "spec": spec},
                },
            }
        )
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": metadata["namespace"], "labels": metadata["labels"]},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {SERVICE: name}},
    }
    return found, None if alone else service


def taken_over(
    job: Mapping[str, Any], before: str, attempt: str, marks: Mapping[str, str], replicas: int, kind: JobKind
) -> list[dict[str, Any]]:
    """The JSON patch by which the Job of the attempt before becomes that of the next one, at its size. It can't be sent
    twice. job: as it is. marks: annotations of the Job that would be made for the next one."""
    label = f"/metadata/labels/{_escaped(RUN)}"
    found: list[dict[str, Any]] = [{"op": "test", "path": label, "value": before}]
    task = sized_task(job["metadata"].get("annotations") or {})
    found += scaled(replicas_in(job["spec"], task), replicas, kind, task, spare_in(job["spec"], task))
    found.append({"op": "replace", "path": label, "value": attempt})
    for name in (MEMBERS, VALUES, HOLD, LIMIT, NAME):
        path = f"/metadata/annotations/{_escaped(name)}"
        if (text := marks.get(name)) is not None:
            found.append({"op": "add", "path": path, "value": text})
        elif name in job["metadata"]["annotations"]:
            found.append({"op": "remove", "path": path})
    return found


def adopted(
    job: Mapping[str, Any], home: str, attempt: str, marks: Mapping[str, str], replicas: int, kind: JobKind, task: int
) -> list[dict[str, Any]]:
    """The JSON patch by which a Job that somebody else has made becomes that of an attempt, at its size; of two
    schedulers one takes it. job: as it is. marks: annotations. task: number of the one whose size is changed."""
    marks = {**marks, **({SIZED_TASK: str(task)} if task else {})}
    about, run = job["metadata"], run_name_of(attempt)
    labels = {HOME: home, RUN: attempt, **({} if run is None else {JOB: str(run.job)})}
    found = [{"op": "test", "path": "/metadata/resourceVersion", "value": about["resourceVersion"]}]
    found += scaled(replicas_in(job["spec"], task), replicas, kind, task, spare_in(job["spec"], task))
    for name, texts in (("labels", labels), ("annotations", marks)):
        path = f"/metadata/{name}"
        if not about.get(name):
            found.append({"op": "add", "path": path, "value": dict(texts)})
            continue
        found += [{"op": "add", "path": f"{path}/{_escaped(key)}", "value": text} for key, text in texts.items()]
    return found


def scaled(replicas: int, to: int, kind: JobKind, number: int = 0, spare: int = 0) -> list[dict[str, Any]]:
    """The JSON patch that changes the number of pods of a Job's task: the last ones are ended first. number: of the
    task. spare: how many more pods the Job needs at least."""
    if kind is not VOLCANO:  # both in one patch, or it is refused
        return [
            {"op": "test", "path": "/spec/parallelism", "value": replicas},
            {"op": "replace", "path": "/spec/completions", "value": to},
            {"op": "replace", "path": "/spec/parallelism", "value": to},
        ]
    task = f"/spec/tasks/{number}"
    return [
        {"op": "test", "path": f"{task}/replicas", "value": replicas},
        {"op": "replace", "path": f"{task}/replicas", "value": to},
        {"op": "add", "path": f"{task}/minAvailable", "value": to},
        {"op": "add", "path": "/spec/minAvailable", "value": max(to + spare, 1)},
    ]


def pinned(pod: Mapping[str, Any], node: str, values: Mapping[str, str], attempt: str = "") -> list[dict[str, Any]]:
    """The JSON patch that lets a gated pod go, to this node alone. With the gate gone it can't be sent twice. attempt:
    of which it is, where its Job has been that of another one.

    A pin is final, and terms that a template brought may only become narrower: each of them gets the node.
    """
    about, spec = pod["metadata"], pod["spec"]
    gates = [str(one.get("name")) for one in spec.get("schedulingGates") or ()]
    at = gates.index(GATE)
    found: list[dict[str, Any]] = [{"op": "test", "path": f"/spec/schedulingGates/{at}/name", "value": GATE}]
    if about.get("finalizers"):
        found.append({"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER})
    else:
        found.append({"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]})
    found += [
        {"op": "add", "path": f"/metadata/annotations/{_escaped(name)}", "value": text} for name, text in values.items()
    ]
    if attempt and about["labels"].get(RUN) != attempt:
        found.append({"op": "add", "path": f"/metadata/labels/{_escaped(RUN)}", "value": attempt})
    field_of = {"key": "metadata.name", "operator": "In", "values": [node]}
    found += _pin(spec.get("affinity"), field_of)
    found.append({"op": "remove", "path": f"/spec/schedulingGates/{at}"})
    return found


def _pin(affinity: Mapping[str, Any] | None, field_of: Mapping[str, Any]) -> list[dict[str, Any]]:
    required, path = "requiredDuringSchedulingIgnoredDuringExecution", "/spec/affinity"
    node: dict[str, Any] = {required: {"nodeSelectorTerms": [{"matchFields": [field_of]}]}}
    if affinity is None:
        return [{"op": "add", "path": path, "value": {"nodeAffinity": node}}]
    if (before := affinity.get("nodeAffinity")) is None:
        return [{"op": "add", "path": f"{path}/nodeAffinity", "value": node}]
    path += f"/nodeAffinity/{required}"
    if not (terms := (before.get(required) or {}).get("nodeSelectorTerms")):
        return [{"op": "add", "path": path, "value": node[required]}]
    found = []
    for number, term in enumerate(terms):
        place = f"{path}/nodeSelectorTerms/{number}/matchFields"
        has = bool(term.get("matchFields"))
        found.append({"op": "add", "path": f"{place}/-" if has else place, "value": field_of if has else [field_of]})
    return found


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _named(spec: RunSpec, name: str, counts: Sequence[int], kind: JobKind) -> RunSpec:
    """With the names at which pods reach each other in place of addresses, and a Python that the image has. name: of
    their Job."""
    peers = [replace(one, address=host_of(name, counts, rank, kind)) for rank, one in enumerate(spec.peers)]
    return replace(spec, peers=tuple(peers), container=spec.container or "image")


def _environment(spec: RunSpec, setup: Setup) -> dict[str, str]:
    """What a member finds in its environment (docs/reference/executor.md), as far as it makes sense in a pod."""
    name = run_name_of(spec.run)
    own = {name: text for name, text in spec.env.items() if name not in OUTSIDE}
    found = {"PYTHONUNBUFFERED": "1", **own, **told(spec), inject.SETTING: inject.OFF}
    found |= {
        "GPULOOM_JOB_ID": spec.run if name is None else str(name.job),
        "GPULOOM_ATTEMPT": "1" if name is None else str(name.attempt),
        "GPULOOM_RUN": f"{setup.home}:{spec.run}",
        "GPULOOM_GPUS": str(len(spec.gpus)),
        "GPULOOM_RESUME": "1" if spec.resumes else "0",
        "GPULOOM_GRACE_S": f"{spec.grace_s:g}",
    }
    if spec.kind is DeviceKind.CPU:
        found["CUDA_VISIBLE_DEVICES"] = ""
    if setup.claim:
        directory = run_directory(setup.runs, spec.run)
        found |= {
            "GPULOOM_RUN_DIR": str(directory),
            "GPULOOM_NOTICE_FILE": str(directory / NOTICE_FILE),
            "GPULOOM_PROGRESS_FILE": str(directory / PROGRESS_FILE),
        }
    if bad := [name for name in found if not _VARIABLE.fullmatch(name)]:
        raise InputError(f"variable {bad[0]!r}: pods take letters, digits and _ in names of variables")
    return found


def _split(environments: Sequence[Mapping[str, str]], *, in_place: bool) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What is the same for all members, and for each of them the rest. in_place: members of later attempts are made of
    the same template, so what we say of an attempt counts as different."""
    names = dict.fromkeys(name for env in environments for name in env)
    same = {name for name in names if len({env.get(name) for env in environments}) == 1}
    if in_place:
        same = {name for name in same if not name.startswith("GPULOOM_")}
    first = environments[0]
    rest = [{name: env.get(name, "") for name in names if name not in same} for env in environments]
    return {name: first[name] for name in names if name in same}, rest


def _words(commands: Sequence[Sequence[str]]) -> tuple[list[str], list[dict[str, str]]]:
    """The command for all, and what stands in each member's for the words that differ."""
    rest: list[dict[str, str]] = [{} for _ in commands]
    found = []
    for number, words in enumerate(zip(*commands, strict=True)):
        if len(set(words)) == 1:
            found.append(words[0].replace("$", "$$"))
            continue
        name = f"{_WORD}{number}"
        found.append(f"$({name})")
        for own, word in zip(rest, words, strict=True):
            own[name] = word
    return found, rest


def _pod(
    spec: RunSpec,
    image: str,
    words: Sequence[str],
    env: Sequence[Mapping[str, Any]],
    setup: Setup,
    resource: str,
    name: str,
    *,
    secret: bool,
    direct: bool,
) -> dict[str, Any]:
    template = deepcopy(dict(setup.template.get("spec") or {}))
    given: list[dict[str, Any]] = template.pop("containers", None) or [{}]
    containers = [dict(one) for one in given]
    main = next((one for one in containers if one.get("name") in (CONTAINER, None)), None)
    if main is None:
        main = {}
        containers.insert(0, main)
    asks = dict(main.get("resources") or {})
    limits, requests = dict(asks.get("limits") or {}), dict(asks.get("requests") or {})
    if spec.kind is DeviceKind.GPU and spec.gpus:
        # With a limit alone Volcano counts no GPUs.
        limits[resource] = requests[resource] = str(len(spec.gpus))
    if spec.memory_mib is not None:
        limits["memory"] = requests["memory"] = f"{spec.memory_mib}Mi"
    if spec.cpus is not None:
        requests["cpu"] = f"{round(spec.cpus * 1000)}m"
    main |= {
        "name": CONTAINER,
        "image": image,
        "command": list(words),
        "resources": {"limits": limits, "requests": requests},
    }
    if secret:
        source = {"secretRef": {"name": name}}
        main["envFrom"] = [*(main.get("envFrom") or ()), source]
    main["env"] = [*(main.get("env") or ()), *env]
    mounts, volumes = list(main.get("volumeMounts") or ()), list(template.get("volumes") or ())
    if setup.claim:
        claim, _, folder = setup.claim.partition("/")
        volumes.append({"name": "gpuloom-runs", "persistentVolumeClaim": {"claimName": claim}})
        mount = {"name": "gpuloom-runs", "mountPath": str(setup.runs)}
        mounts.append({**mount, "subPath": folder} if folder else mount)
    if direct:
        volumes.append({"name": "gpuloom-direct", "configMap": {"name": direct_name()}})
        mounts.append({"name": "gpuloom-direct", "mountPath": DIRECT, "subPath": "direct.py", "readOnly": True})
    if mounts:
        main["volumeMounts"] = mounts
    if _mounted(spec.workdir, mounts):
        main["workingDir"] = spec.workdir
    tolerations = [*(template.get("tolerations") or ()), {"key": resource, "operator": "Exists"}]
    gates = [*(template.pop("schedulingGates", None) or ()), *([] if setup.binds else [{"name": GATE}])]
    return {
        # The program is not process 1, which no signal ends that it does not ask for.
        "shareProcessNamespace": True,
        "enableServiceLinks": False,
        **template,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(round(spec.grace_s), 1),
        **({"schedulerName": SCHEDULER} if setup.binds else {}),
        **({"schedulingGates": gates} if gates else {}),
        "tolerations": tolerations,
        **({"volumes": volumes} if volumes else {}),
        "containers": containers,
    }


def _mounted(workdir: str, mounts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a folder of whoever submitted is one that pods see; else the image's own counts."""
    folder = PurePosixPath(workdir or "/")
    return bool(workdir) and any(
        folder.is_relative_to(place) for one in mounts if (place := str(one.get("mountPath") or "")).startswith("/")
    )


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Labels and annotations of both; of the second where both have one."""
    return {name: {**(one.get(name) or {}), **(other.get(name) or {})} for name in ("labels", "annotations")}
