"""The WebSocket of nodes beside the deadlines of requests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from api_client import served
from fake_service import FakeService
from gpuloom.fleet.messages import PATH
from gpuloom.server import connections
from until import until


class Frames:
    """Takes whatever comes, from anybody."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.closes: list[Any] = []

    def why_not(self, shown: str) -> str:
        return ""

    def opened(self, connection: Any, shown: str) -> None:
        connection.send("welcome")

    def received(self, connection: Any, text: str) -> None:
        self.came.append(text)

    def ending(self) -> None:
        pass

    def closed(self, connection: Any) -> None:
        self.closes.append(connection)


def test_a_link_is_not_ended_by_the_deadlines_of_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADER_S", "BODY_S", "STRANGER_S"):
        monkeypatch.setattr(connections, name, 0.2)
    frames = Frames()
    with served(FakeService(tmp_path), nodes=frames) as place:
        with connect(f"ws://{place.host}:{place.port}{PATH}", additional_headers={"Authorization": "Bearer x"}) as link:
            assert link.recv(timeout=10.0) == "welcome"
            link.send("first")
            time.sleep(0.8)
            link.send("second")
            until(lambda: frames.came == ["first", "second"], "both frames to come over the one link")
            assert not frames.closes
        until(lambda: len(frames.closes) == 1, "its end to be told")
