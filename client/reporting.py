"""The report of an in-process run: whoever runs it holds the sites' folders, so it may show what the sites know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patevolve.client.home import LEDGER
from patevolve.client.simulate import Finished, Site
from patevolve.shared.described import Context, parts_of
from patevolve.shared.explain import beside
from patevolve.shared.files import write_atomic
from patevolve.shared.finish import charged
from patevolve.shared.participation import participation
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.privacy import ledger_view
from patevolve.shared.privacy.ledger import Ledger, verify
from patevolve.shared.report.summary import SiteSummary, report
from patevolve.shared.report.write import rendered
from patevolve.shared.runfolder import finite


def site_summary(site: Site, finished: Finished) -> SiteSummary:
    """Return one site's part of the report from its verified ledger. Raises LedgerError if it does not verify."""
    path, cap = site.home.path / LEDGER, site.home.policy.budget
    with finished.folder.open_ledger() as joined:
        verify(path, trusted_heads=joined.trusted_heads(site.home.policy.site))
    with Ledger.open(path) as ledger:
        described, head = ledger_view.describe(ledger, cap), ledger.head()
        own = [charge for charge in described["charges"] if charge["run"] == finished.run]
    return SiteSummary(
        site=site.home.policy.site,
        units=finished.units[site.home.policy.site],
        epsilon=described["spent"]["epsilon"],
        cap=cap.epsilon,
        remaining=max(0.0, cap.epsilon - described["remaining"]["epsilon"]),
        questions=tuple(charge["question"] for charge in own),
        charges=len(own),
        head=head.digest,
        verified=True,
        ledger=tuple({"site": site.home.policy.site, **charge} for charge in described["charges"]),
    )


def write_report(agreed: Agreed, finished: Finished, sites: Mapping[str, Site], context: Context) -> dict[str, Any]:
    """Write report.json and report.html into the run folder and return the report."""
    outcome = finished.outcome
    parts = parts_of(agreed.plan, finished.asks, outcome, finished.released, finished.score, context=context)
    made = report(
        agreed,
        [ask.event for ask in charged(finished.asks, outcome) if ask.scope == "shared"],
        local=[ask.event for ask in charged(finished.asks, outcome) if ask.scope == "local"],
        mode=context.mode,
        sites=[site_summary(site, finished) for site in sites.values()],
        utility=context.utility,
        seeds=context.seeds,
        parts=parts | _took_part(agreed.plan, finished),
    )
    value: dict[str, Any] = finite(made)
    finished.folder.write_json("report.json", value)
    write_atomic(finished.folder.path / "report.html", rendered(value).encode())
    beside(finished.folder.path)
    return value


def _took_part(plan: Plan, finished: Finished) -> dict[str, Any]:
    names = [ask.name for ask in finished.asks]
    return {
        "participation": participation(finished.folder, plan, names, finished.units),
        "traffic": finished.contacts.rows(),
    }
