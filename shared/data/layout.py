"""Which columns or arrays of a site's data hold the class, the privacy unit and the site."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which columns (of a table or manifest) or arrays (of an NPZ file) hold the class, the privacy unit and the site.

    unit:  empty if every record is its own unit
    site:  empty if the file holds one site
    """

    classes: tuple[str, ...]
    label: str
    unit: str = ""
    site: str = ""
