"""kill -9 anywhere in a run; then the same command again. Nothing is asked twice for free and nothing is lost.

The noise is recorded, but every draw of a question gets other noise: a run whose release equals the uninterrupted one
has replayed its answers, and each line in the log of draws is one exposure.
"""

from __future__ import annotations

import collections
import dataclasses
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from patevolve.shared.messages import decode_answer
from patevolve.shared.plan import read_plan
from patevolve.shared.privacy.global_ledger import GlobalLedger, verify_global
from patevolve.shared.privacy.ledger import Ledger, verify
from patevolve.shared.runfolder import RunFolder
from patevolve.shared.schedule import schedule
from patevolve.shared.tools import tools_of

REDRAWN = {"after the charge", "after the draw"}  # between the charge and the stored answer: paid again
QUESTIONS = ("counts", "prototypes", "neighbours/1", "labels", "score")
SITE_POINTS = ("before the charge", "after the charge", "after the draw", "after the answer is stored")
RUN_POINTS = ("after the global row", "after the reply", "before the reply is saved", "after the reply is saved")


def _cells() -> list[Any]:
    cells = [(point, name, 2) for name in ("counts", "prototypes", "neighbours/1") for point in SITE_POINTS]
    cells += [(point, name, 1) for name in ("counts", "prototypes", "neighbours/1") for point in RUN_POINTS]
    cells += [(point, "counts", 1) for point in SITE_POINTS]
    cells += [("after the charge", "labels", 1), ("after the answer is stored", "labels", 2)]
    cells += [("after the draw", "score", 1), ("after the reply is saved", "score", 1)]
    cells += [("before a checkpoint", "2", 1), ("after a checkpoint", "1", 1), ("after a checkpoint", "3", 1)]
    cells += [("during the release", name, 1) for name in ("README.md", "data.csv", "manifest.json")]
    cells += [("before the release is renamed", "", 1), ("before the student", "", 1)]
    cells += [("before the report", "", 1), ("between report.json and report.html", "", 1)]
    cells += [("while a file is written", name, 1) for name in ("plan", "run", "001", "student")]
    cells += [("after a ledger is made", "global.sqlite", 1)]
    cells += [("before the site's ledger is opened", "", 2)]
    return [pytest.param(cell, id="-".join(map(str, cell)).replace(" ", "_")) for cell in cells]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run's folders and the command that makes it or goes on with it."""

    place: Path
    plan: Path

    @property
    def out(self) -> Path:
        return self.place / "run"

    @property
    def draws(self) -> Path:
        return self.place / "draws"

    @property
    def homes(self) -> dict[str, Path]:
        return {"Cleveland": self.place / "sites" / "cleveland", "Hungary": self.place / "sites" / "hungary"}

    @property
    def command(self) -> tuple[object, ...]:
        data, homes = self.place / "data.csv", self.place / "sites"
        return ("simulate", self.plan, "--data", data, "--homes", homes, "--out", self.out, "--format", "json")

    def drawn(self) -> collections.Counter[tuple[str, str]]:
        """Return how often noise was drawn for each (site, question hash)."""
        lines = self.draws.read_text("utf-8").splitlines() if self.draws.exists() else []
        return collections.Counter((line.split()[0], line.split()[1]) for line in lines)

    def charged(self) -> collections.Counter[tuple[str, str]]:
        """Return how often each (site, question hash) was charged, of ledgers that verify."""
        found: collections.Counter[tuple[str, str]] = collections.Counter()
        for site, home in self.homes.items():
            if (home / "ledger.sqlite").exists():
                verify(home / "ledger.sqlite")
                with Ledger.open(home / "ledger.sqlite") as ledger:
                    found.update((site, charge.key.question_sha256) for charge in ledger.charges())
        return found

    def answers(self) -> dict[str, dict[int, bytes]]:
        """Return each site's stored answers by row."""
        return {
            site: dict(sqlite3.connect(home / "ledger.sqlite").execute("SELECT seq, data FROM answers").fetchall())
            for site, home in self.homes.items()
            if (home / "ledger.sqlite").exists()
        }


@pytest.fixture
def run(kit: Any) -> Run:
    """A run of every kind of question that has not begun."""
    agreed = kit.agreed(kit.everything)
    kit.homes(agreed, reserve=3.0, secret=b"s" * 32)
    kit.data()
    return Run(place=kit.place, plan=kit.plan(kit.everything))


@pytest.fixture(scope="module")
def uninterrupted(shell: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Any]:
    """What the run that nobody killed released; filled by the first test that needs it."""
    return {}


@pytest.fixture
def expected(run: Run, kit: Any, shell: Any, uninterrupted: dict[Any, Any]) -> dict[str, dict[str, bytes]]:
    """The release and student of the run that nobody killed."""
    if not uninterrupted:
        whole = Run(place=kit.place / "whole", plan=run.plan)
        whole.place.mkdir()
        shutil.copytree(kit.place / "sites", whole.place / "sites")
        shutil.copy(kit.place / "data.csv", whole.place / "data.csv")
        ended = shell(*whole.command, draws=whole.draws)
        assert ended.code == 0, ended.err
        uninterrupted.update({part: kit.tree(whole.out / part) for part in ("release", "student", "generations")})
        assert set(whole.drawn().values()) == {1}
    return uninterrupted


@pytest.mark.parametrize("cell", _cells())
def test_a_killed_run_resumes(
    cell: tuple[str, str, int], run: Run, kit: Any, shell: Any, expected: dict[str, dict[str, bytes]]
) -> None:
    point, name, passage = cell
    killed = shell(*run.command, kill=(point, name, passage), draws=run.draws)
    assert killed.code == -9, f"{point} was not passed: {killed.out} {killed.err}"
    assert run.drawn() <= run.charged(), "noise was drawn that no ledger shows"
    before = run.answers()

    resumed = shell(*run.command, draws=run.draws)
    assert resumed.code == 0, resumed.out + resumed.err

    _check_ledgers(run, kit, again=(name, passage) if point in REDRAWN else None)
    _check_answers(run, before)
    if point not in REDRAWN:
        assert set(run.drawn().values()) == {1}
        assert {part: kit.tree(run.out / part) for part in expected} == expected
    assert (run.out / "report.html").exists()
    assert not list(run.out.rglob(".*")), "a half-written file was left behind"


ISLANDS = {
    "questions.neighbours": None,
    "questions.prototypes.share": 0.6,
    "islands.migrants": 3,
    "islands.candidates": 20,
    "islands.share": 0.1,
    "islands.nearest": 2,
}


@pytest.mark.parametrize(
    "point", ["before the charge", "after the charge", "after the draw", "after the answer is stored"]
)
def test_a_run_killed_around_its_islands_resumes(point: str, kit: Any, shell: Any) -> None:
    """At the second site: the first one's migrants are stored by then, and are given again, not drawn again."""
    agreed = kit.agreed(ISLANDS)
    kit.homes(agreed, reserve=3.0, secret=b"s" * 32)
    kit.data()
    run = Run(place=kit.place, plan=kit.plan(ISLANDS))
    assert shell(*run.command, kill=(point, "islands/1", 2), draws=run.draws).code == -9
    assert run.drawn() <= run.charged(), "noise was drawn that no ledger shows"
    before = run.answers()
    resumed = shell(*run.command, draws=run.draws)
    assert resumed.code == 0, resumed.out + resumed.err
    _check_ledgers(run, kit, again=("islands/1", 2) if point in REDRAWN else None)
    for site, stored in before.items():
        assert stored.items() <= run.answers()[site].items()
    again = max(run.drawn().values())
    assert again == (2 if point == "after the draw" else 1)


def _check_ledgers(run: Run, kit: Any, *, again: tuple[str, int] | None) -> None:
    """Hold the sites' ledgers against the plan, the draws and the coordinator's signed heads."""
    plan = read_plan(run.plan).plan
    asks = [ask.name for ask in schedule(plan, tools_of(plan).encoder.embedding_size)]
    with GlobalLedger.open(run.out / "global.sqlite") as joined:
        heads = {site: joined.trusted_heads(site) for site in run.homes}
        assert [row["question"] for row in joined.questions()] == asks
    verify_global(run.out / "global.sqlite")
    for position, (site, home) in enumerate(run.homes.items(), 1):
        assert len({head.seq for head in heads[site]}) == len(asks)
        verify(home / "ledger.sqlite", trusted_heads=heads[site])
        twice = again is not None and position == again[1]
        assert kit.asked(home) == collections.Counter([*asks, again[0]] if again and twice else asks)
        with Ledger.open(home / "ledger.sqlite") as ledger:
            assert len(ledger.unanswered()) == int(twice)
    assert run.drawn() <= run.charged()


def _check_answers(run: Run, before: dict[str, dict[int, bytes]]) -> None:
    """Hold that stored answers stay, that each question has one answer, and that the kept sums are their sums."""
    after = run.answers()
    for site, stored in before.items():
        assert stored.items() <= after[site].items()
    sums: dict[str, list[Any]] = collections.defaultdict(list)
    for stored in after.values():
        answers = [decode_answer(data) for data in stored.values()]
        assert len({answer.question for answer in answers}) == len(answers)
        for answer in answers:
            sums[answer.question].append(answer.values)
    folder = RunFolder(path=run.out)
    with GlobalLedger.open(run.out / "global.sqlite") as joined:
        for row in joined.questions():
            reply = folder.load_reply(row["question"], row["question_sha256"])
            assert reply is not None
            assert (reply.tally.values == sum(sums[row["question_sha256"]])).all()


@pytest.mark.parametrize(
    ("point", "name"),
    [
        ("after a ledger is made", "ledger.sqlite"),
        ("while a file is written", "identity"),
        ("while a file is written", "secret"),
    ],
)
def test_a_site_killed_while_its_folder_is_made_begins_again(
    point: str, name: str, kit: Any, shell: Any, place: Path
) -> None:
    kit.homes(kit.agreed(kit.everything))
    kit.data()
    run = Run(place=place, plan=kit.plan(kit.everything))
    assert shell(*run.command, kill=(point, name, 1)).code == -9
    resumed = shell(*run.command)
    assert resumed.code == 0, resumed.out
    for file in ("secret.key", "identity.key"):
        path = run.homes["Cleveland"] / file
        assert len(path.read_bytes()) >= 32
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_finished_run_asks_nothing_when_repeated(run: Run, kit: Any, shell: Any) -> None:
    first = shell(*run.command, draws=run.draws)
    assert first.code == 0, first.err
    made, charged, drawn = kit.tree(run.out / "release"), run.charged(), run.drawn()
    again = shell(*run.command, draws=run.draws)
    assert again.code == 0, again.err
    assert (kit.tree(run.out / "release"), run.charged(), run.drawn()) == (made, charged, drawn)


@pytest.mark.parametrize("point", SITE_POINTS)
def test_a_run_killed_twice_pays_for_each_exposure(point: str, run: Run, kit: Any, shell: Any) -> None:
    for _ in range(2):
        assert shell(*run.command, kill=(point, "prototypes", 1), draws=run.draws).code == -9
    assert shell(*run.command, draws=run.draws).code == 0
    expected = 3 if point in REDRAWN else 1
    assert kit.asked(run.homes["Cleveland"])["prototypes"] == expected
    assert kit.asked(run.homes["Hungary"])["prototypes"] == 1
    assert run.drawn() <= run.charged()


def test_without_a_reserve_a_crash_after_the_charge_ends_the_run_and_not_the_guarantee(
    kit: Any, shell: Any, place: Path
) -> None:
    agreed = kit.agreed(kit.everything)
    kit.homes(agreed, reserve=1.0, secret=b"s" * 32)
    kit.data()
    run = Run(place=place, plan=kit.plan(kit.everything))
    assert shell(*run.command, kill=("after the draw", "prototypes", 1), draws=run.draws).code == -9
    refused = shell(*run.command, draws=run.draws)
    assert refused.code == 5, refused.out
    assert refused.error()["error"] == "budget"
    assert not (run.out / "release").exists()
    with Ledger.open(run.homes["Cleveland"] / "ledger.sqlite") as ledger:
        assert ledger.spent(agreed.plan.privacy.delta).epsilon <= agreed.plan.privacy.epsilon
    assert run.drawn() <= run.charged()


def test_a_ledger_rolled_back_between_the_kill_and_the_resumption_stops_the_run(run: Run, kit: Any, shell: Any) -> None:
    home = run.homes["Cleveland"]
    shutil.copytree(home, run.place / "backup")
    assert shell(*run.command, kill=("after the reply is saved", "prototypes", 1), draws=run.draws).code == -9
    shutil.rmtree(home)
    shutil.copytree(run.place / "backup", home)
    drawn = run.drawn()
    refused = shell(*run.command, draws=run.draws)
    assert refused.code == 6, refused.out
    assert refused.error()["error"] == "ledger"
    assert run.drawn() == drawn, "noise was drawn although the ledger had lost charges"
    assert kit.asked(home) == {}
    assert kit.asked(run.homes["Hungary"]) == {"counts": 1, "prototypes": 1}


def test_the_planted_twins_are_caught(run: Run, kit: Any, shell: Any) -> None:
    """The invariants above can fail: each of these faults breaks one of them."""
    assert shell(*run.command, kill=("before the charge", "counts", 1), draws=run.draws, twin="draws first").code == -9
    assert not run.drawn() <= run.charged()


def test_the_twin_that_forgets_its_answers_pays_again(run: Run, kit: Any, shell: Any) -> None:
    killed = shell(*run.command, kill=("after the reply", "counts", 1), draws=run.draws, twin="forgets answers")
    assert killed.code == -9
    assert shell(*run.command, draws=run.draws, twin="forgets answers").code == 0
    assert kit.asked(run.homes["Cleveland"])["counts"] == 2


def test_the_twin_that_takes_a_second_draw_as_paid_is_caught(run: Run, kit: Any, shell: Any) -> None:
    assert shell(*run.command, kill=("after the draw", "counts", 1), draws=run.draws, twin="refunds").code == -9
    shell(*run.command, draws=run.draws, twin="refunds")
    assert not run.drawn() <= run.charged()
