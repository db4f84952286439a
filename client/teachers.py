"""A site's PATE teachers: one scikit-learn model per keyed shard, each of which sees the units of its shard alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.client.private_index import Voters
from patevolve.shared.data.shard import teacher_of
from patevolve.shared.errors import DataError, InputError

ABSTAIN = -1


def teach(members: Voters, secret: bytes, teachers: int) -> Callable[[NDArray[np.float64]], NDArray[np.int64]]:
    """Return the site's teachers as a function of candidates' features (P, d), giving votes (teachers, P).

    The teachers are trained on the first call. A teacher whose shard is empty abstains; one whose shard has a single
    class votes for it. Feature scaling is fixed, so no statistic crosses shards.
    """
    models: list[Any] = []

    def votes(features: NDArray[np.float64]) -> NDArray[np.int64]:
        if not models:
            models.extend(_train(members, secret, teachers))
        return np.stack([_vote(model, features) for model in models])

    return votes


def confide(
    members: Voters, secret: bytes, teachers: int
) -> Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]]:
    """Return how sure the site's classifiers are that candidates (P, d) are of their classes (P,): (teachers, P).

    Trained on the first call, each on its keyed shard alone. One whose shard is empty or has a single class is sure of
    nothing, or of that class.
    """
    models: list[Any] = []

    def confidences(features: NDArray[np.float64], classes: NDArray[np.int64]) -> NDArray[np.float64]:
        if not models:
            models.extend(_train(members, secret, teachers))
        sure: NDArray[np.float64] = np.stack([_sure(model, features, classes) for model in models])
        return sure

    return confidences


def _sure(model: Any, features: NDArray[np.float64], classes: NDArray[np.int64]) -> NDArray[np.float64]:
    if isinstance(model, int):
        return np.asarray(classes == model, np.float64)
    found = np.zeros(len(features))
    for position, cls in enumerate(model.classes_):
        own = classes == cls
        if own.any():
            found[own] = model.predict_proba(features[own])[:, position]
    return found


def check_shards(members: Voters, classes: tuple[str, ...], teachers: int) -> None:
    """Raise DataError, before any charge, if a class that the site has holds fewer units than there are teachers."""
    for position, name in enumerate(classes):
        units = len(np.unique(members.records.units[members.records.classes == position]))
        if 0 < units < teachers:
            raise DataError(
                f"class {name!r} has {units} units for {teachers} teachers; expected at least one for each. "
                f"Ask for at most {units} teachers at this site, or take part without labels."
            )


def _train(members: Voters, secret: bytes, teachers: int) -> list[Any]:
    try:
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - an extra: only PATE needs it
    except ImportError as reason:
        raise InputError("PATE teachers need scikit-learn; install it with: pip install 'patevolve[demo]'") from reason
    shard = teacher_of(secret, members.records.units, teachers)
    models: list[Any] = []
    for teacher in range(teachers):
        # By name, not by place: where the first of equal records leaves, the second bears its name further down.
        rows = np.flatnonzero(shard == teacher)
        rows = rows[np.argsort(members.records.units[rows], kind="stable")]  # label: shard-order
        classes = np.unique(members.records.classes[rows])
        if len(classes) > 1:
            model = LogisticRegression(C=1.0, max_iter=500)
            models.append(model.fit(members.features[rows], members.records.classes[rows]))
        else:
            models.append(int(classes[0]) if len(classes) else ABSTAIN)
    return models


def _vote(model: Any, features: NDArray[np.float64]) -> NDArray[np.int64]:
    if isinstance(model, int):
        return np.full(len(features), model, np.int64)
    return np.asarray(model.predict(features), np.int64)
