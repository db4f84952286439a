"""Shapes that the report's page relies on, out of JSON that may be damaged, and charts for a desk and for a phone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patevolve.shared.report import words
from patevolve.shared.report.charts import NARROW, WIDE, Frame

Dict = dict[str, Any]


def mapping(value: Any) -> Dict:
    """Return a mapping as it is, and anything else as an empty one."""
    return dict(value) if isinstance(value, Mapping) else {}


def sequence(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as an empty one."""
    return list(value) if isinstance(value, list) else []


def rows_of(report: Dict, key: str, *columns: str) -> list[Dict]:
    """Return the mappings under this key, each with all the named columns (None where absent)."""
    blank: Dict = dict.fromkeys(columns)
    return [blank | dict(row) for row in sequence(report.get(key)) if isinstance(row, Mapping)]


def both_widths(name: str, title: str, description: str, draw: Callable[[Frame], str]) -> Dict:
    """Draw a chart twice: for a desk and for a phone. The style sheet shows one of them."""
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    sizes = {"wide": WIDE, "narrow": NARROW}
    drawn = {size: draw(Frame(name=f"{name}-{size}", title=title, description=description, width=width))
             for size, width in sizes.items()}  # fmt: skip
    return {size: Markup(svg) for size, svg in drawn.items()}  # noqa: S704 - the SVG writer escaped every text


def spoken_shares(labels: list[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """Return the columns in words, shares in percent, as the drawing shows them."""
    texts = []
    for name, values in series.items():
        total = sum(v for v in values if v is not None) or 1.0
        pieces = (f"{label} {words.percent((v or 0.0) / total)}" for label, v in zip(labels, values, strict=True))
        texts.append(f"{name}: {', '.join(pieces)}")
    return "; ".join(texts)
