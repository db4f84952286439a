"""Validators by keyword: ``positive(sigma=x)`` returns ``x`` or says what was found and what was expected.

A bool is not a number here, NaN satisfies no condition (each test is written so that NaN fails it), and
subnormal numbers are refused with zero: they behave as zero in one formula and as a number in the next.
"""

from __future__ import annotations

import math
import numbers
import sys

from patevolve.shared.errors import ParameterError


def _only(named: dict[str, object]) -> tuple[str, object]:
    ((name, value),) = named.items()
    return name, value


def _refuse(name: str, value: object, expected: str) -> ParameterError:
    return ParameterError(f"{name}={value!r} found; expected {expected}. Correct {name}.")


def finite(**named: object) -> float:
    """Return the one keyword's value as a finite float. Raises ParameterError otherwise."""
    name, value = _only(named)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _refuse(name, value, f"a number, not {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise _refuse(name, value, "a finite number")
    return number


def positive(**named: object) -> float:
    """Return a finite float that is at least the smallest normal number. Raises ParameterError otherwise."""
    name, value = _only(named)
    number = finite(**named)
    if not number >= sys.float_info.min:
        raise _refuse(name, value, "a number > 0 (not subnormal)")
    return number


def non_negative(**named: object) -> float:
    """Return a finite float >= 0. Raises ParameterError otherwise."""
    name, value = _only(named)
    number = finite(**named)
    if not number >= 0.0:
        raise _refuse(name, value, "a number >= 0")
    return number


def open_unit(**named: object) -> float:
    """Return a float strictly between 0 and 1 (a δ, a sampling rate). Raises ParameterError otherwise."""
    name, value = _only(named)
    number = positive(**named)
    if not number < 1.0:
        raise _refuse(name, value, "a number strictly between 0 and 1")
    return number


def integer(*, at_least: int, at_most: int | None = None, **named: object) -> int:
    """Return an int within the stated bounds (both included). Raises ParameterError otherwise."""
    name, value = _only(named)
    expected = f"a whole number >= {at_least}" + ("" if at_most is None else f" and <= {at_most}")
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _refuse(name, value, expected)
    number = int(value)
    if number < at_least or (at_most is not None and number > at_most):
        raise _refuse(name, value, expected)
    return number
