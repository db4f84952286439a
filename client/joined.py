"""``join.toml``: what the coordinator handed over to a site, and where the site's data lies.

The hand-over folder holds it without ``data``; ``patevolve client join`` writes it into the site's folder with it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path

from patevolve.shared import checks, tomlfile
from patevolve.shared.errors import InputError

FILE = "join.toml"
FORMAT = 1
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What a site knows of its coordinator.

    site:         the name under which it takes part
    address:      host:port of the coordinator; the only address the site ever connects to
    plan:         SHA-256 of the plan that was handed over
    coordinator:  Ed25519 public key that signs questions carried by file
    bundles:      SHA-256 of the Flower bundles whose messages are answered
    version:      the coordinator's patevolve
    data:         the site's data file; never sent
    """

    format: int
    site: str
    address: str
    plan: str
    coordinator: str
    bundles: tuple[str, ...]
    version: str
    data: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be an address or a hash."""
        checks.integer(format=self.format, at_least=FORMAT, at_most=FORMAT)
        for name, value in (
            ("plan", self.plan),
            ("coordinator", self.coordinator),
            *(("bundles", b) for b in self.bundles),
        ):
            if not _HASH.fullmatch(value):
                raise InputError(f"{FILE}: {name} = {value!r} found; expected 64 hexadecimal digits.")
        split_address(self.address)


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port). Raises InputError."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise InputError(f"address {address!r} found; expected host:port, such as coordinator.example.org:443.")
    return host.strip("[]"), int(port)


def read_joined(folder: Path) -> Joined:
    """Return what a hand-over or site folder says. Raises InputError."""
    path = folder / FILE
    if not path.exists():
        raise InputError(f"no {FILE} found in {folder}; expected a folder made by `patevolve client join FOLDER`.")
    return tomlfile.parse(tomlfile.read_text(path, InputError), Joined, path.name, InputError)


def joined_text(joined: Joined) -> str:
    """Return the TOML text of a join file."""
    lines = []
    for each in fields(joined):
        value = getattr(joined, each.name)
        # JSON's strings, numbers and lists of strings are TOML's as well
        lines.append(
            f"{each.name} = {json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)}"
        )
    return "\n".join(lines) + "\n"
