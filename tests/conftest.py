"""Fixtures for the whole suite, and the pot of false alarms that its statistical tests share."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from patevolve.shared.plan import Agreed, agree

# A busy machine is no fault of the code: how long an example takes decides nothing.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("suite")

# One pot of 1e-6 for the suite: at most 100 statistical tests, each refusing a correct build with probability <= 1e-8.
ALPHA = 1e-8

TWO_DIGITS = """
format = 1
name = "digits"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-6
unit = "record"
[sites]
count = 2
expected_units = 300
[data]
kind = "image"
classes = ["0", "1"]
label = "digit"
height = 28
width = 28
[generator]
kind = "simulator"
[questions.neighbours]
share = 0.3
candidates = 20
nearest = 2
[release]
samples = 20
"""


@pytest.fixture(scope="session")
def two_digits() -> Agreed:
    """A small plan of images without a private head."""
    return agree(TWO_DIGITS)


@pytest.fixture(scope="session")
def alpha() -> float:
    """False-alarm probability of one statistical test."""
    return ALPHA


@pytest.fixture
def recorded_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opt in to repeatable noise for this test alone."""
    monkeypatch.setenv("PATEVOLVE_RECORDED_NOISE_FOR_TESTS", "1")
