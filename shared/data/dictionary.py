"""A public schema drafted from a data dictionary: documentation that a person supplies, never the data themselves.

A dictionary is a CSV, TSV or JSON file with one entry per column: ``name``, ``type``, ``min``, ``max``, ``categories``,
``missing``, and if wanted ``edges``, ``decimals``, ``role`` (label, unit, site, ignore), ``source``. Frictionless table
schemas (``fields`` with ``constraints``) are read too. What it does not say comes from DEFAULTS, and is marked as such.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from patevolve.shared.errors import InputError, PlanError
from patevolve.shared.schema import Column

ALIASES = {
    "name": ("name", "column", "variable", "field"),
    "type": ("type", "kind", "datatype", "data_type"),
    "min": ("min", "minimum", "lower"),
    "max": ("max", "maximum", "upper"),
    "categories": ("categories", "values", "levels", "enum", "codes"),
    "missing": ("missing", "nullable"),
    "edges": ("edges", "bins", "cuts"),
    "decimals": ("decimals", "digits"),
    "role": ("role",),
    "source": ("source", "reference"),
}
KNOWN = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
IGNORED = {"description", "label", "title", "comment", "notes", "format"}  # read by people alone
WHOLE = {"int", "integer", "whole", "count"}
NUMBERS = WHOLE | {"numeric", "number", "float", "real", "decimal", "double", "continuous"}
CHOICES = {"categorical", "category", "nominal", "ordinal", "enum", "factor", "choice", "code"}
TRUTH = {"bool", "boolean", "yesno", "flag"}
LEFT_OUT = {
    "text": "free text has no public categories",
    "string": "no categories are documented",
    "date": "dates are no column of a release; document a number instead, such as an age or days since admission",
    "datetime": "dates are no column of a release; document a number instead, such as an age or days since admission",
    "time": "times are no column of a release; document a number instead",
    "id": "an identifier is no column of a release",
}
ROLES = ("label", "unit", "site", "ignore")
WORDS = {"yes": True, "true": True, "y": True, "1": True, "no": False, "false": False, "n": False, "0": False}
# Ranges that hold for any adult or child, from general knowledge and wide on purpose. (low, high, decimals)
DEFAULTS = {
    "age": (0.0, 120.0, 0),
    "age_years": (0.0, 120.0, 0),
    "bmi": (10.0, 80.0, 1),
    "height_cm": (20.0, 250.0, 0),
    "weight_kg": (0.0, 350.0, 0),
    "heart_rate": (0.0, 300.0, 0),
    "systolic_bp": (0.0, 300.0, 0),
    "diastolic_bp": (0.0, 200.0, 0),
    "temperature_c": (25.0, 45.0, 1),
    "oxygen_saturation": (0.0, 100.0, 0),
    "spo2": (0.0, 100.0, 0),
    "percent": (0.0, 100.0, 0),
}
CODED = re.compile(r"\s*([^=]*[^=\s])\s*=\s*(.*\S)\s*")
MOST = 4 << 20  # bytes of a dictionary


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """One column of the draft, with where its bounds or categories come from."""

    column: Column
    source: str
    is_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A public schema in draft. ``left_out``: (column, reason)."""

    label: str
    classes: tuple[str, ...]
    label_source: str
    unit: str
    site: str
    columns: tuple[Drafted, ...]
    left_out: tuple[tuple[str, str], ...]


def draft(path: Path, *, label: str = "", unit: str = "", site: str = "", bins: int = 8) -> Draft:
    """Return the schema that a dictionary documents; ``label``, ``unit``, ``site`` name columns for those purposes.

    bins: into how many bins of one width a number without documented edges is cut
    Raises InputError naming the entry: unknown keys, no bounds, no categories, contradictions.
    """
    entries = [_entry(row, f"{path.name}, entry {number}") for number, row in enumerate(_read(path), 1)]
    names = [entry["name"] for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not entries:
        raise InputError(f"{path.name}: {', '.join(twice) or 'no column'} found twice or at all; expected each once.")
    given = {"label": label, "unit": unit, "site": site}
    roles = {role: _named(role, given[role], entries) for role in given}
    if not roles["label"]:
        raise InputError(f"{path.name} names no class column; give --label NAME, or role = label in its entry.")
    classes = next(entry for entry in entries if entry["name"] == roles["label"])
    columns, left_out = [], []
    for entry in entries:
        reason = _left_out(entry)
        if reason:
            left_out.append((entry["name"], reason))
        elif entry["name"] not in roles.values() and entry.get("role") != "ignore":
            columns.append(_column(entry, bins))
    found, source = _categories(classes)
    return Draft(
        label=roles["label"],
        classes=found,
        label_source=source,
        unit=roles["unit"],
        site=roles["site"],
        columns=tuple(columns),
        left_out=tuple(pair for pair in left_out if pair[0] not in roles.values()),
    )


def _read(path: Path) -> list[dict[str, Any]]:
    text = _text(path)
    if path.suffix.lower() == ".json":
        return _read_json(text, path)
    head = text.partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as reason:
        raise InputError(f"{path.name} cannot be read as CSV ({reason}); expected a data dictionary.") from reason
    return [{str(key): value for key, value in row.items() if value not in (None, "")} for row in rows]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST + 1)
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as reason:
        raise InputError(f"{path} cannot be read ({reason.strerror}); expected a data dictionary.") from reason
    except UnicodeDecodeError as reason:
        raise InputError(f"{path} is not UTF-8 (byte {reason.start}); save it as UTF-8.") from reason
    if len(data) > MOST:
        raise InputError(f"{path} has over {MOST >> 20} MiB; expected a data dictionary, not data.")
    return text


def _read_json(text: str, path: Path) -> list[dict[str, Any]]:
    try:
        value = json.loads(text)
        rows = value if isinstance(value, list) else value.get("columns", value.get("fields"))
        return [{**row, **_constraints(row)} for row in rows]
    except (ValueError, TypeError, AttributeError, RecursionError) as reason:
        raise InputError(
            f"{path.name} cannot be read as a dictionary ({reason}); expected a list of objects, or one under "
            f'"columns" or "fields".'
        ) from reason


def _constraints(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Frictionless field's constraints as this dictionary's keys."""
    found = dict(row.get("constraints", {}))
    required = found.pop("required", None)
    return {**found, **({} if required is None else {"missing": not required}), "constraints": None}


def _entry(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return an entry under its known keys. Raises InputError for unknown ones, with a suggestion."""
    entry: dict[str, Any] = {"where": where}
    for key, value in row.items():
        plain = key.strip().casefold().replace(" ", "_")
        if plain in IGNORED or value is None:
            continue
        if plain not in KNOWN:
            close = difflib.get_close_matches(plain, KNOWN, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InputError(f"{where}: {key!r} found; expected one of {', '.join(ALIASES)}.{hint}")
        entry[KNOWN[plain]] = value.strip() if isinstance(value, str) else value
    if not isinstance(entry.get("name"), str) or not entry["name"]:
        raise InputError(
            f"{where}: no name found; expected a data dictionary, one entry per column, with name, type, min, max, "
            f"categories, missing. (A schema is never drafted from the data.)"
        )
    entry["type"] = str(entry.get("type", "")).casefold()
    if entry.get("role", "ignore") not in ROLES:
        raise InputError(f"{where}: role = {entry['role']!r} found; expected one of {', '.join(ROLES)}.")
    return entry


def _named(role: str, given: str, entries: Iterable[Mapping[str, Any]]) -> str:
    found = [entry["name"] for entry in entries if entry.get("role") == role]
    if given and given not in {entry["name"] for entry in entries}:
        if role == "label":
            raise InputError(f"--label {given!r} found; the dictionary has no such column.")
        return given  # a patient's or a site's column need not be documented
    if len({*found, *([given] if given else [])}) > 1:
        raise InputError(f"{', '.join(found)} found for {role}; expected one column. Correct role, or --{role}.")
    return given or (found[0] if found else "")


def _left_out(entry: Mapping[str, Any]) -> str:
    return "" if "categories" in entry else LEFT_OUT.get(entry["type"], "")


def _column(entry: Mapping[str, Any], bins: int) -> Drafted:
    kind, where = entry["type"], entry["where"]
    try:
        if "categories" in entry or kind in CHOICES | TRUTH:
            values, source = _categories(entry)
            column = Column(name=entry["name"], kind="categorical", values=values, missing=_missing(entry))
            return Drafted(column=column, source=source, is_default=False)
        if kind not in NUMBERS and not (kind == "" and entry["name"].casefold() in DEFAULTS):
            known = ", ".join(sorted(NUMBERS | CHOICES | TRUTH | LEFT_OUT.keys()))
            raise InputError(f"{where}: type = {kind!r} of {entry['name']!r} found; expected one of {known}.")
        return _numeric(entry, bins)
    except PlanError as reason:
        raise InputError(f"{where}: {reason}") from reason


def _categories(entry: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the documented categories, in their order, and where they stand."""
    found = entry.get("categories")
    if found is None and entry["type"] in TRUTH:
        return ("no", "yes"), f"{_source(entry)}: type {entry['type']}"
    if found is None:
        raise InputError(
            f"{entry['where']}: {entry['name']!r} without categories found; expected all of them, from documentation "
            f"(they are never taken from the data)."
        )
    items = found if isinstance(found, list) else _split(str(found))
    coded = [CODED.fullmatch(str(item)) for item in items]
    if items and all(coded):  # 1=male|2=female: the data hold the codes
        meant = ", ".join(f"{match[1]} is {match[2]}" for match in coded if match)
        return tuple(match[1] for match in coded if match), f"{_source(entry)} ({meant})"
    return tuple(str(item).strip() for item in items), _source(entry)


def _split(text: str) -> list[str]:
    separator = next((mark for mark in "|;," if mark in text), "|")
    return [item.strip() for item in text.split(separator)]


def _numeric(entry: Mapping[str, Any], bins: int) -> Drafted:
    default = DEFAULTS.get(entry["name"].casefold())
    digits = _number(entry, "decimals", default[2] if default else (0 if entry["type"] in WHOLE else 2))
    if digits not in range(10):
        raise InputError(f"{entry['where']}: decimals = {digits:g} of {entry['name']!r} found; expected 0 to 9.")
    decimals = int(digits)
    if "edges" in entry:
        given = entry["edges"]
        texts = given if isinstance(given, list) else _split(str(given))
        edges = tuple(_float(text, entry, "edges") for text in texts)
        source, is_default = f"edges from {_source(entry)}", False
    else:
        is_default = not ("min" in entry and "max" in entry)
        if is_default and default is None:
            raise InputError(
                f"{entry['where']}: {entry['name']!r} without min and max found; expected both from documentation "
                f"(they are never taken from the data). A wide range is better than a guess from the records."
            )
        low, high = (
            _number(entry, key, default[place] if default else 0.0) for place, key in enumerate(("min", "max"))
        )
        edges = _edges(low, high, decimals, bins, entry)
        source = f"bounds {low:g} to {high:g} from " + ("patevolve's defaults" if is_default else _source(entry))
    column = Column(name=entry["name"], kind="numeric", edges=edges, decimals=decimals, missing=_missing(entry))
    return Drafted(column=column, source=source, is_default=is_default)


def _edges(low: float, high: float, decimals: int, bins: int, entry: Mapping[str, Any]) -> tuple[float, ...]:
    """Return edges of bins of one width; the last lies one step above ``high``, so that it can be released."""
    if not low < high:
        raise InputError(f"{entry['where']}: min = {low:g} and max = {high:g} found; expected min below max.")
    first = math.ceil(Decimal(repr(low)).scaleb(decimals))
    last = math.floor(Decimal(repr(high)).scaleb(decimals)) + 1
    count = min(bins, last - first)
    if count < 1:
        raise InputError(f"{entry['where']}: no number of {decimals} decimals between {low:g} and {high:g} found.")
    ticks = [first + (last - first) * place // count for place in range(count + 1)]
    return tuple(float(f"{tick}e-{decimals}") for tick in ticks)


def _number(entry: Mapping[str, Any], key: str, default: float) -> float:
    return _float(entry[key], entry, key) if key in entry else default


def _float(value: Any, entry: Mapping[str, Any], key: str) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError("a truth value")  # noqa: TRY301 - one message for all
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{entry['where']}: {key} = {value!r} of {entry['name']!r} found; expected a finite number.")
    return number


def _missing(entry: Mapping[str, Any]) -> bool:
    """Return whether a value may be missing; what is not documented is allowed for."""
    found = entry.get("missing", True)
    if isinstance(found, bool):
        return found
    if str(found).casefold() not in WORDS:
        raise InputError(f"{entry['where']}: missing = {found!r} found; expected yes or no.")
    return WORDS[str(found).casefold()]


def _source(entry: Mapping[str, Any]) -> str:
    return f"{entry['source']} ({entry['where']})" if entry.get("source") else str(entry["where"])
