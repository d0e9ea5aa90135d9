"""What a run knows of one client's model, for those who receive the model without the run."""

from collections.abc import Mapping, Sequence

from masquerade import __version__
from masquerade.config.settings import Data
from masquerade.errors import MasqueradeError
from masquerade.export import sparse
from masquerade.export.bundle import Card, Fact, Model
from masquerade.results import AVERAGED, ClientFigures, PrivacySheet, Statistics, Summary
from masquerade.results.lead import led, with_lead
from masquerade.results.metric_names import metric_title


def describe(
    summary: Summary,
    place: int,
    model: Model,
    made: Mapping[str, Fact],
    class_names: Sequence[str] = (),
    privacy: PrivacySheet | None = None,
) -> Card:
    """Write a model's card from the summary of its run; `place` is the client's in its lists.

    `made` says how samples were given to clients, as far as that is known, and `privacy` what is
    guaranteed of what left them.
    """
    (summary,) = led([summary])
    listed = summary.per_client
    assert listed is not None
    client = str(listed.ids[place])
    if listed.names:
        client += f" ({listed.names[place]})"
    figures = _figures(summary, place)
    over = "mean over clients ± std"
    metric = metric_title(summary.metric) + _unit(summary.percent)
    facts: dict[str, dict[str, Fact]] = {
        "Model": {
            "method": f"{summary.title} (`{summary.method}`, view `{summary.view}`)",
            "settings": f"`{model.method}`",
            "inputs": model.meaning,
            **_fitted(summary),
            **_weighted(summary, class_names),
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
        **_tested(listed, place, summary.split),
        **figures,
        f"{metric} under shift, {over}": {
            f"{degree} % of other clients' data": _shown(each)
            for degree, each in summary.accuracy.shift.items()
            if degree != AVERAGED
        },
        **_columns(model),
        "Before you share it": {
            "privacy": "a personal model can give away what it was trained on; "
            "share it with those who may see its client's data",
            "differential privacy (ε)": privacy.epsilon if privacy else "none",
        },
    }
    if summary.diverged is not None:
        when = f"in round {summary.diverged + 1}"
        facts["Model"]["diverged"] = f"training left the finite numbers {when}"
    return Card(f"{summary.title}, client {client}, on {summary.data}", facts)


def _figures(summary: Summary, place: int) -> dict[str, dict[str, Fact]]:
    """Say what every metric is, the one that leads first: a table for each."""
    on = f"on {summary.split} data"
    found: dict[str, dict[str, Fact]] = {}
    for name in (summary.metric, *summary.metrics):
        (each,) = led(with_lead([summary], name))
        listed, own = each.per_client, each.accuracy.own
        assert listed is not None
        what, _, label = name.partition(":")
        if label:
            # One table for all classes: they may be many.
            heading = f"{metric_title(what)}{_unit(each.percent)} of every class {on}"
            shown = (
                f"{_shown_figure(listed.own[place], each)}; mean over clients ± std {_shown(own)}"
            )
            found.setdefault(heading, {})[label] = shown
            continue
        facts: dict[str, Fact] = {
            "this client": _figure(listed.own[place], each),
            **_majority(each, listed.ids[place]),
            "mean over clients ± std": _shown(own),
            "bottom decile": own.bottom_decile if own.bottom_decile is not None else "none",
        }
        found[f"{metric_title(name)}{_unit(each.percent)} {on}"] = facts
    return found


def _figure(value: float | None, of: Summary) -> Fact:
    return f"not defined for its {of.split} data" if value is None else float(value)


def _shown_figure(value: float | None, of: Summary) -> str:
    return str(_figure(value, of)) if value is None else f"this client {value:.4g}"


def _unit(percent: bool) -> str:
    return " (%)" if percent else ""


def _majority(summary: Summary, client: int) -> dict[str, Fact]:
    """Say what this client would get without a model."""
    known = summary.majority.per_client if summary.majority else None
    if known is None or client not in known.ids:
        return {}
    figure = known.own[known.ids.index(client)]
    return {"this client, if it answered its most frequent label": _figure(figure, summary)}


def _tested(listed: ClientFigures, place: int, split: str) -> dict[str, dict[str, Fact]]:
    """Say what this client's model was tested on, and whether it answers all of that alike."""
    facts: dict[str, Fact] = {}
    if listed.tests:
        facts[f"{split} samples"] = listed.tests[place]
    facts |= {f"of class {name}": each[place] for name, each in listed.classes.items()}
    if listed.ids[place] in listed.one_class:
        what = "class" if listed.classes else "answer"
        facts["warning"] = f"the model answered all {split} samples with one {what}"
    return {f"{split.capitalize()} data of this client": facts} if facts else {}


def _weighted(summary: Summary, class_names: Sequence[str]) -> dict[str, Fact]:
    """Say what classes weighed in the loss, where they differ."""
    found = summary.class_weights
    if found is None:
        return {}
    names = class_names or range(len(found.weights))
    shown = (f"{name} {one:.3g}" for name, one in zip(names, found.weights, strict=False))
    bytes = f"{found.bytes.up:,.0f} bytes up and {found.bytes.down:,.0f} down per client"
    sent = f"from label counts that each sent; {bytes}"
    return {"class weights in the loss": f"{', '.join(shown)} (`train.class_weights`, {sent})"}


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
