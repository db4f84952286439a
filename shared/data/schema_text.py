"""A drafted schema as the ``[data]`` section of a plan, and as JSON: what is public, and where each part came from."""

from __future__ import annotations

import json
from typing import Any

from patevolve.shared.data.dictionary import Draft
from patevolve.shared.schema import Column


def toml_text(found: Draft) -> str:
    """Return the ``[data]`` section of a plan, each column under a comment that says where its bounds come from."""
    lines = [
        "# Drafted from documentation; no record was read. Bounds, edges and categories are public: all sites and",
        "# everyone who gets the release see them. Check each against its source before the plan is agreed on.",
        "[data]",
        'kind = "table"',
        f"# classes from {_comment(found.label_source)}",
        f"classes = {_toml(list(found.classes))}",
        f"label = {_toml(found.label)}",
        *(f"{key} = {_toml(value)}" for key, value in (("unit", found.unit), ("site", found.site)) if value),
    ]
    lines += [f"# left out: {_comment(name)}: {reason}" for name, reason in found.left_out]
    for each in found.columns:
        lines += ["", f"# {_comment(each.source)}{': CHECK' if each.is_default else ''}", "[[data.columns]]"]
        lines += _lines(each.column)
    return "\n".join(lines) + "\n"


def _lines(column: Column) -> list[str]:
    lines = [f"name = {_toml(column.name)}", f'kind = "{column.kind}"']
    if column.kind == "numeric":
        lines.append(f"edges = [{', '.join(f'{edge:.{column.decimals}f}' for edge in column.edges)}]")
    else:
        lines.append(f"values = {_toml(list(column.values))}")
    lines += ["missing = true"] if column.missing else []
    return lines + ([f"decimals = {column.decimals}"] if column.decimals else [])


def _toml(value: str | list[str]) -> str:
    # JSON's strings and lists of strings are TOML's as well, but for DEL, which TOML wants escaped
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def describe(found: Draft) -> dict[str, Any]:
    """Return the JSON form: the TOML, and for each column what is public and where it came from."""
    columns = [
        {
            "name": each.column.name,
            "kind": each.column.kind,
            "public": list(each.column.edges or each.column.values),
            "missing": each.column.missing,
            "source": each.source,
            "default": each.is_default,
        }
        for each in found.columns
    ]
    left_out = [{"name": name, "reason": reason} for name, reason in found.left_out]
    roles = {"label": found.label, "unit": found.unit, "site": found.site, "classes": list(found.classes)}
    return {**roles, "columns": columns, "left_out": left_out, "toml": toml_text(found)}
