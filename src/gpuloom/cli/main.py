"""The `gpuloom` command. Sub-commands are imported only when they are used, so that --help stays fast."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType

import click

from gpuloom import __version__
from gpuloom.cli.groups import Commands, LazyGroup
from gpuloom.core.errors import GpuloomError

SECTIONS: dict[str, Commands] = {
    "Run jobs (live)": {
        "up": ("gpuloom.cli.service", "Start the scheduler."),
        "down": ("gpuloom.cli.service", "Stop the scheduler; jobs keep running."),
        "status": ("gpuloom.cli.service", "Show the scheduler: pid, URL, store, executor."),
        "submit": ("gpuloom.cli.submit", "Submit a command, a script, or the jobs of a YAML file."),
        "ls": ("gpuloom.cli.jobs", "List jobs."),
        "show": ("gpuloom.cli.show", "Show all that is known about a job."),
        "logs": ("gpuloom.cli.logs", "Print or follow what a job writes."),
        "why": ("gpuloom.cli.why", "Explain why a job waits, and when it will start."),
        "wait": ("gpuloom.cli.jobs", "Wait for jobs to end."),
        "top": ("gpuloom.cli.watch", "Watch GPUs and jobs, or move a job to the top of the queue."),
        "cancel": ("gpuloom.cli.control", "Cancel jobs."),
        "hold": ("gpuloom.cli.control", "Hold waiting jobs."),
        "release": ("gpuloom.cli.control", "Release held jobs."),
        "suspend": ("gpuloom.cli.control", "Have running jobs leave their GPUs until they are resumed."),
        "resume": ("gpuloom.cli.control", "Let suspended jobs go on."),
        "requeue": ("gpuloom.cli.control", "Put jobs back into the queue."),
        "update": ("gpuloom.cli.control", "Change what jobs ask for."),
        "policy": ("gpuloom.cli.policy", "Show or swap the policy of the running scheduler."),
        "history": ("gpuloom.cli.events", "Export what ran here as a trace, for compare."),
        "schema": ("gpuloom.cli.schema", "Print the JSON schema of job.yaml."),
    },
    "Administer (live)": {
        "nodes": ("gpuloom.cli.nodes", "Show nodes and GPUs."),
        "node": ("gpuloom.cli.node.group", "Make other machines nodes of this scheduler, or this one of another."),
        "pilots": ("gpuloom.cli.pilots", "Show the allocations of Slurm in which jobs run."),
        "drain": ("gpuloom.cli.nodes", "Take a node out of service; its jobs move."),
        "cordon": ("gpuloom.cli.nodes", "Start nothing new on a node."),
        "uncordon": ("gpuloom.cli.nodes", "Put a node back into service."),
        "events": ("gpuloom.cli.events", "Show or follow the event log."),
        "stats": ("gpuloom.cli.stats", "Show JCT, queue and utilisation of what ran, and over time."),
        "usage": ("gpuloom.cli.events", "Show how much GPU time was used, and by whom."),
        "db": ("gpuloom.cli.db", "Check, back up and restore the store."),
    },
    "Observe a cluster": {
        "observe": ("gpuloom.cli.observe", "Watch a Kubernetes cluster: why its jobs wait, and until when."),
    },
    "Simulate (no scheduler is needed)": {
        "compare": ("gpuloom.cli.simulate", "Replay a trace under several policies and compare them."),
        "simulate": ("gpuloom.cli.simulate", "Replay a trace under one policy."),
        "explain": ("gpuloom.cli.explain", "Explain where a job of a trace ran, and why."),
        "trace": ("gpuloom.cli.trace", "Show, convert and generate traces."),
        "policies": ("gpuloom.cli.policies", "List the scheduling policies and their parameters."),
        "weave": ("gpuloom.cli.weave", "Find which jobs to weave on shared GPUs, and what it gains."),
        "profiles": ("gpuloom.cli.profiles", "Show and keep the stage times of models."),
        "gpus": ("gpuloom.cli.gpus", "Show what is known about GPU models."),
        "pollux": ("gpuloom.cli.pollux", "Replay workloads of Pollux and Sia by the rules of their simulators."),
        "demo": ("gpuloom.cli.demo.command", "Run eight small jobs live, and compare with the simulator."),
    },
    "Share one GPU (no scheduler is needed)": {
        "share": ("gpuloom.cli.share.group", "Share a GPU between a service and training, by kernels."),
    },
}


ELSEWHERE = {
    **dict.fromkeys(("list", "ps", "queue", "jobs", "squeue", "qstat", "sacct"), "ls"),
    **dict.fromkeys(("kill", "rm", "delete", "scancel", "qdel"), "cancel"),
    **dict.fromkeys(("run", "sbatch", "srun", "qsub"), "submit"),
    **dict.fromkeys(("start", "serve", "init"), "up"),
    **dict.fromkeys(("stop", "shutdown"), "down"),
    **dict.fromkeys(("describe", "info", "inspect"), "show"),
    **dict.fromkeys(("tail", "output"), "logs"),
    "sinfo": "nodes",
    "sim": "simulate",
    "generate": "trace generate",
}
"""Commands of other schedulers, and their names here."""


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    elsewhere=ELSEWHERE,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Help on a command: gpuloom COMMAND --help. Tab completion in bash (in zsh: zsh_source): "
    'eval "$(_GPULOOM_COMPLETE=bash_source gpuloom)"',
)
@click.version_option(__version__, prog_name="gpuloom")
def cli() -> None:
    """gpuloom: schedule deep-learning jobs on shared GPU clusters, and simulate how they would be scheduled.

    Exit codes: 0 ok, 1 the work failed, 2 bad usage or input.
    """


def _end(number: int, frame: FrameType | None) -> None:
    """Asked to end, end as by Ctrl-C: workers are stopped, what is done is printed. Also where Ctrl-C is ignored, as it
    is under nohup and in a script's background."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    if not callable(on_interrupt):
        raise KeyboardInterrupt
    on_interrupt(signal.SIGINT, frame)


def _write_no_more() -> None:
    """What could not be written to standard output is not tried again when Python ends."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):  # ValueError: it is closed, or no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def main() -> None:
    """Entry point of the console script: the one place that maps errors to exit codes."""
    signal.signal(signal.SIGTERM, _end)
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()  # what can't be written is said by us, not by Python on its way out
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except GpuloomError as error:
        click.echo(f"gpuloom: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output went away (| head); not an error of ours. Keep the exit quiet.
        _write_no_more()
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        _write_no_more()
        what = error.strerror or str(error)
        click.echo(f"gpuloom: {what if error.filename is None else f'{error.filename}: {what}'}", err=True)
        sys.exit(2 if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError) else 1)
    except Exception as error:  # a bug of ours, or of a plug-in
        if os.environ.get("GPULOOM_DEBUG") == "1":
            traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        click.echo(f"gpuloom: internal error, please report: {what}; GPULOOM_DEBUG=1 prints the traceback", err=True)
        sys.exit(1)
