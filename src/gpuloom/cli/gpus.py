"""`gpuloom gpus`."""

from __future__ import annotations

import json
from typing import Any

import click

from gpuloom.core.errors import InputError
from gpuloom.core.words import did_you_mean


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, which also has aliases and sources.")
def gpus(models: tuple[str, ...], as_json: bool) -> None:
    """Show what is known of GPU models: memory, rates, price per hour.

    These numbers weigh service (hlas), estimate speeds on models that were not measured, tell which jobs fit, and give
    the cost of jobs. --json gives the source of each.

    \b
    Examples:
      gpuloom gpus
      gpuloom gpus V100 K80 --json
    """
    from gpuloom.facts.gpus import all_gpus, gpus_named

    found = list(all_gpus())
    if models:
        found = []
        for name in models:
            named = gpus_named(name)
            if not named:
                known = [gpu.model for gpu in all_gpus()]
                hint = f"{did_you_mean(name, known)} (known: {', '.join(known)})"
                raise InputError(f"nothing is known of GPU model {name!r}{hint}")
            found += [gpu for gpu in named if gpu not in found]
    rows = [describe(gpu) for gpu in found]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    for title in ("memory GiB", "FP16 TFLOPS", "FP32 TFLOPS", "GB/s", "$/h"):
        table.add_column(title, justify="right")
    table.add_column("source")
    for row in rows:
        price = row["price_usd_per_hour"]
        table.add_row(
            row["model"],
            f"{row['memory_mib'] / 1024:g}",
            f"{row['fp16_tflops']:g}",
            f"{row['fp32_tflops']:g}",
            f"{row['memory_gbps']:g}",
            "-" if price is None else f"{price:.2f}",
            row["source"],
        )
    Console(highlight=False, width=None if Console().is_terminal else 160).print(table)
    click.echo("\nPrices are on-demand prices per GPU; --json gives their source and date.")


def describe(gpu: Any) -> dict[str, Any]:
    """A GPU model as plain values."""
    return {
        "model": gpu.model,
        "aliases": list(gpu.aliases),
        "memory_mib": gpu.memory_mib,
        "fp16_tflops": gpu.fp16_tflops,
        "fp32_tflops": gpu.fp32_tflops,
        "memory_gbps": gpu.memory_gbps,
        "price_usd_per_hour": gpu.price_usd_per_hour,
        "price_source": gpu.price_source,
        "price_date": gpu.price_date,
        "source": gpu.source,
    }
