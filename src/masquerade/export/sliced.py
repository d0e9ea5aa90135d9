"""Cut out of a graph what its masks removed, so that the network is really smaller and faster.

Channels (filters, rows, units) are followed through the graph, from the layer that makes them
through norms, activations, pooling, flattening and sums to the layers that read them. A channel is
cut when every reader can do without it: because its weights for it are zero, or because the channel
is the same number for every input, which the reader's bias takes over. What is computed stays.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn

from masquerade.export.graph import Program, overwrites

aten = torch.ops.aten
LINEAR = aten.linear.default
READERS = (LINEAR, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
MAPS = (
    aten.relu.default,
    aten.relu6.default,
    aten.elu.default,
    aten.hardtanh.default,
    aten.leaky_relu.default,
    aten.gelu.default,
    aten.silu.default,
    aten.sigmoid.default,
    aten.tanh.default,
)
"""What acts on every number alone."""
POOLS = (
    aten.max_pool1d.default,
    aten.max_pool2d.default,
    aten.max_pool3d.default,
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten.adaptive_max_pool1d.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
)
"""What makes of equal numbers the same number."""
WINDOWS = (aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
DROPOUTS = (aten.dropout.default, aten.feature_dropout.default)
SHAPED = {aten.view.default: "size", aten.reshape.default: "shape"}
"""What can flatten by a shape, and what the shape is called."""
BLOCK = 16
"""What convolutions compute at a time: with 22 channels onnxruntime is slower than with 32."""
BATCH_NORM, GROUP_NORM = aten.batch_norm.default, aten.group_norm.default
EXPAND = aten.expand.default


@dataclass(eq=False)
class Channels:
    """Channels that are kept or cut together, wherever in the graph they appear."""

    keep: Tensor
    """Whether each is kept [channels]."""
    fixed: bool = False
    """Whether something reads them that needs them all."""
    step: int = 1
    """Neighbors that a norm takes together; they stay or go as one."""
    block: int = 1
    """How many are computed at a time; a number that is no multiple of it saves nothing."""
    readers: list[fx.Node] = field(default_factory=list)


@dataclass(frozen=True)
class Flow:
    """What is known of a value of the graph."""

    channels: Channels
    repeat: int
    """Neighboring features that come from one channel: more than one after flattening."""
    steady: Tensor
    """The number that a feature is for every input, NaN where it varies [features]."""

    @property
    def keep(self) -> Tensor:
        """Return whether each feature is kept."""
        return self.channels.keep.repeat_interleave(self.repeat)


def cut(program: Program, block: int = BLOCK) -> Program:
    """Return a program that answers the same, with what it does not need left out.

    Of the channels of convolutions a multiple of `block` stays.
    """
    walk = _Walk(program.module, block)
    walk.settle()
    return replace(program, module=_rewritten(program.module, walk))


def arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of an operation by name, those left out too."""
    if node.target is getitem:
        return dict(zip(("self", "index"), node.args, strict=True))
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    left_out = {each.name: each.default_value for each in schema if each.has_default_value()}
    named = {each.name: value for each, value in zip(schema, node.args, strict=False)}
    return left_out | named | node.kwargs


class _Walk:
    """Follows channels through a graph, from its first operation to its last."""

    def __init__(self, module: fx.GraphModule, block: int) -> None:
        self.module, self.block = module, block
        self.flows: dict[fx.Node, Flow] = {}
        rules: dict[Any, Callable[[fx.Node, dict[str, Any]], Flow | None]] = {
            **dict.fromkeys(READERS, self._reads),
            **dict.fromkeys(MAPS, self._maps),
            **dict.fromkeys(POOLS, self._pools),
            **dict.fromkeys(WINDOWS, self._averages_windows),
            **dict.fromkeys(DROPOUTS, self._drops),
            **dict.fromkeys((aten.flatten.using_ints, *SHAPED), self._flattens),
            getitem: self._takes,
            aten.mean.dim: self._averages,
            BATCH_NORM: self._normalizes,
            GROUP_NORM: self._normalizes_groups,
            EXPAND: self._expands,
            aten.add.Tensor: self._adds,
        }
        if any(overwrites(node) for node in module.graph.nodes):
            # Whoever reads a value that is overwritten may read either; nothing is known.
            return
        for node in module.graph.nodes:
            rule = rules.get(node.target)
            flow = None if rule is None else rule(node, arguments(node))
            if flow is not None:
                self.flows[node] = flow
                continue
            # What is not understood needs all of what it reads.
            for given in node.all_input_nodes:
                if given in self.flows:
                    self.flows[given].channels.fixed = True

    def tensor(self, value: Any) -> Tensor | None:
        """Return the constant that an argument is."""
        if not isinstance(value, fx.Node) or value.op != "get_attr":
            return None
        found: Tensor = self.module.get_buffer(str(value.target))
        return found

    def _reads(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        weight, bias = self.tensor(given["weight"]), self.tensor(given["bias"])
        shared = given.get("groups", 1) == 1 and (node.target is not LINEAR or _rank(node) == 2)
        if weight is None or (bias is None) != (given["bias"] is None) or not shared:
            return None
        steady = torch.full([weight.shape[1]], math.nan, dtype=torch.float64)
        if given["input"] in self.flows:
            source = self.flows[given["input"]]
            source.channels.readers.append(node)
            steady = _unpadded(source.steady, given.get("padding", 0))
        rows = torch.ones(len(weight), dtype=torch.bool)
        # A row is steady when whatever it reads is; then it is the sum of that and its bias.
        varies = (weight[:, steady.isnan()] != 0).flatten(1).any(1)
        whole = _absorbed(weight, steady, steady != 0)
        whole = whole if bias is None else whole + bias
        channels = Channels(rows, block=1 if node.target is LINEAR else self.block)
        return Flow(channels, 1, whole.masked_fill(varies, math.nan))

    def _maps(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        source = self.flows.get(given["self"])
        if source is None:
            return None
        assert callable(node.target)
        return replace(source, steady=node.target(**given | {"self": source.steady}))

    def _pools(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        return self.flows.get(given["self"])

    def _averages_windows(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        source = self.flows.get(given["self"])
        if source is None or given.get("divisor_override") is not None:
            return None
        return replace(source, steady=_unpadded(source.steady, given["padding"]))

    def _drops(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        return None if given["train"] else self.flows.get(given["input"])

    def _takes(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        """Take the numbers of a pool that returns their places, too."""
        return self.flows.get(given["self"]) if given["index"] == 0 else None

    def _averages(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        rank = _rank(given["self"])
        over = {axis % rank for axis in given["dim"] or range(rank)}
        return None if over & {0, 1} else self.flows.get(given["self"])

    def _normalizes(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        source = self.flows.get(given["input"])
        mean, variance = self.tensor(given["running_mean"]), self.tensor(given["running_var"])
        if source is None or given["training"] or mean is None or variance is None:
            return None
        normal = (source.steady - mean) / (variance.double() + given["eps"]).sqrt()
        return self._scaled(source, given, normal)

    def _normalizes_groups(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        source = self.flows.get(given["input"])
        if source is None:
            return None
        each, rest = divmod(len(source.steady) // given["num_groups"], source.repeat)
        if rest:
            return None
        source.channels.step = math.lcm(source.channels.step, each)
        groups = source.steady.reshape(given["num_groups"], -1)
        middle = groups.mean(1, keepdim=True)
        variance = (groups - middle).square().mean(1, keepdim=True)
        normal = (groups - middle) / (variance + given["eps"]).sqrt()
        return self._scaled(source, given, normal.flatten())

    def _scaled(self, source: Flow, given: dict[str, Any], normal: Tensor) -> Flow | None:
        """Scale and move what was normalized; a scale of zero leaves the bias alone."""
        for name, neutral in (("weight", torch.mul), ("bias", torch.add)):
            value = self.tensor(given[name])
            if value is None and given[name] is not None:
                return None
            if value is not None:
                normal = neutral(normal, value)
                normal = normal.masked_fill(value == 0, 0) if name == "weight" else normal
        return replace(source, steady=normal)

    def _flattens(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        source, shape = self.flows.get(given["self"]), given["self"].meta["val"].shape
        if source is None or _rank(node) != 2 or node.meta["val"].shape[1] != shape[1:].numel():
            return None
        places = shape[2:].numel()
        steady = source.steady.repeat_interleave(places)
        return replace(source, repeat=source.repeat * places, steady=steady)

    def _expands(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        source = self.flows.get(given["self"])
        if source is None or _rank(node) != _rank(given["self"]):
            return None
        return source if given["size"][1] in (-1, len(source.steady)) else None

    def _adds(self, node: fx.Node, given: dict[str, Any]) -> Flow | None:
        one, other = self.flows.get(given["self"]), self.flows.get(given["other"])
        if one is None or other is None or given["alpha"] != 1:
            return None
        if given["self"].meta["val"].shape != given["other"].meta["val"].shape:
            return None
        if one.repeat != other.repeat:
            return None
        self._join(one.channels, other.channels)
        return replace(one, steady=one.steady + other.steady)

    def _join(self, one: Channels, other: Channels) -> None:
        """Let channels that are added stay or go together."""
        if one is other:
            return
        one.fixed |= other.fixed
        one.step, one.block = math.lcm(one.step, other.step), max(one.block, other.block)
        one.readers += other.readers
        for node, flow in self.flows.items():
            if flow.channels is other:
                self.flows[node] = replace(flow, channels=one)

    def settle(self) -> None:
        """Cut channels until no more of them can be: a cut row no longer reads its columns."""
        all_channels = {id(flow.channels): flow.channels for flow in self.flows.values()}
        changed = True
        while changed:
            changed = False
            for channels in all_channels.values():
                if channels.fixed or not channels.readers:
                    continue
                needed = torch.stack([self._needed(reader) for reader in channels.readers]).any(0)
                keep = needed.reshape(-1, channels.step).any(1).repeat_interleave(channels.step)
                if not keep.any():
                    # A layer without outputs is no layer.
                    keep[: channels.step] = True
                changed |= not torch.equal(keep, channels.keep)
                channels.keep = keep
        # At the end, because what fills a block up need not be right: nothing reads it.
        for channels in all_channels.values():
            _fill_up(channels)

    def _needed(self, reader: fx.Node) -> Tensor:
        """Return which channels a layer reads and cannot put into its bias."""
        given = arguments(reader)
        source, weight = self.flows[given["input"]], self.tensor(given["weight"])
        assert weight is not None
        read = (weight[self.flows[reader].keep] != 0).transpose(0, 1).flatten(1).any(1)
        needed = read & _unpadded(source.steady, given.get("padding", 0)).isnan()
        return needed.reshape(-1, source.repeat).any(1)


def _fill_up(channels: Channels) -> None:
    """Keep some channels more, so that those kept make whole blocks, and whole groups of norms."""
    kept, unit = int(channels.keep.sum()), math.lcm(channels.block, channels.step)
    more = min(math.ceil(kept / unit) * unit, len(channels.keep)) - kept
    channels.keep = channels.keep.clone()
    channels.keep[(~channels.keep).nonzero().flatten()[:more]] = True


def _rank(node: fx.Node) -> int:
    return len(node.meta["val"].shape)


def _unpadded(steady: Tensor, padding: Any) -> Tensor:
    """Return what is steady for a window: where edges are padded by zeros, only zeros are."""
    widths: Iterable[int] = padding if isinstance(padding, list | tuple) else [padding]
    return steady.masked_fill(steady != 0, math.nan) if any(widths) else steady


def _absorbed(weight: Tensor, steady: Tensor, columns: Tensor) -> Tensor:
    """Return what a layer makes of some of its columns, as far as they are steady [outputs]."""
    chosen = columns & ~steady.isnan()
    kernels = weight.reshape(*weight.shape[:2], -1)[:, chosen]
    return kernels.double().sum(2) @ steady[chosen]


def _rewritten(module: fx.GraphModule, walk: _Walk) -> fx.GraphModule:
    """Copy a graph with the tensors that are left."""
    graph, copied = fx.Graph(), dict[fx.Node, fx.Node]()
    result = graph.graph_copy(module.graph, copied)
    graph.output(result)
    root = nn.Module()
    for old, new in copied.items():
        if old.op == "get_attr":
            root.register_buffer(str(old.target), module.get_buffer(str(old.target)))
        for name, value in _changes(old, walk).items() if old in walk.flows else ():
            value = fx.node.map_arg(value, copied.__getitem__)
            if isinstance(value, Tensor):
                held = f"{new.name}_{name}"
                root.register_buffer(held, value)
                with graph.inserting_before(new):
                    value = graph.get_attr(held)
            new.args, new.kwargs = (), arguments(new) | {name: value}
    graph.eliminate_dead_code()
    made = fx.GraphModule(root, graph)
    made.delete_all_unused_submodules()
    return made


def _changes(node: fx.Node, walk: _Walk) -> dict[str, Any]:
    """Return the arguments of an operation that are others after the cut."""
    given, flow = arguments(node), walk.flows[node]
    if node.target in READERS:
        return _narrow(given, flow.keep, walk)
    if flow.keep.all():
        return {}
    if node.target is EXPAND:
        return {"size": [given["size"][0], -1, *given["size"][2:]]}
    if node.target in SHAPED:
        name = SHAPED[node.target]
        return {name: [given[name][0], int(flow.keep.sum())]}
    if node.target not in (BATCH_NORM, GROUP_NORM):
        return {}
    names = ("weight", "bias", "running_mean", "running_var")
    tensors = {name: walk.tensor(given.get(name)) for name in names}
    found: dict[str, Any] = {
        n: value[flow.keep] for n, value in tensors.items() if value is not None
    }
    if node.target is GROUP_NORM:
        found["num_groups"] = given["num_groups"] * int(flow.keep.sum()) // len(flow.keep)
    return found


def _narrow(given: dict[str, Any], rows: Tensor, walk: _Walk) -> dict[str, Any]:
    """Return the rows and columns of a layer that are left; its bias takes over the others."""
    weight, bias = walk.tensor(given["weight"]), walk.tensor(given["bias"])
    assert weight is not None
    source = walk.flows.get(given["input"])
    if rows.all() and (source is None or source.keep.all()):
        # Layers that share a tensor, as those of a recurrent network do, go on sharing it.
        return {}
    if source is not None:
        steady = _unpadded(source.steady, given.get("padding", 0))
        lost = _absorbed(weight, steady, ~source.keep)
        if bias is not None or lost.any():
            bias = (lost if bias is None else bias + lost).to(weight.dtype)
        weight = weight[:, source.keep]
    return {"weight": weight[rows]} | ({} if bias is None else {"bias": bias[rows]})
