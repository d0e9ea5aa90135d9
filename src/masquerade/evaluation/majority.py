"""The majority class: what clients get that answer by their training labels, without a model.

It is what scikit-learn's `DummyClassifier(strategy="prior")` would answer at every client, with one
label of every class added, so that log loss is defined.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from masquerade.core.part import Message, Part
from masquerade.data import Federation
from masquerade.evaluation.accuracy import GroupFigures, under_corruption
from masquerade.evaluation.summary import client_figures
from masquerade.results import Baseline, Novel

if TYPE_CHECKING:
    from masquerade.evaluation.evaluate import Evaluator


@dataclass(frozen=True, eq=False)
class LabelShares:
    """Answers every sample of a client with the shares of its training labels, as logits."""

    federation: Federation

    def outputs(
        self, models: Sequence[Message], samples: Sequence[Tensor], x: Tensor
    ) -> Iterator[Tensor]:
        """Yield, client after client, its logits for each of some samples."""
        for model, own in zip(models, samples, strict=True):
            yield model["logits"].values["logits"].expand(len(own), -1)

    def model(self, id: int) -> Message:
        """Return the logits of a client: of its label counts, to each of which one is added.

        So a class that it never saw is unlikely, and not impossible; the most frequent one is the
        answer, and of several the first.
        """
        data = self.federation
        counts = data.y[data.train[id]].bincount(minlength=data.classes or 0) + 1
        return {"logits": Part({"logits": (counts / counts.sum()).double().log()})}


def majority_class(evaluator: "Evaluator") -> Baseline | None:
    """Measure the majority class; None where targets are no classes, or nobody has any."""
    if not evaluator.has_classes:
        return None
    server = evaluator.server
    found = _measured(evaluator, server.known)
    if found is None:
        return None
    theirs = _measured(evaluator, server.novel)
    if theirs is None or theirs.per_client is None:
        return found
    gap = found.accuracy.own.mean - theirs.accuracy.own.mean
    novel = Novel(theirs.per_client, theirs.accuracy, gap, metrics=theirs.metrics)
    return replace(found, novel=novel)


def _measured(evaluator: "Evaluator", some: Sequence[int]) -> Baseline | None:
    """Measure some clients; those without training labels have no answer, and are left out."""
    answering = LabelShares(evaluator.simulation.federation)
    ids = [id for id in some if len(answering.federation.train[id])]
    if not ids:
        return None
    scorer = replace(evaluator.scorer, engine=answering, rules={}, own=True, kinds=())
    clean = scorer.figures([answering.model(id) for id in ids], ids, evaluator.asked())
    groups = {key: _corrupted(evaluator, group) for key, group in clean.items()}
    found = {
        metric: scorer.described(metric, group, ids, evaluator.over_clients)
        for (_, metric), group in groups.items()
    }
    own = found.pop("")
    further = {metric: group for (_, metric), group in groups.items() if metric}
    return Baseline(own, found, client_figures(evaluator, ids, groups["", ""], further))


def _corrupted(evaluator: "Evaluator", group: GroupFigures) -> GroupFigures:
    """Return figures with those on corrupted samples, which are answered as the clean ones are."""
    severities = evaluator.settings.severities
    found = under_corruption(evaluator.kinds, severities, lambda kind, severity: group.own)
    return replace(group, corruption=found)
