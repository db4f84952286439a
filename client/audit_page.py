"""An audit as one offline page, for the site that made it: the same figures as on its screen."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from patevolve.shared.privacy.site_only import BADGE
from patevolve.shared.report import words


def rendered(name: str, found: Mapping[str, Any]) -> str:
    """Return the page of an audit of the run of this name. Everything in it is shown as text."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - an extra: this page alone

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {"number": _number, "count": words.count, "percent": words.percent}
    text = resources.files(__package__).joinpath("audit.html").read_text(encoding="utf-8")
    shown = {"name": words.clean(name), "badge": BADGE, **words.clean(found)}
    return str(environment.from_string(text).render(shown)) + "\n"


def _number(value: Any) -> str:
    number = words.number_of(value)
    return words.MISSING if number is None else f"{number:.3g}"
