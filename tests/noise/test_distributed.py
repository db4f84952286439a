import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError
from patevolve.shared.noise.distributed import DiscreteGaussianShare, exact_sum_rdp, honest_shares, share_sigma
from patevolve.shared.privacy import accountant
from patevolve.shared.privacy.events import DiscreteGaussian, DiscreteGaussianSum
from patevolve.shared.randomness import SystemNoise
from patevolve.shared.tally import ExactTally

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "privacy.json").read_text())


def mechanism(**changes):
    values = {"total_sigma": 40.0, "sites": 10, "dropouts": 2, "colluders": 1, "l1": 2.0, "l2": 1.5, "dimension": 9}
    return DiscreteGaussianShare(**{**values, **changes})


@pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in VECTORS["discrete_rdp"]])
def test_the_exact_divergence_of_a_sum_of_ten(row):
    found = exact_sum_rdp(
        share_sigma=row["sigma_total"] / math.sqrt(10), shares=10, shift=row["shift"], orders=row["orders"]
    )
    assert found == pytest.approx(row["ddg10_exact"], rel=1e-6)


@settings(deadline=None, max_examples=15)
@given(share=st.floats(0.6, 4.0), shares=st.integers(1, 12), shift=st.integers(1, 2))
def test_the_published_bound_is_never_below_the_exact_divergence(share, shares, shift):
    orders = [1.1, 1.5, 2.0, 6.0]
    exact = exact_sum_rdp(share_sigma=share, shares=shares, shift=shift, orders=orders)
    event = DiscreteGaussianSum(share_sigma=share, shares=shares, l1=float(shift), l2=float(shift), dimension=1)
    assert np.all(accountant.rdp(event, orders) >= exact * (1 - 1e-9))


def test_exact_divergences_of_one_share_are_the_discrete_gaussians():
    exact = exact_sum_rdp(share_sigma=3.0, shares=1, shift=1, orders=[2.0, 9.0])
    assert exact == pytest.approx(accountant.rdp(DiscreteGaussian(sigma=3.0, l2=1.0), [2.0, 9.0]), rel=1e-9)


@pytest.mark.parametrize("orders", [[1.0], [0.5], [math.nan], [math.inf]])
def test_exact_divergences_refuse_orders_without_meaning(orders):
    with pytest.raises(ParameterError):
        exact_sum_rdp(share_sigma=3.0, shares=2, shift=1, orders=orders)


def test_honest_shares_make_up_the_total():
    assert honest_shares(sites=10, dropouts=2, colluders=1) == 7
    assert share_sigma(total_sigma=40.0, sites=10, dropouts=2, colluders=1) == pytest.approx(40 / math.sqrt(7))
    event = mechanism().event()
    assert event.shares == 7
    assert math.hypot(*[event.share_sigma] * event.shares) == pytest.approx(40.0)


def test_the_cost_is_that_of_the_fewest_reporters_and_the_boldest_colluders():
    costs = [
        accountant.rdp(DiscreteGaussianSum(share_sigma=mechanism().share_sigma, shares=n, l1=2.0, l2=1.5, dimension=9))
        for n in (7, 8, 10)
    ]
    assert np.array_equal(accountant.rdp(mechanism().event()), costs[0])
    assert np.all(costs[0] > costs[1])
    assert np.all(costs[1] > costs[2])
    assert mechanism().least_reporters == 8


def test_a_single_exposed_share_is_charged_as_one():
    assert mechanism().exposed_event().shares == 1
    assert np.all(accountant.rdp(mechanism().exposed_event()) > 6.9 * accountant.rdp(mechanism().event()))


def test_sizing_shares_for_all_sites_would_under_noise():
    """The planted twin: σ/sqrt(n) with two drop-outs and a colluder leaves less than the total that was promised."""
    twin = DiscreteGaussianSum(share_sigma=40 / math.sqrt(10), shares=7, l1=2.0, l2=1.5, dimension=9)
    promised = accountant.rdp(DiscreteGaussian(sigma=40.0, l2=1.5))
    assert np.all(accountant.rdp(twin) > 1.4 * promised)
    assert accountant.rdp(mechanism().event()) == pytest.approx(promised, rel=1e-9)


@pytest.mark.parametrize(
    "changes",
    [
        {"total_sigma": 5.0},
        {"total_sigma": math.nan},
        {"total_sigma": 0.0},
        {"sites": 0},
        {"sites": 3},
        {"dropouts": -1},
        {"colluders": 8},
        {"colluders": True},
        {"l1": 0.0},
        {"l2": math.inf},
        {"dimension": 0},
    ],
    ids=str,
)
def test_shares_that_cannot_protect_are_refused(changes):
    with pytest.raises(ParameterError):
        mechanism(**changes)


def test_a_share_of_exactly_two_is_the_least():
    assert share_sigma(total_sigma=4.0, sites=4, dropouts=0, colluders=0) == 2.0
    with pytest.raises(ParameterError, match="finer lattice"):
        share_sigma(total_sigma=3.999, sites=4, dropouts=0, colluders=0)


def test_a_tally_longer_than_the_cost_assumes_is_refused():
    with pytest.raises(ParameterError):
        mechanism().release(ExactTally(values=np.zeros(10, dtype=np.int64), l1=1.0, l2=1.0), SystemNoise())
