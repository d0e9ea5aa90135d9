"""The top of a page: what was run, and who is ahead, as far as intervals can tell."""

from collections.abc import Sequence

from masquerade.report import leads, tables
from masquerade.report.html_elements import element
from masquerade.report.tables import Results
from masquerade.results.metric_names import metric_title

TOLD = 6
"""Methods, at most, whose figures stand above the table where they cannot be compared."""


def headline(
    results: Results, title: str, facts: Sequence[str], command: str, notes: Sequence[str]
) -> str:
    """Return the title, what was run, what is alarming, and a tile for each finding."""
    names = list(tables.columns(results))
    full = [name for name in names if name.endswith(" % shift")][-1:]
    of = f"{metric_title(results[0].metric)} on" if tables.further(results) else "On"
    asked = {"Own data": f"{of} own data", "All shifts": "Averaged over shifts"}
    asked |= {name: f"At {name}" for name in full}
    found, ahead = tables.figures(results), leads.leads(results)
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
            f'<p class="soft">{element("code", command)}</p>' if command else "",
            f"<ul>{remarks}</ul>" if remarks else "",
            f'<div class="tiles">{"".join(tiles)}</div>',
            "</header>",
        ]
    )


def _tile(
    results: Results, label: str, found: Sequence[tables.Figure | None], ahead: leads.Lead
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
    apart = next((each for each in ahead.ahead if each.best in plain), None)
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
    how_far = _apart(apart, groups, form, tables.is_percent(results)) if apart else ""
    return (
        f'<div class="tile">{element("p", label, "soft")}{element("p", who, "who")}'
        f"{element('p', value)}{element('p', how_far, 'soft') if how_far else ''}</div>"
    )


def _apart(ahead: leads.Ahead, groups: Sequence[tables.Results], form: str, percent: bool) -> str:
    """Say how far the best row is ahead of the next, or of the one that it is not separated from.

    So a reader sees at once whether more seeds might tell them apart.
    """
    best, other = (groups[place][0].title for place in (ahead.best, ahead.of))
    gap, points = ahead.gap, " points" if percent else ""
    low, high = (_signed(each, form) for each in (gap.low, gap.high))
    interval = f"(95 % interval {low} to {high}, over {gap.by})"
    if not float(f"{gap.value:{form}}"):
        return f"{best} and {other} are level {interval}"
    who = "" if gap.sign > 0 else f"{best} is "
    return f"{who}{_signed(gap.value, form)}{points} ahead of {other} {interval}"


def _signed(value: float, form: str) -> str:
    """Write a number that may be negative; one that is 0 as written has no sign."""
    return f"{value:z{form}}".replace("-", "\N{MINUS SIGN}")


def _sure(found: tables.Figure | None, form: str, unit: str) -> str:
    """Write a figure with its interval, where it has one."""
    if found is None or found.lost:
        return tables.show(found, form)
    value = f"{found.mean:{form}}{unit}"
    if found.half is None:
        return value
    low, high = found.mean - found.half, found.mean + found.half
    return f"{value} (95 % interval {low:{form}} to {high:{form}}, over {found.by})"
