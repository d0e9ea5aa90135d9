"""Results from a directory: of a run or a comparison, or a folder that was saved."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from masquerade.config import toml
from masquerade.config.arguments import check_method, check_model
from masquerade.config.resolve import task_for
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.preprocess import describe
from masquerade.core.task import Task
from masquerade.core.tree import Tree
from masquerade.errors import MasqueradeError
from masquerade.experiments import data_facts, environment
from masquerade.experiments.data_facts import DataFacts
from masquerade.experiments.personal import Models
from masquerade.experiments.report_page import as_run
from masquerade.experiments.result import Comparison, Result
from masquerade.results import Summary
from masquerade.results.privacy import FILE as PRIVACY
from masquerade.storage import model_files
from masquerade.storage.results import is_comparison, read_results, read_sheets
from masquerade.storage.run_directory import CONFIG
from masquerade.storage.saved_folder import Folder

if TYPE_CHECKING:
    from masquerade.export.from_run import StoredModels


def load_result(
    path: str | Path, *, method: Method | None = None, model: nn.Module | Task | None = None
) -> Result | Comparison:
    """Load what a run or a comparison ended with, from its directory or a folder that was saved.

    Summaries, tables, pages and frames need nothing else. Models of a run that the command made
    are found by the names in its settings, when one is asked for. Those of a Python program need
    its objects: give `method` and `model` as `mq.run` was given them. The network's weights do not
    matter: those that the run began with are in the folder.
    """
    path = Path(path)
    if not is_comparison(path):
        return _loaded(path, read_results(path), method, model)
    if method is not None or model is not None:
        runs = sorted(each.parent.name for each in path.glob("*/summary.json"))
        text = f"{path} is a comparison; load one of its runs with `method` and `model`"
        raise MasqueradeError("E201", f"{text}: {', '.join(runs)}")
    return _compared(path)


def _compared(path: Path) -> Comparison:
    summaries = read_results(path)
    folders = {
        (each.seed, each.method): file.parent
        for file in path.glob("*/summary.json")
        for each in read_results(file.parent)
    }
    runs: dict[Path, list[Summary]] = {}
    for each in summaries:
        # Of a run that was removed there are its summaries, and no models.
        folder = folders.get((each.seed, each.method), path / each.method)
        runs.setdefault(folder, []).append(each)
    results = tuple(_loaded(folder, found) for folder, found in runs.items())
    partitions = {each.partition for each in results}
    partition = partitions.pop() if len(partitions) == 1 else ""
    known = [each.settings for each in results if each.settings]
    settings = as_run(_settings(path), known) if known else _settings(path)
    return Comparison(tuple(summaries), settings, partition, environment.read(path), results)


def _loaded(
    path: Path, summaries: Sequence[Summary], method: Any = None, model: Any = None
) -> Result:
    settings, facts = _settings(path), _facts(path)
    opened: Callable[[], Models]
    if method is None and model is None:
        opened = partial(_named, path, settings, facts, summaries)
    else:
        check_method(method)
        check_model(model)
        assert facts is not None
        # What does not fit is refused at once.
        given = _given(path, settings, facts, summaries, method, model)

        def opened() -> Models:
            return given

    sheet = next(iter(read_sheets(path)), None) if (path / PRIVACY).is_file() else None
    partition, ran = facts.partition if facts else "", environment.read(path)
    return Result(tuple(summaries), settings, partition, ran, opened, sheet)


def _settings(path: Path) -> toml.Tables:
    if not (path / CONFIG).is_file():
        return {}
    return toml.read(Folder.open(path).text(CONFIG))


def _facts(path: Path) -> DataFacts | None:
    if not (path / data_facts.FILE).is_file():
        return None
    return DataFacts.from_bytes(Folder.open(path).read(data_facts.FILE))


def _named(
    path: Path, settings: toml.Tables, facts: DataFacts | None, summaries: Sequence[Summary]
) -> Models:
    """Open models of a run that the command made."""
    from masquerade.export.from_run import rebuild

    if "python" in settings:
        call = f"mq.load_result({str(path)!r}, method=..., model=...)"
        text = f"`{path}` was made by a Python program, which alone has its method and network"
        raise MasqueradeError("E202", f"{text}; write {call} with those that were trained")
    if not settings:
        raise MasqueradeError("E408", f"no run at {path}, so there are no models; check the path")
    made = rebuild(path)
    now = DataFacts.of(made.spec.federation, made.task)
    if facts is not None and facts.initial != now.initial:
        text = "the initial weights are others than those that the run began with"
        raise MasqueradeError("E402", f"{text}; restore their file, or the version of torch")
    stored = _stored(path, summaries, now.clients, made.spec.method, made.task)
    listed = summaries[0].per_client
    assert listed is not None
    return Models(
        method=made.spec.method,
        task=made.task,
        personal=stored,
        facts=now,
        federation=made.spec.federation,
        data=made.spec.data,
        origin=made.origin,
        tasks=[made.task_of(id) for id in listed.ids] if made.fitting.own else (),
    )


def _given(
    path: Path,
    settings: toml.Tables,
    facts: DataFacts,
    summaries: Sequence[Summary],
    method: Method,
    model: nn.Module | Task,
) -> Models:
    """Open models of a run with the objects that it was made of."""
    done = summaries[0].preprocessing
    if done is not None and done.per_client:
        text = "each client fitted preprocessing of its own, which only the run itself has"
        raise MasqueradeError("E202", f"{text}; call mq.run again with out={str(path)!r}")
    task, initial = task_for(model, facts.classes), _initial(path)
    if initial is not None:
        task = task.with_initial(initial)
    program = settings.get("python", {})
    began = {"method": repr(method)}
    if not facts.preprocess:
        began["preprocess"] = describe(task.preprocess)
    for name, now in began.items():
        if program.get(name, now) != now:
            text = f"`{name}` was {program[name]} in this run, and is {now}; give the same"
            raise MasqueradeError("E402", text)
    task = facts.fit(task)
    return Models(method, task, _stored(path, summaries, facts.clients, method, task), facts)


def _initial(path: Path) -> Tree | None:
    """Read the initial weights, which are kept where models are."""
    if not (path / model_files.INITIAL).is_file():
        return None
    data = Folder.open(path).read(model_files.INITIAL)
    found = model_files.decode(data, model_files.INITIAL)
    return found["params"].values if "params" in found else {}


def _stored(
    path: Path, summaries: Sequence[Summary], clients: int, method: Method, task: Task
) -> "dict[str, Sequence[Message]]":
    from masquerade.export.from_run import StoredModels

    stored = StoredModels(Folder.open(path), method, task, clients)
    found: dict[str, Sequence[Message]] = {}
    for each in summaries:
        assert each.per_client is not None
        found[each.view] = ModelsOfView(stored, each.view, each.per_client.ids)
    return found


@dataclass(frozen=True, eq=False)
class ModelsOfView(Sequence[Message]):
    """The models of one view, each of which is read when it is asked for."""

    stored: "StoredModels"
    view: str
    ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: Any) -> Any:
        return self.stored.read(self.ids[place], self.view)
