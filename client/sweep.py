"""``patevolve sweep``: what more ε buys and what it gives away, on a demonstration's public data.

Every point is a whole run with fresh noise. On private data a sweep would cost the sum of its ε, so there is none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.client import study
from patevolve.client.audit_deeper import inversions
from patevolve.client.audit_pipeline import Asked, exact_sums
from patevolve.client.demo import DEMONSTRATIONS, data_of, plan_of
from patevolve.client.private_index import build_index
from patevolve.client.study import Judges, Made, Split
from patevolve.client.variants import PUBLIC_ONLY
from patevolve.shared.audit import bounds, membership
from patevolve.shared.audit.membership import Group
from patevolve.shared.messages import Question, digest, encode_question
from patevolve.shared.plan_edit import vary
from patevolve.shared.schedule import find
from patevolve.shared.students.evaluate import evaluate
from patevolve.shared.tools import tools_of

Floats = NDArray[np.float64]
NEAREST = 5  # released samples that vote on a held-out record's class
MEASURES = ("representation", "downstream", "gain", "inversion", "membership")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run's figures.

    representation:  accuracy of the nearest released samples on held-out real records, in the encoder's features
    downstream:      the first student's metric on the same records;  gain: less that of the public generator alone
    inversion:       share of records that are rebuilt from the noisy sum by who knows all others
    membership:      AUC of the mean-shift attack, members against held-out records; chance is 0.5
    """

    epsilon: float
    seed: int
    representation: float
    downstream: float
    gain: float
    inversion: float
    membership: float


def sweep(name: str, *, epsilons: Sequence[float], seeds: Sequence[int], tick: Callable[[str], None]) -> dict[str, Any]:
    """Return the table of a demonstration: every ε over every seed, with what stands beside it."""
    points: list[Point] = []
    beside: list[dict[str, float]] = []
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="patevolve-sweep-") as scratch:
            public, real = _beside(name, seed, Path(scratch))
            beside.append({"public": public[1], "public_near": public[0], "real": real[1], "real_near": real[0]})
            tick(f"seed {seed}, baselines")
            for epsilon in epsilons:
                points.append(_point(name, epsilon, seed, Path(scratch) / f"{epsilon:g}", public[1]))
                tick(f"seed {seed}, ε = {epsilon:g}")
    judges, first = DEMONSTRATIONS[name].judges, plan_of(name, epsilons[0], seeds[0]).plan
    return {
        "name": name,
        "metric": f"{judges.metric} of {judges.students[0]}",
        "delta": first.privacy.delta,
        "seeds": list(seeds),
        "rows": [_row(epsilon, [one for one in points if one.epsilon == epsilon]) for epsilon in epsilons],
        "beside": {key: _spread([one[key] for one in beside]) for key in beside[0]},
        "chance": {"membership": 0.5, "inversion": _line_up(name, seeds[0])},
    }


def _line_up(name: str, seed: int) -> float:
    from patevolve.client.audit_deeper import LINE_UP, REBUILT  # noqa: PLC0415 - figures of one line

    parts = data_of(name, plan_of(name, 1.0, seed).plan, seed)
    rest = max(0, sum(map(len, parts.train.values())) - REBUILT) + len(parts.test)
    return 1.0 / (1 + min(LINE_UP, rest))


def _row(epsilon: float, points: Sequence[Point]) -> dict[str, Any]:
    return {"epsilon": epsilon, **{key: _spread([getattr(one, key) for one in points]) for key in MEASURES}}


def _spread(values: Sequence[float]) -> dict[str, Any]:
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "sd": sd, "values": [float(value) for value in values]}


def _beside(name: str, seed: int, folder: Path) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return (nearest, student) of the public generator alone, and of the real records without privacy."""
    agreed, judges = plan_of(name, 1.0, seed), DEMONSTRATIONS[name].judges
    parts = data_of(name, agreed.plan, seed)
    made = study.make(vary(agreed, PUBLIC_ONLY), parts.train, folder / "public")
    real, encoder = study.join(list(parts.train.values())), tools_of(agreed.plan).encoder
    return _useful(made, parts, judges), _judged((encoder.encode(real.values), real.classes), made, parts, judges)


def _useful(made: Made, parts: Split, judges: Judges) -> tuple[float, float]:
    released = made.finished.released
    return _judged((released.features, released.samples.classes), made, parts, judges)


def _judged(train: tuple[Floats, NDArray[np.int64]], made: Made, parts: Split, judges: Judges) -> tuple[float, float]:
    test = made.finished.tools.encoder.encode(parts.test.values), parts.test.classes
    return nearest_accuracy(train, test), evaluate(train, test, student=judges.students[0], metric=judges.metric)


def nearest_accuracy(train: tuple[Floats, NDArray[np.int64]], test: tuple[Floats, NDArray[np.int64]]) -> float:
    """Return how often the majority of the ``NEAREST`` training rows has the class of a test row."""
    (known, classes), (rows, wanted) = train, test
    count, right = int(max(classes.max(), wanted.max())) + 1, 0
    for start in range(0, len(rows), 256):
        block = rows[start : start + 256]
        apart = np.sum(known**2, axis=1) - 2.0 * block @ known.T
        near = np.argpartition(apart, min(NEAREST, len(known)) - 1, axis=1)[:, :NEAREST]
        votes = np.apply_along_axis(np.bincount, 1, classes[near], minlength=count)
        right += int(np.sum(votes.argmax(axis=1) == wanted[start : start + 256]))
    return right / len(rows)


def _point(name: str, epsilon: float, seed: int, folder: Path, public: float) -> Point:
    agreed, judges = plan_of(name, epsilon, seed), DEMONSTRATIONS[name].judges
    parts = data_of(name, agreed.plan, seed)
    made = study.make(agreed, parts.train, folder)
    near, downstream = _useful(made, parts, judges)
    inverted = inversions(_asked(made), study.join(list(parts.train.values())), parts.test, [_noise(made, parts)])
    return Point(
        epsilon=epsilon,
        seed=seed,
        representation=near,
        downstream=downstream,
        gain=downstream - public,
        inversion=inverted[-1].found.value,
        membership=_membership(made, parts),
    )


def _asked(made: Made) -> Asked:
    return Asked(agreed=made.agreed, asks=made.finished.asks, tools=made.finished.tools, questions={})


def _noise(made: Made, parts: Split) -> Mapping[str, Floats]:
    """Return the noise in the sum of the prototypes: what came, less what the same code makes of the records."""
    agreed, tools, asks = made.agreed, made.finished.tools, made.finished.asks
    ask = find(asks, "prototypes")
    question = encode_question(
        Question(kind=ask.kind, name=ask.name, plan=agreed.sha256, run=made.finished.run, arrays={})
    )
    reply = made.finished.folder.load_reply(ask.name, digest(question))
    if reply is None:
        return {}
    exact = np.zeros(ask.bounds.size)
    for site, records in parts.train.items():
        secret = made.sites[site].home.secret
        index = build_index(records, agreed.plan, tools.encoder, secret)
        exact += exact_sums(agreed, asks, tools, index, secret)(question)
    return {"prototypes": reply.tally.values - exact}


def _membership(made: Made, parts: Split) -> float:
    """Return the AUC of the mean-shift attack; every second held-out record is the attacker's reference."""
    encoder, released = made.finished.tools.encoder, made.finished.released
    members = study.join(list(parts.train.values()))
    order = np.argsort(parts.test.classes, kind="stable")
    known, others = (_group(encoder, parts.test.pick(order[start::2])) for start in (0, 1))
    made_of = Group(features=released.features, classes=released.samples.classes)
    scores = [membership.mean_shift(group, made_of, known) for group in (_group(encoder, members), others)]
    return bounds.auc(scores[0], scores[1]).value


def _group(encoder: Any, records: Any) -> Group:
    return Group(features=encoder.encode(records.values), classes=records.classes)


def text(found: Mapping[str, Any]) -> str:
    """Return the table as Markdown."""
    seeds, beside = len(found["seeds"]), found["beside"]
    lines = [
        f"{found['name']}, δ = {found['delta']:g}, mean ± sd over {seeds} seed{'s' if seeds != 1 else ''}",
        "",
        f"| ε | accuracy of the nearest samples | {found['metric']} | gain over public alone | records rebuilt | AUC |",
        "|---|---|---|---|---|---|",
        f"| 0 (public alone) | {_cell(beside['public_near'])} | {_cell(beside['public'])} | 0 | – | – |",
    ]
    lines += [f"| {row['epsilon']:g} | {' | '.join(_cell(row[key]) for key in MEASURES)} |" for row in found["rows"]]
    lines += [
        f"| ∞ (real records) | {_cell(beside['real_near'])} | {_cell(beside['real'])} | – | – | – |",
        "",
        f"Chance: records rebuilt from the votes {found['chance']['inversion']:.4f}, AUC of membership 0.5.",
    ]
    return "\n".join(lines)


def _cell(value: Mapping[str, Any]) -> str:
    return f"{value['mean']:.3f}" if value["sd"] is None else f"{value['mean']:.3f} ± {value['sd']:.3f}"
