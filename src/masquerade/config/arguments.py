"""Arguments of Python callers: what does not fit is refused, and the error says what to write."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from masquerade.config import toml
from masquerade.core.method import Method
from masquerade.core.task import Task
from masquerade.data import Dataset, Federation
from masquerade.errors import MasqueradeError, listed, nearest, told
from masquerade.methods import METHODS
from masquerade.tables.frame import is_frame, opened, table_of
from masquerade.tables.schema import Schema

_SECTIONS = {"evaluate": "Evaluate", "compute": "Compute"}
"""Sections of settings that are objects in Python."""


def check_known(caller: str, unknown: Iterable[str], known: Sequence[str]) -> None:
    """Refuse settings that a function does not have."""
    for key in unknown:
        # To a Python caller settings of training are arguments, those of a method its fields.
        said = toml.said_of("train", key).replace("`train.", "`") or nearest(key, known)
        if "`method." in said:
            name = said.split("`method.")[1].split("`")[0].split("=")[0]
            said = f"; give it to the method, as in mq.methods.FedAvg({name}=...)"
        for section in _SECTIONS:
            if f"`{section}.{key}`" in said:
                said = f"; write {section}=mq.{_SECTIONS[section]}({key}=...)"
        there = f"it takes {listed(known, most=30)}"
        raise MasqueradeError("E201", f"`{caller}` takes no `{key}`{said}; {there}")


def check_method(method: Any) -> None:
    """Refuse what is no method."""
    if not isinstance(method, Method):
        raise MasqueradeError("E201", f"`method` is {told(method)}; {_method(method)}")


def check_problem(model: Any, federation: Any) -> None:
    """Refuse what is no network, or no federation."""
    if isinstance(federation, (nn.Module, Task)) and isinstance(model, (Federation, Dataset)):
        text = "`model` and `federation` are swapped; write mq.run(method, model, federation)"
        raise MasqueradeError("E201", text)
    check_model(model)
    if not isinstance(federation, Federation):
        raise MasqueradeError("E201", f"`federation` is {told(federation)}; {_data(federation)}")


def check_model(model: Any) -> None:
    """Refuse what is no network."""
    if not isinstance(model, (nn.Module, Task)):
        raise MasqueradeError("E201", f"`model` is {told(model)}; {_model(model)}")


def check_kind(name: str, given: Any, kind: type | tuple[type, ...], example: str) -> None:
    """Refuse an argument of another kind; None is no argument."""
    if given is None or isinstance(given, kind):
        return
    if name in _SECTIONS and isinstance(given, Mapping):
        settings = ", ".join(f"{key}={value!r}" for key, value in given.items())
        example = f"{name}=mq.{_SECTIONS[name]}({settings})"
    raise MasqueradeError("E201", f"`{name}` is {told(given)}; write {example}")


def _method(given: Any) -> str:
    """Say what to write for something that is no method."""
    if isinstance(given, type) and issubclass(given, Method):
        return f"make one of it: {given.__name__}()"
    if isinstance(given, str) and given.lower() in METHODS:
        return f"write mq.methods.{METHODS[given.lower()].method.__name__}()"
    near = nearest(given, METHODS) if isinstance(given, str) else ""
    return f"write mq.methods.FedAvg(), or another of them{near}"


def _model(given: Any) -> str:
    """Say what to write for something that is no network."""
    if isinstance(given, type) and issubclass(given, nn.Module):
        return f"make one of it: {given.__name__}(...)"
    if isinstance(given, str):
        return f'write mq.models.build("{given}", shape, classes=..., seed=...)'
    return "give a torch.nn.Module, or a mq.Task with a loss and a metric of its own"


def _data(given: Any) -> str:
    """Say what to write for something that is no federation."""
    if isinstance(given, Dataset):
        return 'spread it over clients: mq.partition(dataset, clients=20, by="dirichlet:0.3")'
    if isinstance(given, str):
        return f'write mq.partition(mq.load("{given}"), clients=20, by="dirichlet:0.3")'
    return "make a dataset of arrays, mq.from_arrays(x, y), and a federation of it, mq.partition"


def inputs_of(task: Task, x: Any, schema: Schema | None = None) -> Tensor:
    """Return samples as a tensor that the network of a task reads; refuse what is none.

    They may be rows of a frame, whose columns are found by the names that the data gave theirs.
    """
    like = task.sample
    wanted = ", ".join(["n", *map(str, like.shape[1:])])
    if is_frame(x):
        x = rows_of(x, schema)
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        # Arrays of files and frames may be read only, of which torch warns.
        x = x.copy()
    try:
        given = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError):
        text = f"`x` is {told(x)}, of which torch makes no tensor; give samples [{wanted}]"
        raise MasqueradeError("E202", text) from None
    if given.shape[1:] != like.shape[1:] or not given.ndim:
        one = "; of one sample, give x[None]" if given.shape == like.shape[1:] else ""
        text = f"`x` has shape {list(given.shape)}; give samples [{wanted}]{one}"
        raise MasqueradeError("E202", text)
    tokens = not like.is_floating_point() and like.dtype is not torch.uint8
    if given.is_floating_point() and tokens:
        text = f"`x` is of {given.dtype}, and the network reads tokens; give whole numbers"
        raise MasqueradeError("E202", text)
    # Whole numbers of a list are numbers or pixels, where those of a dataset would be tokens.
    whole = not given.is_floating_point() and given.dtype is not torch.uint8
    return given.to(like.dtype) if whole and not tokens else given


def rows_of(frame: Any, schema: Schema | None) -> np.ndarray[Any, Any]:
    """Return the rows of a frame; of unnamed features, all columns in their order."""
    if schema is None:
        return np.asarray(opened(frame).to_numpy())
    table = table_of(frame, "the frame", schema.layout.missing, of_frame=True)
    return schema.samples(table).astype(np.float32)
