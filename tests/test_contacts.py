"""The coordinator's note of its sites: continued over resumed runs, harmless when damaged, and true to the messages."""

from __future__ import annotations

from pathlib import Path

import pytest

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
