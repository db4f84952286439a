"""The site's policy: missing means refuse, and the coordinator can ask for less but never for more."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.client.policy import SitePolicy, check_plan, draft, read_policy
from patevolve.shared import tomlfile
from patevolve.shared.errors import InputError, PolicyError
from patevolve.shared.plan import agree
from patevolve.shared.privacy.budget import Cap

GOOD = """site = "s"
plans = ["{sha}"]
trust = ["each-site"]
minimum_sites = 1
minimum_units = 1
[budget]
epsilon = 3.0
delta = 1e-5
"""


def write(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def policy(agreed, **changes):
    start = SitePolicy(site="s", plans=(agreed.sha256,), budget=Cap(epsilon=3.0, delta=1e-5))
    return dataclasses.replace(start, **changes)


def test_a_missing_policy_refuses(tmp_path):
    with pytest.raises(PolicyError, match=r"no site policy found .* nothing is answered") as caught:
        read_policy(tmp_path / "policy.toml")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "site = ",
        b"\xff\xfe",
        GOOD.replace("plans", "plan"),
        GOOD.replace('site = "s"\n', ""),
        GOOD.replace("epsilon = 3.0", 'epsilon = "3.0"'),
        GOOD.replace("epsilon = 3.0", "epsilon = true"),
        GOOD.replace("epsilon = 3.0", "epsilon = nan"),
        GOOD.replace("epsilon = 3.0", "epsilon = inf"),
        GOOD.replace("epsilon = 3.0", "epsilon = 0"),
        GOOD.replace("delta = 1e-5", "delta = 1"),
        GOOD.replace("delta = 1e-5\n", ""),
        GOOD.replace("minimum_sites = 1", "minimum_sites = 0"),
        GOOD.replace("minimum_units = 1", "minimum_units = -1"),
        GOOD.replace('["each-site"]', '["trust-me"]'),
        GOOD.replace("[budget]", 'unit = "hospital"\n[budget]'),
        GOOD.replace('plans = ["{sha}"]', 'plans = "all"'),
        GOOD + "extra = 1\n",
    ],
)
def test_an_unreadable_policy_refuses(tmp_path, text):
    with pytest.raises(PolicyError):
        read_policy(write(tmp_path, text))


def test_a_folder_in_the_place_of_the_policy_refuses(tmp_path):
    (tmp_path / "policy.toml").mkdir()
    with pytest.raises(PolicyError):
        read_policy(tmp_path / "policy.toml")


def test_mark_and_line_ends_do_not_matter(tmp_path):
    plain = read_policy(write(tmp_path, GOOD))
    assert read_policy(write(tmp_path, "\ufeff" + GOOD.replace("\n", "\r\n"))) == plain


def test_the_draft_permits_its_plan_and_no_other(tmp_path, agreed):
    found = read_policy(write(tmp_path, draft("s", agreed)))
    check_plan(found, agreed)
    assert found.budget == Cap(epsilon=3.0, delta=1e-5)
    assert found.plans == (agreed.sha256,)
    other = agree(agreed.text + "# changed\n")
    with pytest.raises(PolicyError, match="not among the 1"):
        check_plan(found, other)


def test_a_plan_per_record_spends_no_budget_per_patient(tmp_path, agreed):
    """A ledger that added both up would state a figure that holds for neither."""
    record = agree(agreed.text.replace("records_per_unit = 2", 'unit = "record"').replace('unit = "id"\n', ""))
    check_plan(read_policy(write(tmp_path, draft("s", record))), record)
    silent = read_policy(write(tmp_path, GOOD.replace("{sha}", record.sha256)))
    with pytest.raises(PolicyError, match="protects one record found; the policy's budget is per patient"):
        check_plan(silent, record)


def test_a_reserve_widens_the_cap_alone(tmp_path, agreed):
    found = read_policy(write(tmp_path, draft("s", agreed, reserve=1.5)))
    assert found == policy(agreed, budget=Cap(epsilon=4.5, delta=1e-5))


@given(
    st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_characters="\x7f"), min_size=1, max_size=30)
)
def test_any_printable_site_name_survives_the_draft(site):
    agreed = agree(PLAN_TEXT)
    found = tomlfile.parse(draft(site, agreed), SitePolicy, "draft", InputError)
    assert found.site == site
    assert found.plans == (agreed.sha256,)


def test_a_plan_cannot_write_into_the_policy(agreed):
    """The plan's name stands in a comment of the draft; a line break in it would be TOML of the coordinator's."""
    with pytest.raises(InputError, match="printable"):
        agree(agreed.text.replace('name = "p"', 'name = "p\\nminimum_units = 0"'))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plans": ()}, "not among the 0"),
        ({"plans": ("0" * 64,)}, "not among the 1"),
        ({"unit": "record"}, "protects one patient found; the policy's budget is per record"),
        ({"trust": ("secure-sum",)}, "trust model 'each-site'"),
        ({"trust": ()}, "trust model"),
        ({"minimum_sites": 2}, "a cohort of 1 sites"),
        ({"budget": Cap(epsilon=3.0, delta=1e-6)}, "δ = 1e-05"),
    ],
)
def test_a_plan_beyond_the_policy_is_vetoed(agreed, changes, words):
    check_plan(policy(agreed), agreed)
    with pytest.raises(PolicyError, match=words):
        check_plan(policy(agreed, **changes), agreed)


def test_dropouts_count_against_the_smallest_cohort(agreed):
    text = agreed.text.replace("count = 1", "count = 5").replace("delta = 1e-5", "delta = 1e-5\ndropouts = 2")
    five = agree(text)
    check_plan(policy(five, minimum_sites=3), five)
    with pytest.raises(PolicyError, match="a cohort of 3 sites"):
        check_plan(policy(five, minimum_sites=4), five)


PLAN_TEXT = """
format = 1
name = "p"
seed = 1
[privacy]
epsilon = 3.0
delta = 1e-5
[sites]
count = 1
expected_units = 60
[data]
kind = "table"
classes = ["a", "b"]
label = "y"
unit = "id"
[[data.columns]]
name = "u"
kind = "numeric"
edges = [0, 1, 2, 3]
[generator]
kind = "tabular"
[release]
samples = 10
"""
