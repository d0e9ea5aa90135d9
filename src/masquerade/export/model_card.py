"""What a run knows of one client's model, for those who receive the model without the run."""

from collections.abc import Sequence

from masquerade import __version__
from masquerade.config.settings import Data
from masquerade.errors import MasqueradeError
from masquerade.export import sparse
from masquerade.export.bundle import Card, Fact, Model
from masquerade.results import AVERAGED, Statistics, Summary


def describe(
    summary: Summary,
    place: int,
    model: Model,
    data: Data | None = None,
    class_names: Sequence[str] = (),
) -> Card:
    """Write a model's card from the summary of its run; `place` is the client's in its lists.

    A run of a Python program has no settings of data: how they were split is the program's affair.
    """
    listed = summary.per_client
    assert listed is not None
    client = str(listed.ids[place])
    if listed.names:
        client += f" ({listed.names[place]})"
    own, mine = summary.accuracy.own, listed.own[place]
    metric, unit = summary.metric.capitalize(), "mean over clients ± std"
    facts: dict[str, dict[str, Fact]] = {
        "Model": {
            "method": f"{summary.title} (`{summary.method}`, view `{summary.view}`)",
            "settings": f"`{model.method}`",
            "inputs": model.meaning,
            "network": f"{summary.network}, {summary.model.parameters:,} parameters",
            "density, mean over clients": summary.model.density,
            **_density(model),
        },
        "Run": {
            "data": summary.data,
            **({"classes": ", ".join(class_names)} if class_names else {}),
            **({} if data is None else _split(data)),
            "client": f"{client}, with {listed.samples[place]} training samples",
            "clients in training": summary.clients,
            "rounds": summary.rounds,
            "training seed": summary.seed,
            "masquerade": __version__,
        },
        f"{metric} on test data": {
            "this client": "no test data" if mine is None else float(mine),
            unit: _shown(own),
            "bottom decile": own.bottom_decile if own.bottom_decile is not None else "none",
        },
        f"{metric} under shift, {unit}": {
            f"{degree} % of other clients' data": _shown(each)
            for degree, each in summary.accuracy.shift.items()
            if degree != AVERAGED
        },
        "Before you share it": {
            "privacy": "a personal model can give away what it was trained on; "
            "share it with those who may see its client's data"
        },
    }
    if summary.diverged is not None:
        when = f"in round {summary.diverged + 1}"
        facts["Model"]["diverged"] = f"training left the finite numbers {when}"
    return Card(f"{summary.title}, client {client}, on {summary.data}", facts)


def _shown(found: Statistics) -> str:
    return f"{found.mean:.4g} ± {found.std:.4g}"


def _split(data: Data) -> dict[str, Fact]:
    return {
        "partition": f"`{data.partition}` over {data.clients} clients",
        "split": "training, validation, test: " + ", ".join(f"{one:g}" for one in data.split),
        "data seed": data.seed,
    }


def _density(model: Model) -> dict[str, Fact]:
    """Count the weights that this client's model really uses, where they are fixed."""
    try:
        trees = sparse.networks(model.method, model.task, model.parts, model.x)
    except MasqueradeError:
        return {"weights that are not zero": "they differ from sample to sample"}
    several = f", mean of its {len(trees)} networks" if len(trees) > 1 else ""
    return {f"weights that are not zero, this client{several}": sparse.density(trees, model.task)}
