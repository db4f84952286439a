"""Inversion, attribute inference, shadow students and one-run audits find what is planted, and chance elsewhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from patevolve.client.audit import audit
from patevolve.client.audit_deeper import one_run_audit
from patevolve.shared.audit import attributes, inversion, membership, one_run
from patevolve.shared.audit.membership import Group
from patevolve.shared.errors import ParameterError
from patevolve.shared.schema import Column


def test_a_linear_decoder_rebuilds_what_is_linear_and_not_what_is_noise() -> None:
    random = np.random.default_rng(1)
    mix = random.normal(size=(6, 20))
    public, true, line_up = (random.normal(size=(size, 6)) for size in (400, 100, 99))
    decoder = inversion.taught(public @ mix, public)
    whole = inversion.inversion("all", decoder(true @ mix), true, line_up)
    assert whole.found.value == 1.0
    assert whole.explained > 0.99
    assert whole.chance == 0.01
    lost = inversion.inversion("none", decoder(random.normal(size=(100, 20)) * 50), true, line_up)
    assert lost.found.value < 0.2  # 100 at chance 0.01: 20 or more have probability below 1e-17
    assert lost.explained < 0.0


def test_under_noise_the_decoder_falls_back_on_the_mean() -> None:
    random = np.random.default_rng(2)
    public, true = random.normal(size=(400, 5)) + 3.0, random.normal(size=(50, 5)) + 3.0
    noisy = true + 100.0 * random.normal(size=true.shape)
    bold, careful = inversion.taught(public, public), inversion.taught(public, public, 100.0)
    assert inversion.inversion("careful", careful(noisy), true, public).explained > -0.3
    assert inversion.inversion("bold", bold(noisy), true, public).explained < -100.0


def test_an_equal_record_in_the_line_up_is_no_rival_and_a_tie_is_no_success() -> None:
    true = np.array([[1.0, 0.0]])
    assert inversion.inversion("same", true, true, np.array([[1.0, 0.0], [0.0, 1.0]])).found.value == 1.0
    middle = np.array([[0.5, 0.5]])
    assert inversion.inversion("tie", middle, true, np.array([[0.0, 1.0]])).found.value == 0.0


def test_a_decoder_needs_as_many_inputs_as_values() -> None:
    with pytest.raises(ParameterError):
        inversion.taught(np.zeros((3, 2)), np.zeros((2, 2)))


SCHEMA = tuple(Column(name=f"c{n}", kind="categorical", values=tuple("abcdef")) for n in range(6))


def rows(random: np.random.Generator, count: int) -> Group:
    codes = random.integers(6, size=(count, 6))
    features = np.eye(6)[codes].reshape(count, -1)
    return Group(features=features, classes=random.integers(2, size=count))


def test_attribute_inference_finds_a_release_that_holds_members_and_not_one_that_does_not() -> None:
    random = np.random.default_rng(3)
    members, others, fresh = (rows(random, 400) for _ in range(3))
    copied = attributes.guesses(SCHEMA, members, others, members)
    # Of the five rows that decide, one is the member's own: it wins with probability 0.42, against 0.17 for others.
    assert all(guess.z > 5 for guess in copied)
    assert all(guess.gain > 0.1 for guess in copied)
    honest = attributes.guesses(SCHEMA, members, others, fresh)
    assert all(abs(guess.z) < 6.0 for guess in honest)  # 6 columns at 6 standard errors: 1e-8
    assert all(guess.usual < 0.4 for guess in honest)


def test_shadow_students_show_a_student_that_memorised() -> None:
    random = np.random.default_rng(4)
    hard = random.uniform(-3.0, 0.0, size=400)  # how hard each record is: what shadows correct for
    shadows = -np.exp(hard + 0.1 * random.normal(size=(16, 400)))
    member, other = -np.exp(hard[:200] - 0.3), -np.exp(hard[200:] + 0.1 * random.normal(size=200))
    own = membership.against_shadows(member, shadows[:, :200])
    rest = membership.against_shadows(other, shadows[:, 200:])
    assert membership.attack("shadows", own, rest).auc.low > 0.9
    assert membership.attack("plain", member, other).auc.value < 0.75


def test_worst_case_records_are_counted_against_chance() -> None:
    found = membership.attack("a", np.array([5.0, 4.0, 0.0, 0.0]), np.array([1.0, 2.0, 3.0]))
    assert (found.above, found.expect) == (2, 1.0)


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
def test_the_one_run_bound_is_wrong_as_rarely_as_promised(epsilon: float) -> None:
    """Randomised response reaches the theorem's bound with equality for δ = 0, so every excess is an error."""
    guesses, rate = 40, 1 / (1 + math.exp(-epsilon))
    lower = [one_run.epsilon_lower(80, guesses, right, delta=1e-9, tail=0.05) for right in range(guesses + 1)]
    assert lower == sorted(lower)
    wrong = sum(binom.pmf(right, guesses, rate) for right in range(guesses + 1) if lower[right] > epsilon)
    assert wrong <= 0.05
    assert one_run.epsilon_lower(80, guesses, guesses, delta=1e-9, tail=0.05) == pytest.approx(
        math.log(0.05 ** (1 / guesses) / (1 - 0.05 ** (1 / guesses))), rel=1e-5
    )


def test_a_larger_delta_weakens_the_one_run_bound() -> None:
    bounds = [one_run.epsilon_lower(1000, 500, 480, delta=delta, tail=0.05) for delta in (1e-9, 1e-5, 1e-3)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 2.7
    assert bounds[2] < 2.3


def test_one_run_finds_missing_noise_and_spares_the_honest(bench: Any, breakable: None) -> None:
    """Without noise nearly every canary is guessed: 22 of 24 refute ε = 1 at 0.95.

    One audit in 65 saw fewer, so the majority of eleven is asked: it fails by chance with 1e-8. Honest audits reach
    it with 6e-6. False alarm of one audit: at most 0.05; seven in a row 1e-9.
    """
    agreed, settings = bench.agreed(), {"confidence": 0.95, "canaries": 48}
    broken = [one_run_audit(agreed, **settings, noise=lambda *_: bench.scaled(0.0)) for _ in range(11)]
    assert sum(one.alarm for one in broken) >= 6
    assert sorted(one.right for one in broken)[5] >= 22
    assert one_run.epsilon_lower(48, 24, 22, delta=1e-5, tail=0.05) > 1.0
    assert not all(one_run_audit(agreed, **settings).alarm for _ in range(7))


def test_votes_are_inverted_without_noise_and_not_with_it(bench: Any, breakable: None) -> None:
    parts = bench.split()

    def inverted(factor: float) -> dict[str, dict[str, Any]]:
        subject = bench.run(bench.agreed(), parts.train, parts.test, noise=lambda *_: bench.scaled(factor))
        return {one["name"].split(":")[0]: one for one in audit(subject, trials=0).open_at_site()["inversion"]}

    broken, honest = inverted(0.0), inverted(1.0)
    assert broken["the votes"]["found"]["value"] > 0.9
    assert broken["the votes"]["explained"] > 0.5
    # 200 records at chance 1/501 under one draw of noise, which they share: far fewer than a tenth
    assert honest["the votes"]["found"]["value"] < 0.1
    assert honest["the encoder"]["found"]["value"] > 0.99  # linear in the row: why embeddings stay at the site
