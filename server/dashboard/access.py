"""Who may look: anybody on this machine over loopback, elsewhere whoever has the token; and what a browser may do."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from patevolve.shared.errors import InputError
from patevolve.shared.files import write_new

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SHORTEST = 20  # characters of a token
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
HEADERS = {
    # Drawings carry style attributes; style sheets and scripts come from this server alone.
    "content-security-policy": "default-src 'none'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "script-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_of(path: Path | None, host: str) -> str | None:
    """Return the token in this file, made if it does not exist; None for loopback without a file.

    Raises InputError for any other address without a token, and for a token that can be guessed.
    """
    if path is None:
        if is_loopback(host):
            return None
        raise InputError(
            f"a page on {host} without a token found; whoever reaches the port could read along. Give --token-file "
            f"FILE (made if it does not exist), or bind to 127.0.0.1 and use a tunnel."
        )
    if not path.exists():
        write_new(path, (secrets.token_urlsafe(32) + "\n").encode(), mode=0o600)
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < SHORTEST or not token.isascii():
        raise InputError(f"a token of {len(token)} characters found in {path}; expected at least {SHORTEST}, ASCII.")
    return token


def allowed(authorization: bytes, token: str) -> bool:
    """Whether a header carries the token: as Bearer, or as the password of Basic, which browsers ask for."""
    scheme, _, value = authorization.partition(b" ")
    given = b""
    if scheme.lower() == b"bearer":
        given = value.strip()
    elif scheme.lower() == b"basic":
        try:
            decoded = base64.b64decode(value.strip(), validate=True)
        except binascii.Error:
            return False
        if base64.b64encode(decoded) != value.strip():  # stray bits after the last character
            return False
        given = decoded.partition(b":")[2]
    return hmac.compare_digest(given, token.encode())  # in a time that does not tell how much of it was right


class Door:
    """The outermost application: asks for the token, takes GET and HEAD alone, and sets the headers of every reply.

    A class, since that is the shape of ASGI middleware.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        """Stand before ``app``; without a token the name that the browser dialled must be this machine's.

        A page elsewhere that resolves its own name to 127.0.0.1 could otherwise read along.
        """
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = {name.lower(): value for name, value in scope["headers"]}

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message.get("headers", []) if name.decode() not in HEADERS]
                message["headers"] = [*kept, *((name.encode(), value.encode()) for name, value in HEADERS.items())]
            await send(message)

        if scope["method"] not in {"GET", "HEAD"}:
            await _refuse(dressed, 405, b"This page can only be read.\n", {"allow": "GET, HEAD"})
        elif self.token is not None and not allowed(given.get(b"authorization", b""), self.token):
            asking = 'Basic realm="patevolve dashboard: any name, the token as password", charset="UTF-8"'
            await _refuse(dressed, 401, b"The token is needed.\n", {"www-authenticate": asking})
        elif self.token is None and _name(given.get(b"host", b"")) not in LOOPBACK_NAMES:
            await _refuse(dressed, 400, b"This page is served to this machine alone.\n", {})
        else:
            await self.app(scope, receive, dressed)


def _name(host: bytes) -> str:
    text = host.decode("latin-1")
    return text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]


async def _refuse(send: Send, status: int, body: bytes, more: dict[str, str]) -> None:
    headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **more}
    start = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
