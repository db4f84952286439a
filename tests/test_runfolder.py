"""What a run's folder keeps of a question is what was put there, however many sites answered."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from patevolve.shared import wire
from patevolve.shared.errors import MessageError
from patevolve.shared.institutions import Reply
from patevolve.shared.privacy.chain import Head
from patevolve.shared.privacy.signing import SignedHead, head_to_json
from patevolve.shared.runfolder import RunFolder
from patevolve.shared.tally import NoisyTally

ASKED, OTHER = "a" * 64, "b" * 64


def reply_of(sites: int) -> Reply:
    names = tuple(f"Hospital number {number:05d}" for number in range(sites))
    heads = (Head(seq=7, digest=hashlib.sha256(name.encode()).hexdigest(), site=name) for name in names)
    return Reply(
        tally=NoisyTally(values=np.arange(5), std=2.5),
        sites=names,
        heads=tuple(SignedHead(head=head, signature="0f" * 64) for head in heads),
        refusals={"late": "quorum"},
    )


@pytest.mark.parametrize("sites", [0, 1, 10_000])
def test_a_reply_comes_back_whole(tmp_path, sites):
    (tmp_path / "tallies").mkdir()
    folder, reply = RunFolder(path=tmp_path), reply_of(sites)
    folder.save_reply("counts", ASKED, reply)
    found = folder.load_reply("counts", ASKED)
    assert (found.sites, found.heads, found.refusals) == (reply.sites, reply.heads, reply.refusals)
    assert np.array_equal(found.tally.values, reply.tally.values)
    assert found.tally.std == reply.tally.std


def test_a_reply_of_another_question_or_version_is_refused(tmp_path):
    (tmp_path / "tallies").mkdir()
    folder = RunFolder(path=tmp_path)
    folder.save_reply("counts", ASKED, reply_of(2))
    with pytest.raises(MessageError, match="another question or version"):
        folder.load_reply("counts", OTHER)
    (kept,) = (tmp_path / "tallies").iterdir()
    packet = wire.decode(kept.read_bytes())
    heads = [head_to_json(head) for head in reply_of(2).heads]  # where they stood before
    before = wire.Packet(kind="tally", fields={**packet.fields, "heads": heads}, arrays={"values": np.arange(5)})
    kept.write_bytes(wire.encode(before))
    with pytest.raises(MessageError, match="another question or version"):
        folder.load_reply("counts", ASKED)
