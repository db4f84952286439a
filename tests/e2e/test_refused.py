"""Bad input ends before any charge: one clear error, a documented exit code, nothing half-written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patevolve.client.home import open_home

INPUT, POLICY, DATA, BUDGET, LEDGER = 2, 3, 4, 5, 6

# (what is changed in the plan's text, to what, words that the message must have)
PLANS = {
    "unknown key": ("epsilon = 4.0", "epsilon = 4.0\nepsilion = 4.0", ["epsilion", "Did you mean 'epsilon'"]),
    "unknown table": ("[release]", "[relase]\n[release]", ["relase", "Did you mean 'release'"]),
    "unknown key of a question": ("contrast = 0.8", "contrst = 0.8", ["contrst", "Did you mean 'contrast'"]),
    "epsilon as text": ("epsilon = 4.0", 'epsilon = "4.0"', ["epsilon", "'4.0'", "a number"]),
    "epsilon as bool": ("epsilon = 4.0", "epsilon = true", ["epsilon", "True", "a number"]),
    "epsilon of nan": ("epsilon = 4.0", "epsilon = nan", ["epsilon", "nan", "finite"]),
    "epsilon of infinity": ("epsilon = 4.0", "epsilon = inf", ["epsilon", "inf", "finite"]),
    "epsilon of zero": ("epsilon = 4.0", "epsilon = 0", ["epsilon", "0.0", "> 0"]),
    "negative epsilon": ("epsilon = 4.0", "epsilon = -1", ["epsilon", "-1", "> 0"]),
    "seed as bool": ("seed = 1", "seed = true", ["seed", "True", "a whole number"]),
    "delta of 1/n": ("delta = 1e-5", "delta = 0.00333333334", ["delta", "0.00333", "below 1/n", "300"]),
    "delta of 1": ("delta = 1e-5", "delta = 1.0", ["delta", "1.0", "between 0 and 1"]),
    "unknown trust": ('trust = "secure-sum"', 'trust = "secure"', ["'secure'", "Did you mean 'secure-sum'"]),
    "shares above 1": ("share = 0.7", "share = 0.8", ["1.1", "at most 1"]),
    "missing key": ('label = "disease"\n', "", ["'label'", "missing"]),
    "broken TOML": ("[sites]", "[sites", ["not valid TOML", "line"]),
}


def _run(kit: Any, plan: Path, data: Path, homes: str = "sites", out: str = "run") -> tuple[object, ...]:
    place = kit.place
    return ("simulate", plan, "--data", data, "--homes", place / homes, "--out", place / out, "--format", "json")


@pytest.fixture
def refuse(kit: Any, shell: Any) -> Callable[..., str]:
    """Run a command that must be refused; hold what every refusal promises and return its message."""

    def run(code: int, name: str, *arguments: object, untouched: bool = True) -> str:
        draws = kit.place / "draws"
        ended = shell(*arguments, draws=draws)
        assert ended.code == code, ended.out + ended.err
        error = ended.error()
        assert set(error) == {"error", "message"}
        assert error["error"] == name
        assert "Traceback" not in ended.err
        for ledger in kit.place.rglob("ledger.sqlite"):
            assert kit.charges(ledger.parent) == []
        assert not draws.exists(), "noise was drawn"
        assert not untouched or not (kit.place / "run").exists()
        plain = shell(*[a for a in arguments if a not in {"--format", "json"}], draws=draws)
        assert (plain.code, plain.out) == (code, "")
        assert plain.err.count("\n") == 1 or name in {"quorum", "budget"}
        assert plain.err.startswith("error: ")
        return str(error["message"])

    return run


@pytest.mark.parametrize("case", PLANS, ids=lambda case: case.replace(" ", "_"))
def test_a_plan_that_is_not_one(case: str, kit: Any, refuse: Callable[..., str]) -> None:
    old, new, words = PLANS[case]
    text = kit.agreed().text
    assert old in text
    kit.homes(kit.agreed())
    message = refuse(INPUT, "plan", *_run(kit, kit.text("bad.toml", text.replace(old, new, 1)), kit.data()))
    assert all(word in message for word in words), message


def _edited(kit: Any, changes: dict[str, str | None]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = kit.rows()
    for row in rows if None in changes.values() else rows[:1]:
        for name, value in changes.items():
            if value is None:
                del row[name]
            else:
                row[name] = value
    return rows


DATA_CASES: dict[str, tuple[dict[str, str | None], list[str]]] = {
    "label outside the plan": ({"disease": "maybe"}, ["'disease'", "row 1", "'maybe'", "no, yes"]),
    "label as a number": ({"disease": "2"}, ["'disease'", "row 1", "'2'", "no, yes"]),
    "missing column": ({"cholesterol": None}, ["no column 'cholesterol'", "found", "age"]),
    "missing label column": ({"disease": None}, ["no column 'disease'"]),
    "missing patient column": ({"patient": None}, ["no column 'patient'"]),
    "NaN in a complete numeric column": ({"age": "NaN"}, ["'age'", "row 1", "missing value", "complete"]),
    "empty cell in a complete numeric column": ({"age": ""}, ["'age'", "row 1", "missing value", "complete"]),
    "NaN in a complete categorical column": ({"sex": "nan"}, ["'sex'", "row 1", "missing value", "complete"]),
    "infinity": ({"age": "inf"}, ["'age'", "row 1", "'inf'", "finite number"]),
    "text in a numeric column": ({"age": "old"}, ["'age'", "row 1", "'old'", "finite number"]),
    "category outside the schema": ({"sex": "other"}, ["'sex'", "row 1", "'other'", "female, male"]),
    "empty patient id": ({"patient": " "}, ["row 1", "empty patient id"]),
}


@pytest.mark.parametrize("case", DATA_CASES, ids=lambda case: case.replace(" ", "_"))
def test_data_outside_the_schema(case: str, kit: Any, refuse: Callable[..., str]) -> None:
    changes, words = DATA_CASES[case]
    kit.homes(kit.agreed())
    message = refuse(DATA, "data", *_run(kit, kit.plan(), kit.data(_edited(kit, changes))))
    assert all(word in message for word in words), message


def test_a_file_without_rows_or_without_a_file(kit: Any, refuse: Callable[..., str]) -> None:
    kit.homes(kit.agreed())
    assert "no data rows" in refuse(DATA, "data", *_run(kit, kit.plan(), kit.data([])))
    assert "no data rows" in refuse(DATA, "data", *_run(kit, kit.plan(), kit.text("empty.csv", "")))
    assert "does not exist" in refuse(DATA, "data", *_run(kit, kit.plan(), kit.place / "none.csv"))
    assert "does not exist" in refuse(DATA, "data", *_run(kit, kit.plan(), kit.place / "none.npz"))


def test_a_site_with_more_units_than_delta_allows(kit: Any, refuse: Callable[..., str]) -> None:
    changes = {"sites.expected_units": 100, "privacy.delta": 0.0049}  # below 1/200, as the plan expected
    plan, rows = kit.plan(changes), kit.rows() * 2
    kit.homes(kit.agreed(changes))
    rows = [{**row, "patient": str(position)} for position, row in enumerate(rows)]
    message = refuse(DATA, "data", *_run(kit, plan, kit.data(rows)))
    assert "δ = 0.0049" in message
    assert "expected δ below 1/" in message


def test_a_class_with_fewer_patients_than_teachers(kit: Any, refuse: Callable[..., str]) -> None:
    changes = {**kit.everything, "questions.labels.teachers": 60}
    kit.homes(kit.agreed(changes))
    message = refuse(DATA, "data", *_run(kit, kit.plan(changes), kit.data()))
    assert "class 'yes'" in message
    assert "60 teachers" in message
    assert "Ask for at most" in message


@pytest.mark.parametrize("hospitals", [1, 3])
def test_another_number_of_sites_than_planned(hospitals: int, kit: Any, refuse: Callable[..., str]) -> None:
    kit.homes(kit.agreed())
    rows = kit.rows()
    rows = [row for row in rows if row["hospital"] == "Hungary"] if hospitals == 1 else rows
    if hospitals == 3:
        rows[0] = {**rows[0], "hospital": "Zürich"}
    message = refuse(DATA, "data", *_run(kit, kit.plan(), kit.data(rows)))
    assert f"{hospitals} sites found" in message
    assert "the plan is for 2" in message


def test_a_site_without_a_policy(kit: Any, refuse: Callable[..., str]) -> None:
    homes = kit.homes(kit.agreed())
    (homes["Hungary"] / "policy.toml").unlink()
    message = refuse(POLICY, "policy", *_run(kit, kit.plan(), kit.data()))
    assert "'Hungary'" in message
    assert "policy" in message
    assert not (homes["Hungary"] / "ledger.sqlite").exists()


def test_local_without_a_policy(kit: Any, refuse: Callable[..., str]) -> None:
    plan, data = kit.plan({"sites.count": 1}), kit.data([row for row in kit.rows() if row["hospital"] == "Hungary"])
    home, out = kit.place / "nowhere", kit.place / "run"
    arguments = ("local", plan, "--data", data, "--home", home, "--out", out, "--format", "json")
    message = refuse(POLICY, "policy", *arguments)
    assert "no site policy found" in message
    assert "client approve" in message
    assert not home.exists()


def test_local_with_the_policy_of_another_site(kit: Any, refuse: Callable[..., str]) -> None:
    changes = {"sites.count": 1}
    plan, data = kit.plan(changes), kit.data([row for row in kit.rows() if row["hospital"] == "Hungary"])
    home, out = kit.homes(kit.agreed(changes))["Cleveland"], kit.place / "run"
    arguments = ("local", plan, "--data", data, "--home", home, "--out", out, "--format", "json")
    message = refuse(POLICY, "policy", *arguments)
    assert "'Cleveland'" in message
    assert "'Hungary'" in message


def test_local_with_the_file_of_two_sites(kit: Any, refuse: Callable[..., str]) -> None:
    home, out = kit.homes(kit.agreed())["Cleveland"], kit.place / "run"
    arguments = ("local", kit.plan(), "--data", kit.data(), "--home", home, "--out", out, "--format", "json")
    assert "2 sites found" in refuse(DATA, "data", *arguments)


# (what is changed in the policy of one site, to what, words)
POLICIES = {
    "another plan": ('plans = ["', 'plans = ["0', ["not among", "client approve"]),
    "another trust model": ('trust = ["secure-sum"]', 'trust = ["each-site"]', ["'secure-sum'", "each-site"]),
    "a larger cohort": ("minimum_sites = 2", "minimum_sites = 3", ["cohort of 2", "asks for 3"]),
    "more patients": ("minimum_units = 1", "minimum_units = 1000", ["units found", "asks for 1000"]),
    "a smaller delta": ("delta = 1e-05", "delta = 1e-06", ["1e-05", "1e-06"]),
    "an unknown key": ("minimum_units = 1", "minimum_unit = 1", ["minimum_unit", "Did you mean 'minimum_units'"]),
    "a cap as text": ("epsilon = 4.0", 'epsilon = "4.0"', ["epsilon", "'4.0'"]),
    "a cap as bool": ("epsilon = 4.0", "epsilon = true", ["epsilon", "True"]),
    "broken TOML": ("[budget]", "[budget", ["TOML"]),
}


@pytest.mark.parametrize("case", POLICIES, ids=lambda case: case.replace(" ", "_"))
def test_a_policy_that_says_no(case: str, kit: Any, refuse: Callable[..., str]) -> None:
    old, new, words = POLICIES[case]
    path = kit.homes(kit.agreed())["Hungary"] / "policy.toml"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    message = refuse(POLICY, "policy", *_run(kit, kit.plan(), kit.data()))
    assert all(word in message for word in words), message


@pytest.mark.parametrize("trust", ["secure-sum", "each-site"])
@pytest.mark.parametrize("cap", ["3.9", "0.01"])
def test_a_budget_that_does_not_cover_the_plan(cap: str, trust: str, kit: Any, refuse: Callable[..., str]) -> None:
    changes = {**kit.everything, "privacy.trust": trust}
    path = kit.homes(kit.agreed(changes))["Hungary"] / "policy.toml"
    path.write_text(path.read_text("utf-8").replace("epsilon = 4.0", f"epsilon = {cap}"), encoding="utf-8")
    message = refuse(BUDGET, "budget", *_run(kit, kit.plan(changes), kit.data()))
    assert "Hungary" in message
    assert f"cap ε = {cap}" in message
    assert "Cleveland" not in message


def test_two_folders_of_one_site(kit: Any, refuse: Callable[..., str]) -> None:
    homes = kit.homes(kit.agreed())
    (homes["Cleveland"] / "policy.toml").write_bytes((homes["Hungary"] / "policy.toml").read_bytes())
    message = refuse(POLICY, "policy", *_run(kit, kit.plan(), kit.data()))
    assert "'Hungary'" in message


def test_the_run_folder_of_another_plan(kit: Any, shell: Any, refuse: Callable[..., str]) -> None:
    other = kit.agreed({"seed": 2})
    kit.homes(kit.agreed(), name="sites")
    kit.homes(other, name="others")
    made = shell(*_run(kit, kit.plan({"seed": 2}, "other.toml"), kit.data(), homes="others"))
    assert made.code == 0, made.out
    before = kit.tree(kit.place / "run")
    ended = shell(*_run(kit, kit.plan(), kit.data()))
    assert ended.code == INPUT
    assert ended.error()["error"] == "plan"
    assert "Choose another" in ended.error()["message"]
    assert kit.tree(kit.place / "run") == before
    assert all(kit.charges(home) == [] for home in (kit.place / "sites").iterdir())


def test_a_folder_of_someone_elses_files(kit: Any, refuse: Callable[..., str]) -> None:
    kit.homes(kit.agreed())
    (kit.place / "run").mkdir()
    (kit.place / "run" / "thesis.docx").write_bytes(b"mine")
    message = refuse(INPUT, "input", *_run(kit, kit.plan(), kit.data()), untouched=False)
    assert "not empty and holds no run" in message
    assert kit.tree(kit.place / "run") == {"thesis.docx": b"mine"}


def test_a_second_process_on_one_ledger(kit: Any, refuse: Callable[..., str]) -> None:
    homes = kit.homes(kit.agreed())
    open_home(homes["Hungary"], site="Hungary")
    held = (
        "import sys; from patevolve.shared.privacy.ledger import Ledger; "
        "ledger = Ledger.open(sys.argv[1], exclusive=True); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", held, str(homes["Hungary"] / "ledger.sqlite")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        message = refuse(LEDGER, "ledger", *_run(kit, kit.plan(), kit.data()))
        other.stdin.close()
    assert f"in use by process {other.pid}" in message


@pytest.mark.parametrize("name", ["ledger.sqlite", "identity.key"])
def test_a_site_that_lost_its_ledger(name: str, kit: Any, refuse: Callable[..., str]) -> None:
    homes = kit.homes(kit.agreed(), secret=b"s" * 32)
    (homes["Hungary"] / name).unlink()
    message = refuse(LEDGER, "ledger", *_run(kit, kit.plan(), kit.data()))
    assert name in message
    assert "Restore it from a backup" in message


def test_an_export_and_a_report_of_no_run(kit: Any, shell: Any) -> None:
    for arguments in (("report", kit.place, "--format", "json"), ("export", kit.place, "--format", "csv", "--json")):
        ended = shell(*arguments)
        assert ended.code in {2, 9}, ended.out
        assert "Traceback" not in ended.err
    ended = shell("ledger", "show", kit.place / "none.sqlite", "--epsilon", "1", "--delta", "1e-5", "--format", "json")
    assert (ended.code, ended.error()["error"]) == (LEDGER, "ledger")


def test_plan_and_approve_refuse_a_bad_plan_too(kit: Any, refuse: Callable[..., str]) -> None:
    text = kit.agreed().text.replace("epsilon = 4.0", "epsilion = 4.0")
    bad = kit.text("bad.toml", text)
    assert "Did you mean 'epsilon'" in refuse(INPUT, "plan", "plan", bad, "--format", "json")
    home = kit.place / "new"
    arguments = ("client", "approve", bad, "--home", home, "--site", "A", "--yes", "--format", "json")
    assert "Did you mean 'epsilon'" in refuse(INPUT, "plan", *arguments)
    assert not home.exists()
    assert "cannot be read" in refuse(INPUT, "plan", "plan", kit.place / "none.toml", "--format", "json")
