"""`gpuloom share doctor`: what this machine offers for sharing a GPU."""

from __future__ import annotations

import os

import click

from gpuloom.cli.live import plain, say_json
from gpuloom.executors.can_suspend import SuspendingCheck
from gpuloom.sharing.shim import attach as shim

MARKS = {True: "ok", False: "missing", None: "note"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(as_json: bool) -> None:
    """Say what this machine offers (driver, shim, MPS, profiling, suspending), and whether `share run` could use the
    shim.

    Exit code 1 if it could not.

    \b
    Examples:
      gpuloom share doctor
      gpuloom share doctor --json
    """
    findings = [*shim.examine(os.environ), _suspending()]
    active = shim.active(findings)
    if as_json:
        say_json(
            {
                "active": active,
                "findings": [{"what": f.what, "ok": f.ok, "needed": f.needed, "text": f.text} for f in findings],
            }
        )
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            click.echo(f"{finding.what:<{width}}  {MARKS[finding.ok]:<7}  {plain(finding.text)}")
        missing = ", ".join(finding.what for finding in findings if finding.needed and not finding.ok)
        click.echo("the shim would be active" if active else f"the shim would not be active: {missing}")
    if not active:
        click.get_current_context().exit(1)


def _suspending() -> shim.Finding:
    """Whether jobs can make way with their GPU memory (--on-preempt suspend)."""
    check = SuspendingCheck()
    check.begin()
    found = check.outcome()
    if found["ok"]:
        return shim.Finding("suspending", True, f"driver {found['driver']}: gpuloom submit --on-preempt suspend")
    return shim.Finding("suspending", None, str(check) or "no: there is no NVIDIA GPU")
