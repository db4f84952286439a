"""The table of layers (docs/decisions/0001-layers.md): files import downwards only; edge devices need numpy alone."""

import ast
import graphlib
import pathlib
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[1]

LAYERS = {
    0: "errors checks",
    1: "assets plan plan_edit plan_head plan_sections schema messages envelopes sealed wire randomness tally tomlfile "
    "files processes protocols products luminance contacts contrast texts",
    2: "",
    3: "schedule institutions inquiry runfolder learning steps labels rounds tools finish described pate_curve "
    "participation islands pools copies explain verify student_export screen assets_cli encoder_cli cli",
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names.split()}
LOWER_ROOMS = {"privacy"}  # rooms of layer 1
ROOMS = {
    "noise",
    "secagg",
    "data",
    "generators",
    "encoder",
    "votes",
    "evolution",
    "release",
    "students",
    "audit",
    "report",
}

# Third-party libraries that a file may import; "*" stands for every file. Values: at module level, or within functions.
ANYWHERE = {"numpy"}
AT_TOP = {
    "client/app.py": {"flwr"},
    "client/cli.py": {"click", "tqdm"},
    "client/deploy_cli.py": {"click"},
    "client/audit_cli.py": {"click", "tqdm"},
    "client/device_cli.py": {"click"},
    "client/inspect_cli.py": {"click", "tqdm"},
    "client/joining.py": {"cryptography"},
    "client/train_cli.py": {"click", "tqdm"},
    "server/app.py": {"flwr"},
    "server/airgap_cli.py": {"click"},
    "server/cli.py": {"click", "tqdm"},
    "server/dashboard/cli.py": {"click"},
    "server/pki.py": {"cryptography"},
    "shared/assets_cli.py": {"click"},
    "shared/cli.py": {"click"},
    "shared/encoder_cli.py": {"click"},
    "shared/screen.py": {"click"},
    "shared/privacy/signing.py": {"cryptography"},
    "shared/secagg/keys.py": {"cryptography"},
    "shared/secagg/masks.py": {"cryptography"},
    "shared/secagg/once.py": {"cryptography"},
}
TRAINING = ("shared/encoder/", "shared/students/", "shared/generators/", "shared/audit/")
TORCH = {"torch", "opacus", "torchvision", "diffusers"}
FLOWER = {
    "client/app.py",
    "client/cluster.py",
    "client/executor.py",
    "server/app.py",
    "server/flower_institutions.py",
    "server/handover.py",
}


def sources():
    return sorted(
        path.relative_to(ROOT) for folder in ("client", "server", "shared") for path in (ROOT / folder).rglob("*.py")
    )


def imports(path):
    """Yield (module, at module level) for every import; one under TYPE_CHECKING loads nothing but is still a tie."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    package = ["patevolve", *path.parts[:-1]]
    lazy = set()
    for node in ast.walk(tree):
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or typing:
            lazy.update(id(inner) for inner in ast.walk(node))
    for node in ast.walk(tree):
        top = id(node) not in lazy
        if isinstance(node, ast.Import):
            yield from ((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            for alias in node.names:
                inner = ROOT.joinpath(*module.split(".")[1:], alias.name) if module.startswith("patevolve") else None
                deeper = inner is not None and (inner.with_suffix(".py").exists() or inner.is_dir())
                yield (f"{module}.{alias.name}" if deeper else module), top


def place(module):
    """Return (layer, room) of a module of this project; the room matters in layers 2 and 4."""
    _, part, *rest = module.split(".")
    if part in ("client", "server"):
        return 4, part
    name = rest[0]
    if name in ROOMS:
        return 2, name
    if name in LOWER_ROOMS:
        return 1, name
    assert name in LAYER_OF, f"{module} has no place in LAYERS at the top of this file: give it one"
    return LAYER_OF[name], ""


def module_of(path):
    parts = [*path.parts[:-1]] if path.name == "__init__.py" else [*path.parts[:-1], path.stem]
    return ".".join(["patevolve", *parts])


def violations(ties):
    """Return the ties (module, imported module) that point upwards, sideways between rooms, or across sides."""
    wrong = []
    for source, target in ties:
        (here, room), (there, other) = place(source), place(target)
        sideways = here == there and here in (2, 4) and room != other
        if there > here or sideways:
            wrong.append(f"{source} (layer {here} {room}) imports {target} (layer {there} {other})")
    return wrong


def all_ties():
    packages = {"patevolve", "patevolve.shared", "patevolve.client", "patevolve.server"}
    for path in sources():
        if path.name == "__init__.py" and len(path.parts) == 2:
            continue
        for module, _ in imports(path):
            if module.split(".")[0] == "patevolve" and module not in packages:
                yield module_of(path), module


def test_every_file_has_a_place():
    unknown = [
        str(path)
        for path in sources()
        if path.parts[0] == "shared" and len(path.parts) == 2 and path.stem not in {*LAYER_OF, "__init__"}
    ]
    folders = {path.parts[1] for path in sources() if path.parts[0] == "shared" and len(path.parts) == 3}
    assert not unknown
    assert folders <= ROOMS | LOWER_ROOMS


def test_imports_point_downwards_only():
    assert violations(all_ties()) == []


@pytest.mark.parametrize(
    "tie",
    [
        ("patevolve.shared.errors", "patevolve.shared.plan"),
        ("patevolve.shared.privacy.ledger", "patevolve.shared.noise.mechanism"),
        ("patevolve.shared.votes.ballots", "patevolve.shared.data.records"),
        ("patevolve.shared.rounds", "patevolve.client.policy"),
        ("patevolve.client.guard", "patevolve.server.run"),
    ],
)
def test_planted_violations_are_seen(tie):
    assert violations([tie])


def test_a_clean_tie_passes():
    assert violations([("patevolve.shared.votes.ballots", "patevolve.shared.tally")]) == []


def test_there_is_no_cycle():
    graph = {}
    for source, target in all_ties():
        graph.setdefault(source, set()).add(target)
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def third_party(path):
    for module, top in imports(path):
        name = module.split(".")[0]
        if name != "patevolve" and name not in sys.stdlib_module_names:
            yield name, top


def test_only_numpy_is_imported_with_a_module():
    wrong = {
        (str(path), name)
        for path in sources()
        for name, top in third_party(path)
        if top and name not in ANYWHERE | AT_TOP.get(str(path), set())
    }
    assert not wrong


def test_flower_and_torch_stay_in_their_rooms():
    for path in sources():
        names = {name for name, _ in third_party(path)}
        assert "flwr" not in names or str(path) in FLOWER
        assert not names & TORCH or str(path).startswith(TRAINING)


VOTING = """
    import os, pathlib, sys, tempfile

    BLOCKED = set("scipy sklearn matplotlib PIL pandas pyarrow jinja2 dp_accounting".split())
    BLOCKED |= set("torch opacus flwr tqdm click".split())

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in BLOCKED:
                raise ImportError(f"the voting path imported {name}")

    sys.meta_path.insert(0, Refuse())

    import numpy as np
    from patevolve.client.guard import Guard
    from patevolve.client.home import open_home
    from patevolve.client.institution import Institution, render_once
    from patevolve.client.island import evolve
    from patevolve.client.policy import check_plan, draft
    from patevolve.client.private_index import build_index
    from patevolve.shared.data.load import Layout, load_table
    from patevolve.shared.messages import Question, decode_answer, decode_migrants, encode_question
    from patevolve.shared.plan import agree
    from patevolve.shared.randomness import SystemNoise
    from patevolve.shared.schedule import schedule
    from patevolve.shared.tools import tools_of

    agreed = agree(PLAN)
    tools = tools_of(agreed.plan)
    asks = schedule(agreed.plan, tools.encoder.embedding_size)
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "policy.toml").write_text(draft("a", agreed))
    (folder / "data.csv").write_text("y,id,size\\n" + "".join(f"{'ab'[i % 2]},{i},{i % 3}\\n" for i in range(30)))
    home = open_home(folder, site="a")
    check_plan(home.policy, agreed)
    data = agreed.plan.data
    layout = Layout(classes=data.classes, label=data.label, unit=data.unit)
    records = load_table(folder / "data.csv", data.columns, layout)[""]
    index = build_index(records, agreed.plan, tools.encoder, home.secret)
    candidates = {"genomes": np.zeros((4, 1)), "classes": np.array([0, 0, 1, 1])}
    with home.open_ledger() as ledger:
        site = Institution(
            agreed=agreed, asks=asks, cohort="c" * 64, index=index, encoder=tools.encoder, generator=tools.generator,
            teach=lambda features: None, rendered=render_once(tools.generator, tools.encoder),
            guard=Guard(policy=home.policy, ledger=ledger, identity=home.identity, noise=lambda *_: SystemNoise()),
        )
        for ask in asks:
            arrays = candidates if ask.kind in {"neighbours", "islands"} else {}
            if ask.kind == "islands":
                arrays = {**arrays, "model": np.full((2, tools.encoder.dimension), 1 / 3)}
            question = Question(kind=ask.kind, name=ask.name, plan=agreed.sha256, run="r", arrays=arrays)
            if ask.kind == "islands":
                print(ask.name, decode_migrants(evolve(site, encode_question(question))).genomes.size)
                continue
            answer = decode_answer(site.handle(encode_question(question)))
            print(ask.name, answer.values.size)
    assert not BLOCKED & {name.split(".")[0] for name in sys.modules}
"""
PLAN = """
format = 1
name = "tiny"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-5
[sites]
count = 1
expected_units = 30
[data]
kind = "table"
classes = ["a", "b"]
label = "y"
unit = "id"
[[data.columns]]
name = "size"
kind = "numeric"
edges = [0, 1, 2, 3]
[generator]
kind = "tabular"
[questions.counts]
share = 0.2
[questions.prototypes]
share = 0.4
[questions.neighbours]
share = 0.3
candidates = 4
nearest = 1
[islands]
migrants = 1
candidates = 4
share = 0.1
nearest = 1
[release]
samples = 10
"""


def test_an_edge_device_answers_with_numpy_alone():
    code = f"PLAN = {PLAN!r}\n" + textwrap.dedent(VOTING)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["counts", "2", "prototypes", "6", "neighbours/1", "4", "islands/1", "2"]
