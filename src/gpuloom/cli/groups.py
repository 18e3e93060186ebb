"""Groups of commands: help by section, hints for mistyped names, and imports only when a command is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from gpuloom.core.words import did_you_mean

Commands = Mapping[str, tuple[str, str]]
"""Command → (module, one-line help). The object in the module bears the command's name."""


class Choice(click.Choice[str]):
    """One of a few words; what is none of them is answered with the one that is close."""

    def __init__(self, choices: Iterable[str]) -> None:
        super().__init__(list(choices))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            hint = did_you_mean(str(value), self.choices)
            self.fail(f"{value!r} is not one of {', '.join(self.choices)}{hint}", param, ctx)


class Priority(click.ParamType[int]):
    """A number, or a word for one."""

    name = "priority"
    words: Mapping[str, int] = {"low": -10, "normal": 0, "high": 10}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return self.words[value] if value in self.words else int(value)
        except ValueError:
            self.fail(f"{value!r} is no priority: give a number (higher goes first), low, normal or high", param, ctx)


class Group(click.Group):
    """A group whose help has each command's summary on one line, whole.

    aliases: names that work and are not shown. elsewhere: what commands are called in other programs.
    """

    def __init__(
        self,
        *given: Any,
        aliases: Mapping[str, str] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*given, **named)
        self.aliases, self.elsewhere = aliases or {}, elsewhere or {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            hint = did_you_mean(name, self.list_commands(ctx)) or f"; commands: {', '.join(self.list_commands(ctx))}"
            if name in self.elsewhere:
                hint = f"; did you mean {self.elsewhere[name]!r}?"
            ctx.fail(f"no such command {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def summaries(self, ctx: click.Context) -> Sequence[tuple[str, Sequence[tuple[str, str]]]]:
        """The parts of the list of commands: titles, names and one-line helps."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [("Commands", [(name, c.get_short_help_str(200)) for name, c in commands if c is not None])]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # One width for all sections, so that their columns stand below each other.
        wide = max(len(name) for _, rows in self.summaries(ctx) for name, _ in rows)
        for title, rows in self.summaries(ctx):
            with formatter.section(title):
                formatter.write_dl([(name.ljust(wide), text) for name, text in rows])


class LazyGroup(Group):
    """A group that knows its commands' names and one-line helps without importing them: --help stays fast.

    sections: commands by the title under which the help lists them.
    """

    def __init__(self, *given: Any, sections: Mapping[str, Commands], **named: Any) -> None:
        super().__init__(*given, **named)
        self.sections = sections
        self.table = {name: entry for commands in sections.values() for name, entry in commands.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self.aliases.get(cmd_name, cmd_name)
        if name not in self.table:
            return None
        command: click.Command = getattr(importlib.import_module(self.table[name][0]), name)
        return command

    def summaries(self, ctx: click.Context) -> Sequence[tuple[str, Sequence[tuple[str, str]]]]:
        return [(title, [(name, text) for name, (_, text) in rows.items()]) for title, rows in self.sections.items()]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=text) for name, (_, text) in self.table.items()]
        return [
            *(item for item in found if item.value.startswith(incomplete)),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]
