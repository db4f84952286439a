"""The site policy: a file that the institution owns and that stands above every wish of the coordinator.

Missing or unreadable means refuse. The coordinator can only ask for less than the policy permits, never for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from patevolve.shared import checks, tomlfile
from patevolve.shared.envelopes import MAX_REQUEST
from patevolve.shared.errors import InputError, PolicyError
from patevolve.shared.messages import Kind
from patevolve.shared.plan import Agreed
from patevolve.shared.privacy.budget import Cap
from patevolve.shared.privacy.planner import kinds_asked

FILE = "policy.toml"
LEAST_MESSAGE = 4096  # bytes; a greeting alone takes some 300
RELEASES: Mapping[Kind, str] = {  # each with noise in it
    "counts": "how many units each class has",
    "prototypes": "sums of the records' public features, per class",
    "gradients": "sums over the records of what would correct a public classifier of the plan's classes",
    "neighbours": "how many units each candidate is nearest to",
    "choices": "which candidate of each class is chosen here by how its class's records lie",
    "confidence": "how sure the site's classifiers are of each candidate",
    "labels": "how many of the site's PATE teachers give each candidate each class",
    "copies": "how many units have a record very close to each chosen sample",
    "score": "how many held-out units the released student gets right",
    "islands": "synthetic candidates bred here, picked by how many units each is nearest to",
}
# What a policy permits that does not say: sums over records. What teachers say has to be permitted by name, and so has
# whatever a later version can ask for.
UNSAID: tuple[Kind, ...] = ("counts", "prototypes", "neighbours", "score")


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePolicy:
    """What this institution permits.

    site:            the name under which it takes part
    plans:           SHA-256 of the plans it has approved; no other plan is answered
    budget:          what the ledger may spend in all its life, over every plan and run
    unit:            whom the budget protects; costs per record and per patient do not add up to one figure, so a plan
                     with another unit is refused
    trust:           trust models it accepts
    minimum_sites:   smallest cohort it joins
    minimum_units:   it takes part only if it holds at least this many privacy units
    index_key:       file of 32 random bytes in the site's folder that seals its on-disk index; empty: not sealed
    permitted:       kinds of question whose noised answers may leave; a plan that asks for another is refused
    maximum_message: bytes of one request; a longer one is refused before it is read
    """

    site: str
    plans: tuple[str, ...]
    budget: Cap
    unit: Literal["patient", "record"] = "patient"
    trust: tuple[Literal["each-site", "secure-sum"], ...] = ("each-site",)
    minimum_sites: int = 1
    minimum_units: int = 1
    index_key: str = ""
    permitted: tuple[Kind, ...] = UNSAID
    maximum_message: int = MAX_REQUEST

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        checks.integer(maximum_message=self.maximum_message, at_least=LEAST_MESSAGE, at_most=MAX_REQUEST)
        checks.integer(minimum_sites=self.minimum_sites, at_least=1)
        checks.integer(minimum_units=self.minimum_units, at_least=1)


def read_policy(path: Path) -> SitePolicy:
    """Return the policy in a file. Raises PolicyError if it is missing or unreadable: no policy, no answer."""
    if not path.exists():
        raise PolicyError(
            f"no site policy found at {path}; expected a TOML file that the institution wrote. Without one nothing is "
            f"answered. `patevolve client approve PLAN --home {path.parent}` shows what the plan asks and writes one."
        )
    try:
        return tomlfile.parse(tomlfile.read_text(path, InputError), SitePolicy, path.name, InputError)
    except InputError as reason:
        raise PolicyError(f"the site policy cannot be used: {reason}") from reason


def draft(site: str, agreed: Agreed, *, reserve: float = 1.0, maximum_message: int = MAX_REQUEST) -> str:
    """Return policy text that permits exactly this plan, its ε times ``reserve`` as the cap.

    A reserve above 1 leaves room for a crash between a charge and its answer, which costs the charge again.
    """
    privacy = agreed.plan.privacy
    kinds = ", ".join(f'"{kind}"' for kind in kinds_asked(agreed.plan))
    quoted = site.replace("\\", "\\\\").replace('"', '\\"')
    return (
        f'site = "{quoted}"\n'
        f'plans = ["{agreed.sha256}"]  # {agreed.plan.name}\n'
        f'unit = "{privacy.unit}"\n'
        f'trust = ["{privacy.trust}"]\n'
        f"minimum_sites = {agreed.plan.sites.count - privacy.dropouts}\n"
        f"minimum_units = 1\n"
        f"permitted = [{kinds}]  # what may leave, each with noise\n"
        f"maximum_message = {maximum_message}  # bytes of one request\n\n"
        f"[budget]  # for the life of this site's ledger\n"
        f"epsilon = {privacy.epsilon * reserve!r}\n"
        f"delta = {privacy.delta!r}\n"
    )


def in_words(agreed: Agreed, *, reserve: float = 1.0, maximum_message: int = MAX_REQUEST) -> str:
    """Return what the drafted policy permits, for the person who decides."""
    privacy, least = agreed.plan.privacy, agreed.plan.sites.count - agreed.plan.privacy.dropouts
    cap = f"ε = {privacy.epsilon * reserve:g} at δ = {privacy.delta:g} per {privacy.unit}"
    lines = ["The policy will permit this plan and nothing else. What may leave, each time with noise:"]
    lines += [f"  {kind}: {RELEASES[kind]}" for kind in kinds_asked(agreed.plan)]
    if agreed.plan.encoder.head.share:
        lines.append("Charged as well, and kept here: the training of a private head, through which votes are cast.")
    lines += [
        f"Together at most {cap}, for the life of this site's ledger.",
        f"Requests of at most {maximum_message} bytes, of at least {least} sites, under {privacy.trust!r}.",
    ]
    return "\n".join(lines)


def check_releases(permitted: tuple[Kind, ...], agreed: Agreed, what: str) -> None:
    """Raise PolicyError if the plan asks for a kind of answer that is not permitted."""
    asked = kinds_asked(agreed.plan)
    if more := [kind for kind in asked if kind not in permitted]:
        raise PolicyError(
            f"{what}: plan {agreed.plan.name!r} asks for {', '.join(more)} ({'; '.join(RELEASES[k] for k in more)}); "
            f"{', '.join(permitted) or 'nothing'} may leave. Add to `permitted` in {FILE} what shall, or stay away."
        )


def check_plan(policy: SitePolicy, agreed: Agreed) -> None:
    """Raise PolicyError unless the policy permits this plan: a veto, with its reason for the site's own eyes."""
    privacy = agreed.plan.privacy
    if agreed.sha256 not in policy.plans:
        raise PolicyError(
            f"{policy.site}: plan {agreed.sha256[:12]}… ({agreed.plan.name}) is not among the {len(policy.plans)} that "
            f"the policy permits. Review it with `patevolve plan`, then approve it with `patevolve client approve`."
        )
    if privacy.unit != policy.unit:
        raise PolicyError(
            f"{policy.site}: a plan that protects one {privacy.unit} found; the policy's budget is per {policy.unit}. "
            f"Costs per patient and per record do not add up: keep a folder with a ledger of its own for the other."
        )
    if privacy.trust not in policy.trust:
        raise PolicyError(
            f"{policy.site}: trust model {privacy.trust!r} found; the policy accepts {list(policy.trust)}."
        )
    check_releases(policy.permitted, agreed, policy.site)
    reporting = agreed.plan.sites.count - privacy.dropouts
    if reporting < policy.minimum_sites:
        raise PolicyError(
            f"{policy.site}: a cohort of {reporting} sites found; the policy asks for {policy.minimum_sites}."
        )
    if not privacy.delta <= policy.budget.delta:
        raise PolicyError(f"{policy.site}: δ = {privacy.delta} found; the policy's cap is {policy.budget.delta}.")
