"""``patevolve demo heart`` with a smaller population: the same code, plan and data otherwise.

The helper process of the demonstration imports this file too (it is spawned), so it is small there as well.
"""

from __future__ import annotations

import dataclasses

from patevolve.client import demo, study
from patevolve.shared import cli
from patevolve.shared.plan_edit import vary

SMALL = {"evolution.population": 300, "evolution.generations": 2, "release.samples": 300}
PRIVATE_EVOLUTION = {"evolution.population": 100, "questions.neighbours.candidates": 100, "release.samples": 100}
_plan_of, _selections = demo.plan_of, study.selections


def small(name: str, epsilon: float, seed: int) -> object:
    return vary(_plan_of(name, epsilon, seed), SMALL)


def one_round(classes: int) -> dict[str, dict[str, object]]:
    """Return two of the selections, smaller."""
    found = _selections(classes)
    return {
        "pcevolve": {**found["pcevolve"], "questions.choices.times": 1, **SMALL},
        "pcevolve-prototype": {**found["pcevolve-prototype"], **SMALL},
    }


demo.plan_of = small  # type: ignore[assignment]
study.selections = one_round  # type: ignore[assignment]
demo.DEMONSTRATIONS = {  # type: ignore[misc]
    name: dataclasses.replace(one, evolution=PRIVATE_EVOLUTION) for name, one in demo.DEMONSTRATIONS.items()
}

if __name__ == "__main__":
    cli.main()
