"""`mq.check`: anybody's method held to all laws, on a small problem."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from masquerade.config import toml
from masquerade.config.arguments import check_method, check_problem
from masquerade.config.normalize import preprocess_for, with_default
from masquerade.config.resolve import SEEN, task_for, task_of
from masquerade.config.settings import Data, Train
from masquerade.core.method import Method
from masquerade.core.padding import couples
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.laws import toy
from masquerade.laws.law import DoesNotApply, Law, LawBroken, Where, summary
from masquerade.laws.problem import Problem
from masquerade.laws.table import LAWS
from masquerade.methods import METHODS, MethodEntry
from masquerade.simulation import preflight

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

HOLDS, BROKEN, DOES_NOT_APPLY, UNTRIED = "holds", "broken", "does not apply", "not tried"
BEGINS = "A client's round runs from its beginning to its end."
"""What has to be so before any law can be tried; it has the number 0."""
MISTAKES = ("E204", "E205", "E206")
"""Refusals of what a method's functions do."""
EVEN = 8
"""Training samples of every client where batches may not be padded."""


@dataclass(frozen=True)
class Finding:
    """What was found of one law."""

    number: int
    sentence: str
    result: str
    """"holds", "broken", "does not apply", or "not tried" where no round runs."""
    why: str = ""
    """What was seen, or why it does not apply."""
    where: Where = field(default_factory=Where)
    advice: str = ""

    @property
    def details(self) -> list[str]:
        """Say more, in lines, where there is more to say."""
        place = [f"at {self.where}"] * (self.where != Where())
        advice = [f"do: {self.advice}"] * bool(self.advice)
        return [*place, *[self.why] * bool(self.why), *advice]


@dataclass(frozen=True)
class Report:
    """What was found of a method: a line for every law, and what was warned of on the way."""

    method: str
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Tell whether no law is broken."""
        return all(each.result != BROKEN for each in self.findings)

    @property
    def heading(self) -> str:
        """Say in a line how it went."""
        found = [each.result for each in self.findings]
        if UNTRIED in found:
            return f"{self.method} cannot begin, so no law was tried."
        kept, broken, rest = (found.count(each) for each in (HOLDS, BROKEN, DOES_NOT_APPLY))
        return f"{self.method} keeps {kept} laws and breaks {broken}; {rest} do not apply."

    def __str__(self) -> str:
        lines = [self.heading]
        for each in self.findings:
            lines.append(f"{each.number:>3}  {each.result:<14}  {each.sentence}")
            lines += [f"{'':21}{detail}" for detail in each.details]
        return "\n".join([*lines, *self.warnings])

    def __repr__(self) -> str:
        # A notebook and a prompt show what is asked for last by this.
        return str(self)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Draw the same as a table."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.heading), box=box.SIMPLE_HEAD, show_edge=False)
        table.add_column("", justify="right")
        table.add_column("Law", overflow="fold")
        table.add_column("Result", no_wrap=True)
        styles = {HOLDS: "green", BROKEN: "bold red", DOES_NOT_APPLY: "dim", UNTRIED: "dim"}
        for each in self.findings:
            said = Text.assemble(each.sentence, *((f"\n{line}", "dim") for line in each.details))
            table.add_row(str(each.number), said, Text(each.result, styles[each.result]))
        yield table
        yield from map(Text, self.warnings)


def check(
    method: Method, model: nn.Module | Task | None = None, federation: Federation | None = None
) -> Report:
    """Hold a method to the laws that all methods keep, and report on each.

    It is trained for a few rounds on a small problem: `model` in double precision, and a few
    clients and samples of `federation`. Without a federation these are a toy's, which has samples
    of six features and three classes; without a model, a small network that fits. Nothing is
    written, and torch's settings stay as they are. Of a method whose functions fail before a round
    is done, that is the one finding. What is no method, or does not fit the model, is refused.
    """
    check_method(method)
    toml.check(method=method)
    # What is drawn in here, by a network that is made or by a method's mistake, leaves no trace.
    with torch.random.fork_rng(devices=[]), _listening() as heard:
        problem = problem_of(method, model, federation)
        fault = _fault(problem)
        findings = _unable(fault) if fault else tuple(_finding(law, problem) for law in LAWS)
    # Of each kind of warning the first: every law runs into the same ones.
    first = {text.split()[0]: text for text in reversed(heard)}
    return Report(type(method).__name__, findings, tuple(first.values()))


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Yield what fills up with our warnings, which a report has; all others are given anew."""
    heard: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MasqueradeWarning)
        yield heard
    for each in caught:
        if issubclass(each.category, MasqueradeWarning):
            heard.append(str(each.message))
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _fault(problem: Problem) -> str:
    """Try whether a round can begin; say what a function of the method did, if it cannot."""
    try:
        with problem.simulating(1) as made:
            made.begin()
    except MasqueradeError as error:
        if error.code not in MISTAKES:
            raise
        return str(error)
    except Exception as error:
        return summary(error)
    return ""


def _unable(fault: str) -> tuple[Finding, ...]:
    """Return what is found of a method that cannot begin."""
    untried = (Finding(law.number, law.sentence, UNTRIED) for law in LAWS)
    return Finding(0, BEGINS, BROKEN, fault), *untried


def _finding(law: Law, problem: Problem) -> Finding:
    said = (law.number, law.sentence)
    try:
        law(problem)
    except DoesNotApply as reason:
        return Finding(*said, DOES_NOT_APPLY, str(reason))
    except LawBroken as broken:
        return Finding(*said, BROKEN, broken.text, broken.where, law.advice)
    return Finding(*said, HOLDS)


def problem_of(
    method: Method, model: nn.Module | Task | None, federation: Federation | None
) -> Problem:
    """Make the small problem of a method, a network and a federation, of which each may be ours."""
    name = _name(method)
    entry = METHODS[name] if name else MethodEntry.plain(type(method))
    if model is None and federation is None:
        model = toy.network_of(method)
    federation = federation or toy.federation()
    if model is None:
        preprocess = preprocess_for(Data(), federation)
        _, model = task_of(Train(), entry, federation, 1, preprocess)
    check_problem(model, federation)
    task = with_default(task_for(model, federation.classes), federation).double()
    fitted = task.fitted_on(federation.x[:SEEN]).with_example(federation.x)
    preflight.try_out(fitted, federation)
    even = couples(fitted, federation.x)
    small = few(federation, even)
    size = int(small.samples.min())
    return Problem(
        method=method,
        task=task,
        federation=small,
        budgets=tuple(islice(cycle(toy.BUDGETS), small.clients)),
        batch_size=size if even and size < EVEN else 4,
        name=name,
    )


def _name(method: Method) -> str:
    """Name the entry of a method, of those with its class the one whose settings fit."""
    entries = METHODS.of_class(type(method))
    fitting = [n for n, entry in entries.items() if vars(method).items() >= set(entry.settings)]
    return next(iter([*fitting, *entries]), "")


def few(federation: Federation, even: bool = False) -> Federation:
    """Take the first clients that have training data, and of each as few samples as the toy has.

    Where they are to be `even` all have as many for training, so that no batch is padded.
    """
    sizes = federation.samples.tolist()
    ids = [id for id, size in enumerate(sizes) if size][: len(toy.SIZES)]
    if not ids:
        raise MasqueradeError("E303", "no client has a training sample; give another federation")
    least = min(EVEN, *(sizes[id] for id in ids))
    counts = [least] * len(ids) if even else list(toy.SIZES)
    others = [size - size // 2 for size in toy.SIZES]

    def cut(split: tuple[Tensor, ...], most: list[int]) -> tuple[Tensor, ...]:
        return tuple(split[id][:count] for id, count in zip(ids, most, strict=False))

    return replace(
        federation,
        train=cut(federation.train, counts),
        validation=cut(federation.validation, others),
        test=cut(federation.test, others),
        names=tuple(federation.names[id] for id in ids) if federation.names else (),
    )
