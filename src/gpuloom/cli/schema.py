"""`gpuloom schema`."""

from __future__ import annotations

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (the output is always JSON).")
def schema(as_json: bool) -> None:
    """Print the JSON schema of job.yaml, by which editors complete and check it.

    \b
    Examples:
      gpuloom schema > job.schema.json
      # and as the first line of job.yaml:
      # yaml-language-server: $schema=job.schema.json
    """
    from gpuloom.cli.live import say_json
    from gpuloom.live.submission.spec import json_schema

    say_json(json_schema())
