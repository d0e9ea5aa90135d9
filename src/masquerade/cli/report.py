"""The command `masquerade report`: results as tables, by client, as differences, as costs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from masquerade.cli.options import AsJson, Debug, Quiet
from masquerade.cli.progress import echo
from masquerade.errors import MasqueradeError

if TYPE_CHECKING:
    from masquerade.report.listing import Listing
    from masquerade.results import Summary


def report(
    path: Annotated[Path, typer.Argument(help="Directory of a run, a comparison or a sweep.")],
    form: Annotated[
        str, typer.Option("--format", help="Print the table as markdown, latex or csv.")
    ] = "",
    clients: Annotated[bool, typer.Option(help="Print the figures of every client.")] = False,
    difference: Annotated[
        str | None,
        typer.Option(
            help="Compare two methods client by client, with paired intervals: METHOD,INSTEAD_OF."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric that comes first, on the page too; else the first of evaluate.metrics."
        ),
    ] = None,
    costs: Annotated[
        bool, typer.Option("--costs", help="Print bytes, operations, storage, memory and time.")
    ] = False,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            help="Bandwidth of a client: 10MB/s, or DOWN:UP as 50Mbps:10Mbps; else the run's."
        ),
    ] = None,
    privacy: Annotated[
        bool, typer.Option("--privacy", help="Print what left clients, as Markdown.")
    ] = False,
    convention: Annotated[
        str, typer.Option(help="How costs are counted: ours, or paper (one way, values only).")
    ] = "ours",
    figures: Annotated[
        Path | None, typer.Option(help="Write the figures of the page into this folder.")
    ] = None,
    kinds: Annotated[
        str, typer.Option("--as", help="What figures are written as: svg, png, or svg,png.")
    ] = "svg",
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Hide what data call their clients.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print the results of a run or a comparison, and write its page anew; or those of a sweep.

    Example: masquerade report out/demo --costs --bandwidth 50Mbps:10Mbps
    """
    from masquerade.cost.bandwidth import bandwidth as parse_bandwidth
    from masquerade.experiments.report_page import run_bandwidth, write_figures, write_report
    from masquerade.report import clients as by_client
    from masquerade.report import costs as by_cost
    from masquerade.report import frames, listing, main_table
    from masquerade.report.privacy import markdown as as_sheets
    from masquerade.results.json_records import to_json
    from masquerade.results.lead import with_lead
    from masquerade.results.names import without_names
    from masquerade.storage.results import is_sweep, read_results, read_sheets

    if form not in FORMS:
        raise MasqueradeError(
            "E201", f"`--format {form}` is unknown; take {' or '.join(FORMS[1:])}"
        )
    if is_sweep(path):
        if clients or difference or costs or metric or figures:
            text = f"{path} is a sweep; report one of its run directories: {path / 'trials'}"
            raise MasqueradeError("E202", text)
        _report_sweep(path, form, quiet, as_json)
        return
    if convention not in by_cost.CONVENTIONS:
        known = " or ".join(by_cost.CONVENTIONS)
        raise MasqueradeError("E201", f"`--convention {convention}` is unknown; take {known}")
    if sum(map(bool, (clients, difference, costs))) > 1:
        text = "--clients, --difference and --costs are reports of their own; ask for one of them"
        raise MasqueradeError("E201", text)
    results = read_results(path)
    results = without_names(results) if anonymous else results
    results = with_lead(results, metric) if metric else results
    rate = parse_bandwidth(bandwidth) if bandwidth else run_bandwidth(path)
    write_report(path, results, rate)
    if figures is not None:
        write_figures(figures, results, rate, [each.strip() for each in kinds.split(",")])
    if costs:
        listed = by_cost.listings(results, rate, convention)
        values = by_cost.records(results, rate, convention)
        _tell(form, listed, values, values, quiet, as_json)
    elif clients:
        rows = by_client.records(results)
        _tell(form, by_client.listings(results), rows, rows, quiet, as_json)
    elif difference is not None:
        left, right = _two(difference)
        gained = by_client.differences(results, left, right)
        listed = by_client.difference_listings(results, left, right)
        found = {
            "columns": to_json(by_client.gains(results, left, right)),
            "clients": {name: each.clients for name, each in gained.items()},
        }
        _tell(form, listed, listing.records(listed[-1:]), found, quiet, as_json)
    elif privacy:
        typer.echo(as_sheets(read_sheets(path)))
    elif form:
        _tell(form, main_table.listings(results), frames.rows(results), None, quiet, False)
    else:
        show(path, results, quiet, as_json)


FORMS = ("", "markdown", "latex", "csv")
"""How tables are printed; "" is for a terminal."""


def _two(difference: str) -> tuple[str, str]:
    from masquerade.tables.words import words_in

    names = words_in(difference)
    if len(names) != 2:
        raise MasqueradeError("E201", f"`--difference {difference}`: write METHOD,INSTEAD_OF")
    return names[0], names[1]


def _tell(
    form: str,
    listed: "Sequence[Listing]",
    rows: "Sequence[Mapping[str, object]]",
    values: Any,
    quiet: bool,
    as_json: bool,
) -> None:
    """Print tables in a form; `rows` are their records, and `values` what JSON has of them."""
    from masquerade.report import listing

    if as_json:
        typer.echo(json.dumps(values, indent=1))
    elif form == "csv":
        typer.echo(listing.csv(rows), nl=False)
    elif form:
        typer.echo({"markdown": listing.markdown, "latex": listing.latex}[form](listed))
    elif not quiet:
        echo(listing.terminal(listed))


def _report_sweep(path: Path, form: str, quiet: bool, as_json: bool) -> None:
    from masquerade.cli.sweep import show_sweep
    from masquerade.report import listing
    from masquerade.sweeps import table
    from masquerade.sweeps.sweep import read_order, read_rows

    rows, metric = read_rows(path), read_order(path).metric
    if form:
        listed = [table.listing(rows, metric)]
        _tell(form, listed, listing.records(listed), None, quiet, False)
    else:
        show_sweep(path, rows, metric, quiet, as_json)


def show(path: Path, results: "Sequence[Summary]", quiet: bool, as_json: bool) -> None:
    """Print the table of results, and where their page lies."""
    if as_json:
        typer.echo(json.dumps([summary.to_json() for summary in results]))
    elif not quiet:
        from masquerade.report import privacy, terminal
        from masquerade.storage.results import read_sheets

        echo(terminal(results))
        if sheets := read_sheets(path):
            typer.echo(privacy.line(sheets))
        typer.echo(f"Report: {path / 'report.html'}")
