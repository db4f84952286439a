import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import accountant, viewers
from patevolve.shared.privacy.events import DiscreteGaussian, DiscreteGaussianSum, Exponential, SubsampledGaussian
from patevolve.shared.privacy.viewers import Exposure

SHARE = DiscreteGaussianSum(share_sigma=20.0, shares=7, l2=1.0, l1=1.0, dimension=10)
SGD = {
    "north": (SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.01, steps=100),),
    "south": (SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.3, steps=100),),
    "west": (),
}


def test_a_record_meets_shared_sums_and_the_worst_site_at_each_order():
    curves = [accountant.compose(events) for events in SGD.values()]
    expected = accountant.rdp(SHARE) + np.max(curves, axis=0)
    assert viewers.record_curve(Exposure(shared=(SHARE,), local=SGD)) == pytest.approx(expected, rel=1e-12)
    # Not the curve of any one site: which is worst depends on the order.
    assert len({int(site) for site in np.argmax(curves, axis=0)}) == 2


def test_a_patient_of_two_sites_adds_the_two_worst():
    curves = np.sort([accountant.compose(events) for events in SGD.values()], axis=0)
    shared = accountant.rdp(DiscreteGaussianSum(share_sigma=20.0, shares=7, l2=2.0, l1=2.0, dimension=10))
    found = viewers.patient_curve(Exposure(shared=(SHARE,), local=SGD), sites=2)
    assert found == pytest.approx(shared + curves[-1] + curves[-2], rel=1e-12)


def test_more_sites_than_there_are_is_the_sum_of_all():
    total = sum(accountant.compose(events) for events in SGD.values())
    assert viewers.patient_curve(Exposure(shared=(), local=SGD), sites=9) == pytest.approx(total, rel=1e-12)


def test_an_institution_is_a_group():
    event = DiscreteGaussian(sigma=100.0, l2=1.0)
    found = viewers.institution_curve(Exposure(shared=(event,), local={"a": (event,), "b": ()}), units=30)
    assert found == pytest.approx(2 * 900 * accountant.rdp(event), rel=1e-12)


@pytest.mark.parametrize("units", [2, 3])
@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0])
def test_a_group_of_sampled_steps_costs_at_least_what_integration_finds(units, rate):
    """Brute force: one value that each of the units moves by one bound if it is in the sample."""
    event, order = SubsampledGaussian(noise_multiplier=2.0, sample_rate=rate, steps=1), 4.0
    bound = float(accountant.rdp(viewers.scaled(event, units), (order,))[0])
    x = np.linspace(-25, 35, 120_001)
    weights = [math.comb(units, k) * rate**k * (1 - rate) ** (units - k) for k in range(units + 1)]
    without = np.exp(-(x**2) / 8)
    group = sum(w * np.exp(-((x - k) ** 2) / 8) for k, w in enumerate(weights))
    scale = (x[1] - x[0]) / math.sqrt(8 * math.pi)
    for p, q in ((group, without), (without, group)):
        exact = math.log(float(np.sum(p**order * q ** (1 - order))) * scale) / (order - 1)
        assert exact <= bound * (1 + 1e-6)
    if rate == 1.0:
        assert bound == pytest.approx(units**2 * order / 8, rel=1e-9)


def test_colluders_noise_protects_from_the_public_alone():
    inside, outside = viewers.coordinator_view(SHARE), viewers.public_view(SHARE, colluders=2)
    assert inside.shares == 7
    assert outside.shares == 9
    assert np.all(accountant.rdp(outside) < accountant.rdp(inside))
    assert viewers.public_view(Exponential(epsilon=0.1), colluders=2) == Exponential(epsilon=0.1)


@given(
    values=st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=1, max_size=6),
    overlap=st.integers(1, 8),
)
def test_parallel_composition_equals_brute_force(values, overlap):
    found = viewers.parallel([np.array(curve) for curve in values], overlap=overlap)
    for order in range(3):
        largest = sorted((curve[order] for curve in values), reverse=True)[:overlap]
        assert found[order] == pytest.approx(math.fsum(largest), rel=1e-12)


def test_nothing_local_costs_nothing_local():
    assert not viewers.record_curve(Exposure(shared=(), local={})).any()


def test_curves_of_unequal_grids_are_refused():
    with pytest.raises(ParameterError):
        viewers.parallel([])
    with pytest.raises(ParameterError):
        viewers.parallel([np.zeros(2), np.zeros(3)])


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, "2", math.nan], ids=repr)
def test_counts_outside_their_domain_are_refused(bad):
    exposure = Exposure(shared=(SHARE,), local=SGD)
    for call in (
        lambda: viewers.patient_curve(exposure, sites=bad),
        lambda: viewers.institution_curve(exposure, units=bad),
        lambda: viewers.parallel([np.zeros(2)], overlap=bad),
    ):
        with pytest.raises(ParameterError):
            call()
