"""A task: preprocessing, the network as a function of its tree, its loss and metric, its layers."""

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from masquerade.core.batch_norm import take_one_value
from masquerade.core.dp import DPSGD
from masquerade.core.dropout import Dropout
from masquerade.core.metric import SetMetric
from masquerade.core.preprocess import Preprocess, Scale, Unfitted, fitted_on, moved
from masquerade.core.random import Label, fold
from masquerade.core.round import Batch
from masquerade.core.tree import Tree, split
from masquerade.core.vmap import mapped
from masquerade.errors import MasqueradeError, told

PerSample = Callable[[Tensor, Tensor], Tensor]
Transform = Callable[[Tensor, Tensor], Tensor]

TOKENS = (torch.int8, torch.int16, torch.int32)
"""Narrow integer types, which tokens may have to save memory; layers ask for wider ones."""

KINDS: dict[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.Conv1d: "conv",
    nn.Conv2d: "conv",
    nn.Conv3d: "conv",
    nn.Embedding: "embedding",
    nn.LSTM: "lstm",
    nn.GRU: "gru",
    nn.GroupNorm: "norm",
    nn.LayerNorm: "norm",
    nn.BatchNorm1d: "norm",
    nn.BatchNorm2d: "norm",
    nn.BatchNorm3d: "norm",
}


@dataclass(frozen=True)
class Layer:
    """A module that owns parameters, in the order the network registers them."""

    name: str
    kind: str
    """"linear", "conv", "norm", "embedding", "lstm", "gru" or "other"."""
    weight: str | None
    bias: str | None


def _are_numbers(x: Tensor) -> bool:
    """Tell samples that are numbers or pixels from tokens."""
    return x.is_floating_point() or x.dtype == torch.uint8


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Return the cross entropy of every sample."""
    if _mapped_on_a_cpu(output) and output.ndim == 2:
        return -output.log_softmax(-1).gather(-1, y[:, None]).squeeze(-1)
    return nn.functional.cross_entropy(output, y, reduction="none")


def _mapped_on_a_cpu(output: Tensor) -> bool:
    # Mapped over clients, torch's cross entropy falls back to Python: a tenth of a small step.
    return mapped() and output.device.type == "cpu"


def accuracy(output: Tensor, y: Tensor) -> Tensor:
    """Return 100 for every sample that is right, 0 for every other: percent."""
    return (output.argmax(-1) == y).to(torch.float64) * 100


class Task:
    """The network as a pure function, and what training and evaluating it mean.

    Any `torch.nn.Module` will do. `loss(output, y)` and `metric(output, y)` return one number per
    sample (cross entropy and accuracy in percent by default); `transform(x, key)` augments a
    training batch and draws what it needs from the key. `better` says which way the metric goes.
    `set_metrics` are further metrics, by name, of all outputs and targets of a client's test set.
    `preprocess(x)` turns samples [samples, …] as the data hold them into what the network reads: by
    default bytes are divided by 255, and a run on a table (`Federation.features`) standardizes
    numbers and encodes categories (`Tabular`). Tokens are never preprocessed.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: PerSample = cross_entropy,
        metric: PerSample = accuracy,
        transform: Transform | None = None,
        better: str = "higher",
        set_metrics: Mapping[str, SetMetric | Callable[[Tensor, Tensor], float | None]]
        | None = None,
        preprocess: Preprocess | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            text = f"`model` of a task is {told(model)}; give a network, a torch.nn.Module"
            raise MasqueradeError("E201", text)
        self.module = copy.deepcopy(model)
        take_one_value(self.module)
        self._loss = loss
        self.metric = metric
        self.transform = transform
        if better not in ("higher", "lower"):
            raise MasqueradeError("E202", f"`better` is {better!r}; choose higher or lower")
        self.better = better
        if not isinstance(set_metrics or {}, Mapping):
            raise MasqueradeError("E202", 'write `set_metrics={"name": function}`')
        self.set_metrics = {
            name: given if isinstance(given, SetMetric) else SetMetric(given)
            for name, given in (set_metrics or {}).items()
        }
        self._sample: Tensor | None = None
        self.initial: Tree = {
            name: value.detach().clone() for name, value in self._tensors(self.module)
        }
        self._buffers = {name for name, _ in self.module.named_buffers()}
        self._frozen = {n for n, value in self.module.named_parameters() if not value.requires_grad}
        self._slots = list(self._find_slots())
        self._dropouts = self._find_dropouts()
        self.layers = tuple(self._find_layers())
        floats = [value for value in self.initial.values() if value.is_floating_point()]
        self.dtype = floats[0].dtype if floats else torch.float32
        self.preprocess = moved(preprocess or Scale(), self.dtype)
        self.preprocess_is_default = preprocess is None
        self.class_weights: Tensor | None = None
        self.dp: DPSGD | None = None
        # Layers that count or normalize over a batch see padding; engines ask before they pad.
        self.couples_batch = any(
            isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.module.modules()
        )

    def __repr__(self) -> str:
        loss, metric = (
            getattr(each, "__name__", type(each).__name__) for each in (self._loss, self.metric)
        )
        network = f"{type(self.module).__name__}, {self.parameters:,} parameters"
        return f"<Task: {network}, loss {loss}, metric {metric}>"

    @staticmethod
    def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        yield from module.named_parameters()
        yield from module.named_buffers()

    def _find_slots(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Find for every name of the tree the dict of the module that holds it.

        Writing the tensors straight into these dicts costs a tenth of `functional_call`, which on
        small networks costs as much as the network.
        """
        # Layers that share a tensor have one name for it and a place each.
        names = {id(value): name for name, value in self._tensors(self.module)}
        for module in self.module.modules():
            for holder in (module._parameters, module._buffers):
                for leaf, value in holder.items():
                    if id(value) in names:
                        yield names[id(value)], holder, leaf

    def _find_dropouts(self) -> list[Dropout]:
        return [module for module in self.module.modules() if isinstance(module, Dropout)]

    def _find_layers(self) -> Iterator[Layer]:
        for path, module in self.module.named_modules():
            own = {f"{path}.{leaf}" if path else leaf for leaf, _ in module._parameters.items()}
            own &= self.initial.keys()
            if own:
                kind = next(
                    (kind for cls, kind in KINDS.items() if isinstance(module, cls)), "other"
                )
                prefix = f"{path}." if path else ""
                yield Layer(
                    path,
                    kind,
                    f"{prefix}weight" if f"{prefix}weight" in own else None,
                    f"{prefix}bias" if f"{prefix}bias" in own else None,
                )

    @property
    def trains_otherwise(self) -> bool:
        """Tell whether training computes otherwise than use: dropout, batch norm, a transform."""
        kinds = (Dropout, nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
        layers = any(isinstance(module, kinds) for module in self.module.modules())
        return layers or self.transform is not None

    @property
    def functions(self) -> dict[str, object]:
        """Return what a user may have given beside the network: loss, metric, transform."""
        given = {"loss": self._loss, "metric": self.metric, "transform": self.transform}
        return {name: each for name, each in given.items() if each is not None}

    @property
    def classifies(self) -> bool:
        """Tell whether outputs are logits: they are where the loss is `cross_entropy`."""
        return self._loss is cross_entropy

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of every tensor of the tree."""
        return {name: value.shape for name, value in self.initial.items()}

    @property
    def parameters(self) -> int:
        """Count the parameters, frozen ones too; buffers are none."""
        return sum(self.initial[name].numel() for name in self.parameter_names)

    @property
    def parameter_names(self) -> list[str]:
        """List the names of the tree that are parameters."""
        return [name for name in self.initial if name not in self._buffers]

    def last(self, count: int) -> tuple[str, ...]:
        """List the tensors of the last `count` weighted layers, with norms that follow them.

        Layers are counted in the order in which the network registers them.
        """
        weighted = [layer.name for layer in self.layers if layer.kind != "norm"]
        if not 0 <= count <= len(weighted):
            listed = ", ".join(weighted)
            raise MasqueradeError(
                "E202", f"{count} layers are asked for; the network has {len(weighted)}: {listed}"
            )
        places = {path: place for place, (path, _) in enumerate(self.module.named_modules())}
        first = places[weighted[-count]] if count else len(places)
        return tuple(n for n in self.initial if places[n.rpartition(".")[0]] >= first)

    def divide(self, count: int) -> tuple[Tree, Tree]:
        """Return the initial body and head, the head being the last `count` weighted layers."""
        head, body = split(self.initial, self.last(count))
        if not body:
            raise MasqueradeError(
                "E202", f"a head of {count} layers is the whole network; leave a layer to the body"
            )
        return body, head

    def join(self, *trees: Tree) -> Tree:
        """Put trees that are pieces of the network together, in the network's order of names."""
        found = {name: value for tree in trees for name, value in tree.items()}
        return {name: found[name] for name in self.initial}

    @property
    def norms(self) -> tuple[str, ...]:
        """List the tensors of norm layers, their running statistics too."""
        kinds = tuple(cls for cls, kind in KINDS.items() if kind == "norm")
        paths = {path for path, module in self.module.named_modules() if isinstance(module, kinds)}
        return tuple(name for name in self.initial if name.rpartition(".")[0] in paths)

    def trainable(self, name: str) -> bool:
        """Tell whether training moves a tensor; buffers and frozen parameters stay.

        Names of other trees (a gate, scores) are trainable.
        """
        return name not in self._buffers and name not in self._frozen

    def to(self, device: torch.device | str) -> "Task":
        """Return the task on a device."""
        initial = {name: value.to(device) for name, value in self.initial.items()}
        there = self._with(copy.deepcopy(self.module).to(device), initial)
        there.preprocess = moved(self.preprocess, device)
        if self.class_weights is not None:
            there.class_weights = self.class_weights.to(device)
        return there

    def double(self) -> "Task":
        """Return the task in double precision, in which rounding is told from mistakes."""
        initial = {
            name: (value.double() if value.is_floating_point() else value).clone()
            for name, value in self.initial.items()
        }
        doubled = self._with(copy.deepcopy(self.module).double(), initial)
        doubled.dtype, doubled._sample = torch.float64, None
        doubled.preprocess = moved(self.preprocess, torch.float64)
        if self.class_weights is not None:
            doubled.class_weights = self.class_weights.double()
        return doubled

    def _with(self, module: nn.Module, initial: Tree) -> "Task":
        """Return the task with another form of the same network."""
        other = copy.copy(self)
        other.module, other.initial = module, initial
        other._slots = list(other._find_slots())
        other._dropouts = other._find_dropouts()
        return other

    def with_initial(self, initial: Tree) -> "Task":
        """Return the task with other initial weights; refuse those of another network."""
        theirs = {name: (value.shape, value.dtype) for name, value in initial.items()}
        for name, value in self.initial.items():
            if theirs.pop(name, None) != (value.shape, value.dtype):
                known = initial.get(name)
                found = "there is none" if known is None else f"it is {told(known)} there"
                text = f"`{name}` of the network is {told(value)}, and {found}"
                raise MasqueradeError("E402", f"{text}; give the same network")
        if theirs:
            text = f"the network has no `{next(iter(theirs))}`, which there is"
            raise MasqueradeError("E402", f"{text}; give the same network")
        other = copy.copy(self)
        other.initial = {name: initial[name].to(self.initial[name]) for name in self.initial}
        return other

    def with_preprocess(self, preprocess: Preprocess) -> "Task":
        """Return the task with other preprocessing."""
        other = copy.copy(self)
        other.preprocess, other.preprocess_is_default = moved(preprocess, self.dtype), False
        return other

    def fitted_on(self, x: Tensor) -> "Task":
        """Return the task with preprocessing fitted on samples x [samples, …] alone."""
        return self.with_preprocess(fitted_on(self.preprocess, x))

    def with_class_weights(self, weights: Tensor | None) -> "Task":
        """Return the task whose loss in training weighs every sample by its class [classes]."""
        other = copy.copy(self)
        other.class_weights = weights
        return other

    def with_dp(self, dp: DPSGD | None) -> "Task":
        """Return the task whose SGD steps are private to samples."""
        other = copy.copy(self)
        other.dp = dp
        return other

    def with_example(self, x: Tensor) -> "Task":
        """Return the task that knows what its samples x [samples, …] look like."""
        if not _are_numbers(x) and type(self.preprocess) is not Scale:
            raise MasqueradeError(
                "E202",
                f"samples of {x.dtype} are tokens, which are never preprocessed; store numbers as "
                "float32 or uint8, or leave `data.normalize` (`preprocess` of a task) as it was",
            )
        if not isinstance(self.preprocess, Unfitted):
            self.inputs(x[:1])
        knowing = copy.copy(self)
        knowing._sample = torch.zeros_like(x[:1])
        return knowing

    @property
    def sample(self) -> Tensor:
        """Return what a sample looks like, as the data hold it: zeros [1, …] of its type."""
        if self._sample is None:
            raise MasqueradeError(
                "E202", "the task does not know its inputs; use `task.with_example(x)`"
            )
        return self._sample

    def positions(self) -> dict[str, int]:
        """Count how often each parameter is used on one sample: once for every place of its layer.

        A parameter of a layer of unknown kind, or of one that does not run, counts once.
        """
        places = dict.fromkeys(self.parameter_names, 1)
        modules = dict(self.module.named_modules())

        def watch(layer: Layer) -> Any:
            def hook(module: nn.Module, given: Any, output: Any) -> None:
                found = output if isinstance(output, Tensor) else output[0]
                normed = layer.kind == "norm" and not isinstance(module, nn.LayerNorm)
                width = found.shape[1 if normed or layer.kind == "conv" else -1]
                for leaf, _ in module.named_parameters(prefix=layer.name, recurse=False):
                    places[leaf] = found.numel() // width

            return modules[layer.name].register_forward_hook(hook)

        hooks = [watch(layer) for layer in self.layers if layer.kind != "other"]
        try:
            with torch.no_grad():
                self(self.initial, self.sample)
        finally:
            for hook in hooks:
                hook.remove()
        return places

    def fresh(self, key: int) -> Tree:
        """Draw new initial weights from a key, by the layers' own `reset_parameters`.

        What has no such rule keeps its initial weights. Tasks that begin elsewhere, as those of
        another seed do, draw others from the same key.
        """
        module = copy.deepcopy(self.module).cpu()
        began = 0
        for value in self.initial.values():
            bits = value.detach().cpu().reshape(-1).view(torch.uint8)
            began = zlib.crc32(bits.numpy().tobytes(), began)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(fold(key, began))
            for part in module.modules():
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
        return {
            name: value.detach().to(self.initial[name].device)
            for name, value in self._tensors(module)
        }

    def inputs(self, x: Tensor) -> Tensor:
        """Return samples as the network reads them: preprocessed, unless they are tokens."""
        if _are_numbers(x):
            return self.preprocess(x).to(self.dtype)
        return x.long() if x.dtype in TOKENS else x

    def __call__(
        self, values: Tree, x: Tensor, train: bool = False, key: Tensor | None = None
    ) -> tuple[Tensor, Tree]:
        """Run the network with these values: (output, new buffers)."""
        x = self.inputs(x)
        if train and self.transform is not None:
            assert key is not None
            x = self.transform(x, key)
        before = [holder[leaf] for _, holder, leaf in self._slots]
        try:
            for name, holder, leaf in self._slots:
                value = values[name]
                # Layers write their buffers in place: they get a copy, and the caller's stay.
                holder[leaf] = value.clone() if train and name in self._buffers else value
            self.module.train(train) if self.module.training != train else None
            if train and self._dropouts:
                assert key is not None
                noise = torch.as_tensor(fold(key, Label.DROPOUT))
                for place, layer in enumerate(self._dropouts):
                    layer.key = noise + place
            output = self.module(x)
            buffers = {
                name: holder[leaf] for name, holder, leaf in self._slots if name in self._buffers
            }
        finally:
            for (_, holder, leaf), value in zip(self._slots, before, strict=True):
                holder[leaf] = value
            for layer in self._dropouts:
                layer.key = None
        if not isinstance(output, Tensor):
            text = f"the network returned {told(output)}; return one tensor, [samples, outputs]"
            raise MasqueradeError("E202", f"{text}, or wrap it in a module that does")
        # Products in a shorter type end here: losses and metrics see the network's own.
        output = output.to(self.dtype) if output.is_floating_point() else output
        return output, buffers if train else {}

    def outputs(self, values: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """Return (outputs, new buffers) as in training: for a loss of one's own.

        Samples are augmented, dropout drops, and norms take the statistics of the batch.
        """
        return self(values, batch.x, True, batch.key)

    def weighted_loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss of every sample in training: times what its class weighs."""
        losses = self._loss(output, y)
        return losses if self.class_weights is None else losses * self.class_weights[y]

    def losses(self, values: Tree, batch: Batch, train: bool = True) -> tuple[Tensor, Tree]:
        """Return (the loss of every sample, new buffers); classes weigh in training alone."""
        output, buffers = self(values, batch.x, train, batch.key)
        loss = self.weighted_loss if train else self._loss
        return loss(output, batch.y), buffers

    def loss(self, values: Tree, batch: Batch, train: bool = True) -> tuple[Tensor, Tree]:
        """Return (the mean loss over the real samples of a batch, new buffers)."""
        output, buffers = self(values, batch.x, train, batch.key)
        plain = self.classifies and self.class_weights is None
        if batch.valid is None and plain and not _mapped_on_a_cpu(output):
            # The usual case in one operation: on small networks a second one is a tenth of a step.
            return nn.functional.cross_entropy(output, batch.y), buffers
        loss = self.weighted_loss if train else self._loss
        return batch.mean(loss(output, batch.y)), buffers
