"""Which hosts a job has now, and how many GPUs each: one `host:gpus` a line, as Horovod's host discovery wants it.

    python discover_hosts.py HOSTS                       reach every host, and print the list
    python discover_hosts.py HOSTS --out LIST --watch    write the list anew whenever the hosts change, until ended
    python discover_hosts.py --print LIST                print what was written: for --host-discovery-script

HOSTS is a file with a name a line, which the platform keeps up to date (Volcano: /etc/volcano/worker.host). Each host
is reached by ssh, or by `--reach`, and asked for its GPUs. One that does not answer in time is left out, and asked
again later. The list is replaced by a rename, so that whoever reads it sees a whole one.

Horovod asks its discovery script once a second. So one process on the master watches, and the script prints its list:
nobody is reached more often than the hosts change. Standard library only, any Python from 3.8 on, and no other file of
gpuloom: it may be copied into an image by itself.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

REACH = "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o ConnectTimeout=5 {host}"
COUNT = "nvidia-smi -L"
MOST_AT_ONCE = 32
"""Hosts that are reached at the same time."""


class DiscoveryError(Exception):
    """The list can't be made: says why."""


def hosts_in(path: str) -> list[str]:
    """The names in a hosts file, each once, in its order. Raises DiscoveryError: it can't be read."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DiscoveryError(f"the hosts file {path} can't be read: {error}") from None
    words = (line.partition("#")[0].split() for line in lines)
    return list(dict.fromkeys(some[0] for some in words if some))


def count_in(text: str) -> int | None:
    """The GPUs that an answer tells: a number alone, or the lines of `nvidia-smi -L`; None: it is no answer."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    lines = text.splitlines()
    gpus = sum(line.startswith("GPU ") for line in lines)
    return gpus if gpus or not lines else None


def ask(host: str, reach: str, count: str, timeout_s: float) -> tuple[int | None, str]:
    """The GPUs of a host, or None and why it gave no answer. This machine is asked without `reach`."""
    own = host in ("localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn())
    words = ["sh", "-c", count] if own else [*(word.replace("{host}", host) for word in shlex.split(reach)), count]
    try:
        process = subprocess.Popen(  # noqa: S603 - what the user says reaches a host
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        return None, f"{words[0]} can't be run: {error.strerror}"
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, f"no answer within {timeout_s:g} s"
    found = count_in(out.decode(errors="replace")) if process.returncode == 0 else None
    if found is None:
        lines = err.decode(errors="replace").strip().splitlines() or out.decode(errors="replace").strip().splitlines()
        return None, f"{count!r} ended with {process.returncode}" + (f": {lines[-1][:200]}" if lines else "")
    return found, ""


def discovered(hosts: Sequence[str], reach: str, count: str, timeout_s: float) -> tuple[list[str], dict[str, str]]:
    """The lines of the list, in the order of the hosts, without those that have no GPU; and why others gave no
    answer."""
    found: dict[str, tuple[int | None, str]] = {}
    free = threading.Semaphore(MOST_AT_ONCE)

    def look(host: str) -> None:
        with free:
            found[host] = ask(host, reach, count, timeout_s)

    threads = [threading.Thread(target=look, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [f"{host}:{gpus}" for host in hosts for gpus in [found[host][0]] if gpus]
    return lines, {host: found[host][1] for host in hosts if found[host][0] is None}


def write_list(path: str, lines: Sequence[str]) -> None:
    """Replace the list. Raises DiscoveryError: it can't be written."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
            os.chmod(temporary, 0o644)  # others than its owner read it, too
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise DiscoveryError(f"the list {path} can't be written: {error}") from None


class Watch:
    """Keeps a list up to date. It is written anew when the hosts file has other names, and when a host answers that did
    not before."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.hosts: list[str] | None = None
        self.silent: dict[str, str] = {}
        self.again_s = 0.0
        self.said = ""

    def look(self, now_s: float) -> bool:
        """Whether hosts were asked. now_s: of a clock that does not go back."""
        try:
            hosts = hosts_in(self.given.hosts)
        except DiscoveryError as error:  # it may be mounted later; what is known stays
            self.say(str(error))
            return False
        if hosts == self.hosts and not (self.silent and now_s >= self.again_s):
            return False
        lines, silent = discovered(hosts, self.given.reach, self.given.count, self.given.timeout)
        write_list(self.given.out, lines)
        self.hosts, self.silent, self.again_s = hosts, silent, now_s + self.given.again
        left_out = "".join(f"; {host} is left out: {why}" for host, why in silent.items())
        self.say(f"{len(lines)} of {len(hosts)} hosts{left_out}")
        return True

    def say(self, text: str) -> None:
        """Each thing once."""
        if text != self.said:
            self.said = text
            print(f"discover_hosts: {text}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    found = argparse.ArgumentParser(description="Which hosts a job has now, and how many GPUs each: host:gpus a line.")
    found.add_argument("hosts", nargs="?", metavar="HOSTS", help="a file with the name of a host a line")
    found.add_argument("--out", metavar="LIST", help="write the list to this file instead of printing it")
    found.add_argument("--watch", action="store_true", help="go on, and write it anew whenever the hosts change")
    found.add_argument(
        "--print", dest="print_list", metavar="LIST", help="print a list that was written, and ask nobody"
    )
    found.add_argument("--reach", default=REACH, metavar="COMMAND", help=f"how a host is reached [{REACH}]")
    found.add_argument(
        "--count", default=COUNT, metavar="COMMAND", help=f"what is run there; may print the number alone [{COUNT}]"
    )
    found.add_argument("--timeout", type=float, default=15.0, metavar="SECONDS", help="for a host to answer [15]")
    found.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="between looks at HOSTS [1]")
    found.add_argument("--again", type=float, default=30.0, metavar="SECONDS", help="until silent hosts are asked [30]")
    return found


def main(words: Sequence[str] | None = None) -> None:
    """See the module."""
    line = parser()
    given = line.parse_args(words)
    if (given.hosts is None) == (given.print_list is None):
        line.error("give either HOSTS or --print LIST")
    if given.watch and not given.out:
        line.error("--watch needs --out LIST")
    try:
        if given.print_list is not None:
            with open(given.print_list, encoding="utf-8") as file:
                sys.stdout.write(file.read())
            return
        if given.watch:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            watch = Watch(given)
            while True:
                watch.look(time.monotonic())
                time.sleep(given.every)
        lines, silent = discovered(hosts_in(given.hosts), given.reach, given.count, given.timeout)
        for host, why in silent.items():
            print(f"discover_hosts: {host} is left out: {why}", file=sys.stderr)
        if given.out:
            write_list(given.out, lines)
        else:
            sys.stdout.writelines(f"{one}\n" for one in lines)
    except FileNotFoundError:
        sys.exit(f"discover_hosts: there is no list {given.print_list} yet: is the process with --watch running?")
    except DiscoveryError as error:
        sys.exit(f"discover_hosts: {error}")


if __name__ == "__main__":
    main()
