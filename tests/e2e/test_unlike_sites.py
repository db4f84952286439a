"""Sites that lack classes: a class that few units of one site have is neither lost nor taken for another."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from patevolve.shared import steps
from patevolve.shared.students.evaluate import STUDENTS

PLENTY: Mapping[str, Any] = {
    "privacy.epsilon": 8.0,
    "evolution.population": 400,
    "evolution.generations": 40,
    "release.samples": 300,
}


def unlike(rows: list[dict[str, str]], rare: int) -> list[dict[str, str]]:
    """Return rows of which Cleveland has "no" alone, and Hungary ``rare`` of "yes" beside its own."""
    seen: collections.Counter[str] = collections.Counter()
    kept = []
    for row in rows:
        seen[row["disease"]] += row["hospital"] == "Hungary"
        sick = row["disease"] == "yes"
        if (row["hospital"] == "Cleveland" and not sick) or (
            row["hospital"] == "Hungary" and (not sick or seen["yes"] <= rare)
        ):
            kept.append(row)
    return kept


@pytest.mark.parametrize("selection", ["soft", "pcevolve-prototype"])
def test_a_rare_class_of_one_site_is_released_and_learnt(selection: str, kit: Any) -> None:
    """Eighteen of some 165 patients, at one of two sites: a student still ranks the sick above the healthy."""
    scored = {"evolution.diversity": 0.3} if selection == "pcevolve-prototype" else {}
    agreed = kit.agreed({**PLENTY, "evolution.selection": selection, **scored})
    rows = unlike(kit.rows(), 18)
    records = kit.records(agreed, rows)
    assert set(records["Cleveland"].classes.tolist()) == {0}
    finished, _ = kit.run(agreed, records, "run")
    released = finished.released
    shares = np.bincount(released.samples.classes, minlength=2) / len(released.samples.classes)
    assert 0.02 < shares[1] < 0.4
    everyone = kit.records(agreed)
    test = finished.tools.encoder.encode(np.concatenate([part.values for part in everyone.values()]))
    classes = np.concatenate([part.classes for part in everyone.values()])
    model = STUDENTS["logistic"]().fit(released.features, released.samples.classes)
    chance = model.predict_proba(test)[:, 1]
    higher = chance[classes == 1][:, None] > chance[classes == 0]
    assert higher.mean() > 0.7


def test_a_class_that_no_site_has_is_still_in_the_release(kit: Any) -> None:
    """Nothing is known of it, so it looks as the public schema does; its absence is not betrayed either."""
    agreed = kit.agreed(PLENTY)
    finished, _ = kit.run(agreed, kit.records(agreed, unlike(kit.rows(), 0)), "run")
    counts = np.bincount(finished.released.samples.classes, minlength=2)
    assert counts[1] >= 1


def test_the_generation_closest_to_the_prototypes_is_the_one_released(kit: Any) -> None:
    """With rollback the samples come from the best generation by the released signal, not from the last."""
    base = {"evolution.generations": 6, "evolution.jitter": 0.0, "release.samples": 60}
    agreed = kit.agreed({**base, "evolution.rollback": True})
    finished, _ = kit.run(agreed, kit.records(agreed), "run")
    tools, learnt = finished.tools, finished.outcome.learnt
    seen = [steps.first(agreed.plan, tools, learnt)]
    seen += [finished.folder.load_generation(number)[0] for number in range(1, 7)]
    matches = [steps.measure(population, tools, learnt).match for population in seen]
    best = seen[int(np.argmin(matches))]
    genomes = {tuple(row) for row in best.genomes.tolist()}
    assert {tuple(row) for row in finished.outcome.population.genomes.tolist()} <= genomes
    last = {tuple(row) for row in seen[-1].genomes.tolist()}
    assert np.argmin(matches) == len(seen) - 1 or not genomes <= last
