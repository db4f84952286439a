"""The report page: one offline HTML document from the report's JSON, a pure function of it.

Reads no file but its own template and no clock, so the same report gives the same bytes. Whatever the report holds is
shown as text: the template escapes everything, charts escape in their SVG, and only inline PNG pictures are let in.
Missing or damaged parts read "not measured" or drop out; they never stop the page.
"""

from __future__ import annotations

import functools
import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

import numpy as np

from patevolve.shared.errors import ParameterError
from patevolve.shared.privacy import accountant
from patevolve.shared.report import charts, words
from patevolve.shared.report.charts import NARROW, Frame
from patevolve.shared.report.page_parts import calibration_of, diversity_of, participation_of
from patevolve.shared.report.shapes import Dict, both_widths, mapping, rows_of, sequence, spoken_shares

LONG_TABLE = 12  # rows; longer tables start folded
LEDGER_ROWS = 4000
UTILITY_ROWS = 60  # in charts; tables hold all
DISTRIBUTIONS = 18
CLASS_BARS = 40
PREVIEW_ROWS, PREVIEW_COLUMNS = 12, 40
GALLERIES = 8
EXPLAIN = "explain.html"  # the page about PATE, where it was written beside the report
GALLERY_BYTES = 2_500_000  # all pictures together

_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+=*")
_ORDINARY_NAMES = {"UnsafeNoNoise": "no noise was added", "RecordedNoise": "the noise was recorded and can be repeated"}


def render(report: Mapping[str, Any]) -> str:
    """Return the page of one report (the content of report.json) as a self-contained HTML document.

    Needs jinja2 and matplotlib (the extra ``demo``). Deterministic; reads nothing else.
    """
    return str(_template().render(_context(words.clean(report)))) + "\n"


@functools.lru_cache(maxsize=1)
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - optional: the voting path runs without it

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    for name in ("epsilon", "power", "metric", "spread", "count", "percent", "cell", "moment"):
        environment.filters[name] = getattr(words, name)
    environment.filters |= {"number": words.number_of, "breakable": _breakable}
    return environment.from_string(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))


def _breakable(value: Any) -> Any:
    """Allow a line break within words too long for a table cell; ordinary words stay whole."""
    from markupsafe import Markup, escape  # noqa: PLC0415 - comes with jinja2

    text = words.cell(value).replace("_", "_\n")
    pieces = [
        word if len(max(word.split("\n"), key=len)) < 25 else "\n".join(textwrap.wrap(word, 12))
        for word in text.split(" ")
    ]
    return Markup("<wbr>").join(escape(piece) for piece in " ".join(pieces).split("\n"))


def _context(report: Dict) -> Dict:
    noun = str(report.get("site_noun") or "institution")
    generations = rows_of(report, "generations", "generation", "asked", "spread", "match", "gallery")
    synthetic = mapping(report.get("synthetic"))
    galleries = _galleries(generations)
    sample = "row" if synthetic.get("preview") or not galleries else "image"
    sample = "text" if synthetic.get("noun") == "text" else sample
    utility = _utility(report)
    sections = {
        "report": {key: report.get(key) for key in _PLAIN},
        "noun": noun,
        "sample": sample,
        "lead": words.lead(_shallow(report), noun=noun, sample=sample),
        "trust": words.TRUST.get(str(report.get("trust")), (str(report.get("trust") or words.MISSING), "")),
        "unsafe": [_plain_name(text) for text in sequence(report.get("unsafe"))],
        "warnings": sequence(report.get("warnings")),
        "utility": utility,
        "best": _best(utility),
        "directions": list(dict.fromkeys(f"{row['metric']}: {row['direction']}" for row in utility)),
        "seeds": sequence(report.get("seeds")),
        "utility_charts": [c for i, rows in enumerate(_by_metric(utility)) for c in [_utility_chart(rows, i)] if c],
        "synthetic": synthetic | {"preview": _preview(synthetic)},
        "generations": [row | {"asked": sequence(row["asked"])} for row in generations],
        "galleries": galleries,
        "cohort": mapping(report.get("cohort")),
        "labels": mapping(report.get("labels")),
        "reproduce": sequence(report.get("reproduce")),
        "uncovered": _uncovered(report, noun),
        "explain": report.get("explain") == EXPLAIN,
        "part": participation_of(report),
        "calibration": calibration_of(report),
        "long": LONG_TABLE,
    }
    return sections | _privacy(report) | _pictures(report, synthetic, generations, sample)


_PLAIN = ("patevolve", "name", "made", "mode", "plan_sha256", "epsilon", "delta", "epsilon_planned", "epsilon_order",
          "conversion", "unit", "neighbouring", "wall_seconds")  # fmt: skip


def _privacy(report: Dict) -> Dict:
    parts = rows_of(report, "parts", "part", "share", "times", "rho", "noise_multiplier", "epsilon_alone", "words")
    sites = rows_of(report, "sites", "site", "units", "epsilon", "cap", "remaining", "questions", "charges", "head",
                  "verified")  # fmt: skip
    ledger = rows_of(report, "ledger", "site", "seq", "time", "question", "part", "epsilon_after",
                   "epsilon_alone", "digest")  # fmt: skip
    gate = rows_of(report, "gate", "check", "passed", "found", "expected")
    return {
        "parts": parts,
        "tight": _tight(report),
        "shares": _shares_chart(parts),
        "viewers": rows_of(report, "viewers", "viewer", "level", "epsilon", "words"),
        "sites": [site | {"questions": sequence(site["questions"])} for site in sites],
        "failed": [site["site"] for site in sites if site["verified"] is False],
        "verified": sum(site["verified"] is True for site in sites),
        "ledger": ledger[-LEDGER_ROWS:],
        "ledger_total": len(ledger),
        "running": any(words.number_of(row["epsilon_after"]) is not None for row in ledger),
        "gate": gate,
        "refused": [row["check"] for row in gate if row["passed"] is False],
        "statement": [row for row in _statement(report) if not _limit(row)],
        "rdp": _rdp_chart(report),
    }


def _pictures(report: Dict, synthetic: Dict, generations: list[Dict], sample: str) -> Dict:
    shown, legend = _distributions(report)
    return diversity_of(report) | {
        "classes": _class_chart(mapping(synthetic.get("classes")), sample),
        "distributions": shown,
        "legend": legend,
        "distributions_total": len(sequence(report.get("distributions"))),
        "evolution": _generation_chart(generations),
    }


def _shallow(report: Dict) -> Dict:
    """Return the report with the shapes that the lead sentence relies on."""
    return report | {
        "sites": rows_of(report, "sites", "epsilon"),
        "synthetic": mapping(report.get("synthetic")),
        "unsafe": sequence(report.get("unsafe")),
    }


def _plain_name(text: Any) -> str:
    return _ORDINARY_NAMES.get(str(text), str(text))


def _utility(report: Dict) -> list[Dict]:
    rows = rows_of(report, "utility", "trained_on", "model", "metric", "direction", "mean", "sd", "chance", "values",
                 "epsilon")  # fmt: skip
    named = [str(row["trained_on"]) for row in rows]
    first = next((name for name in named if name.lower().startswith("patevolve")), named[0] if named else None)
    return [
        row | {
            "trained_on": name,
            "model": str(row["model"] or "model"),
            "metric": str(row["metric"] or "score"),
            "direction": str(row["direction"] or "direction not stated"),
            "values": sequence(row["values"]),
            "ours": bool(row.get("ours", name == first)),
        }
        for row, name in zip(rows, named, strict=True)
    ]  # fmt: skip


def _by_metric(rows: list[Dict]) -> list[list[Dict]]:
    names = dict.fromkeys(row["metric"] for row in rows)
    return [[row for row in rows if row["metric"] == name][:UTILITY_ROWS] for name in names]


def _best(rows: list[Dict]) -> Dict | None:
    """Return the best of our rows by the first metric, with the real rows of the same model."""
    ours = [row for row in rows if row["ours"] and words.number_of(row["mean"]) is not None]
    ours = [row for row in ours if row["metric"] == ours[0]["metric"]]
    if not ours:
        return None
    lower = ours[0]["direction"].lower().startswith("lower")
    best = (min if lower else max)(ours, key=lambda row: float(row["mean"]))
    alike = [r for r in rows if (r["model"], r["metric"]) == (best["model"], best["metric"])]
    real = next(
        (r for r in alike if r["epsilon"] is None and not r["ours"] and "real" in r["trained_on"].lower()), None
    )
    return best | {"real": real}


def _utility_chart(rows: list[Dict], number: int) -> Dict | None:
    if not any(words.number_of(row["mean"]) is not None for row in rows):
        return None
    spoken = "; ".join(f"{r['trained_on']}, {r['model']}: {words.spread(r['mean'], r['sd'])}" for r in rows)
    title = f"{rows[0]['metric']} on real held-out records"
    return both_widths(f"utility-{number}", title, spoken, lambda frame: charts.utility(rows, frame))


def _shares_chart(parts: list[Dict]) -> Dict | None:
    known = {str(part["part"]): share for part in parts if (share := words.number_of(part["share"])) is not None}
    known = {name: share for name, share in known.items() if share > 0}
    if not known or len(known) > 18:
        return None
    spoken = ", ".join(f"{name} {words.percent(share)}" for name, share in known.items())
    return both_widths("shares", "Budget by part", spoken, lambda frame: charts.shares(known, frame))


def _class_chart(classes: Dict, sample: str) -> Dict | None:
    known = {str(name): n for name, value in classes.items() if (n := words.number_of(value)) is not None and n >= 0}
    if not known:
        return None
    spoken = ", ".join(f"{name} {words.count(n)}" for name, n in known.items())
    most = dict(list(known.items())[:CLASS_BARS])
    noun = words.plural(sample)
    chart = both_widths("classes", f"Synthetic {noun} by class", spoken, lambda f: charts.bars(most, f, axis=noun))
    return chart | {"hidden": len(known) - len(most)}


def _generation_chart(generations: list[Dict]) -> Dict | None:
    titles = {"match": "Distance from the released prototypes", "spread": "Spread of the population"}
    series = {title: [words.number_of(row[key]) for row in generations] for key, title in titles.items()}
    series = {title: values for title, values in series.items() if any(v is not None for v in values)}
    if not series:
        return None
    asked = [i for i, row in enumerate(generations) if row["asked"]]
    spoken = "; ".join(f"{title}: from {words.metric(v[0])} to {words.metric(v[-1])}" for title, v in series.items())
    return both_widths("evolution", "Generations", spoken, lambda frame: charts.generations(series, asked, frame))


def _distributions(report: Dict) -> tuple[list[Any], list[Dict]]:
    """Return small charts, one per column of the table, and the legend that they share."""
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    drawn: list[Any] = []
    colours: dict[str, int] = {}
    for i, row in enumerate(rows_of(report, "distributions", "column", "labels", "series")[:DISTRIBUTIONS]):
        labels = [str(label) for label in sequence(row["labels"])]
        series = {
            name: [words.number_of(v) for v in sequence(values)] for name, values in mapping(row["series"]).items()
        }
        series = {name: values for name, values in series.items() if len(values) == len(labels) and labels}
        if not series:
            continue
        for name in series:
            colours.setdefault(name, len(colours))
        column = str(row["column"])
        frame = Frame(name=f"column-{i}", title=column, description=spoken_shares(labels, series), width=NARROW)
        svg = Markup(charts.distribution(labels, series, frame, colours=colours))  # noqa: S704 - the SVG writer escaped every text
        drawn.append({"column": column, "svg": svg})
    return drawn, [{"name": name, "colour": place % 6 + 1, "hatched": place >= 6} for name, place in colours.items()]


def _rdp_chart(report: Dict) -> Dict | None:
    rdp = mapping(report.get("rdp"))
    delta = words.number_of(report.get("delta"))
    pairs = zip(sequence(rdp.get("orders")), sequence(rdp.get("values")), strict=False)
    points = []
    for order, value in ((words.number_of(a), words.number_of(v)) for a, v in pairs):
        if order is not None and order > 1 and value is not None and value >= 0:
            try:
                point = accountant.epsilon(np.array([value]), delta, [order]).epsilon  # type: ignore[arg-type]
            except ParameterError:
                return None
            points.append((order, point))
    points = [(order, point) for order, point in points if math.isfinite(point) and point > 0]
    if len(points) < 2:
        return None
    best = words.number_of(report.get("epsilon_order"))
    orders, implied = zip(*_near_the_best(points), strict=True)
    spoken = f"The lowest point of the curve is ε = {words.epsilon(min(implied))}."
    return both_widths("rdp", "ε by Rényi order", spoken, lambda frame: charts.curve(orders, implied, best, frame))


def _near_the_best(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Drop orders whose ε is beyond 20 times the best, so that the valley can be seen."""
    ceiling = 20 * min(point for _, point in points)
    near = [(order, point) for order, point in points if point <= ceiling]
    return near if len(near) >= 2 else points


def _preview(synthetic: Dict) -> Dict | None:
    preview = mapping(synthetic.get("preview"))
    columns = [str(name) for name in sequence(preview.get("columns"))][:PREVIEW_COLUMNS]
    rows = [row for row in sequence(preview.get("rows")) if isinstance(row, list)][:PREVIEW_ROWS]
    rows = [[words.parsed(value) for value in row[:PREVIEW_COLUMNS]] for row in rows]
    numeric = [
        any(words.number_of(row[i]) is not None for row in rows if i < len(row))
        and all(row[i] is None or words.number_of(row[i]) is not None for row in rows if i < len(row))
        for i in range(len(columns))
    ]
    return {"columns": columns, "rows": rows, "numeric": [*numeric, *[False] * PREVIEW_COLUMNS]} if columns else None


def _galleries(generations: list[Dict]) -> list[Dict]:
    """Return evenly chosen generations that carry an inline PNG, the first and last among them, within the limit."""
    pictured = [row for row in generations if isinstance(row["gallery"], str) and _PICTURE.fullmatch(row["gallery"])]
    chosen = [pictured[i] for i in _evenly(len(pictured), GALLERIES)]
    kept, size = [], 0
    for row in _ends_first(chosen):
        if size + len(row["gallery"]) <= GALLERY_BYTES:
            kept.append(row)
            size += len(row["gallery"])
    return [row for row in chosen if any(row is other for other in kept)]


def _evenly(total: int, most: int) -> list[int]:
    return list(range(total)) if total <= most else [round(i * (total - 1) / (most - 1)) for i in range(most)]


def _ends_first(rows: list[Dict]) -> Iterable[Dict]:
    return [*rows[-1:], *rows[:1], *rows[1:-1]] if len(rows) > 1 else rows


def _tight(report: Dict) -> Dict | None:
    """Return the tighter figure where there is one; the fall-back of the accountant is the RDP figure itself."""
    tight = mapping(report.get("tight"))
    known = words.number_of(tight.get("epsilon")) is not None and tight.get("accountant") != "rdp"
    return {"accountant": "unnamed", "reason": ""} | tight if known else None


def _statement(report: Dict) -> list[Dict]:
    pairs = [row for row in sequence(report.get("statement")) if isinstance(row, list) and len(row) == 2]
    return rows_of(report, "statement", "item", "text") + [{"item": item, "text": text} for item, text in pairs]


def _limit(row: Dict) -> bool:
    """Whether an item of the statement says what is not covered: it is shown with the other limits."""
    return "not cover" in str(row["item"]).lower()


def _uncovered(report: Dict, noun: str) -> list[str]:
    """Say what the budget does not speak about; true of every run unless a condition is given here."""
    unit = str(report.get("unit") or "record")
    texts = [
        *(str(row["text"]) for row in _statement(report) if _limit(row)),
        f"What holds for {words.plural(unit)} in general: such a conclusion follows with or without anyone's own data.",
        f"The {noun} as a whole. The budget bounds what can be learnt about one {unit}, not about a {noun}'s case mix.",
        "Data released elsewhere about the same people, and other runs: their budgets add up.",
        "The computers themselves: access rights, logs and back-ups at each site stay the site's duty.",
    ]
    if sequence(report.get("utility")) and all(p["part"] != "score" for p in rows_of(report, "parts", "part")):
        texts.append(
            "The scores on this page that use real held-out records. Those records took no part in the synthesis, and "
            "their scores are outside the budget: publish them only as the owners of those records permit."
        )
    if any(site["units"] is not None for site in rows_of(report, "sites", "units")):
        texts.append(
            f"This page itself. It states exactly how many {words.plural(unit)} each {noun} holds, so it is for those "
            f"who hold the data; what may be published is the release and the student."
        )
    if report.get("mode") == "simulated":
        texts.append("Transport: this run was simulated on one computer, so no network or masking was put to the test.")
    return texts
