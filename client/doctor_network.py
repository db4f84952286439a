"""The network's part of the doctor: from the coordinator's name outwards to its certificate and its clock."""

from __future__ import annotations

import datetime as dt
import email.utils
import http.client
import math
import re
import socket
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_SECONDS = 5.0
SKEW_SECONDS = 60.0


class Ill(Exception):  # noqa: N818 - a finding on its way up, not an error
    """What a check found wrong: a key of doctor.CAUSES and, for the site's own eyes, the detail."""

    def __init__(self, cause: str, detail: str) -> None:
        """Keep both."""
        super().__init__(detail)
        self.cause, self.detail = cause, detail


def proxy_for(host: str, environment: Mapping[str, str]) -> str | None:
    """Return the proxy that the environment sets for https to this host, or None."""
    lower = {name.lower(): value for name, value in environment.items() if name.lower().endswith("_proxy") and value}
    proxy = lower.get("https_proxy") or lower.get("all_proxy")
    bypass = {"no": lower["no_proxy"]} if "no_proxy" in lower else {}
    if not proxy or _bypassed(host, bypass):
        return None
    return proxy


def _bypassed(host: str, bypass: Mapping[str, str]) -> bool:
    # the standard library's own reading of NO_PROXY; its type stubs leave the function out
    return bool(urllib.request.proxy_bypass_environment(host, dict(bypass)))  # type: ignore[attr-defined]


def resolved(host: str, port: int) -> set[str]:
    """Return the addresses of a name. Raises Ill."""
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as reason:
        raise Ill("name", f"{host!r} cannot be resolved: {reason}.") from reason


def connected(host: str, port: int) -> socket.socket:
    """Return a connection. Raises Ill."""
    try:
        return socket.create_connection((host, port), timeout=TIMEOUT_SECONDS)
    except ConnectionRefusedError as reason:
        raise Ill("port", f"{host}:{port} refuses the connection: nothing listens there.") from reason
    except OSError as reason:
        raise Ill(
            "port", f"{host}:{port} does not answer ({reason}): a firewall between, or the machine is off."
        ) from reason


def through(proxy: str, host: str, port: int) -> socket.socket:
    """Return a connection through a proxy. Raises Ill."""
    parts = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    shown = f"{parts.hostname}:{parts.port or 8080}"  # without the user and password that an address may hold
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 8080, timeout=TIMEOUT_SECONDS)
    connection.set_tunnel(host, port)
    try:
        connection.connect()
    except OSError as reason:
        raise Ill("proxy", f"the proxy {shown} does not connect to {host}:{port}: {reason}.") from reason
    return connection.sock


def secured(stream: socket.socket, host: str, authority: Path, now: dt.datetime) -> str | None:
    """Shake hands as a SuperNode does and return the server's Date header, if it sends one."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as reason:
        raise Ill("joined", f"{authority} cannot be used as an authority: {reason}.") from reason
    stream.settimeout(TIMEOUT_SECONDS)
    try:
        with context.wrap_socket(stream, server_hostname=host) as secured:
            return _date(secured, host)
    except ssl.SSLCertVerificationError as reason:
        raise Ill(*_certificate(reason, now, authority)) from reason
    except ssl.SSLError as reason:
        raise Ill(*_handshake(reason, host)) from reason
    except OSError as reason:
        raise Ill("tls", f"{host} ended the TLS handshake: {reason}.") from reason


_HOSTNAME, _EXPIRED, _NOT_YET = (62, 64), 10, 9  # OpenSSL's X509_V_ERR_ codes


def _certificate(reason: ssl.SSLCertVerificationError, now: dt.datetime, authority: Path) -> tuple[str, str]:
    if reason.verify_code in _HOSTNAME:
        return "tls-name", f"{reason.verify_message}."
    if reason.verify_code == _NOT_YET:
        return "clock", f"the certificate is not valid yet on {now:%Y-%m-%d %H:%M} UTC, as this machine's clock has it."
    if reason.verify_code == _EXPIRED:
        return (
            "tls-expired",
            f"the certificate has expired on {now:%Y-%m-%d %H:%M} UTC, as this machine's clock has it.",
        )
    return "tls-authority", f"the certificate is not signed by {authority}: {reason.verify_message}."


def _handshake(reason: ssl.SSLError, host: str) -> tuple[str, str]:
    plain = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
    if reason.reason in plain:
        return "plaintext", f"{host} answers, but without TLS ({reason.reason})."
    return "tls", f"{host}: {reason.reason or reason}."


def _date(secured: ssl.SSLSocket, host: str) -> str | None:
    try:
        secured.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head = secured.recv(65536).decode("latin-1")
    except OSError:
        return None
    found = re.search(r"^date:\s*(.+?)\s*$", head, re.IGNORECASE | re.MULTILINE)
    return found.group(1) if found else None


def clock(date: str | None, now: dt.datetime) -> str:
    """Compare the coordinator's Date header with this machine's clock. Raises Ill."""
    if date is None:
        return "the coordinator does not tell the time; not checked"
    try:
        there = email.utils.parsedate_to_datetime(date)
    except ValueError:
        return "the coordinator does not tell the time in a known form; not checked"
    if there.tzinfo is None:  # what RFC 5322 says with -0000: UTC, of a clock that knows no zone
        there = there.replace(tzinfo=dt.UTC)
    skew = (now - there).total_seconds()
    if not abs(skew) <= SKEW_SECONDS:
        raise Ill("clock", f"this clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the coordinator's.")
    return f"within {math.ceil(abs(skew))} s of the coordinator's"
