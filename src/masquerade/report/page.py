"""Results as one HTML page that opens anywhere and asks nothing of the network."""

import html
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from masquerade.cost.bandwidth import FEDMASK, Bandwidth
from masquerade.report import blocks, clients, costs, plots, privacy, tables
from masquerade.report.drawing import matrix
from masquerade.report.tables import Pick, Results
from masquerade.results import AVERAGED, Accuracy, PrivacySheet, Summary
from masquerade.results.accuracy import ByStep
from masquerade.results.alarms import alarms
from masquerade.results.lead import led
from masquerade.results.metric_names import metric_title

_CSS = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1c1d; --soft: #5c6066;
  --line: #dcdfe3; --tile: #f5f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15171a; --ink: #e9eaec; --soft: #a3a8af; --line: #33373d; --tile: #1e2126; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 78rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; }
h2 { margin: 2.75rem 0 0.75rem; font-size: 1.25rem; }
h3 { margin: 1.75rem 0 0.25rem; font-size: 1rem; }
p, ul, dl { max-width: 46rem; }
.soft, small, figcaption, dd { color: var(--soft); }
.tiles { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); }
.tile { background: var(--tile); border-radius: 10px; padding: 1rem 1.2rem; }
.tile p { margin: 0; }
.tile .who { font-size: 1.35rem; font-weight: 650; line-height: 1.3; }
.wide { overflow-x: auto; margin-top: 1.25rem; }
/* A shade at the right edge, where more of a table is to be scrolled to. */
.wide { background: linear-gradient(to left, var(--page) 40%, transparent) right local,
    linear-gradient(to left, var(--line), transparent) right scroll;
  background-size: 3rem 100%, 1.25rem 100%; background-repeat: no-repeat; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.4rem 0.7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; vertical-align: top; }
th { font-weight: 600; }
thead th { vertical-align: bottom; white-space: normal; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
td small { display: block; font-size: 0.82em; }
.figures { display: grid; gap: 2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 34rem), 1fr)); }
figure { margin: 0; }
figure h3 { margin: 0 0 0.25rem; }
figure svg { width: 100%; height: auto; }
.notes { font-size: 0.92rem; }
.notes p { margin: 0.35rem 0; }
figcaption { font-size: 0.92rem; }
pre { overflow-x: auto; background: var(--tile); border-radius: 10px; padding: 1rem 1.2rem;
  font-size: 0.85rem; }
summary { cursor: pointer; }
.small { display: flex; flex-wrap: wrap; gap: 1.25rem; }
.small figure { width: 9rem; }
.small svg { color: #0072b2; background: var(--tile); }
td:has(.heat) { padding: 0; }
.heat { display: block; padding: 0.4rem 0.7rem;
  background: rgb(0 114 178 / calc(0.05 + 0.4 * var(--heat))); }
dt { font-weight: 600; margin-top: 0.6rem; }
dd { margin: 0; }
"""

_CAPTIONS = {
    "rounds": "How fast each method gets there, and whether it still improves at the end; a lone"
    " marker is a view that trains only when it is used.",
    "traffic": "What was bought with the bytes: the further left, the less a client sent and"
    " received for the result.",
    "time": "What a client waits for over all of training: its messages, at {rate}, and the"
    " computing, which is the wall time that this run took to train, divided by its clients.",
    "clients": "The clients that a mean hides: every dot is one client, over all seeds of one"
    " partition, every ring one that took no part in training; the bar is the mean of the dots.",
    "gains": "Who wins and who loses when the first method is replaced: every dot is one client, to"
    " the right of 0 where it is better off; rings took no part in training.",
    "shift": "Whose line stays flat while more and more of a client's test data come from one other"
    " client; the bands are ± one standard deviation over clients.",
    "pooled": "The same with samples of all other clients, so that no single partner decides what a"
    " client meets.",
    "severity": "What is left as images get worse; 0 is the clean image. The bands are ± one"
    " standard deviation over clients.",
    "gates": "How gates decide at the end of training: a block at 0 is left out, one at 1 is used"
    " as it is.",
}

TITLES = {
    "rounds": "Over rounds",
    "traffic": "By bytes",
    "time": "Time of a client",
    "clients": "Every client",
    "gains": "Gains and losses of clients",
    "shift": "Shift from one other client",
    "pooled": "Shift from all other clients",
    "severity": "Corruption",
    "gates": "Gates",
}
"""What stands above a figure; its caption below says what to look for."""

_SECTIONS = {
    "Figures": ("rounds", "traffic", "time", "clients", "gains"),
    "Shift": ("shift", "pooled"),
    "Corruption": ("severity",),
    "Masks": ("gates",),
}

_READING = {
    "Own data": "The mean over clients, each tested on samples of its own. Beside further metrics"
    " the column has the name of the one that leads.",
    tables.BY_SAMPLES: "The mean over all samples tested on: a client counts by how many it has.",
    "Bottom decile": "Nine clients in ten do at least this well.",
    "Majority class": "Each client answers the most frequent label of its own training samples,"
    " without a model. A method that is not above it has learned nothing that helps.",
    "100 % shift": "So much of each client's test data is replaced by one other client's.",
    "All shifts": "The mean over all degrees of shift, 0 % included.",
    "Pooled shifts": "The same, with samples of all other clients in the place of one client's.",
    "Corrupt images": "The mean over kinds and severities of corruption of clients' own images.",
    "Novel clients, Gap": "Clients that took no part in training, and what they lack of the others'"
    " mean on own data.",
    "Setup, Adapt": "What a client is sent and does once before training, and before its model is"
    " used; both are counted apart from training.",
    "GFLOP": "Only products (matrix products and convolutions) are counted.",
    "Density": "The share of the model's parameters that a client's own model keeps.",
    "±, parentheses": "How different clients are, and how sure the mean is: half of its 95 %"
    " interval, over three or more seeds by Student's t. Of fewer it is a bootstrap over clients,"
    " which says nothing about other trainings or partitions.",
    "Cannot be tested": "A paired interval takes three seeds, or ten clients. With fewer, figures"
    " may differ by chance, and no row is said to lead.",
    "Bold": "The best of its column, if a paired 95 % interval separates it from every other row:"
    " that of the differences between trainings of the same seed or, with fewer than three seeds,"
    " between the same clients. Where nothing is bold, no lead is separated.",
}

_ABOUT_OVERLAP = (
    "How far the masks of two clients overlap in the last layer (entries that both keep, of those"
    " that any keeps): a row and a column for each client, darker where they agree. Beside the name"
    " is the mean over all pairs and all layers."
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


def page(
    results: Results,
    config_text: str,
    title: str,
    notes: Sequence[str] = (),
    rate: Bandwidth = FEDMASK,
    sheets: Sequence[PrivacySheet] = (),
) -> str:
    """Return a self-contained HTML page of the results and the configuration they come from.

    `rate` is the bandwidth that clients are taken to have; `sheets` say what left them.
    """
    notes = [*alarms(results), *notes]
    results = tables.under_rules(led(results))
    groups = list(tables.by_method(results).values())
    rows = list(tables.by_row(results).values())
    drawn = {
        name: _drawn(svg, _CAPTIONS[name].format(rate=rate.text), TITLES[name])
        for name, svg in plots.figures(results, rate).items()
    }
    sections = (
        _headline(results, title, notes),
        _section("Results", results_table(results) + _notes(results)),
        _section("Figures", _figures(drawn, "Figures") + _left_out(results, drawn)),
        _section("Clients", _clients(results)),
        _section("Shift", _figures(drawn, "Shift") + _shift(results, rows)),
        _section("Corruption", _figures(drawn, "Corruption") + _heat(results, rows)),
        _section("Masks", _figures(drawn, "Masks") + _overlaps(groups)),
        _section("Costs", _costs(results, groups, rate)),
        _section("Global view", _global_view(results, groups)),
        _section("Novel clients", _novel(results, rows)),
        _section("What left clients", _privacy(sheets)),
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
    of = f"{metric_title(results[0].metric)} on" if tables.further(results) else "On"
    asked = {"Own data": f"{of} own data", "All shifts": "Averaged over shifts"}
    asked |= {name: f"At {name}" for name in full}
    found, ahead = tables.figures(results), tables.leads(results)
    tiles = [
        _tile(results, asked[name], [row[name] for row in found], ahead[name])
        for name in names
        if name in asked
    ]
    remarks = "".join(_element("li", note) for note in notes)
    return "\n".join(
        [
            "<header>",
            _element("h1", title),
            _element("p", tables.heading(results), "soft"),
            f'<div class="tiles">{"".join(tiles)}</div>',
            f"<ul>{remarks}</ul>" if remarks else "",
            "</header>",
        ]
    )


TOLD = 6
"""Methods, at most, whose figures stand above the table where they cannot be compared."""


def _higher(results: Results) -> bool:
    return results[0].better == "higher"


def _tile(
    results: Results, label: str, found: Sequence[tables.Figure | None], ahead: tables.Lead
) -> str:
    """Say who, without a rule, is ahead of all others by an interval, or that nobody is.

    Where there is too little to test it with, figures stand without a finding.
    """
    form, unit = tables.number_format(results), " %" if tables.is_percent(results) else ""
    groups = list(tables.by_row(results).values())
    plain = [place for place, seeds in enumerate(groups) if not seeds[0].scope]
    titles = [seeds[0].title for seeds in groups]
    shown = [found[place] for place in plain]
    known = {
        title: each.mean
        for title, each in zip((titles[place] for place in plain), shown, strict=True)
        if each is not None and not each.lost
    }
    values = sorted(known.values())
    leaders = plain if len(plain) == 1 else [place for place in plain if place in ahead.rows]
    place = leaders[0] if leaders else None
    if place is not None:
        who, value = titles[place], tables.split(tables.show(found[place], form))[0] + unit
    elif not ahead.by and values:
        who = "Cannot be tested: too few seeds and clients"
        best = sorted(known, key=known.__getitem__, reverse=_higher(results))
        figures = {title: f"{known[title]:{form}}{unit}".replace(" ", "\u00a0") for title in best}
        value = ", ".join(f"{title} {figures[title]}" for title in best[:TOLD])
        value += f" and {len(best) - TOLD} more" if len(best) > TOLD else ""
    else:
        who = "No lead is separated"
        value = f"{values[0]:{form}} to {values[-1]:{form}}{unit}" if values else tables.ABSENT
    return (
        f'<div class="tile">{_element("p", label, "soft")}{_element("p", who, "who")}'
        f"{_element('p', value)}</div>"
    )


def results_table(results: Results) -> str:
    """Return the table of results without its notes; a block of methods after the other."""
    headings, body = tables.cells(results)
    # All degrees of shift have tables of their own.
    shown = [place for place, name in enumerate(headings) if name not in tables.between(headings)]
    rows = [
        [_cell(row[place].value, row[place].rest, row[place].best) for place in shown]
        for row in body
    ]
    names = [headings[place] for place in shown]
    parts = blocks.parted(rows, tables.by_row(results).values())
    shown_tables = [
        _element("p", title, "soft") * (len(parts) > 1) + _table(names, part)
        for title, part in parts.items()
    ]
    return "\n".join(shown_tables)


def _notes(results: Results) -> str:
    notes = "".join(_element("p", note, "soft") for note in tables.footnotes(results))
    return f'<div class="notes">{notes}</div>'


def _drawn(svg: str, caption: str, title: str = "") -> str:
    above = _element("h3", title) if title else ""
    return f"<figure>{above}{svg}{_element('figcaption', caption)}</figure>"


def _figures(drawn: dict[str, str], section: str) -> str:
    found = "\n".join(drawn[name] for name in _SECTIONS[section] if name in drawn)
    return f'<div class="figures">\n{found}\n</div>' if found else ""


def _left_out(results: Results, drawn: dict[str, str]) -> str:
    """Say why there is no figure by round, where models were evaluated once."""
    if "rounds" in drawn or not any(result.history for result in results):
        return ""
    return _element("p", _ABOUT_ROUNDS, "soft")


CLIENTS = 200
"""Clients, at most, that a page lists."""


def _clients(results: Results) -> str:
    """Return a folded table of every client for each metric, by the names that data give them."""
    pieces = []
    for listing in clients.listings(results):
        cells = [[_cell(text) for text in row] for row in listing.body[:CLIENTS]]
        more = len(listing.body) - CLIENTS
        note = f"{more} more clients are not shown; masquerade report --clients lists all of them."
        left_out = _element("p", note, "soft") if more > 0 else ""
        summary = _element("summary", listing.title)
        pieces.append(f"<details>{summary}{_table(listing.headings, cells)}{left_out}</details>")
    return "\n".join(pieces)


def _shift(results: Results, groups: list[list[Summary]]) -> str:
    """Return a table of every degree, by one other client and pooled."""
    form = tables.number_format(results)
    found = []
    sources: dict[str, tuple[str, Callable[[Accuracy], ByStep]]] = {
        "From one other client": ("shift", lambda accuracy: accuracy.shift),
        "From all others, pooled": ("pooled", lambda accuracy: accuracy.pooled),
    }
    for name, (kind, by_degree) in sources.items():
        degrees = tables.steps(results, by_degree)
        keys = {f"{degree} %": str(degree) for degree in (0, *degrees)} | {"Average": AVERAGED}
        rows = [
            [_cell(seeds[0].title)]
            + [
                _figure(
                    tables.figure(seeds, _at(by_degree, key), tables.client_step(kind, key)), form
                )
                for key in keys.values()
            ]
            for seeds in groups
        ]
        found.append(_table([name, *keys], rows) if degrees else "")
    return "".join(found)


def _at(by_step: Callable[[Accuracy], ByStep], key: str) -> Pick:
    return lambda summary: by_step(summary.accuracy).get(key)


def _heat(results: Results, groups: list[list[Summary]]) -> str:
    """Return a table of kinds by methods, shaded by value."""
    table, form = tables.by_kind(results), tables.number_format(results)
    values = [found.mean for row in table.values() for found in row if found and not found.lost]
    if not values:
        return ""
    low, span = min(values), (max(values) - min(values)) or 1.0
    rows = [
        [_cell(tables.kind_name(kind))]
        + [
            _figure(each, form, (each.mean - low) / span if each and not each.lost else None)
            for each in found
        ]
        for kind, found in table.items()
    ]
    return _table(["Over all severities", *(seeds[0].title for seeds in groups)], rows)


def _overlaps(groups: list[list[Summary]]) -> str:
    """Return a small picture per method of how far clients' masks overlap, pair by pair."""
    found = []
    for seeds in groups:
        given = [seed.overlap.pairs.values() for seed in seeds if seed.overlap]
        # Only the last weight has its pairs listed, and a network of vectors has none.
        pairs = [pairs for each in given for pairs in each]
        if pairs:
            name = seeds[0].title
            whole = tables.mean(seeds, lambda s: s.overlap.whole if s.overlap else None)
            text = f"{name}: {tables.show_cost(whole)}"
            found.append(_drawn(matrix(pairs, text), text))
    about = _element("p", _ABOUT_OVERLAP, "soft")
    drawn = f'{about}<div class="small">{"".join(found)}</div>' if found else ""
    return drawn + _overlaps_with_global(groups)


def _overlaps_with_global(groups: list[list[Summary]]) -> str:
    """Return a table of how many entries clients' masks share with the global one, by tensor."""
    rows = []
    for seeds in groups:
        first = next((seed.overlap.with_global for seed in seeds if seed.overlap), {})
        for name in first:
            given = [seed.overlap.with_global[name] for seed in seeds if seed.overlap]
            counts = [count for each in given for count in each]
            cells = [f"{round(statistics.fmean(counts)):,}", f"{min(counts):,}", f"{max(counts):,}"]
            rows.append([_cell(text) for text in (seeds[0].title, name, *cells)])
    heads = ["Shared with the global mask (entries)", "Tensor", "Mean", "Least", "Most"]
    return _table(heads, rows) if rows else ""


def _costs(results: Results, groups: list[list[Summary]], rate: Bandwidth) -> str:
    shown = costs.sections(results, rate) + costs.sections(results, rate, "paper")
    pieces = []
    for section in shown:
        rows = [[_cell(text) for text in row] for row in section.rows()]
        table = _table(["Method", *section.columns], rows)
        text = _element("summary", section.title) + _element("p", section.note, "soft")
        pieces.append(f"<details>{text}{table}</details>")
    return "\n".join(pieces) + _layers(groups)


def _privacy(sheets: Sequence[PrivacySheet]) -> str:
    """Return a folded table for each training, under what is guaranteed of it."""
    pieces = []
    for sheet in sheets:
        title = f"{privacy.heading(sheet)}: ε {sheet.epsilon}"
        rows = [[_cell(text) for text in row] for row in privacy.body(sheet)]
        said = "".join(_element("p", note, "soft") for note in privacy.notes(sheet))
        table = _table(privacy.HEADINGS, rows)
        pieces.append(f"<details>{_element('summary', title)}{said}{table}</details>")
    return "\n".join(pieces)


def _layers(groups: list[list[Summary]]) -> str:
    body = [
        [_cell(seeds[0].title), *(_cell(text) for text in row)]
        for seeds in groups
        for row in costs.layers(seeds)
    ]
    if not body:
        return ""
    headings = ("Method", "Phase", "Layer", *(f"GFLOP {way}" for way in _WAYS))
    summary = "<summary>Operations by phase and layer</summary>"
    return f"<details>{summary}{_table(headings, body)}</details>"


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
    rows = []
    for seeds in groups:
        found = {name: tables.figure(seeds, pick) for name, pick in picks.items()}
        if any(found.values()):
            cells = [_figure(each, forms.get(name, form)) for name, each in found.items()]
            rows.append([_cell(seeds[0].title), *cells])
    if not rows:
        return ""
    defined = tables.about_defined(results, lambda s: seen(s)[0], lambda s: seen(s)[1], count)
    notes = "".join(_element("p", note, "soft") for note in defined)
    titles = [tables.title_of(results, name) for name in picks]
    return _element("p", about, "soft") + _table(["Method", *titles], rows) + notes


def _configuration(text: str) -> str:
    summary = "<summary>The complete configuration, as it was run</summary>"
    return f"<details>{summary}<pre>{html.escape(text)}</pre></details>"


def _reading() -> str:
    terms = "".join(_element("dt", term) + _element("dd", text) for term, text in _READING.items())
    return f"<dl>{terms}</dl>"


def _figure(found: tables.Figure | None, form: str, heat: float | None = None) -> str:
    text = _cell(*tables.split(tables.show(found, form)))
    return text if heat is None else f'<span class="heat" style="--heat: {heat:.2f}">{text}</span>'


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
