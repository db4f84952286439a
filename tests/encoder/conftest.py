"""A small site and a public bank, for the tests of training."""

from __future__ import annotations

import numpy as np
import pytest

from patevolve.shared.encoder.train import Bank, Units, units_of


@pytest.fixture
def small():
    """Return 30 records of 20 units in 12 dimensions and 3 classes, and a public bank."""
    rng = np.random.default_rng(3)
    names = np.array([f"p{i // 2}" for i in range(20)] + [f"q{i}" for i in range(10)])
    units: Units = units_of(rng.normal(size=(4, 30, 12)), rng.integers(0, 3, 30), names, 3)
    return units, Bank(inputs=rng.normal(size=(60, 12)), classes=np.arange(60) % 3)
