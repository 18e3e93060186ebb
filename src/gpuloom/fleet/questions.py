"""What a head may ask a node, and how the node answers. Each question is about its runs and their files."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from gpuloom.core.errors import GpuloomError
from gpuloom.executors.logs import NoLogError
from gpuloom.executors.node import NodePort
from gpuloom.fleet.codec import plain

CHUNK = 64 * 1024
"""Bytes of a log in one answer: what it takes on a slow link keeps heartbeats waiting."""

Answer = Callable[[NodePort, Mapping[str, Any]], Any]


def _read_log(node: NodePort, asked: Mapping[str, Any]) -> Any:
    """Of what is asked for the first CHUNK bytes, and the offset after them: the rest is asked for by that."""
    lines, most = asked["tail_lines"], int(asked["max_bytes"])
    data, after = node.files.read_log(asked["run"], asked["offset"], lines, min(most, CHUNK) if lines is None else most)
    return [base64.b64encode(data[:CHUNK]).decode(), after - max(len(data) - CHUNK, 0)]


ANSWERS: Mapping[str, Answer] = {
    "runs": lambda node, asked: [plain(status) for status in node.runs()],
    "read_log": _read_log,
    "log_mark": lambda node, asked: list(node.files.log_mark(asked["run"])),
    "progress": lambda node, asked: dict(node.files.progress(asked["run"])),
    "hooks": lambda node, asked: plain(node.files.hooks(asked["run"])),
    "noticed_s": lambda node, asked: node.files.noticed_s(asked["run"]),
    "checkpoint_s": lambda node, asked: node.files.checkpoint_s(asked["run"], asked["written"], asked["workdir"]),
    "exit_of": lambda node, asked: plain(node.files.exit_of(asked["run"], asked["pid"], asked["start_ticks"])),
}


def answered(node: NodePort, frame: Mapping[str, Any]) -> dict[str, Any]:
    """The frame that answers a question, whatever becomes of it."""
    try:
        answer = ANSWERS.get(frame["what"])
        if answer is None:
            return {"reply": frame["ask"], "error": f"no such question: {frame['what']!r}", "kind": "unknown"}
        return {"reply": frame["ask"], "data": answer(node, frame["with"])}
    except NoLogError as error:
        return {"reply": frame["ask"], "error": str(error), "kind": "no-log"}
    except GpuloomError as error:
        return {"reply": frame.get("ask"), "error": str(error), "kind": "failed"}
    except Exception as error:  # the head shall know, and the node goes on
        return {"reply": frame.get("ask"), "error": f"{type(error).__name__}: {error}", "kind": "failed"}
