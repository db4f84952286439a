"""The one normal form of texts: a line, bounded, stable, whatever stood in the file."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patevolve.shared.errors import DataError
from patevolve.shared.texts import normal, packed, unpacked

ANY = st.text(st.characters(blacklist_categories=("Cs",)), max_size=200)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("  plain  text ", "plain text"),
        ("two\r\nlines\tand\x0btabs", "two lines and tabs"),
        ("a\0b\x1b[31mred", "a b [31mred"),
        ("no\u00a0break\u2003space\u3000wide\u2028line", "no break space wide line"),
        ("<script>alert('x')</script>", "<script>alert('x')</script>"),
        ("abc\u202edcba\u202c\u2066x\u2069\ufeff\u200e", "abcdcbax"),
        ("soft\u00adhyphen", "softhyphen"),
        ("שלום עולם", "שלום עולם"),
        ("cafe\u0301", "café"),
        ("e\u200e\u0301", "é"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("👩\u200d⚕️", "👩\u200d⚕️"),
        ("\0\t\u200b \n", ""),
    ],
)
def test_the_normal_form(given, expected):
    assert normal(given, 200) == expected


@given(ANY, st.integers(16, 64))
@settings(max_examples=400, deadline=None)
def test_a_normal_text_is_its_own_normal_form_and_comes_back_from_its_bytes(text, length):
    kept = normal(text, length)
    assert len(kept.encode()) <= length
    assert normal(kept, length) == kept
    assert unicodedata.is_normalized("NFC", kept)
    assert "\0" not in kept
    assert kept == kept.strip()
    rows = packed([kept, "x"], length)
    assert rows.shape == (2, length)
    assert rows.dtype == np.uint8
    assert unpacked(rows) == [kept, "x"]


def test_a_text_is_cut_between_characters():
    assert normal("ää" * 20, 17) == "ä" * 8
    assert normal("🙂" * 20, 18) == "🙂" * 4
    assert normal("word " * 20, 20) == "word word word word"


def test_a_megabyte_is_cut_and_its_marks_take_no_square_of_time():
    assert normal("a" * 1_000_000, 64) == "a" * 64
    marks = normal("a" + "\u0301\u0316" * 500_000, 64)  # to be ordered by class, which takes long for long runs
    assert len(marks.encode()) <= 64
    assert normal(" " * 1_000_000 + "late", 64) == ""  # and so it is refused as an empty one


def test_half_a_surrogate_pair_is_refused_in_words():
    with pytest.raises(DataError, match="surrogate pair"):
        normal("x\ud83d", 64)


def test_what_is_not_packed_is_refused():
    with pytest.raises(DataError, match="17 bytes found; expected at most 16"):
        packed(["a" * 17], 16)
    with pytest.raises(DataError, match="no UTF-8"):
        unpacked(np.full((1, 16), 255, np.uint8))
