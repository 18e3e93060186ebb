"""The port of a master's node at which the processes of an attempt meet.

It follows from the attempt's name, so that nobody has to remember it. Names that lead to a port which another attempt
on that node has are not given: the random part of the name is drawn again.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Collection

from gpuloom.core.book import Book
from gpuloom.core.job import Allocation
from gpuloom.core.run_name import RunName
from gpuloom.core.spec import Spec
from gpuloom.executors.recognise import launcher_for

FIRST_PORT, PORTS = 20_000, 7_000
"""20000 to 26999: above the ports of common services, and below those that systems give to outgoing connections
(Linux: from 32768 on, net.ipv4.ip_local_port_range) and that Kubernetes gives to services (from 30000 on)."""
IDENTITY_BYTES = 4
"""Of what makes the name of a run unlike that of any other with its number."""
MOST_DRAWS = 1_000


def port_of(run: str) -> int:
    """Of an attempt, by the name of its run."""
    return FIRST_PORT + zlib.crc32(run.encode()) % PORTS


def new_identity(job: int, attempt: int, in_use: Collection[int] = ()) -> str:
    """The random part of the name of an attempt's run. in_use: ports of others on the node of its master; where nearly
    all are, it may get one of them, and can't be started there."""
    for _ in range(MOST_DRAWS):
        found = secrets.token_hex(IDENTITY_BYTES)
        if not in_use or port_of(str(RunName(job, attempt, identity=found))) not in in_use:
            break
    return found


def identity_for(book: Book, job: int, allocation: Allocation) -> str:
    """The random part of the name of a job's next attempt, on these GPUs."""
    record = book.jobs[job]
    in_use: Collection[int] = ()
    if _meets(record.spec, allocation):
        in_use = {
            port_of(other.run)
            for other in book.attempts.values()
            if other.nodes[0] == allocation[0][0] and _meets(book.jobs[other.job].spec, other.allocation)
        }
    return new_identity(job, record.attempts + 1, in_use)


def _meets(spec: Spec, allocation: Allocation) -> bool:
    return len(allocation) > 1 or launcher_for(spec) is not None
