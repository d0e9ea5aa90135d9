"""What a run knows of one client's model, for those who receive the model without the run."""

from typing import Any

from masquerade import __version__
from masquerade.config.settings import Data
from masquerade.errors import MasqueradeError
from masquerade.export import sparse
from masquerade.export.bundle import Card, Model
from masquerade.simulation.state import Record


def describe(summary: Record, place: int, model: Model, data: Data | None = None) -> Card:
    """Write a model's card from the summary of its run; `place` is the client's in its lists.

    A run of a Python program has no settings of data: how they were split is the program's affair.
    """
    listed = summary["per_client"]
    client = str(listed["ids"][place])
    if "names" in listed:
        client += f" ({listed['names'][place]})"
    own, shift = summary["accuracy"]["own"], summary["accuracy"]["shift"]
    mine = listed["own"][place]
    metric, unit = summary["metric"], "mean over clients ± std"
    facts: dict[str, dict[str, Any]] = {
        "Model": {
            "method": f"{summary['title']} (`{summary['method']}`, view `{summary['view']}`)",
            "settings": f"`{model.method}`",
            "network": f"{summary['network']}, {summary['parameters']:,} parameters",
            "density, mean over clients": summary["density"],
            **_density(model),
        },
        "Run": {
            "data": summary["data"],
            **({} if data is None else _split(data)),
            "client": f"{client}, with {listed['samples'][place]} training samples",
            "clients in training": summary["clients"],
            "rounds": summary["rounds"],
            "training seed": summary["seed"],
            "masquerade": __version__,
        },
        f"{metric.capitalize()} on test data": {
            "this client": "no test data" if mine is None else float(mine),
            unit: f"{own['mean']:.4g} ± {own['std']:.4g}",
            "bottom decile": own["bottom_decile"],
        },
        f"{metric.capitalize()} under shift, {unit}": {
            f"{degree} % of other clients' data": f"{each['mean']:.4g} ± {each['std']:.4g}"
            for degree, each in shift.items()
            if degree != "averaged"
        },
        "Before you share it": {
            "privacy": "a personal model can give away what it was trained on; "
            "share it with those who may see its client's data"
        },
    }
    if summary["diverged"] is not None:
        facts["Model"]["diverged"] = f"training left the finite numbers in {summary['diverged']}"
    return Card(f"{summary['title']}, client {client}, on {summary['data']}", facts)


def _split(data: Data) -> dict[str, Any]:
    return {
        "partition": f"`{data.partition}` over {data.clients} clients",
        "split": "training, validation, test: " + ", ".join(f"{one:g}" for one in data.split),
        "data seed": data.seed,
    }


def _density(model: Model) -> dict[str, Any]:
    """Count the weights that this client's model really uses, where they are fixed."""
    try:
        trees = sparse.networks(model.method, model.task, model.parts, model.x)
    except MasqueradeError:
        return {"weights that are not zero": "they differ from sample to sample"}
    several = f", mean of its {len(trees)} networks" if len(trees) > 1 else ""
    return {f"weights that are not zero, this client{several}": sparse.density(trees, model.task)}
