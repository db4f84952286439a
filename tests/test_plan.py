"""The plan: strict, frozen, hashed, and free of contradictions; what it accepts never costs more than its ε."""

import dataclasses
import pathlib
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from patevolve.shared import plan as plans
from patevolve.shared import plan_sections
from patevolve.shared.errors import InputError, PlanError
from patevolve.shared.plan import agree, read_plan
from patevolve.shared.privacy import accountant, budget
from patevolve.shared.privacy.ledger_rows import event_text
from patevolve.shared.schedule import schedule

PLAN = {
    "": {"format": "1", "name": '"p"', "seed": "1"},
    "privacy": {"epsilon": "1.0", "delta": "1e-5", "unit": '"patient"', "trust": '"each-site"'},
    "sites": {"count": "3", "expected_units": "100"},
    "data": {"kind": '"table"', "classes": '["a", "b"]', "label": '"y"', "unit": '"id"', "hold_out": "0.2"},
    "generator": {"kind": '"tabular"'},
    "questions.counts": {"share": "0.1"},
    "questions.prototypes": {"share": "0.3"},
    "questions.neighbours": {"share": "0.3", "times": "2", "candidates": "20", "nearest": "3"},
    "questions.labels": {"share": "0.2", "candidates": "50", "teachers": "5"},
    "questions.score": {"share": "0.1"},
    "evolution": {"population": "40", "generations": "4"},
    "release": {"samples": "50"},
}
COLUMNS = '[[data.columns]]\nname = "v"\nkind = "numeric"\nedges = [0, 1, 2]\n'


def text(changes=(), columns=COLUMNS):
    """Return plan text; a change is (table, key, value as TOML, or None to leave the key out)."""
    tables = {name: dict(keys) for name, keys in PLAN.items()}
    for table, key, value in changes:
        tables.setdefault(table, {})[key] = value
    parts = []
    for name, keys in tables.items():
        parts.append(f"[{name}]" if name else "")
        parts.extend(f"{key} = {value}" for key, value in keys.items() if value is not None)
        if name == "data":
            parts.append(columns)
    return "\n".join(parts) + "\n"


def test_the_plan_is_read(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(text())
    agreed = read_plan(path)
    assert agreed == agree(text())
    assert agreed.plan.questions.neighbours.times == 2
    assert agreed.plan.data.columns[0].edges == (0.0, 1.0, 2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        agreed.plan.privacy.epsilon = 9.0


def test_line_ends_and_mark_do_not_matter_but_every_other_byte_does():
    base = agree(text())
    assert agree("\ufeff" + text().replace("\n", "\r\n")) == base
    for other in (
        text() + "\n",
        text().replace('"p"', '"q"'),
        text() + "# note\n",
        text().replace(" = 1\n", " =  1\n"),
    ):
        assert agree(other).sha256 != base.sha256


@given(st.integers(0, len(text()) - 1), st.characters(min_codepoint=32, max_codepoint=126))
def test_one_changed_character_is_another_plan_or_none(position, character):
    original = text()
    changed = original[:position] + character + original[position + 1 :]
    if changed == original:
        return
    try:
        found = agree(changed)
    except InputError:
        return
    assert found.sha256 != agree(original).sha256


CONTRADICTIONS = [
    ([("privacy", "epsilom", "1.0")], ["epsilom", "Did you mean 'epsilon'"]),
    ([("privacy", "epsilon", None)], ["'epsilon'", "missing", "Add it"]),
    ([("privacy", "epsilon", '"1"')], ["'1'", "str", "expected a number"]),
    ([("privacy", "epsilon", "true")], ["True", "bool", "expected a number"]),
    ([("privacy", "epsilon", "nan")], ["nan", "finite"]),
    ([("privacy", "epsilon", "inf")], ["inf", "finite"]),
    ([("privacy", "epsilon", "0")], ["0.0", "> 0"]),
    ([("privacy", "epsilon", "-1")], ["-1.0", "> 0"]),
    ([("privacy", "epsilon", "1e-310")], ["subnormal"]),
    ([("privacy", "delta", "0.0034")], ["0.0034", "below 1/n", "300"]),
    ([("privacy", "delta", "0.5")], ["below 1/n"]),
    ([("privacy", "delta", "1.0")], ["between 0 and 1"]),
    ([("privacy", "delta", "0")], ["> 0"]),
    ([("privacy", "delta", "nan")], ["finite"]),
    ([("privacy", "trust", '"nobody"')], ["'nobody'", "each-site", "secure-sum"]),
    ([("privacy", "unit", '"record"'), ("privacy", "records_per_unit", "2")], ["records_per_unit", "Remove"]),
    ([("privacy", "records_per_unit", "0")], ["records_per_unit"]),
    ([("privacy", "colluders", "1")], ["secure-sum", "Remove"]),
    ([("privacy", "dropouts", "3")], ["leave 0", "at least 1"]),
    ([("privacy", "trust", '"secure-sum"'), ("privacy", "dropouts", "1"), ("privacy", "colluders", "2")], ["leave 0"]),
    ([("privacy", "dropouts", "-1")], ["dropouts", ">= 0"]),
    ([("sites", "count", "0")], ["count", ">= 1"]),
    ([("sites", "count", "1.5")], ["1.5", "a whole number"]),
    ([("data", "classes", '["a"]')], ["two or more"]),
    ([("data", "classes", '["a", "a"]')], ["distinct"]),
    ([("data", "classes", '["a", " b"]')], ["without spaces"]),
    ([("data", "classes", '["a", ""]')], ["none of them empty"]),
    ([("data", "label", '""')], ["none of them empty"]),
    ([("data", "label", '"id"')], ["'id' twice"]),
    ([("data", "label", '"v"')], ["'v' twice"]),
    ([("data", "unit", '""')], ["without data.unit", "'record'"]),
    (
        [("privacy", "unit", '"record"'), ("privacy", "records_per_unit", "1")],
        ["'record' with data.unit = 'id'", "Remove data.unit"],
    ),
    ([("data", "hold_out", "0.6")], ["0 to 0.5"]),
    ([("data", "hold_out", "nan")], ["0 to 0.5"]),
    ([("data", "hold_out", "0.0")], ["questions.score needs data.hold_out"]),
    ([("data", "kind", '"image"')], ["8 to 1024"]),
    ([("data", "kind", '"image"'), ("data", "height", "8"), ("data", "width", "8")], ["generator.kind", "'simulator'"]),
    ([("data", "channels", "3")], ["data.channels", "kind = 'image'"]),
    ([("data", "text", '"note"')], ["data.text", "kind = 'text'"]),
    ([("encoder", "tokens", "64")], ["[encoder] is for images and texts"]),
    ([("generator", "kind", '"simulator"')], ["needs 'tabular'"]),
    ([("questions.counts", "share", "0.2")], ["add up to 1.1", "Lower one"]),
    ([("questions.counts", "share", "-0.1")], ["share", ">= 0"]),
    ([("questions.counts", "share", "nan")], ["finite"]),
    ([("questions.counts", "times", "2")], ["counts.times = 2", "no use for it"]),
    ([("questions.prototypes", "times", "2")], ["prototypes.times = 2", "no use for it"]),
    ([("questions.prototypes", "contrast", "1.0")], ["contrast", "below 1"]),
    ([("questions.neighbours", "candidates", "1")], ["candidates"]),
    ([("questions.neighbours", "nearest", "0")], ["nearest"]),
    ([("questions.neighbours", "times", "5")], ["times = 5", "4 generations", "Lower it"]),
    ([("questions.labels", "candidates", "49")], ["49", "release.samples = 50", "Make them equal"]),
    ([("questions.labels", "teachers", "0")], ["teachers"]),
    ([("questions.labels", "share", "0"), ("release", "labels", '"pate"')], ["release.labels", "give it one"]),
    ([("questions.gate", "share", "0.1")], ["'gate'", "Known keys"]),
    ([("evolution", "population", "1")], ["population"]),
    ([("evolution", "crossover", "1.5")], ["crossover"]),
    ([("evolution", "mutation", "[]")], ["mutation"]),
    ([("evolution", "mutation", "[0.01]")], ["0.05 to 1"]),
    ([("evolution", "bandwidth", "0")], ["bandwidth"]),
    ([("evolution", "selection", '"sfot"')], ["Did you mean 'soft'"]),
    ([("release", "samples", "1")], ["samples"]),
    ([("", "format", "2")], ["format = 2", "format 1"]),
    ([("", "format", "true")], ["True", "whole number"]),
    ([("", "seed", "-1")], ["seed", ">= 0"]),
    ([("", "seed", '"1"')], ["'1'", "whole number"]),
    ([("", "name", '""')], ["printable"]),
    ([("", "name", '"a\\nplans = []"')], ["printable"]),
    ([("", "name", '"\\u001b[31m"')], ["printable"]),
    ([("extra", "key", "1")], ["'extra'", "Known keys"]),
    ([("evolution", "selection", '"pcevolve"')], ["needs a share for questions.choices"]),
    ([("evolution", "selection", '"classifier-laplace"')], ["needs a share for questions.confidence"]),
    (
        [("evolution", "selection", '"pcevolve-prototype"'), ("questions.prototypes", "share", "0")],
        ["needs a share for questions.prototypes"],
    ),
    (
        [
            ("questions.counts", "share", "0"),
            ("questions.choices", "share", "0.1"),
            ("questions.choices", "candidates", "20"),
        ],
        ["questions.choices", "no use"],
    ),
    (
        [
            ("evolution", "selection", '"classifier-laplace"'),
            ("questions.confidence", "share", "0.01"),
            ("questions.confidence", "candidates", "20"),
            ("questions.counts", "share", "0.05"),
        ],
        ["teachers ≥ 1"],
    ),
    (
        [
            ("evolution", "selection", '"pcevolve"'),
            ("questions.counts", "share", "0.05"),
            ("questions.choices", "share", "0.01"),
            ("questions.choices", "candidates", "20"),
            ("questions.choices", "times", "9"),
        ],
        ["times = 9", "4 generations"],
    ),
    (
        [
            ("evolution", "selection", '"pcevolve"'),
            ("questions.counts", "share", "0.05"),
            ("questions.choices", "share", "0.01"),
            ("questions.choices", "candidates", "1"),
        ],
        ["at least one per class"],
    ),
    ([("questions.copies", "share", "0.01"), ("questions.counts", "share", "0.05")], ["within > 0", "catch > 0"]),
    ([("questions.copies", "catch", "1.0")], ["catch = 1.0"]),
    ([("evolution", "lookahead", "3")], ["lookahead is for selection = 'histogram'"]),
    ([("evolution", "diversity", "0.3")], ["diversity and elites are for selection = 'pcevolve-prototype'"]),
    ([("evolution", "elites", "2")], ["diversity and elites"]),
    ([("evolution", "collapse", "0.5")], ["collapse is for scored selections"]),
    ([("evolution", "rollback", "true"), ("questions.prototypes", "share", "0")], ["rollback needs a share"]),
    ([("evolution", "diversity", "11.0")], ["diversity = 11.0"]),
    ([("evolution", "collapse", "1.5")], ["collapse = 1.5"]),
    ([("evolution", "restart", "-0.1")], ["restart = -0.1"]),
    ([("release", "blurred", "1.5")], ["blurred = 1.5"]),
]


@pytest.mark.parametrize(("changes", "words"), CONTRADICTIONS)
def test_a_contradiction_is_refused_in_words(changes, words):
    with pytest.raises(InputError) as caught:
        agree(text(changes))
    assert isinstance(caught.value, PlanError)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("", ["without columns"]),
        ('[[data.columns]]\nname = "v"\nkind = "numeric"\n', ["two or more finite edges"]),
        ('[[data.columns]]\nname = "v"\nkind = "numeric"\nedges = [0, 0]\n', ["increasing"]),
        ('[[data.columns]]\nname = "v"\nkind = "numeric"\nedges = [0, inf]\n', ["finite"]),
        ('[[data.columns]]\nname = "v"\nkind = "categorical"\n', ["expected values"]),
        ('[[data.columns]]\nname = "v"\nkind = "categorical"\nvalues = ["x"]\n', ["one level"]),
        (COLUMNS + COLUMNS, ["'v' twice"]),
        ('[[data.columns]]\nname = "v"\nkind = "numeric"\nedges = [0.0, 0.2, 1]\n', ["Raise decimals"]),
        ('[[data.columns]]\nname = "v"\nkind = "categorical"\nvalues = ["m", "M"]\n', ["distinct"]),
    ],
)
def test_a_contradictory_schema_is_refused_in_words(column, words):
    with pytest.raises(PlanError) as caught:
        agree(text(columns=column))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_three_classes_need_three_candidates():
    changes = [("data", "classes", '["a", "b", "c"]'), ("evolution", "population", "2")]
    with pytest.raises(PlanError, match="at least one for each of the 3 classes"):
        agree(text(changes))


@st.composite
def random_plans(draw):
    """Changes that make a random plan: any ε, δ, split, cohort and trust model."""
    count = draw(st.integers(1, 60))
    secure = draw(st.booleans())
    dropouts = draw(st.integers(0, count - 1))
    colluders = draw(st.integers(0, count - 1 - dropouts)) if secure else 0
    shares = [draw(st.integers(0, 100)) for _ in range(5)]
    total = max(sum(shares), 1) * draw(st.floats(1.0, 3.0))
    kinds = ("counts", "prototypes", "neighbours", "labels", "score")
    times = draw(st.integers(1, 40))
    samples = draw(st.integers(2, 3000))
    return [
        ("privacy", "epsilon", repr(draw(st.floats(0.01, 50.0)))),
        ("privacy", "delta", repr(10.0 ** -draw(st.floats(5.0, 12.0)))),
        ("privacy", "trust", '"secure-sum"' if secure else '"each-site"'),
        ("privacy", "dropouts", str(dropouts)),
        ("privacy", "colluders", str(colluders)),
        ("privacy", "records_per_unit", str(draw(st.integers(1, 4)))),
        ("sites", "count", str(count)),
        ("sites", "expected_units", str(draw(st.integers(1, 1000)))),
        ("evolution", "generations", str(times)),
        ("questions.neighbours", "times", str(times)),
        ("questions.neighbours", "candidates", str(draw(st.integers(2, 5000)))),
        ("questions.neighbours", "nearest", str(draw(st.integers(1, 20)))),
        ("questions.prototypes", "contrast", repr(draw(st.sampled_from([0.0, 0.5, 0.9])))),
        ("questions.labels", "candidates", str(samples)),
        ("release", "samples", str(samples)),
        *((f"questions.{kind}", "share", repr(share / total)) for kind, share in zip(kinds, shares, strict=True)),
    ]


@settings(max_examples=1000, deadline=None)
@given(random_plans(), st.integers(1, 3000))
def test_no_accepted_plan_costs_more_than_its_epsilon(changes, embedding_size):
    """1,000 random plans: what the schedule asks, composed by the accountant that charges it, stays within ε.

    Few are refused: every share is far above 2 lattice steps here (tests/test_schedule.py has those below), and only
    the smallest ε and shares together ask for noise beyond what the samplers draw.
    """
    plan = agree(text(changes)).plan
    try:
        asks = schedule(plan, embedding_size)
    except PlanError as error:
        assert plan.privacy.epsilon < 0.1
        assume("cannot be drawn" not in str(error))
        raise
    curve = accountant.compose([ask.event for ask in asks])
    assert accountant.epsilon(curve, plan.privacy.delta).epsilon <= plan.privacy.epsilon
    asked = {ask.kind for ask in asks}
    assert asked == {
        kind
        for kind in ("counts", "prototypes", "neighbours", "labels", "score")
        if getattr(plan.questions, kind).share > 0
    }
    assert len({ask.name for ask in asks}) == len(asks)
    # A site whose policy caps its ledger at the plan's own ε can answer every question.
    cap = budget.Cap(epsilon=plan.privacy.epsilon, delta=plan.privacy.delta)
    order = budget.choose_order(cap)
    total = budget.used_at([(event_text(ask.event), 1) for ask in asks], order)
    assert not asks or budget.fits(total, 0.0, budget.budget_at(order, cap))


def unread(sections, code):
    """Return the keys of these dataclasses that no code reads as an attribute."""
    names = [(section.__name__, key.name) for section in sections for key in dataclasses.fields(section)]
    return [f"{section}.{name}" for section, name in names if not re.search(rf"\.{name}\b", code)]


def test_every_key_of_the_plan_is_read_outside_the_plan():
    """A key that nothing reads would promise, under a hash, what no run does."""
    root = pathlib.Path(__file__).parents[1]
    files = [path for folder in ("client", "server", "shared") for path in (root / folder).rglob("*.py")]
    own = {root / "shared" / name for name in ("plan.py", "plan_sections.py")}
    code = "\n".join(path.read_text(encoding="utf-8") for path in files if path not in own)
    known = {**vars(plans), **vars(plan_sections)}.values()
    sections = [found for found in known if dataclasses.is_dataclass(found) and found is not plan_sections.Column]
    assert plan_sections.Evolution in sections
    assert unread(sections, code) == []
    planted = dataclasses.make_dataclass("Planted", [("no_such_key_anywhere", float)])
    assert unread([planted], code) == ["Planted.no_such_key_anywhere"]


NOTES = [
    ("data", "kind", '"text"'),
    ("data", "text", '"note"'),
    ("data", "length", "256"),
    ("generator", "kind", '"pool"'),
    ("generator", "asset", f'"{"a" * 64}"'),
]
NETWORK = [
    ("encoder", "kind", '"onnx"'),
    ("encoder", "asset", f'"{"b" * 64}"'),
    ("encoder", "tokenizer", f'"{"c" * 64}"'),
    ("encoder", "tokens", "64"),
]


def test_a_plan_of_texts_is_read():
    plan = agree(text([*NOTES, *NETWORK], columns="")).plan
    assert plan.data.shape == (256,)
    assert (plan.data.fields.name, plan.data.fields.length) == ("note", 256)
    assert plan.encoder.tokens == 64


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([("data", "length", "15")], ["data.length = 15", "16 to 4096"]),
        ([("data", "length", "5000")], ["16 to 4096"]),
        ([("data", "text", '""')], ["data.text = ''", "the column"]),
        ([("data", "text", '"id"')], ["'id' twice"]),
        ([("data", "height", "8")], ["a text has none"]),
        ([("data", "channels", "3")], ["kind = 'image'"]),
        ([("generator", "variation", "0.5")], ["taken as they are"]),
        ([("generator", "kind", '"simulator"')], ["needs 'pool'"]),
        ([*NETWORK, ("encoder", "tokenizer", '""')], ["tokenizer = ''", "export-sentences"]),
        ([*NETWORK, ("encoder", "tokens", "4")], ["tokens = 4", "8 tokens or more"]),
        ([*NETWORK, ("encoder", "tokens", "2000")], ["tokens", "1024"]),
        ([*NETWORK, ("encoder", "tokenizer", '"tokenizer.json"')], ["64 hex digits"]),
        ([*NETWORK, ("encoder", "kind", '"auto"'), ("encoder", "asset", '""')], ["encoder.kind = 'onnx'"]),
        (
            [
                ("encoder.head", "share", "0.1"),
                ("encoder.head", "supervised", "0.0"),
                ("questions.counts", "share", "0.0"),
            ],
            ["encoder.head", "images"],
        ),
        ([("encoder", "pairs", "0.5")], ["encoder.pairs"]),
    ],
)
def test_a_plan_of_texts_that_contradicts_itself_is_refused(changes, expected):
    with pytest.raises(PlanError) as caught:
        agree(text([*NOTES, *changes], columns=""))
    for words in expected:
        assert words in str(caught.value)
