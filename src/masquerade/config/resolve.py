"""What a configuration means: its trainings, and for each a complete, frozen specification."""

import dataclasses
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor, nn

from masquerade.config import code, toml
from masquerade.config.budgets import budgets_of, warn_of_budgets
from masquerade.config.metrics import metrics_for
from masquerade.config.normalize import preprocess_for
from masquerade.config.normalize import resolved as resolved_normalize
from masquerade.config.settings import (
    TABLE_OPTIONS,
    Compute,
    Config,
    Data,
    Evaluate,
    Privacy,
    Train,
)
from masquerade.core.method import Method
from masquerade.core.metric import Rule
from masquerade.core.preprocess import Preprocess, shape_after
from masquerade.core.random import Label, choose, fold
from masquerade.core.regression import mae, squared_error
from masquerade.core.round import ClientInfo
from masquerade.core.task import Task
from masquerade.cost.forecast import forecast
from masquerade.data import ByClient, Dataset, Federation, parse, partition, share
from masquerade.data.corruption import check_images
from masquerade.data.readers.options import TableOptions
from masquerade.data.source import is_file, loaded
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.methods import METHODS, MethodEntry
from masquerade.metrics import METRICS
from masquerade.models import MODELS, build, load_weights, suitable

CLIENTS = 20
"""How many clients share data that names none."""
SEEN = 64
"""How many samples a forecast sees."""


@dataclass(frozen=True, eq=False)
class TrainingSpec:
    """One training, complete: data, model, method, settings and seed, all resolved."""

    method: Method
    task: Task
    federation: Federation
    train: Train
    evaluate: Evaluate
    compute: Compute
    seed: int
    views: tuple[str, ...]
    names: tuple[tuple[str, str], ...] = ()
    """For every view, the name and title of its row in tables; by default those of `row_names`."""
    budgets: tuple[float, ...] = ()
    """Every client's share of the parameters; empty where all have room for all of them."""
    novel: tuple[int, ...] = ()
    """Clients that are kept out of training."""
    data: Data | None = None
    """How the federation was made; None where a program made it."""
    privacy: Privacy = field(default_factory=Privacy)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """Rules on outputs, by name, that all views are evaluated under as well."""

    def __post_init__(self) -> None:
        """Refuse class weights where there are no classes to weigh."""
        one_class = self.federation.classes is not None and self.federation.y.ndim == 1
        if self.train.class_weights != "none" and not (one_class and self.task.classifies):
            text = "`train.class_weights` needs a class per sample, and cross entropy as the loss"
            raise MasqueradeError("E202", f"{text}; set it to none")

    @property
    def titles(self) -> tuple[tuple[str, str], ...]:
        """Return the name and the title of every view; two names may be of one view."""
        return self.names or tuple(row_names(self.method, view) for view in self.views)


def row_names(method: Method, view: str) -> tuple[str, str]:
    """Return the name and the title of a row: those of its entry of METHODS, else of its class.

    A view that has no entry and is not the default stands in parentheses: "DM-PFL (global)".
    """
    own, first = _entry_of(method, view), _entry_of(method, method.views[0])
    if own:
        return own
    cls = type(method).__name__
    name, title = first or (cls.lower(), cls)
    return (name, title) if view == method.views[0] else (f"{name} ({view})", f"{title} ({view})")


def _entry_of(method: Method, view: str) -> tuple[str, str] | None:
    """Find the entry of a view: of those whose settings fit, the one that states most of them."""
    entries = METHODS.of_class(type(method)).items()
    fitting = [
        (len(entry.settings), name, entry.title)
        for name, entry in entries
        if entry.view == view and vars(method).items() >= set(entry.settings)
    ]
    # The first of those that state as many.
    return max(fitting, key=itemgetter(0))[1:] if fitting else None


@dataclass(frozen=True)
class Training:
    """One training of a configuration: a method, the names that are views of it, a seed."""

    method: Method
    names: tuple[str, ...]
    seed: int

    @property
    def folder(self) -> str:
        """Name the run directory."""
        # Code from a file is called FILE.py:NAME.
        return f"{re.sub(r'[^a-zA-Z0-9._-]', '_', self.names[0])}-seed{self.seed}"


def trainings(config: Config) -> list[Training]:
    """List what a configuration trains: once for all views of one method and its settings."""
    groups: dict[Method, tuple[str, ...]] = {}
    for name in config.methods:
        method = toml.method_of(name, config)
        groups[method] = (*groups.get(method, ()), name)
    return [
        Training(method, names, seed)
        for seed in config.train.seeds
        for method, names in groups.items()
    ]


def alone(config: Config, training: Training) -> Config:
    """Return the configuration of one training alone."""
    train = dataclasses.replace(config.train, seeds=(training.seed,))
    used = {*training.names, config.train.model}
    code_of = {name: sha256 for name, sha256 in config.code.items() if name in used}
    own = dataclasses.replace(config, methods=training.names, train=train, code=code_of)
    return dataclasses.replace(own, method=toml.complete(own)["method"])


def resolved(config: Config, training: Training, spec: TrainingSpec) -> Config:
    """Return the same with what "auto" stands for, as it is written into a run directory."""
    assert spec.data is not None
    own = alone(config, training)
    train = dataclasses.replace(spec.train, seeds=(training.seed,))
    return dataclasses.replace(own, data=spec.data, train=train, compute=spec.compute)


def resolve_data(data: Data, dataset: Dataset) -> Data:
    """Say what "auto" and 0 clients mean for a dataset."""
    named = dataset.client is not None
    rule = data.partition
    if rule == "auto":
        by_class = dataset.classes is not None and dataset.y.ndim == 1
        mixed = "dirichlet:0.3" if by_class else "iid"
        rule = "client" if named and not data.clients else mixed
    clients, by = data.clients, parse(rule)
    if isinstance(by, ByClient) and named:
        clients = clients or len(by.named(dataset))
    # A run can be resumed from any directory.
    name = str(Path(data.name).resolve()) if is_file(data.name) else data.name
    normalize = resolved_normalize(data.normalize, bool(dataset.features))
    clients = clients or CLIENTS
    return dataclasses.replace(
        data, name=name, partition=rule, clients=clients, normalize=normalize
    )


def table_options(data: Data) -> TableOptions:
    """Return what settings say of a table."""
    return TableOptions(**{option: getattr(data, key) for option, key in TABLE_OPTIONS.items()})


def federations_of(data: Data, seeds: Sequence[int]) -> tuple[dict[int, Federation], Data]:
    """Load data and partition them over clients, for every training seed; say what was resolved.

    It is one federation for all seeds, or as many as there are seeds, which share their samples.
    """
    dataset = share(loaded(data.name, table_options(data)), data.fraction, data.seed)
    data = resolve_data(data, dataset)
    settings = (dataset, data.clients, data.partition)
    if data.partition_per_seed:
        rest = (data.split, data.merge, data.seed)
        return {seed: partition(*settings, seed, *rest) for seed in seeds}, data
    made = partition(*settings, data.seed, data.split, data.merge)
    return dict.fromkeys(seeds, made), data


def federation_of(data: Data, seed: int = 1) -> tuple[Federation, Data]:
    """Load data and partition them over clients, for one training seed; say what was resolved."""
    federations, data = federations_of(data, [seed])
    return federations[seed], data


@dataclass(frozen=True, eq=False)
class LoadedConfig:
    """A configuration with its data, loaded once for all of its trainings."""

    config: Config
    federations: Mapping[int, Federation]
    """By training seed."""
    data: Data
    """How the federations were made, all resolved."""

    @classmethod
    def of(cls, config: Config) -> "LoadedConfig":
        """Load and partition the data of a configuration."""
        return cls(config, *federations_of(config.data, config.train.seeds))

    def alone(self, config: Config) -> "LoadedConfig":
        """Return another configuration with these data; data that differ are loaded anew."""
        known = set(config.train.seeds) <= self.federations.keys()
        if config.data not in (self.config.data, self.data) or not known:
            return LoadedConfig.of(config)
        return dataclasses.replace(self, config=config)

    def resolve(self, training: Training) -> TrainingSpec:
        """Return everything that a training is made of."""
        federation = self.federations[training.seed]
        return _specified(self.config, federation, self.data, training)


def resolve(config: Config, training: Training) -> TrainingSpec:
    """Return everything that a training is made of: its data are loaded and partitioned here."""
    return LoadedConfig.of(config).resolve(training)


def _specified(
    config: Config, federation: Federation, data: Data, training: Training
) -> TrainingSpec:
    if data.novel and not round(data.novel * federation.clients):
        text = f"`data.novel` is {data.novel}, which of {federation.clients} clients is none"
        raise MasqueradeError("E201", f"{text}; give more, or 0")
    preprocess = preprocess_for(data, federation)
    entry = METHODS[training.names[0]]
    # Who is novel and who has which device belong to a partition.
    drawn = training.seed if data.partition_per_seed else data.seed
    train, task = task_of(config.train, entry, federation, training.seed, preprocess)
    given = data.budgets if isinstance(data.budgets, str) else data.budgets[: federation.clients]
    return TrainingSpec(
        method=training.method,
        task=task,
        federation=federation,
        train=train,
        evaluate=config.evaluate,
        compute=config.compute,
        seed=training.seed,
        views=tuple(METHODS[name].view for name in training.names),
        names=tuple((name, toml.title_of(name, config)) for name in training.names),
        budgets=tuple(budgets_of(given, federation.clients, drawn)),
        novel=tuple(novel_clients(federation.clients, data.novel, drawn).tolist()),
        data=data,
        privacy=config.privacy,
    )


def task_of(
    train: Train,
    entry: MethodEntry,
    federation: Federation,
    seed: int,
    preprocess: Preprocess | None = None,
) -> tuple[Train, Task]:
    """Build the task of a training; return its settings with the network that "auto" means."""
    shape = shape_after(preprocess, federation.x.shape[1:])
    outputs = outputs_for(federation)
    name = suitable(shape) if train.model == "auto" else train.model
    # Some methods need a kind of network of their own, where there is one.
    wanted = f"{name}_{entry.variant}"
    name = wanted if wanted in MODELS else name
    key = fold(seed, Label.INITIAL)
    if name in code.LOADED:
        model = _own_network(name, shape, outputs, key)
    else:
        model = build(name, shape, outputs, key)
    train = dataclasses.replace(train, model=name)
    if train.weights:
        load_weights(model, train.weights)
        # A run can be resumed from any directory.
        train = dataclasses.replace(train, weights=str(Path(train.weights).resolve()))
    task = task_for(model, federation.classes, preprocess).with_example(federation.x)
    if entry.variant == "bn" and not task.norms:
        there = ", ".join(each for each in MODELS if each.endswith("_bn"))
        text = f"{entry.title} needs another kind of network than {name}, which has no norms"
        raise MasqueradeError("E202", f"{text}; there are {there}")
    return train, task


def outputs_for(federation: Federation) -> int:
    """Return how many outputs a network needs: one for every class, or for every number."""
    return federation.classes or math.prod(federation.y.shape[1:])


def task_for(
    model: nn.Module | Task, classes: int | None, preprocess: Preprocess | None = None
) -> Task:
    """Make the task that targets ask for: classification, or regression where they have no classes.

    A task is what it is.
    """
    if isinstance(model, Task):
        return model
    if classes is not None:
        return Task(model, preprocess=preprocess)
    further = {"rmse": METRICS["rmse"]}
    return Task(
        *(model, squared_error, mae),
        better="lower",
        set_metrics=further,
        preprocess=preprocess,
    )


def _own_network(name: str, shape: tuple[int, ...], outputs: int, key: int) -> nn.Module:
    """Build a network of the user's own; what it draws depends on the key alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key)
        try:
            model = code.network(name)(shape, outputs)
        except Exception as error:
            text = f"`{name}` failed for shape {shape} and {outputs} outputs"
            cause = f"{type(error).__name__}: {error}"
            raise MasqueradeError("E202", f"{text} ({cause}); mend it") from error
    if not isinstance(model, nn.Module):
        raise MasqueradeError("E202", f"`{name}` returned {model!r}; return a torch.nn.Module")
    return model


def with_partition(loaded: LoadedConfig, config: Config) -> Config:
    """Return a configuration of the same data that says which partition "auto" is."""
    found = loaded.data
    data = dataclasses.replace(config.data, clients=found.clients, partition=found.partition)
    return dataclasses.replace(config, data=data)


def settle(loaded: LoadedConfig) -> LoadedConfig:
    """Give every method that is to cost as much as another its FLOPs, by forecast.

    They are written into the configuration, so that a resumed run has the same. Methods that do not
    follow the devices' budgets are named in a warning.
    """
    config = loaded.config
    made = ((METHODS[name].title, toml.method_of(name, config)) for name in config.methods)
    warn_of_budgets(made, config.data.budgets)
    budgets = [name for name in config.methods if METHODS[name].like]
    if not budgets:
        return loaded
    tables = toml.complete(config)["method"]
    for name in budgets:
        tables[name]["spend"] = 1.0
        once = loaded.alone(dataclasses.replace(config, method=tables))
        like = toml.like_of(name, config)
        if not METHODS[like].method.foreseen:
            warnings.warn(
                f"W508 `{name}` gets the FLOPs that {METHODS[like].title} has in its first rounds: "
                "how its masks change size later is not foreseen",
                MasqueradeWarning,
                stacklevel=2,
            )
        tables[name]["spend"] = _flops(loaded, like) / _flops(once, name)
    return loaded.alone(dataclasses.replace(config, method=tables))


def _flops(loaded: LoadedConfig, name: str) -> float:
    """Forecast the FLOPs of a method's training, as masks allow, over all seeds."""
    method, total = toml.method_of(name, loaded.config), 0.0
    for seed in loaded.config.train.seeds:
        spec = loaded.resolve(Training(method, (name,), seed))
        data = spec.federation
        trained = [id for id, count in enumerate(data.samples.tolist()) if count]
        some = torch.cat([data.train[id][:2] for id in trained])[:SEEN]
        cost = forecast(
            method,
            spec.task.fitted_on(data.x[some]),
            data.x[some],
            data.y[some],
            [len(data.train[id]) for id in trained],
            spec.train.rounds,
            spec.train.participation,
            seed,
            [len(data.validation[id]) for id in trained],
        )
        total += cost.masked + cost.setup
    return total


def rehearse(loaded: LoadedConfig) -> None:
    """Try whether every training can begin, so that none fails when others are done."""
    for training in trainings(loaded.config):
        spec = loaded.resolve(training)
        # Neither costs nor beginnings depend on what numbers samples are scaled to.
        task = spec.task.fitted_on(spec.federation.x[:SEEN])
        metrics_for(loaded.config.evaluate.metrics, spec.federation)
        if loaded.config.evaluate.corruptions:
            check_images(spec.federation.x)
        spec.method.server_init(task)
        # Whoever has more room than the smallest and less than the largest can begin as they do.
        for budget in {min(spec.budgets), max(spec.budgets)}:
            info = ClientInfo(0, 1, 0, budget)
            spec.method.row_init(task, info)
            spec.method.client_init(task, info)


def check_novel(novel: Sequence[int], clients: int) -> None:
    """Refuse what are not different clients."""
    fit = isinstance(novel, Sequence)
    if not fit or len(set(novel)) < len(novel) or not set(novel) <= set(range(clients)):
        text = f"list different clients from 0 to {clients - 1}"
        raise MasqueradeError("E201", f"`novel` is {novel!r}; {text}")


def novel_clients(clients: int, share: float, seed: int) -> Tensor:
    """Choose the clients that are kept out of training, in ascending order."""
    return choose(fold(seed, Label.NOVEL), torch.arange(clients), round(share * clients))
