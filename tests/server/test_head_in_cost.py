"""What a coordinator says of a site's cost counts the private head, which its own ledger never sees."""

from types import SimpleNamespace

import pytest

from patevolve.server.dashboard.snapshot import _spent
from patevolve.server.report import site_summaries
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.global_ledger import GlobalLedger
from patevolve.shared.privacy.global_view import GlobalView, view_global
from patevolve.shared.privacy.head_part import head_events
from patevolve.shared.privacy.signing import create_identity
from patevolve.shared.runfolder import RunFolder
from patevolve.shared.schedule import schedule


@pytest.fixture
def agreed(two_digits):
    return vary(two_digits, {"encoder.head.share": 0.6, "questions.neighbours.share": 0.4, "sites.count": 1})


@pytest.fixture
def path(agreed, tmp_path):
    """A run's folder with every question of the plan on record."""
    with GlobalLedger.create(tmp_path / "global.sqlite", coordinator="hub") as ledger:
        ledger.register_site("north", create_identity(tmp_path / "identity.key").public_key)
        for ask in schedule(agreed.plan, 100):
            ledger.record_question(
                plan_sha256=agreed.sha256,
                run="r",
                question=ask.name,
                question_sha256="0" * 64,
                part=ask.part,
                event=ask.event,
                sites=["north"],
                scope=ask.scope,
            )
    return tmp_path


def whole(plan):
    events = [*(ask.event for ask in schedule(plan, 100)), *head_events(plan)]
    return accountant.epsilon(accountant.compose(events), plan.privacy.delta).epsilon


def test_the_page_counts_the_head_of_a_site_that_was_asked(agreed, path):
    run = SimpleNamespace(agreed=agreed, view=view_global(path / "global.sqlite"))
    assert whole(agreed.plan) > 1.2 * run.view.epsilon(agreed.plan.privacy.delta).epsilon  # else the test shows nothing
    assert _spent(run) == pytest.approx(whole(agreed.plan), rel=1e-12)
    assert _spent(run, "north") == pytest.approx(whole(agreed.plan), rel=1e-12)
    assert _spent(run, "elsewhere") == 0.0
    assert _spent(SimpleNamespace(agreed=agreed, view=GlobalView(questions=(), heads={}))) == 0.0


def test_the_coordinators_report_counts_the_head(agreed, path):
    institutions = SimpleNamespace(cohort=("north",), run="r")
    finished = SimpleNamespace(folder=RunFolder(path=path), institutions=institutions)
    (found,) = site_summaries(agreed, finished)
    assert found.epsilon == pytest.approx(whole(agreed.plan), rel=1e-12)
