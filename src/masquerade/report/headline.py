"""The top of a page: what was run, and who is ahead, as far as intervals can tell."""

from collections.abc import Sequence

from masquerade.report import tables
from masquerade.report.html_elements import element
from masquerade.report.tables import Results
from masquerade.results.metric_names import metric_title

TOLD = 6
"""Methods, at most, whose figures stand above the table where they cannot be compared."""


def headline(results: Results, title: str, facts: Sequence[str], notes: Sequence[str]) -> str:
    """Return the title, what was run in a line, what is alarming, and a tile for each finding."""
    names = list(tables.columns(results))
    full = [name for name in names if name.endswith(" % shift")][-1:]
    of = f"{metric_title(results[0].metric)} on" if tables.further(results) else "On"
    asked = {"Own data": f"{of} own data", "All shifts": "Averaged over shifts"}
    asked |= {name: f"At {name}" for name in full}
    found, ahead = tables.figures(results), tables.leads(results)
    tiles = [
        _tile(results, asked[name], [row[name] for row in found], ahead[name])
        for name in names
        if name in asked
    ]
    remarks = "".join(element("li", note) for note in notes)
    return "\n".join(
        [
            "<header>",
            element("h1", title),
            *(element("p", fact, "soft") for fact in (tables.heading(results), *facts)),
            f"<ul>{remarks}</ul>" if remarks else "",
            f'<div class="tiles">{"".join(tiles)}</div>',
            "</header>",
        ]
    )


def _tile(
    results: Results, label: str, found: Sequence[tables.Figure | None], ahead: tables.Lead
) -> str:
    """Say who, without a rule, is ahead of all others by an interval, or that nobody is.

    Where there is too little to test it with, figures stand without a finding.
    """
    form, unit = tables.number_format(results), " %" if tables.is_percent(results) else ""
    groups = list(tables.by_row(results).values())
    plain = [place for place, seeds in enumerate(groups) if not seeds[0].scope]
    known = {
        groups[place][0].title: each.mean
        for place in plain
        if (each := found[place]) is not None and not each.lost
    }
    values = sorted(known.values())
    leaders = plain if len(plain) == 1 else [place for place in plain if place in ahead.rows]
    if leaders:
        who, value = groups[leaders[0]][0].title, _sure(found[leaders[0]], form, unit)
    elif not ahead.by and values:
        who = "Cannot be tested: too few seeds and clients"
        best = sorted(known, key=known.__getitem__, reverse=results[0].better == "higher")
        figures = {name: f"{known[name]:{form}}{unit}".replace(" ", "\u00a0") for name in best}
        value = ", ".join(f"{name} {figures[name]}" for name in best[:TOLD])
        value += f" and {len(best) - TOLD} more" if len(best) > TOLD else ""
    else:
        who = "No lead is separated"
        value = f"{values[0]:{form}} to {values[-1]:{form}}{unit}" if values else tables.ABSENT
    return (
        f'<div class="tile">{element("p", label, "soft")}{element("p", who, "who")}'
        f"{element('p', value)}</div>"
    )


def _sure(found: tables.Figure | None, form: str, unit: str) -> str:
    """Write a figure with its interval, where it has one."""
    if found is None or found.lost:
        return tables.show(found, form)
    value = f"{found.mean:{form}}{unit}"
    if found.half is None:
        return value
    low, high = found.mean - found.half, found.mean + found.half
    return f"{value} (95 % interval {low:{form}} to {high:{form}}, over {found.by})"
