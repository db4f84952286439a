"""The site's side of the secure sum on the disk: its roster of peers, and its state, stored before a byte leaves.

The roster is the site's own copy of who takes part: every site's public key and the coordinator's (there, or in what
the coordinator handed over). A coordinator that
invents a peer, or leaves one out of the agreement, has another roster, and nothing that it sends is taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patevolve.client.home import SiteHome
from patevolve.client.joined import read_joined
from patevolve.shared.errors import InputError, MessageError, ParameterError, PolicyError
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import Agreed
from patevolve.shared.secagg import graph
from patevolve.shared.secagg.site import SiteSum, store_name
from patevolve.shared.secagg.spec import SumSpec

ROSTER = "roster.json"
STATES = "secagg"
BATCHES = ".batches.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """A site in the secure sums of one run; hold the site's ledger while using it."""

    path: Path
    site: SiteSum

    def save(self) -> None:
        """Put the state on the disk, so that a killed site neither masks nor unmasks a question twice."""
        write_atomic(self.path, self.site.export_state(), mode=0o600)

    def bind(self, questions: Sequence[str], batch: str) -> None:
        """Tie questions (by hash) to the one batch under which their answers may ever be summed, on the disk.

        An answer keeps its noise when it is asked for again. Two sums over the same answers and other survivors would
        differ by single sites' values under single shares of noise, which nobody charged. Raises MessageError for a
        question that is tied to another batch, or twice in this one; then nothing is tied.
        """
        if len(set(questions)) != len(questions):
            raise MessageError("a question twice in one sum found; expected each once.")
        path = self.path.with_suffix(BATCHES)
        tied = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if any(tied.get(question, batch) != batch for question in questions):
            raise MessageError(
                "a question that was summed with others before found; expected the same questions again."
            )
        if not all(question in tied for question in questions):
            text = json.dumps({**tied, **dict.fromkeys(questions, batch)}, sort_keys=True)
            write_atomic(path, text.encode(), mode=0o600)  # label: one-batch-per-answer


def sum_spec(home: SiteHome, agreed: Agreed, run: str) -> SumSpec:
    """Return what the site has agreed on with its peers. Raises PolicyError without a roster that fits the plan."""
    path = home.path / ROSTER
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sites = dict(found["sites"])
        coordinator = found["coordinator"] if "coordinator" in found else read_joined(home.path).coordinator
    except (OSError, ValueError, KeyError, TypeError, InputError) as reason:
        raise PolicyError(
            f"{path} cannot be read ({type(reason).__name__}); expected the public keys of all sites and of the "
            f"coordinator, compared with them by a trusted way. Without it nothing is summed."
        ) from reason
    if len(sites) != agreed.plan.sites.count or sites.get(home.policy.site) != home.identity.public_key:
        raise PolicyError(
            f"{path} lists {len(sites)} sites; expected {agreed.plan.sites.count}, {home.policy.site!r} with its key "
            f"among them. Get the roster of this plan."
        )
    privacy = agreed.plan.privacy
    try:
        spec = SumSpec(
            plan=agreed.sha256,
            run=run,
            sites=sites,
            coordinator=coordinator,
            dropouts=privacy.dropouts,
            colluders=privacy.colluders,
        )
        graph.build(spec)
    except ParameterError as reason:
        raise PolicyError(f"{path} holds no roster for this plan: {reason}") from reason
    assumed = agreed.plan.sites.count - privacy.dropouts - privacy.colluders
    left = graph.honest_values(spec)
    if left < assumed:
        raise PolicyError(
            f"a coordinator that lies about who dropped could open a sum with {left} honest shares; "
            f"the plan's noise assumes {assumed}. Allow fewer drop-outs or colluders in the plan."
        )
    return spec


def open_masking(home: SiteHome, agreed: Agreed, run: str, *, begin: bool = False) -> Masking:
    """Return the site's state in this run; ``begin`` makes one if there is none yet.

    Raises MessageError if the run was not set up here.
    """
    spec = sum_spec(home, agreed, run)
    path = home.path / STATES / store_name(spec, home.policy.site)
    if path.exists():
        return Masking(path=path, site=SiteSum.restore(path.read_bytes(), spec, identity=home.identity))
    if not begin:
        raise MessageError("a question under masks before the run was set up found; expected the set-up first.")
    masking = Masking(path=path, site=SiteSum(spec, site=home.policy.site, identity=home.identity))
    masking.save()
    return masking
