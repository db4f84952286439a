"""The fault matrix: who is killed or cut × where × what becomes of it. Each cell ends, and costs, as it must."""

from __future__ import annotations

import collections
import dataclasses
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from patevolve.server.run import coordinate, reported
from patevolve.shared.envelopes import decode_response
from patevolve.shared.privacy.ledger import AnswerKey, Ledger
from patevolve.shared.secagg.site import SiteSum

TARGETS = ("site", "executor", "coordinator", "network")
POINTS = (
    "before hello",
    "after setup",
    "before charge",
    "after charge",
    "after draw",
    "after send",
    "during unmask",
)
# The same for the sites' islands, in plans that have them.
ISLAND_POINTS = (
    "before evolve",
    "before an island's charge",
    "after an island's charge",
    "after an island's draw",
    "after evolve",
)
ISLANDS = {
    "islands.migrants": 1,
    "islands.candidates": 8,
    "islands.share": 0.1,
    "islands.nearest": 2,
    "questions.neighbours.share": 0.2,
}
# What becomes of it: it recovers while the run waits; it stays away and the plan can do without it; it stays away and
# the run ends for lack of a quorum, to be resumed when all is well. A killed coordinator is always resumed.
FATES = ("recovers", "spared", "resumed")
NODE, SITE = 101, "Bea"
SECURE = {"privacy.trust": "secure-sum"}


class Fault:
    """Strikes once, where it is told to."""

    def __init__(self, cell: tuple[str, str, str], office: Any, killed: type[BaseException], renew: Any) -> None:
        (self.target, self.point, self.fate), self.office = cell, office
        self.killed, self.renew = killed, renew
        self.struck = threading.Event()
        office.on_request, office.on_reply = self.request, self.reply

    def request(self, node: int, action: str, _: bytes) -> str:
        if node == NODE and (self.point, action) in {("before hello", "hello"), ("before evolve", "evolve")}:
            self.strike(inside=False)
        return "pass"

    def reply(self, node: int, action: str, _: bytes) -> str:
        after = {("after setup", "setup"), ("after send", "ask"), ("after evolve", "evolve")}
        if node == NODE and (self.point, action) in after:
            self.strike(inside=False)
        return "pass"

    def at(self, point: str, site: str) -> None:
        if point == self.point and site == SITE:
            self.strike(inside=True)

    def strike(self, *, inside: bool) -> None:
        if self.struck.is_set():
            return
        self.struck.set()
        if self.target == "coordinator":
            self.office.dead = True
            return
        away = self.office.absent if self.target == "site" else self.office.silent
        away.add(NODE)
        if self.fate == "recovers":
            threading.Timer(0.03, self.recover).start()
        if inside and self.target in {"site", "executor"}:
            raise self.killed

    def recover(self) -> None:
        if self.target in {"site", "executor"}:
            self.office.stations[NODE] = self.renew()  # what was in its memory is gone
        self.office.absent.discard(NODE)
        self.office.silent.discard(NODE)


@pytest.fixture(autouse=True)
def repeatable(town: Any, recorded: Any) -> None:
    """A redrawn noise is the same noise, so that a fault changes no byte of the release."""
    town.noise = recorded


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> list[Fault]:
    """Let ledgers and masks pass by the faults in this list."""
    faults: list[Fault] = []

    def passing(owner: Any, method: str, points: Any, name: Any) -> None:
        original = getattr(owner, method)

        def call(self: Any, *args: Any, **named: Any) -> Any:
            before, after = points(*args, **named)
            for fault in faults:
                fault.at(before, name(self))
            result = original(self, *args, **named)
            for fault in faults:
                fault.at(after, name(self))
            return result

        monkeypatch.setattr(owner, method, call)

    def charging(key: AnswerKey, **_: Any) -> tuple[str, str]:
        what = "an island's charge" if key.question.startswith("islands/") else "charge"
        return f"before {what}", f"after {what}"

    def storing(key: AnswerKey, *_: Any) -> tuple[str, str]:
        return ("after an island's draw" if key.question.startswith("islands/") else "after draw"), ""

    passing(Ledger, "charge", charging, lambda ledger: ledger.site)
    passing(Ledger, "store_answer", storing, lambda ledger: ledger.site)
    passing(SiteSum, "unmask", lambda *_: ("", "during unmask"), lambda one: one._site)
    return faults


def cells(points: tuple[str, ...]) -> list[tuple[str, str, str]]:
    return [
        (target, point, fate)
        for target in TARGETS
        for point in points
        for fate in FATES
        if not (target == "coordinator" and fate == "recovers")
    ]


def play(town: Any, trust: dict[str, Any], wired: list[Fault], killed: Any, cell: tuple[str, str, str]) -> None:
    target, _, fate = cell
    agreed = town.agreed({**trust, "privacy.dropouts": 1 if fate == "spared" else 0})
    office = town.office(agreed, noise=town.noise)
    wired.append(Fault(cell, office, killed, lambda: town.station(agreed, SITE, noise=town.noise).handle))
    settings = town.settings()
    short = dataclasses.replace(settings.timing, deadline=0.8 if fate == "resumed" else 20.0, grace=0.3)
    first = dataclasses.replace(settings, timing=short, hello=short)
    code = None
    try:
        code = reported(agreed, settings.path, lambda: coordinate(agreed, office, first))
    except killed:
        assert target == "coordinator"
    assert wired[0].struck.is_set(), "the fault never struck"
    if target != "coordinator":
        assert code == (8 if fate == "resumed" else 0)
    offices = [office]
    if code != 0:
        wired[0].recover()
        again = dataclasses.replace(office, dead=False, requests=[], replies=[])
        offices.append(again)
        assert reported(agreed, settings.path, lambda: coordinate(agreed, again, settings)) == 0
    if fate == "spared":
        assert (settings.path / "release" / "data.csv").exists()
    else:  # every site is in every sum, once
        assert town.tree("run", "release") == reference(town, agreed)
    check_books(town, offices)


REFERENCES: dict[str, dict[str, bytes]] = {}


def reference(town: Any, agreed: Any) -> dict[str, bytes]:
    """Return the release of the same plan and noise when nothing goes wrong."""
    if agreed.sha256 not in REFERENCES:
        town.simulate(agreed, "reference", noise=town.noise)
        REFERENCES[agreed.sha256] = town.tree("reference", "release")
    return REFERENCES[agreed.sha256]


def check_books(town: Any, offices: list[Any]) -> None:
    """Nothing was drawn that was not charged, and no answer left in two forms without two charges."""
    for position, site in enumerate(town.sites):
        charged = town.charged_hashes(site)
        drawn = {question: count for (at, question), count in town.draws.items() if at == site}
        assert all(count <= charged[question] for question, count in drawn.items()), (site, drawn, charged)
        left: dict[int, set[bytes]] = collections.defaultdict(set)
        for office in offices:
            for node, action, reply in office.replies:
                if node == 100 + position and action == "ask":
                    for number, part in enumerate(decode_response(reply, "ask").parts[:1]):
                        left[number].add(part)
                if node == 100 + position and action == "evolve":
                    for part in decode_response(reply, "evolve").parts:
                        left[-1].add(part)
        assert all(len(forms) <= max(sum(charged.values()), 1) for forms in left.values())


@pytest.mark.parametrize("cell", cells(POINTS), ids=", ".join)
def test_secure_sum(cell: tuple[str, str, str], town: Any, wired: list[Fault], killed: Any) -> None:
    play(town, SECURE, wired, killed, cell)


EACH = tuple(point for point in POINTS if point not in {"after setup", "during unmask"})


@pytest.mark.parametrize("cell", [cell for cell in cells(EACH) if cell[2] != "spared"], ids=", ".join)
def test_each_site(cell: tuple[str, str, str], town: Any, wired: list[Fault], killed: Any) -> None:
    play(town, {}, wired, killed, cell)


@pytest.mark.parametrize("cell", cells(ISLAND_POINTS), ids=", ".join)
def test_islands(cell: tuple[str, str, str], town: Any, wired: list[Fault], killed: Any) -> None:
    play(town, ISLANDS, wired, killed, cell)
    for site in town.sites:  # every charge stays, and only a killed one is paid twice
        islands = town.charges(site)["islands/1"]
        assert islands <= (2 if site == SITE else 1)
        assert islands >= (0 if (site, cell[2]) == (SITE, "spared") else 1)


def test_the_matrix_has_as_many_cells_as_the_readme_says() -> None:
    each = [cell for cell in cells(EACH) if cell[2] != "spared"]
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"More than (\d+) cells of a fault matrix", readme)
    assert 40 <= int(said) < len(cells(POINTS)) + len(each) + len(cells(ISLAND_POINTS))


def test_a_station_that_draws_before_it_charges_is_caught(town: Any) -> None:
    """The planted twin of ``check_books``: noise without a charge."""
    agreed = town.agreed()
    town.coordinate(agreed, town.office(agreed))
    check_books(town, town.offices)
    town.draws["Bea", next(iter(town.charged_hashes("Bea")))] += 1
    with pytest.raises(AssertionError):
        check_books(town, town.offices)
