"""The report of an inspection as text and as one offline page; both are for the site's own screen and folder."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from patevolve.client.inspect import Inspection

BADGE = "For this site alone: these counts are private, nothing here may be sent."
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem}"
    "td,th{border:1px solid #bbb;padding:.2rem .6rem;text-align:left}"
    ".badge{background:#8b0000;color:#fff;padding:.5rem 1rem}.bad{color:#8b0000;font-weight:600}"
)

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def as_text(inspection: Inspection) -> str:
    """Return the report for a terminal."""
    lines = [BADGE, "", _title(inspection), "", _verdict(inspection)]
    lines += [f"  ! {problem}" for problem in inspection.problems]
    lines += [f"  - {warning}" for warning in inspection.warnings]
    for name, head, rows in _tables(inspection):
        if rows:
            lines += ["", name, *_columns([head, *rows])]
    return "\n".join(lines)


def as_html(inspection: Inspection) -> str:
    """Return the report as one page without outside assets; whatever stands in the data is shown as text."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Inspection</title>",
        f"<style>{STYLE}</style></head><body><p class='badge'>{_safe(BADGE)}</p>",
        f"<h1>{_safe(_title(inspection))}</h1><p class='bad'>{_safe(_verdict(inspection))}</p>",
        _items("bad", inspection.problems),
        _items("", inspection.warnings),
    ]
    for name, head, rows in _tables(inspection):
        if rows:
            body = "".join(_row("td", row) for row in rows)
            parts.append(f"<h2>{_safe(name)}</h2><table>{_row('th', head)}{body}</table>")
    return "\n".join([*parts, "</body></html>", ""])


def _title(inspection: Inspection) -> str:
    return f"{inspection.name} under plan {inspection.plan!r} ({inspection.kind}s)"


def _verdict(inspection: Inspection) -> str:
    count = len(inspection.problems)
    return f"Cannot take part: {count} problem(s)." if count else "Can take part. Nothing was charged."


def _tables(inspection: Inspection) -> list[Table]:
    survey, repeats = inspection.survey, inspection.survey.repeats
    near = "too many to compare" if repeats.near is None else str(repeats.near)
    sites: list[tuple[str, ...]] = [
        (name or "-", str(count.records), str(count.units), str(count.largest_unit), str(count.records_left_out))
        for name, count in survey.sites.items()
    ]
    classes: list[tuple[str, ...]] = [
        (size.site or "-", size.name, str(size.records), str(size.units), f"{size.empty_teachers:.1f}", size.verdict)
        for size in inspection.classes
    ]
    flips: list[tuple[str, ...]] = [(flip.question, flip.what, f"{flip.probability:.1%}") for flip in inspection.flips]
    again: list[tuple[str, ...]] = [
        ("same content as another record", str(repeats.equal)),
        ("same content, another patient", str(repeats.across)),
        ("same content, another class", str(repeats.contradicts)),
        ("near-duplicate of another record", near),
    ]
    return [
        ("Sites", ("site", "records", "units", "largest unit", "left out by the bound"), sites),
        ("Classes", ("site", "class", "records", "units", "teachers without it", "verdict"), classes),
        ("Noise against this site's votes", ("question", "what", "P(flip)"), flips),
        ("Repeats", ("what", "records"), again),
        ("Converted", ("step", "files"), [(step, str(count)) for step, count in survey.steps.items()]),
        ("Splits named in the file", ("split", "records"), [(name, str(n)) for name, n in survey.splits.items()]),
        (_listed("Refused", inspection.refused, inspection.refused_count), ("what", "why"), list(inspection.refused)),
        (_listed("Ignored", inspection.ignored, inspection.ignored_count), ("what", "why"), list(inspection.ignored)),
    ]


def _listed(name: str, shown: Sequence[object], count: int) -> str:
    return f"{name}: {count}" + (f", the first {len(shown)} listed" if len(shown) < count else "")


def _columns(rows: list[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        yield "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])


def _safe(text: str) -> str:
    return html.escape(text, quote=True)


def _items(kind: str, texts: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li class='{kind}'>{_safe(text)}</li>" for text in texts) + "</ul>" if texts else ""


def _row(cell: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{_safe(text)}</{cell}>" for text in texts) + "</tr>"
