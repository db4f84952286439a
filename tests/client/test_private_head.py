"""A site's private head: charged before noise, resumed after a kill, kept at home, and voted with by numpy alone."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytest.importorskip("torch")

from patevolve.client import study
from patevolve.client.approved import install_plan
from patevolve.client.home import open_home
from patevolve.client.policy import FILE, draft
from patevolve.client.private_head import HEADS, StepAccount, export_head, head_of, steps_left, train_head
from patevolve.client.simulate import simulate, system_noise
from patevolve.client.station import Station
from patevolve.client.train_cli import trained
from patevolve.shared.data.records import Records
from patevolve.shared.encoder.export import run
from patevolve.shared.encoder.head import Head, load_head, save_head
from patevolve.shared.errors import BudgetError, DataError, InputError, PolicyError
from patevolve.shared.plan import agree
from patevolve.shared.plan_edit import vary
from patevolve.shared.privacy.head_part import head_part
from patevolve.shared.privacy.ledger import Ledger
from patevolve.shared.randomness import RecordedNoise, stream
from patevolve.shared.runfolder import open_run
from patevolve.shared.tools import tools_of

PLAN = """
format = 1
name = "two digits"
seed = 1
[privacy]
epsilon = 4.0
delta = 1e-4
unit = "record"
[sites]
count = 1
expected_units = 40
[data]
kind = "image"
classes = ["0", "1"]
label = "digit"
height = 28
width = 28
[generator]
kind = "simulator"
[encoder]
dimension = 8
[encoder.head]
share = 0.6
steps = 4
batch = [20, 40]
views = 3
[questions.neighbours]
share = 0.4
candidates = 40
nearest = 4
[evolution]
population = 40
generations = 1
jitter = 0.4
[release]
samples = 100
"""
STEPS = 4


@pytest.fixture(scope="module")
def agreed():
    return agree(PLAN)


@pytest.fixture(scope="module")
def tools(agreed):
    return tools_of(agreed.plan)


def drawn(tools, seed=7, each=20):
    values, classes = [], []
    for cls in (0, 1):
        genomes = tools.generator.draw(stream(seed, "private", cls), cls, each)
        values.append(tools.generator.render(genomes, np.full(each, cls)))
        classes.append(np.full(each, cls))
    return Records(
        values=np.concatenate(values),
        classes=np.concatenate(classes),
        units=np.array([f"u{i}" for i in range(2 * each)]),
    )


@pytest.fixture(scope="module")
def records(tools):
    return drawn(tools)


@pytest.fixture
def home(tmp_path, agreed):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / FILE).write_text(draft("a", agreed, reserve=2.0))
    return open_home(folder)


def recorded(site, question_sha256):
    return RecordedNoise(f"{site} {question_sha256}")


def charges(home):
    with Ledger.open(home.path / "ledger.sqlite") as ledger:
        return list(ledger.charges()), len(ledger.unanswered())


def test_every_step_is_charged_once_locally_and_the_second_call_costs_nothing(agreed, tools, records, home):
    with home.open_ledger() as ledger:
        first = train_head(home, ledger, records, agreed, tools, noise=system_noise)
        again = train_head(home, ledger, records, agreed, tools, noise=system_noise)
        assert steps_left(ledger, agreed) == ()
    found, unanswered = charges(home)
    assert [charge.question for charge in found] == [f"head/{step + 1}" for step in range(STEPS)]
    assert {charge.scope for charge in found} == {"local"}
    assert {charge.part for charge in found} == {"head"}
    assert [charge.event for charge in found] == list(head_part(agreed.plan).charges)
    assert unanswered == 0
    assert first.weights.tobytes() == again.weights.tobytes() == head_of(home, agreed).weights.tobytes()
    assert (home.path / HEADS / f"{agreed.sha256}.npz").stat().st_mode & 0o777 == 0o600
    assert first.about["steps"] == STEPS


def test_a_charge_is_on_the_disk_before_the_sample_and_the_noise_are_drawn(agreed, tools, records, home):
    seen = []

    class Watched:
        def read(self, count):
            with Ledger.open(home.path / "ledger.sqlite") as other:
                seen.append(len(list(other.charges())))
            return os.urandom(count)

    with home.open_ledger() as ledger:
        train_head(home, ledger, records, agreed, tools, noise=lambda *_: Watched())
    assert seen == sorted(seen)
    assert set(seen) == {1, 2, 3, 4}


KILLED = """
    import os, pathlib, signal, sys
    sys.path.insert(0, TESTS)
    import test_private_head as t
    agreed = t.agree(t.PLAN)
    tools = t.tools_of(agreed.plan)
    home = t.open_home(pathlib.Path(HOME))

    class Deadly:
        reads = 0
        def read(self, count):
            Deadly.reads += 1
            if Deadly.reads == AT:
                os.kill(os.getpid(), signal.SIGKILL)
            return os.urandom(count)

    with home.open_ledger() as ledger:
        t.train_head(home, ledger, t.drawn(tools), agreed, tools, noise=lambda *_: Deadly())
"""


def test_a_kill_loses_no_charge_and_gives_no_second_free_draw(agreed, tools, records, home):
    code = textwrap.dedent(KILLED).replace("TESTS", repr(str(pathlib.Path(__file__).parent)))
    code = code.replace("HOME", repr(str(home.path))).replace("AT:", "4:")  # the noise of the second step
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    before, unanswered = charges(home)
    assert unanswered == 1  # charged, and no sum was stored
    with home.open_ledger() as ledger:
        answers = {c.question: ledger.answer(c.key) for c in before}
        train_head(home, ledger, records, agreed, tools, noise=system_noise)
        after = list(ledger.charges())
        for charge in before[:-1]:
            assert ledger.answer(charge.key) == answers[charge.question]
    assert len(after) == STEPS + 1
    assert [c.question for c in after].count(before[-1].question) == 2


@pytest.mark.usefixtures("recorded_noise")
def test_training_resumed_from_stored_sums_ends_where_it_would_have_ended(agreed, tools, records, home, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / FILE).write_text(draft("a", agreed, reserve=2.0))
    twin = open_home(other)
    (other / "secret.key").write_bytes(home.secret)
    twin = open_home(other)

    class StoppedError(Exception):
        pass

    def halt(step):
        if step == 1:
            raise StoppedError

    with home.open_ledger() as ledger, pytest.raises(StoppedError):
        train_head(home, ledger, records, agreed, tools, noise=recorded, tick=halt)
    with home.open_ledger() as ledger:
        resumed = train_head(home, ledger, records, agreed, tools, noise=recorded)
    with twin.open_ledger() as ledger:
        whole = train_head(twin, ledger, records, agreed, tools, noise=recorded)
    assert resumed.weights.tobytes() == whole.weights.tobytes()
    assert len(charges(home)[0]) == STEPS


def test_a_step_is_released_once_for_each_charge(agreed, home):
    part = head_part(agreed.plan)
    with home.open_ledger() as ledger:
        account = StepAccount(home=home, ledger=ledger, agreed=agreed, part=part, noise=system_noise)
        account.sample(0, 10)
        account.release(0, np.zeros(64), 0)
        with pytest.raises(KeyError):
            account.release(0, np.zeros(64), 0)


def test_a_cap_that_does_not_cover_the_head_refuses_before_any_charge(agreed, tools, records, tmp_path):
    (tmp_path / FILE).write_text(draft("a", agreed, reserve=0.3))
    poor = open_home(tmp_path)
    with poor.open_ledger() as ledger, pytest.raises(BudgetError, match="nothing was charged"):
        train_head(poor, ledger, records, agreed, tools, noise=system_noise)
    assert charges(poor)[0] == []


@pytest.mark.parametrize("count", [0, 5])
def test_a_small_site_trains_or_is_refused_in_words(agreed, tools, records, home, count):
    with home.open_ledger() as ledger:
        few = records.pick(np.arange(len(records)) < count)
        if count:
            assert np.isfinite(train_head(home, ledger, few, agreed, tools, noise=system_noise).weights).all()
        else:
            with pytest.raises(DataError):
                train_head(home, ledger, few, agreed, tools, noise=system_noise)
    assert len(charges(home)[0]) == (STEPS if count else 0)


def test_without_a_head_in_the_plan_there_is_nothing_to_train(agreed, tools, records, home):
    plain = vary(agreed, {"encoder.head": None})
    assert head_of(home, plain) is None
    with home.open_ledger() as ledger, pytest.raises(InputError, match="nothing to train"):
        train_head(home, ledger, records, plain, tools, noise=system_noise)


def test_a_site_without_its_head_is_told_the_command(agreed, home):
    with pytest.raises(DataError, match="patevolve client train"):
        head_of(home, agreed)


def test_a_station_takes_part_once_its_head_is_trained(agreed, tools, records, home, tmp_path):
    data = tmp_path / "own.npz"
    np.savez(data, images=records.values, digit=np.array(["0", "1"])[records.classes])
    install_plan(home.path, agreed)
    station = Station(home=home.path, data=data)
    with pytest.raises(DataError, match="patevolve client train"):
        station.prepare(home, agreed.sha256)
    with home.open_ledger() as ledger:
        head = train_head(home, ledger, records, agreed, tools, noise=system_noise)
    assert station.prepare(home, agreed.sha256).head.weights.tobytes() == head.weights.tobytes()


def test_a_missing_extra_is_named(agreed, tools, records, home, monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    with home.open_ledger() as ledger, pytest.raises(InputError, match=r"patevolve\[train\]"):
        train_head(home, ledger, records, agreed, tools, noise=system_noise)
    assert charges(home)[0] == []


def test_a_run_trains_heads_votes_in_their_space_and_keeps_within_the_plan(agreed, records, tmp_path):
    open_run(tmp_path / "run", agreed)
    sites = study.found_sites(tmp_path / "sites", {"a": records}, agreed)
    finished = simulate(agreed, sites, tmp_path / "run")
    with Ledger.open(sites["a"].home.path / "ledger.sqlite") as ledger:
        asked = [charge.question for charge in ledger.charges()]
        assert ledger.spent(agreed.plan.privacy.delta).epsilon <= agreed.plan.privacy.epsilon
    assert asked == [*(f"head/{step + 1}" for step in range(STEPS)), "neighbours/1"]
    simulate(agreed, sites, tmp_path / "run")  # resumed: nothing is trained or asked again
    with Ledger.open(sites["a"].home.path / "ledger.sqlite") as ledger:
        assert len(list(ledger.charges())) == STEPS + 1
    told = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert head_of(sites["a"].home, agreed).weights.tobytes()[:64] not in told
    assert finished.run


VOTING = """
    import pathlib, sys
    BLOCKED = set("torch opacus onnx onnxscript scipy sklearn".split())

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in BLOCKED:
                raise ImportError(f"voting imported {name}")

    sys.meta_path.insert(0, Refuse())
    import numpy as np
    from patevolve.client.home import open_home
    from patevolve.client.private_head import head_of
    from patevolve.client.station import Station
    from patevolve.shared.plan import agree

    agreed = agree(PLAN)
    head = head_of(open_home(pathlib.Path(HOME)), agreed)
    print(head.apply(np.random.default_rng(0).normal(size=(5, 8))).shape)
    assert not BLOCKED & {name.split(".")[0] for name in sys.modules}
"""


def test_voting_with_a_head_imports_neither_torch_nor_opacus(agreed, tools, records, home):
    with home.open_ledger() as ledger:
        train_head(home, ledger, records, agreed, tools, noise=system_noise)
    code = f"PLAN = {PLAN!r}\nHOME = {str(home.path)!r}\n" + textwrap.dedent(VOTING)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(5, 8)"


def test_a_row_is_mapped_alike_alone_and_in_any_company():
    rng = np.random.default_rng(0)
    head, rows = Head(weights=rng.normal(size=(24, 24)), about={}), rng.normal(size=(60, 24))
    whole = head.apply(rows)
    assert (np.linalg.norm(whole, axis=1) < 1).all()
    for n in (1, 2, 3, 5, 17, 31, 59):
        assert head.apply(rows[:n]).tobytes() == whole[:n].tobytes()
    order = rng.permutation(60)
    assert head.apply(rows[order]).tobytes() == whole[order].tobytes()


@pytest.mark.parametrize("damage", ["pickle", "nan", "shape", "text", "type"])
def test_a_damaged_or_hostile_head_is_refused_and_never_executed(tmp_path, damage):
    path = tmp_path / "head.npz"
    weights = {
        "nan": np.full((2, 2), np.nan),
        "shape": np.zeros(4),
        "type": np.zeros((2, 2), np.int64),
        "pickle": np.array([[print]], dtype=object),
    }.get(damage, np.zeros((2, 2)))
    if damage == "text":
        path.write_text("no head")
    else:
        np.savez(path, weights=weights, about=np.array("{}"))
    with pytest.raises(DataError):
        load_head(path)


def test_a_head_that_is_not_finite_is_never_written(tmp_path):
    with pytest.raises(DataError, match="finite"):
        save_head(tmp_path / "head.npz", Head(weights=np.full((2, 2), np.inf), about={}))
    assert list(tmp_path.iterdir()) == []


def test_the_command_trains_shows_the_cost_and_refuses_what_was_not_approved(agreed, records, home, tmp_path):
    data = tmp_path / "own.npz"
    np.savez(data, images=records.values, digit=np.array(["0", "1"])[records.classes])
    found = trained(agreed, data, home.path, "cpu", quiet=True)
    assert found["steps"] == STEPS
    assert found["device"] == "cpu"
    assert 0 < found["epsilon_of_heads"] < agreed.plan.privacy.epsilon
    json.dumps(found)
    with pytest.raises(PolicyError):
        trained(vary(agreed, {"seed": 2}), data, home.path, "cpu", quiet=True)


def test_the_exported_head_is_the_head_and_its_card_names_plan_and_cost(agreed, tools, home, tmp_path):
    head = Head(weights=np.random.default_rng(0).normal(size=(8, 8)), about={"site": "a", "steps": STEPS})
    digest = export_head(tmp_path / "head.onnx", head, agreed, tools)
    model = (tmp_path / "head.onnx").read_bytes()
    rows = np.random.default_rng(1).normal(size=(5, 8))
    assert np.abs(run(model, rows.astype(np.float32)) - head.apply(rows)).max() < 1e-4
    assert (tmp_path / "head.onnx").stat().st_mode & 0o777 == 0o600
    card = (tmp_path / "head.md").read_text(encoding="utf-8")
    for words in (digest, agreed.sha256, "ε of the training alone | 3 at δ = 0.0001", "not to be given away"):
        assert words in card


def test_an_empty_temperature_is_searched_on_public_data(agreed, tools, records, home):
    searched = vary(agreed, {"encoder.head.temperature": [], "encoder.head.steps": 2, "encoder.head.batch": []})
    (home.path / FILE).write_text(draft("a", searched))
    opened = open_home(home.path)
    with opened.open_ledger() as ledger:
        assert train_head(opened, ledger, records, searched, tools, noise=system_noise).about["steps"] == 2
