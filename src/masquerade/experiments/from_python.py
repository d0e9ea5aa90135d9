"""From Python: `mq.run` and `mq.compare`, which take objects where a configuration has names."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Never, TypedDict, Unpack

from torch import nn

from masquerade.config import toml
from masquerade.config.availability import check as check_available
from masquerade.config.budgets import Budgets, budgets_of, warn_of_budgets
from masquerade.config.resolve import TrainingSpec, check_novel
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core.method import Method
from masquerade.core.metric import Rule
from masquerade.core.part import Part
from masquerade.core.preprocess import describe
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.errors import MasqueradeError
from masquerade.experiments.arguments import check_arguments
from masquerade.experiments.callbacks import Callback
from masquerade.experiments.result import Comparison, Result
from masquerade.experiments.run import complete, directory_at, running, write_comparison
from masquerade.methods import METHODS
from masquerade.simulation.build import Simulation
from masquerade.storage.results import COMPARISON
from masquerade.storage.run_directory import RunDirectory
from masquerade.wire import digest

Model = nn.Module | Task
Named = Callable[[str], tuple[str, str]]
"""From a view to its name and title in results."""


class TrainSettings(TypedDict, total=False):
    """Settings of training that `mq.run` and `mq.compare` take; `Train` has their defaults."""

    batch_size: int
    participation: float
    lr_decay: float
    clients_per_round: int
    available: str
    drop: float
    message_dtype: str


class RunSettings(TrainSettings, total=False):
    """All settings that both take."""

    evaluate: Evaluate | None
    compute: Compute | None
    budgets: Budgets
    novel: Sequence[int]
    rules: Mapping[str, Rule] | None


def run(
    method: Method,
    model: Model,
    federation: Federation,
    rounds: int = 60,
    *,
    batch_size: int = 10,
    participation: float = 1.0,
    lr_decay: float = 1.0,
    seed: int = 1,
    views: Sequence[str] | None = None,
    evaluate: Evaluate | None = None,
    compute: Compute | None = None,
    budgets: Budgets = (1.0,),
    clients_per_round: int = 0,
    available: str = "always",
    drop: float = 0.0,
    message_dtype: str = "same",
    novel: Sequence[int] = (),
    rules: Mapping[str, Rule] | None = None,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    **unknown: Never,
) -> Result:
    """Train a method on a federation and evaluate it.

    `model` is any module, or a `Task` where classification by cross entropy is not the problem.
    Its weights are where training begins; `seed` decides cohorts, batches and shift partners.
    `budgets` are shares of the parameters that devices can hold, which clients take in turn, or
    "random:LOW:HIGH". In a round a share `participation` of the clients is sampled, or
    `clients_per_round` of them, among those that are `available`; the update of each is lost with
    probability `drop`. `novel` clients are kept out of training and evaluated apart. Numbers in
    messages are of `message_dtype`. `rules` on outputs are evaluated beside the views. With `out`
    the run has a directory, with models, summary and report page; the same call goes on from its
    last commit after any interruption. `callbacks` are told of rounds, evaluations and commits.
    """
    check_arguments(method, model, federation, unknown)
    spec = _specified(
        method,
        model,
        federation,
        rounds,
        seed,
        lambda view: _name(method, view),
        views,
        batch_size=batch_size,
        participation=participation,
        lr_decay=lr_decay,
        clients_per_round=clients_per_round,
        available=available,
        drop=drop,
        message_dtype=message_dtype,
        evaluate=evaluate,
        compute=compute,
        budgets=budgets,
        novel=novel,
        rules=rules,
    )
    opened = None if out is None else directory_at(Path(out), begun=True)
    with running(spec, _program, opened) as made:
        return complete(made, callbacks, page=True)


def compare(
    methods: Sequence[Method] | Mapping[str, Method],
    model: Model | Callable[[int], Model],
    federation: Federation,
    rounds: int = 60,
    *,
    seeds: Sequence[int] = (1,),
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Unpack[RunSettings],
) -> Comparison:
    """Train several methods on the same clients and put them side by side.

    Every view of every method is a row. Methods of a mapping are called by its keys; in a list,
    those of one class by the settings in which they differ. `model` may be a function of the seed,
    so that seeds differ in their initial weights too. With `out` there is a directory with one for
    each training, and a page over all of them; the same call goes on where it was interrupted.
    Other settings are those of `mq.run`.
    """
    planned = [(seed, *each) for seed in seeds for each in _named(methods)]
    if not planned:
        raise MasqueradeError("E202", "nothing to compare; give one method and one seed at least")
    for _, method, _ in planned:
        toml.check(method=method)
    with ExitStack() as stack:
        directory = None
        if out is not None:
            text = _programs([method for _, method, _ in planned], settings.get("evaluate"))
            opened = directory_at(Path(out), begun=True, mark=COMPARISON)
            directory = stack.enter_context(opened(text))
            _check_same(directory, text)
        results = []
        for place, (seed, method, named) in enumerate(planned):
            begun = model if isinstance(model, (nn.Module, Task)) else model(seed)
            spec = _specified(method, begun, federation, rounds, seed, named, **settings)
            inside = None
            if directory is not None:
                folder = _folder(place, named(method.views[0])[0], seed)
                inside = directory_at(directory.path / folder, begun=True)
            with running(spec, _program, inside) as made:
                results.append(complete(made, callbacks, place=place, of=len(planned)))
        compared = Comparison(tuple(results))
        if directory is not None:
            write_comparison(directory, compared.summaries)
        return compared


def _specified(
    method: Method,
    model: Model,
    federation: Federation,
    rounds: int,
    seed: int,
    named: Named,
    views: Sequence[str] | None = None,
    *,
    evaluate: Evaluate | None = None,
    compute: Compute | None = None,
    budgets: Budgets = (1.0,),
    novel: Sequence[int] = (),
    rules: Mapping[str, Rule] | None = None,
    **settings: Unpack[TrainSettings],
) -> TrainingSpec:
    """Make a specification of objects; refuse what does not fit."""
    chosen = tuple(views or method.views)
    wrong = [view for view in chosen if view not in method.views]
    if wrong:
        raise MasqueradeError("E202", f"unknown views {wrong}; there are {method.views}")
    train = Train(model="", rounds=rounds, seeds=(seed,), **settings)
    evaluate, compute = evaluate or Evaluate(), compute or Compute()
    toml.check(method=method, train=train, evaluate=evaluate, compute=compute)
    check_available(train.available)
    shares = budgets_of(budgets, federation.clients, seed)
    warn_of_budgets([(type(method).__name__, method)], shares)
    check_novel(novel, federation.clients)
    return TrainingSpec(
        method=method,
        task=model if isinstance(model, Task) else Task(model),
        federation=federation,
        train=train,
        evaluate=evaluate,
        compute=compute,
        seed=seed,
        views=chosen,
        names=tuple(named(view) for view in chosen),
        budgets=tuple(shares),
        novel=tuple(novel),
        rules=dict(rules or {}),
    )


def _name(method: Method, view: str) -> tuple[str, str]:
    """Name a view: by the entry of METHODS that its class and view make, or by its class."""
    cls = type(method)
    fitting = {n: entry for n, entry in METHODS.of_class(cls).items() if entry.view == view}
    # Of the entries whose settings fit, the one that states most of them.
    names = sorted(
        (n for n, entry in fitting.items() if vars(method).items() >= set(entry.settings)),
        key=lambda name: -len(fitting[name].settings),
    )
    if names:
        return names[0], fitting[names[0]].title
    return f"{cls.__name__.lower()}:{view}", f"{cls.__name__} ({view})"


def _named(methods: Sequence[Method] | Mapping[str, Method]) -> list[tuple[Method, Named]]:
    """Return methods, each with what calls its views apart from those of all others."""
    if isinstance(methods, Mapping):
        return [(method, _by_key(key, method)) for key, method in methods.items()]
    return [(method, _by_settings(method, methods)) for method in methods]


def _by_key(key: str, method: Method) -> Named:
    def named(view: str) -> tuple[str, str]:
        called = key if view == method.views[0] else f"{key} ({view})"
        return called, called

    return named


def _by_settings(method: Method, methods: Sequence[Method]) -> Named:
    """Name views as `mq.run` does; where a class is there twice, also by what is different."""
    alike = [each for each in methods if type(each) is type(method)]
    if alike.count(method) > 1:
        text = f"{method} is there twice; remove one, or call them apart in a dict"
        raise MasqueradeError("E202", text)
    different = [
        each.name
        for each in fields(method)
        if any(getattr(one, each.name) != getattr(method, each.name) for one in alike)
    ]
    apart = ", ".join(f"{key}={getattr(method, key)}" for key in different)

    def named(view: str) -> tuple[str, str]:
        name, title = _name(method, view)
        return (f"{name} {apart}", f"{title}, {apart}") if apart else (name, title)

    return named


def _folder(place: int, name: str, seed: int) -> str:
    """Name the directory of one of several runs; different names may be alike when shortened."""
    return f"{place}-{re.sub('[^a-zA-Z0-9._-]', '_', name)[:40]}-seed{seed}"


def _program(simulation: Simulation) -> str:
    """Describe a run that no configuration file could: its method and model are objects."""
    # Simulating without a run directory needs torch and numpy alone.
    import tomli_w

    spec = simulation.spec
    records = {"train": spec.train, "evaluate": spec.evaluate, "compute": spec.compute}
    tables = {name: toml.plain(record) for name, record in records.items()}
    initial = digest(Part(spec.task.initial))
    facts = {"method": repr(spec.method), "initial": int(initial), "views": spec.views}
    facts["preprocess"] = describe(simulation.fitting.preprocess)
    return tomli_w.dumps({"python": facts, **tables})


def _check_same(directory: RunDirectory, text: str) -> None:
    """Refuse a directory that holds something else than this comparison."""
    there = (directory.path / "config.toml").read_text(encoding="utf-8")
    if there != text:
        said = f"{directory.path} holds another comparison or a run; choose another `out`"
        raise MasqueradeError("E402", said)


def _programs(methods: Sequence[Method], evaluate: Evaluate | None) -> str:
    """Describe a comparison of objects; each of its runs says more."""
    import tomli_w

    tables = {"python": {"methods": [repr(method) for method in dict.fromkeys(methods)]}}
    return tomli_w.dumps({**tables, "evaluate": toml.plain(evaluate or Evaluate())})
