"""Static charts of the report page: SVG text drawn by Matplotlib, recoloured to follow the page's colour scheme.

Matplotlib draws with placeholder colours that ``_finish`` turns into CSS variables, so that one drawing serves the
light scheme, the dark scheme and print. The text stays text. The same input gives the same bytes.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from patevolve.shared.report.words import number_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, RULE, ACCENT, SURFACE = "#010101", "#020202", "#030303", "#040404", "#050505"
SERIES = tuple(f"#0a0a0{i}" for i in range(1, 7))
_CSS = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    ACCENT: "var(--accent)",
    SURFACE: "var(--surface)",
    **{colour: f"var(--s{i})" for i, colour in enumerate(SERIES, 1)},
}
_MARKERS = ("o", "D", "s", "^", "v", "P")
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "patevolve",
    "text.parse_math": False,  # a class may be named $x$
    "axes.unicode_minus": True,
    "font.size": 12.0,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "grid.color": RULE,
    "grid.linewidth": 1.0,
    "legend.frameon": False,
    "hatch.linewidth": 1.0,
}
WIDE, NARROW = 720, 320  # CSS pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Where a chart goes: a name unique on the page, what a screen reader says, and the width in CSS pixels."""

    name: str
    title: str
    description: str
    width: int = WIDE

    @property
    def narrow(self) -> bool:
        """Whether labels must stand above their marks rather than beside them."""
        return self.width < 500


def utility(rows: Sequence[Mapping[str, Any]], frame: Frame) -> str:
    """Draw mean ± sd of one metric by training set (one line each) and model (one marker each).

    A row holds trained_on, model, mean, sd, values and chance; rows with ``ours`` are drawn in the accent colour.
    """
    names = list(dict.fromkeys(str(row["trained_on"]) for row in rows))
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    step = 1.0 if len(models) < 3 else len(models) / 2.5

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row in rows:
            y = names.index(str(row["trained_on"])) * step + _offset(models.index(str(row["model"])), len(models))
            _estimate(axes, row, y, _MARKERS[models.index(str(row["model"])) % len(_MARKERS)])
        chance = next((c for row in rows if (c := number_of(row.get("chance"))) is not None), None)
        if chance is not None:
            axes.axvline(chance, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
            axes.annotate(f"chance {chance:.3g}", (chance, 1), (4, -2), xycoords=("data", "axes fraction"), color=MUTED,
                          textcoords="offset points", va="top", fontsize=11)  # fmt: skip
        _rows(axes, [i * step for i in range(len(names))], names, frame, room=step)
        axes.set_xlabel(_label(f"{rows[0]['metric']} ({rows[0]['direction']})", 60))
        if len(models) > 1:
            handles = [axes.plot([], [], _MARKERS[i % 6], color=MUTED, markersize=7, label=_label(m, 40))[0]
                       for i, m in enumerate(models)]  # fmt: skip
            figure.legend(handles=handles, loc="outside upper left", ncols=1 if frame.narrow else 3, fontsize=11.5)

    height = 70 + (22 if frame.narrow else 0) * len(models) + round((58 if frame.narrow else 46) * step * len(names))
    return _render(frame, height, draw)


def _offset(position: int, total: int) -> float:
    return 0.0 if total == 1 else (position - (total - 1) / 2) * 0.34


def _estimate(axes: Axes, row: Mapping[str, Any], y: float, marker: str) -> None:
    mean, sd = number_of(row.get("mean")), number_of(row.get("sd")) or 0.0
    if mean is None:
        return
    colour = ACCENT if row.get("ours") else MUTED
    seeds = [v for v in map(number_of, row.get("values") or ()) if v is not None][:50]
    axes.plot(seeds, [y] * len(seeds), "|", color=colour, alpha=0.45, markersize=9, markeredgewidth=1.4)
    axes.plot([mean - sd, mean + sd], [y, y], color=colour, linewidth=2.4, solid_capstyle="round")
    axes.plot(mean, y, marker, color=colour, markersize=8.5, markeredgecolor=SURFACE, markeredgewidth=1.2)


def _rows(axes: Axes, places: Sequence[float], names: Sequence[str], frame: Frame, *, room: float = 1.0) -> None:
    """Label horizontal rows: at the left where there is room, above each row on a phone."""
    axes.set_ylim(max(places, default=0.0) + 0.6 * room, -(0.85 if frame.narrow else 0.7) * room)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    if not frame.narrow:
        axes.set_yticks(places, [_label(name, 30) for name in names], color=INK)
        return
    axes.set_yticks([])
    for y, name in zip(places, names, strict=True):
        at = (0, y - 0.34 * room)
        axes.annotate(_label(name, 40, lines=1), at, xycoords=("axes fraction", "data"), fontsize=11.5, va="bottom")


def bars(counts: Mapping[str, float], frame: Frame, *, axis: str) -> str:
    """Draw one horizontal bar per name, its value written at its end."""
    names, values = list(counts), [float(v) for v in counts.values()]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        drawn = axes.barh(range(len(names)), values, height=0.42 if frame.narrow else 0.62, color=ACCENT)
        axes.bar_label(drawn, [f"{v:,.0f}" for v in values], padding=4)
        _rows(axes, range(len(names)), names, frame)
        axes.set_xlim(0, max([*values, 1.0]) * 1.16)
        axes.xaxis.set_major_locator(_few_ticks())
        axes.set_xlabel(axis)

    return _render(frame, 64 + (44 if frame.narrow else 30) * len(names), draw)


def shares(parts: Mapping[str, float], frame: Frame) -> str:
    """Draw one bar divided by share, its pieces named in the legend."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        left = 0.0
        for i, (name, share) in enumerate(parts.items()):
            label = f"{_label(name, 30, lines=1)} {100 * share:.3g} %"
            colour, hatch = SERIES[i % 6], ("", "////", "....")[i // 6 % 3]
            axes.barh(0, share, left=left, height=0.8, color=colour, edgecolor=SURFACE, hatch=hatch, label=label)
            left += share
        axes.set_xlim(0, max(left, 1e-9))
        axes.set_axis_off()
        figure.legend(loc="outside lower left", ncols=1 if frame.narrow else 3, fontsize=12, handlelength=1.1)

    lines = len(parts) if frame.narrow else -(-len(parts) // 3)
    return _render(frame, 52 + 22 * lines, draw)


def generations(series: Mapping[str, Sequence[float | None]], asked: Sequence[int], frame: Frame) -> str:
    """Draw each series in a panel of its own over the generations; dotted lines mark where the sites were asked."""

    def draw(figure: Figure) -> None:
        across, down = (1, len(series)) if frame.narrow else (len(series), 1)
        panels = figure.subplots(down, across, squeeze=False).flat
        for axes, (name, values) in zip(panels, series.items(), strict=True):
            for at in asked[:200]:
                axes.axvline(at, color=MUTED, linestyle=":", linewidth=1.1)
            known = [(i, v) for i, v in enumerate(values) if v is not None]
            style = "-o" if len(known) <= 30 else "-"
            axes.plot(*zip(*known, strict=True) if known else ([], []), style, color=ACCENT, linewidth=2, markersize=5)
            axes.set_title(name, loc="left", fontsize=12)
            axes.grid(axis="y")
            heights = [v for _, v in known]
            axes.set_ylim(min([0.0, *heights]), max([*heights, 1e-9]) * 1.1)
            axes.set_xlim(-0.4, max(len(values) - 1, 1) + 0.4)
            axes.xaxis.set_major_locator(_few_ticks(integer=True))
            axes.set_xlabel("generation")

    return _render(frame, 220 * (len(series) if frame.narrow else 1), draw)


def curve(orders: Sequence[float], epsilons: Sequence[float], best: float | None, frame: Frame) -> str:
    """Draw the ε that each Rényi order implies, both axes logarithmic, and mark the best order."""

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415 - heavy, and optional

        axes = figure.subplots()
        axes.plot(orders, epsilons, color=ACCENT, linewidth=2)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter("{x:g}")
        axes.grid()
        axes.set_xlabel("Rényi order α")
        axes.set_ylabel("ε at this order")
        low = min(zip(epsilons, orders, strict=True), default=None)
        if low is not None:
            at = best if best is not None else low[1]
            axes.plot(at, low[0], "o", color=ACCENT, markersize=9, markeredgecolor=SURFACE, markeredgewidth=1.5)
            lead = {"arrowstyle": "-", "color": MUTED, "shrinkB": 7}
            text = f"best order {at:g}"
            axes.annotate(text, (at, low[0]), (0, 52), textcoords="offset points", ha="center", arrowprops=lead)

    return _render(frame, 270, draw)


def reliability(rows: Sequence[Mapping[str, Any]], frame: Frame) -> str:
    """Draw how often a student is right against how sure it is; the dotted line is where the two agree."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=MUTED, linestyle=":", linewidth=1.4)
        places = [[number_of(row[key]) or 0.0 for row in rows] for key in ("confidence", "accuracy")]
        axes.plot(*places, "-o", color=ACCENT, linewidth=2, markersize=6)
        axes.set_xlim(min([0.5, *places[0]]) - 0.03, 1.02)
        axes.set_ylim(min([0.5, *places[1]]) - 0.03, 1.02)
        axes.grid()
        axes.set_xlabel("probability that the student gives")
        axes.set_ylabel("share that is right")

    return _render(frame, 260, draw)


def distribution(labels: Sequence[str], series: Mapping[str, Sequence[float | None]], frame: Frame, *,
                 colours: Mapping[str, int]) -> str:  # fmt: skip
    """Draw grouped columns of shares in percent; ``colours`` gives each series its place in the page's legend."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        width = 0.8 / max(len(series), 1)
        for i, (name, values) in enumerate(series.items()):
            total = sum(v for v in values if v is not None) or 1.0
            places = [x - 0.4 + width * (i + 0.5) for x in range(len(values))]
            heights = [100 * (v or 0.0) / total for v in values]
            colour, hatch = SERIES[colours[name] % 6], "////" if colours[name] // 6 else ""
            axes.bar(places, heights, width * 0.92, color=colour, hatch=hatch, edgecolor=SURFACE, linewidth=0)
        crowded = max(map(len, labels), default=0) * len(labels) > 34
        turn: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        axes.set_xticks(range(len(labels)), [_label(text, 16, lines=1) for text in labels], fontsize=11, **turn)
        axes.yaxis.set_major_locator(_few_ticks(4))
        axes.yaxis.set_major_formatter("{x:g} %")
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)

    return _render(frame, 190, draw)


def _few_ticks(most: int = 5, *, integer: bool = False) -> Any:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - heavy, and optional outside the demo extra

    return MaxNLocator(most, integer=integer)


def _label(text: str, width: int, lines: int = 2) -> str:
    fitting = (word if len(word) <= width - 2 else f"{word[: width - 3]}…" for word in text.split())
    return "\n".join(textwrap.wrap(" ".join(fitting), width, max_lines=lines, placeholder=" …")) or "–"


def _render(frame: Frame, height: float, draw: Callable[[Figure], None]) -> str:
    """Return the drawing as an SVG element for inline use in HTML."""
    from matplotlib import style  # noqa: PLC0415 - heavy, and optional outside the demo extra
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415 - the same
    from matplotlib.figure import Figure  # noqa: PLC0415 - the same

    buffer = io.BytesIO()
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        # The browser has the glyphs of any script; a missing one in Matplotlib's own font only shifts the layout.
        warnings.filterwarnings("ignore", message=".*missing from font.*")
        warnings.filterwarnings("ignore", message=".*constrained_layout not applied.*")
        figure = Figure(figsize=(frame.width / 72, height / 72), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _finish(buffer.getvalue(), frame)


def _finish(svg: bytes, frame: Frame) -> str:
    root = ET.fromstring(svg)  # noqa: S314 - written by Matplotlib a moment ago, with its own escaping
    for parent in root.iter():
        for child in [c for c in parent if _tag(c) in {"metadata", "style"}]:
            parent.remove(child)
    used = set(re.findall(r'(?:url\(#|href="#)([\w.-]+)', svg.decode()))
    for element in root.iter():
        element.tag = _tag(element)
        element.tail = None
        if element.tag != "text":
            element.text = None
        element.attrib = {_tag_name(key): _attribute(_tag_name(key), value, element.tag, frame.name)
                          for key, value in element.attrib.items() if key != "id" or value in used}  # fmt: skip
    size = root.attrib["viewBox"]
    root.attrib = {"viewBox": size, "width": str(frame.width), "role": "img", "class": "chart"}
    for tag, text in (("desc", frame.description), ("title", frame.title)):
        element = ET.Element(tag, {"id": f"{frame.name}-{tag}"})
        element.text = text
        root.insert(0, element)
    root.set("aria-labelledby", f"{frame.name}-title {frame.name}-desc")
    return ET.tostring(root, encoding="unicode")


def _tag(element: ET.Element) -> str:
    return _tag_name(element.tag)


def _tag_name(name: str) -> str:
    return name.rpartition("}")[2]


def _attribute(name: str, value: str, tag: str, prefix: str) -> str:
    """Return an attribute with short numbers, CSS colours, the page's font, and ids that no other chart has."""
    if name == "id":
        return f"{prefix}-{value}"
    if name == "href" and value.startswith("#"):
        return f"#{prefix}-{value[1:]}"
    if name == "clip-path":
        return value.replace("url(#", f"url(#{prefix}-")
    if name == "style":
        return _style(value, prefix, text=tag == "text")
    if name in {"d", "x", "y", "transform"}:
        return " ".join(re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), value).split())
    return _CSS.get(value, value)


def _style(style: str, prefix: str, *, text: bool) -> str:
    kept = {} if not text else {"fill": "currentColor"}
    for name, _, value in (piece.strip().partition(": ") for piece in style.split(";")):
        if name == "font":  # the shorthand of older releases: weight, size, families
            kept["font-size"] = next(iter(re.findall(r"[\d.]+px", value)), "12px")
        elif name and name != "font-family":
            kept[name] = _CSS.get(value, value).replace("url(#", f"url(#{prefix}-")
    return ";".join(f"{name}:{value}" for name, value in kept.items())
