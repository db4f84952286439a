"""Who took part in a run, for the report's page: by site, by question, and the bytes of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patevolve.shared.report.words import number_of

Rows = Sequence[Mapping[str, Any]]
CELLS = 2000  # of the table of bytes by site and message; a larger one is left to report.json


def took_part(questions: Rows, traffic: Rows, sites: Sequence[str]) -> dict[str, Any]:
    """Return the tables of participation from a report's ``participation`` and ``traffic``.

    sites:  the names to be listed; others that refused, were silent or sent something are added
    """
    rows = [_question(row) for row in questions]
    heard = [str(name) for row in traffic if (name := row.get("site")) is not None]
    named = [site for row in rows for site in (*row["refused"], *row["silent"])]
    names = list(dict.fromkeys([*sites, *named, *heard]))
    groups = list(dict.fromkeys(str(row.get("questions") or "greeting") for row in traffic))
    sizes = _sizes(traffic)
    return {
        "questions": rows,
        "sites": [
            {
                "site": site,
                "answered": sum(site not in row["refused"] and site not in row["silent"] for row in rows),
                "of": len(rows),
                "refused": sorted({row["refused"][site] for row in rows if site in row["refused"]}),
                "silent": sum(site in row["silent"] for row in rows),
                "down": sum(pair[0] for (name, _), pair in sizes.items() if name == site) if traffic else None,
                "up": sum(pair[1] for (name, _), pair in sizes.items() if name == site) if traffic else None,
            }
            for site in names
        ] if rows or traffic else [],
        "groups": groups if len(groups) * len(names) <= CELLS else [],
        "bytes": [[site, [sum(sizes.get((site, group), (0, 0))) for group in groups]] for site in names],
    }  # fmt: skip


def _question(row: Mapping[str, Any]) -> dict[str, Any]:
    refused, silent = row.get("refused"), row.get("silent")
    return {
        "question": str(row.get("question")),
        "when": row.get("when"),
        "answered": row.get("answered"),
        "sites": row.get("sites"),
        "refused": {str(k): str(v) for k, v in refused.items()} if isinstance(refused, Mapping) else {},
        "silent": [str(site) for site in silent] if isinstance(silent, list) else [],
    }


def _sizes(traffic: Rows) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (site, questions of a message) -> bytes to the site and from it, all requests together."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in traffic:
        key = str(row.get("site")), str(row.get("questions") or "greeting")
        down, up = (int(number_of(row.get(way)) or 0) for way in ("bytes_down", "bytes_up"))
        before = found.get(key, (0, 0))
        found[key] = before[0] + down, before[1] + up
    return found
