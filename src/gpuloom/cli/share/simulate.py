"""`gpuloom share simulate`: a service and a training job on one GPU, on a virtual clock."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuloom.cli.groups import Choice
from gpuloom.core.errors import InputError
from gpuloom.core.words import plural
from gpuloom.sharing.rule import COMPARED, RULES

if TYPE_CHECKING:
    from gpuloom.sharing.simulate import Outcome


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--high", required=True, metavar="NAME[:RATE]", help="Profile of the service and its rate (resnet50:15rps)."
)
@click.option("--best-effort", required=True, metavar="NAME", help="Profile of the training job.")
@click.option("--profiles", type=click.Path(path_type=Path), metavar="DIR", help="Read profiles from files below DIR.")
@click.option("--load", type=float, metavar="SHARE", help="Share of time the service is busy, instead of a rate [0.5].")
@click.option(
    "--rule", "rules", multiple=True, type=Choice(RULES), help="Admission rule, repeatable [all but literal]."
)
@click.option("--requests", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, metavar="N")
@click.option("--arrivals", metavar="FILE", help="Gaps between requests in seconds, a JSON list, instead of Poisson.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--plot", metavar="FILE", help="Draw the timeline (.png, .svg, .pdf); all but .svg need matplotlib.")
@click.option("--json", "json_target", metavar="FILE|-", help="Write the outcomes as JSON.")
def simulate(
    high: str,
    best_effort: str,
    profiles: Path | None,
    load: float | None,
    rules: tuple[str, ...],
    requests: int,
    arrivals: str | None,
    seed: int,
    plot: str | None,
    json_target: str | None,
) -> None:
    """Simulate a service and a training job that share one GPU, under each admission rule. It needs no GPU.

    \b
    Examples:
      gpuloom share simulate --high resnet50:15rps --best-effort resnet50-train
      gpuloom share simulate --high resnet50 --load 0.3 --best-effort resnet50-train --rule gpuloom --plot t.png
    """
    from gpuloom.cli.outputs import check_outputs
    from gpuloom.sharing.find import find_profile
    from gpuloom.sharing.simulate import Machine, Pair, poisson_arrivals, request_alone_ns

    check_outputs([json_target], plot)
    name, rate = _name_and_rate(high)
    if rate is not None and load is not None:
        raise InputError(f"--high {high} gives a rate and --load a share; give one of them")
    if load is not None and not (math.isfinite(load) and 0 < load < 1):
        raise InputError(f"--load is {load:g}, must be above 0 and below 1")
    service, where_service = find_profile(name, profiles)
    training, where_training = find_profile(best_effort, profiles)
    click.echo(f"{service.name}: {where_service}\n{training.name}: {where_training}", err=True)
    if rate is None and (arrivals is None or load is not None):
        rate = (load or 0.5) / (request_alone_ns(service, Machine()) / 1e9)
    if rate is not None and rate * request_alone_ns(service, Machine()) / 1e9 >= 1:
        most = 1e9 / request_alone_ns(service, Machine())
        raise InputError(f"--high {high}: {name} alone serves at most {most:.4g} requests/s; give a lower rate")
    if arrivals is None:
        assert rate is not None  # noqa: S101 - set above
        moments = poisson_arrivals(rate, requests, seed)
    else:
        from gpuloom.sharing.profiles import parse_json, read_text
        from gpuloom.sharing.simulate import trace_arrivals

        gaps = parse_json(read_text(Path(arrivals)), arrivals)
        if not isinstance(gaps, list) or any(type(gap) not in (int, float) for gap in gaps):
            raise InputError(f"{arrivals}: must be a JSON list of seconds")
        moments = trace_arrivals(gaps, requests, rate)
    pair = Pair(service, training, moments, seed=seed)
    wanted = list(dict.fromkeys(rules)) or list(COMPARED)
    window = _window(pair.arrival_ns.tolist(), pair.request_ns) if plot else None
    outcomes = [pair.outcome(rule, trace_s=window) for rule in wanted]
    if json_target is not None:
        text = json.dumps([outcome.as_dict() for outcome in outcomes], indent=2, allow_nan=False)
        if json_target == "-":
            click.echo(text)
        else:
            Path(json_target).write_text(text + "\n", encoding="utf-8")
    if json_target != "-":
        _print(outcomes)
    if plot is not None and window is not None:
        from gpuloom.report.shared_gpu import save_timeline

        save_timeline(outcomes, window, service.sm_count, Path(plot), f"{service.name} beside {training.name}")
        click.echo(f"timeline of {window[1] - window[0]:.3g} s: {plot}", err=True)


def _name_and_rate(text: str) -> tuple[str, float | None]:
    name, colon, rate = text.rpartition(":")
    if not colon:
        return text, None
    number = rate.strip().lower().removesuffix("rps").removesuffix("/s").strip()
    try:
        value = float(number)
    except ValueError:
        name = ""
    if not name:
        raise InputError(f"--high {text!r}: must be NAME or NAME:RATE, as in resnet50:15rps")
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"--high {text!r}: the rate must be above 0 and finite, as in resnet50:15rps")
    return name, value


def _window(arrival_ns: list[int], request_ns: float) -> tuple[float, float]:
    """From when to when the timeline is drawn: about twelve requests' time, around an arrival in the middle."""
    middle = arrival_ns[len(arrival_ns) // 2] / 1e9
    return max(0.0, middle - 2 * request_ns / 1e9), middle + 10 * request_ns / 1e9


def _print(outcomes: list[Outcome]) -> None:
    first = outcomes[0]
    click.echo(
        f"{plural(first.requests, 'request')} over {first.duration_s:.4g} s, load {first.load:.0%}; alone p50 "
        f"{first.alone_p50_ms:.4g} ms, p99 {first.alone_p99_ms:.4g} ms; training alone "
        f"{first.best_effort_alone_it_per_s:.4g} it/s\n"
    )
    titles = (
        "rule",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "p99/alone",
        "training it/s",
        "of alone",
        "SMs busy",
        "longest hold ms",
    )
    rows = [
        (
            o.rule,
            f"{o.p50_ms:.4g}",
            f"{o.p95_ms:.4g}",
            f"{o.p99_ms:.4g}",
            f"{o.p99_over_alone:.3f}",
            f"{o.best_effort_it_per_s:.4g}",
            f"{o.best_effort_over_alone:.3f}",
            f"{o.sm_utilisation:.0%}",
            f"{o.max_held_ms:.3g}",
        )
        for o in outcomes
    ]
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]
    for row in (titles, *rows):
        click.echo(
            "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        )
    for outcome in outcomes:
        if outcome.held_ms:
            most = sorted(outcome.held_ms.items(), key=lambda item: -item[1])
            told = ", ".join(f"{name} {ms / outcome.duration_s / 1000:.1%}" for name, ms in most[:5])
            click.echo(f"\n{outcome.rule}: a launch waits for {told} of the time", nl=False)
    click.echo()
