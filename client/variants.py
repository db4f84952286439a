"""What turns a plan into a baseline: one site alone, a published method, or nothing asked at all.

Baselines run through the same loop, ledger and release as the method they stand beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRIVATE_EVOLUTION: Mapping[str, Any] = {
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
