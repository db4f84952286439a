"""A file of statistics cannot make a site refuse for what its records show."""

import io

import numpy as np
import pytest

from patevolve.shared.encoder.fitted import LARGEST, unpacked
from patevolve.shared.encoder.image import ImageEncoder
from patevolve.shared.errors import PlanError

SIDE, D = 4, 2


def describe(images):
    return images.reshape(len(images), -1).astype(np.float32)


def statistics(size):
    return {
        "mean": np.zeros(SIDE * SIDE),
        "axes": np.full((SIDE * SIDE, D), size),
        "frequencies": np.full((D, 3), size),
        "widths": np.array([0.5]),
    }


def dim_and_bright():
    return np.stack([np.full((SIDE, SIDE), level, np.uint8) for level in (1, 200)])


def opened(tmp_path, size):
    buffer = io.BytesIO()
    np.savez(buffer, **statistics(size))
    (tmp_path / "f.npz").write_bytes(buffer.getvalue())
    return unpacked(tmp_path / "f.npz", dimension=D, widths=(0.5,), describe=describe)


@pytest.mark.filterwarnings("ignore:overflow")
def test_statistics_near_the_largest_float_would_tell_bright_records_from_dim_ones():
    """What the file could do: a site refuses features that are not finite, and only the bright record has such."""
    parts = statistics(1e306)
    huge = ImageEncoder(mean=parts["mean"], axes=parts["axes"], frequencies=parts["frequencies"], describe=describe)
    assert np.isfinite(huge.encode(dim_and_bright())).all(axis=1).tolist() == [True, False]


def test_such_statistics_are_refused(tmp_path):
    with pytest.raises(PlanError, match="expected finite float64"):
        opened(tmp_path, 1e306)


def test_the_largest_that_are_taken_keep_every_record_finite(tmp_path):
    encoder = opened(tmp_path, LARGEST)
    loudest = np.full((1, SIDE * SIDE), np.finfo(np.float32).max)
    features = ImageEncoder(
        mean=encoder.mean, axes=encoder.axes, frequencies=encoder.frequencies, describe=lambda _: loudest
    ).encode(dim_and_bright())
    assert np.isfinite(features).all()
    assert np.isfinite(encoder.embed(features)).all()
