"""One small site with every kind of question, and a noise source and ledger that write down what happens when."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from patevolve.client.guard import Guard
from patevolve.client.home import open_home
from patevolve.client.institution import Institution, render_once
from patevolve.client.policy import draft
from patevolve.client.private_index import build_index
from patevolve.client.teachers import teach
from patevolve.shared.data.records import Records
from patevolve.shared.messages import Question, encode_question
from patevolve.shared.plan import agree
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.schedule import schedule
from patevolve.shared.tools import tools_of

PLAN = """
format = 1
name = "p"
seed = 1
[privacy]
epsilon = 3.0
delta = 1e-5
records_per_unit = 2
[sites]
count = 1
expected_units = 60
[data]
kind = "table"
classes = ["a", "b"]
label = "y"
unit = "id"
hold_out = 0.3
[[data.columns]]
name = "u"
kind = "numeric"
edges = [0, 1, 2, 3]
[[data.columns]]
name = "v"
kind = "categorical"
values = ["x", "y"]
missing = true
[generator]
kind = "tabular"
[questions.counts]
share = 0.1
[questions.prototypes]
share = 0.3
[questions.neighbours]
share = 0.3
times = 2
candidates = 12
nearest = 3
[questions.labels]
share = 0.2
candidates = 10
teachers = 4
[questions.score]
share = 0.1
[evolution]
generations = 2
[release]
samples = 10
"""


class Noted:
    """A wrapper that writes down each call of a method before and after it."""

    def __init__(self, inner, log, *methods):
        self._inner, self._log, self._methods = inner, log, methods

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name not in self._methods:
            return found

        def call(*args, **kwargs):
            result = found(*args, **kwargs)
            self._log.append(name)  # only what succeeded
            return result

        return call


@dataclasses.dataclass(kw_only=True)
class Desk:
    """An institution at work: the log of its ledger and noise, and questions to put to it."""

    agreed: object
    asks: tuple
    institution: Institution
    ledger: object
    log: list
    records: Records
    home: object

    def question(self, name, /, **changes):
        """Return the bytes of a question of the plan."""
        kind = name.split("/")[0]
        rng = np.random.default_rng(0)
        arrays = {}
        if kind == "neighbours":
            arrays = {"genomes": rng.integers(0, 2, (12, 2)).astype(float), "classes": np.arange(12) % 2}
        elif kind == "labels":
            arrays = {"genomes": rng.integers(0, 2, (10, 2)).astype(float), "classes": np.arange(10) % 2}
        elif kind == "score":
            arrays = {"weights": rng.normal(size=(6, 2)), "bias": np.zeros(2)}
        start = {"kind": kind, "name": name, "plan": self.agreed.sha256, "run": "r1", "arrays": arrays}
        return encode_question(Question(**(start | changes)))

    def handle(self, data):
        """Return the answer and write down that it was returned."""
        answer = self.institution.handle(data)
        self.log.append("returned")
        return answer

    def charges(self):
        """Return how many charges the ledger holds."""
        return sum(1 for _ in self.ledger.charges())


def site_records(units=60, seed=0):
    rng = np.random.default_rng(seed)
    names = np.array([f"u{i // 2}" for i in range(2 * units)])
    return Records(values=rng.integers(0, 3, (2 * units, 2)), classes=np.arange(2 * units) // 2 % 2, units=names)


@pytest.fixture
def agreed():
    return agree(PLAN)


@pytest.fixture
def records():
    return site_records()


@pytest.fixture
def open_desk(tmp_path):
    """Return a function that opens a site under a plan; the same folder again is the same site, restarted."""
    opened = []

    def make(agreed, *, folder="site", found=None, policy=None, noise=None, cohort="c" * 64):
        home_path = tmp_path / folder
        home_path.mkdir(exist_ok=True)
        if not (home_path / "policy.toml").exists():
            (home_path / "policy.toml").write_text(policy or draft("s", agreed), encoding="utf-8")
        home, log, found = open_home(home_path, site="s"), [], found or site_records()
        ledger = home.open_ledger()
        opened.append(ledger)
        tools = tools_of(agreed.plan)
        asks = schedule(agreed.plan, tools.encoder.embedding_size)
        index = build_index(found, agreed.plan, tools.encoder, home.secret)
        source = noise or (lambda *_: Noted(SystemNoise(), log, "read"))
        noted = Noted(ledger, log, "charge", "store_answer")
        institution = Institution(
            agreed=agreed,
            asks=asks,
            cohort=cohort,
            guard=Guard(policy=home.policy, ledger=noted, identity=home.identity, noise=source),
            index=index,
            encoder=tools.encoder,
            generator=tools.generator,
            teach=teach(index.members, home.secret, agreed.plan.questions.labels.teachers),
            rendered=render_once(tools.generator, tools.encoder),
        )
        return Desk(agreed=agreed, asks=asks, institution=institution, ledger=ledger, log=log, records=found, home=home)

    yield make
    for ledger in opened:
        ledger.close()
