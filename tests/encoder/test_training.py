"""DP-SGD training: charged before noise, bounded by unit, resumed by replay; and the faults that users met in peers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from patevolve.shared.encoder import train as training  # noqa: E402
from patevolve.shared.encoder.contrastive import Loss, spread  # noqa: E402
from patevolve.shared.encoder.dpsgd import GhostClipping, PerUnitGradients, clipped_sum, flat  # noqa: E402
from patevolve.shared.encoder.train import Bank, Settings, Stretch, device_of, train, units_of  # noqa: E402
from patevolve.shared.errors import DataError, InputError, ParameterError  # noqa: E402

D, K = 12, 5


class Exact:
    """An account without noise: every unit enters every step; it notes the order of what it is asked."""

    def __init__(self, *, take=None):
        self.asked, self.take, self.kept = [], take, {}

    def stored(self, step):
        return self.kept.get(step)

    def sample(self, step, units):
        self.asked.append(("charge", step))
        return np.ones(units, bool) if self.take is None else self.take(units)

    def release(self, step, total, units):
        self.asked.append(("release", step, units))
        self.kept[step] = total
        return total


def settings(**changes) -> Settings:
    values = {"stretches": (Stretch(steps=3, batch=20, temperature=0.15),), "supervised": 0.5, "queue": 40, "seed": 1}
    return Settings(**(values | changes))


def linear(seed=0, width=K):
    layer = torch.nn.Linear(D, width, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.random.default_rng(seed).normal(size=(width, D)) / D**0.5))
    return layer


def objective(small, network, **changes):
    units, bank = small
    return training.objective_at(network, units, bank, settings=settings(**changes), step=0, device="cpu")


def brute_force(network, own, units, clip):
    """Return the sum of clipped gradients, one backward pass per unit."""
    total = np.zeros(len(flat(network)))
    for unit in range(units):
        loss = own.losses(network, *own.batch(np.array([unit])))
        gradients = torch.autograd.grad(loss.sum(), list(network.parameters()))
        rows = np.concatenate([gradient.numpy().ravel() for gradient in gradients])
        total += rows * min(1.0, clip / np.linalg.norm(rows))
    return total


@pytest.mark.parametrize("clip", [1e-3, 0.3, 1e3])
@pytest.mark.parametrize("clipper", [GhostClipping, PerUnitGradients])
def test_the_clipped_sum_is_that_of_brute_force(small, clipper, clip):
    network = linear()
    own = objective(small, network)
    expected = brute_force(network, own, len(small[0]), clip)
    made = clipper(network, clip)
    assert made.sums(own, np.arange(len(small[0]))) == pytest.approx(expected, abs=1e-12 * clip)
    made.close()


def test_a_unit_counts_once_however_many_records_it_has():
    rng = np.random.default_rng(0)
    views, classes = rng.normal(size=(2, 5, D)), np.zeros(5, int)
    same = np.repeat(views[:, :1], 5, axis=1)
    bank = Bank(inputs=rng.normal(size=(9, D)), classes=np.arange(9) % 3)
    sums = []
    for data, names in ((same, ["a"] * 5), (same[:, :1], ["a"])):
        units = units_of(data, classes[: data.shape[1]], np.array(names), 3)
        network = linear()
        own = training.objective_at(network, units, bank, settings=settings(), step=0, device="cpu")
        sums.append(PerUnitGradients(network, 1e6).sums(own, np.arange(1)))
    assert sums[0] == pytest.approx(sums[1], rel=1e-9)


@pytest.mark.parametrize("physical", [1, 3, 7, 100])
def test_physical_batches_change_neither_the_sum_nor_the_number_of_charges(small, physical):
    whole, parts = Exact(), Exact()
    expected = train(linear(), *small, settings(physical=1000), whole)
    found = train(linear(), *small, settings(physical=physical), parts)
    assert found.vector == pytest.approx(expected.vector, abs=1e-12)
    assert [entry for entry in parts.asked if entry[0] == "charge"] == [("charge", 0), ("charge", 1), ("charge", 2)]


def test_out_of_memory_halves_the_physical_batch_and_the_step_stays_one(small):
    network = linear()
    own, made, sizes = objective(small, network), GhostClipping(network, 0.1), []

    class Tight:
        def sums(self, own, chosen):
            sizes.append(len(chosen))
            if len(chosen) > 5:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return made.sums(own, chosen)

    found = clipped_sum(Tight(), own, np.arange(20), K * D, 16)
    assert sizes == [16, 8, 4, 4, 4, 4, 4]
    assert found == pytest.approx(made.sums(own, np.arange(20)), abs=1e-12)
    made.close()


def test_memory_that_runs_out_between_two_passes_leaves_nothing_behind(small):
    network = linear()
    own, made = objective(small, network), GhostClipping(network, 0.1)
    expected = made.sums(own, np.arange(20))

    class Late:
        failed = False

        def batch(self, chosen):
            return own.batch(chosen)

        def losses(self, applied, *batch):
            losses = own.losses(applied, *batch)
            if not self.failed:
                self.failed = True
                raise RuntimeError("CUDA out of memory")
            return losses

    assert clipped_sum(made, Late(), np.arange(20), K * D, 100) == pytest.approx(expected, abs=1e-12)
    made.close()


def test_other_errors_are_not_taken_for_a_lack_of_memory(small):
    class Broken:
        def sums(self, *_):
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        clipped_sum(Broken(), None, np.arange(20), 1, 16)


def test_each_step_is_charged_before_its_sum_is_released(small):
    account = Exact()
    train(linear(), *small, settings(), account)
    assert account.asked == [(what, step, *rest) for step in range(3) for what, *rest in (("charge",), ("release", 20))]


def test_empty_samples_are_legal_steps(small):
    account = Exact(take=lambda units: np.zeros(units, bool))
    done = train(linear(), *small, settings(), account)
    assert done.steps == 3
    assert [entry for entry in account.asked if entry[0] == "release"] == [("release", step, 0) for step in range(3)]
    assert done.vector.tobytes() == flat(linear()).tobytes()


def test_stored_steps_are_replayed_without_a_charge(small):
    first = Exact()
    whole = train(linear(), *small, settings(), first)
    resumed = Exact()
    resumed.kept = {0: first.kept[0], 1: first.kept[1]}
    again = train(linear(), *small, settings(), resumed)
    assert again.vector.tobytes() == whole.vector.tobytes()
    assert [entry[1] for entry in resumed.asked] == [2, 2]


def test_a_public_collapse_stops_early_and_keeps_the_parameters_before_it(small):
    account, network = Exact(), linear()
    account.kept = {0: np.zeros(K * D), 1: 1e3 * np.ones(K * D)}  # step 1 maps everything to one line
    same = Bank(inputs=np.abs(small[1].inputs), classes=small[1].classes)
    done = train(network, small[0], same, settings(), account)
    assert done.steps == 1
    assert account.asked == []
    assert flat(network).tobytes() == flat(linear()).tobytes()
    assert done.spreads[-1] < training.COLLAPSED * done.spreads[0]


def test_spread_is_0_for_one_direction_and_near_1_for_all():
    assert spread(torch.ones(50, 3)) < 0.01
    assert spread(torch.from_numpy(np.random.default_rng(0).normal(size=(5000, 3)))) > 0.99


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_a_value_that_is_not_finite_is_refused_before_any_charge(bad):
    views = np.zeros((2, 4, D))
    views[1, 2, 3] = bad
    with pytest.raises(DataError, match="finite"):
        units_of(views, np.zeros(4, int), np.array(list("abcd")), 3)


def test_long_features_are_scaled_down_each_by_itself():
    rng = np.random.default_rng(0)
    views = rng.normal(size=(2, 5, D)) * np.array([1e-3, 1.0, 10.0, 1e3, 1e5])[:, None]
    names = np.array(list("abcde"))
    made = units_of(views, np.zeros(5, int), names, 3).views
    assert np.linalg.norm(made, axis=-1).max() <= training.REACH * (1 + 1e-12)
    assert made[:, :2].tobytes() == views[:, :2].tobytes()
    for row in range(5):
        alone = units_of(views[:, row : row + 1], np.zeros(1, int), names[:1], 3).views
        assert alone.tobytes() == made[:, row : row + 1].tobytes()


def test_ghost_norms_hold_where_a_unit_s_two_views_nearly_cancel():
    """Two long views, almost one: the gradient is a small difference of large terms, and its norm drowns first."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(1, 40, D))
    views = 1e5 * np.concatenate([base, base + 1e-7 * rng.normal(size=base.shape)])
    units = units_of(views, np.zeros(40, int), np.arange(40).astype(str), 3)
    bank = Bank(inputs=rng.normal(size=(60, D)), classes=np.arange(60) % 3)
    network = torch.nn.Linear(D, K, bias=False).double()
    with torch.no_grad():
        network.weight.copy_(torch.from_numpy(1e-3 * rng.normal(size=(K, D))))  # where the loss is steepest
    own = training.objective_at(network, units, bank, settings=settings(supervised=0.0), step=0, device="cpu")
    made = GhostClipping(network, training.LEAST_CLIP)
    for unit in range(40):
        assert np.linalg.norm(made.sums(own, np.array([unit]))) <= training.LEAST_CLIP * (1 + 2.0**-10)
    made.close()


@pytest.mark.parametrize("labels", [[0, 1, 7], [-1, 0, 1], [0.0, 1.0, 2.0], ["a", "b", "c"]])
def test_labels_outside_the_plan_are_refused_before_any_charge(labels):
    with pytest.raises(DataError, match="labels"):
        units_of(np.zeros((2, 3, D)), np.array(labels), np.array(list("abc")), 3)


def test_no_unit_is_refused_in_words_before_any_charge(small):
    account = Exact()
    with pytest.raises(DataError, match="no unit"):
        train(
            linear(),
            units_of(np.zeros((2, 0, D)), np.zeros(0, int), np.zeros(0, "U1"), 3),
            small[1],
            settings(),
            account,
        )
    assert account.asked == []


def test_five_records_and_a_batch_of_32_train(small):
    five = units_of(np.random.default_rng(0).normal(size=(2, 5, D)), np.zeros(5, int), np.array(list("abcde")), 3)
    long = settings(stretches=(Stretch(steps=3, batch=32, temperature=0.15),))
    assert train(linear(), five, small[1], long, Exact()).steps == 3


def test_parameters_that_are_not_finite_are_never_returned(small):
    account = Exact()
    account.kept = {0: np.full(K * D, np.nan)}
    with pytest.raises(InputError, match="not finite"):
        train(linear(), *small, settings(), account)


def test_batch_and_temperature_follow_their_stretches(small):
    stretches = (Stretch(steps=1, batch=10, temperature=0.5), Stretch(steps=2, batch=20, temperature=0.1))
    assert [s.temperature for s in settings(stretches=stretches).steps] == [0.5, 0.1, 0.1]
    one = Exact()
    one.kept = {0: np.ones(K * D)}
    moved = train(linear(), *small, settings(stretches=stretches[:1], rate=1.0), one)
    assert flat(linear()) - moved.vector == pytest.approx(np.full(K * D, 0.1))


@pytest.mark.parametrize("value", [np.nan, 0.0, -1.0, 0.01, 11.0, np.inf, True])
def test_a_temperature_outside_its_domain_is_refused(value):
    with pytest.raises(ParameterError):
        Loss(temperature=value)


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(D, D, bias=False)

    def forward(self, rows):
        return self.layer(self.layer(rows))


class Unused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.head = torch.nn.Linear(D, K, bias=False), torch.nn.Linear(D, K, bias=False)

    def forward(self, rows):
        return self.used(rows)


def tied():
    first, second = torch.nn.Linear(D, D, bias=False), torch.nn.Linear(D, D, bias=False)
    second.weight = first.weight
    return torch.nn.Sequential(first, second)


def clipped(network, small):
    return GhostClipping(network, 1.0).sums(objective(small, network), np.arange(4))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Twice, "'layer' ran twice"),
        (Unused, "'head.weight' got no gradient"),
        (tied, "'0.weight' and '1.weight' are one tensor"),
        (lambda: torch.nn.Sequential(torch.nn.Linear(D, K), torch.nn.BatchNorm1d(K)), "'1' is BatchNorm1d.*GroupNorm"),
        (lambda: torch.nn.Sequential(torch.nn.InstanceNorm1d(K, track_running_stats=True)), "running statistics"),
    ],
)
def test_what_escapes_clipping_is_refused_by_name(small, make, words):
    network = make().double()
    with pytest.raises(InputError, match=words):
        clipped(network, small)


def test_batch_normalisation_is_refused_in_evaluation_too(small):
    network = torch.nn.Sequential(torch.nn.Linear(D, K), torch.nn.BatchNorm1d(K)).eval()
    for clipper in (GhostClipping, PerUnitGradients):
        with pytest.raises(InputError, match="BatchNorm1d"):
            clipper(network, 1.0)


@pytest.mark.parametrize("make", [Twice, Unused])
def test_per_unit_gradients_take_what_ghost_norms_refuse(small, make):
    network = make().double()
    own = objective(small, network)
    total = np.zeros(len(flat(network)))
    for unit in range(20):
        loss = own.losses(network, *own.batch(np.array([unit]))).sum()
        parts = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
        rows = np.concatenate(
            [
                np.zeros(p.numel()) if g is None else g.numpy().ravel()
                for g, p in zip(parts, network.parameters(), strict=True)
            ]
        )
        total += rows * min(1.0, 0.05 / np.linalg.norm(rows))
    assert PerUnitGradients(network, 0.05).sums(own, np.arange(20)) == pytest.approx(total, abs=1e-12)


def test_frozen_layers_stay_as_they_are(small):
    network = torch.nn.Sequential(torch.nn.Linear(D, D, bias=False), torch.nn.Linear(D, K, bias=False)).double()
    network[0].weight.requires_grad_(requires_grad=False)
    before = network[0].weight.numpy().copy()
    done = train(network, *small, settings(), Exact())
    assert network[0].weight.numpy().tobytes() == before.tobytes()
    assert len(done.vector) == D * K


def test_a_whole_encoder_trains_by_per_unit_gradients():
    rng = np.random.default_rng(0)
    torch.manual_seed(0)  # of the first weights; the rate is low enough that no first weights collapse in three steps
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, 2, 1),
        torch.nn.GroupNorm(2, 8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(128, K),
    ).double()
    units = units_of(rng.random((2, 6, 1, 8, 8)), rng.integers(0, 3, 6), np.array(list("aabcde")), 3)
    bank = Bank(inputs=rng.random((12, 1, 8, 8)), classes=np.arange(12) % 3)
    before = flat(network)
    done = train(network, units, bank, settings(ghost=False, rate=0.02), Exact())
    assert done.steps == 3
    assert np.linalg.norm(done.vector - before) > 0


def test_a_trained_network_is_plain_again(small):
    network = linear()
    train(network, *small, settings(), Exact())
    assert list(network.state_dict()) == ["weight"]
    assert not network._forward_hooks
    assert not network._backward_hooks


def test_training_learns():
    """Noiseless supervised steps bring records nearer to their class's prototype than to others."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, D))
    classes = np.arange(60) % 3
    records = units_of(
        0.7 * rng.normal(size=(2, 60, D)) + centres[classes], classes, np.array([str(i) for i in range(60)]), 3
    )
    public = Bank(inputs=0.7 * rng.normal(size=(90, D)) + centres[np.arange(90) % 3], classes=np.arange(90) % 3)

    def loss(network):
        own = training.objective_at(network, records, public, settings=settings(supervised=1.0), step=0, device="cpu")
        return float(own.losses(network, *own.batch(np.arange(60))).detach().mean())

    network = linear()
    before = loss(network)
    many = settings(supervised=1.0, stretches=(Stretch(steps=30, batch=60, temperature=0.15),))
    train(network, records, public, many, Exact())
    assert loss(network) < 0.7 * before


def test_a_gpu_is_taken_where_there_is_one_and_only_then(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of() == device_of("cpu") == "cpu"
    with pytest.raises(InputError, match="no GPU"):
        device_of("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of() == device_of("cuda") == "cuda"
    assert device_of("cpu") == "cpu"
    with pytest.raises(InputError, match="auto, cpu or cuda"):
        device_of("tpu")
