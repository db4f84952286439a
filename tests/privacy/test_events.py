import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError, UnsupportedEventError
from patevolve.shared.privacy import events
from patevolve.shared.privacy.events import DiscreteGaussian, DiscreteGaussianSum, Exponential, SubsampledGaussian

EXAMPLES = [
    events.DiscreteGaussian(sigma=40.0, l2=math.sqrt(2), count=3),
    events.DiscreteGaussianSum(share_sigma=12.6, shares=10, l2=math.sqrt(2), l1=2.0, dimension=10),
    events.Skellam(variance=1600.0, l1=2.0, l2=math.sqrt(2)),
    events.DiscreteLaplace(scale=20.0, l1=1.0),
    events.LaplaceNoisyMax(scale=20.0, count=7),
    events.Exponential(epsilon=0.1),
    events.SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.01, steps=1000),
    events.SmoothSensitivityRelease(beta=0.02, sigma=10.0),
]
LENGTHS = st.floats(min_value=1e-300, max_value=1e300)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_survives_json(event):
    assert events.from_record(json.loads(json.dumps(events.to_record(event)))) == event


def test_every_kind_has_an_example():
    assert {type(event) for event in EXAMPLES} == set(events.KINDS.values())


@given(sigma=LENGTHS, l2=LENGTHS, count=st.integers(1, 2**60))
def test_floats_survive_json_bit_for_bit(sigma, l2, count):
    event = DiscreteGaussian(sigma=sigma, l2=l2, count=count)
    assert events.from_record(json.loads(json.dumps(events.to_record(event)))) == event


def test_the_kinds_and_their_fields_never_shrink():
    """The contract with ledgers already written: a failure here means that old charges could not be read."""
    assert {kind: [f.name for f in dataclasses.fields(event)] for kind, event in events.KINDS.items()} == {
        "discrete_gaussian": ["sigma", "l2", "count"],
        "discrete_gaussian_sum": ["share_sigma", "shares", "l2", "l1", "dimension", "count"],
        "skellam": ["variance", "l1", "l2", "count"],
        "discrete_laplace": ["scale", "l1", "count"],
        "laplace_noisy_max": ["scale", "count"],
        "exponential": ["epsilon", "count"],
        "subsampled_gaussian": ["noise_multiplier", "sample_rate", "steps", "count"],
        "smooth_sensitivity_gaussian": ["beta", "sigma", "count"],
    }


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": None},
        {"kind": ["discrete_gaussian"]},
        {"kind": "gaussian_of_tomorrow", "sigma": 1.0},
        {"kind": "discrete_gaussian", "sigma": 1.0},
        {"kind": "discrete_gaussian", "sigma": 1.0, "l2": 1.0, "colour": "red"},
        {"kind": "discrete_gaussian", "sigma": "1.0", "l2": 1.0},
        {"kind": "discrete_gaussian", "sigma": True, "l2": 1.0},
        {"kind": "discrete_gaussian", "sigma": math.nan, "l2": 1.0},
        {"kind": "discrete_gaussian", "sigma": 1.0, "l2": 1.0, "count": 1.0},
        {"kind": "discrete_gaussian", "sigma": 1.0, "l2": 1.0, "count": 0},
    ],
)
def test_a_record_that_cannot_be_priced_is_refused(record):
    with pytest.raises(UnsupportedEventError):
        events.from_record(record)


def test_only_events_are_recorded():
    with pytest.raises(UnsupportedEventError):
        events.to_record({"kind": "discrete_gaussian"})


BAD = [math.nan, math.inf, -math.inf, -1.0, 0.0, 0, -0.0, 5e-324, True, False, "1", None, 1j, [1.0]]


@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize(
    ("example", "field"),
    [(example, field.name) for example in EXAMPLES for field in dataclasses.fields(example)],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_no_field_takes_nan_infinity_negative_zero_bool_or_text(example, field, bad):
    with pytest.raises(ParameterError):
        dataclasses.replace(example, **{field: bad})


def test_a_sampling_rate_above_one_is_refused():
    with pytest.raises(ParameterError):
        SubsampledGaussian(noise_multiplier=1.0, sample_rate=1.0000001, steps=1)


def test_a_share_outside_the_theorem_is_refused():
    with pytest.raises(ParameterError):
        DiscreteGaussianSum(share_sigma=0.49, shares=10, l2=1.0, l1=1.0, dimension=1)


def test_events_are_hashable_values():
    assert len({Exponential(epsilon=0.1), Exponential(epsilon=0.1), Exponential(epsilon=0.2)}) == 2
