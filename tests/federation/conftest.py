"""A network in this process: stations behind a post that loses, delays, doubles and cuts, and sites that are killed."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patevolve.client.approved import install_plan
from patevolve.client.home import open_home
from patevolve.client.policy import draft
from patevolve.client.simulate import Finished, load_records, open_sites, simulate, system_noise
from patevolve.client.station import Station
from patevolve.server.cohort import load_roster
from patevolve.server.post import Timing
from patevolve.server.run import Settings, coordinate
from patevolve.shared.plan import Agreed, agree
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy.ledger import Ledger
from patevolve.shared.privacy.signing import create_identity, load_identity
from patevolve.shared.randomness import RECORDED_NOISE_VARIABLE, RecordedNoise

FAST = Path("/dev/shm")  # noqa: S108 - memory: a run flushes some sixty files
SITES = ("Ada", "Bea", "Cid")
PLAN = """
format = 1
name = "three sites"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-5
[sites]
count = 3
expected_units = 60
[data]
kind = "table"
classes = ["no", "yes"]
label = "y"
unit = "patient"
site = "site"
[[data.columns]]
name = "age"
kind = "numeric"
edges = [0, 10, 20, 30]
[[data.columns]]
name = "sex"
kind = "categorical"
values = ["f", "m"]
[generator]
kind = "tabular"
[questions.counts]
share = 0.3
[questions.prototypes]
share = 0.4
[questions.neighbours]
share = 0.3
candidates = 20
nearest = 2
[evolution]
population = 20
generations = 2
[release]
samples = 20
"""
QUICK = Timing(deadline=20.0, grace=20.0, patience=0.2, rest=0.02, poll=0.004)


class KilledError(BaseException):
    """What a process feels of SIGKILL: nothing may catch it."""


@dataclasses.dataclass(kw_only=True)
class Office:
    """A post over stations in this process.

    absent:  nodes whose process is gone: Flower says so
    silent:  nodes that look alive, but nothing gets there or back, and nobody says so
    taps:    see every letter and reply, and may change their fate: "pass", "drop", "double"
    """

    stations: dict[int, Callable[[str, bytes], bytes]]
    absent: set[int] = dataclasses.field(default_factory=set)
    silent: set[int] = dataclasses.field(default_factory=set)
    dead: bool = False  # the coordinator
    on_request: Callable[[int, str, bytes], str] = lambda *_: "pass"
    on_reply: Callable[[int, str, bytes], str] = lambda *_: "pass"
    requests: list[tuple[int, str, bytes]] = dataclasses.field(default_factory=list)
    replies: list[tuple[int, str, bytes]] = dataclasses.field(default_factory=list)
    _ids: Any = dataclasses.field(default_factory=itertools.count)
    _pool: ThreadPoolExecutor = dataclasses.field(default_factory=lambda: ThreadPoolExecutor(8))
    _come: dict[str, bytes | None] = dataclasses.field(default_factory=dict)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def nodes(self) -> list[int]:
        return [node for node in self.stations if node not in self.absent]

    def push(self, letters: Any, ttl: float) -> list[str]:  # noqa: ARG002 - the protocol has it
        if self.dead:
            raise KilledError
        ids = []
        for letter in letters:
            ids.append(str(next(self._ids)))
            self._pool.submit(self._carry, ids[-1], letter)
        return ids

    def pull(self, ids: Any) -> dict[str, bytes | None]:
        if self.dead:
            raise KilledError
        with self._lock:
            return {one: self._come.pop(one) for one in ids if one in self._come}

    def _carry(self, one: str, letter: Any) -> None:
        self.requests.append((letter.node, letter.action, letter.data))
        fate = self.on_request(letter.node, letter.action, letter.data)
        for _ in range({"drop": 0, "double": 2}.get(fate, 1)):
            reply = self._answered(letter)
            if letter.node not in self.silent and reply != b"dropped":
                self._arrive(one, reply)

    def _answered(self, letter: Any) -> bytes | None:
        node = letter.node
        if node in self.absent or node in self.silent:
            return None
        try:
            reply = self.stations[node](letter.action, letter.data)
        except KilledError:
            return None
        self.replies.append((node, letter.action, reply))
        return b"dropped" if self.on_reply(node, letter.action, reply) == "drop" else reply

    def _arrive(self, one: str, data: bytes | None) -> None:
        with self._lock:
            self._come[one] = data

    def close(self) -> None:
        self._pool.shutdown(wait=True)


@dataclasses.dataclass(kw_only=True)
class Town:
    """Three sites with folders and data, and how to run plans over them."""

    place: Path
    draws: collections.Counter[tuple[str, str]] = dataclasses.field(default_factory=collections.Counter)
    offices: list[Office] = dataclasses.field(default_factory=list)
    text: str = PLAN
    noise: Any = system_noise
    sites: tuple[str, ...] = SITES

    def agreed(self, changes: Mapping[str, Any] | None = None) -> Agreed:
        return vary(agree(self.text), changes or {})

    def data(self, site: str) -> Path:
        path = self.place / f"{site}.csv"
        rng = np.random.default_rng(sum(map(ord, site)))
        rows = [
            f"{('no', 'yes')[rng.integers(2)]},{site}-{i},{site},{rng.integers(30)},{'fm'[rng.integers(2)]}"
            for i in range(60)
        ]
        path.write_text("\n".join(["y,patient,site,age,sex", *rows]) + "\n", encoding="utf-8")
        return path

    def home(
        self, agreed: Agreed, site: str, *, name: str = "homes", reserve: float = 3.0, approve: bool = True
    ) -> Path:
        folder = self.place / name / site
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "policy.toml").write_text(draft(site, agreed, reserve=reserve), encoding="utf-8")
            if approve:
                install_plan(folder, agreed)
        return folder

    def station(self, agreed: Agreed, site: str, **named: Any) -> Station:
        noise = named.pop("noise", system_noise)

        def counted(at: str, question: str) -> Any:
            self.draws[at, question] += 1
            return noise(at, question)

        return Station(home=self.home(agreed, site, **named), data=self.data(site), noise=counted)

    def office(self, agreed: Agreed, **named: Any) -> Office:
        stations = {
            100 + position: self.station(agreed, site, **named).handle for position, site in enumerate(self.sites)
        }
        if agreed.plan.privacy.trust == "secure-sum":
            self.roster(agreed)
        self.offices.append(Office(stations=stations))
        return self.offices[-1]

    def roster(self, agreed: Agreed, *, name: str = "homes") -> Path:
        """Let everybody know everybody's public key, as a deployment does before its first run."""
        key = self.place / "coordinator.key"
        identity = load_identity(key) if key.exists() else create_identity(key)
        keys = {site: open_home(self.home(agreed, site, name=name)).identity.public_key for site in self.sites}
        text = json.dumps({"coordinator": identity.public_key, "sites": keys})
        for site in self.sites:
            (self.place / name / site / "roster.json").write_text(text, encoding="utf-8")
        (self.place / "roster.json").write_text(text, encoding="utf-8")
        return key

    def settings(self, out: str = "run", **named: Any) -> Settings:
        start = {"path": self.place / out, "known": {}, "hello": QUICK, "timing": QUICK, "run": "run-1"}
        if (self.place / "roster.json").exists():
            start |= {"known": load_roster(self.place / "roster.json"), "key": self.place / "coordinator.key"}
        return Settings(**(start | named))

    def coordinate(self, agreed: Agreed, office: Office, out: str = "run", **named: Any) -> Any:
        return coordinate(agreed, office, self.settings(out, **named))

    def simulate(self, agreed: Agreed, out: str, noise: Any = system_noise) -> Finished:
        """Run the same plan over the same data as the simulated mode."""
        lines: list[str] = []
        for site in self.sites:
            own = self.data(site).read_text(encoding="utf-8").splitlines()
            lines += own if not lines else own[1:]
        (self.place / "all.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        homes = {site: self.home(agreed, site, name=f"{out}-homes") for site in self.sites}
        sites = open_sites(homes, load_records(self.place / "all.csv", agreed.plan), agreed)
        return simulate(agreed, sites, self.place / out, noise=noise, run="run-1")

    def charges(self, site: str, name: str = "homes") -> collections.Counter[str]:
        path = self.place / name / site / "ledger.sqlite"
        if not path.exists():
            return collections.Counter()
        with Ledger.open(path) as ledger:
            return collections.Counter(charge.question for charge in ledger.charges())

    def charged_hashes(self, site: str, name: str = "homes") -> collections.Counter[str]:
        path = self.place / name / site / "ledger.sqlite"
        if not path.exists():
            return collections.Counter()
        with Ledger.open(path) as ledger:
            return collections.Counter(charge.key.question_sha256 for charge in ledger.charges())

    def tree(self, *parts: str) -> dict[str, bytes]:
        """Return every file below a folder but a release's proof, which holds keys and digests of ledgers."""
        folder = self.place.joinpath(*parts)
        files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "proof.json")
        return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, in memory where the system has such a place."""
    if not os.access(FAST, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="patevolve-federation-", dir=FAST))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def town(place: Path) -> Iterator[Town]:
    found = Town(place=place)
    yield found
    for office in found.offices:
        office.close()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Noise that depends on the site and the question alone."""
    monkeypatch.setenv(RECORDED_NOISE_VARIABLE, "1")
    return lambda site, question: RecordedNoise(f"{site}\x1f{question}")


@pytest.fixture
def killed() -> type[BaseException]:
    return KilledError


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for something that another thread does."""

    def wait(true: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not true():
            if time.monotonic() > end:
                pytest.fail("it never happened")
            time.sleep(0.005)

    return wait
