"""Statistics as a file: the same encoder wherever it is read, and nothing but statistics is accepted."""

import io

import numpy as np
import pytest

from patevolve.shared.encoder.fitted import packed, unpacked
from patevolve.shared.encoder.image import fit, histograms
from patevolve.shared.errors import PlanError

WIDTHS = (0.25, 0.5)


def fresh():
    rng = np.random.default_rng(0)
    public = rng.integers(0, 256, (120, 28, 28)).astype(np.uint8)
    return fit(public, rng, dimension=16, embedding=40), public[:9]


def test_the_file_gives_the_same_encoder_and_the_same_bytes(tmp_path):
    encoder, images = fresh()
    path = tmp_path / "f.npz"
    path.write_bytes(packed(encoder, WIDTHS))
    again = unpacked(path, dimension=16, widths=WIDTHS, describe=histograms)
    assert again.encode(images).tobytes() == encoder.encode(images).tobytes()
    assert again.embed(again.encode(images)).tobytes() == encoder.embed(encoder.encode(images)).tobytes()
    assert packed(again, WIDTHS) == packed(encoder, WIDTHS)


@pytest.mark.parametrize(
    "change",
    [
        {"mean": np.zeros(3)},
        {"axes": np.zeros((484, 15))},
        {"frequencies": np.zeros((16, 20), np.float32)},
        {"mean": np.full(484, np.nan)},
        {"frequencies": np.zeros((16, 0))},
        {"frequencies": None},
    ],
)
def test_what_does_not_fit_together_or_the_plan_is_refused(tmp_path, change):
    encoder, _ = fresh()
    assert encoder.mean.shape == (484,)
    arrays = {
        "mean": encoder.mean,
        "axes": encoder.axes,
        "frequencies": encoder.frequencies,
        "widths": np.array(WIDTHS),
        **change,
    }
    np.savez(tmp_path / "f.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(PlanError, match=r"expected finite float64|no file of"):
        unpacked(tmp_path / "f.npz", dimension=16, widths=WIDTHS, describe=histograms)


def test_pickle_and_rubbish_are_refused(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, mean=np.array([{}], dtype=object), **dict.fromkeys(("axes", "frequencies", "widths"), np.zeros(1)))
    for data in (buffer.getvalue(), b"rubbish", b""):
        (tmp_path / "f.npz").write_bytes(data)
        with pytest.raises(PlanError, match="no file of"):
            unpacked(tmp_path / "f.npz", dimension=16, widths=WIDTHS, describe=histograms)


def test_statistics_of_other_kernels_than_the_plan_s_are_refused(tmp_path):
    (tmp_path / "f.npz").write_bytes(packed(fresh()[0], WIDTHS))
    with pytest.raises(PlanError, match=r"widths \[0.25, 0.5\]; the plan's encoder.widths are \[0.3\]"):
        unpacked(tmp_path / "f.npz", dimension=16, widths=(0.3,), describe=histograms)
