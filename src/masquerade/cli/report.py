"""The command `masquerade report`: results as tables, by client, as differences, as costs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from masquerade.cli.options import AsJson, Debug, Quiet
from masquerade.cli.progress import echo
from masquerade.errors import MasqueradeError

if TYPE_CHECKING:
    from masquerade.results import Summary


def report(
    path: Annotated[Path, typer.Argument(help="Directory of a run, a comparison or a sweep.")],
    markdown: Annotated[bool, typer.Option(help="Print the table as Markdown.")] = False,
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
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print the results of a run or a comparison, and write its page anew; or those of a sweep.

    Example: masquerade report out/demo --costs --bandwidth 50Mbps:10Mbps
    """
    from masquerade.cost.bandwidth import bandwidth as parse_bandwidth
    from masquerade.experiments.report_page import run_bandwidth, write_report
    from masquerade.report import clients as by_client
    from masquerade.report import costs as by_cost
    from masquerade.report import markdown as as_markdown
    from masquerade.report.privacy import markdown as as_sheets
    from masquerade.results.json_records import to_json
    from masquerade.results.lead import with_lead
    from masquerade.storage.results import is_sweep, read_results, read_sheets

    if is_sweep(path):
        if clients or difference or costs or metric:
            text = f"{path} is a sweep; report one of its run directories: {path / 'trials'}"
            raise MasqueradeError("E202", text)
        _report_sweep(path, markdown, quiet, as_json)
        return
    if convention not in by_cost.CONVENTIONS:
        known = " or ".join(by_cost.CONVENTIONS)
        raise MasqueradeError("E201", f"`--convention {convention}` is unknown; take {known}")
    if sum(map(bool, (clients, difference, costs))) > 1:
        text = "--clients, --difference and --costs are reports of their own; ask for one of them"
        raise MasqueradeError("E201", text)
    results = read_results(path)
    results = with_lead(results, metric) if metric else results
    rate = parse_bandwidth(bandwidth) if bandwidth else run_bandwidth(path)
    write_report(path, results, rate)
    if costs and markdown:
        typer.echo(by_cost.markdown(results, rate, convention))
    elif costs:
        values = by_cost.records(results, rate, convention)
        _print(by_cost.terminal(results, rate, convention), values, quiet, as_json)
    elif clients and markdown:
        typer.echo(by_client.markdown(results))
    elif clients:
        _print(by_client.table(results), by_client.records(results), quiet, as_json)
    elif difference is not None:
        names = [name.strip() for name in difference.split(",")]
        if len(names) != 2 or not all(names):
            text = f"`--difference {difference}`: write METHOD,INSTEAD_OF"
            raise MasqueradeError("E201", text)
        if markdown:
            typer.echo(by_client.difference_markdown(results, names[0], names[1]))
            return
        gained = by_client.differences(results, names[0], names[1])
        found = {
            "columns": to_json(by_client.gains(results, names[0], names[1])),
            "clients": {name: each.clients for name, each in gained.items()},
        }
        _print(by_client.difference_table(results, names[0], names[1]), found, quiet, as_json)
    elif privacy:
        typer.echo(as_sheets(read_sheets(path)))
    elif markdown:
        typer.echo(as_markdown(results))
    else:
        show(path, results, quiet, as_json)


def _report_sweep(path: Path, markdown: bool, quiet: bool, as_json: bool) -> None:
    from masquerade.cli.sweep import show_sweep
    from masquerade.sweeps import table
    from masquerade.sweeps.sweep import read_order, read_rows

    rows, metric = read_rows(path), read_order(path).metric
    if markdown:
        typer.echo(table.markdown(rows, metric))
    else:
        show_sweep(path, rows, metric, quiet, as_json)


def _print(drawn: Any, values: Any, quiet: bool, as_json: bool) -> None:
    """Print a table, or its values for a program."""
    if as_json:
        typer.echo(json.dumps(values, indent=1))
    elif not quiet:
        echo(drawn)


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
