"""All outputs of a client on a test set: through rules, and to metrics that need the whole set.

Scores of single samples are the fast way, and need none of this.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from masquerade.core.metric import OutputRule, Rule, RuleClient, SetMetric
from masquerade.core.part import Message
from masquerade.core.random import Label, choose, fold, order
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.data.corrupted_sets import CorruptedSets
from masquerade.errors import MasqueradeError, told
from masquerade.evaluation.accuracy import (
    Figure,
    GroupFigures,
    OverClients,
    ShiftSets,
    mean,
    mean_of,
    under_corruption,
)
from masquerade.results import Accuracy, ClientFigures, RuleFigures

Key = tuple[str, str]
"""A rule and a metric; "" is no rule, or the task's own metric."""
REFERENCE = 256
"""Samples of each client that rules are given reference outputs of, at most: those of all clients
are held while a view is scored."""


class Answering(Protocol):
    """What answers for clients: an engine, or something simpler."""

    def outputs(
        self, models: Sequence[Message], samples: Sequence[Tensor], x: Tensor
    ) -> Iterator[Tensor]:
        """Yield, model after model, all outputs for some samples of `x`."""
        ...

    @property
    def federation(self) -> Federation:
        """Return the data that it answers on."""
        ...


@dataclass(frozen=True)
class Scored:
    """The figures of clients' outputs on whole test sets."""

    metrics: Mapping[str, Accuracy] = field(default_factory=dict)
    rules: Mapping[str, RuleFigures] = field(default_factory=dict)
    further: Mapping[str, GroupFigures] = field(default_factory=dict)
    """What metrics describe, client by client."""


@dataclass(frozen=True, eq=False)
class OutputScorer:
    """Scores the outputs of clients on whole test sets, under every rule and by every metric."""

    task: Task
    engine: Answering
    metrics: Mapping[str, SetMetric]
    rules: Mapping[str, Rule]
    shifted: Mapping[str, ShiftSets]
    kinds: Sequence[str]
    severities: Sequence[int]
    corrupted: CorruptedSets | None
    reference: Sequence[Tensor]
    """By client: its samples that rules may know outputs and labels of, none being evaluated."""
    own: bool = False
    """Whether the task's own metric without a rule is scored here too: engines do so by sample."""
    contains_mix: bool = False
    """Whether the models' outputs contain the label mixes of their clients."""

    @property
    def keys(self) -> list[Key]:
        """List what is scored here."""
        plain = [("", name) for name in (*[""] * self.own, *self.metrics)]
        return plain + [(rule, name) for rule in self.rules for name in ("", *self.metrics)]

    def describe(
        self,
        models: Sequence[Message],
        ids: Sequence[int],
        asked: Sequence[Tensor],
        over_clients: OverClients,
        per_client: Callable[[GroupFigures, Mapping[str, GroupFigures]], ClientFigures],
    ) -> Scored:
        """Return the accuracy of some clients by metric, and by rule.

        `asked` are, for every client, all samples that its test sets have, in ascending order;
        `per_client` lists figures client by client, and those of further metrics.
        """
        if not self.keys:
            return Scored()
        groups = self.figures(models, ids, asked)
        found = {
            (rule, metric): self.described(metric, group, ids, over_clients)
            for (rule, metric), group in groups.items()
        }
        metrics = {name: found["", name] for name in self.metrics}

        def further(rule: str) -> dict[str, GroupFigures]:
            return {name: groups[rule, name] for name in self.metrics}

        rules = {
            name: RuleFigures(
                accuracy=found[name, ""],
                metrics={each: found[name, each] for each in self.metrics},
                per_client=per_client(groups[name, ""], further(name)),
                scope=scope_of(rule),
            )
            for name, rule in self.rules.items()
        }
        return Scored(metrics, rules, further(""))

    def described(
        self, metric: str, group: GroupFigures, ids: Sequence[int], over_clients: OverClients
    ) -> Accuracy:
        """Describe the figures of some clients by a metric; "" is the task's own."""
        if not metric:
            return over_clients.accuracy(group, ids)
        given = self.metrics[metric]
        described = OverClients(over_clients.samples, given.better).accuracy(group, ids)
        return replace(described, percent=given.percent)

    def figures(
        self, models: Sequence[Message], ids: Sequence[int], asked: Sequence[Tensor]
    ) -> dict[Key, GroupFigures]:
        """Score every client on all of its test sets; its outputs are held while it is scored."""
        data = self.engine.federation
        found: dict[tuple[str, str], dict[Key, list[Figure]]] = {}
        samples = [asked[id].to(data.x.device) for id in ids]
        clients = self._clients(models, ids)
        clean = self.engine.outputs(models, samples, data.x)
        for client, indices, outputs in zip(clients, samples, clean, strict=True):
            # Outputs are few, and are scored again and again: on the host nothing waits for them.
            own, held, y = indices.cpu(), outputs.cpu(), data.y[indices].cpu()
            for (source, degree), draws in self._draws(client.id).items():
                places = [torch.searchsorted(own, chosen.cpu()) for chosen in draws]
                scores = [self._score(client, held[at], y[at]) for at in places]
                for key in self.keys:
                    into = found.setdefault((source, degree), {}).setdefault(key, [])
                    into.append(mean([score[key] for score in scores]))
        for kind in self.kinds:
            for severity in self.severities:
                found[kind, str(severity)] = self._corrupted(models, clients, kind, severity)
        return {key: self._group(found, key) for key in self.keys}

    def _clients(self, models: Sequence[Message], ids: Sequence[int]) -> list[RuleClient]:
        """Return what rules may know of clients and their models; of the latter once for all."""
        data, most = self.engine.federation, REFERENCE if self._reads_more else 0
        samples = [self.reference[id][:most].to(data.x.device) for id in ids]
        outputs = self.engine.outputs(models, samples, data.x)
        return [
            RuleClient(
                id, data.y[data.train[id]].cpu(), found.cpu(), data.y[own].cpu(), self.contains_mix
            )
            for id, own, found in zip(ids, samples, outputs, strict=True)
        ]

    @property
    def _reads_more(self) -> bool:
        """Tell whether any rule reads reference outputs."""
        return any(isinstance(rule, OutputRule) and rule.reference for rule in self.rules.values())

    def _draws(self, id: int) -> dict[tuple[str, str], list[Tensor]]:
        """Return a client's shifted test sets: by source and degree, one for each draw."""
        return {
            (source, str(degree)): [chosen[id] for chosen in draws]
            for source, sets in self.shifted.items()
            for degree, draws in sets.items()
        }

    def _group(
        self, found: Mapping[tuple[str, str], Mapping[Key, list[Figure]]], key: Key
    ) -> GroupFigures:
        """Return all figures of one rule and metric."""

        def score(kind: str, severity: int) -> list[Figure]:
            return found[kind, str(severity)][key]

        shifted = {
            source: {str(degree): found[source, str(degree)][key] for degree in sets}
            for source, sets in self.shifted.items()
        }
        corruption = under_corruption(self.kinds, self.severities, score)
        return GroupFigures(**shifted, corruption=corruption)

    def _corrupted(
        self, models: Sequence[Message], clients: Sequence[RuleClient], kind: str, severity: int
    ) -> dict[Key, list[Figure]]:
        """Score clients on one corrupted copy of their own samples."""
        assert self.corrupted is not None
        x, y = self.corrupted.x(kind, severity), self.corrupted.y
        own = [self.corrupted.own[client.id] for client in clients]
        scores = [
            self._score(client, outputs.cpu(), y[places].cpu())
            for client, places, outputs in zip(
                clients, own, self.engine.outputs(models, own, x), strict=True
            )
        ]
        return {key: [score[key] for score in scores] for key in self.keys}

    def _score(self, client: RuleClient, outputs: Tensor, y: Tensor) -> dict[Key, Figure]:
        """Score all outputs of a client on one test set."""
        if not len(y):
            return dict.fromkeys(self.keys, None)
        ruled = {"": outputs} | {name: self._ruled(name, client, outputs) for name in self.rules}
        return {
            (rule, metric): self._measured(metric, ruled[rule], y) for rule, metric in self.keys
        }

    def _ruled(self, name: str, client: RuleClient, outputs: Tensor) -> Tensor:
        """Put outputs through a rule; refuse what are no outputs for the same samples."""
        rule = self.rules[name]
        # Sets list own samples first, and often class by class: the order would tell labels.
        mixed = scope_of(rule) == "several"
        if mixed:
            key = fold(0, Label.TEST_ORDER, client.id)
            at = order(key, len(outputs), outputs.device)
            outputs = outputs[at]
        found = rule(outputs, client)
        if not isinstance(found, Tensor) or found.shape != outputs.shape:
            text = f"the rule `{name}` returned {told(found)} for outputs {list(outputs.shape)}"
            raise MasqueradeError("E205", f"{text}; return outputs of the same shape")
        return found[at.argsort()] if mixed else found

    def _measured(self, name: str, outputs: Tensor, y: Tensor) -> Figure:
        """Measure outputs; refuse what is no number."""
        if not name:
            return mean_of(self.task.metric(outputs, y))
        found = self.metrics[name].function(outputs.cpu(), y.cpu())
        try:
            return None if found is None else float(found)
        except (TypeError, ValueError, RuntimeError):
            text = f"the metric `{name}` returned {told(found)}"
            raise MasqueradeError("E205", f"{text}; return one number for all samples") from None

    def try_out(self, ids: Sequence[int]) -> None:
        """Call every rule and metric once on a few samples, so that none fails after training.

        `ids` are the clients that will be evaluated.
        """
        data = self.engine.federation
        self._check_labels(ids)
        id, own = next((id, own[:3]) for id, own in enumerate(data.train) if len(own))
        with torch.no_grad():
            outputs, _ = self.task(self.task.initial, data.x[own])
        client = RuleClient(id, data.y[data.train[id]], outputs, data.y[own])
        for rule, metric in self.keys:
            try:
                ruled = self._ruled(rule, client, outputs) if rule else outputs
                self._measured(metric, ruled, data.y[own])
            except Exception as error:
                words = [f"rule `{rule}`"] * bool(rule) + [f"metric `{metric}`"] * bool(metric)
                error.add_note(f"while the {' and the '.join(words)} was tried on three samples")
                raise

    def _check_labels(self, ids: Sequence[int]) -> None:
        """Refuse clients that a rule could know nothing of."""
        bare = [id for id in ids if not len(self.engine.federation.train[id])]
        if bare and self._reads_more:
            text = f"client {bare[0]} has no training labels, which rules on its outputs read"
            raise MasqueradeError("E202", f"{text}; leave out `evaluate.prior`, or the client")


def scope_of(rule: Rule) -> str:
    """Return what a rule looks at; a plain function is given all samples."""
    return rule.scope if isinstance(rule, OutputRule) else "several"


def reference_samples(federation: Federation, split: str, seed: int) -> list[Tensor]:
    """Return by client the samples that rules may know outputs and labels of.

    Its validation samples, unless it has none or is evaluated on them; its training samples then.
    """
    found = []
    for id, (train, held_out) in enumerate(
        zip(federation.train, federation.validation, strict=True)
    ):
        own = held_out if len(held_out) and split != "validation" else train
        found.append(choose(fold(seed, Label.REFERENCE, id), own.cpu(), REFERENCE))
    return found
