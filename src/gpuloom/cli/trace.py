"""`gpuloom trace`: show, convert and generate traces."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.groups import Group
from gpuloom.cli.outputs import check_outputs, overwrite_option
from gpuloom.cli.reading import read as read_trace_for
from gpuloom.cli.reading import reading_options, say_notes
from gpuloom.core.errors import InputError
from gpuloom.core.units import format_duration, parse_duration_s
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.core.workload import Labels, Workload
    from gpuloom.traces import TraceRead

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


@click.group(cls=Group)
def trace() -> None:
    """Show, convert and generate traces.

    A TRACE is a file (gzipped or not), a folder of files, ARCHIVE.tar.gz::MEMBER, or - for standard input.
    """


@trace.command()
@reading_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--limit", type=click.IntRange(min=0), default=0, metavar="N", help="Also list the first N jobs.")
def show(
    traces: tuple[str, ...],
    format_: str | None,
    skip_bad_rows: bool,
    throughputs: Path | None,
    gpu_model: str | None,
    as_json: bool,
    limit: int,
) -> None:
    """Summarise a trace: how many jobs, how long, on how many GPUs.

    \b
    Examples:
      gpuloom trace show jobs.csv
      gpuloom trace show cluster01.csv.gz cluster02.csv.gz --limit 10
      gpuloom trace show traces/ --format itp --json
    """
    read = read_trace_for(traces, format_, skip_bad_rows, throughputs, gpu_model)
    if as_json:
        summary = summarise(read)
        if limit:
            summary["first_jobs"] = [job_row(read.workload, job) for job in range(min(limit, len(read.workload)))]
        click.echo(json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        say_notes(read)
        _print_summary(summarise(read))
        if limit:
            _print_jobs(read.workload, limit)


@trace.command()
@reading_options
@click.option("--output", "-o", required=True, metavar="FILE", help="File to write; - for standard output (CSV).")
@overwrite_option("a file")
def convert(
    traces: tuple[str, ...],
    format_: str | None,
    skip_bad_rows: bool,
    throughputs: Path | None,
    gpu_model: str | None,
    output: str,
    overwrite: bool,
) -> None:
    """Write a trace in gpuloom's own format: .csv, .csv.gz or .parquet.

    \b
    Examples:
      gpuloom trace convert philly.csv.gz --output philly.parquet
      gpuloom trace convert workloads.tar.gz::workloads/workload-6.csv -o w6.csv
      zcat jobs.csv.gz | gpuloom trace convert - -o - > own.csv
    """
    _check_output(output, overwrite)
    read = read_trace_for(traces, format_, skip_bad_rows, throughputs, gpu_model)
    say_notes(read)
    _write(read.workload, output)


@trace.command()
@click.option("--jobs", type=int, required=True, metavar="N", help="Number of jobs.")
@click.option("--gpus", type=int, required=True, metavar="N", help="GPUs of the cluster that --load refers to.")
@click.option(
    "--load", type=float, default=0.8, show_default=True, help="Offered load: GPU-seconds submitted per second and GPU."
)
@click.option(
    "--arrival",
    default="poisson",
    show_default=True,
    metavar="KIND",
    help="poisson, uniform, bursty, diurnal, or batch (all at 0).",
)
@click.option(
    "--burstiness",
    type=float,
    default=4.0,
    show_default=True,
    help="bursty: standard deviation of the gaps over their mean.",
)
@click.option("--swing", type=float, default=0.8, show_default=True, help="diurnal: relative amplitude of the rate.")
@click.option(
    "--duration",
    default="lognormal",
    show_default=True,
    metavar="SHAPE",
    help="lognormal, exponential, pareto, fixed, philly, or a trace FILE whose durations are drawn.",
)
@click.option("--mean", type=parse_duration_s, metavar="TIME", help="Mean duration (2h).")
@click.option("--median", type=parse_duration_s, metavar="TIME", help="Median duration (30m).")
@click.option(
    "--max-duration", type=parse_duration_s, metavar="TIME", help="Upper limit of durations; longer ones are cut."
)
@click.option("--pareto-shape", type=float, default=1.5, show_default=True, help="pareto: exponent of the tail.")
@click.option(
    "--gpu-mix",
    default="gavel",
    show_default=True,
    metavar="MIX",
    help="Shares by GPU count: gavel, philly, or a list (1=0.7,2=0.1,8=0.2).",
)
@click.option("--max-gpus", type=int, metavar="N", help="Most GPUs of one job [--gpus].")
@click.option("--models", metavar="MIX", help="Shares by model (bert=1,vgg16=3) [Muri's eight models].")
@click.option("--users", type=int, default=20, show_default=True, help="Number of users; 0 for none.")
@click.option("--user-skew", type=float, default=1.0, show_default=True, help="Zipf exponent of the users.")
@click.option("--opportunistic", type=float, default=0.0, show_default=True, help="Share of jobs of priority 1.")
@click.option("--high", type=float, default=0.0, show_default=True, help="Share of jobs of class high.")
@click.option("--best-effort", type=float, default=0.0, show_default=True, help="Share of jobs of class best-effort.")
@click.option(
    "--elastic", metavar="MIN-MAX", help="Make every job elastic: a range of GPUs (1-8), or factors (0.5x-4x)."
)
@click.option(
    "--gpu-models",
    metavar="MODELS",
    help="Give jobs speeds on these GPU models (V100,K80); durations are for the first.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same trace.")
@click.option("--output", "-o", required=True, metavar="FILE", help="File to write; - for standard output (CSV).")
@overwrite_option("a file")
def generate(
    jobs: int,
    gpus: int,
    load: float,
    arrival: str,
    burstiness: float,
    swing: float,
    duration: str,
    mean: float | None,
    median: float | None,
    max_duration: float | None,
    pareto_shape: float,
    gpu_mix: str,
    max_gpus: int | None,
    models: str | None,
    users: int,
    user_skew: float,
    opportunistic: float,
    high: float,
    best_effort: float,
    elastic: str | None,
    gpu_models: str | None,
    seed: int,
    output: str,
    overwrite: bool,
) -> None:
    """Generate a trace at a chosen load.

    \b
    Examples:
      gpuloom trace generate --jobs 1000 --gpus 64 --load 0.9 --output jobs.csv
      gpuloom trace generate --jobs 500 --gpus 64 --arrival batch --duration philly -o batch.csv
      gpuloom trace generate --jobs 10 --gpus 8 --gpu-mix 1=0.5,2=0.5 -o -
      gpuloom trace generate --jobs 1000 --gpus 96 --gpu-models V100,K80 -o mixed.csv
    """
    from gpuloom.traces import generate as gen
    from gpuloom.traces.elastic import make_elastic, parse_range, trimmed

    sizes = None if elastic is None else parse_range(elastic)
    _check_output(output, overwrite)
    samples = None
    if duration not in gen.DURATIONS and (Path(duration).exists() or "::" in duration):
        from gpuloom.traces import read_trace

        samples, duration = read_trace(duration).workload.duration_s, "empirical"
    mix: dict[int, float] | str = gpu_mix
    if gpu_mix not in gen.GPU_MIXES:
        mix = {_count(key): share for key, share in _shares("--gpu-mix", gpu_mix).items()}
    config = gen.GeneratorConfig(
        jobs=jobs,
        gpus=gpus,
        load=load,
        arrival=arrival,  # type: ignore[arg-type]  # checked there
        burstiness=burstiness,
        swing=swing,
        duration=duration,  # type: ignore[arg-type]  # checked there
        duration_mean_s=mean,
        duration_median_s=median,
        duration_max_s=math.inf if max_duration is None else max_duration,
        pareto_shape=pareto_shape,
        duration_samples=samples,
        gpu_mix=mix,
        max_gpus=max_gpus,
        models=dict.fromkeys(gen.MODELS, 1.0) if models is None else _shares("--models", models),
        users=users,
        user_skew=user_skew,
        opportunistic=opportunistic,
        high=high,
        best_effort=best_effort,
        gpu_models=tuple(name.strip() for name in gpu_models.split(",")) if gpu_models is not None else (),
        seed=seed,
    )
    workload = gen.generate(config)
    if sizes is not None:
        workload = trimmed(make_elastic(workload, sizes))
    for note in workload.notes:
        click.echo(f"note: {note}", err=True)
    _write(workload, output)


@trace.command("formats", short_help="List the formats that can be read.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def formats_(as_json: bool) -> None:
    """List the formats that can be read (docs/reference/traces.md tells how to add one).

    \b
    Example:
      gpuloom trace formats
    """
    from gpuloom.traces import formats

    known = formats()
    if as_json:
        rows = [{"id": reader.id, "title": reader.title, "help": reader.help} for reader in known.values()]
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        _print_table(("id", "trace", ""), [(reader.id, reader.title, reader.help) for reader in known.values()])


def summarise(read: TraceRead) -> dict[str, Any]:
    """The figures that `trace show` prints, ready for JSON. Times in seconds."""
    import numpy as np

    workload = read.workload
    work = workload.duration_s * workload.gpus
    span_s = float(workload.submit_s[-1] - workload.submit_s[0])
    counts, jobs = np.unique(workload.gpus, return_counts=True)
    by_count = {
        int(count): {
            "jobs": int(number),
            "job_share": float(number / len(workload)),
            "gpu_time_share": float(work[workload.gpus == count].sum() / work.sum()) if work.any() else 0.0,
        }
        for count, number in zip(counts, jobs, strict=True)
    }
    levels = np.quantile(workload.duration_s, QUANTILES).tolist()
    return {
        "name": workload.name,
        "format": read.format,
        "files": [str(file) for file in read.files],
        "jobs": len(workload),
        "bad_rows_skipped": len(read.bad_rows),
        "first_submit_s": float(workload.submit_s[0]),
        "last_submit_s": float(workload.submit_s[-1]),
        "span_s": span_s,
        "gpu_hours": float(work.sum() / 3600),
        "mean_offered_gpus": float(work.sum() / span_s) if span_s > 0 else None,
        "max_gpus": int(workload.gpus.max()),
        "gpus": by_count,
        "duration_s": {"mean": float(workload.duration_s.mean())}
        | {f"p{level * 100:g}": value for level, value in zip(QUANTILES, levels, strict=True)},
        "models": _most(workload.model),
        "users": _most(workload.user),
        "groups": _most(workload.group),
        "columns": [name for name in _optional_columns() if getattr(workload, name) is not None],
        "elastic": _elastic(workload),
        "speeds": _speeds(workload),
        "gpu_memory_mib": _memory(workload),
        "notes": list(workload.notes),
    }


def _elastic(workload: Workload) -> dict[str, Any] | None:
    """Jobs that run on several numbers of GPUs; None: there are none."""
    scaling = workload.scaling
    if scaling is None or not (several := scaling.max_gpus > scaling.min_gpus).any():
        return None
    return {
        "jobs": int(several.sum()),
        "min_gpus": int(scaling.min_gpus[several].min()),
        "max_gpus": int(scaling.max_gpus[several].max()),
    }


def _speeds(workload: Workload) -> dict[str, dict[str, Any]] | None:
    """By GPU model: quantiles of the jobs' speeds there, relative to where durations are of; jobs that don't fit it,
    and jobs of which the speed is estimated."""
    import numpy as np

    speeds = workload.speeds
    if speeds is None:
        return None
    found = {}
    for place, model in enumerate(speeds.models):
        fits = speeds.factor[:, place] > 0
        levels = np.quantile(speeds.factor[fits, place], (0.0, 0.5, 1.0)).tolist() if fits.any() else [None] * 3
        found[model] = {
            **dict(zip(("min", "median", "max"), levels, strict=True)),
            "does_not_fit": int((~fits).sum()),
            "estimated": 0 if speeds.estimated is None else int((speeds.estimated[:, place] & fits).sum()),
        }
    return found


def _memory(workload: Workload) -> dict[str, Any] | None:
    """Peak memory per GPU of the jobs of which it is known; None: of none."""
    import numpy as np

    memory = workload.gpu_memory_mib
    if memory is None or not (known := np.isfinite(memory)).any():
        return None
    low, median, high = np.quantile(memory[known], (0.0, 0.5, 1.0)).tolist()
    return {"jobs": int(known.sum()), "min": low, "median": median, "max": high}


def job_row(workload: Workload, job: int) -> dict[str, Any]:
    """One job as a dictionary; only the columns that the trace has."""
    row: dict[str, Any] = {
        "job_id": workload.job_id(job),
        "submit_s": float(workload.submit_s[job]),
        "duration_s": float(workload.duration_s[job]),
        "gpus": int(workload.gpus[job]),
    }
    for name in ("model", "user", "group", "gpu_type", "share_class", "kernel_profile"):
        labels = getattr(workload, name)
        if labels is not None:
            row[name] = labels[job]
    for name in ("gpu_milli", "priority", "weight"):
        column = getattr(workload, name)
        if column is not None:
            row[name] = column[job].item()
    return row


def _print_summary(summary: dict[str, Any]) -> None:
    files = summary["files"]
    offered = summary["mean_offered_gpus"]
    lines = [
        ("trace", f"{summary['name']} (format {summary['format']})"),
        ("files", files[0] if len(files) == 1 else f"{len(files)}: {files[0]} … {files[-1]}"),
        ("jobs", f"{summary['jobs']:,}"),
        ("submitted over", f"{format_duration(summary['span_s'])} (from {summary['first_submit_s']:,.0f} s)"),
        ("GPU-hours", f"{summary['gpu_hours']:,.1f}"),
        (
            "offered GPUs",
            f"{offered:,.1f} busy on average, if none waited; the largest job takes {summary['max_gpus']}"
            if offered is not None
            else f"no average, as all jobs come at once; the largest takes {summary['max_gpus']}",
        ),
    ]
    if (elastic := summary["elastic"]) is not None:
        lines.append(
            ("elastic", f"{plural(elastic['jobs'], 'job')}, {elastic['min_gpus']} to {elastic['max_gpus']} GPUs")
        )
    if (memory := summary["gpu_memory_mib"]) is not None:
        text = f"{memory['min']:,.0f} to {memory['max']:,.0f} MiB, half of them up to {memory['median']:,.0f}"
        lines.append(("memory per GPU", f"{text} (known of {plural(memory['jobs'], 'job')})"))
    if summary["bad_rows_skipped"]:
        lines.append(("bad rows skipped", f"{summary['bad_rows_skipped']:,}"))
    for label, text in lines:
        click.echo(f"{label + ':':<18}{text}")
    durations = summary["duration_s"]
    click.echo()
    _print_table(
        ("duration", *durations),
        [("", *(format_duration(value) for value in durations.values()))],
    )
    click.echo()
    _print_table(
        ("GPUs", "jobs", "of jobs", "of GPU time"),
        [
            (str(count), f"{row['jobs']:,}", f"{row['job_share']:.1%}", f"{row['gpu_time_share']:.1%}")
            for count, row in summary["gpus"].items()
        ],
    )
    if summary["speeds"] is not None:
        click.echo()
        _print_table(
            ("speed on", "least", "median", "most", "does not fit", "estimated"),
            [
                (
                    model,
                    *("-" if row[key] is None else f"{row[key]:.3g}" for key in ("min", "median", "max")),
                    f"{row['does_not_fit']:,}",
                    f"{row['estimated']:,}",
                )
                for model, row in summary["speeds"].items()
            ],
        )
    for one in ("model", "user", "group"):
        named = summary[f"{one}s"]
        if named is not None:
            top = ", ".join(f"{name or '(none)'} {number:,}" for name, number in named["top"].items())
            more = " …" if named["distinct"] > len(named["top"]) else ""
            click.echo(f"\n{plural(named['distinct'], one)}: {top}{more}")


def _print_jobs(workload: Workload, limit: int) -> None:
    rows = [job_row(workload, job) for job in range(min(limit, len(workload)))]
    click.echo()
    _print_table(tuple(rows[0]), [tuple(map(_cell, row.values())) for row in rows])


def _cell(value: object) -> str:
    return f"{value:,.10g}" if isinstance(value, float) else str(value)


def _print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print columns to standard output; the first is aligned left, numbers right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(header):
        numeric = place > 0 and all(not cell or cell[0].isdigit() for cell in (row[place] for row in rows))
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True, overflow="ignore")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 200
    Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False).print(table)


def _most(labels: Labels | None, top: int = 10) -> dict[str, Any] | None:
    """How many distinct words there are, and the most frequent ones with their number of jobs."""
    import numpy as np

    if labels is None:
        return None
    counts = np.bincount(labels.codes, minlength=len(labels.names))
    order = np.argsort(-counts, kind="stable")[:top]
    return {
        "distinct": int((counts > 0).sum()),
        "top": {labels.names[code]: int(counts[code]) for code in order.tolist() if counts[code]},
    }


def _optional_columns() -> tuple[str, ...]:
    from gpuloom.core.workload import OPTIONAL_COLUMNS

    return (*(name for name in OPTIONAL_COLUMNS if name != "line"), "speeds", "scaling")


def _shares(option: str, text: str) -> dict[str, float]:
    """'a=1,b=2' as a mapping."""
    shares: dict[str, float] = {}
    for item in text.split(","):
        key, equals, share = item.strip().rpartition("=")
        try:
            number = float(share)
        except ValueError:
            number = math.nan
        if not equals or not key or math.isnan(number) or key in shares:
            raise InputError(f"{option} is {text!r}: at {item.strip()!r}, write shares such as a=0.7,b=0.3")
        shares[key] = number
    return shares


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InputError(
            f"--gpu-mix: {text!r} is not a GPU count: write shares such as 1=0.7,8=0.3, or gavel or philly"
        ) from error


def _check_output(output: str, overwrite: bool) -> None:
    check_outputs([output], None)
    if output != "-" and Path(output).exists() and not overwrite:
        raise InputError(f"{output} exists already; --overwrite replaces it")
    if output != "-" and not Path(output).name.lower().endswith((".csv", ".csv.gz", ".parquet")):
        raise InputError(f"{output}: the file's name must end with .csv, .csv.gz or .parquet")


def _write(workload: Workload, output: str) -> None:
    from gpuloom.traces.write import write_csv, write_trace

    if output == "-":
        write_csv(workload, sys.stdout.buffer)
    else:
        write_trace(workload, output)
        click.echo(f"wrote {plural(len(workload), 'job')} to {output}", err=True)
