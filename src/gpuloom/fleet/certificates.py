"""The head's certificate: made by itself, or given; and a node's connection to a head with a certificate that it knows.

A node needs no certificate authority: its token says the SHA-256 of the head's certificate. It compares before it sends
anything but the handshake.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import secrets
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuloom.core.errors import InputError, MissingDependencyError

YEARS = 10


class PinError(InputError):
    """Whoever answers is not the head that minted the token."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files in PEM. fingerprint: SHA-256 of the certificate, hex."""

    cert: Path
    key: Path
    fingerprint: str


def fingerprint_of(cert: Path) -> str:
    """SHA-256 of the first certificate in a PEM file, hex.

    Raises:
        InputError: there is none.
    """
    try:
        text = cert.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise InputError(f"{cert}: the certificate can't be read: {error.strerror}") from None
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if begin not in text or end not in text:
        raise InputError(f"{cert} holds no certificate: give a PEM file")
    first = begin + text.partition(begin)[2].partition(end)[0] + end
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
    except ValueError:
        raise InputError(f"{cert} holds no certificate that can be read: give a PEM file") from None


def given(cert: Path, key: Path) -> Certificate:
    """A certificate that somebody else made. Raises InputError."""
    fingerprint = fingerprint_of(cert)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as error:  # SSLError is one
        raise InputError(f"{cert} and {key} are no certificate and its key: {error.strerror or error}") from None
    return Certificate(cert, key, fingerprint)


def own(folder: Path, names: Iterable[str]) -> Certificate:
    """The head's own certificate, made where there is none. names: host names and addresses by which it is reached.

    Raises:
        MissingDependencyError: the library that makes one is not installed. InputError: it can't be written.
    """
    cert, key = folder / "cert.pem", folder / "key.pem"
    if not (cert.exists() and key.exists()):
        _make(cert, key, names)
    return given(cert, key)


def _make(cert: Path, key: Path, names: Iterable[str]) -> None:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise MissingDependencyError("a certificate of its own", "cryptography", "tls") from None
    private = ec.generate_private_key(ec.SECP256R1())
    hosts = dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname(), *names))
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gpuloom")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(int.from_bytes(secrets.token_bytes(16)) >> 1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts if host]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain_key = private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(key, plain_key)
    _write(cert, made.public_bytes(pem))


def _name(host: str):  # type: ignore[no-untyped-def]  # of an optional library
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode())


def _write(path: Path, data: bytes) -> None:
    draft = path.with_suffix(".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            draft.unlink()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror}") from None


def pinned(plain: socket.socket, host: str, fingerprint: str) -> ssl.SSLSocket:
    """TLS over a connection to a head. fingerprint: of its certificate; '': one that the system's authorities have
    signed for `host`.

    Raises:
        PinError: its certificate is another one. OSError: the handshake failed.
    """
    if not fingerprint:
        return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    secure = context.wrap_socket(plain, server_hostname=host)
    found = hashlib.sha256(secure.getpeercert(binary_form=True) or b"").hexdigest()
    if not secrets.compare_digest(found, fingerprint):
        secure.close()
        raise PinError(
            f"{host} shows a certificate with SHA-256 {found[:16]}…, and the token is of a head with {fingerprint[:16]}"
            "…: either its certificate was changed (then mint a new token there), or somebody else answers"
        )
    return secure
