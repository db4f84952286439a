"""No generated text promises what differential privacy does not: every text that the product writes is read here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROMISES = re.compile(r"\banonym\w*|\bsafe\b|\bsafely\b|\bcomplian\w*|guaranteed private", re.IGNORECASE)
# Code that has one of the words as a name: of another library, or of a choice that is not one.
NAMES = re.compile(r"safe_load|safetensors|safe_open|unsafe[-\w]*|#safe|yaml\.safe", re.IGNORECASE)


def texts() -> Iterator[tuple[str, str]]:
    """Yield every template, and every text in the source that is no docstring."""
    for folder in ("client", "server", "shared"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.suffix in {".html", ".css", ".js"} and ".min." not in path.name:
                yield name, path.read_text(encoding="utf-8")
            elif path.suffix == ".py":
                yield name, "\n".join(strings(path.read_text(encoding="utf-8")))


def strings(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, described) and node.body and isinstance(node.body[0], ast.Expr)
    }
    commands = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.decorator_list and isinstance(node.body[0], ast.Expr)
    }  # click prints a command's docstring as its help
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings - commands:
            yield node.value


TEXTS = dict(texts())


def test_templates_and_sources_are_read() -> None:
    expected = {"client/audit.html", "client/audit_view.py", "client/sweep.py", "server/dashboard/page.js",
                "server/dashboard/part.html", "server/dashboard/snapshot.py", "shared/release/card.py",
                "shared/report/explain/page.html", "shared/report/page.html", "shared/report/words.py"}  # fmt: skip
    assert expected <= set(TEXTS)
    assert sum(map(len, TEXTS.values())) > 200_000


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_promises_too_much(name: str) -> None:
    found = PROMISES.findall(NAMES.sub(" ", TEXTS[name]))
    assert not found, f"{name}: {found}"


@pytest.mark.parametrize("text", ["fully anonymous", "It is SAFE.", "GDPR-compliant", "a guaranteed private release"])
def test_a_planted_promise_is_found(text: str) -> None:
    assert PROMISES.search(NAMES.sub(" ", "\n".join(strings(f"def f():\n    return {text!r}\n"))))


def test_docstrings_of_commands_are_read_and_others_are_not() -> None:
    source = '@click.command()\ndef f():\n    """Make it safe."""\n\n\ndef g():\n    """Thread safe."""\n'
    assert list(strings(source)) == ["Make it safe."]
