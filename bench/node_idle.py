"""What an idle node costs: CPU time and memory of a joined node process, with its runner and its guards.

Starts a head and a node on loopback, waits until both are idle, and measures for SECONDS (default 60). CPU: user and
system time of all processes of the node's home, share of one core. Memory: their proportional set sizes (PSS: what is
shared with others counts in part) and resident sizes. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PROGRAM = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]


def processes(home: Path) -> dict[int, str]:
    """All processes that have this folder on their command lines."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                line = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(home) in line:
                found[int(entry)] = line
    return found


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int) -> tuple[float, float]:
    """(PSS, RSS)."""
    sizes = dict.fromkeys(("Pss:", "Rss:"), 0)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        words = line.split()
        if words[0] in sizes:
            sizes[words[0]] = int(words[1])
    return sizes["Pss:"] / 1024, sizes["Rss:"] / 1024


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuloom-idle-") as folder:
        head, node = Path(folder, "head"), Path(folder, "node")

        def gpuloom(*words: str, home: Path) -> str:
            command = [*PROGRAM, *words, "--home", str(home)]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        gpuloom("up", "--slots", "1", "--port", "0", "--detach", home=head)
        made = json.loads(gpuloom("node", "token", "--json", home=head))
        words = (made["url"], "--token", made["token"], "--name", "idle", "--slots", "8", "--detach")
        gpuloom("node", "join", *words, home=node)
        try:
            time.sleep(15.0)  # what is done at the start is done
            pids = processes(node)
            before, began = {pid: cpu_s(pid) for pid in pids}, time.monotonic()
            time.sleep(seconds)
            span = time.monotonic() - began
            used = {pid: cpu_s(pid) - before[pid] for pid in pids}
            sizes = {pid: memory_mib(pid) for pid in pids}
            each = [
                {
                    "what": next(
                        (word for word in ("runner", "guard", "join") if word in line.rpartition("/")[0] + line), "?"
                    ),
                    "cpu_percent": round(100 * used[pid] / span, 3),
                    "pss_mib": round(sizes[pid][0], 1),
                    "rss_mib": round(sizes[pid][1], 1),
                }
                for pid, line in pids.items()
            ]
            print(
                json.dumps(
                    {
                        "seconds": round(span, 1),
                        "cpu_percent": round(100 * sum(used.values()) / span, 3),
                        "pss_mib": round(sum(size[0] for size in sizes.values()), 1),
                        "rss_mib": round(sum(size[1] for size in sizes.values()), 1),
                        "processes": each,
                    }
                )
            )
        finally:
            gpuloom("node", "leave", "--now", home=node)
            gpuloom("down", home=head)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
