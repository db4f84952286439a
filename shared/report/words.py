"""Numbers and sentences of the report page: cleaned input, honest rounding, plain words.

An ε or δ is never rounded down. A value that is missing, NaN or infinite reads "not measured".
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from typing import Any

MISSING = "not measured"

_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

TRUST = {
    "secure-sum": (
        "Secure sum",
        (
            "Each institution adds a share of the noise; the shares add up to the full noise in the sum of all "
            "answers. This holds only if nobody sees a single institution's answer and no more institutions drop out "
            "or collude than planned."
        ),
    ),
    "each-site": (
        "Each site alone",
        "Each institution adds the full noise to its own answer. It need not trust the coordinator or the others.",
    ),
}


def clean(value: Any) -> Any:
    """Return a copy with printable text, string keys, and None in place of NaN and infinities."""
    if isinstance(value, Mapping):
        return {_text(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool | int):
        return value
    try:
        number = float(value)  # NumPy scalars too
    except (TypeError, ValueError):
        return _text(str(value))
    return number if math.isfinite(number) else None


def _text(raw: str) -> str:
    """Replace control characters, lone surrogates and other unprintable ones: XML and UTF-8 cannot hold some."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in raw)


def number_of(value: Any) -> float | None:
    """Return a finite float, or None for anything else (bool included)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an int beyond the floats
        return None


def epsilon(value: Any) -> str:
    """Format an ε to three decimals, rounded up; whole numbers keep one decimal."""
    number = number_of(value)
    if number is None:
        return "no bound"
    if number == 0:
        return "0"
    raised = math.ceil(number * 1000 * (1 - 1e-9)) / 1000
    text = f"{raised:,.3f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def power(value: Any) -> str:
    """Format a δ as mantissa and power of ten, rounded up at the second digit of the mantissa."""
    number = number_of(value)
    if number is None or number <= 0:
        return MISSING if number is None else "0"
    exponent = math.floor(math.log10(number) + 1e-12)
    mantissa = math.ceil(number / 10.0**exponent * 10 * (1 - 1e-9)) / 10
    if mantissa >= 10:
        mantissa, exponent = mantissa / 10, exponent + 1
    tail = f"10{str(exponent).translate(_SUPERSCRIPT)}"
    return tail if mantissa == 1 else f"{mantissa:g} × {tail}"


def metric(value: Any) -> str:
    """Format a score to three decimals."""
    number = number_of(value)
    return MISSING if number is None else f"{number:.3f}"


def spread(mean: Any, sd: Any) -> str:
    """Format mean ± standard deviation; without a deviation the mean alone."""
    deviation = number_of(sd)
    return metric(mean) if number_of(mean) is None or deviation is None else f"{metric(mean)} ± {deviation:.3f}"


def count(value: Any) -> str:
    """Format a count with thousands separators, other numbers to four significant digits."""
    number = number_of(value)
    if number is None:
        return MISSING
    return f"{number:,.0f}" if number.is_integer() else f"{number:,.4g}"


def percent(value: Any) -> str:
    """Format a share as whole or tenth percent."""
    number = number_of(value)
    return MISSING if number is None else f"{100 * number:.3g} %"


def cell(value: Any) -> str:
    """Format one cell of a preview: text as it is, numbers short, missing values as an en dash."""
    if value is None:
        return "–"
    number = number_of(value)
    return str(value) if number is None else f"{number:g}" if abs(number) < 1e6 else f"{number:,.0f}"


def parsed(value: Any) -> Any:
    """Return a cell of a preview as a number where its text is one, and None where it is blank."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    plain = value.isascii() and value == value.strip() and "_" not in value
    try:
        number = float(value) if plain else math.nan
    except ValueError:
        return value
    # A code such as "007" is not the number 7: only a text that the number would be written as counts.
    return number if math.isfinite(number) and float(f"{number:g}") == number and _same(value, number) else value


def _same(text: str, number: float) -> bool:
    return text in {f"{number:g}", f"{number:.1f}", f"{number:.2f}"}


def moment(value: Any) -> str:
    """Format an ISO time for people; anything else is shown as it is."""
    try:
        when = dt.datetime.fromisoformat(str(value))
    except ValueError:
        return str(value)
    zone = " UTC" if when.utcoffset() == dt.timedelta(0) else f" {when:%z}"
    return f"{when.day} {when:%B %Y, %H:%M}{zone.rstrip()}"


def spelled(number: int, noun: str) -> str:
    """Return 'four hospitals', '200 hospitals'."""
    amount = _SMALL[number] if 0 <= number < len(_SMALL) else f"{number:,}"
    return f"{amount} {plural(noun, number)}"


def article(noun: str) -> str:
    """Return "an" before a vowel, else "a"."""
    return "an" if noun[:1].lower() in "aeiou" else "a"


def plural(noun: str, number: int = 2) -> str:
    """Return the noun for this many."""
    return noun if number == 1 else f"{noun}s"


def lead(report: Mapping[str, Any], *, noun: str, sample: str) -> str:
    """Return what happened, in two or three plain sentences."""
    sites = max(len(report.get("sites") or ()), 1)
    rows = count((report.get("synthetic") or {}).get("rows"))
    who = spelled(sites, noun)
    made = f"{who[0].upper()}{who[1:]} made {rows} synthetic {plural(sample)} {'together' if sites > 1 else 'alone'}"
    if report.get("unsafe"):
        return f"{made}. The privacy guarantee does not hold for this run; the reasons stand below."
    place = {
        "simulated": f", simulated on one computer. Each {noun} answered with noised sums of votes only.",
        "local": f". No record left the {noun}.",
        "deployed": f". No record left {article(noun)} {noun}.",
    }.get(str(report.get("mode")), ".")
    return f"{made}{place} {_spent(report, sites)}"


def _spent(report: Mapping[str, Any], sites: int) -> str:
    total = number_of(report.get("epsilon"))
    if total is None:
        return "No finite ε bounds what can be learnt about a single person."
    if total == 0:
        return "Nothing was learnt from private records (ε = 0)."
    each = [number_of(site.get("epsilon")) for site in report.get("sites") or ()]
    known = [value for value in each if value is not None]
    subject = "It" if sites == 1 else "Each"
    most = "" if not known or max(known) == min(known) else "at most "
    amount = f"{most}ε = {epsilon(max(known, default=total))}"
    unit = report.get("unit") or "record"
    return f"{subject} spent {amount} of {unit}-level privacy budget (δ = {power(report.get('delta'))})."
