"""The accuracy-ε curve: shape, direction, baselines, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from patevolve.shared import pate_curve
from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import pate_view


def test_the_curve_falls_from_little_noise_to_much_noise():
    curve = pate_curve.accuracy_curve("article", teachers=10, queries=100, sigmas=(1.0, 200.0), seeds=2)
    json.dumps(curve, allow_nan=False)
    little, much = curve["points"]
    assert little["epsilon"] > much["epsilon"]
    # σ = 200 with 10 teachers is a guess among 4 classes: 100 labels, two seeds; 0.45 is six standard errors away
    assert little["label_accuracy"] > 0.45 > much["label_accuracy"]
    assert set(curve["baselines"]) >= {"single teacher", "chance (largest class)"}
    assert len(pate_view.curve_table(curve)) == 2 + 2 + len(curve["baselines"])


def test_votes_are_counted_per_query():
    votes = pate_curve.count_votes([np.array([0, 1]), np.array([0, 2]), np.array([1, 2])], 3)
    assert votes.tolist() == [[2, 1, 0], [0, 1, 2]]


@pytest.mark.parametrize(
    "bad", [{"name": "mnist"}, {"name": "article", "queries": 5000}, {"name": "article", "seeds": 1}]
)
def test_what_cannot_be_measured_is_refused(bad):
    with pytest.raises(ParameterError):
        pate_curve.accuracy_curve(**bad)


def test_a_shard_with_one_class_names_the_parameter():
    with pytest.raises(ParameterError, match="teachers=400"):
        pate_curve.accuracy_curve("digits", teachers=400, queries=10, seeds=2)
