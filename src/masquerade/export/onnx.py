"""A program as ONNX, which answers as the model does or is not written."""

import copy
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from masquerade.errors import MasqueradeError
from masquerade.export import predict
from masquerade.export.graph import Program, quiet

aten = torch.ops.aten
CLOSE = 1e-5
"""How far outputs of onnxruntime may be from torch's, absolutely and relative to them."""


def encode(program: Program, x: Tensor, expected: Tensor) -> bytes:
    """Return the bytes of an ONNX file with input `x` and output `y`.

    It has answered the inputs x as expected, on onnxruntime.
    """
    _check_installed()
    with quiet():
        try:
            found: Any = torch.onnx.export(
                _spelled(program).exported(),
                dynamo=True,
                input_names=["x"],
                output_names=["y"],
                verbose=False,
                optimize=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason = str(error).strip().splitlines()[-1]
            text = "this model has an operation that ONNX cannot say"
            raise MasqueradeError("E202", f"{text}: {reason}") from error
        model = found.model_proto
    _strip(model)
    data: bytes = model.SerializeToString(deterministic=True)
    check(data, x, expected)
    return data


def check(model: bytes, x: Tensor, expected: Tensor) -> float:
    """Compare what an ONNX model answers with what is expected; return how far it is off."""
    found = predict.outputs(predict.start(model), x.cpu().numpy())
    wanted = expected.detach().cpu().numpy()
    apart = np.abs(found - wanted)
    if not (apart <= CLOSE * (1 + np.abs(wanted))).all():
        text = f"the ONNX file answers otherwise than the model, by up to {apart.max():.2g}"
        raise MasqueradeError("E406", f"{text}; it is not written")
    return float(apart.max())


def _spelled(program: Program) -> Program:
    """Say in other words what ONNX, or onnxruntime, has no word for."""
    module = copy.deepcopy(program.module)
    for node in module.graph.nodes:
        if node.target is aten.sort.stable:
            # ONNX sorts by taking the largest of all, and lets the first of equals come first.
            value, order = node.args[0], node.kwargs
            size = value.meta["val"].shape[order["dim"]]
            node.target = aten.topk.default
            node.args, node.kwargs = (value, size, order["dim"], order["descending"]), {}
        elif node.target is aten.where.self and node.meta["val"].dtype is torch.bool:
            condition, chosen, otherwise = node.args
            call = module.graph.call_function
            with module.graph.inserting_before(node):
                inverse = call(aten.logical_not.default, (condition,))
                first = call(aten.logical_and.default, (condition, chosen))
                second = call(aten.logical_and.default, (inverse, otherwise))
            node.target, node.args = aten.logical_or.default, (first, second)
    module.recompile()
    return replace(program, module=module)


def _check_installed() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(name) is None:
            text = f"{name} is not installed; install `masquerade[export]`"
            raise MasqueradeError("E202", text)


def _strip(model: Any) -> None:
    """Remove what speaks of the machine that wrote a file: paths of sources, traces of calls."""
    for each in (model.graph, *model.graph.node, *model.graph.initializer, *model.functions):
        each.ClearField("metadata_props")
        each.ClearField("doc_string")
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        value.ClearField("metadata_props")
