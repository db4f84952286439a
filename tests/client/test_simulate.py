"""When a simulation closes its ledgers between questions."""

import resource
from types import SimpleNamespace

import pytest

from patevolve.client import simulate


@pytest.mark.parametrize(("most", "rests"), [(1024, 1), (20_000, 0), (resource.RLIM_INFINITY, 0)])
def test_ledgers_rest_where_the_process_may_not_hold_all_files(most, rests, monkeypatch):
    rested = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    simulate._let_rest(SimpleNamespace(rest=lambda: rested.append("")), 1000)
    assert len(rested) == rests
