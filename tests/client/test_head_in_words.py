"""Whoever approves a plan with a private head reads that its training is charged."""

import pytest

from patevolve.client.policy import in_words
from patevolve.shared.plan_edit import vary


@pytest.mark.parametrize("head", [True, False])
def test_a_head_is_named_where_the_plan_has_one(head, two_digits):
    words = in_words(vary(two_digits, {"encoder.head.share": 0.6}) if head else two_digits)
    assert ("the training of a private head" in words) is head
