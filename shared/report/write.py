"""The report's page, with a clear error where the libraries that draw it are not installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patevolve.shared.errors import InputError
from patevolve.shared.report import page


def rendered(value: Mapping[str, Any]) -> str:
    """Return the report's page. Raises InputError if the extra that draws it is not installed."""
    try:
        return page.render(value)
    except ImportError as reason:
        raise InputError(
            f"the report's page needs {reason.name}; install it: pip install 'patevolve[demo]'"
        ) from reason
