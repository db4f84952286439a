"""One plan, one result: simulated in one process, or coordinated over a network, byte for byte."""

from __future__ import annotations

import pytest

PUBLIC = ("release", "student", "generations")


def public(town, out):
    return {part: town.tree(out, part) for part in PUBLIC}


@pytest.mark.parametrize("trust", ["each-site", "secure-sum"])
def test_coordinated_and_simulated_give_the_same_bytes(trust, town, recorded):
    agreed = town.agreed({"privacy.trust": trust})
    town.simulate(agreed, "simulated", noise=recorded)
    town.coordinate(agreed, town.office(agreed, noise=recorded), "deployed")
    assert len(public(town, "simulated")["release"]) >= 5
    assert public(town, "deployed") == public(town, "simulated")
    for site in town.sites:
        assert town.charges(site) == town.charges(site, "simulated-homes")


def test_other_noise_gives_other_bytes(town, recorded):
    """The negative control of the test above."""
    agreed = town.agreed()
    town.simulate(agreed, "simulated", noise=recorded)
    town.coordinate(agreed, town.office(agreed), "deployed")
    assert public(town, "deployed") != public(town, "simulated")
