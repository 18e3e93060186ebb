"""A node process of its own, and a head that is nothing but a register of nodes: over a real WebSocket."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

import forked
from gpuloom.agent.health import Changes
from gpuloom.agent.sample import Sample
from gpuloom.core.job import NodeRecord
from gpuloom.executors import procs
from gpuloom.executors.node import NodePort
from gpuloom.executors.port import RunStatus
from gpuloom.fleet.joined import JoinedNode
from gpuloom.fleet.registry import Nodes
from gpuloom.fleet.token import Tokens
from until import until

NAME = "n1"


class _Wire:
    """A connection as the register has it."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket

    def send(self, text: str) -> None:
        with suppress(ConnectionClosed):
            self.socket.send(text)

    def close(self, why: str = "") -> None:
        threading.Thread(target=self.socket.close, daemon=True).start()


class _Told:
    """What the register tells a scheduler: here only who is there."""

    def __init__(self) -> None:
        self.nodes: dict[str, JoinedNode] = {}

    def joined(self, node: JoinedNode, record: NodeRecord, runs: Sequence[RunStatus]) -> None:
        self.nodes[record.name] = node

    def back(self, name: str) -> None: ...

    def sampled(self, name: str, sample: Sample, changes: Changes) -> None: ...

    def leaving(self, name: str, why: str) -> None: ...

    def cut(self, name: str, why: str) -> None: ...

    def stuck(self, name: str, why: str) -> None: ...

    def lost(self, name: str, why: str) -> None: ...

    def left(self, name: str) -> None: ...


class _Head:
    """Listens, at this port if it is not 0."""

    def __init__(self, folder: Path, tokens: Tokens, port: int) -> None:
        self.told = _Told()
        self.nodes = Nodes(folder / "nodes.json", tokens, self.told, reserved=["head"])
        self.nodes.start()
        self._server: Server = serve(self._serve, "127.0.0.1", port, max_size=1 << 25)
        self.port: int = self._server.socket.getsockname()[1]
        self._open: set[ServerConnection] = set()
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _serve(self, socket: ServerConnection) -> None:
        self._open.add(socket)
        wire = _Wire(socket)
        request: Any = socket.request
        self.nodes.opened(wire, request.headers.get("Authorization", "").partition(" ")[2])
        with suppress(ConnectionClosed):
            for text in socket:
                self.nodes.received(wire, str(text))
        self.nodes.closed(wire)
        self._open.discard(socket)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        for socket in list(self._open):
            with suppress(ConnectionClosed, OSError):
                socket.close()
        self.nodes.close()


class JoinedTarget:
    """For the contract of nodes: `connect` is a head that was started anew."""

    name = NAME

    pods = False

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder / "head", folder / "node"
        self.folder.mkdir(parents=True)
        self.tokens = Tokens(self.folder / "tokens.json")
        self.token = self.tokens.mint().shown
        self.head: _Head | None = None

    def connect(self) -> NodePort:
        first, port = self.head is None, 0
        if self.head is not None:
            port = self.head.port
            self.head.close()
        head = self.head = _Head(self.folder, self.tokens, port)
        if first:
            self.begin(f"http://127.0.0.1:{head.port}")
        found: NodePort = until(lambda: head.told.nodes.get(self.name), "the node to join")
        return found

    def begin(self, url: str) -> None:
        """Start the node process, which joins the head there."""
        words = ["node", "join", url, "--name", NAME, "--slots", "2", "--detach", "--home", str(self.home)]
        done = forked.run(words, {**os.environ, "GPULOOM_NODE_TOKEN": self.token}, 120.0)
        assert done.returncode == 0, done.stderr

    @property
    def runner(self) -> int:
        """Its runner's process."""
        # A run that is held has the same words: it is the runner's child.
        found = {pid for pid, words in self._processes() if b"runner/main.py" in words}
        (runner,) = [pid for pid in found if (entry := procs.process(pid)) is None or entry.ppid not in found]
        return runner

    def close(self) -> None:
        """End all that runs for it."""
        with suppress(FileNotFoundError):
            (self.home / "lease").unlink()  # guards that are killed begin anew where there is one
        for _ in range(100):
            found = list(self._processes())
            for pid, _ in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                break
        if self.head is not None:
            self.head.close()

    def _processes(self) -> list[tuple[int, bytes]]:
        """Living processes with its home among their words."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                with suppress(OSError):
                    words = Path("/proc", entry, "cmdline").read_bytes()
                    if str(self.home).encode() in words:
                        found.append((int(entry), words))
        return found
