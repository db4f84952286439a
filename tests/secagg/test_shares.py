"""Threshold shares against polynomials evaluated by hand; T - 1 of them fit every secret."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import MessageError, ParameterError
from patevolve.shared.secagg import shares
from patevolve.shared.secagg.shares import PRIME, combine, random_secrets, split, to_field


def limbs(rows):
    return np.ascontiguousarray(rows).reshape(-1).view("<u2").astype(int).tolist()


def interpolate(points, values, at):
    """Lagrange by rational arithmetic in the field, written apart from the code under test."""
    total = 0
    for i, (x, y) in enumerate(zip(points, values, strict=True)):
        term = y
        for j, z in enumerate(points):
            if i != j:
                term = term * (at - z) * pow(x - z, PRIME - 2, PRIME) % PRIME
        total += term
    return total % PRIME


def test_the_prime_is_prime_and_a_limb_fits_two_bytes():
    assert PRIME < 2**16
    assert all(PRIME % factor for factor in range(2, 256))


@given(holders=st.integers(1, 9), data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_threshold_of_holders_gives_the_secrets(holders, data):
    threshold = data.draw(st.integers(1, holders))
    secrets = random_secrets(data.draw(st.integers(0, 4)))
    given_out = split(secrets, threshold=threshold, holders=holders)
    assert given_out.shape == (holders, len(secrets), 16)
    for count in range(threshold, holders + 1):
        who = data.draw(st.permutations(range(holders)))[:count]
        assert np.array_equal(combine(given_out[who], who, threshold=threshold), secrets)


@pytest.mark.parametrize(("threshold", "holders"), [(1, 1), (2, 2), (3, 4), (34, 45), (80, 80)])
def test_every_limb_lies_on_one_polynomial_of_the_right_degree(threshold, holders):
    secrets = random_secrets(1)
    rows = [limbs(row) for row in split(secrets, threshold=threshold, holders=holders)]
    points = range(1, threshold + 1)
    for limb, secret in enumerate(limbs(secrets)):
        values = [rows[point - 1][limb] for point in points]
        assert interpolate(points, values, 0) == secret
        assert all(interpolate(points, values, x) == rows[x - 1][limb] for x in range(threshold + 1, holders + 1))


def test_fewer_shares_fit_every_secret(monkeypatch):
    # Perfect secrecy: through T - 1 = 2 shares of a 3-of-4 sharing there is one polynomial for each secret.
    seen = split(random_secrets(1), threshold=3, holders=4)
    for who in itertools.combinations(range(4), 2):
        pair = [limbs(seen[holder])[0] for holder in who]
        for secret in (0, 1, 12345, PRIME - 1):
            points, values = [0, *(holder + 1 for holder in who)], [secret, *pair]
            assert [interpolate(points, values, holder + 1) for holder in who] == pair
    # And the coefficients are what makes them so: without randomness, shares are the secret itself.
    monkeypatch.setattr(shares, "_uniform", lambda count: np.zeros(count, "<u2"))
    secret = np.arange(16, dtype=np.uint8)[None]
    assert np.array_equal(split(secret, threshold=3, holders=4)[0], secret)


@pytest.mark.parametrize("count", [3, 3000])  # out of the system's generator itself, and out of its stream
def test_uniform_elements_are_of_the_field_and_rejected_not_folded(monkeypatch, count):
    drawn = iter([[0xFFFFFFFF] * 32, [0x0001FFF0] + [0x00010001] * count])  # 65535 is rejected; 65520 is kept
    if count == 3:
        monkeypatch.setattr(shares.os, "urandom", lambda _: np.array(next(drawn), "<u4").tobytes())
    else:
        monkeypatch.setattr(shares, "expand", lambda *_: np.array(next(drawn), "<u4"))
    assert shares._uniform(count).tolist() == [65520, *[1] * (count - 1)]


@pytest.mark.parametrize("count", [1, 8, 400, 500, 600, 5000])
def test_as_many_elements_are_drawn_as_asked_and_never_twice_the_same(count):
    one, other = shares._uniform(count), shares._uniform(count)
    assert one.shape == other.shape == (count,)
    assert one.max() < PRIME
    assert count < 8 or not np.array_equal(one, other)


def test_wrong_shares_are_noticed_where_there_are_more_than_needed():
    secrets = random_secrets(2)
    given_out = split(secrets, threshold=2, holders=4).copy()
    given_out[3, 1, 0] ^= 1
    assert np.array_equal(combine(given_out[:3], range(3), threshold=2), secrets)
    for who in ([0, 1, 3], [0, 3, 1], [3, 0, 1]):
        with pytest.raises(MessageError, match="contradict"):
            combine(given_out[who], who, threshold=2)


@pytest.mark.parametrize("who", [[], [0], [0, 0], [0, 1, 1]])
def test_too_few_or_repeated_holders(who):
    given_out = split(random_secrets(1), threshold=2, holders=3)
    with pytest.raises(MessageError):
        combine(given_out[who], who, threshold=2)


def test_limbs_outside_the_field_are_refused():
    outside = np.full((1, 16), 255, np.uint8)
    with pytest.raises(ParameterError):
        split(outside, threshold=1, holders=1)
    with pytest.raises(MessageError):
        combine(np.stack([outside]), [0], threshold=1)


@pytest.mark.parametrize(("threshold", "holders"), [(0, 1), (2, 1), (1, 0), (True, 2), (1, PRIME)])
def test_thresholds_outside_their_domain(threshold, holders):
    with pytest.raises(ParameterError):
        split(random_secrets(1), threshold=threshold, holders=holders)


def test_wide_bytes_become_field_elements():
    assert limbs(to_field((PRIME + 7).to_bytes(4, "little") * 8)) == [7] * 8
    assert limbs(to_field(b"\xff" * 32)) == [(2**32 - 1) % PRIME] * 8
    assert to_field(b"").shape == (0, 16)


@given(st.integers(0, 2**48))
def test_remainders_are_exact(whole):
    for number in (whole, whole // PRIME * PRIME, whole // PRIME * PRIME + PRIME - 1):
        assert limbs(shares._modulo(np.full(8, float(number)))) == [number % PRIME] * 8
