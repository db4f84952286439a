"""Strict TOML: the same text on every platform, and no value that is silently another one."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patevolve.shared import checks, tomlfile
from patevolve.shared.errors import DataError, PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    rate: float
    name: str = "x"
    count: int = 1
    flag: bool = False
    choice: Literal["left", "right"] = "left"
    list_of: tuple[float, ...] = ()
    maybe: int | None = None
    inner: Inner = dataclasses.field(default_factory=Inner)
    inners: tuple[Inner, ...] = ()

    def __post_init__(self):
        checks.positive(rate=self.rate)


def parse(text):
    return tomlfile.parse(text, Outer, "the file", PlanError)


def test_every_type_is_read():
    text = (
        'rate = 2\nname = "n"\ncount = 3\nflag = true\nchoice = "right"\nlist_of = [1, 2.5]\nmaybe = 4\n'
        "[inner]\nsize = 5\n[[inners]]\nsize = 6\n[[inners]]\n"
    )
    expected = Outer(
        rate=2.0,
        name="n",
        count=3,
        flag=True,
        choice="right",
        list_of=(1.0, 2.5),
        maybe=4,
        inner=Inner(size=5),
        inners=(Inner(size=6), Inner()),
    )
    found = parse(text)
    assert found == expected
    assert type(found.rate) is float
    assert all(type(value) is float for value in found.list_of)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rat = 1.0", ["'rat'", "Did you mean 'rate'"]),
        ("rate = 1.0\nzzzzzz = 1", ["'zzzzzz'", "Known keys"]),
        ("", ["'rate'", "missing", "Add it"]),
        ('rate = "1"', ["'1'", "str", "a number"]),
        ("rate = true", ["True", "bool", "a number"]),
        ("rate = nan", ["nan", "finite"]),
        ("rate = inf", ["inf", "finite"]),
        ("rate = -inf", ["inf", "finite"]),
        ("rate = 0", ["0.0", "> 0"]),
        ("rate = -1", ["-1.0", "> 0"]),
        ("rate = 5e-324", ["subnormal"]),
        ("rate = 1" + "0" * 400, ["bits", "2^53"]),
        ("rate = 9007199254740993", ["2^53"]),
        ("rate = 1" + "0" * 5000, ["not valid TOML"]),
        ("rate = " + "[" * 5000, ["not valid TOML"]),
        ("rate = 1979-05-27", ["date", "a number"]),
        ("rate = 1\ncount = 1.0", ["float", "a whole number"]),
        ("rate = 1\ncount = true", ["bool", "a whole number"]),
        ("rate = 1\nmaybe = true", ["bool", "a whole number"]),
        ("rate = 1\nflag = 1", ["int", "true or false"]),
        ("rate = 1\nname = 1", ["int", "text"]),
        ('rate = 1\nchoice = "lefft"', ["'left', 'right'", "Did you mean 'left'"]),
        ("rate = 1\nchoice = 1", ["'left', 'right'"]),
        ("rate = 1\nlist_of = 1", ["a list of a number"]),
        ('rate = 1\nlist_of = [1, "2"]', ["list_of[1]", "a number"]),
        ("rate = 1\ninner = 1", ["a table"]),
        ("rate = 1\ninner.siz = 1", ["inner", "'siz'", "Did you mean 'size'"]),
        ("rate = 1\n[[inner]]\nsize = 1", ["a table"]),
        ("rate = 1\n[inners]\nsize = 1", ["a list of"]),
        ("rate = 1\nrate = 2", ["not valid TOML"]),
        ("rate = 1\r2", ["not valid TOML"]),
        ("rate = 1\ncount =\n", ["not valid TOML", "line 2"]),
    ],
)
def test_what_does_not_fit_is_refused_in_words(text, words):
    with pytest.raises(PlanError) as caught:
        parse(text)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_caller_chooses_the_error():
    with pytest.raises(DataError):
        tomlfile.parse("x = 1", Outer, "f", DataError)


def test_mark_and_line_ends_do_not_make_another_file(tmp_path):
    text = 'rate = 1.0\nname = "ä"\n'
    variants = [text, text.replace("\n", "\r\n"), "\ufeff" + text, "\ufeff" + text.replace("\n", "\r\n")]
    hashes = set()
    for number, variant in enumerate(variants):
        path = tmp_path / f"{number}.toml"
        path.write_bytes(variant.encode())
        found = tomlfile.read_text(path, PlanError)
        assert parse(found) == Outer(rate=1.0, name="ä")
        hashes.add(tomlfile.sha256(found))
    assert len(hashes) == 1


@given(st.text(max_size=40), st.text(max_size=40))
def test_the_hash_names_the_normalised_text(first, second):
    first, second = tomlfile.normalise(first), tomlfile.normalise(second)
    try:
        same = tomlfile.sha256(first) == tomlfile.sha256(second)
    except UnicodeEncodeError:  # a lone surrogate cannot come from a file
        return
    assert same == (first == second)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"rate = '\xe4'", b"x" * (tomlfile.MAX_BYTES + 1)])
def test_what_is_no_text_file_is_refused(tmp_path, content):
    path = tmp_path / "f.toml"
    path.write_bytes(content)
    with pytest.raises(PlanError):
        tomlfile.read_text(path, PlanError)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "no.toml", tmp_path):
        with pytest.raises(PlanError, match="cannot be read"):
            tomlfile.read_text(path, PlanError)


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(data)
    try:
        parse(tomlfile.read_text(path, PlanError))
    except PlanError:
        return
