"""Differential privacy of real clients: where noise is added, and what is guaranteed of it.

That of DP-SGD is drawn at each client, as much as its own number of samples takes (`budget.py`).
That of whole clients is drawn at the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Fleet, Privacy
from masquerade.core.dp import DPSGD
from masquerade.core.dp_mean import DPMean
from masquerade.core.task import Task
from masquerade.engine.base import EngineContext
from masquerade.errors import require
from masquerade.results import Guarantee
from masquerade.simulation.accountant import (
    NAME,
    check_stages,
    dp_mean,
    epsilon,
    guarantee,
    sampling_rate,
)
from masquerade.simulation.participation import Drawn
from masquerade.simulation.server import Server
from masquerade.simulation.state import RunState


@dataclass(frozen=True)
class Noised:
    """What a client says of its privacy."""

    epsilon: float
    """Spent so far."""
    noise_multiplier: float


def clipped_alone(spec: TrainingSpec, task: Task) -> DPSGD | None:
    """Return DP-SGD without its noise, as the server counts steps and a replay repeats them."""
    if spec.privacy.unit != "sample":
        return None
    check_stages(spec.method, task, spec)
    if spec.privacy.epsilon or spec.privacy.noise_multiplier:
        # The sheet needs it in the end: a server without it would train in vain.
        require("opacus.accountants", "privacy")
    return DPSGD(0.0, spec.privacy.max_grad_norm, spec.train.batch_size)


def noised_mean(spec: TrainingSpec, context: EngineContext, fleet: Fleet) -> DPMean | None:
    """Return how updates are made private at the server.

    Real clients are often away: a round needs the quorum, and is divided by all that it may ask.
    """
    everybody = torch.arange(len(fleet.clients))
    # The most that anybody can be asked: in every round.
    always = Drawn(everybody, len(everybody), "always", 0.0, spec.seed)
    found = dp_mean(spec, context, always)
    if found is None:
        return None
    clients = len(fleet.clients) - len(fleet.removed)
    asked = spec.train.clients_per_round or round(spec.train.participation * clients)
    return replace(found, expected=max(asked, fleet.quorum), least=fleet.quorum)


def guarantee_of(
    server: Server, state: RunState, privacy: Privacy, told: Mapping[int, Noised]
) -> Guarantee | None:
    """Return what clients are guaranteed; of DP-SGD as each of them has counted it itself.

    Who does not tell has spent its bound at most, or what it was asked for where there is none.
    """
    dp = server.task.dp
    if dp is None:
        return guarantee(server, state, privacy)
    if not privacy.epsilon and not privacy.noise_multiplier:
        return None

    def at_most(id: int, steps: int) -> float:
        rate = sampling_rate(dp, int(server.samples[id]))
        return privacy.epsilon or epsilon(privacy.noise_multiplier, rate, steps, privacy.delta)

    each = {
        str(id): told[id].epsilon if id in told else at_most(id, steps)
        for id, steps in sorted(state.noised.items())
    }
    noise = min((one.noise_multiplier for one in told.values()), default=privacy.noise_multiplier)
    return Guarantee(
        privacy.unit,
        max(each.values(), default=0.0),
        privacy.delta,
        noise,
        privacy.max_grad_norm,
        NAME,
        each,
    )
