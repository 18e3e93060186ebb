"""Runs a command once for each GPU of a member, with the environment by which the processes find each other.

    python -I -S direct.py --processes N --first R --world W --node K --nodes M --run NAME [OPTIONS] -- COMMAND...

Started by the node, also inside containers: it is of the standard library alone, and of any Python from 3.8 on. The
names of the variables:

- torch (also Lightning, Accelerate): those of torchrun (pytorch.org/docs/stable/elastic/run.html, "Environment
  Variables"). For JAX what `jax.distributed.initialize` asks for.
- horovod: what horovodrun gives its processes (horovod/runner/gloo_run.py), and its rendezvous, which is served here.
- tensorflow: TF_CONFIG (tensorflow.org/guide/distributed_training, "TF_CONFIG"), for parameter servers too.

Of several PyTorch processes with gpuloom's hooks the first imports PyTorch and forks the others, where it can.

Each process is in a session of its own, so that a signal reaches it once: it comes here, and is passed on. When one
fails, the others are ended, and its exit code (or the signal that killed it) is the result; which one it was is left
in a file (`failed.json`). Of an elastic job the others are given notice first: it goes on with them. After a notice
(SIGTERM) all are waited for, and the result is that of the lowest rank here. With parameter servers the chief decides:
they and the workers are there for it, so they get a notice when it has ended, and where it is not, after half the
grace.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""By this Python, as by every one; the command is to have them as a shell would give them to it."""
GRACE_S = 30.0
"""Between SIGTERM and SIGKILL for those that are left when another has failed, as in torchrun; or less, if the job's
own grace is."""
CANT_RUN = 127
TORCH, HOROVOD, TENSORFLOW = "torch", "horovod", "tensorflow"
FIRST_MORE_PORT, MORE_PORTS, PORTS_EACH = 27_000, 5_000, 16
"""Of further processes on a node that listen: 27000 to 31999, above the port at which processes of a job meet."""
FORKS = "GPULOOM_FORKS"
"""Of the first process: the socket on which it is asked to fork the others once it has imported PyTorch
(_gpuloom_hooks/forking.py). "off", set by the user: they are all started alike."""
HEARD_S = 10.0
"""Who has not said by then that it will is not waited for."""
NO_FORKS = ("GPULOOM_SHARE_DIR", "LD_PRELOAD")
"""Variables of what has a state of its own in a process before its script begins."""
PLAIN_FLAGS = ("-u", "-B", "-O", "-OO")
"""Of Python: with others hooks may not be there."""
LONGEST_SCRIPT = 1 << 20
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER."""
FAILED_FILE = "failed.json"
"""Beside the notice file: {rank, others_code}, what executors/port.py: RunExit has of it."""


class Asked:
    """The options. Of the members, in the order of ranks: counts, processes of each; addresses, of their machines.

    kind: of the variables. first: rank of the first process here; world: of all; node: this member's rank; nodes: of
    all. port: at which they meet, on the first member's machine. ps: parameter servers of the job. each: whether every
    process has a GPU of its own (of tensorflow).
    """

    def __init__(self, words: Sequence[str]) -> None:
        said = {name[2:]: value for name, value in zip(words[::2], words[1::2])}  # noqa: B905 - older Pythons, too
        self.kind = said.get("kind", TORCH)
        self.processes, self.first, self.world = int(said["processes"]), int(said["first"]), int(said["world"])
        self.node, self.nodes, self.run = int(said["node"]), int(said["nodes"]), said["run"]
        self.counts = [int(one) for one in said.get("counts", said["processes"]).split(",")]
        self.addresses = said.get("addresses", "").split(",")
        self.port, self.ps, self.each = int(said.get("port", "0")), int(said.get("ps", "0")), "each" in said


def environments(asked: Asked) -> list[dict[str, str]]:
    """The variables of each process here."""
    if asked.kind == TENSORFLOW:
        return tensorflow_environments(asked)
    found = [torch_environment(asked, local_rank) for local_rank in range(asked.processes)]
    if asked.kind == HOROVOD:
        found = [{**one, **horovod_environment(asked, local_rank)} for local_rank, one in enumerate(found)]
    return found


def torch_environment(asked: Asked, local_rank: int) -> dict[str, str]:
    """Of one process: torchrun's variables and JAX's; Slurm's, where the job has them."""
    rank, world = str(asked.first + local_rank), str(asked.world)
    slurm = {"SLURM_PROCID": rank, "SLURM_LOCALID": str(local_rank)} if "SLURM_PROCID" in os.environ else {}
    return {
        **slurm,
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(asked.processes),
        "GROUP_RANK": str(asked.node),
        "GROUP_WORLD_SIZE": str(asked.nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "TORCHELASTIC_RUN_ID": asked.run,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # the process of rank 0 holds the store, at MASTER_PORT
        **jax_environment(os.environ.get("MASTER_ADDR", ""), asked.port, asked.world, asked.first + local_rank),
        "JAX_LOCAL_DEVICE_IDS": str(local_rank),
    }


def jax_environment(address: str, port: int, processes: int, index: int) -> dict[str, str]:
    """What `jax.distributed.initialize` asks for: coordinator, number of processes, and which of them this is."""
    if not address or not port:
        return {}
    return {
        "JAX_COORDINATOR_ADDRESS": joined(address, port),
        "JAX_NUM_PROCESSES": str(processes),
        "JAX_PROCESS_ID": str(index),
    }


def horovod_environment(asked: Asked, local_rank: int) -> dict[str, str]:
    """Of one process. A rank of "cross" is among the processes with the same local rank, one on each machine."""
    alike = [node for node, count in enumerate(asked.counts) if count > local_rank]
    here = {"HOROVOD_GLOO_IFACE": "lo"} if asked.nodes == 1 and "HOROVOD_GLOO_IFACE" not in os.environ else {}
    return {
        **here,
        "HOROVOD_HOSTNAME": f"{asked.node}-{asked.addresses[asked.node]}",
        "HOROVOD_RANK": str(asked.first + local_rank),
        "HOROVOD_SIZE": str(asked.world),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(asked.processes),
        "HOROVOD_CROSS_RANK": str(alike.index(asked.node)),
        "HOROVOD_CROSS_SIZE": str(len(alike)),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": asked.addresses[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(asked.port),
    }


class Task:
    """A process of TensorFlow: its type and its index among those of the type, and where it listens."""

    def __init__(self, kind: str, index: int, node: int, host: str, port: int) -> None:
        self.kind, self.index, self.node, self.port, self.address = kind, index, node, port, joined(host, port)


def tasks_of(counts: Sequence[int], addresses: Sequence[str], port: int, ps: int) -> list[Task]:
    """All processes of a TensorFlow job, by member and in the order in which each starts its own: with parameter
    servers a chief first, on the first member; the workers; the parameter servers, dealt out to the members.

    counts: workers of each member. port: of the first process of each machine.
    """
    kinds = [["worker"] * count for count in counts]
    if ps:
        kinds[0].insert(0, "chief")
    for number in range(ps):
        kinds[number % len(kinds)].append("ps")
    found: list[Task] = []
    indices: dict[str, int] = {}
    places: dict[str, int] = {}  # members may be on one machine
    for node, here in enumerate(kinds):
        host = addresses[node]
        for kind in here:
            index, place = indices.get(kind, 0), places.get(host, 0)
            indices[kind], places[host] = index + 1, place + 1
            found.append(Task(kind, index, node, host, port_at(port, place)))
    return found


def port_at(port: int, place: int) -> int:
    """Where the process of this place on its machine listens. port: of the first one."""
    return port if not place else FIRST_MORE_PORT + (port * PORTS_EACH + place) % MORE_PORTS


def joined(address: str, port: int) -> str:
    """host:port, IPv6 in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def tf_config(tasks: Sequence[Task], task: Task) -> str:
    """The text of TF_CONFIG for one of the tasks."""
    cluster: dict[str, list[str]] = {}
    for one in tasks:
        cluster.setdefault(one.kind, []).append(one.address)
    return json.dumps({"cluster": cluster, "task": {"type": task.kind, "index": task.index}})


def tensorflow_environments(asked: Asked) -> list[dict[str, str]]:
    """Of each process here. A worker has a GPU of its own or all of this member's; a chief and parameter servers none.

    RANK is 0 for the one that reports for the job: the chief, or else the first worker.
    """
    tasks = tasks_of(asked.counts, asked.addresses, asked.port, asked.ps)
    visible = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    found: list[dict[str, str]] = []
    workers = 0
    for rank, task in enumerate(tasks):
        if task.node != asked.node:
            continue
        one = {"TF_CONFIG": tf_config(tasks, task), "RANK": str(rank), "WORLD_SIZE": str(len(tasks))}
        one["LOCAL_RANK"] = str(len(found))
        if task.kind != "worker":
            one["CUDA_VISIBLE_DEVICES"] = ""
        elif asked.each and visible:
            one["CUDA_VISIBLE_DEVICES"] = visible[workers % len(visible)]
        workers += task.kind == "worker"
        found.append(one)
    return found


def serve_horovod(port: int) -> None:
    """Serve what Horovod's processes meet by, in a thread: values by /scope/key, put, got and deleted over HTTP."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    values: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_GET(self) -> None:
            value = values.get(self.path)
            self.answer(404 if value is None else 200, value or b"")

        def do_PUT(self) -> None:
            values[self.path] = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.answer(200, b"")

        def do_DELETE(self) -> None:  # a process is done with a scope, of which others may still read
            self.answer(200, b"")

        def answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            """Say nothing of each request."""

    server = ThreadingHTTPServer(("", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="horovod", daemon=True).start()


class Direct:
    """The processes of a member."""

    def __init__(self, asked: Asked, command: Sequence[str]) -> None:
        self.asked, self.command = asked, list(command)
        self.leader = 0 if asked.ps and asked.node == 0 else None
        """The local rank of the chief, for which all others are there."""
        self.led = False
        """The chief has ended well."""
        self.running: dict[int, int] = {}
        """Local rank by pid."""
        self.ended: dict[int, int] = {}
        """Status, as waitpid gives it, by local rank."""
        self.failed: int | None = None
        """The local rank that failed first."""
        self.others: list[int] = []
        """Local ranks that ran on then."""
        self.noticed = False
        self.kill_s: float | None = None
        self.pass_s: float | None = None
        """When those of a chief elsewhere are told of the notice."""

    def start(self) -> bool:
        """Start them all. False: one can't be; what has been started is told to end."""
        each = environments(self.asked)
        common = {}
        if self.asked.kind != TENSORFLOW:
            common = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **({"OMP_NUM_THREADS": "1"} if len(each) > 1 else {})}
        envs = [{**common, **os.environ, **own} for own in each]
        try:
            if may_fork(self.asked, self.command, envs):
                self.fork(envs)
            for local_rank, env in enumerate(envs):
                if local_rank not in self.running.values():
                    self.running[self.spawned(env)] = local_rank
        except OSError as error:
            say(f"can't run {self.command[0]!r}: {error.strerror}")
            self.end_others()
            return False
        return True

    def spawned(self, env: dict[str, str]) -> int:
        """The pid of a process. Raises OSError: it can't be started."""
        return os.posix_spawnp(self.command[0], self.command, env, setsid=True, setsigmask=(), setsigdef=IGNORED)

    def fork(self, envs: Sequence[dict[str, str]]) -> None:
        """Start the first, and have it fork the others if it can: those that it has forked run then.

        Raises OSError: the first can't be started.
        """
        ours, its = socket.socketpair()
        with ours:
            with its:
                its.set_inheritable(True)
                self.running[self.spawned({**envs[0], FORKS: str(its.fileno())})] = 0
            lines = Lines(ours)
            try:
                if lines.next(HEARD_S) != "begun" or lines.next() != "ready" or not reaps():
                    return
                differs = {rank: dict(set(env.items()) - set(envs[0].items())) for rank, env in enumerate(envs) if rank}
                ours.sendall(json.dumps(differs).encode() + b"\n")
                lines.whole = True
                while (line := lines.next()) is not None:
                    local_rank, pid = line.split()
                    self.running[int(pid)] = int(local_rank)
            except OSError:
                return  # it has ended

    def wait(self) -> None:
        """Until all have ended, passing signals on."""
        while self.running:
            due_s = min([one for one in (self.kill_s, self.pass_s) if one is not None], default=None)
            if due_s is None:
                number = signal.sigwait((signal.SIGCHLD, *PASSED_ON))
            else:
                info = signal.sigtimedwait((signal.SIGCHLD, *PASSED_ON), max(due_s - time.monotonic(), 0.0))
                if info is None:
                    self.in_time()
                    continue
                number = info.si_signo
            if number == signal.SIGCHLD:
                self.collect()
            else:
                self.noticed = self.noticed or number == signal.SIGTERM
                self.pass_on(number)

    def in_time(self) -> None:
        """Do what was due."""
        now = time.monotonic()
        if self.kill_s is not None and now >= self.kill_s:
            self.kill_s = None
            self.signal_all(signal.SIGKILL)
        if self.pass_s is not None and now >= self.pass_s:
            self.pass_s = None
            self.signal_all(signal.SIGTERM)

    def pass_on(self, number: int) -> None:
        """A signal to those whom it is for: a notice to the chief first, as it can't save without the others."""
        if number != signal.SIGTERM or not self.asked.ps:
            self.signal_all(number)
        elif self.leader is not None and self.leader not in self.ended:
            self.signal_all(number, only=self.leader)
        elif self.leader is None:
            self.pass_s = self.pass_s or time.monotonic() + grace_s() / 2

    def collect(self) -> None:
        """Take note of those that have ended."""
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            local_rank = self.running.pop(pid, None)
            if local_rank is None:  # one that a process of ours left behind, in a container where we are the first
                continue
            self.ended[local_rank] = status
            if local_rank == self.leader and (not status or self.in_notice()):
                self.led = True
                self.end_others()
            elif status and not self.led and not self.in_notice() and self.failed is None:
                self.failed, self.others = local_rank, sorted(self.running.values())
                rest = len(self.others)
                others = f"; the other {rest} here are ended" if rest else ""
                say(f"rank {self.asked.first + local_rank} (local rank {local_rank}) {worded(status)}{others}")
                self.end_others()

    def in_notice(self) -> bool:
        """Whether the job was told to save and end."""
        return self.noticed or os.path.exists(os.environ.get("GPULOOM_NOTICE_FILE", ""))

    def end_others(self) -> None:
        """Tell those that are left to end, and end them later if they don't."""
        goes_on = self.failed is not None and "GPULOOM_REPLICAS" in os.environ
        left_s = grace_s(None if goes_on else GRACE_S)
        if goes_on:
            give_notice(left_s)
        self.kill_s = time.monotonic() + left_s
        self.signal_all(signal.SIGTERM)

    def signal_all(self, number: int, only: int | None = None) -> None:
        """To each process and what it started in its group. only: a local rank."""
        for pid, local_rank in self.running.items():
            if only not in (None, local_rank):
                continue
            try:
                os.killpg(pid, number)
            except OSError:
                continue  # it has ended, and its end is about to be seen

    def status(self) -> int:
        """Of all, as waitpid gives it."""
        if self.failed is not None:
            return self.ended[self.failed]
        if self.leader is not None and self.leader in self.ended:
            return self.ended[self.leader]
        return next((status for _, status in sorted(self.ended.items()) if status), 0)


class Lines:
    """Lines that come on a socket. whole: all are waited for, whatever signals come; else a signal ends the waiting."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.read, self.whole = link, b"", False

    def next(self, within_s: float | None = None) -> str | None:
        """The next one; None: there is none any more, or not in time. Raises OSError."""
        until_s = None if within_s is None else time.monotonic() + within_s
        while b"\n" not in self.read:
            if not select.select([self.link], [], [], 0.05)[0]:
                if not self.whole and not signal.sigpending().isdisjoint(PASSED_ON):
                    return None
                if until_s is not None and time.monotonic() >= until_s:
                    return None
                continue
            more = self.link.recv(4096)
            if not more:
                return None
            self.read += more
        line, _, self.read = self.read.partition(b"\n")
        return line.decode()


def may_fork(asked: Asked, command: Sequence[str], envs: Sequence[dict[str, str]]) -> bool:
    """Whether the first process can be asked to import for all: a Python with gpuloom's hooks and a script, in which
    importing begins no threads."""
    if asked.kind != TORCH or len(envs) < 2 or FORKS in envs[0]:
        return False
    if envs[0].get("GPULOOM_HOOKS", "off") in ("", "off") or envs[0].get("OMP_NUM_THREADS") != "1":
        return False
    if any(name in envs[0] for name in NO_FORKS) or envs[0].keys() != envs[-1].keys():
        return False
    script = next((word for word in command[1:] if word not in PLAIN_FLAGS), "")
    if not os.path.basename(command[0]).startswith("python") or not script.endswith(".py"):
        return False
    try:
        with open(script, "rb") as file:  # so that nobody waits for the answer of one that imports none
            return b"torch" in file.read(LONGEST_SCRIPT)
    except OSError:
        return False


def reaps() -> bool:
    """Have processes become this one's children when their parents end; whether that could be done."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False  # such as a Python without it


def grace_s(most_s: float | None = GRACE_S) -> float:
    """Seconds that those have that are told to end, as another has failed; the job's own grace, up to `most_s`."""
    try:
        given_s = float(os.environ.get("GPULOOM_GRACE_S", GRACE_S))
    except ValueError:
        return GRACE_S
    return given_s if most_s is None else min(given_s, most_s)


def beside_notice(name: str) -> str:
    """A file in the run's folder; '' where there is none."""
    notice = os.environ.get("GPULOOM_NOTICE_FILE", "")
    return os.path.join(os.path.dirname(notice), name) if notice else ""


def write(path: str, data: dict[str, object]) -> None:
    """A file of the run, whole; what can't be written is told in the log."""
    if not path:
        return
    try:
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(data, file)
        os.replace(path + ".new", path)
    except OSError as error:
        say(f"can't write {path}: {error.strerror}")


def give_notice(left_s: float) -> None:
    """As the runner does (its life.py): those that are left are to save, and the job goes on with them."""
    path = os.environ.get("GPULOOM_NOTICE_FILE", "")
    if not os.path.exists(path):
        ends = {"deadline_s": time.time() + left_s, "monotonic": time.monotonic() + left_s}
        write(path, {"reason": "resized", "message": "", **ends})


def code_of(status: int) -> int:
    """An exit code, or minus the signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def worded(status: int) -> str:
    """How a process ended."""
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"


def say(text: str) -> None:
    """In the job's log."""
    print(f"gpuloom: {text}", file=sys.stderr, flush=True)


def leave(status: int) -> None:
    """End as that process did."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it has left one
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
        os.kill(os.getpid(), number)
    sys.exit(os.WEXITSTATUS(status))


def main(words: Sequence[str]) -> None:
    """See the module."""
    at = words.index("--")
    asked = Asked(words[:at])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started this may ignore it, and ends would go unseen
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, *PASSED_ON))
    if asked.kind == HOROVOD and asked.node == 0:
        try:
            serve_horovod(asked.port)
        except OSError as error:
            say(f"Horovod's processes can't meet at port {asked.port}: {error.strerror}")
            sys.exit(CANT_RUN)
    direct = Direct(asked, words[at + 1 :])
    begun = direct.start()
    direct.wait()
    if not begun:
        sys.exit(CANT_RUN)
    if direct.failed is not None and direct.others:
        others = code_of(direct.ended[direct.others[0]])
        write(beside_notice(FAILED_FILE), {"rank": direct.failed, "others_code": others})
    leave(direct.status())


if __name__ == "__main__":
    main(sys.argv[1:])
