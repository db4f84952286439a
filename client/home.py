"""A site's own folder: policy, ledger, signing identity and the secret that shards its patients.

The folder lives as long as the site; its ledger spans plans and runs. Nothing in it is ever sent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from patevolve.client import policy as policies
from patevolve.client.policy import SitePolicy
from patevolve.shared.errors import PolicyError
from patevolve.shared.files import write_new
from patevolve.shared.privacy.ledger import Ledger
from patevolve.shared.privacy.signing import Identity, create_identity, load_identity

LEDGER = "ledger.sqlite"
SECRET = "secret.key"  # noqa: S105 - a file name
IDENTITY = "identity.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteHome:
    """The opened folder of one site."""

    path: Path
    policy: SitePolicy
    secret: bytes
    identity: Identity

    def open_ledger(self) -> Ledger:
        """Return the site's ledger, made on first use; held exclusively until closed. Raises LedgerError."""
        path = self.path / LEDGER
        if not path.exists():
            Ledger.create(path, site=self.policy.site).close()
        return Ledger.open(path, exclusive=True)


def open_home(path: Path, *, site: str = "") -> SiteHome:
    """Return the site's folder. Raises PolicyError if it has no readable policy, or one of another site."""
    policy = policies.read_policy(path / policies.FILE)
    if site and policy.site != site:
        raise PolicyError(
            f"{path} holds the policy of site {policy.site!r}; the data is of {site!r}. Name the right folder."
        )
    return SiteHome(path=path, policy=policy, secret=_secret(path / SECRET), identity=_identity(path / IDENTITY))


def _identity(path: Path) -> Identity:
    return load_identity(path) if path.exists() else create_identity(path)


def _secret(path: Path) -> bytes:
    if not path.exists():
        write_new(path, os.urandom(32), mode=0o600)
    secret = path.read_bytes()
    if len(secret) != 32:
        raise PolicyError(
            f"{path} has {len(secret)} bytes; expected the 32 that patevolve wrote. Restore it from a backup."
        )
    return secret
