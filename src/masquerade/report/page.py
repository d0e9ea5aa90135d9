"""Results as one HTML page that opens anywhere and asks nothing of the network."""

import base64
import hashlib
import html
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from masquerade.cost.bandwidth import FEDMASK, Bandwidth
from masquerade.report import (
    blocks,
    clients,
    costs,
    footnotes,
    main_table,
    plots,
    privacy,
    render,
    tables,
)
from masquerade.report.charts import Chart, titles
from masquerade.report.headline import headline
from masquerade.report.html_elements import (
    anchor,
    cell,
    data,
    element,
    figure_cell,
    folded,
    mark,
    paragraphs,
    section,
    table,
)
from masquerade.report.reading import reading
from masquerade.report.tables import Pick, Results
from masquerade.results import AVERAGED, Accuracy, PrivacySheet, Summary
from masquerade.results.accuracy import ByStep
from masquerade.results.alarms import alarms
from masquerade.results.lead import led
from masquerade.results.metric_names import metric_title

_FIGURES = {
    "Training": ("rounds", "traffic", "operations", "time"),
    "Clients": ("labels", "clients", "gains"),
    "Shift": ("shift", "pooled"),
    "Corruption": ("severity",),
    "Masks": ("density", "moving", "gates"),
}
"""Which figures stand in which section."""

_ABOUT_OVERLAP = (
    "The overlap of two clients' masks is the share of weights that both keep, of those that either"
    " keeps. Each square has a row and a column for each client, and shows the last layer: the"
    " fuller the color, the more two clients agree. Clients whose masks are alike stand together."
    " Beside the method is the mean over all pairs and all layers."
)

_ABOUT_GLOBAL_MASK = (
    "How many weights of a tensor both a client's mask and the global one keep, over all clients."
)

_ABOUT_ROUNDS = (
    "There is no figure by round, because models were evaluated once, at the end; a smaller"
    " evaluate.every does so more often."
)

_ABOUT_GLOBAL = (
    "The shared model in everyone's hands, for the methods that keep one beside the personal"
    " models: what personalization is worth on own data, and what it costs under shift."
)

_ABOUT_NOVEL = "The clients that took no part in training."


@dataclass(frozen=True)
class About:
    """What is known of results beside them."""

    title: str
    settings: str
    """The text of a `config.toml`."""
    facts: Sequence[str] = ()
    """What was run, in lines: partition, network, version."""
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it ran on."""
    sheets: Sequence[PrivacySheet] = ()
    """What left clients."""


def page(results: Results, about: About, rate: Bandwidth = FEDMASK) -> str:
    """Return a self-contained HTML page of results.

    `rate` is the bandwidth that clients are taken to have.
    """
    notes = alarms(results)
    results = tables.under_rules(led(results))
    groups = list(tables.by_method(results).values())
    rows = list(tables.by_row(results).values())
    charts = plots.figures(results, rate)
    sections = {
        "Results": results_table(results) + _notes(results),
        "Training": _figures(charts, "Training") + _left_out(results, charts),
        "Clients": _figures(charts, "Clients") + _clients(results),
        "Shift": _figures(charts, "Shift") + _shift(results, rows),
        "Corruption": _figures(charts, "Corruption") + _heat(results, rows),
        "Masks": _figures(charts, "Masks") + _overlaps(charts) + _with_global(groups),
        "Costs": _costs(results, groups, rate),
        "Global view": _global_view(results, groups),
        "Novel clients": _novel(results, rows),
        "What left clients": _privacy(about.sheets, _order(results, about.sheets)),
        "Configuration": _configuration(about),
        "How to read this": reading(),
    }
    shown = {name: content for name, content in sections.items() if content}
    first, *rest = (section(name, content) for name, content in shown.items())
    body = [
        headline(results, about.title, about.facts, about.command, notes),
        _contents(shown),
        first,
        legend(results) if charts and len(titles(results)) > 1 else "",
        *rest,
    ]
    return document(about.title, body, charts)


def document(
    title: str, body: Sequence[str], charts: Mapping[str, Chart], *, live: bool = False
) -> str:
    """Return a page of pieces, with the script that draws its figures.

    One that is live asks the server that it came from, and nobody else, for what is new.
    """
    # Pages without a figure, as of machines that cannot draw, need none of the large script.
    library = render.script() if charts else ""
    own = [_asset("page.js"), *([_asset("live.js")] if live else [])]
    scripts = [text for text in (library, *own) if text]
    allowed = " ".join(f"'sha256-{_sha256(text)}'" for text in scripts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"
    policy += "; connect-src 'self'" if live else ""
    specs = {name: chart.on_page() for name, chart in charts.items()}
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_asset('page.css')}</style>\n"
        "</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, body))
        + f"\n</main>\n{data('charts', specs)}\n"
        + "\n".join(f"<script>{text}</script>" for text in scripts)
        + "\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return files("masquerade.report").joinpath(name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _contents(names: Iterable[str]) -> str:
    links = "".join(f'<a href="#{anchor(name)}">{name}</a>' for name in names)
    return f"<nav>{links}</nav>"


def legend(results: Results) -> str:
    """Return the legend of all figures: a method that is chosen stands out in each."""
    buttons = "".join(
        f'<button data-method="{html.escape(name)}" aria-pressed="false">{mark(place)}'
        f"{html.escape(name)}</button>"
        for place, name in enumerate(titles(results))
    )
    return f'<div class="methods" role="group" aria-label="Methods">{buttons}</div>'


def results_table(results: Results) -> str:
    """Return the table of results without its notes; a block of methods after the other."""
    headings, body = main_table.cells(results)
    # All degrees of shift have tables of their own.
    shown = [place for place, name in enumerate(headings) if name not in tables.between(headings)]
    places = {name: place for place, name in enumerate(titles(results))}
    rows = [
        [cell(row[place].value, row[place].rest, row[place].best) for place in shown]
        for row in body
    ]
    for row, found in zip(rows, body, strict=True):
        name = found[0].value
        row[0] = (mark(places[name]) if name in places else "") + row[0]
    names = [headings[place] for place in shown]
    parts = blocks.parted(rows, tables.by_row(results).values())
    shown_tables = [
        element("p", title, "soft") * (len(parts) > 1) + table(names, part)
        for title, part in parts.items()
    ]
    return "\n".join(shown_tables)


def _notes(results: Results) -> str:
    """Say what a reader of the table needs at once, and fold the rest."""
    first, *rest = footnotes.footnotes(results)
    at_once = [first, *(note for note in rest if note in footnotes.about_bold(results))]
    others = [note for note in rest if note not in at_once]
    more = folded("More about the columns", paragraphs(others))
    return f'<div class="notes">{paragraphs(at_once)}{more}</div>'


def figure(chart: Chart) -> str:
    """Return a figure as it is drawn without a script, which draws it anew."""
    caption = element("figcaption", chart.caption) if chart.caption else ""
    still = render.svg(chart.alone(legend=False), chart.title)
    plot = f'<div class="plot" id="figure-{chart.name}">{still}</div>'
    kind = ' class="whole"' if chart.name in _WHOLE else ""
    return f"<figure{kind}>{element('h3', chart.title)}{plot}{caption}</figure>"


_WHOLE = ("labels",)
"""Figures that are as wide as the page: they have a column for each client."""


def _figures(charts: Mapping[str, Chart], section: str) -> str:
    found = "\n".join(figure(charts[name]) for name in _FIGURES[section] if name in charts)
    return f'<div class="figures">\n{found}\n</div>' if found else ""


def _left_out(results: Results, charts: Mapping[str, Chart]) -> str:
    """Say why there is no figure by round, where models were evaluated once."""
    if "rounds" in charts or not any(result.history for result in results):
        return ""
    return element("p", _ABOUT_ROUNDS, "soft")


CLIENTS = 1000
"""Clients, at most, that a page lists."""


def _clients(results: Results) -> str:
    """Return a table of every client for each metric, by the names that data give them."""
    pieces = []
    for number, listing in enumerate(clients.listings(results)):
        id = f"clients-{number}"
        cells = [[cell(str(text)) for text in row] for row in listing.body[:CLIENTS]]
        more = len(listing.body) - CLIENTS
        note = f"{more} more clients are not shown; masquerade report --clients lists all of them."
        search = (
            f'<input type="search" placeholder="Search clients" aria-label="Search clients"'
            f' aria-controls="{id}" hidden>'
        )
        headings = [name[:1].upper() + name[1:] for name in listing.headings]
        inside = table(headings, cells, "tall") + paragraphs([note] * (more > 0))
        pieces.append(folded(listing.title, f'{search}<div id="{id}">{inside}</div>'))
    return "\n".join(pieces)


def _shift(results: Results, groups: list[list[Summary]]) -> str:
    """Return a table of every degree, by one other client and pooled."""
    form = tables.number_format(results)
    found = []
    sources: dict[str, tuple[str, Callable[[Accuracy], ByStep]]] = {
        "From one other client": ("shift", lambda accuracy: accuracy.shift),
        "From all other clients": ("pooled", lambda accuracy: accuracy.pooled),
    }
    for name, (kind, by_degree) in sources.items():
        degrees = tables.steps(results, by_degree)
        keys = {f"{degree} %": str(degree) for degree in (0, *degrees)} | {"Average": AVERAGED}
        rows = [
            [cell(seeds[0].title)]
            + [
                figure_cell(
                    tables.figure(seeds, _at(by_degree, key), tables.client_step(kind, key)), form
                )
                for key in keys.values()
            ]
            for seeds in groups
        ]
        inside = table(["Method", *keys], rows)
        found.append(folded(f"{name}: every degree", inside) if degrees else "")
    return "\n".join(found)


def _at(by_step: Callable[[Accuracy], ByStep], key: str) -> Pick:
    return lambda summary: by_step(summary.accuracy).get(key)


def _heat(results: Results, groups: list[list[Summary]]) -> str:
    """Return a table of kinds by methods, shaded by value."""
    by_kind, form = tables.by_kind(results), tables.number_format(results)
    values = [found.mean for row in by_kind.values() for found in row if found and not found.lost]
    if not values:
        return ""
    low, span = min(values), (max(values) - min(values)) or 1.0
    rows = [
        [cell(tables.kind_name(kind))]
        + [
            figure_cell(each, form, (each.mean - low) / span if each and not each.lost else None)
            for each in found
        ]
        for kind, found in by_kind.items()
    ]
    return table(["Over all severities", *(seeds[0].title for seeds in groups)], rows)


def _overlaps(charts: Mapping[str, Chart]) -> str:
    """Return a small picture per method of how far clients' masks overlap, pair by pair."""
    found = "".join(figure(each) for name, each in charts.items() if name.startswith("overlap"))
    about = element("h3", "Whose masks are alike") + element("p", _ABOUT_OVERLAP, "soft")
    return f'{about}<div class="figures small">{found}</div>' if found else ""


def _with_global(groups: list[list[Summary]]) -> str:
    """Return a table of how many entries clients' masks share with the global one, by tensor."""
    rows = []
    for seeds in groups:
        first = next((seed.overlap.with_global for seed in seeds if seed.overlap), {})
        for name in first:
            given = [seed.overlap.with_global[name] for seed in seeds if seed.overlap]
            counts = [count for each in given for count in each]
            cells = [f"{round(statistics.fmean(counts)):,}", f"{min(counts):,}", f"{max(counts):,}"]
            rows.append([cell(text) for text in (seeds[0].title, name, *cells)])
    heads = ["Method", "Tensor", "Mean", "Least", "Most"]
    title = element("h3", "Weights shared with the global mask")
    return title + paragraphs([_ABOUT_GLOBAL_MASK]) + table(heads, rows) if rows else ""


def _costs(results: Results, groups: list[list[Summary]], rate: Bandwidth) -> str:
    shown = costs.sections(results, rate) + costs.sections(results, rate, "paper")
    pieces = []
    for each in shown:
        rows = [[cell(text) for text in row] for row in each.rows()]
        inside = table(["Method", *each.columns], rows)
        pieces.append(folded(each.title, paragraphs([each.note]) + inside))
    return "\n".join(pieces) + _layers(groups)


def _privacy(sheets: Sequence[PrivacySheet], order: Sequence[str]) -> str:
    """Return for each method what is guaranteed of it, and a folded table of what left clients.

    Seeds are told apart where they differ, as masks that are sent differ in bytes.
    """
    by_title: dict[str, list[PrivacySheet]] = {}
    for sheet in sheets:
        by_title.setdefault(sheet.title, []).append(sheet)
    pieces = []
    for title in sorted(by_title, key=order.index):
        alike: dict[str, list[int]] = {}
        for sheet in by_title[title]:
            rows = [[cell(text) for text in row] for row in privacy.body(sheet)]
            alike.setdefault(table(privacy.HEADINGS, rows), []).append(sheet.seed)
        notes = dict.fromkeys(note for sheet in by_title[title] for note in privacy.notes(sheet))
        content = paragraphs(notes)
        for inside, seeds in alike.items():
            whose = f"{'Seeds' if len(seeds) > 1 else 'Seed'} {', '.join(map(str, seeds))}"
            content += element("h4", whose) * (len(alike) > 1) + inside
        known = dict.fromkeys(sheet.epsilon for sheet in by_title[title])
        guarantees = [
            f"ε {each}" if each != "none" else "no differential privacy" for each in known
        ]
        pieces.append(folded(f"{title}: {' or '.join(guarantees)}", content))
    return "\n".join(pieces)


def _layers(groups: list[list[Summary]]) -> str:
    body = [
        [cell(seeds[0].title), *(cell(text) for text in row)]
        for seeds in groups
        for row in costs.layers(seeds)
    ]
    if not body:
        return ""
    headings = ("Method", "Phase", "Layer", *(f"GFLOP {way}" for way in _WAYS))
    return folded("Operations by phase and layer", table(headings, body))


def _order(results: Results, sheets: Sequence[PrivacySheet]) -> list[str]:
    """Return the methods of sheets as the table has them, and then others, as of several views."""
    return list(dict.fromkeys([*titles(results), *(sheet.title for sheet in sheets)]))


_WAYS = ("dense", "masked", "executed")


Seen = Callable[[Summary], tuple[Accuracy | None, Mapping[str, Accuracy]]]
"""What a table shows of a summary: an accuracy, and further metrics by name."""


def _global_view(results: Results, groups: list[list[Summary]]) -> str:
    return _further(results, groups, _ABOUT_GLOBAL, lambda s: (s.global_view, s.global_metrics))


def _novel(results: Results, groups: list[list[Summary]]) -> str:
    """Return a table of novel clients, where more is known of them than the main table shows."""
    if not any(result.novel and result.novel.metrics for result in results):
        return ""

    def seen(summary: Summary) -> tuple[Accuracy | None, Mapping[str, Accuracy]]:
        found = summary.novel
        return (found.accuracy, found.metrics) if found else (None, {})

    def count(summary: Summary) -> int:
        return len(summary.novel.clients.ids) if summary.novel else 0

    return _further(results, groups, _ABOUT_NOVEL, seen, count)


def _further(
    results: Results,
    groups: list[list[Summary]],
    about: str,
    seen: Seen,
    count: Callable[[Summary], int] = lambda summary: summary.clients,
) -> str:
    """Return a table like the main one, of something else that methods were measured on."""
    form, forms = tables.number_format(results), tables.formats(results)

    def of_accuracy(pick: Callable[[Accuracy], tables.Value]) -> Pick:
        return lambda summary: pick(found) if (found := seen(summary)[0]) else None

    def of_metric(name: str) -> Pick:
        return lambda summary: tables.own_of(seen(summary)[1].get(name))

    first, *rest = ((name, of_accuracy(pick)) for name, pick in tables.of_accuracy(results).items())
    named = dict.fromkeys(name for each in results for name in seen(each)[1])
    picks = dict((first, *((metric_title(name), of_metric(name)) for name in named), *rest))
    for name in tables.between(picks):
        del picks[name]
    rows = []
    for seeds in groups:
        found = {name: tables.figure(seeds, pick) for name, pick in picks.items()}
        if any(found.values()):
            cells = [figure_cell(each, forms.get(name, form)) for name, each in found.items()]
            rows.append([cell(seeds[0].title), *cells])
    if not rows:
        return ""
    defined = footnotes.about_defined(results, lambda s: seen(s)[0], lambda s: seen(s)[1], count)
    notes = paragraphs(defined)
    titles = [tables.title_of(results, name) for name in picks]
    return element("p", about, "soft") + table(["Method", *titles], rows) + notes


def _configuration(about: About) -> str:
    settings = f"<pre>{html.escape(about.settings)}</pre>"
    found = folded("The complete configuration, as it was run", settings)
    if about.environment:
        facts = about.environment.items()
        terms = "".join(element("dt", name) + element("dd", value) for name, value in facts)
        found += folded("What it ran on", f'<dl class="facts">{terms}</dl>')
    return found
