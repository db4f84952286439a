"""Plans derived from a plan: another ε or seed, one site alone, a published method, or nothing asked at all.

Baselines run through the same loop, ledger and release as the method they stand beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patevolve.shared.errors import PlanError
from patevolve.shared.plan import Agreed, agree

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


def vary(agreed: Agreed, changes: Mapping[str, Any]) -> Agreed:
    """Return the plan with dotted keys set, or removed where the value is None. Raises PlanError.

    The text keeps its comments, so that the derived plan still explains itself.
    """
    try:
        import tomlkit  # noqa: PLC0415 - an extra: only demonstrations and plan studies derive plans
    except ImportError as reason:
        raise PlanError("changing a plan needs tomlkit; install it with: pip install 'patevolve[demo]'") from reason
    document: Any = tomlkit.parse(agreed.text)
    for key, value in changes.items():
        *tables, last = key.split(".")
        table = document
        for name in tables:
            if name not in table:
                table[name] = tomlkit.table()
            table = table[name]
        if value is not None:
            table[last] = value
        elif last in table:
            del table[last]
    return agree(tomlkit.dumps(document), where="the changed plan")
