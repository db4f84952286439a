"""The discriminator of blurred images: learnt in public, blind to brightness, and right about blur."""

import numpy as np
import pytest

from patevolve.shared.release.gate import run_gate
from patevolve.shared.release.samples import Samples
from patevolve.shared.release.sharpness import blur, edges, train


def strokes(seed, count=120, side=20):
    """Images of random bright lines, sharp to the pixel."""
    rng = np.random.default_rng(seed)
    images = np.zeros((count, side, side), np.uint8)
    for image in images:
        for _ in range(3):
            at, start, end = rng.integers(2, side - 2), *np.sort(rng.choice(side, 2, replace=False))
            if rng.random() < 0.5:
                image[at : at + 2, start:end] = 255
            else:
                image[start:end, at : at + 2] = 255
    return images


PUBLIC = strokes(0)
KNOWS = train(PUBLIC)


def test_it_tells_new_blurred_images_from_new_sharp_ones():
    fresh = strokes(1)
    assert KNOWS.caught > 0.95
    assert KNOWS.false_alarm < 0.05
    assert KNOWS.blurred(blur(fresh)).mean() > 0.95
    assert KNOWS.blurred(fresh).mean() < 0.05


@pytest.mark.parametrize(("slope", "offset"), [(0.3, 0.0), (1.0, 0.0), (0.5, 100.0)])
def test_brightness_and_contrast_do_not_matter(slope, offset):
    fresh = strokes(2)
    dimmed = np.rint(slope * fresh + offset).astype(np.uint8)
    assert np.abs(edges(dimmed) - edges(fresh)).max() < 0.1
    assert np.array_equal(KNOWS.blurred(dimmed), KNOWS.blurred(fresh))


def test_an_even_image_is_no_error():
    assert np.isfinite(edges(np.full((2, 20, 20), 7, np.uint8))).all()


def test_images_that_cannot_be_told_apart_are_no_error():
    even = train(np.full((10, 20, 20), 7, np.uint8))
    assert even.caught == even.false_alarm


def gate(images, image_plan, allowed=0.5):
    agreed = image_plan()
    samples = Samples(classes=np.arange(len(images)) % 2, class_names=agreed.plan.data.classes, images=images)
    features = np.random.default_rng(0).normal(size=(len(images), 3))
    results = run_gate(samples, agreed.plan, features=features, reference_spread=1.0, sharpness=train(strokes(0)))
    return {result.name: result for result in results}


def test_the_gate_fails_on_blurred_images_and_passes_sharp_ones(image_plan):
    """The plan's images are 9 × 8, so the strokes are cut to that."""
    sharp = strokes(3, 200)[:, 4:13, 4:12]
    shown = sharp[(sharp.max(axis=(1, 2)) > 0) & (sharp.min(axis=(1, 2)) < 255)]
    assert gate(shown, image_plan)["sharpness"].passed is True
    found = gate(blur(shown), image_plan)["sharpness"]
    assert found.passed is False
    assert "look blurred" in found.found


def test_without_a_discriminator_the_gate_says_so(image_plan):
    agreed = image_plan()
    images = strokes(4, 40)[:, 4:13, 4:12]
    samples = Samples(classes=np.arange(40) % 2, class_names=agreed.plan.data.classes, images=images)
    results = run_gate(samples, agreed.plan, features=np.eye(40), reference_spread=0.1)
    assert {result.name: result.passed for result in results}["sharpness"] is None
