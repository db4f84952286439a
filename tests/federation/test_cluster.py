"""The simulated mode through Flower's own engine gives the release of the one in this process, byte for byte."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patevolve.client import cluster
from patevolve.client.cluster import simulate_on_cluster
from patevolve.client.home import open_home
from patevolve.client.simulate import Site, load_records, open_sites
from patevolve.client.station import Station
from patevolve.shared.envelopes import Request, decode_response, encode_request
from patevolve.shared.errors import InputError, PatevolveError, PolicyError

pytest.importorskip("flwr")
with_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'patevolve[cluster]' (220 MB)"
)
# In a process of its own: Ray starts others, and warns of much that is its own business.
RUN = """
import json, sys
from pathlib import Path
from patevolve.client.cluster import simulate_on_cluster
from patevolve.client.simulate import load_records, open_sites
from patevolve.shared.plan import read_plan
if __name__ == "__main__":
    place = Path(sys.argv[1])
    agreed, data = read_plan(place / "plan.toml"), place / "all.csv"
    homes = {path.name: path for path in sorted((place / "homes").iterdir()) if path.is_dir()}
    sites = open_sites(homes, load_records(data, agreed.plan), agreed)
    report = simulate_on_cluster(agreed, sites, data, place / "out", run="run-1", recorded=True)
    print("CHARGES", json.dumps([site["charges"] for site in report["sites"]]))
"""


@with_ray
def test_on_a_cluster_and_in_one_process_the_same_bytes_come_out(town, recorded):
    agreed = town.agreed({"privacy.trust": "secure-sum"})  # every kind of message
    town.simulate(agreed, "process", noise=recorded)
    (town.place / "plan.toml").write_text(agreed.text, encoding="utf-8")
    for site in town.sites:
        town.home(agreed, site, approve=False)
    script = town.place / "run.py"
    script.write_text(RUN, encoding="utf-8")
    command = [sys.executable, str(script), str(town.place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    for part in ("release", "student", "generations"):
        assert town.tree("out", part) == town.tree("process", part), part
    for site in town.sites:
        assert town.charges(site) == town.charges(site, "process-homes")
    assert "CHARGES [3, 3, 3]" in done.stdout


def sites_of(town: Any, agreed: Any) -> tuple[dict[str, Site], Path]:
    town.simulate(agreed, "process")  # writes all.csv
    homes = {site: town.home(agreed, site) for site in town.sites}
    data = town.place / "all.csv"
    return open_sites(homes, load_records(data, agreed.plan), agreed), data


def test_without_ray_the_extra_is_named(town, monkeypatch):
    agreed = town.agreed()
    sites, data = sites_of(town, agreed)
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"patevolve\[cluster\]"):
        simulate_on_cluster(agreed, sites, data, town.place / "out")
    assert not (town.place / "out").exists()


def test_a_run_that_failed_on_the_cluster_ends_with_its_own_code(town, monkeypatch):
    agreed = town.agreed()
    sites, data = sites_of(town, agreed)
    out = town.place / "out"
    status = {"exit_code": 5, "code": "budget", "message": "too little"}

    def engine(nodes, config):
        assert [sorted(node) for node in nodes] == [["data", "data-of-all-sites", "home"]] * 3
        out.mkdir()
        (Path(config["out"]) / "status.json").write_text(json.dumps(status), encoding="utf-8")

    monkeypatch.setattr(cluster, "check_engine", lambda: None)
    monkeypatch.setattr(cluster, "_engine", engine)
    with pytest.raises(PatevolveError, match="too little") as caught:
        simulate_on_cluster(agreed, sites, data, out)
    assert (caught.value.exit_code, caught.value.code) == (5, "budget")


def test_a_roster_of_a_deployment_is_not_overwritten(town, monkeypatch):
    agreed = town.agreed()
    sites, data = sites_of(town, agreed)
    roster = town.place / "homes" / "Bea" / "roster.json"
    roster.write_text('{"sites": {}}', encoding="utf-8")
    monkeypatch.setattr(cluster, "check_engine", lambda: None)
    with pytest.raises(PolicyError, match="another coordinator"):
        simulate_on_cluster(agreed, sites, data, town.place / "out")
    assert not (town.place / "homes" / "Ada" / "roster.json").exists()
    assert roster.read_text(encoding="utf-8") == '{"sites": {}}'


@pytest.mark.parametrize("of_all", [True, False])
def test_one_file_for_all_is_for_simulations_alone(of_all, town):
    agreed = town.agreed()
    _, data = sites_of(town, agreed)
    station = dataclasses.replace(town.station(agreed, "Ada"), data=data, of_all=of_all)
    assert isinstance(station, Station)
    request = encode_request(Request(action="hello", plan=agreed.sha256, run="r"))
    assert decode_response(station.handle("hello", request), "hello").codes == (("",) if of_all else ("policy",))
    if of_all:
        home = open_home(station.home)
        assert station.prepare(home, agreed.sha256).index.units == 60
