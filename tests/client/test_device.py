"""Device profiles: read strictly, kept in a site's folder, measured by the doctor, and without a say in any feature."""

import json
import re
import tomllib

import numpy as np
import pytest
from click.testing import CliRunner

from patevolve.client import deploy_cli, device
from patevolve.client.doctor_device import measure
from patevolve.shared.encoder.device import DEFAULT, PROFILES, DeviceProfile, profile_text, read_profile
from patevolve.shared.errors import InputError, ParameterError

onnx = pytest.importorskip("onnx")
SHIPPED = sorted(path.stem for path in PROFILES.glob("*.toml"))


def network(path):
    """A convolution of a 16 × 16 image, averaged."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.random.default_rng(0).normal(size=(8, 1, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "network",
        [helper.make_tensor_value_info("x", kind, ["n", 1, 16, 16])],
        [helper.make_tensor_value_info("y", kind, ["n", 8, 14, 14])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def test_five_profiles_are_shipped_and_every_key_is_explained():
    assert SHIPPED == ["cpu_laptop", "gpu_workstation", "hospital_server", "jetson_orin", "raspberry_pi_5"]
    words = (PROFILES / "README.md").read_text("utf-8")
    for name in SHIPPED:
        assert read_profile(name).name == name
        assert f"`{name}`" in words
    keys = tomllib.loads(profile_text(DEFAULT))
    assert all(f"| `{key}` |" in words for key in keys)


def test_a_profile_survives_its_own_text(tmp_path):
    profile = DeviceProfile(name='a "b"', providers=("cuda", "cpu"), threads=3, batch=7, memory_mib=9, require_gpu=True)
    (tmp_path / "p.toml").write_text(profile_text(profile))
    assert read_profile(tmp_path / "p.toml") == profile


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("thread = 2", r"Did you mean 'threads'\?"),
        ('precision = "int8"', "unknown key 'precision'"),
        ("threads = 0", "threads"),
        ("batch = 0", "batch"),
        ("providers = []", "one or more"),
        ('providers = ["cpu", "cpu"]', "none twice"),
        ('providers = ["cude"]', "Did you mean 'cuda'"),
        ("threads = 1.5", "whole number"),
    ],
)
def test_a_bad_profile_is_refused(tmp_path, text, expected):
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises((InputError, ParameterError), match=expected):
        read_profile(tmp_path / "p.toml")


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(InputError, match="raspberry_pi_5"):
        read_profile("raspbery")


def test_a_folder_keeps_the_profile_it_was_given(tmp_path):
    assert device.device_of(tmp_path) == DEFAULT
    named = device.chosen(tmp_path, "cpu_laptop")
    device.keep_device(tmp_path, named)
    assert device.device_of(tmp_path) == named == device.chosen(tmp_path, None)


def test_the_station_computes_with_the_folder_s_profile(tmp_path, monkeypatch):
    """The profile reaches the encoder: a station whose folder asks for a GPU hands that on."""
    from patevolve.client import station

    seen = []
    monkeypatch.setattr(station, "tools_of", lambda _, profile: seen.append(profile) or 1 / 0)
    monkeypatch.setattr(station, "approved_plan", lambda *_: type("Agreed", (), {"plan": None}))
    device.keep_device(tmp_path, DeviceProfile(threads=5))
    home = type("Home", (), {"policy": None})
    with pytest.raises(ZeroDivisionError):
        station.Station(home=tmp_path, data=tmp_path).prepare(home, "0" * 64)
    assert [profile.threads for profile in seen] == [5]


def test_require_gpu_is_refused_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "providers_here", lambda: ["CPUExecutionProvider"])
    for named in (None, "gpu_workstation", "raspberry_pi_5"):
        with pytest.raises(InputError, match="requires a GPU"):
            device.chosen(tmp_path, named, require_gpu=True)
    monkeypatch.setattr(device, "providers_here", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert device.chosen(tmp_path, "gpu_workstation").require_gpu
    with pytest.raises(InputError, match="names none"):
        device.chosen(tmp_path, "raspberry_pi_5", require_gpu=True)


def test_the_doctor_measures_and_proposes_a_profile_that_can_be_used(tmp_path):
    file = network(tmp_path / "n.onnx")
    words = ["--home", tmp_path, "--profile", "jetson_orin", "--network", file, "--format", "json"]
    done = CliRunner().invoke(deploy_cli.doctor, list(map(str, words)))
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["network"] == "n.onnx"
    assert all(rate > 0 for rate in found["per_second"].values())
    assert found["peak_mib"] > 10
    (tmp_path / "p.toml").write_text(found["proposed_toml"])
    proposed = read_profile(tmp_path / "p.toml")
    assert str(proposed.threads) in found["per_second"]
    if found["provider"] == "CPUExecutionProvider":
        assert proposed.providers == ("cpu",)
        assert "cuda is not to be had" in " ".join(found["warnings"])


def test_the_proposal_takes_the_fewest_threads_that_come_near_the_best(tmp_path, monkeypatch):
    from patevolve.client import doctor_device

    rates = iter([100.0, 180.0, 190.0])
    monkeypatch.setattr(doctor_device, "_rate", lambda *_: next(rates))
    monkeypatch.setattr(doctor_device, "_counts", lambda _: [1, 2, 4])
    found = measure(read_profile("hospital_server"), network(tmp_path / "n.onnx"))
    assert found.proposed.threads == 2
    assert found.per_second == {1: 100.0, 2: 180.0, 4: 190.0}


def test_the_doctor_measures_the_histograms_where_no_network_is_named(tmp_path):
    found = measure(DEFAULT, None, seconds=0.01)
    assert (found.provider, list(found.per_second)) == ("numpy", [1])
    with pytest.raises(InputError, match="built-in histograms run on the CPU"):
        measure(DeviceProfile(require_gpu=True), None)


def test_a_profile_is_named_by_every_command_that_encodes():
    from patevolve.client.cli import local, simulated

    for command in (local, simulated, deploy_cli.start, deploy_cli.answer, deploy_cli.doctor):
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert {"--profile", "--require-gpu"} <= flags


@pytest.mark.parametrize("command", [deploy_cli.start, deploy_cli.answer])
def test_a_folder_that_has_not_joined_is_left_as_it_is(tmp_path, command):
    words = ["--home", str(tmp_path / "site"), "--profile", "cpu_laptop"]
    words += [str(tmp_path / "question"), "--out", str(tmp_path / "out")] if command is deploy_cli.answer else []
    assert CliRunner().invoke(command, words).exit_code != 0
    assert not (tmp_path / "site").exists()


def test_a_profile_has_no_say_in_the_plan():
    """Nothing of a profile is a key of the plan, and no module that charges or draws noise reads one."""
    from patevolve.shared import plan, plan_sections

    for module, name in ((plan, "plan.py"), (plan_sections, "plan_sections.py")):
        text = re.sub(r'"""(?s:.*?)"""', "", (PROFILES.parent / "shared" / name).read_text("utf-8"))
        assert not hasattr(module, "DeviceProfile")
        assert not re.search(r"\b(threads|batch|memory_mib|require_gpu)\s*:", text)
    for folder in ("privacy", "noise", "votes"):
        for path in (PROFILES.parent / "shared" / folder).glob("*.py"):
            assert "encoder.device" not in path.read_text("utf-8")
