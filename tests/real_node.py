"""`gpuloom node join` as a process of its own, for a real head, over a link that a test can cut."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import forked
from cut_link import CutLink
from real_scheduler import Real, alive
from until import until


class RealNode:
    """A node with CPU slots. home: its home directory. link: between it and the head."""

    def __init__(
        self, head: Real, folder: Path, *, name: str = "n1", slots: int = 2, lease: str = "6s", model: str = "CPU"
    ) -> None:
        self.head, self.name, self.slots, self.lease, self.model = head, name, slots, lease, model
        self.home = folder / name
        self.token = self.head_says("token")["token"]
        url = urlsplit(json.loads((head.home / "server.json").read_text())["url"])
        self.scheme = url.scheme
        self.link = CutLink(int(url.port or 0))
        self.pid = 0

    def head_says(self, *arguments: str) -> Any:
        done = self.head.run("node", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`gpuloom node …` on its home."""
        known = {**os.environ, "GPULOOM_NODE_TOKEN": self.token, **env}
        return forked.run(["node", *arguments, "--home", str(self.home)], known, 120.0)

    def join(self, *options: str) -> None:
        """Start it, and wait until it has joined."""
        url = f"{self.scheme}://127.0.0.1:{self.link.port}"
        slots = ("--slots", str(self.slots), "--slot-model", self.model)
        words = ("--name", self.name, *slots, "--lease", self.lease, "--detach", *options)
        done = self.run("join", url, *words)
        assert done.returncode == 0, done.stderr
        self.pid = self.status()["pid"]
        until(lambda: self.seen()["state"] == "up", f"{self.name} is up")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return found

    def seen(self) -> dict[str, Any]:
        """As the head shows it."""
        found = [node for node in self.head.client.nodes() if node["name"] == self.name]
        return dict(found[0]) if found else {"state": "", "cut": ""}

    def kill(self) -> None:
        """SIGKILL to the node process."""
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not alive(self.pid), "the end of the node process")

    def processes(self) -> dict[int, str]:
        """All that it started: by their arguments or environment, with their command lines."""
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                try:
                    line = Path("/proc", entry, "cmdline").read_bytes()
                    if str(self.home).encode() in line + Path("/proc", entry, "environ").read_bytes():
                        found[int(entry)] = line.replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
        return found

    def close(self) -> None:
        """End it, and all that it started."""
        self.link.close()
        with suppress(FileNotFoundError):
            (self.home / "lease").unlink()  # guards that are killed begin anew where there is one
        for _ in range(3):
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
