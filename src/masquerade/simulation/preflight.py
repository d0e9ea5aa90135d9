"""What is tried before any work: does the network fit the data, can the method do its part."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from masquerade.core.method import Method
from masquerade.core.regression import squared_error
from masquerade.core.round import Batch, ClientInfo
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.errors import MasqueradeError, counted, told, warn

SMALL = 0.25
"""The share of the parameters below which masks hardly make a model sparse."""

Entered = tuple[str, nn.Module, tuple[Any, ...]]
"""A layer by name, and what it is given."""


def warn_of_small_limits(method: Method, task: Task, info: ClientInfo) -> None:
    """Say when a method that is to make models sparse masks only a small part of them."""
    limit = method.limit(task, info)["use"]
    covered = sum(task.shapes[name].numel() for name in limit) / task.parameters
    if (limit or "sparsity" in vars(method)) and covered < SMALL:
        warn(
            f"W506 {type(method).__name__} masks {covered:.0%} of the parameters only, so models "
            "stay dense (a large first layer? method.first_dense=false)",
        )


def try_out(task: Task, federation: Federation) -> None:
    """Run the network, the loss and the metric on a few samples before any work."""
    x, y = federation.x[:3], federation.y[:3]
    entered: list[Entered] = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            with _watching(task, entered):
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
                    "takes none; store them as float32, or as uint8 where they are pixels; "
                    "for tokens take a network with an embedding, such as char_lstm",
                ) from error
            _check_layer(task, entered, x, error)
            _check_loss(task, y, federation.classes, error)
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


@contextmanager
def _watching(task: Task, entered: list[Entered]) -> Iterator[None]:
    """Note every layer that is entered, and what it is given."""

    def note(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, given: tuple[Any, ...]) -> None:
            entered.append((name, module, given))

        return hook

    modules = task.module.named_modules()
    hooks = [each.register_forward_pre_hook(note(name)) for name, each in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check_layer(task: Task, entered: list[Entered], x: Tensor, error: Exception) -> None:
    """Refuse a network in which a layer reads another width than it is given."""
    name, module, given = entered[-1] if entered else ("", None, ())
    if not given or not isinstance(given[0], Tensor):
        return
    inputs = given[0]
    if isinstance(module, nn.Linear):
        reads, found, what = module.in_features, inputs.shape[-1], "input"
    elif isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        places = len(module.kernel_size)
        reads, found, what = module.in_channels, inputs.shape[-places - 1], "channel"
    else:
        return
    if reads == found:
        return
    layer = f"the layer `{name}`" if name else f"the layer {type(module).__name__}"
    if found == getattr(task.preprocess, "width", None):
        had = f"a row of the table has {found}: {x.shape[-1]} columns, categories one-hot encoded"
        advice = f"give the layer {found} inputs, or the task another `preprocess`"
    else:
        had = f"is given {_shape(inputs)} (samples are {_shape(x)})"
        flat = isinstance(module, nn.Linear) and reads == inputs[0].numel()
        advice = "put nn.Flatten() before it" if flat else f"give it {counted(found, what)}"
    text = f"{layer} of the network reads {counted(reads, what)}, and {had}; {advice}"
    raise MasqueradeError("E202", text) from error


def _check_loss(task: Task, y: Tensor, classes: int | None, error: Exception) -> None:
    """Refuse a loss that is not for such targets, and outputs that do not fit them."""
    if classes is None and task.classifies:
        text = "the targets are numbers, and the loss of the task is cross entropy"
        advice = "give the module itself, for squared error, or mq.Task(model, loss, metric)"
        raise MasqueradeError("E202", f"{text}; {advice}") from error
    if classes is not None and task.classifies and y.ndim > 1:
        text = f"labels have the shape {_shape(y)}, and cross entropy takes one class per sample"
        advice = "give labels [n], floating-point targets, or a loss of your own"
        raise MasqueradeError("E202", f"{text}; {advice}") from error
    if task.functions["loss"] is squared_error:
        wanted = math.prod(y.shape[1:])
        text = f"the outputs of the network do not fit targets {_shape(y)}"
        raise MasqueradeError("E202", f"{text}; give its last layer {wanted} outputs") from error


def _shape(samples: Tensor) -> str:
    """Write the shape of samples, however many they are."""
    return f"[{', '.join(['n', *map(str, samples.shape[1:])])}]"


def _check_outputs(task: Task, output: Tensor, classes: int | None) -> None:
    """Refuse a classifier with fewer outputs than there are classes."""
    outputs = output.shape[1] if output.ndim > 1 else 1
    if task.classifies and classes is not None and outputs < classes:
        text = f"the network has {outputs} outputs, and the data have {classes} classes"
        raise MasqueradeError("E202", f"{text}; give its last layer {classes} outputs")
