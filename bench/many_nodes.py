"""A thousand nodes on one head: what their heartbeats and samples cost it, and how soon a death is noticed.

    python bench/many_nodes.py [--nodes 1000] [--seconds 30] [--gpus 8] [--json]

A head is started as `gpuloom up --no-local` in a process of its own. This program plays the nodes: a real connection
each (WebSocket over HTTP on loopback), the frames that a node process sends (fleet/messages.py): greeting, its record,
a heartbeat every 3 s, a sample of all its GPUs every 5 s. No jobs run. Measured: CPU of the head while nothing happens;
then one node hangs up and one goes silent, and the time until `GET /v1/nodes` says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from websockets.asyncio.client import ClientConnection, connect

from gpuloom.agent.sample import GpuSample, NodeRates, Sample
from gpuloom.client import Client
from gpuloom.core.job import Gpu, NodeRecord, NodeSource
from gpuloom.executors.node import Capabilities
from gpuloom.fleet.codec import plain
from gpuloom.fleet.messages import PATH, VERSION, Hello, Joined, Sampled, data_of

BEAT_S, SAMPLE_S = 3.0, 5.0


class Played:
    """One node, as its process would speak."""

    def __init__(self, number: int, gpus: int, url: str, token: str) -> None:
        self.name, self.url, self.token = f"n{number}", url, token
        there = tuple(Gpu(index, f"{self.name}-{index}", "H200", 141_000) for index in range(gpus))
        self.record = NodeRecord(self.name, there, source=NodeSource.JOINED, address="127.0.0.1", cpus=64)
        self.offset = number / 1000.0
        self.joined = asyncio.Event()
        self.silent = False
        self.number = self.acked = 0
        self.socket: ClientConnection

    async def live(self) -> None:
        """Until the connection is closed."""
        where = self.url.replace("http", "ws", 1) + PATH
        async with connect(
            where, additional_headers={"Authorization": f"Bearer {self.token}"}, compression=None, ping_interval=None
        ) as self.socket:
            hello = Hello(VERSION, self.name, f"home-{self.name}", "p", "boot")
            await self._send({"hello": plain(hello)})
            welcome = json.loads(await self.socket.recv())
            assert "welcome" in welcome, welcome
            await self._message(Joined(self.record, (), Capabilities(), {}, "", fenced=False))
            told = asyncio.create_task(self._speak())
            try:
                async for text in self.socket:
                    frame = json.loads(text)
                    if "beaten" in frame:
                        self.joined.set()
                    if "n" in frame:
                        self.acked = frame["n"]
                    if "ask" in frame and not self.silent:
                        await self._send({"reply": frame["ask"], "data": []})
            finally:
                told.cancel()

    async def _speak(self) -> None:
        await asyncio.sleep(0.2)
        next_sample = time.monotonic() + SAMPLE_S * self.offset % SAMPLE_S
        while True:
            if not self.silent:
                await self._send({"beat": time.monotonic(), "ack": self.acked})
                if time.monotonic() >= next_sample:
                    next_sample += SAMPLE_S
                    await self._message(Sampled(self._sample(), {}))
            await asyncio.sleep(BEAT_S)

    def _sample(self) -> Sample:
        rates = NodeRates(12.5, 64_000.0, 512_000.0, 3.2, 900_000.0, 1.5, 2.5)
        gpus = tuple(GpuSample(gpu.index, gpu.uuid, 93.0, 120_000.0, 61.0, 540.0) for gpu in self.record.gpus)
        return Sample(time.time(), rates, gpus)

    async def _message(self, message: Any) -> None:
        self.number += 1
        await self._send({"n": self.number, "m": data_of(message), "ack": self.acked})

    async def _send(self, frame: dict[str, Any]) -> None:
        await self.socket.send(json.dumps(frame))


async def measure(head: psutil.Process, client: Client, played: list[Played], seconds: float) -> dict[str, float]:
    began = time.monotonic()
    tasks = []
    for node in played:
        tasks.append(asyncio.create_task(node.live()))
        await asyncio.sleep(0.002)
    await asyncio.gather(*(node.joined.wait() for node in played))
    found = {"all have joined after (s)": time.monotonic() - began}
    await asyncio.sleep(5.0)

    def used_s() -> float:
        times = head.cpu_times()
        return float(times.user + times.system)

    before, since = used_s(), time.monotonic()
    await asyncio.sleep(seconds)
    found["head, CPU (share of one core)"] = (used_s() - before) / (time.monotonic() - since)
    found["head, memory (MiB)"] = head.memory_info().rss / 2**20
    hung_up, silent = played[0], played[1]
    tasks[0].cancel()
    silent.silent = True
    since = time.monotonic()
    for node, what in ((hung_up, "a node that hangs up is noticed after (s)"), (silent, "a silent one after (s)")):
        while not next(view["cut"] for view in await asyncio.to_thread(client.nodes) if view["name"] == node.name):
            await asyncio.sleep(0.2)
        found[what] = time.monotonic() - since
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place, "home")
        gpuloom = [sys.executable, "-m", "gpuloom"]
        up = [*gpuloom, "up", "--home", str(home), "--port", "0", "--no-local"]
        head = subprocess.Popen(up, stdout=subprocess.DEVNULL)
        try:
            described = home / "server.json"
            while not described.exists():
                if head.poll() is not None:
                    raise SystemExit("the head has ended")
                time.sleep(0.1)
            url = json.loads(described.read_text())["url"]
            mint = [*gpuloom, "node", "token", "--home", str(home)]
            token = subprocess.run(mint, capture_output=True, text=True, check=True).stdout.split()[-1]
            played = [Played(number, given.gpus, url, token) for number in range(given.nodes)]
            with Client(home=home) as client:
                found = asyncio.run(measure(psutil.Process(head.pid), client, played, given.seconds))
        finally:
            head.terminate()
            head.wait(30.0)
    if given.json:
        print(json.dumps({"nodes": given.nodes, "gpus": given.nodes * given.gpus, **found}))
        return
    print(f"{given.nodes:,} nodes of {given.gpus} GPUs:")
    for what, value in found.items():
        print(f"  {what:46}{value:8.2f}")


if __name__ == "__main__":
    main()
