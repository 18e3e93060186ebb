"""Write what lists all that the program has, in docs/reference: commands.md, job-fields.md and job.schema.json.

python scripts/reference.py        (make reference)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gpuloom.cli.main import cli
from gpuloom.live.submission.spec import json_schema

DOCS = Path(__file__).resolve().parents[1] / "docs" / "reference"
WIDTH = 1000
"""Columns for usage lines and defaults: they are not to be broken."""


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """The commands below one, in the order of their help, each with its context."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                inside = click.Context(found, parent=context, info_name=name, terminal_width=WIDTH)
                yield found, inside
                yield from commands(found, inside)


def cell(text: str) -> str:
    """Text in a table's cell; angle brackets and pipes are no mark-up."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def section(command: click.Command, context: click.Context) -> list[str]:
    """One command: what it does, how it is written, its options."""
    told = re.sub(r"\n*\x08\n.*?(?=\n\n|\Z)", "", command.help or "", flags=re.DOTALL).strip()
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    level = "##" if context.parent is not None and context.parent.parent is None else "###"
    lines = [f"{level} {context.command_path}", "", *(line.strip() for line in told.splitlines()), ""]
    rows = []
    for option in command.params:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None and option.name != "help":
            rows.append(f"| `{record[0].replace('|', chr(92) + '|')}` | {cell(record[1])} |")
    if isinstance(command, click.Group):
        return lines
    return [*lines, f"`{usage}`", "", *(["| option | |", "|---|---|", *rows, ""] if rows else [])]


def cli_page() -> str:
    """docs/reference/commands.md: every command and option, as `--help` tells them."""
    context = click.Context(cli, info_name="gpuloom", terminal_width=WIDTH)
    lines = [
        "# Every command and option",
        "",
        "What `gpuloom COMMAND --help` says, on one page; [run-jobs.md](../howto/run-jobs.md) and",
        "[simulation.md](simulation.md) explain how to use it. Made by `make reference`.",
        "In brackets: what is taken where an option is not given, and limits.",
        "",
    ]
    for command, inside in commands(cli, context):
        lines += section(command, inside)
    return "\n".join(lines).rstrip() + "\n"


def kind(field: dict[str, Any]) -> str:
    """What may be written for a field of a job."""
    choices = [choice for choice in field.get("anyOf", [field]) if choice.get("type") != "null"]
    if len(choices) == 1 and choices[0] is not field:
        return kind(choices[0])
    examples = [example for choice in choices for example in choice.get("examples", ())]
    if "4h" in examples:
        return "seconds, or text such as `90s`, `4h`"
    if "12GiB" in examples:
        return "MiB, or text such as `512MiB`, `12GiB`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    limits = [f"{word} {field[key]:,}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in field]
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true, false"}
    if field.get("type") == "array":
        return f"list of {names[field['items']['type']]}s" if field["items"]["type"] != "string" else "list of texts"
    if field.get("type") == "object":
        return "names and values"
    return " ".join([names[field["type"]], *limits])


def jobs_page() -> str:
    """docs/reference/job-fields.md: every field of a job, from its schema."""
    schema = json_schema()
    lines = [
        "# Every field of a job",
        "",
        "What a job may say: in `job.yaml` ([run-jobs.md](../howto/run-jobs.md#submit-a-file)), by the API",
        "([api.md](api.md#submit)) and from Python; `class` and `env_file` in files alone.",
        "Made by `make reference` from the schema",
        "([job.schema.json](job.schema.json), `gpuloom schema`).",
        "",
        "| field | written | default | |",
        "|---|---|---|---|",
    ]
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        default = field.get("default")
        shown = "required" if name in required else "" if default in (None, "", [], {}) else f"`{default}`"
        lines.append(f"| `{name}` | {cell(kind(field))} | {shown} | {cell(field['description'])} |")
    return "\n".join(lines) + "\n"


def schema_page() -> str:
    """docs/reference/job.schema.json, as `gpuloom schema` prints it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


PAGES = {"commands.md": cli_page, "job-fields.md": jobs_page, "job.schema.json": schema_page}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        print(f"wrote docs/reference/{name}")


if __name__ == "__main__":
    main()
