"""`gpuloom share`: two programs on one GPU, one protected. Sub-commands are imported only when they are used."""

from __future__ import annotations

import click

from gpuloom.cli.groups import Commands, LazyGroup

COMMANDS: Commands = {
    "run": ("gpuloom.cli.share.run", "Run a program as high-priority or best-effort on a shared GPU."),
    "top": ("gpuloom.cli.share.top", "Watch the programs that share GPUs."),
    "doctor": ("gpuloom.cli.share.doctor", "Say what this machine offers for sharing a GPU."),
    "simulate": ("gpuloom.cli.share.simulate", "Simulate a service and a training job on one GPU."),
    "profile": ("gpuloom.cli.share.profile", "Profile the kernels of your own program."),
    "profiles": ("gpuloom.cli.share.profiles", "Show, compare and import kernel profiles."),
}


@click.group(cls=LazyGroup, sections={"Commands": COMMANDS}, context_settings={"help_option_names": ["-h", "--help"]})
def share() -> None:
    """Share one GPU between a latency-critical program and a best-effort one (docs/howto/share-a-gpu.md)."""
