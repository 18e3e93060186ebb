"""Tokens of machines that join, and certificates."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import sys
import threading
from pathlib import Path

import pytest

from gpuloom.core.errors import InputError, NotFoundError
from gpuloom.fleet.certificates import PinError, fingerprint_of, given, own, pinned
from gpuloom.fleet.token import Token, Tokens, token_of
from gpuloom.server.up import UpOptions, certificate_of
from gpuloom.store.home import Home


def test_a_token_is_read_back_as_it_was_written() -> None:
    for token in (Token("0123abcd", "x" * 43), Token("0123abcd", "-_" * 21 + "a", "ab" * 32)):
        assert token_of(f" {token}\n") == token
    assert str(Token("0123abcd", "x" * 43, "ab" * 32)).startswith(Token("0123abcd", "x" * 43).shown)


@pytest.mark.parametrize("text", ["", "glt_1_2", "glt_0123abcd_" + "x" * 42, "glt_0123ABCD_" + "x" * 43])
def test_what_is_no_token_is_said(text: str) -> None:
    with pytest.raises(InputError, match="begins with glt_"):
        token_of(text)


def test_tokens_count_until_they_expire_or_are_revoked(tmp_path: Path) -> None:
    now = 1000.0
    tokens = Tokens(tmp_path / "nodes" / "tokens.json", clock=lambda: now)
    one, other = tokens.mint(), tokens.mint(lasts_s=60.0, note="for a day")
    again = Tokens(tokens.path, clock=lambda: now)
    assert again.why_not(one.shown) == again.why_not(other.shown) == ""
    assert again.why_not(one.shown[:-1] + "!") == "it is none of this head's"
    assert again.why_not(Token(one.id, other.secret).shown) == "it is none of this head's"
    now = 1060.0
    assert again.why_no_more(other.id, joins=True) == "it has expired"
    assert again.why_not(other.shown) == again.why_no_more(other.id) == ""  # who has joined stays
    tokens.revoke(one.id)
    assert again.why_not(one.shown) == again.why_no_more(one.id) == "it was revoked"
    assert [known.note for known in again.all()] == ["", "for a day"]
    with pytest.raises(NotFoundError, match="gpuloom node tokens"):
        tokens.revoke("nothing")


def test_no_secret_is_kept_and_others_can_not_read_the_file(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    token = tokens.mint()
    assert token.secret not in tokens.path.read_text()
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    tokens.path.write_text(json.dumps({"tokens": 3}))
    with pytest.raises(InputError, match="holds no tokens"):
        tokens.all()


def _head(certificate: Path, key: Path) -> tuple[int, threading.Thread]:
    """A server for one TLS connection, that says what it was sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def serve() -> None:
        with listener:
            plain, _ = listener.accept()
            try:
                with context.wrap_socket(plain, server_side=True) as secure:
                    secure.sendall(secure.recv(100))
            except OSError:
                plain.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return listener.getsockname()[1], thread


def test_a_node_talks_only_to_the_certificate_of_its_token(tmp_path: Path) -> None:
    made = own(tmp_path / "tls", ["head.example", "10.0.0.1"])
    assert own(tmp_path / "tls", []) == made
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    assert fingerprint_of(made.cert) == made.fingerprint
    port, thread = _head(made.cert, made.key)
    with pinned(socket.create_connection(("127.0.0.1", port)), "head.example", made.fingerprint) as secure:
        secure.sendall(b"hello")
        assert secure.recv(100) == b"hello"
    thread.join()
    other = own(tmp_path / "other", [])
    port, thread = _head(other.cert, other.key)
    with pytest.raises(PinError, match="mint a new token"):
        pinned(socket.create_connection(("127.0.0.1", port)), "head.example", made.fingerprint)
    thread.join()


def test_what_is_no_certificate_is_said(tmp_path: Path) -> None:
    made, other = own(tmp_path / "one", []), own(tmp_path / "other", [])
    with pytest.raises(InputError, match="no certificate and its key"):
        given(made.cert, other.key)
    with pytest.raises(InputError, match="can't be read"):
        given(tmp_path / "nothing.pem", made.key)
    (tmp_path / "text.pem").write_text("text")
    with pytest.raises(InputError, match="holds no certificate"):
        given(tmp_path / "text.pem", made.key)


def test_without_the_library_the_ways_out_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    home = Home(tmp_path)
    with pytest.raises(InputError, match=r"needs TLS: .*gpuloom\[tls\].*--tls-cert.*or listen at 127\.0\.0\.1"):
        certificate_of(UpOptions(tmp_path, host="0.0.0.0"), home)
    assert certificate_of(UpOptions(tmp_path), home) is None
    assert not home.tls.exists()
