"""The plans that a site has approved: their text lies in its own folder, and the coordinator names one by its hash."""

from __future__ import annotations

from pathlib import Path

from patevolve.client.home import SiteHome
from patevolve.client.policy import check_plan
from patevolve.shared.errors import InputError, PolicyError
from patevolve.shared.files import write_atomic
from patevolve.shared.plan import Agreed, read_plan

PLANS = "plans"


def install_plan(home: Path, agreed: Agreed) -> Path:
    """Keep a plan's text in the site's folder and return where. Its policy alone decides whether it is answered."""
    path = home / PLANS / f"{agreed.sha256}.toml"
    write_atomic(path, agreed.text.encode())
    return path


def approved_plan(home: SiteHome, sha256: str) -> Agreed:
    """Return the site's own copy of the plan of this hash. Raises PolicyError unless the policy permits it."""
    policy = home.policy
    if sha256 not in policy.plans:
        raise PolicyError(
            f"{policy.site}: plan {sha256[:12]}… is not among the {len(policy.plans)} that the policy permits. Nothing "
            f"was answered. Review it and approve it with `patevolve client approve`, or leave it so."
        )
    path = home.path / PLANS / f"{sha256}.toml"
    try:
        agreed = read_plan(path)
    except InputError as reason:
        raise PolicyError(f"{policy.site}: the approved plan's text cannot be used: {reason}") from reason
    if agreed.sha256 != sha256:
        raise PolicyError(f"{path} holds plan {agreed.sha256[:12]}…; its name says another. Restore the approved text.")
    check_plan(policy, agreed)
    return agreed


def approved_plans(home: SiteHome) -> list[Agreed]:
    """Return the plans that the policy permits and whose text is here. Raises PolicyError for a damaged text."""
    here = [sha256 for sha256 in home.policy.plans if (home.path / PLANS / f"{sha256}.toml").exists()]
    return [approved_plan(home, sha256) for sha256 in here]
