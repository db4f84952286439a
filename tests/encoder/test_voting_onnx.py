"""An edge device whose plan names a network votes with numpy and onnxruntime alone, and alike on any profile."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from patevolve.client.demo import plan_of
from patevolve.shared import assets, pools, tools
from patevolve.shared.plan_edit import vary
from patevolve.shared.randomness import RECORDED_NOISE_VARIABLE

onnx = pytest.importorskip("onnx")

VOTE = """
    import pathlib, sys

    BLOCKED = set("scipy sklearn matplotlib PIL pandas pyarrow jinja2 dp_accounting mlxtend onnx".split())
    BLOCKED |= set("torch torchvision opacus flwr tqdm click".split())

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in BLOCKED:
                raise ImportError(f"the voting path imported {name}")

    sys.meta_path.insert(0, Refuse())

    import json
    import numpy as np
    from patevolve.client.device import device_of, keep_device
    from patevolve.client.guard import Guard
    from patevolve.client.home import open_home
    from patevolve.client.institution import Institution, render_once
    from patevolve.client.policy import draft
    from patevolve.client.simulate import index_of, load_records
    from patevolve.shared.encoder.device import DeviceProfile
    from patevolve.shared.messages import Question, decode_answer, encode_question
    from patevolve.shared.plan import read_plan
    from patevolve.shared.randomness import RecordedNoise
    from patevolve.shared.schedule import schedule
    from patevolve.shared.tools import tools_of

    folder = pathlib.Path(sys.argv[1])
    agreed = read_plan(folder / "plan.toml")
    site = folder / "site"
    site.mkdir()
    (site / "policy.toml").write_text(draft("a", agreed, reserve=3.0))
    home = open_home(site, site="a")
    records = load_records(folder / "data.npz", agreed.plan)["a"]

    def answered(institution, ask, run):
        classes = np.arange(agreed.plan.questions.neighbours.candidates) % len(agreed.plan.data.classes)
        drawn = [institution.generator.draw(np.random.default_rng(i), c, 1)[0] for i, c in enumerate(classes)]
        arrays = {"genomes": np.array(drawn), "classes": classes} if ask.kind == "neighbours" else {}
        question = Question(kind=ask.kind, name=ask.name, plan=agreed.sha256, run=run, arrays=arrays)
        return decode_answer(institution.handle(encode_question(question))).values.tolist()

    said = []
    for threads in (1, 2):
        keep_device(site, DeviceProfile(threads=threads, batch=5 * threads))
        tools = tools_of(agreed.plan, device_of(site))
        asks = schedule(agreed.plan, tools.encoder.embedding_size)
        index = index_of(home, records, agreed.plan, tools)
        with home.open_ledger() as ledger:
            noise = lambda *_: RecordedNoise("the same each time")
            institution = Institution(
                agreed=agreed, asks=asks, cohort="c" * 64, index=index,
                encoder=tools.encoder, generator=tools.generator, teach=lambda features: None,
                rendered=render_once(tools.generator, tools.encoder),
                guard=Guard(policy=home.policy, ledger=ledger, identity=home.identity, noise=noise),
            )
            said.append([answered(institution, ask, f"run {threads}") for ask in asks])
    assert not BLOCKED & {name.split(".")[0] for name in sys.modules}
    assert "onnxruntime" in sys.modules
    assert tools_of(agreed.plan, device_of(site)).encoder.describe.__self__.device.threads == 2
    print(json.dumps(said))
"""


def network(path):
    helper, kind, rng = onnx.helper, onnx.TensorProto.FLOAT, np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(24, 3, 3, 3)).astype(np.float32),
        "m": rng.normal(size=(24, 64)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["map"], strides=[2, 2]),
        helper.make_node("Relu", ["map"], ["active"]),
        helper.make_node("ReduceMean", ["active"], ["flat"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["flat", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", kind, ["n", 3, 32, 32])],
        [helper.make_tensor_value_info("y", kind, ["n", 64])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())


def test_a_site_with_a_network_votes_without_torch_and_alike_on_one_and_two_threads(tmp_path, monkeypatch):
    monkeypatch.setenv(assets.FOLDERS, str(tmp_path / "assets"))
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (60, 28, 28)).astype(np.uint8)
    (tmp_path / "pool.npz").write_bytes(pools.build(images))
    network(tmp_path / "n.onnx")
    changes = {
        "generator.kind": "pool",
        "generator.asset": assets.add(tmp_path / "pool.npz").stem,
        "encoder.kind": "onnx",
        "encoder.asset": assets.add(tmp_path / "n.onnx").stem,
        "encoder.dimension": 16,
        "sites.count": 1,
        "privacy.trust": "each-site",
        "privacy.dropouts": 0,
    }
    agreed = vary(plan_of("digits", 4.0, 1), changes)
    (tmp_path / "fit.npz").write_bytes(tools.fitted_file(agreed.plan))
    agreed = vary(agreed, {"encoder.fitted": assets.add(tmp_path / "fit.npz").stem})
    (tmp_path / "plan.toml").write_text(agreed.text)
    labels = rng.integers(0, 10, 40).astype(str)
    np.savez(tmp_path / "data.npz", images=images[:40], digit=labels, site=np.full(40, "a"))
    command = [sys.executable, "-c", textwrap.dedent(VOTE), str(tmp_path)]
    monkeypatch.setenv(RECORDED_NOISE_VARIABLE, "1")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)
    assert one == two
    assert len(one) >= 3
    assert all(any(values) for values in one)
