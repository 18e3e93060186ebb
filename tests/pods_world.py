"""A fake cluster whose kubelets run pods as real processes, and a scheduler of it in a process of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

import forked
from fake_kubernetes.cluster import POD, Cluster
from fake_kubernetes.machines import Machines
from fake_kubernetes.server import FakeApi
from gpuloom.client import Client
from gpuloom.executors.kubernetes.kinds import VOLCANO, JobKind
from until import until


class World:
    """A cluster and a scheduler of it. kind: what jobs are made as; None: that is not said. back_off_s: of Kubernetes'
    own Jobs. child: the scheduler is a child of this process, whose exit code can be asked for."""

    def __init__(
        self, folder: Path, *, admits: bool = True, kind: JobKind | None = VOLCANO, back_off_s: float = 0.3
    ) -> None:
        self.folder, self.home, self.kind = folder, folder / "home", kind
        self.api = FakeApi()
        self.machines = Machines(self.api, admits=admits, back_off_s=back_off_s)
        self.cluster = Cluster(self.api)
        self.config = self.api.kubeconfig(folder / "kubeconfig")
        self.process: forked.Process | None = None
        self.child = False
        self.machines.__enter__()
        self.clients: list[Client] = []

    def up(self, *more: str) -> Client:
        words = ["up", "--executor", "kubernetes", "--kubeconfig", str(self.config), "--port", "0"]
        words += [] if self.kind is None else ["--job-kind", self.kind.word]
        words += ["--home", str(self.home), "--image", "here:1", *more]
        with (self.folder / "up.log").open("ab") as log:
            self.process = forked.begin(words, os.environ, self.folder, log.fileno(), child=self.child)
        until(lambda: self.pid() == self.process.pid, "it to be up")  # type: ignore[union-attr]
        self.clients.append(client := Client(home=self.home))
        return client

    def pid(self) -> int:
        """Of the scheduler that is up; 0: none is."""
        place = self.home / "server.json"
        try:
            return int(json.loads(place.read_text())["pid"])
        except FileNotFoundError:
            return 0

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate()
        self.process = None

    def items(self, kind: Any = POD) -> list[Any]:
        with self.api.store.changed:
            return list(self.api.store.items[kind].values())

    def close(self) -> None:
        for client in self.clients:
            client.close()
        if self.process is not None:
            self.process.terminate()
            self.process.communicate()
        self.machines.__exit__()
        self.api.close()
        assert asked(self.api) <= allowed(), "deploy/run-rbac.yaml gives all rights that are needed"


def with_torchrun(folder: Path, text: str, kind: JobKind = VOLCANO) -> World:
    """A world with a program `torchrun` in its folder, a shell script: an agent that members of elastic jobs run."""
    world, place = World(folder, kind=kind), folder / "torchrun"
    place.write_text(text)
    place.chmod(0o755)
    return world


def asked(api: FakeApi) -> set[tuple[bool, str, str, str]]:
    """(in a namespace, group, resource, verb) of all that was asked of the API server."""
    found = set()
    for method, address in api.requests:
        path, _, query = address.partition("?")
        parts = path.strip("/").split("/")
        group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
        if not rest:  # which kinds there are, anybody may ask
            continue
        within = rest[0] == "namespaces"
        kind, *names = rest[2:] if within else rest
        resource = "/".join([kind, *names[1:]])
        read = "get" if names else "watch" if "watch=1" in query else "list"
        verb = {"GET": read, "POST": "create", "PATCH": "patch", "DELETE": "delete"}[method]
        found.add((within, group, resource, verb))
    return found


def allowed() -> set[tuple[bool, str, str, str]]:
    place = Path(__file__).resolve().parents[1] / "deploy" / "run-rbac.yaml"
    return {
        (item["kind"] == "Role", group, resource, verb)
        for item in yaml.safe_load_all(place.read_text())
        for rule in item.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def phase(client: Client, job: int) -> str:
    return str(client.job(job)["state"])


def ended(client: Client, job: int) -> dict[str, Any]:
    until(lambda: phase(client, job) in ("finished", "failed", "cancelled", "timed_out"), f"job {job} to end", 60.0)
    return dict(client.job(job))


def submit(client: Client, *command: str, gpus: int = 1, **more: Any) -> int:
    return int(client.submit({"command": list(command), "gpus": gpus, **more})[0][0])
