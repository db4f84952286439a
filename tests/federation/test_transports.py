"""One plan, one result: simulated in one process, or coordinated over a network, byte for byte."""

from __future__ import annotations

import pytest

from patevolve.shared.errors import ReleaseError
from patevolve.shared.release.proof import read_keys
from patevolve.shared.verify import verify_release

PUBLIC = ("release", "student", "generations")


def public(town, out):
    return {part: town.tree(out, part) for part in PUBLIC}


def check_proofs(town, agreed):
    """The coordinator's key signs a deployment, where it has one; every site's key signs a run in one process."""
    verify_release(town.place / "simulated" / "release")
    roster = town.place / "roster.json"
    if not roster.exists():
        with pytest.raises(ReleaseError, match="nobody signed"):
            verify_release(town.place / "deployed" / "release")
        return
    found = verify_release(town.place / "deployed" / "release", read_keys(roster))
    assert [role for role, _, _ in found.proven.signers] == ["coordinator"]
    assert set(found.proven.sites) == set(town.sites)
    assert found.proven.spent.epsilon <= agreed.plan.privacy.epsilon


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_coordinated_and_simulated_give_the_same_bytes(trust, town, recorded):
    agreed = town.agreed({"privacy.trust": trust})
    town.simulate(agreed, "simulated", noise=recorded)
    town.coordinate(agreed, town.office(agreed, noise=recorded), "deployed")
    assert len(public(town, "simulated")["release"]) >= 5
    assert public(town, "deployed") == public(town, "simulated")
    check_proofs(town, agreed)
    for site in town.sites:
        assert town.charges(site) == town.charges(site, "simulated-homes")


OTHERS = {
    "pcevolve": {
        "evolution.selection": "pcevolve",
        "questions.neighbours": None,
        "questions.choices.share": 0.3,
        "questions.choices.times": 2,
        "questions.choices.candidates": 20,
    },
    "classifier-laplace": {
        "evolution.selection": "classifier-laplace",
        "questions.neighbours": None,
        "questions.confidence.share": 0.3,
        "questions.confidence.candidates": 30,
        "questions.confidence.teachers": 1,  # of two, each would see what the site's own secret deals it
    },
    "copies": {
        "privacy.epsilon": 50.0,
        "questions.copies.share": 0.5,
        "questions.copies.within": 0.1,
        "questions.copies.catch": 0.5,
        "questions.neighbours": None,
        "questions.counts.share": 0.1,
    },
}


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
@pytest.mark.parametrize("name", OTHERS)
def test_every_kind_of_question_travels(name, trust, town, recorded):
    """Whole answers under masks too: what each site noises by itself is summed like shares."""
    agreed = town.agreed({**OTHERS[name], "privacy.trust": trust})
    town.simulate(agreed, "simulated", noise=recorded)
    town.coordinate(agreed, town.office(agreed, noise=recorded), "deployed")
    assert public(town, "deployed") == public(town, "simulated")
    for site in town.sites:
        assert town.charges(site) == town.charges(site, "simulated-homes")


def test_other_noise_gives_other_bytes(town, recorded):
    """The negative control of the test above."""
    agreed = town.agreed()
    town.simulate(agreed, "simulated", noise=recorded)
    town.coordinate(agreed, town.office(agreed), "deployed")
    assert public(town, "deployed") != public(town, "simulated")
