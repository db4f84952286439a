"""Parts of the report's page: how varied the samples are, whether the student is calibrated, who took part."""

from __future__ import annotations

from collections.abc import Mapping

from patevolve.shared.report import charts, words
from patevolve.shared.report.charts import NARROW, Frame
from patevolve.shared.report.shapes import Dict, both_widths, mapping, rows_of, sequence, spoken_shares
from patevolve.shared.report.took_part import took_part

_DRAWN = {
    "similarity": "Distance to the nearest other sample of the class",
    "scores": "Score: how much nearer its own class's released model than any other's",
}


def diversity_of(report: Dict) -> Dict:
    """Return coverage by class, and small charts of how alike the samples are and how well they fit their class."""
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    found, drawn = mapping(report.get("diversity")), []
    for name, title in _DRAWN.items():
        part = mapping(found.get(name))
        labels = [str(label) for label in sequence(part.get("labels"))]
        shares = [words.number_of(share) for share in sequence(part.get("shares"))]
        if not labels or len(labels) != len(shares):
            continue
        series = {"samples": shares}
        frame = Frame(name=name, title=title, description=spoken_shares(labels, series), width=NARROW)
        svg = Markup(charts.distribution(labels, series, frame, colours={"samples": 0}))  # noqa: S704 - the SVG writer escaped every text
        drawn.append({"column": title, "svg": svg})
    return {"coverage": rows_of(found, "classes", "class", "rows", "distinct", "nearest", "own"), "varied": drawn}


def calibration_of(report: Dict) -> Dict | None:
    """Return the student's calibration and its chart; None if it was not measured."""
    found = mapping(report.get("calibration"))
    rows = [row for row in rows_of(found, "bins", "from", "to", "records", "confidence", "accuracy")
            if all(words.number_of(row[key]) is not None for key in ("confidence", "accuracy"))]  # fmt: skip
    if not rows:
        return None
    spoken = "; ".join(f"confidence {words.metric(r['confidence'])}, right {words.metric(r['accuracy'])}" for r in rows)
    chart = both_widths("calibration", "Calibration", spoken, lambda frame: charts.reliability(rows, frame))
    return {"model": "the student", "error": None, "brier": None} | found | {"bins": rows, "chart": chart}


def participation_of(report: Dict) -> Dict:
    """Return the tables of who took part."""
    questions, traffic = (
        [row for row in sequence(report.get(key)) if isinstance(row, Mapping)] for key in ("participation", "traffic")
    )
    return took_part(questions, traffic, [str(site["site"]) for site in rows_of(report, "sites", "site")])
