"""The coordinator's report: what it asked and received. It knows neither the sites' data nor what else they spend."""

from __future__ import annotations

import dataclasses
from typing import Any

from patevolve.server.run import Finished
from patevolve.shared.described import Context, parts_of
from patevolve.shared.explain import beside
from patevolve.shared.files import write_atomic
from patevolve.shared.finish import charged
from patevolve.shared.participation import participation
from patevolve.shared.plan import Agreed, Plan
from patevolve.shared.privacy.head_part import head_events
from patevolve.shared.report.summary import SiteSummary, report
from patevolve.shared.report.write import rendered
from patevolve.shared.runfolder import finite

NAN = float("nan")


def site_summaries(agreed: Agreed, finished: Finished) -> list[SiteSummary]:
    """Return each site as the coordinator's ledger knows it: what it was asked, and the last head that it signed.

    Its ε is that of the questions and of the private head that the plan has each site train before it answers.
    """
    with finished.folder.open_ledger() as ledger:
        asked, spent = ledger.questions(), ledger.epsilon(agreed.plan.privacy.delta, head_events(agreed.plan))
        heads = {site: ledger.trusted_heads(site) for site in finished.institutions.cohort}
    own = tuple(row["question"] for row in asked if row["run"] == finished.institutions.run)
    return [
        SiteSummary(
            site=site,
            units=None,
            epsilon=spent.epsilon,
            cap=NAN,
            remaining=NAN,
            questions=own,
            charges=len(own),
            head=found[-1].digest if found else "",
            verified=None,
            ledger=(),
        )
        for site, found in heads.items()
    ]


def write_report(agreed: Agreed, finished: Finished, context: Context) -> dict[str, Any]:
    """Write report.json and report.html into the run folder and return the report."""
    repeated = sorted(finished.institutions.directory.unsafe)
    marks = (f"{site} answered with recorded noise, which anyone can repeat: it protects nobody." for site in repeated)
    context = dataclasses.replace(context, unsafe=[*context.unsafe, *marks])
    made = report(
        agreed,
        [ask.event for ask in charged(finished.asks, finished.outcome) if ask.scope == "shared"],
        local=[ask.event for ask in charged(finished.asks, finished.outcome) if ask.scope == "local"],
        mode="deployed",
        sites=site_summaries(agreed, finished),
        utility=(),
        seeds=[agreed.plan.seed],
        parts=parts_of(agreed.plan, finished.asks, finished.outcome, finished.released, finished.score, context=context)
        | took_part(agreed.plan, finished),
    )
    value: dict[str, Any] = finite(made)
    finished.folder.write_json("report.json", value)
    write_atomic(finished.folder.path / "report.html", rendered(value).encode())
    beside(finished.folder.path)
    return value


def took_part(plan: Plan, finished: Finished) -> dict[str, Any]:
    """Return who answered which question, and the bytes that went each way."""
    names = [ask.name for ask in finished.asks]
    return {
        "participation": participation(finished.folder, plan, names, finished.institutions.cohort),
        "traffic": finished.institutions.contacts.rows(),
    }
