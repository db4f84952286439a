"""The export for TensorBoard says what the report says, read back from its own file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patevolve.shared import wire
from patevolve.shared.errors import InputError
from patevolve.shared.report.tensorboard import BINS, binned, write


def report(values: np.ndarray) -> dict[str, Any]:
    return {
        "generations": [
            {"generation": 0, "spread": 1.5, "match": None, "scores": None},
            {"generation": 1, "spread": 1.25, "match": 0.5, "scores": binned(values)},
        ]
    }


def read_back(folder: Path) -> dict[tuple[str, int], Any]:
    """Return every value of the event file: (length, checksum, record, checksum) after another."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.iterdir()
    data, at, found = path.read_bytes(), 0, {}
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + size])
        at += 16 + size
        found |= {(value.tag, event.step): value for value in event.summary.value}
    return found


def test_scalars_distributions_and_answers_are_written(tmp_path: Path) -> None:
    values = np.array([-np.inf, np.nan, *np.linspace(-1.0, 3.0, 100)])
    (tmp_path / "run" / "tallies").mkdir(parents=True)
    answer = wire.Packet(kind="tally", fields={}, arrays={"values": np.arange(7)})
    (tmp_path / "run" / "tallies" / "neighbours-2.pv").write_bytes(wire.encode(answer))
    (tmp_path / "run" / "tallies" / "counts.pv").write_bytes(b"not a round of votes")
    assert write(report(values), tmp_path / "run", tmp_path / "events") == 2
    found = read_back(tmp_path / "events")
    assert found["generation/spread", 0].simple_value == 1.5
    assert found["generation/match", 1].simple_value == 0.5
    assert ("generation/match", 0) not in found
    scores = found["scores/margin", 1].histo
    assert (scores.num, scores.min, scores.max) == (100, -1.0, 3.0)
    assert sum(scores.bucket) == 100
    assert scores.sum == pytest.approx(100.0)
    assert found["answers/neighbours", 2].histo.num == 7
    assert len(scores.bucket_limit) == BINS


def test_nothing_finite_is_no_distribution() -> None:
    assert binned(np.zeros(0)) is None
    assert binned(np.array([np.nan, -np.inf])) is None


@pytest.mark.parametrize("broken", [{}, {"generations": []}, {"generations": 3}])
def test_a_report_without_generations_is_refused(broken: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without generations"):
        write(broken, tmp_path, tmp_path / "events")


def test_without_the_library_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(InputError, match=r"patevolve\[tensorboard\]"):
        write({"generations": [{}]}, tmp_path, tmp_path / "events")
