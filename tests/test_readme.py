"""The README is kept true: its commands run, its table is what the benchmark prints, its files exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PATEVOLVE = str(Path(sys.executable).with_name("patevolve"))


def hospital_commands() -> list[str]:
    """The block of commands to run at a hospital, without its comments."""
    block = next(block for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) if "client approve" in block)
    lines = [line.split("#")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line.startswith("patevolve")]


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """A folder with one hospital's plan and data, as the README's commands name them."""
    plan = (ROOT / "client/demo_data/heart.toml").read_text(encoding="utf-8")
    plan = plan.replace("count = 4", "count = 1").replace('trust = "secure-sum"', 'trust = "each-site"')
    plan = plan.replace("population = 6000", "population = 200").replace("samples = 6000", "samples = 200")
    plan = plan.replace("generations = 60", "generations = 3")
    (tmp_path / "plan.toml").write_text(plan, encoding="utf-8")
    rows = (ROOT / "client/demo_data/heart.csv").read_text(encoding="utf-8").splitlines()
    own = [rows[0], *(row.replace(",Hungary,", ",Ours,") for row in rows if ",Hungary," in row)]
    (tmp_path / "ours.csv").write_text("\n".join(own) + "\n", encoding="utf-8")
    return tmp_path


def test_the_commands_for_a_hospital_run_as_they_stand(hospital: Path) -> None:
    commands = hospital_commands()
    assert len(commands) >= 6
    for command in commands:
        arguments = [PATEVOLVE, *command.split()[1:]]
        answer = "y\n" if "approve" in command else ""
        done = subprocess.run(arguments, cwd=hospital, input=answer, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert (hospital / "run/report.html").exists()
    assert (hospital / "run/export-parquet").is_dir()


def test_the_quickstart_is_what_make_runs() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert "patevolve demo" in makefile.replace("$(BIN)/", "")


def test_the_accounting_table_is_what_the_benchmark_prints() -> None:
    command = [sys.executable, str(ROOT / "benchmarks/accounting_table.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) == 22
    for row in rows:
        assert row in README


def test_every_file_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"`((?:docs|shared|client|server|benchmarks|tests)/[\w./-]+)`", README))
    named |= set(re.findall(r"\]\((docs/[\w./-]+)\)", README))
    assert named
    for name in named:
        assert (ROOT / name).exists(), name
