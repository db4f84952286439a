"""Every command explains itself with an example, and the README names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from patevolve.client.cli import commands
from patevolve.shared.cli import application

README = Path(__file__).parents[2] / "README.md"


def _walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield words
        return
    for name in command.list_commands(click.Context(command)):
        found = command.get_command(click.Context(command), name)
        if found is None:
            pytest.fail(f"{words} lists {name!r} and does not have it")
        yield from _walk(found, (*words, name))


def _commands() -> list[tuple[str, ...]]:
    """Return every command's words, of the shared application and of the client's folder."""
    found = set(_walk(application, ()))
    for command in commands():
        found |= set(_walk(command, (str(command.name),)))
    return sorted(found)


COMMANDS = _commands()


def test_the_commands_are_those_of_the_design() -> None:
    expected = {"demo", "local", "simulate", "plan", "ledger show", "ledger verify", "report", "export"}
    assert expected <= {" ".join(words) for words in COMMANDS}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example_of_the_very_command(words: tuple[str, ...], shell: Any) -> None:
    for flag in ("--help", "-h"):
        ended = shell(*words, flag)
        assert ended.code == 0, ended.err
        text = " ".join(ended.out.split())
        assert f"Example: patevolve {' '.join(words)} " in text
        assert "--format" in text


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_is_explained(words: tuple[str, ...]) -> None:
    command: Any = (
        application if words[0] in application.commands else next(c for c in commands() if c.name == words[0])
    )
    for word in words if command is application else words[1:]:
        command = command.commands[word]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} has no help"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_readme_names_the_command(words: tuple[str, ...]) -> None:
    assert f"patevolve {' '.join(words)}" in README.read_text("utf-8")


def test_an_unknown_command_ends_with_the_code_of_bad_input(shell: Any) -> None:
    assert shell("demonstrate").code == 2
    assert shell("demo", "lungs").code == 2
    assert shell("demo", "heart", "--seeds", "0").code == 2
