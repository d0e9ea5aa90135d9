"""From Python: `mq.run` and `mq.compare`, which take objects where a configuration has names."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Never, TypedDict, Unpack

from torch import nn

from masquerade.config import code, toml
from masquerade.config.arguments import check_kind, check_known, check_method, check_problem
from masquerade.config.availability import check as check_available
from masquerade.config.budgets import Budgets, budgets_of, warn_of_budgets
from masquerade.config.normalize import with_default
from masquerade.config.resolve import TrainingSpec, check_novel, row_names, task_for
from masquerade.config.settings import Compute, Evaluate, Privacy, Train
from masquerade.core.method import Method
from masquerade.core.metric import Rule
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.errors import MasqueradeError
from masquerade.experiments import environment
from masquerade.experiments.callbacks import Callback, check_callbacks
from masquerade.experiments.checkpoints import check_text
from masquerade.experiments.progress import shown
from masquerade.experiments.result import Comparison, Result
from masquerade.experiments.run import complete, directory_at, held, running, write_comparison
from masquerade.experiments.run_files import folder_of
from masquerade.results.alarms import warn_of
from masquerade.simulation.build import Simulation
from masquerade.storage.results import COMPARISON
from masquerade.storage.run_directory import RunDirectory

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
    class_weights: str
    aggregation: str
    trim: float
    clip_updates: float
    min_contributors: int


class RunSettings(TrainSettings, total=False):
    """All settings that both take."""

    evaluate: Evaluate | None
    compute: Compute | None
    privacy: Privacy | None
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
    privacy: Privacy | None = None,
    budgets: Budgets = (1.0,),
    clients_per_round: int = 0,
    available: str = "always",
    drop: float = 0.0,
    message_dtype: str = "same",
    class_weights: str = "none",
    aggregation: str = "mean",
    trim: float = 0.2,
    clip_updates: float = 0.0,
    min_contributors: int = 1,
    novel: Sequence[int] = (),
    rules: Mapping[str, Rule] | None = None,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    **unknown: Never,
) -> Result:
    """Train a method on a federation and evaluate it.

    - `model`: any module, or a `Task` with a loss and a metric of its own. Classes are learned by
      cross entropy, numbers by squared error.
      Its weights are where training begins.
    - `seed` decides cohorts, batches and shift partners.
    - `participation`: the share of the clients sampled in a round, or `clients_per_round` of them,
      among those that are `available`. The update of each is lost with probability `drop`.
    - `novel`: clients that are kept out of training and evaluated apart.
    - `budgets`: shares of the parameters that devices can hold, which clients take in turn, or
      "random:LOW:HIGH".
    - `message_dtype`: the type of numbers in messages.
    - `class_weights`: with "balanced", rare classes weigh more in the loss.
    - `evaluate` says what is measured: `mq.Evaluate(metrics=("balanced_accuracy", "auroc"))`.
    - `aggregation`, `trim`, `clip_updates` and `min_contributors` defend against false updates.
    - `privacy`: differential privacy of samples or clients, `mq.Privacy(unit="sample", epsilon=8)`.
    - `rules` on outputs are evaluated beside the views.
    - `out`: a directory for models, summary and report page. The same call goes on from its last
      commit after any interruption.
    - `callbacks` are told of rounds, evaluations and commits.
    - `progress` is shown in a terminal or a notebook, and nowhere else.
    """
    check_known("mq.run", unknown, list(signature(run).parameters)[:-1])
    spec = _specified(
        method,
        model,
        federation,
        rounds,
        seed,
        partial(row_names, method),
        views,
        batch_size=batch_size,
        participation=participation,
        lr_decay=lr_decay,
        clients_per_round=clients_per_round,
        available=available,
        drop=drop,
        message_dtype=message_dtype,
        class_weights=class_weights,
        aggregation=aggregation,
        trim=trim,
        clip_updates=clip_updates,
        min_contributors=min_contributors,
        evaluate=evaluate,
        compute=compute,
        privacy=privacy,
        budgets=budgets,
        novel=novel,
        rules=rules,
    )
    opened = None if out is None else directory_at(Path(out), begun=True)
    check_callbacks(callbacks)
    with running(spec, _program, opened) as made, shown(progress) as bar:
        _name_program(made.directory)
        result = complete(made, [*bar, *callbacks], page=True)
    warn_of(result.summaries)
    return result


def compare(
    methods: Sequence[Method] | Mapping[str, Method],
    model: Model | Callable[[int], Model],
    federation: Federation,
    rounds: int = 60,
    *,
    seeds: Sequence[int] = (1,),
    models: bool = True,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    **settings: Unpack[RunSettings],
) -> Comparison:
    """Train several methods on the same clients and put them side by side.

    Every view of every method is a row. In a list, rows have the names of `masquerade methods`, and
    methods of one class also the settings in which they differ. In a mapping, they have its keys.
    A view without a name of its own stands in parentheses after that of its method.

    `model` may be a function of the seed, so that seeds differ in their initial weights too. With
    `out` there is a directory with one for each training, and a page over all of them; the same
    call goes on where it was interrupted. The models of all clients and methods are held, unless
    `models` is false. `progress` and other settings are those of `mq.run`.
    """
    known = [*list(signature(compare).parameters)[:-1], *RunSettings.__annotations__]
    check_known("mq.compare", settings.keys() - set(known), known)
    check_callbacks(callbacks)
    check_kind("seeds", seeds, Sequence, "seeds=(1, 2, 3)")
    check_kind("evaluate", settings.get("evaluate"), Evaluate, "evaluate=mq.Evaluate(every=5)")
    planned = [(seed, *each) for seed in seeds for each in _named(methods)]
    if not planned:
        raise MasqueradeError("E202", "nothing to compare; give one method and one seed at least")
    _check_names(planned)
    for _, method, _ in planned:
        toml.check(method=method)
    tables = _programs(planned, rounds, settings.get("evaluate"))
    with ExitStack() as stack:
        directory = None
        if out is not None:
            text = toml.write(tables)
            opened = directory_at(Path(out), begun=True, mark=COMPARISON)
            directory = stack.enter_context(held(partial(opened, text)))
        if directory is not None:
            check_text(directory, text)
            _name_program(directory)
        bar = stack.enter_context(shown(progress))
        results = []
        for place, (seed, method, named) in enumerate(planned):
            spec = _specified(
                method, _network(model, seed), federation, rounds, seed, named, **settings
            )
            inside = None
            if directory is not None:
                folder = folder_of(place, named(method.views[0])[0], seed)
                inside = directory_at(directory.path / folder, begun=True)
            with running(spec, _program, inside) as made:
                result = complete(made, [*bar, *callbacks], place=place, of=len(planned))
            results.append(result if models else result.without_models())
        summaries = tuple(each for result in results for each in result.summaries)
        compared = Comparison(
            summaries, tables, federation.partition, environment.here(), tuple(results)
        )
        if directory is not None:
            write_comparison(directory, summaries)
    warn_of(summaries)
    return compared


def _network(model: Any, seed: int) -> Any:
    """Return a network, made for a seed where a function was given."""
    makes = callable(model) and not isinstance(model, (nn.Module, Task, type))
    return model(seed) if makes else model


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
    privacy: Privacy | None = None,
    budgets: Budgets = (1.0,),
    novel: Sequence[int] = (),
    rules: Mapping[str, Rule] | None = None,
    **settings: Unpack[TrainSettings],
) -> TrainingSpec:
    """Make a specification of objects; refuse what does not fit."""
    check_method(method)
    check_problem(model, federation)
    check_kind("evaluate", evaluate, Evaluate, "evaluate=mq.Evaluate(every=5)")
    check_kind("compute", compute, Compute, 'compute=mq.Compute(engine="loop")')
    check_kind("privacy", privacy, Privacy, 'privacy=mq.Privacy(unit="sample", epsilon=8)')
    check_kind("rules", rules, Mapping, 'rules={"name": function}')
    if not all(map(callable, (rules or {}).values())):
        raise MasqueradeError("E201", '`rules` has what is no function; write {"name": function}')
    check_kind("views", views, Sequence, f"views={list(method.views)}")
    check_kind("budgets", budgets, Sequence, 'budgets=[1.0, 0.5], or "random:0.2:1"')
    chosen = (views,) if isinstance(views, str) else tuple(views or method.views)
    wrong = [view for view in chosen if view not in method.views]
    if wrong:
        raise MasqueradeError("E202", f"unknown views {wrong}; there are {method.views}")
    train = Train(model="", rounds=rounds, seeds=(seed,), **settings)
    evaluate, compute = evaluate or Evaluate(), compute or Compute()
    privacy = privacy or Privacy()
    toml.check(method=method, train=train, evaluate=evaluate, compute=compute, privacy=privacy)
    check_available(train.available)
    shares = budgets_of(budgets, federation.clients, seed)
    warn_of_budgets([(type(method).__name__, method)], shares)
    check_novel(novel, federation.clients)
    return TrainingSpec(
        method=method,
        task=with_default(task_for(model, federation.classes), federation),
        federation=federation,
        train=train,
        evaluate=evaluate,
        compute=compute,
        seed=seed,
        views=chosen,
        names=tuple(named(view) for view in chosen),
        budgets=tuple(shares),
        novel=tuple(novel),
        privacy=privacy,
        rules=dict(rules or {}),
    )


def _check_names(planned: Sequence[tuple[int, Method, Named]]) -> None:
    """Refuse two rows of one name."""
    seen: set[tuple[int, str]] = set()
    for seed, method, named in planned:
        for view in method.views:
            row = seed, named(view)[0]
            if row in seen:
                text = f"two rows would be called `{row[1]}`; call methods apart in a dict"
                raise MasqueradeError("E202", text)
            seen.add(row)


def _named(methods: Sequence[Method] | Mapping[str, Method]) -> list[tuple[Method, Named]]:
    """Return methods, each with what calls its views apart from those of all others."""
    check_kind("methods", methods, (Sequence, Mapping), "[mq.methods.FedAvg(), ...]")
    for method in methods.values() if isinstance(methods, Mapping) else methods:
        check_method(method)
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
    apart = [f"{key}={getattr(method, key)}" for key in different]

    def named(view: str) -> tuple[str, str]:
        name, title = row_names(method, view)
        # A name has no comma, which parts names in `masquerade report --difference`.
        return " ".join((name, *apart)).replace(",", ""), ", ".join((title, *apart))

    return named


def _program(simulation: Simulation) -> toml.Tables:
    """Describe a run that no configuration file could: its method and model are objects."""
    spec = simulation.spec
    sections = ("train", "evaluate", "compute", "privacy")
    records = {name: getattr(spec, name) for name in sections}
    tables = {name: toml.plain(record) for name, record in records.items()}
    # No name leads to a network that is an object; the page tells what it was.
    tables["train"]["model"] = f"{type(spec.task.module).__name__} of the program"
    facts = {
        "method": repr(spec.method),
        "views": spec.views,
        "preprocess": simulation.fitting.text,
        "novel": spec.novel,
        "budgets": spec.budgets,
        **{name: _called(each) for name, each in spec.task.functions.items()},
    }
    return {"python": facts, **tables}


def _name_program(directory: RunDirectory | None) -> None:
    """Write down which program made a directory, so that others can say what to call again."""
    if directory is not None and (name := code.program()):
        directory.write_file(code.PROGRAM, name.encode())


def _called(function: object) -> str:
    """Return what a function is called, and where it stands."""
    home = getattr(function, "__module__", "")
    return f"{home}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _programs(
    planned: Sequence[tuple[int, Method, Named]], rounds: int, evaluate: Evaluate | None
) -> toml.Tables:
    """Describe a comparison of objects; each of its runs says more."""
    trained = [f"{named(m.views[0])[1]}, seed {seed}: {m!r}" for seed, m, named in planned]
    facts = {"trainings": trained, "rounds": rounds}
    return {"python": facts, "evaluate": toml.plain(evaluate or Evaluate())}
