"""An encoder maps each record by itself, bit by bit: what lemma 5 of the votes presupposes."""

import dataclasses

import numpy as np
import pytest

from patevolve.shared.encoder.image import fit
from patevolve.shared.encoder.ngrams import hashed_words
from patevolve.shared.encoder.table import TableEncoder
from patevolve.shared.luminance import GREY, luminance
from patevolve.shared.schema import Column
from patevolve.shared.texts import packed


def table():
    schema = tuple(Column(name=str(i), kind="numeric", edges=(0.0, 1.0, 2.0, 3.0)) for i in range(5))
    rng = np.random.default_rng(0)
    return TableEncoder(schema=schema), rng.integers(0, 3, (60, 5))


def image():
    rng = np.random.default_rng(0)
    public = rng.integers(0, 256, (120, 28, 28)).astype(np.uint8)
    return fit(public, rng, dimension=32, embedding=200), rng.integers(0, 256, (60, 28, 28)).astype(np.uint8)


def colour():
    rng = np.random.default_rng(0)
    public = rng.integers(0, 256, (120, 28, 20, 3)).astype(np.uint8)
    return fit(public, rng, dimension=32, embedding=200), rng.integers(0, 256, (60, 28, 20, 3)).astype(np.uint8)


def linear():
    encoder, values = image()
    return dataclasses.replace(encoder, embedding="linear"), values


def text():
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefghij"), 5)) for _ in range(300)])
    rows = packed([" ".join(rng.choice(words, rng.integers(1, 20))) for _ in range(180)], 128)
    return fit(rows[:120], rng, dimension=32, embedding=200, describe=hashed_words), rows[120:]


@pytest.mark.parametrize("make", [table, image, colour, linear, text])
def test_a_row_is_encoded_alike_alone_and_in_any_company(make):
    encoder, values = make()
    features = encoder.encode(values)
    embedded = encoder.embed(features)
    for n in (1, 2, 3, 5, 17, 31, 59):
        some = encoder.encode(values[:n])
        assert some.tobytes() == features[:n].tobytes()
        assert encoder.embed(some).tobytes() == embedded[:n].tobytes()
    order = np.random.default_rng(1).permutation(len(values))
    assert encoder.encode(values[order]).tobytes() == features[order].tobytes()
    assert encoder.embed(features[order]).tobytes() == embedded[order].tobytes()


@pytest.mark.parametrize("make", [table, image, colour, linear, text])
def test_no_embedding_is_longer_than_one(make):
    encoder, values = make()
    assert np.linalg.norm(encoder.embed(encoder.encode(values)), axis=1).max() <= 1 + 1e-12


def test_colour_alone_tells_images_of_one_luminance_apart():
    """Half the images are reddish and half bluish, with one grey picture under all of them."""
    rng = np.random.default_rng(0)
    grey = rng.integers(110, 145, (40, 16, 16)).astype(np.float32)
    tint = np.array([40.0, 0.0, -40.0 * GREY[0] / GREY[2]]) * np.where(np.arange(40) % 2, 1.0, -1.0)[:, None]
    images = np.clip(np.rint(grey[..., None] + tint[:, None, None, :]), 0, 255).astype(np.uint8)
    assert np.abs(luminance(images) - grey).max() <= 0.75  # of rounding alone
    features = fit(images, rng, dimension=8, embedding=100).encode(images)
    red, blue = features[1::2], features[::2]
    axis = red[:10].mean(axis=0) - blue[:10].mean(axis=0)
    middle = (red[:10].mean(axis=0) + blue[:10].mean(axis=0)) / 2
    assert ((red[10:] - middle) @ axis > 0).all()
    assert ((blue[10:] - middle) @ axis < 0).all()
