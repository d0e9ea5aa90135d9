"""The sentences that a reader of a table of results needs."""

from collections import Counter
from collections.abc import Callable, Mapping

from masquerade.errors import listed
from masquerade.report import blocks
from masquerade.report.intervals import ENOUGH, FEWEST
from masquerade.report.leads import leads
from masquerade.report.tables import (
    BY_SAMPLES,
    Pick,
    Results,
    by_method,
    by_row,
    bytes_before,
    columns,
    figures,
    further,
    kinds,
    mean,
    of_adapt,
    of_clients,
    of_setup,
    show_bytes,
    show_cost,
    steps,
)
from masquerade.results import Accuracy, Summary
from masquerade.results.metric_names import metric_title
from masquerade.results.summary import MAJORITY, splits


def footnotes(results: Results) -> list[str]:
    """Return the sentences that a reader of the table needs."""
    spread = (
        "± is the standard deviation over clients; under shift a client's figure is its mean over"
        " the partners drawn."
    )
    groups = by_method(results).values()
    notes = [" ".join([spread, *_about_intervals(results)]), *about_bold(results)]
    notes += _about_lead(results)
    of = splits(results)
    if of != "test":
        notes.append(
            f"Measured on {of} data (evaluate.split): what settings were chosen by is"
            " better there than on samples that nobody has looked at."
        )
    if BY_SAMPLES in columns(results):
        notes.append(
            f"Own data is the mean over clients; by samples it is the mean over the {of} samples of"
            " all clients, so that a client counts by how many it has."
        )
    notes.append("Bottom decile: nine clients in ten do at least as well.")
    notes += about_defined(results, lambda summary: summary.accuracy, lambda s: s.metrics)
    notes += _about_majority(results)
    if "Pooled shifts" in columns(results):
        notes.append(
            "Shifted samples come from one other client, pooled ones from all others; both are"
            " averaged over all degrees, 0 % included."
        )
    notes += _about_corruption(results) + blocks.notes(results)
    notes += sorted({result.data_note for result in results if result.data_note})
    done = {result.preprocessing.text for result in results if result.preprocessing}
    notes += [f"Before the network reads them, {text}." for text in sorted(done)]
    if any(result.class_weights for result in results):
        notes.append("In the loss, classes weigh by how rare they are (train.class_weights).")
    notes.append(
        "MB (10⁶ bytes, down and up) and GFLOP (as the masks allow) are per client, over all of"
        " training; only products (matrix products and convolutions) are counted as FLOPs."
    )
    if "Novel clients" in columns(results):
        notes.append(
            "Novel clients took no part in training; the gap is how far the others are ahead of"
            " them on own data."
        )
    networks = {seeds[0].title: seeds[0].network for seeds in groups}
    usual = Counter(networks.values()).most_common(1)[0][0]
    other = [f"{name} on {found}" for name, found in networks.items() if found != usual]
    if other:
        notes.append(f"Trained on another network than the rest ({usual}): {', '.join(other)}.")
    if any(found and found.lost for row in figures(results) for found in row.values()):
        notes.append(
            "Where seeds diverged, or have figures that are not finite, no mean is given: one of"
            " the other seeds would hide them."
        )
    refused = {seeds[0].title: sum(s.refused for s in seeds) for seeds in groups}
    some = [f"{name} {count}" for name, count in refused.items() if count]
    if some:
        notes.append(
            f"Updates that were refused (metrics.jsonl has the reasons): {', '.join(some)}."
        )
    return notes + _about_apart(results)


def about_defined(
    results: Results,
    own: Callable[[Summary], Accuracy | None],
    others: Callable[[Summary], Mapping[str, Accuracy]],
    clients: Callable[[Summary], int] = lambda summary: summary.clients,
) -> list[str]:
    """Say over how many clients means are taken, where that is not over all of them."""
    counts: dict[str, set[tuple[int, int]]] = {}
    for summary in results:
        named = {metric_title(name): found for name, found in others(summary).items()}
        for heading, found in ({"Own data": own(summary)} | named).items():
            if found is not None and found.own.defined is not None:
                counts.setdefault(heading, set()).add((found.own.defined, clients(summary)))
    told = [
        f"{heading} {_span(found)}{_without(results, heading)}"
        for heading, found in counts.items()
        if any(some < all for some, all in found)
    ]
    if not told:
        return []
    return [
        "A mean is over the clients for which there is a figure (AUROC and balanced accuracy need"
        f" a {splits(results)} set of two classes): {', '.join(told)}."
    ]


def _without(results: Results, heading: str) -> str:
    """Name the clients that have no figure in a column; "" where the data do not name them."""
    named: dict[str, None] = {}
    for summary in results:
        group = summary.per_client
        figures = of_clients([summary]).get(heading)
        if group is not None and group.names and figures is not None:
            own = figures(group)[0]
            named |= {
                name: None for name, one in zip(group.names, own, strict=False) if one is None
            }
    return f" (not {listed(named)})" if named else ""


def _about_majority(results: Results) -> list[str]:
    """Say what the majority class is, and which methods are not better."""
    groups = by_row(results)
    if MAJORITY not in groups:
        return []
    text = (
        "Majority class: each client answers the most frequent label of its own training samples,"
        " without a model."
    )
    sign = -1 if results[0].better == "lower" else 1
    own = {name: mean(seeds, lambda each: each.accuracy.own.mean) for name, seeds in groups.items()}
    least = own.pop(MAJORITY)
    below = [
        groups[name][0].title
        for name, value in own.items()
        if value is not None and least is not None and sign * (value - least) <= 0
        if not groups[name][0].scope
    ]
    if below:
        text += f" Not above it: {listed(below)}."
        if results[0].metric == "accuracy":
            text += " Where classes are rare, evaluate.metrics=balanced_accuracy says more."
    return [text]


def _span(found: set[tuple[int, int]]) -> str:
    """Write how many clients of all: "17 of 20", or "17 to 19 of 20" where trainings differ."""
    some, all = sorted({each for each, _ in found}), max(each for _, each in found)
    return " to ".join(map(str, dict.fromkeys((some[0], some[-1])))) + f" of {all}"


def _about_apart(results: Results) -> list[str]:
    """Say what clients are sent and compute before training and before use; the same said once."""
    notes = []
    apart: dict[str, tuple[Pick, Pick]] = {
        "before training": (bytes_before, of_setup(lambda spent: spent.flops.masked)),
        "before use": (
            of_adapt(lambda spent: spent.bytes.both),
            of_adapt(lambda spent: spent.flops.masked),
        ),
    }
    for when, (bytes, flops) in apart.items():
        costs: dict[str, list[str]] = {}
        for seeds in by_method(results).values():
            sent, done = mean(seeds, bytes), mean(seeds, flops)
            words = [show_bytes(sent)] if sent else []
            words += [f"{show_cost(done, 1e9)} GFLOP"] * bool(done)
            if words:
                costs.setdefault(" and ".join(words), []).append(seeds[0].title)
        told = "; ".join(f"{', '.join(titles)} {text}" for text, titles in costs.items())
        if told:
            notes.append(f"Counted apart, once {when}: {told}.")
    return notes


def _about_corruption(results: Results) -> list[str]:
    """Say what images were corrupted by, and whose corrupted images they are."""
    named = kinds(results)
    if not named:
        return []
    few = " and ".join(named).replace("_", " ")
    which = few if len(named) < 3 else f"{len(named)} kinds of corruption"
    first = steps(results, lambda found: found.corruption.get(named[0], {}))
    severities = ", ".join(map(str, first))
    sources = sorted({result.corrupted_images for result in results if kinds([result])})
    whose = {"published": "those of CIFAR-10-C", "generated": "made from the clean ones"}
    return [
        f"Corrupt images are clients' own, under {which} at severity {severities};"
        f" {' or '.join(whose[source] for source in sources)}."
    ]


def _about_intervals(results: Results) -> list[str]:
    """Say what stands in parentheses: what it is taken over, and what it says nothing of."""
    taken = {found.by for row in figures(results) for found in row.values() if found}
    notes = []
    if "seeds" in taken:
        notes.append("In parentheses: half of the 95 % interval over seeds (Student's t).")
    if "clients" in taken:
        few = [len(seeds) for seeds in by_method(results).values() if len(seeds) < ENOUGH]
        some = ", of fewer than three seeds" if "seeds" in taken else ""
        notes.append(
            f"In parentheses{some}: half of the 95 % interval over the clients of"
            f" {'one training' if max(few) == 1 else 'two trainings'} (bootstrap), which says"
            " nothing about other trainings or partitions."
        )
    return notes


UNTESTED = f"a paired interval takes {ENOUGH} seeds, or {FEWEST} clients"
_PAIRS = {"seeds": "trainings of the same seed", "clients": "the same clients of a training"}


def _about_lead(results: Results) -> list[str]:
    """Say what the columns of a table are of, where there are further metrics."""
    if not further(results):
        return []
    name = metric_title(results[0].metric)
    return [
        f"{name} leads: shift, the bottom decile and figures of clients are of it too. The first of"
        " evaluate.metrics does, or that of report --metric; all metrics are of own data."
    ]


def about_bold(results: Results) -> list[str]:
    """Say what is bold and why, or why nothing is; of a single method there is nothing to say."""
    if len(by_method(results)) < 2:
        return []
    found = leads(results).values()
    pairs = " or ".join(_PAIRS[by] for by in _PAIRS if any(by in lead.by for lead in found))
    if not pairs:
        return [f"Nothing is bold, as leads cannot be tested: {UNTESTED}."]
    if not any(lead.rows for lead in found):
        return [
            "Nothing is bold: in no column does a paired 95 % interval separate the best row from"
            f" every other (pairs are {pairs})."
        ]
    return [
        "Bold is the best row of a column where a paired 95 % interval separates it from every"
        f" other row that has a figure (pairs are {pairs}); where nothing is bold, no lead is"
        " separated."
    ]
