"""The coordinator's note of its sites: continued over resumed runs, harmless when damaged, and true to the messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from patevolve.shared import contacts
from patevolve.shared.contacts import Contacts, load_contacts


def test_a_note_is_continued_where_it_ended(tmp_path: Path) -> None:
    note = load_contacts(tmp_path / "contacts.json")
    note.about = "counts"
    note.sent("Ada", "ask", 10)
    note.received("Ada", "ask", 7)
    note.settled("Ada", "")
    note.settled("Bea", "policy")
    note.save()
    again = load_contacts(tmp_path / "contacts.json")
    again.about = "counts"
    again.sent("Ada", "ask", 5)
    assert again.rows() == [
        {"site": "Ada", "questions": "counts", "request": "ask", "bytes_down": 15, "bytes_up": 7},
    ]
    assert again.codes == {"Ada": "", "Bea": "policy"}
    assert set(again.seen) == {"Ada", "Bea"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seen": 3, "codes": {}, "sizes": []}', '{"sizes": [[1]]}', "\x00"])
def test_a_damaged_note_is_begun_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "contacts.json"
    path.write_text(text, encoding="utf-8")
    assert load_contacts(path).rows() == []


def test_a_note_without_a_place_writes_nothing(tmp_path: Path) -> None:
    note = Contacts()
    note.received("Ada", "ask", 1)
    note.save()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("took", "again"), [(0.001, 1.0), (0.5, 25.0)])
def test_a_note_that_takes_long_is_written_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float, again: float
) -> None:
    """A clock that only writing moves: at most a fiftieth of the time goes into the note, however many sites."""
    now, written = [100.0], []

    def write(path: Path, data: bytes) -> None:
        written.append(now[0])
        now[0] += took

    monkeypatch.setattr(contacts.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(contacts, "write_atomic", write)
    note = Contacts(path=tmp_path / "contacts.json")
    note.received("Ada", "ask", 1)
    now[0] = 100.0 + took + again - 0.01
    note.received("Bea", "ask", 1)
    assert written == [100.0]
    now[0] += 0.02
    note.received("Cy", "ask", 1)
    assert len(written) == 2
