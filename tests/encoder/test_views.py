"""Public changes of view, and the temperature searched on public data: repeatable, and each record by itself."""

import numpy as np
import pytest

from patevolve.shared.encoder.views import changed_views
from patevolve.shared.randomness import stream


def images(count=7, side=12):
    return np.random.default_rng(0).integers(0, 256, (count, side, side)).astype(np.uint8)


def test_the_first_view_is_the_image_and_the_others_are_near_it():
    made = images()
    blurred = np.repeat(np.repeat(made[:, :3, :3], 4, axis=1), 4, axis=2)
    views = changed_views(blurred, stream(1, "views"), 4)
    assert views.shape == (4, 7, 12, 12)
    assert views.dtype == np.uint8
    assert views[0].tobytes() == blurred.tobytes()
    for view in views[1:]:
        assert view.tobytes() != blurred.tobytes()
        assert np.corrcoef(view.ravel(), blurred.ravel())[0, 1] > 0.1


def test_an_image_is_changed_alike_alone_and_in_any_company():
    made = images()
    whole = changed_views(made, stream(1, "views"), 3)
    for row in range(7):
        assert changed_views(made[row : row + 1], stream(1, "views"), 3).tobytes() == whole[:, row : row + 1].tobytes()


def test_each_channel_is_changed_alike():
    colour = np.random.default_rng(0).integers(0, 256, (5, 12, 10, 3)).astype(np.uint8)
    views = changed_views(colour, stream(1, "views"), 3)
    for channel in range(3):
        grey = np.ascontiguousarray(colour[..., channel])
        assert views[..., channel].tobytes() == changed_views(grey, stream(1, "views"), 3).tobytes()


def test_no_image_and_no_square_image_are_fine():
    assert changed_views(images(0), stream(1, "views"), 3).shape == (3, 0, 12, 12)
    assert changed_views(images()[:, :8], stream(1, "views"), 3).shape == (3, 7, 8, 12)


def test_the_temperature_is_searched_coarse_then_fine_and_alike_each_time():
    pytest.importorskip("torch")
    from patevolve.shared.encoder.temperature import COARSE, FINE, search_temperature
    from patevolve.shared.encoder.train import Settings, Stretch

    rng = np.random.default_rng(0)
    classes = rng.permutation(np.arange(80) % 4)
    views = rng.normal(size=(4, 6))[classes] + 0.8 * rng.normal(size=(3, 80, 6))
    settings = Settings(stretches=(Stretch(steps=3, batch=40, temperature=1.0),), supervised=1.0)
    found = search_temperature(views, classes, settings)
    allowed = {*COARSE, *(max(COARSE[0], value * factor) for value in COARSE for factor in FINE)}
    assert found in allowed
    assert found == search_temperature(views, classes, settings)
