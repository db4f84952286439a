"""A public network (ONNX) and its tokenizer that describe texts, one record at a time.

The rule, for any file: the network takes int64 tokens of one text, (batch, tokens), under one or more of the names of
INPUTS, and gives one row a text or one a token; rows of tokens are averaged. The description is that row at norm 1. The
tokenizer is a file of the library ``tokenizers``; the plan says after how many tokens a text is cut. A text is never
padded and never shares a run with another: what is said of a record cannot hang on who stands beside it.
"""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared.encoder.device import DeviceProfile
from patevolve.shared.encoder.onnx import ALIGNMENT, MOST_FEATURES, Vectors, open_session, pooled
from patevolve.shared.errors import InputError, PlanError
from patevolve.shared.texts import Rows, packed, unpacked

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
INPUTS = (IDS, MASK, TYPES)
TRIAL = ("the heart is enlarged", "no finding", "the heart is enlarged")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sentences:
    """An open network with its tokenizer, ready to describe texts.

    tokens:    how many tokens of a text it reads, those that begin and end it counted
    features:  length of a description
    """

    session: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    device: DeviceProfile
    tokens: int
    features: int = 0

    def describe(self, rows: Rows) -> Vectors:
        """Return (n, r) descriptions of norm 1 of (n, length) packed texts.

        Row i is a function of text i alone, bit by bit.
        """
        texts = unpacked(rows)
        if not texts:
            return np.zeros((0, self.features), np.float32)
        if self.device.threads == 1:
            return np.concatenate([self._one(text) for text in texts])
        with ThreadPoolExecutor(self.device.threads) as pool:
            return np.concatenate(list(pool.map(self._one, texts)))

    def _one(self, text: str) -> Vectors:
        # A batch of one, unpadded, in memory aligned alike each time, on one thread. A text without a token gets the
        # first one: a mean over nothing is no number, and a record must not be refused for what it says. Cut once more:
        # a file that adds more tokens of its own than the plan allows leaves long texts whole.
        return self.row(self.tokenizer.encode(text).ids[: self.tokens] or [0])  # label: one-text-per-run

    def row(self, ids: list[int]) -> Vectors:
        """Return the (1, r) description of a text of these tokens."""
        values = {IDS: ids, MASK: [1] * len(ids), TYPES: [0] * len(ids)}
        feed = {each.name: _aligned(values[each.name]) for each in self.session.get_inputs()}
        row = pooled(self.session.run(None, feed))
        square = math.fsum((row.astype(np.float64) ** 2).ravel().tolist())  # rounded once, whatever the order
        return row / np.float32(math.sqrt(square)) if square > 0.0 else row


def _aligned(numbers: list[int]) -> NDArray[np.int64]:
    """Return (1, n) tokens at an aligned address, as for images."""
    raw = np.empty(8 * len(numbers) + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    held = raw[start : start + 8 * len(numbers)].view(np.int64).reshape(1, len(numbers))
    held[0] = numbers
    return held


def open_sentences(network: Path, tokenizer: Path, tokens: int, device: DeviceProfile) -> Sentences:
    """Return a network of texts with its tokenizer. Raises PlanError for files that break the rule above.

    Raises InputError without onnxruntime or tokenizers, or without the GPU that the profile requires.
    """
    cut = _tokenizer(tokenizer, tokens)
    session = open_session(network, device, one_shape=False)
    inputs = [(each.name, each.type, len(each.shape)) for each in session.get_inputs()]
    if not any(name == IDS for name, _, _ in inputs) or not all(
        name in INPUTS and kind == "tensor(int64)" and rank == 2 for name, kind, rank in inputs
    ):
        found = ", ".join(f"{name} {kind} of {rank} dimensions" for name, kind, rank in inputs)
        raise PlanError(
            f"{network.name} takes {found}; expected tensor(int64) (batch, tokens) by the names of {', '.join(INPUTS)}."
        )
    opened = Sentences(session=session, tokenizer=cut, device=device, tokens=tokens)
    return replace(opened, features=_features(opened, network.name))


def _tokenizer(path: Path, tokens: int) -> Any:
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra, for sites whose plan names a network of texts
    except ImportError as reason:
        raise InputError("a network of texts needs tokenizers; install it: pip install 'patevolve[text]'") from reason
    try:
        text = path.read_text("utf-8")
        drops = json.loads(text)["model"].get("dropout")
        cut = Tokenizer.from_str(text)
    except Exception as reason:  # the library raises no narrower type
        raise PlanError(f"{path.name} is no tokenizer's file ({str(reason)[:80]}); expected its JSON.") from reason
    if drops:  # label: no-dropout
        raise PlanError(f"{path.name} drops merges at random (dropout = {drops}); expected the same tokens each time.")
    cut.no_padding()
    cut.enable_truncation(max_length=tokens)
    return cut


def _features(opened: Sentences, name: str) -> int:
    """Return the length of a description. Raises PlanError unless texts become finite rows, each always alike."""
    ranks = [len(each.shape) for each in opened.session.get_outputs()]
    if not ranks or not set(ranks) <= {2, 3}:
        raise PlanError(f"{name} gives outputs of {ranks} dimensions; expected 2 or 3, the batch first.")
    # The tokenizer's last token, and as many as the plan allows: no record can fail where others do not.
    known = max(opened.tokenizer.get_vocab().values())
    try:
        rows, full = opened.describe(packed(TRIAL, 32)), opened.row([known] * opened.tokens)
    except Exception as reason:  # onnxruntime raises no narrower type
        raise PlanError(
            f"{name} cannot run on {opened.tokens} tokens up to number {known}, which the plan and the tokenizer "
            f"allow: {str(reason)[:200]}"
        ) from reason
    if not 2 <= rows.shape[1] <= MOST_FEATURES:
        raise PlanError(f"{name} gives {rows.shape[1]} features; expected 2 to {MOST_FEATURES}. Take other layers.")
    if not all(np.isfinite(found).all() for found in (rows, full)):
        raise PlanError(f"{name} gives features that are not finite for some texts; expected numbers.")
    if rows[0].tobytes() != rows[2].tobytes():
        raise PlanError(f"{name} describes one text in two ways. Use the CPU.")
    return int(rows.shape[1])
