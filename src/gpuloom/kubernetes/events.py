"""Events of objects, as `kubectl describe` shows them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpuloom.kubernetes.api import Api, ApiError

log = logging.getLogger("gpuloom.kubernetes")
MOST_MESSAGE = 1000
"""Kubernetes takes 1,024 characters."""


def say(api: Api, namespace: str, of: Mapping[str, Any], reason: str, message: str, *, warns: bool = False) -> None:
    """An Event of an object. What can't be said is left unsaid.

    Args:
        of: its apiVersion, kind, name and uid. reason: a word. warns: something is wrong.
    """
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    item = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{of['name']}.{time.time_ns():x}", "namespace": namespace},
        "involvedObject": {**of, "namespace": namespace},
        "type": "Warning" if warns else "Normal",
        "reason": reason,
        "message": message[:MOST_MESSAGE],
        "source": {"component": "gpuloom"},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
    try:
        api.create(f"/api/v1/namespaces/{namespace}/events", item)
    except (ApiError, OSError) as error:
        log.info("%s: %s: %s", of["name"], message, error)


def pod_reference(name: str, uid: str) -> Mapping[str, Any]:
    """What an Event says of a pod that it is about."""
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
