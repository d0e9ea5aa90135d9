"""Results as one HTML page that opens anywhere and asks nothing of the network."""

import html
from collections.abc import Iterable, Sequence

from masquerade.cost.transfer import FEDMASK, Bandwidth
from masquerade.report import costs, plots, tables
from masquerade.report.tables import Result, Results

_CSS = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1c1d; --soft: #5c6066;
  --line: #dcdfe3; --card: #f5f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15171a; --ink: #e9eaec; --soft: #a3a8af; --line: #33373d; --card: #1e2126; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 78rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; }
h2 { margin: 2.75rem 0 0.75rem; font-size: 1.25rem; }
h3 { margin: 1.75rem 0 0.25rem; font-size: 1rem; }
p, ul, dl { max-width: 46rem; }
.soft, small, figcaption, dd { color: var(--soft); }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); }
.card { background: var(--card); border-radius: 10px; padding: 1rem 1.2rem; }
.card p { margin: 0; }
.card .who { font-size: 1.35rem; font-weight: 650; line-height: 1.3; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.4rem 0.7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; vertical-align: top; }
th { font-weight: 600; }
thead th { vertical-align: bottom; white-space: normal; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
td small { display: block; font-size: 0.82em; }
.figures { display: grid; gap: 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); }
figure { margin: 0; }
figure svg { width: 100%; height: auto; }
.notes { font-size: 0.92rem; }
.notes p { margin: 0.35rem 0; }
figcaption { font-size: 0.92rem; }
pre { overflow-x: auto; background: var(--card); border-radius: 10px; padding: 1rem 1.2rem;
  font-size: 0.85rem; }
summary { cursor: pointer; }
dt { font-weight: 600; margin-top: 0.6rem; }
dd { margin: 0; }
"""

_CAPTIONS = {
    "rounds": "How fast each method gets there, and whether it still improves at the end; a lone"
    " marker is a view that trains only when it is used.",
    "shift": "Whose line stays flat while more and more of a client's test data come from another"
    " client; the bands are ± one standard deviation over clients.",
    "traffic": "What was bought with the bytes: the further left, the less a client sent and"
    " received for the result.",
    "time": "What a client waits for over all of training: its messages, at {rate}, and the"
    " computing, which is the wall time that this run took to train, divided by its clients.",
    "clients": "The clients that a mean hides: every dot is one client (of every seed), the bar is"
    " their mean.",
}

_READING = {
    "Own data": "The mean over clients, each tested on its own test data.",
    "Own, weighted": "The same, every client counted by its number of samples.",
    "Bottom decile": "Nine clients in ten do at least this well.",
    "20 % … 100 % shift": "So much of each client's test data is replaced by another client's.",
    "All shifts": "The mean over all degrees of shift, 0 % included.",
    "Hello, Adapt": "What a client does once before training, and before its model is used; both"
    " are counted apart from training.",
    "Density": "The share of the model's parameters that a client's own model keeps.",
    "Bold": "The best value of its column as shown; where values tie, all of them.",
    "Leads": "A lead smaller than the intervals over seeds is no lead, and a single seed has no"
    " interval. The ± over clients says how different clients are, not how sure the mean is.",
}

_ABOUT_GLOBAL = (
    "The shared model in everyone's hands, for the methods that keep one beside the personal"
    " models: what personalization is worth on own data, and what it costs under shift."
)


def page(
    results: Results,
    config_text: str,
    title: str,
    notes: Sequence[str] = (),
    rate: Bandwidth = FEDMASK,
) -> str:
    """Return a self-contained HTML page of the results and the configuration they come from.

    `rate` is the bandwidth that clients are taken to have.
    """
    groups = list(tables.by_method(results).values())
    sections = (
        _headline(results, title, notes),
        _section("Results", _results(results, groups)),
        _section("Figures", _figures(results, rate)),
        _section("Costs", _costs(results, groups, rate)),
        _section("Global view", _global_view(results, groups)),
        _section("Configuration", _configuration(config_text)),
        _section("How to read this", _reading()),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{html.escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, sections))
        + "\n</main>\n</body>\n</html>\n"
    )


def _section(name: str, content: str) -> str:
    return f"<section>\n<h2>{name}</h2>\n{content}\n</section>" if content else ""


def _element(tag: str, text: str, kind: str = "") -> str:
    return f"<{tag}{f' class={kind!r}' if kind else ''}>{html.escape(text)}</{tag}>"


def _headline(results: Results, title: str, notes: Sequence[str]) -> str:
    names = list(tables.columns(results))
    full = [name for name in names if name.endswith(" % shift")][-1:]
    asked = {"Own data": "On own data", "All shifts": "Averaged over shifts"}
    asked |= {name: f"At {name}" for name in full}
    cards = [_card(results, name, asked[name]) for name in names if name in asked]
    remarks = "".join(_element("li", note) for note in notes)
    return "\n".join(
        [
            "<header>",
            _element("h1", title),
            _element("p", tables.heading(results), "soft"),
            f'<div class="cards">{"".join(cards)}</div>',
            f"<ul>{remarks}</ul>" if remarks else "",
            "</header>",
        ]
    )


def _card(results: Results, name: str, label: str) -> str:
    leaders = tables.best(results).get(name, [])
    methods = list(tables.by_method(results))
    others = [r for r in results if r["method"] not in {methods[row] for row in leaders}]
    who, value = _leader(results, name)
    second = "next: {} with {}".format(*_leader(others, name)) if others else ""
    return (
        f'<div class="card">{_element("p", label, "soft")}{_element("p", who, "who")}'
        f"{_element('p', value)}{_element('p', second, 'soft')}</div>"
    )


def _leader(results: Results, name: str) -> tuple[str, str]:
    leaders = tables.best(results).get(name)
    if not leaders:
        return tables.ABSENT, tables.ABSENT
    value = tables.rows(results)[leaders[0]][name].partition(" ")[0]
    unit = " %" if tables.is_percent(results) else ""
    return tables.winners(results)[name], value + unit


def _results(results: Results, groups: list[list[Result]]) -> str:
    headings, body = tables.cells(results)
    form = tables.number_format(results)
    weighted = [tables.figure(seeds, "accuracy", "own", "weighted") for seeds in groups]
    rows = [
        [_cell(cell.value, cell.rest, cell.best) for cell in row]
        + [_cell(*tables.split(tables.show(found, form)))]
        for row, found in zip(body, weighted, strict=True)
    ]
    notes = "".join(_element("p", note, "soft") for note in tables.footnotes(results))
    return _table([*headings, "Own, weighted"], rows) + f'<div class="notes">{notes}</div>'


def _figures(results: Results, rate: Bandwidth) -> str:
    captions = {name: text.format(rate=rate.text) for name, text in _CAPTIONS.items()}
    drawn = "\n".join(
        f"<figure>{svg}{_element('figcaption', captions[name])}</figure>"
        for name, svg in plots.figures(results, rate).items()
    )
    return f'<div class="figures">\n{drawn}\n</div>' if drawn else ""


def _costs(results: Results, groups: list[list[Result]], rate: Bandwidth) -> str:
    shown = costs.sections(results, rate) + costs.sections(results, rate, "paper")
    pieces = []
    for section in shown:
        rows = [[_cell(text) for text in row] for row in section.rows()]
        table = _table(["Method", *section.columns], rows)
        pieces.append(_element("h3", section.title) + _element("p", section.note, "soft") + table)
    return "\n".join(pieces) + _layers(groups)


def _layers(groups: list[list[Result]]) -> str:
    body = [
        [_cell(tables.title(seeds[0])), *(_cell(text) for text in row)]
        for seeds in groups
        for row in costs.layers(seeds)
    ]
    if not body:
        return ""
    headings = ("Method", "Phase", "Layer", *(f"GFLOP {way}" for way in _WAYS))
    summary = "<summary>Operations by phase and layer</summary>"
    return f"<details>{summary}{_table(headings, body)}</details>"


_WAYS = ("dense", "masked", "executed")


def _global_view(results: Results, groups: list[list[Result]]) -> str:
    form, paths = tables.number_format(results), tables.columns(results)
    rows = []
    for seeds in groups:
        shown = [
            tables.show(tables.figure(seeds, "accuracy", "global", *path[1:]), form)
            for path in paths.values()
        ]
        if any(text != tables.ABSENT for text in shown):
            name = _cell(tables.title(seeds[0]))
            rows.append([name, *(_cell(*tables.split(text)) for text in shown)])
    return _element("p", _ABOUT_GLOBAL, "soft") + _table(["Method", *paths], rows) if rows else ""


def _configuration(text: str) -> str:
    summary = "<summary>The complete configuration, as it was run</summary>"
    return f"<details>{summary}<pre>{html.escape(text)}</pre></details>"


def _reading() -> str:
    terms = "".join(_element("dt", term) + _element("dd", text) for term, text in _READING.items())
    return f"<dl>{terms}</dl>"


def _cell(value: str, rest: str = "", best: bool = False) -> str:
    shown = _element("strong", value) if best else html.escape(value)
    return shown + (_element("small", rest) if rest else "")


def _table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{html.escape(heading)}</th>' for heading in headings)
    top = top.replace(" %", "&nbsp;%")
    body = "\n".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td>{cell}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" tabindex="0"><table>\n<thead><tr>{top}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )
