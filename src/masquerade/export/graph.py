"""What a method answers with, as a graph of tensor operations: `predict` itself, traced.

Whatever does not depend on the input is computed once: masks are applied, mixtures mixed, gates of
a client settled. What is left reads an input and the weights that are really used.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import make_fx

from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.task import Task
from masquerade.errors import MasqueradeError

ASSERT = torch.ops.aten._assert_tensor_metadata.default


@dataclass(frozen=True)
class Program:
    """A graph from inputs [samples, …] to outputs, and an input that it was traced with."""

    module: fx.GraphModule
    example: Tensor
    batched: bool
    """Whether it takes any number of samples; otherwise one."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs for a batch of inputs."""
        with torch.no_grad():
            pieces = [x] if self.batched else torch.split(x, 1)
            return torch.cat([self.module(piece) for piece in pieces])

    @property
    def shapes(self) -> tuple[dict[int, Any]] | None:
        """Say for `torch.export` which sizes of the input may vary."""
        return ({0: Dim.DYNAMIC},) if self.batched else None

    def exported(self) -> ExportedProgram:
        """Return the graph as torch hands it to other formats."""
        with torch.no_grad():
            return torch.export.export(
                self.module, (self.example,), dynamic_shapes=self.shapes, strict=False
            )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what torch says about its own internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class _Predictor(nn.Module):
    """A function of the input as the module that torch wants; its tensors become constants."""

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(x)


def trace(method: Method, task: Task, parts: Message, x: Tensor) -> Program:
    """Trace `method.predict` for inputs like x [samples, …].

    A model that answers every sample with weights of its own is traced for one sample at a time.
    """
    home = task.to("cpu").with_example(x.cpu())
    here: Message = tree.transform(lambda value: value.detach().cpu(), parts)
    return trace_function(lambda given: method.predict(home, here, given), x.cpu())


def trace_function(answer: Callable[[Tensor], Tensor], x: Tensor) -> Program:
    """Trace a function from inputs [samples, …] to outputs, each from its own sample alone."""
    # Sizes of zero and one are special to torch, so that a batch is traced with two samples.
    batch = torch.cat([x[:1], x[:1]])
    with torch.no_grad(), quiet():
        # Methods remember some things of a task; they are to remember numbers, not their traces.
        answer(batch)
        try:
            exported = torch.export.export(
                _Predictor(answer), (batch,), dynamic_shapes=({0: Dim.DYNAMIC},), strict=False
            )
            if _is_plain(exported.graph):
                return Program(_folded(exported), batch, batched=True)
        except Exception:
            # Torch refuses in many ways what depends on the number of samples; one may do.
            return _one_by_one(answer, x[:1])
        return _one_by_one(answer, x[:1])


def _one_by_one(answer: Callable[[Tensor], Tensor], x: Tensor) -> Program:
    """Trace for one sample, through maps over samples."""
    try:
        exported = torch.export.export(make_fx(answer)(x), (x,), strict=False)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        text = f"this model cannot be written as one graph: {reason}"
        raise MasqueradeError("E202", text) from error
    return Program(_folded(exported), x, batched=False)


def _is_plain(graph: fx.Graph) -> bool:
    """Tell whether a graph has operations on tensors alone, and no traces of a map over samples."""
    called = (node.target for node in graph.nodes if node.op == "call_function")
    return all(
        isinstance(target, torch._ops.OpOverload) or target is getitem or _of_sizes(target)
        for target in called
    )


def _of_sizes(target: Any) -> bool:
    """Tell whether a function computes with sizes, which are plain numbers."""
    return getattr(target, "__module__", "") in ("_operator", "math", "torch")


def _folded(exported: ExportedProgram) -> fx.GraphModule:
    """Compute what does not depend on the input, and keep the results as the graph's tensors."""
    known: dict[fx.Node, Any] = dict(_given(exported))
    copied: dict[fx.Node, fx.Node] = {}
    root, graph = nn.Module(), fx.Graph()

    def kept(node: fx.Node) -> fx.Node:
        if node not in copied:
            # Two nodes may hold one tensor; each has its name.
            name = f"tensor_{len(dict(root.named_buffers(remove_duplicate=False)))}"
            root.register_buffer(name, known[node].contiguous())
            copied[node] = graph.get_attr(name)
            copied[node].meta["val"] = known[node]
        return copied[node]

    def placed(node: fx.Node) -> Any:
        if node in known and not isinstance(known[node], Tensor):
            return known[node]
        return kept(node)

    for node in exported.graph.nodes:
        if node in known or node.target is ASSERT:
            continue
        inputs = node.all_input_nodes
        if node.op == "call_function" and all(each in known for each in inputs):
            given = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = node.target(*given[0], **given[1])
            continue
        copied[node] = graph.node_copy(node, placed)
    _spell_out(graph)
    graph.eliminate_dead_code()
    made = fx.GraphModule(root, graph)
    _plain_output(made)
    return made


def overwrites(node: fx.Node) -> bool:
    """Tell whether an operation writes its result over what it reads."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _spell_out(graph: fx.Graph) -> None:
    """Let operations that overwrite what nobody else reads make a new value instead."""
    for node in graph.nodes:
        name, _, overload = str(node.target).removeprefix("aten.").partition(".")
        packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
        if overwrites(node) and hasattr(packet, overload) and _is_alone(node.all_input_nodes[0]):
            node.target = getattr(packet, overload)


def _is_alone(node: fx.Node) -> bool:
    """Tell whether a value has one reader, and what it may be a view of has no other."""
    if len(node.users) != 1 or node.op == "get_attr":
        return False
    fresh = node.op == "placeholder" or (
        isinstance(node.target, torch._ops.OpOverload)
        and node.target
        not in (torch.ops.aten.dropout.default, torch.ops.aten.feature_dropout.default)
        and not any(each.alias_info for each in node.target._schema.returns)
    )
    return fresh or _is_alone(node.all_input_nodes[0])


def _given(exported: ExportedProgram) -> Iterator[tuple[fx.Node, Any]]:
    """Yield the inputs of an exported graph that are constants, with their values."""
    held = {**exported.state_dict, **exported.constants}
    inputs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    for node in exported.graph.nodes:
        if node.op == "placeholder" and inputs[node.name].kind is not InputKind.USER_INPUT:
            yield node, held[str(inputs[node.name].target)].detach()


def _plain_output(module: fx.GraphModule) -> None:
    """Let a graph return its one output, not a tuple of it."""
    for node in module.graph.nodes:
        if node.op == "output" and isinstance(node.args[0], tuple | list):
            (node.args,) = (tuple(node.args[0]),)
    module.recompile()
