import dataclasses
import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import ParameterError
from patevolve.shared.noise import tables
from patevolve.shared.randomness import SystemNoise

WHOLE = 1 << tables.MASS_BITS


class Scripted:
    """A source of given bytes, repeated."""

    def __init__(self, pattern):
        self.pattern = pattern
        self.reads = []

    def read(self, count):
        self.reads.append(count)
        return (self.pattern * (count // len(self.pattern) + 1))[:count]


def masses_of(table):
    """Recover the integer masses that a table's thresholds and aliases stand for."""
    capacity = 1 << (tables.MASS_BITS - table.bits)
    found = [0] * len(table.alias)
    for column, (high, low, alias) in enumerate(zip(table.high, table.low, table.alias, strict=True)):
        threshold = (int(high) << 64) | int(low)
        assert 0 <= threshold <= capacity
        found[column] += threshold
        found[int(alias)] += capacity - threshold
    return found


@settings(deadline=None)
@given(weights=st.lists(st.integers(0, 2**300), min_size=2, max_size=300).filter(any))
def test_a_table_stands_for_its_masses_exactly(weights):
    table = tables.build(weights, offset=-3, lost=0.0)
    expected = tables.exact_masses(weights)
    assert sum(expected) == WHOLE
    assert masses_of(table)[: len(weights)] == expected
    assert not any(masses_of(table)[len(weights) :])
    total = sum(weights)
    # Rounding down moves less than one unit per entry to the largest: the stated distance covers it.
    moved = sum(
        abs(Fraction(mass, WHOLE) - Fraction(weight, total)) for mass, weight in zip(expected, weights, strict=True)
    )
    assert moved / 2 <= Fraction(len(weights), WHOLE)
    assert table.distance >= len(weights) / WHOLE


@settings(deadline=None, max_examples=50)
@given(
    weights=st.lists(st.integers(0, 2**200), min_size=2, max_size=40).filter(any),
    draws=st.lists(st.integers(0, WHOLE - 1), min_size=1, max_size=20),
)
def test_a_draw_equals_the_definition(weights, draws):
    """Column by the top bits, threshold by the rest: against Python integers, word for word."""
    table = tables.build(weights, offset=7, lost=0.0)
    rest_bits = tables.MASS_BITS - table.bits
    expected = []
    for uniform in draws:
        column, rest = uniform >> rest_bits, uniform & ((1 << rest_bits) - 1)
        threshold = (int(table.high[column]) << 64) | int(table.low[column])
        expected.append(7 + (column if rest < threshold else int(table.alias[column])))
    words = [uniform >> 64 for uniform in draws] + [uniform & (2**64 - 1) for uniform in draws]
    source = Scripted(b"".join(word.to_bytes(8, "little") for word in words))
    assert table.draw(len(draws), source).tolist() == expected


def test_ties_of_the_high_word_are_decided_by_the_low_word():
    table = tables.build([3, 5, 7, 11], offset=0, lost=0.0)
    column = int(np.argmax(table.low > 0))
    top = (column << (64 - table.bits)) | int(table.high[column])
    for low, inside in ((int(table.low[column]) - 1, True), (int(table.low[column]), False)):
        drawn = table.draw(1, Scripted(top.to_bytes(8, "little") + low.to_bytes(8, "little")))[0]
        assert bool(drawn == column) is inside


class Logged(np.ndarray):
    """Writes down each ufunc that touches it, with the shapes of its operands."""

    log = []  # noqa: RUF012 - one log for the test

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        Logged.log.append((ufunc.__name__, method, *(np.shape(value) for value in inputs)))
        plain = [np.asarray(value) if isinstance(value, Logged) else value for value in inputs]
        result = getattr(ufunc, method)(*plain, **kwargs)
        return result.view(Logged) if isinstance(result, np.ndarray) else result


def operations(table, source):
    """Return the numpy operations, the lines of code and the reads that a draw of 100,000 takes."""
    Logged.log = []
    watched = dataclasses.replace(
        table, high=table.high.view(Logged), low=table.low.view(Logged), alias=table.alias.view(Logged)
    )
    lines = []

    def trace(frame, event, _):
        if frame.f_code.co_filename.endswith("tables.py"):
            lines.append((event, frame.f_lineno))
            return trace
        return None

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        watched.draw(100_000, source)
    finally:
        sys.settrace(old)
    return Logged.log, lines, source.reads


def test_the_operations_do_not_depend_on_what_is_drawn():
    """All from the centre, all from the far tail, all aliases, all columns: the same steps on the same shapes."""
    table = tables.mirrored([1 << (200 - k) for k in range(150)], lost=0.0)
    sources = [Scripted(bytes([byte])) for byte in (0, 255, 128, 85)] + [Scripted(SystemNoise().read(8191))]
    seen = [operations(table, source) for source in sources]
    assert len(seen[0][0]) >= 8
    assert all(each == seen[0] for each in seen[1:])


def test_the_watch_on_operations_sees_a_branch():
    """The planted twin: a draw that works on the misses alone changes its shapes with what is drawn."""
    table = tables.mirrored([1 << (200 - k) for k in range(150)], lost=0.0)

    class Branching:
        reads = ()

        def __init__(self, byte):
            self.byte = byte

        def read(self, count):
            words = np.frombuffer(bytes([self.byte]) * count, dtype="<u8")
            _ = table.low.view(Logged)[: int(words[0] % 7)] + np.uint64(1)
            return words.tobytes()

    assert operations(table, Branching(0))[0] != operations(table, Branching(85))[0]


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 10**12), Fraction(1, 3), Fraction(7), Fraction(128)])
def test_fixed_point_exponentials_are_right_to_240_bits(exponent):
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(120):
        exact = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
        assert abs(mpmath.mpf(tables.fixed_exp(exponent)) / tables.ONE - exact) < mpmath.mpf(2) ** -240


@pytest.mark.parametrize("exponent", [Fraction(-1, 10), Fraction(129)])
def test_exponents_outside_the_series_are_refused(exponent):
    with pytest.raises(ParameterError):
        tables.fixed_exp(exponent)


def test_a_source_that_runs_dry_is_refused():
    class Dry:
        def read(self, count):
            return b"\0" * (count - 1)

    with pytest.raises(ParameterError, match="bytes"):
        tables.build([1, 1], offset=0, lost=0.0).draw(3, Dry())


@pytest.mark.parametrize("entries", [0, 1, tables.MOST_ENTRIES + 1])
def test_tables_without_sense_or_end_are_refused(entries):
    with pytest.raises(ParameterError):
        tables.build([1] * entries, offset=0, lost=0.0)


def test_no_draws_are_no_draws():
    assert tables.build([1, 1], offset=0, lost=0.0).draw(0, SystemNoise()).shape == (0,)
    with pytest.raises(ParameterError):
        tables.build([1, 1], offset=0, lost=0.0).draw(-1, SystemNoise())


def test_the_gaussian_tail_bound_bounds():
    for variance, radius in ((0.3, 2), (4.0, 10), (1600.0, 200)):
        sigma = math.sqrt(variance)
        k = np.arange(0, int(radius + 40 * sigma) + 10)
        weights = np.exp(-(k**2) / (2 * variance))
        mass = 2 * weights[radius + 1 :].sum() / (2 * weights[1:].sum() + 1)
        assert mass <= tables.gaussian_tail(radius, variance)
