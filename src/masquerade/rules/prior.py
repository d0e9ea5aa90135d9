"""Rules that turn a model's outputs to a label mix: the client's own, or one found in test data.

None sees a test label. `own` and `evidence` answer every sample by itself; `batch` reads all test
samples of a client before it answers, `online` those before each. Where samples are of another
kind than those at home, where they say too little, or where the model is badly calibrated, all
fall back to `own`: a mix explains nothing there.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from masquerade.core.metric import OutputRule, RuleClient
from masquerade.rules.em import LEAST, chance, em, gained
from masquerade.rules.label_mix import LabelMix, label_mix_of

ODDS = math.log(20)
"""The evidence before which `online` keeps to its own mix, in nats: as its mix was stated before
each sample, chance reaches odds of twenty in one set of twenty at most (Ville's inequality)."""
PRIOR_SAMPLES = 10.0
"""Samples that the own mix counts as when `online` begins: two of another class then weigh."""
FORGETTING = 0.98
"""What a sample still counts as after the next: `online` remembers about fifty."""
UNLIKELY = 0.05
"""The share of samples at home that are less sure than one that `evidence` takes as known."""


def own(outputs: Tensor, client: RuleClient) -> Tensor:
    """Return the posterior under the client's own mix."""
    known = label_mix_of(client, outputs)
    return _answers(known.likelihoods(outputs) + known.mix.log(), outputs)


def evidence(outputs: Tensor, client: RuleClient) -> Tensor:
    """Weigh, sample by sample, the posteriors under the own and the uniform mix by their evidence.

    The evidence of a mix q for a sample is the sum over classes of l(x, y) q(y); posteriors that
    are averaged by it are the posterior under the mean of the two mixes.
    """
    known = label_mix_of(client, outputs)
    likelihoods = known.likelihoods(outputs)
    mixed = (known.mix + 1 / len(known.mix)) / 2
    sure = known.sureness(likelihoods)
    taken = (sure >= known.confidence.quantile(UNLIKELY)) & known.calibrated
    return _answers(likelihoods + torch.where(taken[:, None], mixed, known.mix).log(), outputs)


def batch(outputs: Tensor, client: RuleClient) -> Tensor:
    """Find the mix of all samples by EM (Saerens, Latinne and Decaestecker, 2002) and use it.

    It is used where it explains them better than the own mix by more than chance does, and by more
    than it would at home.
    """
    known = label_mix_of(client, outputs)
    likelihoods = known.likelihoods(outputs)
    sure = known.sureness(likelihoods)
    variance = sure.var() if len(sure) > 1 else sure.new_zeros(())
    strange = known.less_sure(sure.mean(), variance, torch.tensor(len(sure)))
    found = em(likelihoods, known.mix)
    enough = chance(len(found) - 1) + known.drift * len(outputs)
    gain = gained(likelihoods, found, known.mix)
    taken = known.calibrated and not bool(strange) and gain > enough
    return _answers(likelihoods + (found if taken else known.mix).log(), outputs)


def online(outputs: Tensor, client: RuleClient) -> Tensor:
    """Count the classes of one sample after another, each answered before it is counted."""
    known = label_mix_of(client, outputs)
    likelihoods = known.likelihoods(outputs)
    if not known.calibrated:
        return _answers(likelihoods + known.mix.log(), outputs)
    strange = _strange_so_far(known, likelihoods)
    # Sample after sample in numpy: torch takes twice as long for so few numbers.
    at_home, gain = known.mix.numpy(), 0.0
    mixes: list[npt.NDArray[np.float64]] = []
    counts = PRIOR_SAMPLES * at_home
    for share, doubtful in zip(torch.softmax(likelihoods, -1).numpy(), strange, strict=True):
        mix = np.maximum(counts / counts.sum(), LEAST)
        enough = ODDS + known.drift * len(mixes)
        mixes.append(mix if gain > enough and not doubtful else at_home)
        joint = share * mix
        explained = float(joint.sum())
        gain += math.log(explained / float(share @ at_home))
        counts = FORGETTING * counts + joint / explained
    return _answers(likelihoods + torch.from_numpy(np.stack(mixes)).log(), outputs)


def _strange_so_far(known: LabelMix, likelihoods: Tensor) -> list[bool]:
    """Tell for every sample whether those before it are of another kind than those at home."""
    sure = known.sureness(likelihoods)
    before = torch.arange(len(sure), dtype=torch.float64)
    mean = (sure.cumsum(0) - sure) / before.clamp(min=1)
    square = ((sure**2).cumsum(0) - sure**2) / before.clamp(min=1)
    variance = (square - mean**2) * before / (before - 1).clamp(min=1)
    found: list[bool] = known.less_sure(mean, variance, before).tolist()
    return found


def _answers(joint: Tensor, outputs: Tensor) -> Tensor:
    return torch.log_softmax(joint, -1).to(outputs)


PRIORS: dict[str, OutputRule] = {
    "own": OutputRule(own, "sample", reference=True),
    "evidence": OutputRule(evidence, "sample", reference=True),
    "batch": OutputRule(batch, "several", reference=True),
    "online": OutputRule(online, "several", reference=True),
}
"""What `evaluate.prior` may name, beside "none", which is the view itself."""
