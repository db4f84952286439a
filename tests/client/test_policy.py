"""The site's policy: missing means refuse, and the coordinator can ask for less but never for more."""

import dataclasses

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from patevolve.client import policy as policies
from patevolve.client.cli import client
from patevolve.client.policy import SitePolicy, check_plan, draft, read_policy
from patevolve.shared import tomlfile
from patevolve.shared.cli import Application
from patevolve.shared.errors import InputError, PolicyError
from patevolve.shared.messages import KINDS
from patevolve.shared.plan import agree
from patevolve.shared.privacy.budget import Cap
from patevolve.shared.privacy.planner import kinds_asked

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
    budget, asked = Cap(epsilon=3.0, delta=1e-5), kinds_asked(agreed.plan)
    return dataclasses.replace(SitePolicy(site="s", plans=(agreed.sha256,), budget=budget, permitted=asked), **changes)


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
        GOOD.replace("[budget]", 'permitted = ["records"]\n[budget]'),
        GOOD.replace("[budget]", 'permitted = "counts"\n[budget]'),
        GOOD.replace("[budget]", "maximum_message = 4095\n[budget]"),
        GOOD.replace("[budget]", "maximum_message = 16777217\n[budget]"),
        GOOD.replace("[budget]", "maximum_message = 1e6\n[budget]"),
        GOOD.replace("[budget]", "maximum_message = true\n[budget]"),
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
    assert found == policy(agreed, budget=Cap(epsilon=4.5, delta=1e-5), permitted=found.permitted)


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


QUESTIONS = """
[questions.counts]
share = 0.5
[questions.labels]
share = 0.5
candidates = 10
teachers = 2
[release]
"""


@pytest.fixture
def plain():
    return agree(PLAN_TEXT)


@pytest.fixture
def taught():
    return agree(PLAN_TEXT.replace("[release]\n", QUESTIONS.lstrip()))


def test_every_kind_of_question_has_its_words():
    assert tuple(policies.RELEASES) == KINDS


def test_the_draft_permits_what_the_plan_asks_and_its_words_name_it(tmp_path, taught):
    found = read_policy(write(tmp_path, draft("s", taught, maximum_message=5000)))
    assert (found.permitted, found.maximum_message) == (("counts", "labels"), 5000)
    check_plan(found, taught)
    words = policies.in_words(taught, reserve=2.0, maximum_message=5000)
    assert "PATE teachers" in words
    assert "nearest" not in words
    assert "ε = 6 at δ = 1e-05" in words
    assert "5000 bytes" in words


@pytest.mark.parametrize("permitted", [(), ("counts",), ("labels",), ("counts", "prototypes", "neighbours", "score")])
def test_a_plan_that_asks_for_more_than_may_leave_is_vetoed(taught, permitted):
    check_plan(policy(taught, permitted=("labels", "counts")), taught)
    with pytest.raises(PolicyError, match=r"asks for (counts|labels)"):
        check_plan(policy(taught, permitted=permitted), taught)


def test_a_policy_that_does_not_say_permits_no_teachers(tmp_path, plain, taught):
    """Policies written before the key was there, and what later versions may come to ask for."""
    for plan, permitted in ((plain, True), (taught, False)):
        text = draft("s", plan)
        kept = "\n".join(line for line in text.splitlines() if not line.startswith(("permitted", "maximum_message")))
        found = read_policy(write(tmp_path, kept))
        assert found.maximum_message == 16 << 20
        if permitted:
            check_plan(found, plan)
        else:
            with pytest.raises(PolicyError, match="asks for labels"):
                check_plan(found, plan)


@pytest.fixture
def approve(tmp_path, taught):
    (tmp_path / "plan.toml").write_text(taught.text, encoding="utf-8")

    def run(*options):
        start = ["client", "approve", str(tmp_path / "plan.toml"), "--home", str(tmp_path / "home"), "--site", "s"]
        whole = Application(commands=[client])
        return CliRunner().invoke(whole, [*start, "--yes", *options])

    return run


def test_approve_shows_what_may_leave_and_refuses_more(approve, tmp_path):
    refused = approve("--permit", "counts", "--permit", "score")
    assert refused.exit_code == 3
    assert "asks for labels" in refused.output
    assert not (tmp_path / "home").exists()
    done = approve("--permit", "counts", "--permit", "labels", "--maximum-message", "8192")
    assert done.exit_code == 0
    assert "What may leave, each time with noise" in done.output
    found = read_policy(tmp_path / "home/policy.toml")
    assert (found.permitted, found.maximum_message) == (("counts", "labels"), 8192)


def test_approve_names_what_an_older_policy_does_not_let_out(approve, tmp_path):
    approve()
    path = tmp_path / "home/policy.toml"
    path.write_text(path.read_text().replace('["counts", "labels"]', '["counts"]'), encoding="utf-8")
    refused = approve()
    assert refused.exit_code == 3
    assert "asks for labels" in refused.output


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
