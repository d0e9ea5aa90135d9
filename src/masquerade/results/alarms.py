"""Alarms: results that a person should look at twice before believing them."""

import math
from collections.abc import Collection, Iterable, Sequence

from masquerade.errors import listed, warn
from masquerade.results.summary import ClientFigures, Summary, splits

ONE_CLASS, SAME = "W310", "W311"


def alarms(results: Sequence[Summary]) -> list[str]:
    """Return the alarms of some results, each with its code."""
    rows: dict[str, list[Summary]] = {}
    for result in results:
        # What is under a rule follows from the method's own row.
        if not result.scope:
            rows.setdefault(result.method, []).append(result)
    return [*_one_class(rows.values()), *_same(rows.values())]


def warn_of(results: Sequence[Summary]) -> None:
    """Warn of what is alarming about some results."""
    for text in alarms(results):
        warn(text)


def warn_of_client(summary: Summary, place: int) -> None:
    """Warn whoever takes the model of one client, by its place, if it answers all alike."""
    clients = summary.per_client
    if clients is not None and clients.ids[place] in clients.one_class:
        what, differ, advice = _words(summary)
        text = f"{ONE_CLASS} The model of client {_called(clients, place)} answered all of its own"
        text += f" {summary.split} samples with one {what}, though the {differ} differ; see what it"
        text += f" answers before you use it. {advice}"
        warn(text)


_TRY = (
    "Compare with the majority class; check that inputs are normalized (data.normalize), and try"
    " train.class_weights=balanced, another method.lr, or more rounds"
)
_TRY_NUMBERS = (
    "Check that inputs are normalized (data.normalize) and targets of moderate size, and try"
    " another method.lr, or more rounds"
)


def _words(summary: Summary) -> tuple[str, str, str]:
    """Say what a model answers with, what it should tell apart, and what to try.

    Classification has a majority class, and regression has none.
    """
    if summary.majority is None and summary.metric != "accuracy":
        return "number", "targets", _TRY_NUMBERS
    return "class", "labels", _TRY


def _one_class(rows: Collection[Sequence[Summary]]) -> list[str]:
    """Say whose models answer all samples of a client alike, and name the clients."""
    found, first = [], None
    for seeds in rows:
        first = first or seeds[0]
        groups = [group for seed in seeds for group in _groups(seed)]
        alike, clients = sum(len(g.one_class) for g in groups), sum(len(g.ids) for g in groups)
        if alike:
            # The clients of all seeds have the same names where they are the same clients.
            names = dict.fromkeys(name for group in groups for name in _alike(group))
            found.append(f"{seeds[0].title} {alike} of {clients} ({listed(names)})")
    if not found or first is None:
        return []
    what, differ, advice = _words(first)
    of = splits([seed for seeds in rows for seed in seeds])
    return [
        f"{ONE_CLASS} Models answer all of a client's own {of} samples with one {what}, though"
        f" the {differ} differ (clients, over all seeds): {'; '.join(found)}. Of few {of}"
        f" samples that can be the best answer. {advice}"
    ]


def _alike(clients: ClientFigures) -> list[str]:
    """Name the clients whose model answers all alike."""
    return [_called(clients, clients.ids.index(id)) for id in clients.one_class]


def _called(clients: ClientFigures, place: int) -> str:
    """Return what the data call a client, or its number."""
    return clients.names[place] if clients.names else str(clients.ids[place])


def _groups(summary: Summary) -> list[ClientFigures]:
    """Return the clients of training, and those that were kept out."""
    found = [summary.per_client, summary.novel.clients if summary.novel else None]
    return [group for group in found if group is not None]


def _same(rows: Iterable[Sequence[Summary]]) -> list[str]:
    """Say which methods have the same figures, to the last digit, for every client.

    A shared model beside personal ones may well be FedAvg's, as Ditto's is.
    """
    alike: dict[object, list[str]] = {}
    for seeds in rows:
        key = None if seeds[0].beside else _figures(seeds)
        if key is not None:
            alike.setdefault(key, []).append(seeds[0].title)
    return [
        f"{SAME} {', '.join(titles[:-1])} and {titles[-1]} have the same figures for every client,"
        " to the last digit. Check that the models learn (do they answer with one class?), that"
        " the settings differ in effect (no epochs, or a coefficient of 0, makes methods equal),"
        " and that these are not results of the same run"
        for titles in alike.values()
        if len(titles) > 1
    ]


def _figures(seeds: Sequence[Summary]) -> object:
    """Return all figures of all clients, by seed; None where they can tell nothing apart."""
    listed = [(seed.seed, seed.per_client) for seed in seeds]
    found = [
        (number, clients.own, tuple(clients.shift.items()), tuple(clients.pooled.items()))
        for number, clients in sorted(listed, key=lambda pair: pair[0])
        if clients is not None
    ]
    every = {value for _, own, *_ in found for value in own if value is not None}
    known = len(found) == len(seeds) and every and all(map(math.isfinite, every))
    # Two methods that are right about everything need not be one.
    perfect = seeds[0].percent and every == {100.0}
    # And one client's few figures agree by chance.
    single = max((len(own) for _, own, *_ in found), default=0) < 2
    return tuple(found) if known and not perfect and not single else None
