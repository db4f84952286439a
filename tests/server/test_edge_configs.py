"""The deployment's files are taken by the programs that read them, where these are installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from patevolve.server import pki

DEPLOY = Path(__file__).parents[2] / "edge_configs" / "deploy"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("broken", [False, True])
def test_systemd_takes_the_units(tmp_path: Path, broken: bool) -> None:
    units = []
    for unit in sorted(DEPLOY.glob("*.service")):
        text = re.sub(r"(?<=ExecStart=)/\S+", shutil.which("true") or "", unit.read_text(encoding="utf-8"))
        units.append(tmp_path / unit.name)
        units[-1].write_text(text.replace("Type=exec", "Type=never") if broken else text, encoding="utf-8")
    assert len(units) == 2
    command = ["systemd-analyze", "verify", "--man=no", *map(str, units)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [
        line for line in done.stderr.splitlines() if "patevolve" in line
    ]  # the machine's other units may have faults
    assert len(said) == (2 if broken else 0), done.stderr
    assert broken or done.returncode == 0


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
@pytest.mark.parametrize("broken", [False, True])
def test_nginx_takes_the_snippet(tmp_path: Path, broken: bool) -> None:
    pki.write_pki(tmp_path / "pki", "test", ["c.example.org"])
    text = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    text = text.replace("/var/lib/patevolve/coordinator/pki", str(tmp_path / "pki"))
    (tmp_path / "site.conf").write_text(text.replace("proxy_pass ", "proxy_pas ") if broken else text)
    places = " ".join(f"{kind}_temp_path {tmp_path};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    http = f"access_log off; client_body_temp_path {tmp_path}; {places} include {tmp_path}/site.conf;"
    whole = f"pid {tmp_path}/nginx.pid; error_log stderr; events {{}} http {{ {http} }}"
    (tmp_path / "nginx.conf").write_text(whole, encoding="utf-8")
    command = ["nginx", "-t", "-q", "-c", str(tmp_path / "nginx.conf"), "-e", "stderr"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not broken), done.stderr
