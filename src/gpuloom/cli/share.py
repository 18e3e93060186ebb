"""`gpuloom share`: two programs on one GPU, one protected. Sub-commands are imported only when they are used."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "run": ("gpuloom.cli.share_run", "run", "Run a program as high-priority or best-effort on a shared GPU."),
    "top": ("gpuloom.cli.share_top", "top", "Watch the programs that share GPUs."),
    "doctor": ("gpuloom.cli.share_doctor", "doctor", "Tell what this machine offers for sharing a GPU."),
    "simulate": ("gpuloom.cli.share_simulate", "simulate", "Simulate a service and a training job on one GPU."),
    "profile": ("gpuloom.cli.share_profile", "profile", "Profile the kernels of your own program."),
    "profiles": ("gpuloom.cli.share_profiles", "profiles", "Show, compare and import kernel profiles."),
}
"""Sub-command → module, object in it, one-line help."""


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, _, help_text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def share() -> None:
    """Share one GPU between a latency-critical program and a best-effort one (docs/sharing.md)."""
