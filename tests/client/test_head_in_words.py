"""Whoever approves a plan with a private head reads that its training is charged."""

import pytest

from patevolve.client.policy import in_words
from patevolve.shared.plan import agree

PLAN = """
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


@pytest.mark.parametrize("head", [True, False])
def test_a_head_is_named_where_the_plan_has_one(head):
    words = in_words(agree(PLAN + ("[encoder.head]\nshare = 0.6\n" if head else "")))
    assert ("the training of a private head" in words) is head
