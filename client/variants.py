"""What turns a plan into a baseline: one site alone, a published method, or nothing asked at all.

Baselines run through the same loop, ledger and release as the method they stand beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNCLASSIFIED: Mapping[str, Any] = {  # what other selections have no use for
    "questions.gradients": None,
    "release.labels": None,
    "generator.blend": None,
    "evolution.refine": None,
}
PRIVATE_EVOLUTION: Mapping[str, Any] = {
    **UNCLASSIFIED,
    "evolution.selection": "histogram",
    "evolution.generations": 5,
    "evolution.mutation": [0.4, 0.3, 0.2, 0.1],
    "evolution.threshold": 1.0,
    "questions.counts": None,
    "questions.prototypes": None,
    "questions.labels": None,
    "questions.neighbours.share": 1.0,
    "questions.neighbours.times": 5,
    "questions.neighbours.nearest": 1,
}
PUBLIC_ONLY: Mapping[str, Any] = {
    **UNCLASSIFIED,
    "evolution.selection": "none",
    "evolution.generations": 0,
    "questions.counts": None,
    "questions.prototypes": None,
    "questions.neighbours": None,
    "questions.labels": None,
    "questions.score": None,
}
ALONE: Mapping[str, Any] = {
    "sites.count": 1,
    "privacy.trust": "each-site",
    "privacy.dropouts": 0,
    "privacy.colluders": 0,
}


def selections(classes: int) -> dict[str, Mapping[str, Any]]:
    """Return the changes that give a plan each of the selections, by name, within the same ε (docs/evolution.md).

    Those that ask in every generation have 5 generations and 100 candidates a class; "pcevolve-prototype" keeps the
    plan's shares for counts and prototypes, and gives the latter what the votes had.
    """
    alone: dict[str, Any] = {
        **UNCLASSIFIED,
        "evolution.generations": 5,
        "evolution.mutation": [0.4, 0.3, 0.2, 0.1],
        "questions.counts": None,
        "questions.prototypes": None,
        "questions.neighbours": None,
        "questions.labels": None,
    }
    asked = {"share": 1.0, "times": 5, "candidates": 100 * classes}
    return {
        "histogram": {
            **alone,
            **{f"questions.neighbours.{key}": value for key, value in asked.items()},
            "questions.neighbours.nearest": 1,
            "evolution.selection": "histogram",
            "evolution.population": 100 * classes,
            "evolution.threshold": 1.0,
        },
        "pcevolve": {
            **alone,
            **{f"questions.choices.{key}": value for key, value in asked.items()},
            "evolution.selection": "pcevolve",
            "evolution.population": 100 * classes,
        },
        "classifier-laplace": {
            **alone,
            **{f"questions.confidence.{key}": value for key, value in asked.items()},
            "questions.confidence.teachers": 1,
            "evolution.selection": "classifier-laplace",
            "evolution.population": 50 * classes,
            "evolution.diversity": 0.3,
        },
        "pcevolve-prototype": {
            **UNCLASSIFIED,
            "questions.counts.share": 0.05,
            "questions.prototypes.share": 0.95,
            "questions.neighbours": None,
            "questions.labels": None,
            "evolution.selection": "pcevolve-prototype",
            "evolution.generations": 10,
            "evolution.population": 100 * classes,
            "evolution.diversity": 0.3,
        },
    }
