"""PATE teachers: disjoint shards by unit, one changed unit changes one teacher."""

import numpy as np
import pytest

from patevolve.client.private_index import Voters
from patevolve.client.teachers import ABSTAIN, check_shards, teach
from patevolve.shared.data.load import _by_content
from patevolve.shared.data.records import Records
from patevolve.shared.data.shard import teacher_of
from patevolve.shared.errors import DataError
from patevolve.shared.votes.ballots import Electorate

SECRET, TEACHERS, CLASSES = b"s" * 32, 4, 3
QUERIES = np.random.default_rng(9).normal(size=(30, 5))


def voters(units, classes=None, seed=0):
    rng = np.random.default_rng(seed)
    units = np.array(units)
    classes = rng.integers(0, CLASSES, len(units)) if classes is None else np.array(classes)
    features = rng.normal(size=(len(units), 5)) + classes[:, None]
    records = Records(values=np.zeros((len(units), 1), np.int64), classes=classes, units=units)
    return Voters(records=records, features=features, electorate=Electorate(units))


def without(found, unit):
    keep = found.records.units != unit
    return Voters(
        records=found.records.pick(keep),
        features=found.features[keep],
        electorate=Electorate(found.records.units[keep]),
    )


def votes(found, teachers=TEACHERS):
    return teach(found, SECRET, teachers)(QUERIES)


UNITS = [f"u{i // 2}" for i in range(80)]


def test_votes_are_classes_of_the_right_shape_and_repeat():
    ask = teach(voters(UNITS), SECRET, TEACHERS)
    first = ask(QUERIES)
    assert first.shape == (TEACHERS, 30)
    assert first.dtype == np.int64
    assert set(np.unique(first)) <= set(range(CLASSES))
    assert np.array_equal(ask(QUERIES), first)
    assert np.array_equal(votes(voters(UNITS)), first)


def test_teachers_have_learnt_something():
    found = votes(voters(UNITS))
    truth = np.clip(np.rint(QUERIES.mean(axis=1)), 0, 2)
    assert (found == truth).mean() > 0.45  # chance is 0.33


def test_removing_a_unit_changes_its_own_teacher_alone():
    """The unit's records, both of them, sat with one teacher; every other teacher gives the same votes.

    Over the units some votes do change, so the test can fail.
    """
    whole = voters(UNITS)
    before, moved = votes(whole), False
    for unit in ("u0", "u7", "u13", "u22", "u39"):
        changed = (before != votes(without(whole, unit))).any(axis=1)
        own = int(teacher_of(SECRET, np.array([unit]), TEACHERS)[0])
        assert not changed[np.arange(TEACHERS) != own].any()
        moved |= bool(changed[own])
    assert moved


def _equal_records():
    """Return 200 records of 40 kinds, each its own unit, named by content as the loader names them."""
    rng = np.random.default_rng(4)
    kinds, rows = rng.normal(size=(40, 5)), rng.integers(0, 40, 200)
    return Records(values=np.rint(kinds * 1000)[rows].astype(np.int64), classes=rows % CLASSES, units=np.full(200, ""))


def _weights(records, monkeypatch):
    """Return what each teacher learnt, as bytes."""
    import sklearn.linear_model

    learnt, original = [], sklearn.linear_model.LogisticRegression.fit

    def noted(self, *args, **kwargs):
        fitted = original(self, *args, **kwargs)
        learnt.append(fitted.coef_.tobytes() + fitted.intercept_.tobytes())
        return fitted

    found = _by_content(records)
    with monkeypatch.context() as patched:
        patched.setattr(sklearn.linear_model.LogisticRegression, "fit", noted)
        votes(Voters(records=found, features=found.values / 1000.0, electorate=Electorate(found.units)))
    return learnt


def test_one_of_several_equal_records_that_leaves_changes_one_teacher_bit_by_bit(monkeypatch):
    """The others' names move up by one place; trained in the file's order, other teachers would be rounded anew."""
    records = _equal_records()
    before = _weights(records, monkeypatch)
    assert len(before) == TEACHERS
    for gone in range(8):
        after = _weights(records.pick(np.arange(200) != gone), monkeypatch)
        assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_a_teacher_without_records_abstains_and_one_with_one_class_votes_for_it():
    found = votes(voters(["only"], classes=[2]))
    own = int(teacher_of(SECRET, np.array(["only"]), TEACHERS)[0])
    assert (found[own] == 2).all()
    assert (np.delete(found, own, axis=0) == ABSTAIN).all()


def test_nobody_teaches_where_there_is_nobody():
    assert (votes(voters([], classes=np.zeros(0, np.int64))) == ABSTAIN).all()


def test_training_waits_for_the_first_question():
    """Without a question nothing is trained, so a site without scikit-learn answers everything else."""
    import sklearn.linear_model

    used = []
    original = sklearn.linear_model.LogisticRegression.fit

    def noted(self, *args, **kwargs):
        used.append(1)
        return original(self, *args, **kwargs)

    sklearn.linear_model.LogisticRegression.fit = noted
    try:
        ask = teach(voters(UNITS), SECRET, TEACHERS)
        assert not used
        ask(QUERIES)
        assert len(used) <= TEACHERS
        trained = len(used)
        ask(QUERIES)
        assert len(used) == trained
    finally:
        sklearn.linear_model.LogisticRegression.fit = original


def test_a_class_with_fewer_units_than_shards_is_refused_and_the_most_named():
    few = voters(["a", "b", "c", "d", "e", "e"], classes=[0, 0, 0, 0, 1, 1])
    with pytest.raises(DataError, match=r"class 'sick' has 1 units for 4 teachers.*at most 1 teachers"):
        check_shards(few, ("healthy", "sick", "rare"), 4)
    check_shards(few, ("healthy", "sick", "rare"), 1)  # a class that the site lacks altogether is no fault
