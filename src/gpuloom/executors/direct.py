"""Runs a command once for each GPU of a member, with the environment that torchrun gives its processes.

    python -I -S direct.py --processes N --first R --world W --node K --nodes M --run NAME -- COMMAND...

Started by the node, also inside containers: it is of the standard library alone, and of any Python from 3.8 on. The
names of the variables are those of torchrun (pytorch.org/docs/stable/elastic/run.html, "Environment Variables").

Each process is in a session of its own, so that a signal reaches it once: it comes here, and is passed on. When one
fails, the others are ended, and its exit code (or the signal that killed it) is the result. After a notice (SIGTERM)
all are waited for, and the result is that of the lowest rank here.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
OPTIONS = ("--processes", "--first", "--world", "--node", "--nodes", "--run")
GRACE_S = 30.0
"""Between SIGTERM and SIGKILL for those that are left when another has failed, as in torchrun; or less, if the job's
own grace is."""
CANT_RUN = 127


def environment_of(local_rank: int, asked: dict[str, str]) -> dict[str, str]:
    """The variables of one process. asked: the options, without '--'."""
    rank = str(int(asked["first"]) + local_rank)
    slurm = {"SLURM_PROCID": rank, "SLURM_LOCALID": str(local_rank)} if "SLURM_PROCID" in os.environ else {}
    return {
        **slurm,
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": asked["world"],
        "LOCAL_WORLD_SIZE": asked["processes"],
        "GROUP_RANK": asked["node"],
        "GROUP_WORLD_SIZE": asked["nodes"],
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": asked["world"],
        "TORCHELASTIC_RUN_ID": asked["run"],
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # the process of rank 0 holds the store, at MASTER_PORT
    }


class Direct:
    """The processes of a member. said: told in words what ends them."""

    def __init__(self, asked: dict[str, str], command: Sequence[str]) -> None:
        self.asked, self.command = asked, list(command)
        self.running: dict[int, int] = {}
        """Local rank by pid."""
        self.ended: dict[int, int] = {}
        """Status, as waitpid gives it, by local rank."""
        self.failed: int | None = None
        """The local rank that failed first."""
        self.noticed = False
        self.kill_s: float | None = None

    def start(self) -> bool:
        """Start them all. False: one can't be; what has been started is told to end."""
        count = int(self.asked["processes"])
        common = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **({"OMP_NUM_THREADS": "1"} if count > 1 else {})}
        for local_rank in range(count):
            env = {**common, **os.environ, **environment_of(local_rank, self.asked)}
            try:
                pid = os.posix_spawnp(self.command[0], self.command, env, setsid=True, setsigmask=())
            except OSError as error:
                say(f"can't run {self.command[0]!r}: {error.strerror}")
                self.end_others()
                return False
            self.running[pid] = local_rank
        return True

    def wait(self) -> None:
        """Until all have ended, passing signals on."""
        while self.running:
            left_s = None if self.kill_s is None else max(self.kill_s - time.monotonic(), 0.0)
            if left_s is None:
                number = signal.sigwait((signal.SIGCHLD, *PASSED_ON))
            else:
                info = signal.sigtimedwait((signal.SIGCHLD, *PASSED_ON), left_s)
                if info is None:
                    self.kill_s = None
                    self.signal_all(signal.SIGKILL)
                    continue
                number = info.si_signo
            if number == signal.SIGCHLD:
                self.collect()
            else:
                self.noticed = self.noticed or number == signal.SIGTERM
                self.signal_all(number)

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
            if status and not self.in_notice() and self.failed is None:
                self.failed = local_rank
                rest = len(self.running)
                others = f"; the other {rest} here are ended" if rest else ""
                say(f"rank {int(self.asked['first']) + local_rank} (local rank {local_rank}) {worded(status)}{others}")
                self.end_others()

    def in_notice(self) -> bool:
        """Whether the job was told to save and end."""
        return self.noticed or os.path.exists(os.environ.get("GPULOOM_NOTICE_FILE", ""))

    def end_others(self) -> None:
        """Tell those that are left to end, and end them later if they don't."""
        try:
            grace_s = min(float(os.environ.get("GPULOOM_GRACE_S", GRACE_S)), GRACE_S)
        except ValueError:
            grace_s = GRACE_S
        self.kill_s = time.monotonic() + grace_s
        self.signal_all(signal.SIGTERM)

    def signal_all(self, number: int) -> None:
        """To each process and what it started in its group."""
        for pid in self.running:
            try:
                os.killpg(pid, number)
            except OSError:
                continue  # it has ended, and its end is about to be seen

    def status(self) -> int:
        """Of all, as waitpid gives it."""
        if self.failed is not None:
            return self.ended[self.failed]
        return next((status for _, status in sorted(self.ended.items()) if status), 0)


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
    asked = {name[2:]: value for name, value in zip(words[:at:2], words[1:at:2])}  # noqa: B905 - older Pythons, too
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started this may ignore it, and ends would go unseen
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, *PASSED_ON))
    direct = Direct(asked, words[at + 1 :])
    begun = direct.start()
    direct.wait()
    if not begun:
        sys.exit(CANT_RUN)
    leave(direct.status())


if __name__ == "__main__":
    main(sys.argv[1:])
