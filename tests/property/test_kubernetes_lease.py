"""Of several schedulers at most one may write at any time, whatever goes wrong between them and the API server."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_kubernetes.server import FakeApi, Fault, Request
from gpuloom.executors.kubernetes import lease as module
from gpuloom.executors.kubernetes.lease import Lease
from gpuloom.executors.port import ExecutorError
from gpuloom.kubernetes.api import connect
from tiers import examples

pytestmark = pytest.mark.slow
LASTS_S = 3.0
"""How long an example goes on."""
LOOK_S = 0.005
TOO_LONG_S = 0.05
"""A look at all of them that took longer than this says nothing: the machine was busy."""


class Contender(threading.Thread):
    """A scheduler that takes the Lease, holds it for a while, lets it go or falls silent, and begins anew."""

    def __init__(self, config: Path, number: int, over: threading.Event, seed: int) -> None:
        super().__init__(daemon=True)
        self.api, self.number, self.over = connect(config), number, over
        self.draw = random.Random(seed * 10 + number)
        self.lease: Lease | None = None
        self.silent: list[Lease] = []
        self.turns = self.taken = 0

    def run(self) -> None:
        while not self.over.is_set():
            self.turns += 1
            lease = Lease(self.api, "default", "0123456789ab", f"machine-{self.number}_{self.turns}")
            self.lease = lease
            try:
                lease.take(waits=self.draw.random() < 0.8)
            except ExecutorError:
                self.over.wait(0.05)
                continue
            self.taken += 1
            lost = threading.Event()
            if self.draw.random() < 0.3:  # it takes it, and is killed
                self.silent.append(lease)
                self.over.wait(max(lease._until_s - time.monotonic(), 0.0))
                continue
            lease.start(lambda why, lost=lost: lost.set())  # type: ignore[misc]
            until_s = time.monotonic() + self.draw.uniform(0.1, 1.0)
            while time.monotonic() < until_s and not lost.is_set() and not self.over.is_set():
                time.sleep(0.02)
            lease.close()


@given(st.integers(0, 10**6))
@settings(max_examples=examples(16))
def test_at_most_one_may_write(seed: int) -> None:
    draw, over = random.Random(seed), threading.Event()
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        for name, value in (("LASTS_S", 1), ("RENEWED_S", 0.2), ("MARGIN_S", 0.2), ("LOOK_S", 0.05)):
            patch.setattr(module, name, value)
        api = FakeApi()
        config = api.kubeconfig(Path(place) / "kubeconfig")
        contenders = [Contender(config, number, over, seed) for number in range(3)]
        for one in contenders:
            one.start()
        until_s, looks = time.monotonic() + LASTS_S, 0
        while time.monotonic() < until_s:
            if draw.random() < 0.05:
                api.faults[:] = [fault(draw)]
            begun_s = time.monotonic()
            acting = [one.lease.identity for one in contenders if one.lease is not None and one.lease.why_not == ""]
            if time.monotonic() - begun_s < TOO_LONG_S:
                looks += 1
                assert len(acting) <= 1, f"{acting} at once; seed {seed}"
            time.sleep(LOOK_S)
        over.set()
        api.faults.clear()
        for one in contenders:
            one.join(20.0)
            assert not one.is_alive(), f"contender {one.number} is stuck; seed {seed}"
            one.api.close()
        api.close()
        assert looks
        assert sum(one.taken for one in contenders) >= 2, f"nobody took it; seed {seed}"


def fault(draw: random.Random) -> Fault:
    def of_leases(request: Request) -> bool:
        return "/leases" in request.path and draw.random() < 0.5

    status = draw.choice((0, 0, 429, 500, 504))
    return Fault(of_leases, status, times=draw.randint(1, 6), done=draw.random() < 0.5)
