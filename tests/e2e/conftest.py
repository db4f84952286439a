"""Small plans and data for whole runs, and a shell that runs, and kills, the command line in processes of its own."""

from __future__ import annotations

import collections
import csv
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from patevolve.client import reporting
from patevolve.client.home import open_home
from patevolve.client.policy import draft
from patevolve.client.simulate import Finished, Site, load_records, open_sites, simulate
from patevolve.shared.data.records import Records
from patevolve.shared.plan import Agreed, agree
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy.ledger import Charge, Ledger
from patevolve.shared.randomness import RECORDED_NOISE_VARIABLE, NoiseSource, RecordedNoise

HOSPITALS = ("Cleveland", "Hungary")
FAST = Path("/dev/shm")  # noqa: S108 - memory: a run flushes some sixty files, and kill -9 does not lose memory files

PLAN = """
format = 1
name = "two hospitals"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-5
unit = "patient"
trust = "secure-sum"
[sites]
count = 2
expected_units = 150
[data]
kind = "table"
classes = ["no", "yes"]
label = "disease"
unit = "patient"
site = "hospital"
[[data.columns]]
name = "age"
kind = "numeric"
edges = [20, 45, 55, 65, 90]
[[data.columns]]
name = "sex"
kind = "categorical"
values = ["female", "male"]
[[data.columns]]
name = "chest_pain"
kind = "categorical"
values = ["typical angina", "atypical angina", "non-anginal", "asymptomatic"]
[[data.columns]]
name = "cholesterol"
kind = "numeric"
edges = [100, 200, 240, 600]
missing = true
[[data.columns]]
name = "exercise_angina"
kind = "categorical"
values = ["no", "yes"]
missing = true
[generator]
kind = "tabular"
[questions.counts]
share = 0.3
[questions.prototypes]
share = 0.7
contrast = 0.8
[evolution]
population = 60
generations = 3
mutation = [0.15]
[release]
samples = 60
"""

# Every kind of question in one plan; PATE is ordered here, whether it pays or not.
EVERYTHING: Mapping[str, Any] = {
    "data.hold_out": 0.2,
    "questions.counts.share": 0.1,
    "questions.prototypes.share": 0.4,
    "questions.neighbours.share": 0.2,
    "questions.neighbours.times": 2,
    "questions.neighbours.candidates": 60,
    "questions.neighbours.nearest": 4,
    "questions.labels.share": 0.2,
    "questions.labels.candidates": 60,
    "questions.labels.teachers": 3,
    "questions.score.share": 0.1,
    "release.labels": "pate",
}
NOTHING: Mapping[str, Any] = {"questions.counts": None, "questions.prototypes": None}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, in memory where the system has such a place."""
    if not os.access(FAST, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="patevolve-e2e-", dir=FAST))
    yield folder
    shutil.rmtree(folder)


def repeated(site: str, question: str) -> NoiseSource:
    """Return noise that depends on the site and the question alone."""
    return RecordedNoise(f"{site}\x1f{question}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """What a test needs to run a small plan in this process."""

    place: Path
    noise: Callable[[str, str], NoiseSource] = repeated
    hospitals: tuple[str, ...] = HOSPITALS
    everything: Mapping[str, Any] = dataclasses.field(default_factory=lambda: EVERYTHING)
    nothing: Mapping[str, Any] = dataclasses.field(default_factory=lambda: NOTHING)

    def agreed(self, changes: Mapping[str, Any] | None = None) -> Agreed:
        """Return the small plan with dotted keys changed."""
        return vary(agree(PLAN), changes or {})

    def plan(self, changes: Mapping[str, Any] | None = None, name: str = "plan.toml") -> Path:
        """Write the small plan with dotted keys changed."""
        return self.text(name, self.agreed(changes).text)

    def text(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.place / name
        path.write_text(text, encoding="utf-8")
        return path

    def rows(self) -> list[dict[str, str]]:
        """Return every second record of the two hospitals."""
        with (resources.files("patevolve.client") / "demo_data" / "heart.csv").open(encoding="utf-8") as lines:
            own = [row for row in csv.DictReader(lines) if row["hospital"] in HOSPITALS]
        return own[::2]

    def data(self, rows: list[dict[str, str]] | None = None, name: str = "data.csv") -> Path:
        """Write records as a CSV file."""
        rows = self.rows() if rows is None else rows
        with (self.place / name).open("w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, list(self.rows()[0] if not rows else rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return self.place / name

    def records(self, agreed: Agreed, rows: list[dict[str, str]] | None = None) -> dict[str, Records]:
        """Return records by site, as the command line would load them."""
        return load_records(self.data(rows, "loaded.csv"), agreed.plan)

    def homes(
        self, agreed: Agreed, *, name: str = "sites", reserve: float = 1.0, secret: bytes = b""
    ) -> dict[str, Path]:
        """Write a policy for this plan at both hospitals; a given secret makes the keyed splits repeatable."""
        folders = {site: self.place / name / site.lower() for site in HOSPITALS}
        for site, folder in folders.items():
            folder.mkdir(parents=True)
            (folder / "policy.toml").write_text(draft(site, agreed, reserve=reserve), encoding="utf-8")
            if secret:
                open_home(folder, site=site)
                (folder / "secret.key").write_bytes(secret)
        return folders

    def run(
        self,
        agreed: Agreed,
        records: Mapping[str, Records],
        out: str,
        *,
        homes: Mapping[str, Path] | None = None,
        noise: Callable[[str, str], NoiseSource] | None = None,
        run: str = "run-1",
    ) -> tuple[Finished, dict[str, Site]]:
        """Run a plan into ``place / out`` under a given run id."""
        homes = homes or self.homes(agreed, name=f"{out}-sites", secret=b"s" * 32)
        sites = open_sites(homes, records, agreed)
        return simulate(agreed, sites, self.place / out, noise=noise or self.noise, run=run), sites

    def report(self, agreed: Agreed, finished: Finished, sites: Mapping[str, Site]) -> dict[str, Any]:
        """Write the run's report and return what stands in report.json."""
        context = reporting.Context(
            mode="simulated",
            seeds=[agreed.plan.seed],
            utility=(),
            generations=[],
            reproduce=["patevolve simulate plan.toml"],
            wall_seconds=1.0,
        )
        reporting.write_report(agreed, finished, sites, context)
        found: dict[str, Any] = json.loads((finished.folder.path / "report.json").read_text(encoding="utf-8"))
        return found

    def tree(self, folder: Path) -> dict[str, bytes]:
        """Return every file below a folder by its relative path, but a release's proof.

        The proof holds keys and digests of ledgers, which differ from run to run; ``patevolve verify`` checks it.
        """
        files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "proof.json")
        return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}

    def charges(self, home: Path) -> list[Charge]:
        """Return a site's charges; none if it has no ledger yet."""
        if not (home / "ledger.sqlite").exists():
            return []
        with Ledger.open(home / "ledger.sqlite") as ledger:
            return list(ledger.charges())

    def asked(self, home: Path) -> collections.Counter[str]:
        """Return how often each question was charged at a site."""
        return collections.Counter(charge.question for charge in self.charges(home))


@pytest.fixture
def kit(place: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """Small plans and data in a fresh folder; runs draw recorded noise, so that no test fails by chance."""
    monkeypatch.setenv(RECORDED_NOISE_VARIABLE, "1")
    return Kit(place=place)


@pytest.fixture
def plain_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the charts of the page out where a test is about something else: they take seconds."""
    monkeypatch.setattr(reporting, "rendered", lambda report: f"<html>{report['name']}</html>")
    monkeypatch.setattr(reporting, "beside", lambda _: None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended: its exit code, or the negative number of the signal that ended it."""

    code: int
    out: str
    err: str

    def error(self) -> dict[str, str]:
        """Return the error that the command printed as JSON."""
        found: dict[str, str] = json.loads(self.out)
        return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Runs the command line, each command in a process of its own, which may be told to kill itself."""

    driver: subprocess.Popen[str]

    def __call__(
        self,
        *arguments: object,
        kill: tuple[str, str, int] | None = None,
        draws: Path | None = None,
        twin: str | None = None,
    ) -> Ended:
        """Run ``patevolve`` with these arguments.

        kill:   (point, question, n): SIGKILL at the n-th passage of that point
        draws:  a log of noise draws; the noise is recorded noise, another one for every draw in the log
        twin:   the name of a planted fault of the driver
        """
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            job = {
                "arguments": [str(argument) for argument in arguments],
                "kill": kill,
                "twin": twin,
                "draws": str(draws or Path(folder, "draws")),
                "out": str(out),
                "err": str(err),
            }
            if self.driver.stdin is None or self.driver.stdout is None:
                pytest.fail("the driver has no pipes")
            self.driver.stdin.write(json.dumps(job) + "\n")
            self.driver.stdin.flush()
            reply = self.driver.stdout.readline()
            return Ended(code=int(reply), out=out.read_text("utf-8"), err=err.read_text("utf-8"))


@pytest.fixture(scope="session")
def shell() -> Iterator[Shell]:
    """One driver for the session: it imports once and forks for each command."""
    command = [sys.executable, str(Path(__file__).with_name("driver.py"))]
    environment = {**os.environ, RECORDED_NOISE_VARIABLE: "1", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        yield Shell(driver=driver)
        if driver.stdin is not None:
            driver.stdin.close()
