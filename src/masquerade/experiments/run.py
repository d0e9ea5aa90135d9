"""Trainings in run directories, from beginning to end: one, one that was stopped, or several."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from masquerade.config import toml
from masquerade.config.code import refuse_program
from masquerade.config.resolve import (
    LoadedConfig,
    Training,
    TrainingSpec,
    rehearse,
    resolved,
    settle,
    trainings,
    with_partition,
)
from masquerade.config.settings import Config
from masquerade.engine.ranks import group
from masquerade.errors import MasqueradeError, listed, warn
from masquerade.evaluation.evaluate import Evaluator
from masquerade.evaluation.summary import name_of
from masquerade.experiments import environment
from masquerade.experiments.callbacks import Callback, Callbacks, Run
from masquerade.experiments.checkpoints import (
    FREE,
    FREE_OF_SEVERAL,
    Checkpoints,
    Origin,
    check_changes,
    check_settings,
    open_to_go_on,
    restore,
)
from masquerade.experiments.data_facts import DataFacts
from masquerade.experiments.personal import Models
from masquerade.experiments.report_page import can_write, write_report
from masquerade.experiments.result import Result, opened
from masquerade.experiments.run_files import RunFiles, json_of
from masquerade.results import RoundRecord, Summary
from masquerade.results.alarms import warn_of
from masquerade.simulation.accountant import guarantee
from masquerade.simulation.build import Simulation, simulating
from masquerade.simulation.privacy_sheet import sheet_of
from masquerade.simulation.server import train
from masquerade.simulation.state import RunState
from masquerade.storage.results import COMPARISON, read_results
from masquerade.storage.run_directory import RunDirectory, is_begun, obstacle
from masquerade.storage.saved_folder import damages, is_done


@dataclass(frozen=True, eq=False)
class Running:
    """A run that can go on: its simulation, its state, and where both are kept."""

    simulation: Simulation
    evaluator: Evaluator
    state: RunState
    settings: toml.Tables
    """In the form of `config.toml`."""
    directory: RunDirectory | None
    origin: Origin | None
    """Facts that have to be the same when it is resumed."""

    @property
    def finished(self) -> bool:
        """Tell whether all rounds are done, and their results written and intact."""
        done = self.state.number == self.simulation.server.rounds
        there = self.directory is not None and done and _intact(self.directory.path)
        return self.simulation.ranks.decide(there)


@contextmanager
def running(
    spec: TrainingSpec,
    describe: Callable[[Simulation], toml.Tables],
    opened: Callable[[str], RunDirectory] | None,
) -> Iterator[Running]:
    """Build a run, at its beginning or at its last commit.

    `describe` gives the tables of its `config.toml`, and `opened` its directory from their text.
    Of several processes the first alone has a directory, and callbacks.
    """
    with simulating(spec) as simulation, ExitStack() as stack:
        state = simulation.begin()
        with state.clock.measure("start-up"):
            evaluator = Evaluator.of(simulation)
        settings = describe(simulation)
        if opened is None and not simulation.ranks.several:
            yield Running(simulation, evaluator, state, settings, None, None)
            return
        text, directory = toml.write(settings), None
        if opened is not None and simulation.ranks.first:
            directory = stack.enter_context(opened(text))
        origin = Origin.of(simulation, text)
        origin.check_alike(simulation)
        restore(simulation, state, directory, origin)
        yield Running(simulation, evaluator, state, settings, directory, origin)


def _intact(path: Path) -> bool:
    """Tell whether results are there and intact; say what is damaged."""
    found = damages(path)
    if found:
        text = f"E401 damaged in {path}: {listed(found)}"
        warn(f"{text}; the results are written again, of the last checkpoint")
    return found == []


def complete(
    made: Running,
    callbacks: Sequence[Callback] = (),
    *,
    models: bool = True,
    page: bool = False,
    place: int = 0,
    of: int = 1,
) -> Result:
    """Do the rounds that are left and evaluate; callbacks are told, and a directory is filled.

    It is training `place` of several. Its models are kept, and its page written, if asked.
    """
    spec = made.simulation.spec
    name, rounds = spec.titles[0][0], made.simulation.server.rounds
    metric = name_of(spec.task.metric)
    run = Run(name, spec.seed, rounds, made.state, place, of, metric, _settings(spec))
    with Callbacks(callbacks).told_of_errors(run):
        return _completed(made, run, callbacks, models, page)


def _completed(
    made: Running, run: Run, callbacks: Sequence[Callback], models: bool, page: bool
) -> Result:
    spec, server, state = made.simulation.spec, made.simulation.server, made.state
    callbacks = callbacks if made.simulation.ranks.first else ()
    told = list(callbacks)
    with ExitStack() as stack:
        if made.directory is not None and made.origin is not None:
            every = spec.compute.commit_every
            commits = Checkpoints(made.directory, every, made.origin, Callbacks(callbacks))
            stack.callback(commits.close, state)
            # Whoever is told of the end may read the files.
            told = [commits, RunFiles(made.directory, models, page), *told]
        all_told = Callbacks(told)

        def after_round(state: RunState, record: RoundRecord) -> None:
            if record.evaluation is not None:
                all_told.on_evaluation(run, record.evaluation)
            all_told.on_round(run, record)

        train(server, made.simulation.engine, state, made.evaluator.between_rounds, after_round)
    summaries, personal = made.evaluator.final(state)
    tasks = made.simulation.own_tasks() if personal else ()
    facts = DataFacts.of(spec.federation, server.task, ranges=spec.data is None)
    found = Models(
        spec.method, server.task, personal, facts, spec.federation, spec.data, tasks=tasks
    )
    fitting, weighting = made.simulation.fitting, made.simulation.weighting
    figures = told_of(summaries[0])
    title = summaries[0].title
    made_private = guarantee(server, state, spec.privacy)
    sheet = sheet_of(
        server, state, title, spec.seed, fitting, weighting, figures, guarantee=made_private
    )
    opening, ran = partial(opened, found), environment.here()
    result = Result(tuple(summaries), made.settings, facts.partition, ran, opening, sheet)
    all_told.on_end(run, result)
    return result


def told_of(summary: Summary) -> tuple[str, ...]:
    """List what a summary has of every client: in a simulation nobody else sees it."""
    found = summary.per_client
    assert found is not None
    kinds = [each.name for each in fields(found) if getattr(found, each.name)]
    return (summary.metric, *summary.metrics, *(name for name in kinds if name != "ids"))


def _settings(spec: TrainingSpec) -> dict[str, dict[str, Any]]:
    """Return the settings of a training by section."""
    train = replace(spec.train, seeds=(spec.seed,))
    sections = {
        "method": spec.method,
        "data": spec.data,
        "train": train,
        "evaluate": spec.evaluate,
        "compute": spec.compute,
        "privacy": spec.privacy,
    }
    return {name: toml.plain(found) for name, found in sections.items() if found is not None}


def start(
    config: Config,
    path: Path,
    callbacks: Sequence[Callback] = (),
    *,
    models: bool = True,
    page: bool = False,
    begun: bool = False,
) -> Sequence[Summary]:
    """Run the one training of a configuration in a directory; return its summaries.

    The directory is a new one, unless the training may be `begun` or done there already.
    """
    if begun and is_done(path):
        return read_results(path)
    if begun and (path / "config.toml").is_file():
        return resume(path, callbacks, models=models)
    loaded = settle(LoadedConfig.of(config))
    (training,) = trainings(loaded.config)
    with configured(loaded, training, path) as made:
        found = complete(made, callbacks, models=models, page=page).summaries
    warn_of(found)
    return found


def resume(
    path: Path,
    callbacks: Sequence[Callback] = (),
    *,
    models: bool = True,
    page: bool = False,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Sequence[Summary]:
    """Continue the run in a directory, to the same bits as if it had never stopped.

    `changes` are other settings for it, section.key → value, of those that may be others.
    """
    with held(partial(open_to_go_on, path)) as directory:
        # The others read settings once they are mended.
        group().decide(True)
        config = _loaded(path, changes, FREE)
        training = _the_training(config, path)
        spec = LoadedConfig.of(config).resolve(training)

        def here(text: str) -> RunDirectory:
            assert directory is not None
            return directory

        with running(spec, _tables_of(config, training), here) as made:
            if made.finished:
                done = read_results(path)
                if page and directory is not None and can_write():
                    write_report(path, done)
                return done
            found = complete(made, callbacks, models=models, page=page).summaries
    warn_of(found)
    return found


def compare(
    path: Path,
    config: Config | None,
    callbacks: Sequence[Callback] = (),
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> list[Summary]:
    """Train everything that a configuration names, in a new directory.

    Without one, do what is left of the comparison that the directory holds, with `changes` of
    settings that may be others: finished trainings are read, others resumed or begun. Data are
    loaded and partitioned once.
    """
    if config is not None:
        loaded = settle(LoadedConfig.of(config))
        # What cannot begin leaves no directory behind.
        rehearse(loaded)
        text = toml.dump(with_partition(loaded, loaded.config))
        opened = partial(RunDirectory.create, path, text, COMPARISON)
    else:
        # What is read before the directory is opened may be a pipe, or gone.
        if refusal := obstacle(path):
            raise refusal
        check_settings(path)
        loaded = LoadedConfig.of(_loaded(path, changes, FREE_OF_SEVERAL))
        opened = partial(RunDirectory.open, path)
    ranks = group()
    with held(opened) as directory:
        if changes and directory is not None:
            directory.change_settings(toml.dump(loaded.config))
        planned, results = trainings(loaded.config), []
        for place, training in enumerate(planned):
            folder = (directory.path if directory else path) / training.folder
            if ranks.decide(_intact(folder)):
                results += read_results(folder) if ranks.first else []
                continue
            with configured(loaded, training, folder, begun=True) as made:
                result = complete(made, callbacks, place=place, of=len(planned))
            results += result.summaries
        order = {name: place for place, name in enumerate(loaded.config.methods)}
        results.sort(key=lambda summary: (summary.seed, order[summary.method]))
        if directory is not None:
            write_comparison(directory, results)
    warn_of(results)
    return results


@contextmanager
def held(opened: Callable[[], RunDirectory]) -> Iterator[RunDirectory | None]:
    """Hold a directory, where this is the process that writes."""
    if not group().first:
        yield None
        return
    with opened() as directory:
        yield directory


def _the_training(config: Config, path: Path) -> Training:
    """Return the training that the directory of a run asks for; refuse settings of several."""
    found = trainings(config)
    if len(found) == 1:
        return found[0]
    text = f"{path / 'config.toml'} asks for {len(found)} trainings, and this is the directory of"
    then = "of a comparison the empty file `comparison` is missing; of a run, put back what"
    raise MasqueradeError("E402", f"{text} one: {then} `masquerade run` wrote there")


def _loaded(path: Path, changes: Mapping[str, Any], free: Mapping[str, str]) -> Config:
    """Read the configuration in a directory, with changes that are `free`; not of a program."""
    tables = toml.read_file(path / "config.toml")
    refuse_program(path, tables, "it goes on where it stopped")
    config = toml.parse(toml.put(tables, changes), str(path / "config.toml"))
    check_changes(changes, free)
    return config


def write_comparison(directory: RunDirectory, results: Sequence[Summary]) -> None:
    """Write what a comparison's directory holds at its end."""
    ran = environment.here()
    ran = replace(ran, command=environment.first_command(directory.path) or ran.command)
    files = [
        (COMPARISON, b""),
        (environment.FILE, environment.to_bytes(ran)),
        ("results.json", json_of(results)),
    ]
    directory.write_results(files)
    write_report(directory.path, results)


@contextmanager
def configured(
    loaded: LoadedConfig, training: Training, path: Path, begun: bool = False
) -> Iterator[Running]:
    """Build a training of a configuration in a new directory, or in one where it may be begun."""
    spec, describe = loaded.resolve(training), _tables_of(loaded.config, training)
    with running(spec, describe, directory_at(path, begun)) as made:
        yield made


def directory_at(path: Path, begun: bool, mark: str | None = None) -> Callable[[str], RunDirectory]:
    """Return what makes a directory with the text of its `config.toml`, or opens a begun one."""

    def opened(text: str) -> RunDirectory:
        if begun and is_begun(path):
            return open_to_go_on(path)
        return RunDirectory.create(path, text, mark)

    return opened


def _tables_of(config: Config, training: Training) -> Callable[[Simulation], toml.Tables]:
    """Return what describes a configuration as it was resolved for one training."""

    def describe(simulation: Simulation) -> toml.Tables:
        return toml.complete(resolved(config, training, simulation.spec))

    return describe
