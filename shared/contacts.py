"""Who was heard, when, and how many bytes went each way: a note beside a run, for people to look at.

The run itself never reads it, so it may be lost or damaged. It holds names, times, fixed codes and sizes of messages,
all of which a coordinator sees anyway.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patevolve.shared.files import write_atomic

FILE = "contacts.json"
EVERY = 1.0  # seconds between two writings while replies come in
PATIENCE = 50  # times as long as a writing took passes before the next: with many sites it is most of the work else


@dataclass(kw_only=True, eq=False)
class Contacts:
    """What a coordinator notes of its sites.

    path:   where the note is kept; None for memory alone
    about:  the names of the questions that are being asked, with commas between; empty for a greeting
    seen:   site -> when its last reply came, UTC
    codes:  site -> "" after an answer, else the code of its last refusal
    sizes:  (site, about, request) -> bytes to the site and bytes from it
    """

    path: Path | None = None
    about: str = ""
    seen: dict[str, str] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    sizes: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    _due: float = float("-inf")

    def sent(self, site: str, request: str, size: int) -> None:
        """Note a request of ``size`` bytes."""
        self._add(site, request, size, 0)

    def received(self, site: str, request: str, size: int) -> None:
        """Note a reply of ``size`` bytes."""
        self._add(site, request, 0, size)
        self._heard(site)
        if time.monotonic() > self._due:
            self.save()

    def settled(self, site: str, code: str) -> None:
        """Note that a site answered ("") or refused with this code."""
        self.codes[site] = code
        self._heard(site)

    def save(self) -> None:
        """Write the note, if it has a place."""
        if self.path is None:
            return
        start = time.monotonic()
        value = {"seen": self.seen, "codes": self.codes, "sizes": [[*key, *pair] for key, pair in self.sizes.items()]}
        write_atomic(self.path, json.dumps(value, ensure_ascii=False).encode())
        end = time.monotonic()
        self._due = end + max(EVERY, PATIENCE * (end - start))

    def rows(self) -> list[dict[str, Any]]:
        """Return the bytes by site, questions and request, as a report shows them."""
        return [
            {"site": site, "questions": about, "request": request, "bytes_down": down, "bytes_up": up}
            for (site, about, request), (down, up) in sorted(self.sizes.items())
        ]

    def _heard(self, site: str) -> None:
        self.seen[site] = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _add(self, site: str, request: str, down: int, up: int) -> None:
        before = self.sizes.get((site, self.about, request), (0, 0))
        self.sizes[site, self.about, request] = (before[0] + down, before[1] + up)


def load_contacts(path: Path) -> Contacts:
    """Return the note in this file, to be continued; an empty one if there is none or it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sizes = {(str(s), str(a), str(r)): (int(down), int(up)) for s, a, r, down, up in found["sizes"]}
        seen, codes = ({str(k): str(v) for k, v in found[part].items()} for part in ("seen", "codes"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Contacts(path=path)
    return Contacts(path=path, seen=seen, codes=codes, sizes=sizes)
