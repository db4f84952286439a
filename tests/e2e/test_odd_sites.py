"""Sites as they are: few patients, one class, empty columns, other editors' files, budgets that drown in noise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from patevolve.client.simulate import load_records
from patevolve.shared.errors import ReleaseError
from patevolve.shared.plan import read_plan
from patevolve.shared.randomness import RecordedNoise

PUBLIC = ("release", "student", "generations")
Rows = list[dict[str, str]]


def _one_class_each(rows: Rows) -> Rows:
    return [row for row in rows if (row["hospital"] == "Hungary") == (row["disease"] == "yes")]


def _one_patient(rows: Rows) -> Rows:
    first = next(row for row in rows if row["hospital"] == "Hungary")
    return [first, *(row for row in rows if row["hospital"] != "Hungary")]


def _one_value(rows: Rows) -> Rows:
    return [{**row, "cholesterol": "", "exercise_angina": "NA", "age": "1e9"} for row in rows]


def _many_records_of_one_patient(rows: Rows) -> Rows:
    return [{**row, "patient": "p"} for row in rows]


@pytest.mark.parametrize("odd", [_one_class_each, _one_patient, _one_value, _many_records_of_one_patient])
@pytest.mark.parametrize("labels", ["votes", "pate"])
def test_a_run_over_odd_sites_completes(odd: Callable[[Rows], Rows], labels: str, kit: Any) -> None:
    changes = {**kit.everything, "release.labels": labels, "questions.labels.teachers": 1, "data.hold_out": 0.3}
    agreed = kit.agreed(changes)
    finished, sites = kit.run(agreed, kit.records(agreed, odd(kit.rows())), "run")
    assert finished.outcome.labelling.method == labels
    assert len(finished.released.samples.classes) == 60
    assert np.isfinite(finished.released.student["weights"]).all()
    for site in sites.values():
        assert set(kit.asked(site.home.path).values()) == {1}


@pytest.mark.parametrize("trust", ["secure-sum", "each-site"])
@pytest.mark.usefixtures("plain_page")
def test_where_all_is_noise_the_run_says_so_or_releases_nothing(trust: str, kit: Any) -> None:
    changes = {**kit.everything, "privacy.epsilon": 0.01, "privacy.trust": trust, "release.labels": "votes"}
    agreed = kit.agreed(changes)
    released = 0
    for salt in range(8):
        try:
            noise = functools.partial(_salted, salt)
            finished, sites = kit.run(agreed, kit.records(agreed), f"run-{salt}", noise=noise)
        except ReleaseError:  # a class that noise alone has shaped may collapse, and the gate sees it
            assert not (kit.place / f"run-{salt}" / "release").exists()
            continue
        released += 1
        report = kit.report(agreed, finished, sites)
        assert report["epsilon"] <= 0.01
        assert any("mostly noise" in warning for warning in report["warnings"])
        assert np.isfinite(finished.released.features).all()
        assert min(report["synthetic"]["classes"].values()) >= 1
        assert 0.0 <= report["score"]["accuracy"] <= 1.0
    assert released >= 2


def _salted(salt: int, site: str, question: str) -> RecordedNoise:
    return RecordedNoise(f"{salt} {site} {question}")


def test_line_ends_and_byte_order_marks_change_nothing(kit: Any) -> None:
    agreed = kit.agreed(kit.everything)
    kit.run(agreed, kit.records(agreed), "plain")

    def windows(text: str) -> bytes:
        return b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()

    plan, data = kit.place / "windows.toml", kit.place / "windows.csv"
    plan.write_bytes(windows(agreed.text))
    data.write_bytes(windows(kit.data().read_text("utf-8")))
    again = read_plan(plan)
    assert again.sha256 == agreed.sha256
    homes = kit.homes(again, name="windows-sites", secret=b"s" * 32)
    for home in homes.values():
        path = home / "policy.toml"
        path.write_bytes(windows(path.read_text("utf-8")))
    kit.run(again, load_records(data, again.plan), "windows", homes=homes)
    assert {part: kit.tree(kit.place / "plain" / part) for part in PUBLIC} == {
        part: kit.tree(kit.place / "windows" / part) for part in PUBLIC
    }


def test_a_tab_separated_file_is_the_same_data(kit: Any) -> None:

    agreed = kit.agreed()
    comma, tab = kit.data(), kit.place / "data.tsv"
    tab.write_text(comma.read_text("utf-8").replace(",", "\t"), encoding="utf-8")
    for one, other in zip(*(load_records(path, agreed.plan).values() for path in (comma, tab)), strict=True):
        assert (one.values == other.values).all()
        assert (one.units == other.units).all()
