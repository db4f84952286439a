"""Changing a plan's keys: another plan, with the comments of the first."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from patevolve.shared.errors import PlanError
from patevolve.shared.plan import Agreed, agree


def vary(agreed: Agreed, changes: Mapping[str, Any]) -> Agreed:
    """Return the plan with dotted keys set, or removed where the value is None. Raises PlanError.

    The text keeps its comments, so that the derived plan still explains itself.
    """
    try:
        import tomlkit  # noqa: PLC0415 - an extra: only demonstrations and plan studies derive plans
    except ImportError as reason:
        raise PlanError("changing a plan needs tomlkit; install it with: pip install 'patevolve[demo]'") from reason
    document: Any = tomlkit.parse(agreed.text)
    for key, value in changes.items():
        *tables, last = key.split(".")
        table = document
        for name in tables:
            if name not in table:
                table[name] = tomlkit.table()
            table = table[name]
        if value is not None:
            table[last] = value
        elif last in table:
            del table[last]
    return agree(tomlkit.dumps(document), where="the changed plan")


def setting(text: str) -> tuple[str, Any]:
    """Return the key and value of ``privacy.epsilon=2``, the value read as TOML. Raises PlanError."""
    key, sign, value = text.partition("=")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError as reason:
        raise PlanError(f"--set {text!r} found; expected key=value such as privacy.epsilon=2 ({reason}).") from reason
    if not (key.strip() and sign):
        raise PlanError(f"--set {text!r} found; expected key=value such as privacy.epsilon=2.")
    return key.strip(), parsed
