"""What clients get from every method, each of them, and what they gain from one for another.

Whatever is said here of the metric is said of the one that leads, and then of every further one.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from masquerade.errors import MasqueradeError, nearest
from masquerade.report import decimals, frames
from masquerade.report.intervals import Interval, of_difference
from masquerade.report.leads import lower_is_better
from masquerade.report.listing import Listing
from masquerade.report.tables import (
    ABSENT,
    Results,
    by_row,
    columns,
    further,
    is_percent,
    number_format,
    of_clients,
    title_of,
    trainings,
)
from masquerade.results import ClientFigures, Summary
from masquerade.results.lead import led, with_lead
from masquerade.results.metric_names import metric_title
from masquerade.results.summary import splits

NAMED = 6
"""Classes, at most, whose test samples stand beside each client."""


def of_one_partition(results: Results) -> list[Summary]:
    """Return results that are of the same clients: those of the first seed, where seeds differ.

    With `data.partition_per_seed` client 3 of one seed is another than client 3 of the next.
    """
    parts = {tuple(group.samples for group in _groups(each)) for each in results}
    first = min(each.seed for each in results)
    return [each for each in results if len(parts) < 2 or each.seed == first]


def whose(results: Results) -> str:
    """Say whose clients are shown, where they are not those of all seeds."""
    some = of_one_partition(results)
    return "" if len(some) == len(results) else f" (seed {some[0].seed}; each has its own)"


def own(results: Results) -> dict[str, dict[int, float]]:
    """Return every client's metric on its own data, by method and client, averaged over seeds.

    Novel clients are among them.
    """
    found: dict[str, dict[int, float]] = {}
    for name, seeds in by_row(of_one_partition(led(results))).items():
        values: dict[int, list[float]] = {}
        for id, value in chain(*map(_listed, seeds)):
            if value is not None:
                values.setdefault(id, []).append(value)
        found[name] = {id: statistics.fmean(given) for id, given in values.items()}
    return found


def _listed(result: Summary) -> Iterator[tuple[int, float | None]]:
    """Yield the clients of one result with their metric, if they have one."""
    for group in _groups(result):
        yield from zip(group.ids, group.own, strict=True)


def _groups(result: Summary) -> list[ClientFigures]:
    """Return the clients of training, and those that were kept out, as far as they are listed."""
    found = [result.per_client, result.novel.clients if result.novel else None]
    return [group for group in found if group is not None]


def groups(results: Results) -> Iterator[ClientFigures]:
    """Yield the clients of every result of one partition, novel ones too."""
    return chain.from_iterable(map(_groups, of_one_partition(results)))


def novel(results: Results) -> set[int]:
    """Return the clients that were kept out of training."""
    some = of_one_partition(results)
    return {id for result in some if result.novel for id in result.novel.clients.ids}


def names(results: Results) -> dict[int, str]:
    """Return what the data call their clients, where they have names."""
    found: dict[int, str] = {}
    for group in groups(results):
        if group.names:
            found |= dict(zip(group.ids, group.names, strict=True))
    return found


def labels(results: Results) -> tuple[dict[int, dict[str, int]], str]:
    """Return by client the samples of every label, and of which samples: of "training" or "test".

    Older results know of test samples alone.
    """
    given = list(groups(results))
    trained = any(group.labels for group in given)
    found: dict[int, dict[str, int]] = {}
    for group in given:
        counts = group.labels if trained else group.classes
        for place, id in enumerate(group.ids if counts else ()):
            found.setdefault(id, {name: each[place] for name, each in counts.items()})
    return found, "training" if trained else "test"


def by_metric(results: Results) -> dict[str, list[Summary]]:
    """Return by metric the results that have it, led by it: the one that leads, and then others."""
    first = led(results)
    found = {}
    for name in (first[0].metric, *further(first)):
        having = [each for each in first if name in (each.metric, *each.metrics)]
        found[name] = led(with_lead(having, name))
    return found


def tests(results: Results) -> dict[int, str]:
    """Return by client how many samples of its own it is tested on: of all, and of few classes."""
    found: dict[int, str] = {}
    for group in groups(results):
        several = len(group.classes) <= NAMED
        for place, (id, count) in enumerate(zip(group.ids, group.tests, strict=False)):
            of = [f"{each[place]} {name}" for name, each in group.classes.items() if several]
            found.setdefault(id, f"{count}" + (f" ({', '.join(of)})" if of else ""))
    return found


def called(id: int, kept_out: set[int], known: Mapping[int, str]) -> str:
    """Return what a client is called: its number, its name where it has one."""
    name = f"{id}: {known[id]}" if id in known else str(id)
    return f"{name} (novel)" if id in kept_out else name


@dataclass(frozen=True)
class Difference:
    """What clients gain from one method instead of another."""

    clients: dict[int, float]
    """Client → how much better it is off, the worst off first."""
    better: int
    worse: int

    @property
    def mean(self) -> float:
        """Return the gain averaged over clients."""
        return statistics.fmean(self.clients.values())


def difference(results: Results, left: str, right: str) -> Difference:
    """Compare two methods client by client; positive where `left` is better."""
    results = led(results)
    found = own(results)
    _check_names(results, left, right)
    sign = -1 if results[0].better == "lower" else 1
    both = found[left].keys() & found[right].keys()
    gains = {id: sign * (found[left][id] - found[right][id]) for id in both}
    ranked = dict(sorted(gains.items(), key=lambda entry: (entry[1], entry[0])))
    signs = [gain > 0 for gain in gains.values() if gain]
    return Difference(ranked, sum(signs), len(signs) - sum(signs))


def _check_names(results: Results, *names: str) -> None:
    found = by_row(results)
    for name in names:
        if name not in found:
            known = ", ".join(found)
            raise MasqueradeError(
                "E201", f"no results of `{name}`{nearest(name, found)}; there are {known}"
            )


def gains(results: Results, left: str, right: str) -> dict[str, Interval]:
    """Return by column how much better `left` is than `right`, with a paired 95 % interval.

    Columns in which nothing can be paired are left out.
    """
    results = led(results)
    _check_names(results, left, right)
    groups, behind, lower = by_row(results), of_clients(results), lower_is_better(results)
    found = {}
    for name, pick in columns(results).items():
        ours, theirs = (trainings(groups[each], pick, behind.get(name)) for each in (left, right))
        gain = of_difference(theirs, ours) if name in lower else of_difference(ours, theirs)
        if gain is not None:
            found[name] = gain
    return found


def listings(results: Results) -> list[Listing]:
    """Return a table of every client for each metric: a row per client, a column per method.

    Metrics that no client has a figure of are left out, as in files of older versions.
    """
    drawn = [_listing(each) for each in by_metric(results).values()]
    return [each for each in drawn if each.body]


def _listing(results: Results) -> Listing:
    found, form = own(results), number_format(results)
    kept_out, known, tested = novel(results), names(results), tests(results)
    titles = {name: seeds[0].title for name, seeds in by_row(results).items()}
    body = []
    for id in sorted({id for values in found.values() for id in values}):
        values = (given.get(id) for given in found.values())
        shown = (ABSENT if value is None else format(value, form) for value in values)
        of = [tested.get(id, ABSENT)] * bool(tested)
        body.append([called(id, kept_out, known), *of, *shown])
    headings = [
        "client",
        *[f"{splits(results)} samples"] * bool(tested),
        *(titles[name] for name in found),
    ]
    title = f"{_metric(results)} of each client on its own data{whose(results)}"
    return Listing(title, headings, body)


def _metric(results: Results) -> str:
    return metric_title(results[0].metric) + (" (%)" if is_percent(results) else "")


def records(results: Results) -> list[dict[str, object]]:
    """Return the clients of all results for programs: the rows of `to_frame(clients=True)`."""
    return frames.client_rows(results)


def differences(results: Results, left: str, right: str) -> dict[str, Difference]:
    """Compare two methods client by client in every metric that both have figures of."""
    found = {}
    for name, those in by_metric(results).items():
        if {left, right} <= by_row(those).keys():
            found[name] = difference(those, left, right)
    return {name: each for name, each in found.items() if each.clients}


def difference_listings(results: Results, left: str, right: str) -> list[Listing]:
    """Return what one method gains over another: by column, and client by client."""
    _check_names(led(results), left, right)
    by_column, found = gains(results, left, right), differences(results, left, right)
    if not found and not by_column:
        text = f"no client has figures of both `{left}` and `{right}`, and no three seeds do"
        raise MasqueradeError("E202", f"{text}; take methods whose clients are listed")
    title = f"{left} instead of {right}"
    drawn = [_gains(led(results), title, by_column)] if by_column else []
    return drawn + ([_client_gains(results, title, found)] if found else [])


def _gains(results: Results, title: str, found: Mapping[str, Interval]) -> Listing:
    by = {gain.by for gain in found.values()}
    notes = ["Positive where it is better off; an interval without 0 separates the two."]
    if "seeds" in by:
        notes.append("By seeds: the differences of trainings of the same seed, by Student's t.")
    if "clients" in by:
        notes.append(
            "By clients: the differences of the same clients, by bootstrap; it says nothing about"
            " other trainings or partitions."
        )
    plain = {metric_title(n) for each in results for n, m in each.metrics.items() if not m.percent}
    body = []
    for name, gain in found.items():
        form = ".1f" if is_percent(results) and name not in plain else _form([gain.value, gain.low])
        interval = f"{gain.low:+{form}} to {gain.high:+{form}}"
        body.append([title_of(results, name), f"{gain.value:+{form}}", interval, gain.by])
    headings = ["", "gain", "95 % interval", "paired by"]
    return Listing(f"{title}, paired", headings, body, "\n".join(notes))


def _form(values: Sequence[float]) -> str:
    return decimals.number_format(values)


def _client_gains(results: Results, title: str, found: Mapping[str, Difference]) -> Listing:
    """Return what each client gains in every metric, the worst off in the first one first."""
    shown = by_metric(results)
    forms = {
        name: ".1f" if is_percent(shown[name]) else _form([*each.clients.values()])
        for name, each in found.items()
    }
    kept_out, known, tested = novel(results), names(results), tests(results)
    listed = list(dict.fromkeys(id for each in found.values() for id in each.clients))
    body = []
    for id in listed:
        gained = (
            f"{each.clients[id]:+{forms[name]}}" if id in each.clients else ABSENT
            for name, each in found.items()
        )
        of = [tested.get(id, ABSENT)] * bool(tested)
        body.append([called(id, kept_out, known), *of, *gained])
    notes = [
        f"{metric_title(name)}: better for {each.better}, worse for {each.worse} of"
        f" {len(each.clients)} clients; on average {each.mean:+{forms[name]}}"
        for name, each in found.items()
    ]
    titles = [_metric(shown[name]) for name in found]
    headings = ["client", *[f"{splits(results)} samples"] * bool(tested), *titles]
    return Listing(
        f"{title}, gain of each client{whose(results)}", headings, body, "\n".join(notes)
    )
