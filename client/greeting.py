"""A site's side of ``hello``: what it says of itself, and what it makes of a head that the coordinator shows it."""

from __future__ import annotations

from patevolve.client.home import SiteHome
from patevolve.shared.envelopes import Capabilities, Request, Welcome, decode_head
from patevolve.shared.errors import LedgerError, MessageError, RollbackError
from patevolve.shared.privacy.ledger import Head, Ledger, verify
from patevolve.shared.privacy.signing import head_from_json, verify_head


def welcome(home: SiteHome, *, unsafe: bool) -> Welcome:
    """Return what the site says of itself: name, key, and what its policy lets it answer."""
    policy = home.policy
    can = Capabilities(kinds=policy.permitted, trust=policy.trust, message=policy.maximum_message)
    return Welcome(site=policy.site, public_key=home.identity.public_key, capabilities=can, unsafe=unsafe)


def shown_head(request: Request, home: SiteHome) -> Head | None:
    """Return the head of this site's ledger that the coordinator holds, if it shows one. Raises MessageError."""
    if not request.parts:
        return None
    if len(request.parts) != 1:
        raise MessageError(f"{len(request.parts)} parts found in a greeting; expected at most one head.")
    try:
        head = verify_head(head_from_json(decode_head(request.parts[0])), home.identity.public_key)
    except LedgerError as reason:  # not the ledger's fault: that would be asked for again
        raise MessageError(f"a greeting with a head that this site did not sign found: {reason}") from reason
    if head.site != home.policy.site:
        raise MessageError(f"a greeting with the head of {head.site!r} found; this is {home.policy.site!r}.")
    return head


def check_not_older(ledger: Ledger, shown: Head) -> None:
    """Raise RollbackError if the ledger lacks a row that this site had signed."""
    try:
        verify(ledger.path, trusted_heads=[shown], read_answers=False)
    except LedgerError as reason:
        raise RollbackError(
            f"the coordinator holds a head that this site signed and its ledger does not have ({reason}). The folder "
            f"was put back from an older copy: restore the newest. Until then nothing is answered in this run."
        ) from reason
