"""What a configuration means: its trainings, and what each of them is made of."""

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from masquerade.config import toml as configuration
from masquerade.config.budgets import budgets_of, warn_of_budgets
from masquerade.config.settings import Config, Data
from masquerade.core.method import Method
from masquerade.core.random import Label, choose, fold
from masquerade.core.round import ClientInfo
from masquerade.core.task import Task
from masquerade.cost.forecast import forecast
from masquerade.data import ByClient, Dataset, Federation, load, parse, partition, share
from masquerade.data.corruption import check_images
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.methods import METHODS, Named
from masquerade.models import MODELS, build, load_weights, suitable

SEEN = 64
"""Samples that a forecast sees."""


@dataclass(frozen=True)
class Training:
    """One training of a configuration: a method, the names that are views of it, a seed."""

    method: Method
    names: tuple[str, ...]
    seed: int

    @property
    def folder(self) -> str:
        """Name the run directory."""
        return f"{self.names[0]}-seed{self.seed}"

    def config(self, config: Config) -> Config:
        """Return the configuration of this training alone."""
        train = dataclasses.replace(config.train, seeds=(self.seed,))
        alone = dataclasses.replace(config, methods=self.names, train=train)
        return dataclasses.replace(alone, method=configuration.complete(alone)["method"])


def trainings(config: Config) -> list[Training]:
    """List what a configuration trains: once for all views of one method and its settings."""
    groups = configuration.trainings(config)
    return [
        Training(method, names, seed)
        for seed in config.train.seeds
        for method, names in groups.items()
    ]


CLIENTS = 20
"""How many clients share data that names none."""


def resolve(data: Data, dataset: Dataset) -> Data:
    """Say what "auto" and 0 clients mean for a dataset."""
    named = dataset.client is not None
    rule = data.partition
    if rule == "auto":
        rule = "client" if named and not data.clients else "dirichlet:0.3"
    clients, by = data.clients, parse(rule)
    if isinstance(by, ByClient) and named:
        clients = clients or len(by.named(dataset))
    elif named:
        warnings.warn(
            f"W302 `{dataset.name}` names its clients, and they are mixed by {rule}; "
            "keep them with --partition client",
            MasqueradeWarning,
            stacklevel=2,
        )
    name = data.name
    if name.endswith(".npz"):
        # A run can be resumed from any directory.
        name = str(Path(name).resolve())
    return dataclasses.replace(data, name=name, partition=rule, clients=clients or CLIENTS)


def federation_of(data: Data) -> tuple[Federation, Data]:
    """Load data and spread them over clients; return also what was resolved."""
    dataset = share(load(data.name), data.fraction, data.seed)
    data = resolve(data, dataset)
    made = partition(dataset, data.clients, data.partition, data.seed, data.split, data.merge)
    return made, data


def arrange(config: Config, training: Training) -> dict[str, Any]:
    """Return what a training's simulation is made of."""
    federation, _ = federation_of(config.data)
    if config.data.novel and not round(config.data.novel * federation.clients):
        text = f"`data.novel` is {config.data.novel}, which of {federation.clients} clients is none"
        raise MasqueradeError("E201", f"{text}; give more, or 0")
    shape = tuple(federation.x.shape[1:])
    if federation.classes is None:
        raise MasqueradeError(
            "E202",
            "the command trains classifiers; for other targets call `mq.run` with a `mq.Task`",
        )
    name = suitable(shape) if config.train.model == "auto" else config.train.model
    line = METHODS[training.names[0]]
    name = _network(name, line)
    train = dataclasses.replace(config.train, model=name)
    model = build(name, shape, federation.classes, fold(training.seed, Label.INITIAL))
    if train.weights:
        load_weights(model, train.weights)
        # A run can be resumed from any directory.
        train = dataclasses.replace(train, weights=str(Path(train.weights).resolve()))
    task = Task(model).with_example(federation.x)
    _check_norms(task, name, line)
    return {
        "method": training.method,
        "task": task,
        "federation": federation,
        "train": train,
        "evaluate": config.evaluate,
        "compute": config.compute,
        "seed": training.seed,
        "views": tuple(METHODS[name].view for name in training.names),
        "budgets": _budgets(config.data, federation.clients),
        "novel": novel_clients(federation.clients, config.data.novel, config.data.seed).tolist(),
    }


def settle(config: Config) -> Config:
    """Give every method that is to cost as much as another its FLOPs, by forecast.

    They are written into the configuration, so that a resumed run has the same. Methods that do not
    follow the devices' budgets are named in a warning.
    """
    made = ((METHODS[name].title, configuration.method_of(name, config)) for name in config.methods)
    warn_of_budgets(made, config.data.budgets)
    budgets = [name for name in config.methods if METHODS[name].like]
    if not budgets:
        return config
    tables = configuration.complete(config)["method"]
    for name in budgets:
        tables[name]["spend"] = 1.0
        once = dataclasses.replace(config, method=tables)
        like = configuration.like_of(name, config)
        if not METHODS[like].method.foreseen:
            warnings.warn(
                f"W508 `{name}` gets the FLOPs that {METHODS[like].title} has in its first rounds: "
                "how its masks change size later is not foreseen",
                MasqueradeWarning,
                stacklevel=2,
            )
        wanted = _flops(config, like)
        tables[name]["spend"] = wanted / _flops(once, name)
    return dataclasses.replace(config, method=tables)


def _flops(config: Config, name: str) -> float:
    """Forecast the FLOPs of a method's training, as masks allow, over all seeds."""
    method, total = configuration.method_of(name, config), 0.0
    for seed in config.train.seeds:
        made = arrange(config, Training(method, (name,), seed))
        data, train = made["federation"], made["train"]
        trained = [id for id, count in enumerate(data.samples.tolist()) if count]
        some = torch.cat([data.train[id][:2] for id in trained])[:SEEN]
        cost = forecast(
            method,
            made["task"],
            data.x[some],
            data.y[some],
            [len(data.train[id]) for id in trained],
            train.rounds,
            train.participation,
            seed,
            [len(data.validation[id]) for id in trained],
        )
        total += cost.masked + cost.setup
    return total


def _network(name: str, line: Named) -> str:
    """Name the kind of a network that a method needs, where there is one."""
    wanted = f"{name}_{line.variant}"
    return wanted if wanted in MODELS else name


def _check_norms(task: Task, name: str, line: Named) -> None:
    """Refuse a network in which a method of norms would be plain FedAvg."""
    if line.variant == "bn" and not task.norms:
        there = ", ".join(each for each in MODELS if each.endswith("_bn"))
        text = f"{line.title} needs another kind of network than {name}, which has no norms"
        raise MasqueradeError("E202", f"{text}; there are {there}")


def rehearse(config: Config) -> None:
    """Try whether every training can begin, so that none fails when others are done."""
    for training in trainings(config):
        made = arrange(config, training)
        method, task = made["method"], made["task"]
        if config.evaluate.corruptions:
            check_images(made["federation"].x)
        method.server_init(task)
        # Whoever has more room than the smallest and less than the largest can begin as they do.
        for budget in {min(made["budgets"]), max(made["budgets"])}:
            info = ClientInfo(0, 1, 0, budget)
            method.row_init(task, info)
            method.client_init(task, info)


def _budgets(data: Data, clients: int) -> list[float]:
    """Return every client's budget; more of them than clients are left out."""
    given = data.budgets
    return budgets_of(given if isinstance(given, str) else given[:clients], clients, data.seed)


def check_novel(novel: Sequence[int], clients: int) -> None:
    """Refuse what are not different clients."""
    fit = isinstance(novel, Sequence)
    if not fit or len(set(novel)) < len(novel) or not set(novel) <= set(range(clients)):
        text = f"list different clients from 0 to {clients - 1}"
        raise MasqueradeError("E201", f"`novel` is {novel!r}; {text}")


def novel_clients(clients: int, share: float, seed: int) -> Tensor:
    """Choose the clients that are kept out of training, in ascending order."""
    return choose(fold(seed, Label.NOVEL), torch.arange(clients), round(share * clients))
