"""Chaos on a head and three nodes that joined it, each behind a link of its own, all real processes on loopback.

Pretended is a reboot: all processes of a node die at one moment, and what is started there afterwards sees another
boot id, in a mount namespace of its own. The kernel's clocks go on, and what was written is on disk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import ClassVar

from chaos_base import PATIENCE_S, SLOTS, Chaos, pid_of
from real_node import RealNode
from until import until

NODES, LEASE_S = ("n1", "n2", "n3"), 6.0
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class JoinedChaos(Chaos):
    """See the module."""

    FAULTS: ClassVar[Mapping[str, int]] = {
        "head": 10,
        "node": 12,
        "runner": 10,
        "guard": 6,
        "guards": 4,
        "node+runner+guard": 8,
        "together": 10,
        "standstill": 8,
        "reboot": 6,
        "job": 12,
        "link cut": 18,
        "link silent": 12,
        "link slow": 8,
        "second head": 1,
        "second node": 2,
        "disk": 6,
        "disk of the head": 4,
    }

    def __init__(self, folder: Path, seed: int, jobs: int, stack: ExitStack) -> None:
        super().__init__(folder, seed, jobs, stack, ("head", *NODES))
        self._up("--no-local")
        self.nodes = {name: RealNode(self.home, folder, name=name, slots=SLOTS) for name in NODES}
        self.reboots = _own_boot_ids()
        for node in self.nodes.values():
            stack.callback(node.close)
            url = f"http://127.0.0.1:{node.link.port}"
            words = ("--name", node.name, "--slots", str(SLOTS), "--lease", f"{LEASE_S:g}s")
            before = self._booted(node.name) if self.reboots else ()
            self._process(node.name, "node", "join", url, *words, token=node.token, before=before)
            self.processes["head"].argv[self.processes["head"].argv.index("--port") + 1] = str(node.link.to)

    def _booted(self, name: str) -> tuple[str, ...]:
        """What runs a program where the machine's boot id is the node's own."""
        file = self.folder / f"{name}.boot"
        file.write_text(f"{uuid.uuid4()}\n")
        return (*NAMESPACE, f'mount --bind "$0" {BOOT_ID} && exec "$@"', str(file))

    def _begin(self) -> None:
        for name in NODES:
            self.processes[name].start()
        until(self._all_up, "all nodes are up", PATIENCE_S)

    def _do(self, kind: str) -> bool:
        node = self.rng.choice(NODES)
        home = self.folder / node
        match kind:
            case "node":
                return self._kill(node)
            case "runner" | "guard":
                return self._kill_of(home, kind)
            case "guards":
                return self._kill_of(home, "guard", "standby")
            case "node+runner+guard":
                return node not in self.hurt and self._kill_of(home, "runner", "guard") | self._kill(node)
            case "together":
                return self._together(node)
            case "standstill":
                who = self.rng.choice(("head", node, "runner", "guard"))
                process = self.processes.get(who)
                if process is not None:
                    return self._stand_still(who, process.pid)
                return self._stand_still(f"{who} {node}", pid_of(home, who))
            case "reboot":
                return self._reboot(node)
            case "link cut" | "link silent" | "link slow":
                return self._break(node, kind)
            case "second node":
                return self._second(node)
            case "disk":
                return self._fill(node)
        return super()._do(kind)

    def _break(self, node: str, how: str) -> bool:
        """Its link, for a while."""
        rng, link = self.rng, self.nodes[node].link
        if f"link {node}" in self.hurt:
            return False
        if how == "link cut":
            link.cut()
        elif how == "link silent":
            link.silent = True
        else:
            link.rate, link.delay_s = rng.uniform(5_000, 50_000), rng.uniform(0.05, 0.5)
        self._for(rng.choice((rng.uniform(1, 5), rng.uniform(5, 15))), f"link {node}", link.mend)
        return True

    def _together(self, node: str) -> bool:
        """Some of head, node process, runner, guard and link, at one moment."""
        some = self.rng.sample(("head", "node", "runner", "guard", "link"), self.rng.randint(2, 5))
        done = self._break(node, "link cut") if "link" in some else False
        done |= self._kill_of(self.folder / node, *(one for one in some if one in ("runner", "guard")))
        for name in ("head", node):
            done |= self._kill(name) if (name if name == "head" else "node") in some else False
        return done

    def _reboot(self, node: str) -> bool:
        """Its machine is switched off, and on again."""
        if not self.reboots or node in self.hurt:
            return False
        seen: set[int] = set()
        while new := self.nodes[node].processes().keys() - seen:  # who stands still starts nothing any more
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            seen |= new
        for pid in self.nodes[node].processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes[node].wait()
        self._booted(node)
        self._for(self._while(), node, self.processes[node].start)
        return True

    def _leave(self) -> None:
        for name in NODES:
            self.processes[name].kill(signal.SIGTERM)
        for name in NODES:
            if code := self.processes[name].wait():
                self._wrong(f"{name} left with code {code}")

    def _all_up(self) -> bool:
        up = [node for node in self._nodes() if node["state"] == "up" and not node["cut"]]
        return len(up) == len(NODES)

    def _all_free(self) -> bool:
        gpus = [gpu for node in self._nodes() for gpu in node["gpus"]]
        fine = [gpu["state"] == "ok" and not gpu["jobs"] for gpu in gpus]
        return self._all_up() and len(fine) == len(NODES) * SLOTS and all(fine)


NAMESPACE = ("unshare", "--mount", "--propagation", "slave", "sh", "-c")


def _own_boot_ids() -> bool:
    """Whether a process may be shown another boot id here."""
    words = [*NAMESPACE, f"mount --bind /proc/version {BOOT_ID}"]
    with suppress(FileNotFoundError):
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    return False
