"""What a run or a comparison ended with: tables, frames, a page, a folder, clients' models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from masquerade.config import toml
from masquerade.config.toml import Tables
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.task import Task
from masquerade.errors import MasqueradeError, counted, listed, nearest
from masquerade.experiments.personal import Models, Personal
from masquerade.results import Environment, PrivacySheet, Summary
from masquerade.results.lead import led, with_lead
from masquerade.storage.saved_folder import File

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Reported:
    """Summaries, and how they are shown: as a table, a frame, a page, in a notebook, as files."""

    summaries: tuple[Summary, ...]
    """One per view, method and seed, in the form of `summary.json`."""
    settings: Tables
    """In the form of `config.toml`."""
    partition: str
    """How samples were given to clients; empty where that is not known."""
    environment: Environment | None
    """What it ran on, where that is known."""

    def by_metric(self, metric: str) -> Self:
        """Return the same result, of which tables, pages, frames and cards put a metric first.

        By default that is the first of `evaluate.metrics`, or the metric of the task.
        """
        return replace(self, summaries=tuple(with_lead(self.summaries, metric)))

    def table(self) -> None:
        """Print the table of results, seeds taken together."""
        from rich.console import Console

        from masquerade.report import terminal

        Console().print(terminal(self.summaries))

    def to_frame(self, clients: bool = False) -> "DataFrame":
        """Return a pandas DataFrame with a row for every method, view and seed.

        With `clients` it has a row for every client of each. Columns of bytes and operations are
        means per client over all of training.
        """
        from masquerade.report import frames

        return frames.to_frame(self.summaries, clients)

    def report(self, path: str | Path) -> None:
        """Write the report page, one HTML file that needs nothing else; an older one is replaced.

        It is the page that the command writes.
        """
        from masquerade.experiments.report_page import write_page

        settings = toml.write(self.settings)
        given = (self.summaries, settings, self.partition, self.environment)
        write_page(Path(path), *given, sheets=self.sheets)

    @property
    def sheets(self) -> Sequence[PrivacySheet]:
        """Return the privacy sheets of all trainings."""
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """Save summaries, settings and models into a new folder, which `mq.load_result` reads.

        The folder appears whole or not at all, and every file has its hash in it.
        """
        from masquerade.storage import saved_folder

        saved_folder.write(Path(path), self._files())

    def _files(self) -> Iterator[File]:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        from masquerade.report import notebook

        return notebook.fragment(self.summaries)


def opened(models: Models) -> Models:
    """Return models that are in memory already, as `Result.open_models`; it can be pickled."""
    return models


@dataclass(frozen=True, eq=False)
class Result(Reported):
    """What a run ended with."""

    open_models: Callable[[], Models]
    """Models that lie on the disk are opened when one is asked for."""
    privacy: PrivacySheet | None = None
    """What left clients, and what is guaranteed of it; None where a run of 0.1 is loaded."""
    view: str = field(default="", kw_only=True)
    """The view whose models `client` gives where none is named; "" is the first."""

    def __repr__(self) -> str:
        shown = led(self.summaries)
        own = ", ".join(f"{each.title} {each.accuracy.own.mean:.4g}" for each in shown)
        rounds = counted(shown[0].rounds, "round")
        return f"<Result of {rounds}, {shown[0].metric} on own data: {own}>"

    @property
    def sheets(self) -> Sequence[PrivacySheet]:
        """Return the privacy sheet."""
        return () if self.privacy is None else (self.privacy,)

    @cached_property
    def models(self) -> Models:
        """Return what it takes to use clients' models."""
        return self.open_models()

    @property
    def method(self) -> Method:
        """Return the method that was trained."""
        return self.models.method

    @property
    def task(self) -> Task:
        """Return the task, its preprocessing fitted."""
        return self.models.task

    @property
    def personal(self) -> Mapping[str, Sequence[Message]]:
        """Return clients' models by view."""
        return self.models.personal

    def client(self, client: int | str, view: str | None = None) -> Personal:
        """Return the model of a client, by its number or its name.

        It is that of the method's default view unless another is named; of a result that was asked
        for by the row of a comparison, that of the row.
        """
        models = self.models
        if not models.personal:
            text = "the models of this training were not kept; leave `models` of mq.compare on"
            raise MasqueradeError("E408", text)
        chosen = view or self.view or next(iter(models.personal))
        if chosen not in models.personal:
            known = ", ".join(f"{each.view} ({each.title})" for each in self.summaries)
            raise MasqueradeError("E202", f"no view `{chosen}` was evaluated; there are {known}")
        summary = next(each for each in self.summaries if each.view == chosen)
        place = summary.place_of(client)
        return Personal(models, models.personal[chosen][place], summary, place, self.privacy)

    def without_models(self) -> "Result":
        """Return the result alone, so that nothing holds the models in memory."""
        without = replace(self.models, personal={})
        return replace(self, open_models=partial(opened, without))

    def _files(self) -> Iterator[File]:
        from masquerade.experiments.run_files import files_of_result

        return files_of_result(self)


@dataclass(frozen=True, eq=False)
class Comparison(Reported):
    """What several trainings ended with."""

    results: tuple[Result, ...]
    """One per method and seed, in the order in which they were trained."""

    def __repr__(self) -> str:
        titles = dict.fromkeys(each.title for each in self.summaries)
        return f"<Comparison of {counted(len(self.results), 'training')}: {', '.join(titles)}>"

    @property
    def sheets(self) -> Sequence[PrivacySheet]:
        """Return the privacy sheets of all trainings."""
        return [sheet for each in self.results for sheet in each.sheets]

    def result(self, row: str, seed: int | None = None) -> Result:
        """Return the training of a row of the table; of several seeds the first, or a named one.

        Its clients' models are those of the row's view.
        """
        for each in self.results:
            for summary in each.summaries:
                if row in (summary.title, summary.method) and seed in (None, summary.seed):
                    models = partial(getattr, each, "models")
                    return replace(each, view=summary.view, open_models=models)
        known = list(dict.fromkeys(each.title for each in self.summaries))
        which = "" if seed is None else f" with seed {seed}"
        text = f"no row is called `{row}`{which}{nearest(row, known)}; there are"
        numbers = listed(dict.fromkeys(each.seed for each in self.summaries))
        raise MasqueradeError("E202", f"{text} {', '.join(known)}, of seeds {numbers}")

    def _files(self) -> Iterator[File]:
        from masquerade.experiments.run_files import files_of_comparison

        return files_of_comparison(self)
