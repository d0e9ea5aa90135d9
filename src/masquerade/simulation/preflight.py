"""What is tried before any work: does the network fit the data, can the method do its part."""

import warnings

import torch
from torch import Tensor

from masquerade.core.method import Method
from masquerade.core.round import Batch, ClientInfo
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.errors import MasqueradeError, MasqueradeWarning, told

SMALL = 0.25
"""The share of the parameters below which masks hardly make a model sparse."""


def warn_of_small_limits(method: Method, task: Task, info: ClientInfo) -> None:
    """Say when a method that is to make models sparse masks only a small part of them."""
    limit = method.limit(task, info)["use"]
    covered = sum(task.shapes[name].numel() for name in limit) / task.parameters
    if (limit or "sparsity" in vars(method)) and covered < SMALL:
        warnings.warn(
            f"W506 {type(method).__name__} masks {covered:.0%} of the parameters only, so models "
            "stay dense (a large first layer? method.first_dense=false)",
            MasqueradeWarning,
            stacklevel=2,
        )


def try_out(task: Task, federation: Federation) -> None:
    """Run the network, the loss and the metric on a few samples before any work."""
    x, y = federation.x[:3], federation.y[:3]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            output, _ = task(task.initial, x)
            _check_outputs(task, output, federation.classes)
            batch = Batch(x, y, None, torch.tensor(0, device=x.device))
            found = {"loss": task.losses(task.initial, batch, train=False)[0]}
            found["metric"] = task.metric(output, y)
        except MasqueradeError:
            raise
        except Exception as error:
            whole = not x.is_floating_point() and x.dtype is not torch.uint8
            if whole and not any(layer.kind == "embedding" for layer in task.layers):
                raise MasqueradeError(
                    "E202",
                    "the samples are whole numbers, which are read as tokens, and the network "
                    "takes none; store them as float32, or as uint8 where they are pixels",
                ) from error
            _check_width(task, error)
            given = f"x {list(x.shape)} {x.dtype}, y {list(y.shape)} {y.dtype}".replace(
                "torch.", ""
            )
            error.add_note(f"while the model, loss or metric was tried on three samples: {given}")
            raise
    for name, values in found.items():
        if not isinstance(values, Tensor) or values.shape != (len(x),):
            raise MasqueradeError(
                "E202",
                f"`{name}` returned {told(values)} for {len(x)} samples; it must return a tensor "
                "with one number per sample (mind outputs [n, 1] beside targets [n])",
            )


def _check_width(task: Task, error: Exception) -> None:
    """Refuse a network whose first layer reads other numbers than a table has when encoded."""
    layer, columns = next(iter(task.layers), None), task.sample.shape[-1]
    width = getattr(task.preprocess, "width", None)
    if width is None or layer is None or layer.kind != "linear" or layer.weight is None:
        return
    reads = task.shapes[layer.weight][1]
    if reads != width:
        raise MasqueradeError(
            "E202",
            f"the network's first layer reads {reads} numbers, and a row of the table has {width}: "
            f"{columns} columns, categories one-hot encoded; give the layer {width} inputs, or the "
            "task another `preprocess`",
        ) from error


def _check_outputs(task: Task, output: Tensor, classes: int | None) -> None:
    """Refuse a classifier with fewer outputs than there are classes."""
    outputs = output.shape[1] if output.ndim > 1 else 1
    if task.classifies and classes is not None and outputs < classes:
        text = f"the network has {outputs} outputs, and the data have {classes} classes"
        raise MasqueradeError("E202", f"{text}; give its last layer {classes} outputs")
