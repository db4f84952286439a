"""A site's own folder: policy, ledger, signing identity and the secret that shards its patients.

The folder lives as long as the site; its ledger spans plans and runs. Nothing in it is ever sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from patevolve.client import policy as policies
from patevolve.client.policy import SitePolicy
from patevolve.shared.errors import LedgerError, PolicyError
from patevolve.shared.files import write_atomic, write_new
from patevolve.shared.privacy.ledger import Head, Ledger
from patevolve.shared.privacy.signing import (
    Identity,
    create_identity,
    head_from_json,
    head_to_json,
    load_identity,
    sign_head,
    verify_head,
)

LEDGER = "ledger.sqlite"
HEAD = "ledger.head"
SECRET = "secret.key"  # noqa: S105 - a file name
IDENTITY = "identity.key"
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteHome:
    """The opened folder of one site."""

    path: Path
    policy: SitePolicy
    secret: bytes
    identity: Identity

    def open_ledger(self, trusted_heads: Iterable[Head] = ()) -> Ledger:
        """Return the site's ledger, held until closed. Raises LedgerError if it is lost, behind or in use."""
        kept = self.path / HEAD
        known = [verify_head(head_from_json(_text(kept)), self.identity.public_key)] if kept.exists() else []
        return Ledger.open(self.path / LEDGER, exclusive=True, trusted_heads=[*trusted_heads, *known])

    def keep_head(self, head: Head) -> None:
        """Remember beside the ledger how far it has come, so that an older copy put back is refused."""
        write_atomic(self.path / HEAD, head_to_json(sign_head(head, self.identity)).encode(), mode=0o600)


def open_home(path: Path, *, site: str = "") -> SiteHome:
    """Return the site's folder; the first time, its secret, identity and ledger are made.

    The secret is made last: once it exists, a missing ledger or identity is a loss and not a beginning, since a new
    ledger would forget what was spent. Raises PolicyError without a policy of this site, LedgerError for a loss.
    """
    policy = policies.read_policy(path / policies.FILE)
    if site and policy.site != site:
        raise PolicyError(
            f"{path} holds the policy of site {policy.site!r}; the data is of {site!r}. Name the right folder."
        )
    if not (path / SECRET).exists():
        _found(path, policy)
    for name in (LEDGER, IDENTITY):
        if not (path / name).exists():
            raise LedgerError(f"{path / name} is missing; a new one would forget the past. Restore it from a backup.")
    secret = (path / SECRET).read_bytes()
    if len(secret) != SECRET_BYTES:
        raise PolicyError(
            f"{path / SECRET} has {len(secret)} bytes; expected {SECRET_BYTES}. Restore it from a backup."
        )
    return SiteHome(path=path, policy=policy, secret=secret, identity=load_identity(path / IDENTITY))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError) as reason:
        raise LedgerError(f"{path} cannot be read ({reason}); restore it with its ledger.") from reason


def _found(path: Path, policy: SitePolicy) -> None:
    if not (path / LEDGER).exists():
        Ledger.create(path / LEDGER, site=policy.site).close()
    if not (path / IDENTITY).exists():
        create_identity(path / IDENTITY)
    write_new(path / SECRET, os.urandom(SECRET_BYTES), mode=0o600)
