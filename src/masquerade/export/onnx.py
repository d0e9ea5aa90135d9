"""A program as ONNX, which answers as the model does or is not written."""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from masquerade.errors import MasqueradeError
from masquerade.export import session
from masquerade.export.graph import Program

SORT, WHERE = torch.ops.aten.sort.stable, torch.ops.aten.where.self
CLOSE = 1e-5
"""How far outputs of onnxruntime may be from torch's, absolutely and relative to them."""


def encode(program: Program) -> bytes:
    """Return the bytes of an ONNX file with input `x` and output `y`."""
    _check_installed()
    with _quiet():
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
    return data


def _spelled(program: Program) -> Program:
    """Say in other words what ONNX, or onnxruntime, has no word for."""
    module = copy.deepcopy(program.module)
    for node in module.graph.nodes:
        if node.target is SORT:
            # ONNX sorts by taking the largest of all, and lets the first of equals come first.
            value, order = node.args[0], node.kwargs
            size = value.meta["val"].shape[order["dim"]]
            node.target = torch.ops.aten.topk.default
            node.args, node.kwargs = (value, size, order["dim"], order["descending"]), {}
        elif node.target is WHERE and node.meta["val"].dtype is torch.bool:
            with module.graph.inserting_before(node):
                chosen, other = (
                    module.graph.call_function(torch.ops.aten.logical_and.default, pair)
                    for pair in (
                        (node.args[0], node.args[1]),
                        (
                            module.graph.call_function(
                                torch.ops.aten.logical_not.default, node.args[:1]
                            ),
                            node.args[2],
                        ),
                    )
                )
            node.target, node.args = torch.ops.aten.logical_or.default, (chosen, other)
    module.recompile()
    return replace(program, module=module)


def check(model: bytes, expected: Tensor, x: Tensor) -> float:
    """Compare an ONNX model with the outputs that torch expects for x; return how far it is off."""
    found = session.outputs(session.start(model), x.cpu().numpy())
    wanted = expected.detach().cpu().numpy()
    apart = np.abs(found - wanted)
    if not (apart <= CLOSE * (1 + np.abs(wanted))).all():
        text = f"the ONNX file answers otherwise than the model, by up to {apart.max():.2g}"
        raise MasqueradeError("E406", f"{text}; it is not written")
    return float(apart.max())


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as fault:
        text = f"{fault.name} is not installed; install `masquerade[export]`"
        raise MasqueradeError("E202", text) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter from talking about its own parts."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _strip(model: Any) -> None:
    """Remove what speaks of the machine that wrote a file: paths of sources, traces of calls."""
    for each in (model.graph, *model.graph.node, *model.graph.initializer, *model.functions):
        each.ClearField("metadata_props")
        each.ClearField("doc_string")
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        value.ClearField("metadata_props")
