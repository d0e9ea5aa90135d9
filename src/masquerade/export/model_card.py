"""What a run knows of one client's model, for those who receive the model without the run."""

from collections.abc import Mapping, Sequence

from masquerade import __version__
from masquerade.config.settings import Data
from masquerade.errors import MasqueradeError
from masquerade.export import sparse
from masquerade.export.bundle import Card, Fact, Model
from masquerade.results import AVERAGED, Statistics, Summary
from masquerade.results.metric_names import metric_title


def describe(
    summary: Summary,
    place: int,
    model: Model,
    made: Mapping[str, Fact],
    class_names: Sequence[str] = (),
) -> Card:
    """Write a model's card from the summary of its run; `place` is the client's in its lists.

    `made` says how samples were given to clients, as far as that is known.
    """
    listed = summary.per_client
    assert listed is not None
    client = str(listed.ids[place])
    if listed.names:
        client += f" ({listed.names[place]})"
    own, mine = summary.accuracy.own, listed.own[place]
    metric, unit = metric_title(summary.metric), "mean over clients ± std"
    facts: dict[str, dict[str, Fact]] = {
        "Model": {
            "method": f"{summary.title} (`{summary.method}`, view `{summary.view}`)",
            "settings": f"`{model.method}`",
            "inputs": model.meaning,
            **_fitted(summary),
            "network": f"{summary.network}, {summary.model.parameters:,} parameters",
            "density, mean over clients": summary.model.density,
            **_density(model),
        },
        "Run": {
            "data": summary.data,
            **({"classes": ", ".join(class_names)} if class_names else {}),
            **made,
            "client": f"{client}, with {listed.samples[place]} training samples",
            "clients in training": summary.clients,
            "rounds": summary.rounds,
            "training seed": summary.seed,
            "masquerade": __version__,
        },
        f"{metric} on test data": {
            "this client": "no test data" if mine is None else float(mine),
            **_majority(summary, place),
            unit: _shown(own),
            "bottom decile": own.bottom_decile if own.bottom_decile is not None else "none",
        },
        f"{metric} under shift, {unit}": {
            f"{degree} % of other clients' data": _shown(each)
            for degree, each in summary.accuracy.shift.items()
            if degree != AVERAGED
        },
        **_columns(model),
        "Before you share it": {
            "privacy": "a personal model can give away what it was trained on; "
            "share it with those who may see its client's data"
        },
    }
    if summary.diverged is not None:
        when = f"in round {summary.diverged + 1}"
        facts["Model"]["diverged"] = f"training left the finite numbers {when}"
    return Card(f"{summary.title}, client {client}, on {summary.data}", facts)


def _majority(summary: Summary, place: int) -> dict[str, Fact]:
    """Say what this client would get without a model, and whether its model answers alike."""
    listed = summary.per_client
    known = summary.majority.per_client if summary.majority else None
    assert listed is not None
    client, facts = listed.ids[place], dict[str, Fact]()
    if known is not None and client in known.ids:
        figure = known.own[known.ids.index(client)]
        facts["this client, if it answered its most frequent label"] = (
            "no test data" if figure is None else float(figure)
        )
    if client in listed.one_class:
        facts["warning"] = "the model answered all test samples with one class"
    return facts


def _shown(found: Statistics) -> str:
    return f"{found.mean:.4g} ± {found.std:.4g}"


def made_by(data: Data) -> dict[str, Fact]:
    """Say how the settings of data gave samples to clients."""
    return {
        "partition": f"`{data.partition}` over {data.clients} clients",
        "split": "training, validation, test: " + ", ".join(f"{one:g}" for one in data.split),
        "data seed": data.seed,
    }


def _fitted(summary: Summary) -> dict[str, Fact]:
    """Say whose samples decided the preprocessing, and what was sent for it."""
    done, heading = summary.preprocessing, "preprocessing is fitted on"
    if done is not None and done.per_client:
        return {heading: "this client's own training samples; nothing was sent for it"}
    if done is None or not done.sent:
        return {}
    bytes = f"{done.bytes.up:,.0f} bytes up and {done.bytes.down:,.0f} down per client"
    sums = f"sums that each sent ({', '.join(done.sent)}; {bytes})"
    return {heading: f"the training samples of all clients, from {sums}"}


def _columns(model: Model) -> dict[str, dict[str, Fact]]:
    """List the columns of a table."""
    if model.schema is None:
        return {}
    return {
        "Columns, with ranges of this client's training samples": {
            each.name: each.text for each in model.schema.columns
        }
    }


def _density(model: Model) -> dict[str, Fact]:
    """Count the weights that this client's model really uses, where they are fixed."""
    try:
        trees = sparse.networks(model.method, model.task, model.parts, model.x)
    except MasqueradeError:
        return {"weights that are not zero": "they differ from sample to sample"}
    several = f", mean of its {len(trees)} networks" if len(trees) > 1 else ""
    return {f"weights that are not zero, this client{several}": sparse.density(trees, model.task)}
