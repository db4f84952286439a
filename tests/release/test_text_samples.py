"""The gate and texts: what is not a line in normal form, within the plan's bytes, is not released."""

import numpy as np
import pytest

from patevolve.shared.plan import agree
from patevolve.shared.release.gate import run_gate
from patevolve.shared.release.samples import Samples

PLAN = """
format = 1
name = "notes"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-3
unit = "record"
[sites]
count = 1
expected_units = 30
[data]
kind = "text"
classes = ["no", "yes"]
label = "y"
text = "note"
length = 32
[generator]
kind = "pool"
asset = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
[questions.counts]
share = 1.0
[release]
samples = 4
"""
GOOD = ["one", "two words", "<b>three</b>", "שלום"]


def checked(texts, *, column="note", classes=(0, 0, 1, 1)):
    plan = agree(PLAN).plan
    rows = tuple((text,) for text in texts)
    samples = Samples(classes=np.array(classes), class_names=("no", "yes"), columns=(column,), rows=rows)
    features = np.random.default_rng(0).normal(size=(len(rows), 4))
    found = run_gate(samples, plan, features=features, reference_spread=1.0)
    return {result.name: result for result in found}


def test_texts_in_normal_form_pass():
    found = checked(GOOD)
    assert found["values"].passed is True
    assert "none empty or above 32 bytes" in found["values"].expected
    assert "sharpness" not in found


@pytest.mark.parametrize(
    "wrong", ["", "two\nlines", " led", "x" * 33, "\u202edeR", "cafe\u0301", "a\0b", "half \ud83d", 5, None]
)
def test_one_text_outside_the_form_stops_the_release(wrong):
    found = checked([*GOOD[:3], wrong])
    assert found["values"].passed is False
    assert "sample 4: no text in normal form" in found["values"].found


def test_another_column_and_repeated_texts_are_seen():
    assert checked(GOOD, column="other")["values"].passed is False
    assert checked(["one"] * 4, classes=(0, 0, 0, 1))["duplicates"].passed is True
    assert checked(["one"] * 8, classes=(0, 0, 0, 0, 0, 0, 0, 1))["duplicates"].passed is False
