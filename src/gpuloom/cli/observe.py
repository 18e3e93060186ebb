"""`gpuloom observe`: watch a Kubernetes cluster, and explain what waits there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import click

from gpuloom.cli.live import home_option, log_level_option, say_json

POLICY = "fifo:backfill=greedy"


@click.command()
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="How to reach the cluster [in a pod its service account, else $KUBECONFIG, else ~/.kube/config].",
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig [its current one].")
@click.option(
    "--namespace",
    "-n",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Read pods of this namespace only (may be given again) [of all].",
)
@click.option(
    "--gpu-resource",
    "gpu_resources",
    multiple=True,
    metavar="NAME",
    help="Name under which nodes offer GPUs, such as nvidia.com/gpu (may be given again) [the usual ones].",
)
@click.option(
    "--policy",
    "written",
    metavar="POLICY",
    help=f"Policy that comes closest to who schedules there, for forecasts [the last one, else {POLICY}].",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of the API; 0 for any free one [7411, or a free one]."
)
@log_level_option
@click.option("--detach", "-d", is_flag=True, help="Return when it is ready. Its log is HOME/scheduler.log.")
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
@home_option
@click.pass_context
def observe(
    ctx: click.Context,
    /,
    kubeconfig: Path | None,
    context: str | None,
    namespaces: tuple[str, ...],
    gpu_resources: tuple[str, ...],
    written: str | None,
    port: int | None,
    log_level: str,
    detach: bool,
    as_json: bool,
    home: Path | None,
) -> None:
    """Watch a Kubernetes cluster: why do its GPU jobs wait, and when will they start?

    It only reads: the rights to list and watch nodes and pods are enough. What it sees it keeps in its home, which must
    not be that of a scheduler with jobs of its own. gpuloom ls, why, show, nodes, usage, stats and events then tell of
    the cluster. gpuloom why --check says how good its forecasts were, and gpuloom history export writes the cluster's
    past as a trace. gpuloom down stops it.

    \b
    Examples:
      gpuloom observe --kubeconfig ~/.kube/config --detach
      gpuloom why train-bert
      gpuloom history export past.csv && gpuloom compare past.csv
    """
    from gpuloom.cli.service import UpError, ready_line, running_here, say_when_ready, start_detached
    from gpuloom.client.home import home_directory
    from gpuloom.server.observing import api_of
    from gpuloom.server.options import ObserveOptions

    options = ObserveOptions(None if kubeconfig is None else kubeconfig.absolute(), context, namespaces, gpu_resources)
    api = api_of(options)  # what is wrong with it is told before anything starts
    api.close()
    if written is not None:
        from gpuloom.policies.registry import create_policy

        create_policy(written)
    folder = home_directory(home)
    if (ready := running_here(folder)) is not None:
        from gpuloom.live.parts import watched_cluster
        from gpuloom.store.home import Home

        text = f"a scheduler is running here already: pid {ready['pid']}, {ready['url']}, home {folder}"
        if watched_cluster(Home(folder)) != api.server:
            raise UpError(f"{text}; but it does not observe {api.name}: give another --home")
        if not detach:
            raise UpError(text)
        say_json(ready) if as_json else click.echo(text)
        return
    if detach:
        ready = start_detached(folder, _arguments(options, written, port, log_level), command="observe")
        say_json(ready) if as_json else click.echo(ready_line(ready))
        return
    from gpuloom.server.up import UpOptions, run

    threading.Thread(target=say_when_ready, args=(folder, os.getpid(), as_json), daemon=True).start()
    ctx.exit(
        run(
            UpOptions(
                home=folder, port=port, policy=written, default_policy=POLICY, log_level=log_level, observe=options
            )
        )
    )


def _arguments(options: object, written: str | None, port: int | None, log_level: str) -> list[str]:
    """The words of the command that runs in the background."""
    from gpuloom.server.options import ObserveOptions

    assert isinstance(options, ObserveOptions)  # noqa: S101
    pairs = [
        ("--kubeconfig", options.kubeconfig),
        ("--context", options.context),
        *(("--namespace", name) for name in options.namespaces),
        *(("--gpu-resource", name) for name in options.gpu_resources),
        ("--policy", written),
        ("--port", port),
        ("--log-level", log_level),
    ]
    return [word for name, value in pairs if value is not None for word in (name, str(value))]
