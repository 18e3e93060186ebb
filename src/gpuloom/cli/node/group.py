"""`gpuloom node`: other machines as nodes of a scheduler. Sub-commands are imported only when they are used."""

from __future__ import annotations

import click

from gpuloom.cli.groups import Commands, LazyGroup

ON_THE_HEAD: Commands = {
    "token": ("gpuloom.cli.node.tokens", "Make a token with which machines may join."),
    "tokens": ("gpuloom.cli.node.tokens", "List the tokens."),
    "revoke": ("gpuloom.cli.node.tokens", "Revoke a token; machines that joined with it are cut off."),
}
ON_THE_NODE: Commands = {
    "join": ("gpuloom.cli.node.join", "Make this machine a node of a scheduler elsewhere."),
    "leave": ("gpuloom.cli.node.leave", "Leave the scheduler; its jobs go on elsewhere."),
    "status": ("gpuloom.cli.node.leave", "Show the node process of this machine."),
}


@click.group(
    cls=LazyGroup,
    sections={"On the machine of the scheduler (the head)": ON_THE_HEAD, "On a machine that joins": ON_THE_NODE},
    context_settings={"help_option_names": ["-h", "--help"]},
    elsewhere={"ls": "tokens", "list": "tokens", "start": "join", "stop": "leave"},
)
def node() -> None:
    """Make other machines nodes of a scheduler (docs/howto/many-machines.md). `gpuloom nodes` shows them."""
