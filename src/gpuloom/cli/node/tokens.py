"""`gpuloom node token`, `tokens` and `revoke`, on the head. They work on its home, also while no scheduler runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.live import ago, live_options, plain, say_json
from gpuloom.cli.live_tables import Column, show_table
from gpuloom.cli.run_options import Duration
from gpuloom.core.errors import InputError

if TYPE_CHECKING:
    from gpuloom.fleet.token import Known, Tokens

DEFAULT_URL = "https://HEAD:7411"


def _tokens(home: Path | None) -> Tokens:
    from gpuloom.fleet.token import Tokens
    from gpuloom.store.home import home_of

    return Tokens(home_of(home).create().nodes / "tokens.json")


def _head(home: Path | None) -> tuple[str, str]:
    """(where machines reach the scheduler, SHA-256 of its certificate or ''), as far as that is known."""
    import socket
    from urllib.parse import urlsplit

    from gpuloom.client.home import running
    from gpuloom.fleet.certificates import fingerprint_of
    from gpuloom.store.home import home_of

    folder = home_of(home)
    found = running(folder.path)
    if found is None:
        cert = folder.tls / "cert.pem"
        return DEFAULT_URL, fingerprint_of(cert) if cert.exists() else ""
    url = urlsplit(found.url)
    if url.hostname in ("0.0.0.0", "::"):  # noqa: S104 - what others can't dial
        return f"{url.scheme}://{socket.gethostname()}:{url.port}", found.fingerprint
    return found.url, found.fingerprint


@click.command()
@click.option("--lasts", type=Duration(), metavar="TIME", help="For how long machines may join with it [for ever].")
@click.option("--note", default="", metavar="TEXT", help="What it is for, shown by `gpuloom node tokens`.")
@live_options
def token(lasts: float | None, note: str, as_json: bool, home: Path | None) -> None:
    """Make a token with which machines may join this scheduler.

    It is printed once and kept as a hash. With TLS it carries the SHA-256 of the scheduler's certificate, so that a
    machine talks to this scheduler alone. Who has it can run jobs' programs of this scheduler: keep it as a password.

    \b
    Examples:
      gpuloom node token
      gpuloom node token --lasts 1h --note 'the new rack'
    """
    url, fingerprint = _head(home)
    made = _tokens(home).mint(lasts_s=lasts, note=note, fingerprint=fingerprint)
    if as_json:
        say_json(
            {
                "id": made.id,
                "token": str(made),
                "url": url,
                "fingerprint": fingerprint,
                "expires_s": None if lasts is None else time.time() + lasts,
            }
        )
        return
    click.echo(str(made))
    click.echo(f"On each machine: gpuloom node join {url} --token TOKEN --detach", err=True)
    if url.startswith("http:"):
        click.echo(
            "gpuloom: warning: this scheduler can be reached from this machine alone: for others start it with "
            "`gpuloom up --host ADDRESS`, and make the token after that",
            err=True,
        )


COLUMNS: tuple[Column[Known], ...] = (
    Column("id", lambda one: one.id),
    Column("state", lambda one: one.why_not(time.time()).removeprefix("it ") or "valid"),
    Column("made", lambda one: ago(one.made_s), right=True),
    Column("expires", lambda one: "never" if one.expires_s is None else ago(one.expires_s), right=True),
    Column("note", lambda one: plain(one.note), gives=True),
)


@click.command()
@live_options
def tokens(as_json: bool, home: Path | None) -> None:
    """List the tokens with which machines may join, without their secrets.

    \b
    Example:
      gpuloom node tokens
    """
    found = _tokens(home).all()
    if as_json:
        say_json([_shown(one) for one in found])
    elif found:
        show_table(COLUMNS, found)
    else:
        click.echo("no tokens: `gpuloom node token` makes one")


def _shown(one: Known) -> dict[str, Any]:
    return {
        "id": one.id,
        "valid": not one.why_not(time.time()),
        "made_s": one.made_s,
        "expires_s": one.expires_s,
        "revoked_s": one.revoked_s,
        "note": one.note,
    }


@click.command()
@click.argument("number", metavar="ID")
@live_options
def revoke(number: str, as_json: bool, home: Path | None) -> None:
    """Revoke a token. Machines that joined with it are cut off within seconds; what runs there ends with their lease.

    \b
    Example:
      gpuloom node revoke 0a1b2c3d
    """
    if number.startswith("glt_"):
        raise InputError(f"give the token's id alone: {number[4:12]}")
    done = _tokens(home).revoke(number)
    say_json(_shown(done)) if as_json else click.echo(f"token {done.id} is revoked")
