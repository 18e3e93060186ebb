"""The machines of a fake cluster: a scheduler that binds pods, kubelets that run them as processes of this machine, and
the collector of what nobody owns any more.

A pod's command runs here, without any isolation: its image does not matter, but that one called 'missing' can't be
pulled. What it prints is its log, its end is its container's, its limit of memory is watched.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fake_kubernetes.errors import Refused
from fake_kubernetes.indexed import IndexedJobs
from fake_kubernetes.kinds import BY_PATH, KINDS
from fake_kubernetes.server import FakeApi
from fake_kubernetes.store import Item, Store
from fake_kubernetes.volcano import Volcano

POD, NODE = BY_PATH["", "v1", "pods"], BY_PATH["", "v1", "nodes"]
SECRET = BY_PATH["", "v1", "secrets"]
GPU = "nvidia.com/gpu"
LOOK_S = 0.02
MARK = "FAKE_POD_UID"
_NAMED = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)|\$\$")


@dataclass
class _Process:
    """A container that runs. killed: why it was, if a kubelet did that."""

    child: subprocess.Popen[bytes]
    reader: threading.Thread
    memory: float | None
    killed: str = ""
    told: bool = False
    ends_s: float | None = None
    lines: list[tuple[float, bytes]] = field(default_factory=list)


class Machines:
    """All machines of a cluster, and what else works beside the API server. `with` it they work.

    admits: Volcano's scheduler runs, and lets in all. back_off_s: of Kubernetes' own Jobs (`IndexedJobs`). lost: names
    of nodes of which nothing is heard any more.
    """

    def __init__(self, api: FakeApi, *, admits: bool = True, back_off_s: float = 10.0) -> None:
        self.api, self.store = api, api.store
        self.volcano = Volcano(api.store, admits=admits)
        self.indexed = IndexedJobs(api.store, back_off_s=back_off_s)
        self.lost: set[str] = set()
        self.paused = False
        """Nobody binds, starts or ends anything for now."""
        self._processes: dict[str, _Process] = {}
        self._seen = -1
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="machines", daemon=True)
        api.logs = self._log

    def __enter__(self) -> Machines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for uid, one in self._processes.items():
            if not one.told:
                _kill(uid, signal.SIGKILL)
                one.child.wait()
                one.reader.join()

    def lose(self, node: str) -> None:
        """The machine dies, with all that runs there."""
        self.lost.add(node)
        for uid, one in list(self._processes.items()):
            pod = self._pod(uid)
            if not one.told and pod is not None and pod["spec"].get("nodeName") == node:
                one.told = True
                _kill(uid, signal.SIGKILL)
                one.child.wait()

    def find(self, node: str) -> None:
        """It is there again, after a start: its kubelet does not find what ran there."""
        self.lost.discard(node)
        for uid, one in list(self._processes.items()):
            pod = self._pod(uid)
            if one.told and pod is not None and pod["spec"].get("nodeName") == node and not _over(pod):
                self._ended(pod, 137, "ContainerStatusUnknown", "The container could not be located")

    def _run(self) -> None:
        while not self._end.wait(LOOK_S):
            if self.paused:
                continue
            version = self.store.version
            due_s = self.indexed.due_s
            if version != self._seen or (due_s is not None and self.store.now() >= due_s):
                self.volcano.look()
                self.indexed.look()
                collect(self.store)
                self._collect_pods()
                with self.store.changed:
                    pods = list(self.store.items[POD].values())
                self._bind(pods)
                for pod in pods:
                    self._start_or_end(pod)
                self._seen = version
            self._reap()

    # -- kube-scheduler -------------------------------------------------------------------------------------------

    def _bind(self, pods: list[Item]) -> None:
        with self.store.changed:
            nodes = list(self.store.items[NODE].values())
            used: dict[str, int] = {}
            for pod in pods:
                if (where := pod["spec"].get("nodeName")) and not _over(pod):
                    used[where] = used.get(where, 0) + gpus_of(pod)
            for pod in sorted(pods, key=lambda one: one["metadata"]["name"]):
                spec = pod["spec"]
                if spec.get("nodeName") or spec.get("schedulingGates") or _over(pod):
                    continue
                if spec.get("schedulerName", "default-scheduler") != "default-scheduler":
                    continue
                why = f"0/{len(nodes)} nodes are available"
                for node in nodes:
                    name = node["metadata"]["name"]
                    free = int(node["status"]["allocatable"].get(GPU, 0)) - used.get(name, 0)
                    if problem := _unfit(pod, node, free):
                        why += f", {name}: {problem}"
                        continue
                    used[name] = used.get(name, 0) + gpus_of(pod)
                    self._change(pod, spec={"nodeName": name}, condition=("True", "", ""))
                    break
                else:
                    self._change(pod, condition=("False", "Unschedulable", why))

    def _collect_pods(self) -> None:
        """Pods of nodes that are gone are taken away, after all."""
        with self.store.changed:
            nodes = {item["metadata"]["name"] for item in self.store.items[NODE].values()}
            gone = [
                one for one in self.store.items[POD].values() if one["spec"].get("nodeName", "") not in {"", *nodes}
            ]
        for pod in gone:
            if not _over(pod):
                self._change(pod, status={"phase": "Failed", "reason": "NodeLost", "message": "its node is gone"})
            if pod["metadata"].get("deletionGracePeriodSeconds") != 0:
                self._delete(pod)

    # -- kubelets -------------------------------------------------------------------------------------------------

    def _start_or_end(self, pod: Item) -> None:
        about, spec = pod["metadata"], pod["spec"]
        uid, node = about["uid"], spec.get("nodeName")
        if not node or node in self.lost:
            return
        one = self._processes.get(uid)
        if one is None and not _over(pod) and "deletionTimestamp" not in about:
            self._start(pod)
        elif one is None and "deletionTimestamp" in about and not _over(pod):
            self._ended(pod, 137, "ContainerStatusUnknown", "")
        elif one is not None and "deletionTimestamp" in about:
            until_s = time.monotonic() + int(about.get("deletionGracePeriodSeconds", 30))
            if one.ends_s is None:
                _signal_first(one, signal.SIGTERM)
            one.ends_s = until_s if one.ends_s is None else min(one.ends_s, until_s)
        if _over(pod) and "deletionTimestamp" in about and about.get("deletionGracePeriodSeconds"):
            self._delete(pod)

    def _start(self, pod: Item) -> None:
        about, spec = pod["metadata"], pod["spec"]
        main = spec["containers"][0]
        if "missing" in main["image"]:
            text = f'failed to pull image "{main["image"]}": not found'
            self._waits(pod, "ErrImagePull", text)
            return
        env = self._environment(pod, main)
        words = [_expanded(word, env) for word in (*(main.get("command") or ()), *(main.get("args") or ()))]
        folder = main.get("workingDir") or "/"
        path = env.get("PATH") or os.environ.get("PATH", os.defpath)
        program = shutil.which(os.path.join(folder, words[0]) if "/" in words[0] else words[0], path=path)
        if program is None or not os.path.isdir(folder):
            what = f'exec: "{words[0]}": executable file not found in $PATH' if program is None else f"chdir {folder}"
            self._processes[about["uid"]] = _Process(_nothing(), threading.Thread(), None, told=True)
            self._ended(pod, 128, "StartError", f"failed to create containerd task: {what}: unknown")
            return
        child = subprocess.Popen(
            words,
            executable=program,
            cwd=folder,
            env={"PATH": path, **env, MARK: about["uid"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        limit = ((main.get("resources") or {}).get("limits") or {}).get("memory")
        one = _Process(child, threading.Thread(), _bytes(limit) if limit else None)
        one.reader = threading.Thread(target=_read, args=(child, one.lines), daemon=True)
        one.reader.start()
        self._processes[about["uid"]] = one
        stamp = self.store.stamp()
        status = {
            "phase": "Running",
            "startTime": stamp,
            "containerStatuses": [{"name": main["name"], "state": {"running": {"startedAt": stamp}}}],
        }
        self._change(pod, status=status)

    def _reap(self) -> None:
        for uid, one in list(self._processes.items()):
            if one.told:
                continue
            if one.ends_s is not None and time.monotonic() >= one.ends_s:
                _kill(uid, signal.SIGKILL)
            if one.memory is not None and _memory(uid) > one.memory:
                one.killed = "OOMKilled"
                _kill(uid, signal.SIGKILL)
            if one.child.poll() is None:
                continue
            _end_all(uid)  # what it forked goes with its container
            one.reader.join()
            one.told = True
            code = one.child.returncode
            pod = self._pod(uid)
            if pod is not None and pod["spec"].get("nodeName") not in self.lost:
                self._ended(pod, 128 - code if code < 0 else code, one.killed, "")

    def _ended(self, pod: Item, code: int, reason: str, message: str) -> None:
        main, stamp = pod["spec"]["containers"][0], self.store.stamp()
        begun = (pod.get("status") or {}).get("startTime")
        how = {"exitCode": code, "reason": reason or ("Error" if code else "Completed"), "finishedAt": stamp}
        how |= {"startedAt": begun} if begun else {}
        how |= {"message": message} if message else {}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": main["name"], "state": {"terminated": how}}],
        }
        self._change(pod, status=status)
        if (there := self._pod(pod["metadata"]["uid"])) is not None and "deletionTimestamp" in there["metadata"]:
            self._delete(there)

    def _waits(self, pod: Item, reason: str, message: str) -> None:
        main = pod["spec"]["containers"][0]
        state = {"waiting": {"reason": reason, "message": message}}
        self._change(pod, status={"containerStatuses": [{"name": main["name"], "state": state}]})

    def _delete(self, pod: Item) -> None:
        about = pod["metadata"]
        try:
            self.store.delete(POD, about["namespace"], about["name"], {"gracePeriodSeconds": 0})
        except Refused:
            return

    def _pod(self, uid: str) -> Item | None:
        with self.store.changed:
            return next((pod for pod in self.store.items[POD].values() if pod["metadata"]["uid"] == uid), None)

    def _environment(self, pod: Item, main: Item) -> dict[str, str]:
        found: dict[str, str] = {}
        about = pod["metadata"]
        for one in main.get("envFrom") or ():
            secret = self.store.get(SECRET, about["namespace"], one["secretRef"]["name"])
            found |= {name: base64.b64decode(text).decode() for name, text in secret["data"].items()}
        for one in main.get("env") or ():
            if "value" in one:
                found[one["name"]] = _expanded(one["value"], found)
                continue
            field_path = one["valueFrom"]["fieldRef"]["fieldPath"]
            if (named := re.fullmatch(r"metadata\.annotations\['(.*)'\]", field_path)) is not None:
                found[one["name"]] = (about.get("annotations") or {}).get(named[1], "")
            else:
                found[one["name"]] = {"metadata.name": about["name"], "metadata.uid": about["uid"]}.get(field_path, "")
        return found

    def _change(
        self,
        pod: Item,
        *,
        spec: Mapping[str, Any] | None = None,
        status: Mapping[str, Any] | None = None,
        condition: tuple[str, str, str] | None = None,
    ) -> None:
        about = pod["metadata"]
        with self.store.changed:
            there = self.store.items[POD].get((about["namespace"], about["name"]))
            if there is None or there["metadata"]["uid"] != about["uid"]:
                return
            after = {**there, "metadata": dict(there["metadata"]), "spec": {**there["spec"], **(spec or {})}}
            after["status"] = {**(there.get("status") or {}), **(status or {})}
            if condition is not None:
                holds, reason, message = condition
                one = {"type": "PodScheduled", "status": holds, "lastTransitionTime": self.store.stamp()}
                one |= {"reason": reason, "message": message} if reason else {}
                before = [each for each in after["status"].get("conditions") or () if each["type"] == "PodScheduled"]
                if before and {**before[0], "lastTransitionTime": ""} == {**one, "lastTransitionTime": ""}:
                    return
                after["status"]["conditions"] = [one]
            if after != there:
                self.store._put(POD, there, after)

    def _log(self, uid: str) -> list[tuple[float, bytes]]:
        one = self._processes.get(uid)
        return [] if one is None else list(one.lines)


def collect(store: Store) -> None:
    """Delete what belonged to something that is gone."""
    with store.changed:
        uids = {item["metadata"]["uid"] for kind in KINDS for item in store.items[kind].values()}
        for kind in KINDS:
            for item in list(store.items[kind].values()):
                about = item["metadata"]
                owners = about.get("ownerReferences") or ()
                if owners and "deletionTimestamp" not in about and not any(one["uid"] in uids for one in owners):
                    store.delete(kind, about.get("namespace", ""), about["name"])


def gpus_of(pod: Item) -> int:
    return sum(
        int(((one.get("resources") or {}).get("requests") or {}).get(GPU, 0)) for one in pod["spec"]["containers"]
    )


def _unfit(pod: Item, node: Item, free: int) -> str:
    """Why it can't go there; ''."""
    spec, about = pod["spec"], node["metadata"]
    terms = (
        ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        or {}
    ).get("nodeSelectorTerms")
    if terms is not None and not any(_matches(term, about) for term in terms):
        return "didn't match Pod's node affinity/selector"
    if any((about.get("labels") or {}).get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return "didn't match Pod's node affinity/selector"
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    borne = {one.get("key") for one in spec.get("tolerations") or ()}
    if taints := [one for one in node["spec"].get("taints") or () if one["key"] not in borne]:
        return f"had untolerated taint {{{taints[0]['key']}}}"
    return f"Insufficient {GPU}" if gpus_of(pod) > free else ""


def _matches(term: Item, about: Item) -> bool:
    labels = {"kubernetes.io/hostname": about["name"], **(about.get("labels") or {})}
    fields = all(about["name"] in one["values"] for one in term.get("matchFields") or ())
    return fields and all(labels.get(one["key"]) in one.get("values", ()) for one in term.get("matchExpressions") or ())


def _over(pod: Item) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """With `$(NAME)` replaced where the name is known, as kubelets do."""
    return _NAMED.sub(lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text)


def _read(child: subprocess.Popen[bytes], lines: list[tuple[float, bytes]]) -> None:
    assert child.stdout is not None
    with child.stdout as out:
        for line in out:
            lines.append((time.time(), line))


def _nothing() -> subprocess.Popen[bytes]:
    child = subprocess.Popen(["true"])
    child.wait()
    return child


def _signal_first(one: _Process, number: int) -> None:
    if one.child.poll() is None:
        os.kill(one.child.pid, number)


def _marked(uid: str) -> list[int]:
    """Processes of a pod, whoever forked them."""
    found, wanted = [], f"{MARK}={uid}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                continue
    return found


def _kill(uid: str, number: int) -> None:
    for pid in _marked(uid):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _end_all(uid: str) -> None:
    """End the processes of a pod, and wait until they have: one that is being ended still is there for a moment."""
    while pids := _marked(uid):
        _kill(uid, signal.SIGKILL)
        for pid in pids:
            while not _dead(pid):
                time.sleep(0.001)


def _dead(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _memory(uid: str) -> float:
    pages = 0
    for pid in _marked(uid):
        try:
            with open(f"/proc/{pid}/statm") as file:
                pages += int(file.read().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def _bytes(text: str) -> float:
    found = re.fullmatch(r"(\d+)(Mi|Gi)?", text)
    assert found is not None, text
    return int(found[1]) * {None: 1, "Mi": 2**20, "Gi": 2**30}[found[2]]
