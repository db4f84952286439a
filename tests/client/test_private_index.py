"""A site's records made ready: bounded, split, encoded, or refused before any charge."""

import dataclasses

import numpy as np
import pytest

from patevolve.client.private_index import build_index
from patevolve.shared.data.records import Records
from patevolve.shared.errors import DataError
from patevolve.shared.plan import agree
from patevolve.shared.tools import tools_of

SECRET = b"s" * 32


def build(agreed, records, secret=SECRET):
    return build_index(records, agreed.plan, tools_of(agreed.plan).encoder, secret)


def test_every_record_is_a_member_or_held_out(agreed, records):
    index = build(agreed, records)
    parts = [index.members.records, index.held_out.records]
    assert sum(map(len, parts)) == len(records)
    assert index.units == 60
    for voters in (index.members, index.held_out):
        assert voters.features.shape == (len(voters.records), 6)
        assert voters.electorate.size == len(set(voters.records.units.tolist()))


def test_a_unit_keeps_what_the_plan_allows(agreed, records):
    many = records.pick(np.tile(np.arange(len(records)), 3))
    many = dataclasses.replace(many, values=np.arange(len(many) * 2).reshape(-1, 2) % 3)
    index = build(agreed, many)
    for voters in (index.members, index.held_out):
        assert max(np.unique(voters.records.units, return_counts=True)[1]) <= 2


def test_a_unit_that_leaves_moves_no_other(agreed, records):
    whole = build(agreed, records)
    before = {*whole.members.records.units.tolist()}
    for unit in ("u0", "u7", "u59"):
        rest = build(agreed, records.pick(records.units != unit))
        assert {*rest.members.records.units.tolist()} == before - {unit}


def test_another_secret_splits_otherwise(agreed, records):
    one, two = (build(agreed, records, secret * 32) for secret in (b"a", b"b"))
    assert set(one.members.records.units.tolist()) != set(two.members.records.units.tolist())


def test_no_records_are_refused(agreed, records):
    with pytest.raises(DataError, match="no record found"):
        build(agreed, records.pick(np.zeros(len(records), bool)))


def test_a_delta_that_is_too_large_for_the_site_is_refused(records):
    text = """
format = 1
name = "p"
seed = 1
[privacy]
epsilon = 1.0
delta = DELTA
[sites]
count = 1
expected_units = 10
[data]
kind = "table"
classes = ["a", "b"]
label = "y"
unit = "id"
[[data.columns]]
name = "u"
kind = "numeric"
edges = [0, 1, 2, 3]
[[data.columns]]
name = "v"
kind = "numeric"
edges = [0, 1, 2, 3]
[generator]
kind = "tabular"
[release]
samples = 10
"""
    build(agree(text.replace("DELTA", "0.016")), records)  # 60 units: 1/60 is 0.0167
    with pytest.raises(DataError, match="1/60"):
        build(agree(text.replace("DELTA", "0.017")), records)


def test_features_that_are_not_finite_are_refused(agreed, records):
    class Broken:
        dimension = 6

        def encode(self, values):
            return np.where(np.arange(len(values))[:, None] == 3, np.nan, np.zeros((len(values), 6)))

    with pytest.raises(DataError, match="not finite"):
        build_index(records, agreed.plan, Broken(), SECRET)


def test_a_site_without_a_held_out_unit_is_legal(agreed):
    few = Records(values=np.zeros((1, 2), np.int64), classes=np.array([0]), units=np.array(["x"]))
    index = build(agreed, few)
    assert len(index.members.records) + len(index.held_out.records) == 1
