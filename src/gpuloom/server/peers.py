"""Who is at the other end of a connection: the user, where the system can tell, else the address."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from typing import Any

_SOCK_DIAG = 4
_BY_FAMILY = 20
_ESTABLISHED_AND_OTHERS = 0xFFFFFFFF
_ANY = 0xFFFFFFFF
_ANSWER_S = 0.2

Peer = tuple[str, int | str]
"""('uid', 1000) or ('address', '192.0.2.7')."""


def me() -> Peer:
    """The user that this process runs as."""
    return "uid", os.geteuid()


class Users:
    """Asks the kernel whose socket is at the other end of a loopback connection (sock_diag, some microseconds)."""

    def __init__(self) -> None:
        try:
            self._kernel: socket.socket | None = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
            self._kernel.settimeout(_ANSWER_S)
        except (AttributeError, OSError):  # no Linux, or a sandbox that has no such sockets
            self._kernel = None
        self._number = 0

    def close(self) -> None:
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def peer(self, transport: Any) -> Peer:
        """The other end of a transport."""
        there, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if not there or not here:
            return "address", ""
        address = ipaddress.ip_address(str(there[0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        if (mapped or address).is_loopback and (uid := self._uid(there, here)) is not None:
            return "uid", uid
        if mapped is not None:
            return "address", str(mapped)
        if address.version == 6:  # who has one address of a /64 has all of them
            return "address", str(ipaddress.ip_network((int(address), 64), strict=False))
        return "address", str(address)

    def _uid(self, there: tuple[Any, ...], here: tuple[Any, ...]) -> int | None:
        """The user whose socket it is; None where nobody can say (it is closed, or the kernel does not tell)."""
        family = socket.AF_INET6 if ":" in there[0] else socket.AF_INET
        found = self._asked(family, there, here)
        if found is None and family == socket.AF_INET:  # the other end may be an IPv6 socket
            found = self._asked(socket.AF_INET6, (f"::ffff:{there[0]}", there[1]), (f"::ffff:{here[0]}", here[1]))
        return found

    def _asked(self, family: int, there: tuple[Any, ...], here: tuple[Any, ...]) -> int | None:
        if self._kernel is None:
            return None
        self._number = (self._number + 1) % 2**31
        ends = b"".join(socket.inet_pton(family, end[0].partition("%")[0]).ljust(16, b"\0") for end in (there, here))
        request = (
            struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _ESTABLISHED_AND_OTHERS)
            + struct.pack("!HH", there[1], here[1])
            + ends
            + struct.pack("=III", 0, _ANY, _ANY)
        )
        try:
            self._kernel.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, 1, self._number, 0) + request)
            while True:
                answer = self._kernel.recv(4096)
                if struct.unpack_from("=I", answer, 8)[0] == self._number:
                    break
        except (OSError, struct.error):
            return None
        if struct.unpack_from("=H", answer, 4)[0] != _BY_FAMILY or len(answer) < 88:
            return None
        uid, inode = struct.unpack_from("=II", answer, 80)
        return int(uid) if inode else None  # a socket that nobody holds any more counts as root's
