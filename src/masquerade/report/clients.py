"""What clients get from every method, each of them, and what they gain from one for another."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from masquerade.errors import MasqueradeError, nearest
from masquerade.report.intervals import Interval, of_difference
from masquerade.report.tables import (
    ABSENT,
    Results,
    by_row,
    columns,
    lower_is_better,
    number_format,
    of_clients,
    trainings,
)
from masquerade.results import ClientFigures, Summary

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def of_one_partition(results: Results) -> list[Summary]:
    """Return results that are of the same clients: those of the first seed, where seeds differ.

    With `data.partition_per_seed` client 3 of one seed is another than client 3 of the next.
    """
    parts = {tuple(group.samples for group in _groups(each)) for each in results}
    first = min(each.seed for each in results)
    return [each for each in results if len(parts) < 2 or each.seed == first]


def _whose(results: Results) -> str:
    """Say whose clients are shown, where they are not those of all seeds."""
    some = of_one_partition(results)
    return "" if len(some) == len(results) else f" (seed {some[0].seed}; each has its own)"


def own(results: Results) -> dict[str, dict[int, float]]:
    """Return every client's metric on its own data, by method and client, averaged over seeds.

    Novel clients are among them.
    """
    found: dict[str, dict[int, float]] = {}
    for name, seeds in by_row(of_one_partition(results)).items():
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


def novel(results: Results) -> set[int]:
    """Return the clients that were kept out of training."""
    some = of_one_partition(results)
    return {id for result in some if result.novel for id in result.novel.clients.ids}


def names(results: Results) -> dict[int, str]:
    """Return what the data call their clients, where they have names."""
    found: dict[int, str] = {}
    for result in of_one_partition(results):
        for group in _groups(result):
            if group.names:
                found |= dict(zip(group.ids, group.names, strict=True))
    return found


def _called(id: int, kept_out: set[int], known: dict[int, str]) -> str:
    called = f"{id}: {known[id]}" if id in known else str(id)
    return f"{called} (novel)" if id in kept_out else called


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
    _check_names(results, left, right)
    groups, behind, lower = by_row(results), of_clients(results), lower_is_better(results)
    found = {}
    for name, pick in columns(results).items():
        ours, theirs = (trainings(groups[each], pick, behind.get(name)) for each in (left, right))
        gain = of_difference(theirs, ours) if name in lower else of_difference(ours, theirs)
        if gain is not None:
            found[name] = gain
    return found


def rows(results: Results) -> tuple[list[str], list[list[str]]]:
    """Return the metric of every client on its own data as texts: headings, and a row for each."""
    found, form = own(results), number_format(results)
    kept_out, known = novel(results), names(results)
    titles = {name: seeds[0].title for name, seeds in by_row(results).items()}
    body = []
    for id in sorted({id for values in found.values() for id in values}):
        values = (given.get(id) for given in found.values())
        shown = (ABSENT if value is None else format(value, form) for value in values)
        body.append([_called(id, kept_out, known), *shown])
    return ["client", *(titles[name] for name in found)], body


def title(results: Results) -> str:
    """Say what these rows are."""
    return f"Each client on its own data{_whose(results)}"


def table(results: Results) -> "Table":
    """Return the metric of every client as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    headings, body = rows(results)
    drawn = Table(title=title(results))
    for heading in headings:
        drawn.add_column(heading, justify="right")
    for row in body:
        drawn.add_row(*map(Text, row))
    return drawn


def difference_table(results: Results, left: str, right: str) -> "Group":
    """Return what one method gains over another: by column, and client by client."""
    from rich.console import Group

    found, by_column = difference(results, left, right), gains(results, left, right)
    if not found.clients and not by_column:
        text = f"no client has figures of both `{left}` and `{right}`, and no three seeds do"
        raise MasqueradeError("E202", f"{text}; take methods whose clients are listed")
    title = f"{left} instead of {right}"
    drawn = [_gains_table(results, title, by_column)] if by_column else []
    drawn += [_clients_table(results, title, found)] if found.clients else []
    return Group(*drawn)


def _gains_table(results: Results, title: str, found: dict[str, Interval]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    form = number_format(results)
    by = {gain.by for gain in found.values()}
    notes = ["Positive where it is better off; an interval without 0 separates the two."]
    if "seeds" in by:
        notes.append("By seeds: the differences of trainings of the same seed, by Student's t.")
    if "clients" in by:
        notes.append(
            "By clients: the differences of the same clients, by bootstrap; it says nothing about"
            " other trainings or partitions."
        )
    drawn = Table(title=f"{title}, paired", caption="\n".join(notes))
    for heading in ("", "gain", "95 % interval", "paired by"):
        drawn.add_column(heading, justify="right" if heading else "left")
    for name, gain in found.items():
        interval = f"{gain.low:+{form}} to {gain.high:+{form}}"
        drawn.add_row(Text(name), f"{gain.value:+{form}}", interval, gain.by)
    return drawn


def _clients_table(results: Results, title: str, found: Difference) -> "Table":
    """Return what each client gains, the worst off first."""
    from rich.table import Table
    from rich.text import Text

    form, kept_out, known = number_format(results), novel(results), names(results)
    drawn = Table(
        title=f"{title}, client by client{_whose(results)}",
        caption=f"better for {found.better}, worse for {found.worse} of {len(found.clients)} "
        f"clients; on average {found.mean:+{form}}",
    )
    drawn.add_column("client", justify="right")
    drawn.add_column("gain", justify="right")
    for id, gain in found.clients.items():
        drawn.add_row(Text(_called(id, kept_out, known)), f"{gain:+{form}}")
    return drawn
