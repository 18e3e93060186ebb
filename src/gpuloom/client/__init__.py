"""The Python client: `from gpuloom.client import Client`.

May import: everything but cli, server and report.
"""

from __future__ import annotations

from gpuloom.client.client import ENDED, Client
from gpuloom.client.errors import (
    AccessError,
    ClientError,
    ConflictError,
    ConnectionLostError,
    ImpossibleError,
    NoSchedulerError,
    NotFoundError,
    RequestError,
    ServerError,
    WaitTimeoutError,
)
from gpuloom.client.home import home_directory
from gpuloom.client.logs import LogPart

__all__ = [
    "ENDED",
    "AccessError",
    "Client",
    "ClientError",
    "ConflictError",
    "ConnectionLostError",
    "ImpossibleError",
    "LogPart",
    "NoSchedulerError",
    "NotFoundError",
    "RequestError",
    "ServerError",
    "WaitTimeoutError",
    "home_directory",
]
