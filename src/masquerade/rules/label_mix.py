"""A client's label mix, and how much of it a model's outputs contain already.

Bayes: where samples of each class look as they did in training, p(y | x) under a mix q of the
classes is proportional to l(x, y) q(y). The likelihood l(x, y) is p_m(y | x) / pi_m(y), p_m being
the model's outputs and pi_m the mix that they contain. So outputs are turned to another mix by a
factor q / pi_m, and all depends on pi_m. It is not the mean output on the client's data: a model
that is right has the client's mix as its mean output, whatever it was trained on.

A personal model has learned the client's mix; a shared one that of all clients, of which a client
knows nothing and assumes that all classes are alike. Between the two lies pi_m = mix^(1 - a), and
the posterior at home is p_m mix^a. `strength`, a, is therefore fitted by maximum likelihood to
labeled samples of the client's own: 0 where the outputs contain the mix, 1 where they contain none
of it. One number, since clients have few samples; the mix itself is counted, not fitted. Of a
method that adds the client's mix to its outputs it is known to be 0.
"""

import math
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from masquerade.core.metric import RuleClient, smoothed
from masquerade.errors import MasqueradeError
from masquerade.rules.em import em, gained

STRENGTHS = 21
"""Strengths that are tried, from 0 to 1: clients' samples do not tell finer ones apart."""
FEWEST = 5
"""Labeled samples that a model's confidence must be known on before it is trusted."""
MISCALIBRATED = 0.1
"""How far confidence may be from accuracy at home, beside two standard errors. A model that is
off by more takes its own mistakes for another mix."""
LESS_SURE = -4.0
"""Standard errors by which samples may be less sure than those at home. Label shift alone stays
above, and what blur and low contrast make of images falls below: docs/rules.md has the figures."""
LEAST_VARIANCE = 1e-4
"""Of confidence: a hundredth of spread is there even where a few samples at home have none."""


@dataclass(frozen=True, eq=False)
class LabelMix:
    """What a client knows of its classes and of one model of them, from samples of its own."""

    mix: Tensor
    """The client's label mix [classes]; it never leaves the client."""
    strength: float
    confidence: Tensor
    """How sure the model is of each reference sample, the mix taken out."""
    calibrated: bool
    drift: float
    """Nats per sample by which EM's mix explains the reference samples better than the own mix,
    beyond chance. The own mix is right there: a model takes so much of its mistakes for a shift."""

    @classmethod
    def of(cls, client: RuleClient, classes: int) -> "LabelMix":
        """Count a client's labels, and fit the rest to its reference outputs."""
        mix = label_mix(client.labels, classes)
        outputs, labels = _shares(client.reference), client.reference_labels.cpu()
        strength = 0.0 if client.contains_mix else _strength(outputs, labels, mix)
        posterior = torch.softmax(outputs + strength * mix.log(), -1)
        made = cls(mix, strength, torch.empty(0), calibrated(posterior, labels), 0.0)
        likelihoods = made.likelihoods(client.reference)
        drift = _drift(likelihoods, mix)
        return replace(made, confidence=made.sureness(likelihoods), drift=drift)

    def likelihoods(self, outputs: Tensor) -> Tensor:
        """Return log l(x, y) [samples, classes], up to a constant of the model."""
        return _shares(outputs) - (1 - self.strength) * self.mix.log()

    @staticmethod
    def sureness(likelihoods: Tensor) -> Tensor:
        """Return how sure a model is of every sample if all classes are alike.

        No mix of classes changes it, given the class: what does is another kind of samples.
        """
        return torch.softmax(likelihoods, -1).amax(-1)

    def less_sure(self, mean: Tensor, variance: Tensor, count: Tensor) -> Tensor:
        """Tell where samples of so much confidence are another kind than those at home.

        Mean and variance are those of `count` samples: Welch's test, on one side. Fewer than two
        are no reason to think so.
        """
        home = self.confidence
        if len(home) < 2:
            return count < 0
        of_mean = variance.clamp(min=LEAST_VARIANCE) / count.clamp(min=1)
        of_home = home.var().clamp(min=LEAST_VARIANCE) / len(home)
        return (count >= 2) & ((mean - home.mean()) / (of_mean + of_home).sqrt() < LESS_SURE)


_KNOWN: "WeakKeyDictionary[RuleClient, LabelMix]" = WeakKeyDictionary()


def label_mix_of(client: RuleClient, outputs: Tensor) -> LabelMix:
    """Return what a client knows, which all rules share; refuse what are no classes with E202."""
    check(client, outputs)
    if client not in _KNOWN:
        _KNOWN[client] = LabelMix.of(client, outputs.shape[-1])
    return _KNOWN[client]


def check(client: RuleClient, outputs: Tensor) -> None:
    """Refuse a task whose outputs are not one number per class, or labels that are no classes."""
    labels = client.labels
    whole = labels.ndim == 1 and not labels.is_floating_point() and labels.dtype != torch.bool
    if outputs.ndim != 2 or outputs.shape[1] < 2 or not whole:
        text = "`evaluate.prior` needs outputs [samples, classes] and a class per sample, and here"
        text += f" outputs are {list(outputs.shape)} and targets {labels.dtype}"
        raise MasqueradeError("E202", f"{text} {list(labels.shape)}; leave it out")
    if not len(labels):
        text = f"client {client.id} has no training labels, of which `evaluate.prior` takes its mix"
        raise MasqueradeError("E202", f"{text}; leave it out, or the client")


def label_mix(labels: Tensor, classes: int) -> Tensor:
    """Return the smoothed frequencies of labels [classes]."""
    return smoothed(torch.bincount(labels.cpu(), minlength=classes).double())


def calibrated(posterior: Tensor, labels: Tensor) -> bool:
    """Tell whether a model is about as often right on labeled samples as it is sure."""
    if len(labels) < FEWEST:
        return False
    sure, answers = posterior.max(-1)
    off = sure - (answers == labels).double()
    slack = 2 * float(off.std()) / math.sqrt(len(labels))
    return abs(float(off.mean())) <= MISCALIBRATED + slack


def _drift(likelihoods: Tensor, mix: Tensor) -> float:
    """Return what EM gains per sample at home, without what it gains on average by chance."""
    if not len(likelihoods) or not likelihoods.isfinite().all():
        return 0.0
    by_chance = (len(mix) - 1) / 2
    gain = gained(likelihoods, em(likelihoods, mix), mix)
    return max(0.0, gain - by_chance) / len(likelihoods)


def _shares(outputs: Tensor) -> Tensor:
    """Return log p_m(y | x), in double precision and where there is no waiting."""
    return torch.log_softmax(outputs.detach().double().cpu(), -1)


def _strength(outputs: Tensor, labels: Tensor, mix: Tensor) -> float:
    """Return the strength of the mix that explains the labels best; the least of several."""
    tried = torch.linspace(0, 1, STRENGTHS, dtype=torch.float64)
    found = torch.log_softmax(outputs + tried[:, None, None] * mix.log(), -1)
    right = found.gather(-1, labels.expand(STRENGTHS, -1)[..., None]).sum((1, 2))
    # Of strengths that rounding alone tells apart, the least.
    return float(tried[(right - 1e-9 * tried).argmax()])
