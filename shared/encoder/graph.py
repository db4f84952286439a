"""An ONNX file that is written node by node, so that the same weights give the same bytes with any library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPSET, IR_VERSION = 17, 9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """Nodes and constants in the order in which they are added.

    weights:  of the network that is written, by name
    """

    weights: Mapping[str, NDArray[np.float32]]
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def node(self, kind: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Add an operator with one output, and return the output's name, which is its own."""
        from onnx import helper  # noqa: PLC0415 - an extra, for making the file alone

        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a constant of the array's own type, and return its name."""
        from onnx import numpy_helper  # noqa: PLC0415 - the same

        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def file(self, name: str, given: tuple[str, str, list[str | int]], width: int) -> bytes:
        """Return the checked ONNX file, whose output is (batch, width) FLOAT ``features``.

        given: name, element type and shape of its input
        """
        import onnx  # noqa: PLC0415 - the same

        helper, kinds, (source, kind, shape) = onnx.helper, onnx.TensorProto, given
        whole = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(source, getattr(kinds, kind), shape)],
            [helper.make_tensor_value_info("features", kinds.FLOAT, ["batch", width])],
            self.constants,
        )
        model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        model.producer_name = "patevolve"
        onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString(deterministic=True))
