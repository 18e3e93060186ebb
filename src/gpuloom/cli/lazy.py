"""Groups of commands that import a command only when it is used, so that --help stays fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

Commands = Mapping[str, tuple[str, str]]
"""Command → (module, one-line help). The object in the module bears the command's name."""


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps without importing them."""

    def __init__(self, *given: Any, table: Commands, **named: Any) -> None:
        super().__init__(*given, **named)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        command: click.Command = getattr(importlib.import_module(self.table[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in self.table.items()])
