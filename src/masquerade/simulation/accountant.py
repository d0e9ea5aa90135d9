"""Differential privacy of a training: what is refused, which noise it takes, and what ε came of it.

The accountant is that of Opacus. A guarantee is never stated without it.
"""

import warnings
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Privacy, Train
from masquerade.core.dp import DPSGD
from masquerade.core.dp_mean import DPMean
from masquerade.core.method import Method
from masquerade.core.padding import couples
from masquerade.core.preprocess import Unfitted
from masquerade.core.round import ClientInfo, Round
from masquerade.core.sgd import SGDStep
from masquerade.core.task import Task
from masquerade.engine.base import EngineContext
from masquerade.errors import MasqueradeError, listed, require
from masquerade.results import Guarantee
from masquerade.simulation.blind_sum import reading
from masquerade.simulation.participation import Participation

if TYPE_CHECKING:
    from masquerade.simulation.server import Server
    from masquerade.simulation.state import RunState

NAME = "Opacus RDP"
DEFENCES = ("aggregation", "clip_updates", "min_contributors")
"""Settings of training that are for another rule than the mean."""
MOST = 1e4
"""The largest noise multiplier that is tried."""
CLOSE = 1.01
"""How much more noise than needed is accepted."""
History = Iterable[tuple[float, int]]
"""Pairs of a sampling rate, and the steps that were taken with it."""


def epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Return ε after some steps of a Gaussian mechanism on Poisson samples."""
    return epsilon_of(((noise_multiplier, rate, steps),), delta)


@cache
def epsilon_of(taken: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Return ε after steps of several sorts: noise multiplier, sampling rate, how many."""
    taken = tuple(each for each in taken if each[2])
    if not taken:
        return 0.0
    accountant = require("opacus.accountants", "privacy").RDPAccountant()
    accountant.history = list(taken)
    with warnings.catch_warnings():
        # Where an order at the end of its range is best, ε is larger than it need be.
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta))


def worst(noise_multiplier: float, history: History, delta: float) -> float:
    """Return the largest ε of several clients."""
    known = set(history)
    return max((epsilon(noise_multiplier, rate, n, delta) for rate, n in known), default=0.0)


def noise_for(privacy: Privacy, history: History) -> float:
    """Return the noise multiplier of a run, which the accountant finds where ε is asked for."""
    given, bound = privacy.noise_multiplier, privacy.epsilon
    found = worst(given, history, privacy.delta) if given and bound else 0.0
    if found > bound:
        text = f"noise of {given} would give ε = {found:.3g}, above the {bound} of privacy.epsilon"
        raise MasqueradeError("E202", f"{text}; leave the noise to be found")
    if given or not bound:
        return given
    known, noise = set(history), 0.0
    while True:
        # Which client is worst hardly depends on the noise, and asking for each takes its time.
        at = max(noise, 1.0)
        first = max(known, key=lambda each: epsilon(at, each[0], each[1], privacy.delta))
        noise = max(noise * CLOSE, _noise_for(privacy, *first))
        if worst(noise, known, privacy.delta) <= privacy.epsilon:
            return noise


def _noise_for(privacy: Privacy, rate: float, steps: int) -> float:
    """Return the noise multiplier for one client."""

    def keeps(noise: float) -> bool:
        return epsilon(noise, rate, steps, privacy.delta) <= privacy.epsilon

    high = 1.0
    while not keeps(high):
        high *= 2
        if high > MOST:
            text = f"no noise gives ε = {privacy.epsilon} at δ = {privacy.delta} in this run"
            raise MasqueradeError("E202", f"{text}; ask for a larger ε, or fewer rounds or epochs")
    low = high / 2 if high > 1 else 0.1
    while high > low * CLOSE:
        middle = (low + high) / 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def epochs(method: Method, task: Task, round: Round) -> int:
    """Count the passes over a client's training samples in a round."""
    return sum(stage.epochs for stage in method.stages(task, round))


def dp_sgd(spec: TrainingSpec, task: Task, participation: Participation) -> DPSGD | None:
    """Return how gradients are made private, if that is asked for; refuse what is not covered."""
    if spec.privacy.unit != "sample":
        return None
    eligible = participation.eligible
    counts = spec.federation.samples.cpu()[eligible]
    _check_data(spec, counts, eligible)
    check_sums(spec)
    _check_task(spec, task)
    check_stages(spec.method, task, spec)
    made = DPSGD(0.0, spec.privacy.max_grad_norm, spec.train.batch_size)
    planned = _planned(spec, task, participation)
    noise = noise_for(spec.privacy, history(made, counts, made.steps(counts) * planned[eligible]))
    return DPSGD(noise, made.max_grad_norm, made.batch_size)


def sampling_rate(dp: DPSGD, samples: int) -> float:
    """Return the chance of a sample to be in a batch of a client with so many."""
    return min(dp.batch_size / max(samples, 1), 1.0)


def history(dp: DPSGD, counts: Tensor, steps: Tensor) -> list[tuple[float, int]]:
    """Return the sampling rates and steps of clients with so many samples."""
    rates = [sampling_rate(dp, count) for count in counts.tolist()]
    return list(zip(rates, steps.tolist(), strict=True))


def dp_mean(
    spec: TrainingSpec, context: EngineContext, participation: Participation
) -> DPMean | None:
    """Return how updates are made private, where that is asked for; refuse what is not covered.

    Nothing is gained by who is sampled: a seed draws it, which anybody may know. Every client is
    accounted for by the rounds in which it is asked.
    """
    if spec.privacy.unit != "client":
        return None
    name, train = type(spec.method).__name__, spec.train
    info = ClientInfo(int(participation.eligible[0]), 1, 0)
    for why in reading(context, info).needs:
        text = f"the server of {name} needs more of uploads than one noised mean ({why})"
        raise MasqueradeError("E202", f"{text}; take a method that docs/privacy.md lists")
    if any(getattr(train, name) != getattr(Train(), name) for name in DEFENCES):
        text = "noise is for the mean; take train.aggregation = mean, and no other defence"
        raise MasqueradeError("E202", f"`privacy.unit` is client, and {text}")
    if spec.compute.processes > 1:
        text = "each process would draw other noise; take compute.processes = 1"
        raise MasqueradeError("E202", f"`privacy.unit` is client, and {text}")
    check_sums(spec)
    cohorts = [participation.cohort(number) for number in range(train.rounds)]
    rounds = torch.cat([*cohorts, participation.eligible[:0]]).bincount()
    noise = noise_for(spec.privacy, [(1.0, int(count)) for count in rounds])
    expected = max(map(len, cohorts))
    return DPMean(
        noise_multiplier=noise, max_grad_norm=spec.privacy.max_grad_norm, expected=expected
    )


def guarantee(server: "Server", state: "RunState", privacy: Privacy) -> Guarantee | None:
    """Return what clients are guaranteed of all that was sent; None where nothing is."""
    ids = list(state.noised)
    steps = torch.tensor(list(state.noised.values()), dtype=torch.int64)
    made: DPSGD | DPMean
    if isinstance(server.aggregation, DPMean):
        made, pairs = server.aggregation, [(1.0, taken) for taken in steps.tolist()]
    elif server.task.dp is not None:
        made = server.task.dp
        pairs = history(made, server.samples[ids], steps)
    else:
        return None
    noise = made.noise_multiplier
    if not noise:
        return None
    each = {
        str(id): epsilon(noise, rate, taken, privacy.delta)
        for id, (rate, taken) in zip(ids, pairs, strict=True)
    }
    largest = max(each.values(), default=0.0)
    return Guarantee(privacy.unit, largest, privacy.delta, noise, made.max_grad_norm, NAME, each)


def _planned(spec: TrainingSpec, task: Task, participation: Participation) -> Tensor:
    """Count the passes that every client will make over its samples, in all rounds."""
    method, rounds = spec.method, spec.train.rounds
    device = task.sample.device
    setup = epochs(method, task, Round.of("setup", None, 0, rounds, 1.0, device))
    found = torch.full((spec.federation.clients,), setup)
    by_phase: dict[object, int] = {}
    for number in range(rounds):
        phase = method.schedule(number, rounds)
        if phase not in by_phase:
            by_phase[phase] = epochs(
                method, task, Round.of("train", phase, number, rounds, 1.0, device)
            )
        found[participation.cohort(number)] += by_phase[phase]
    return found


def _check_data(spec: TrainingSpec, counts: Tensor, eligible: Tensor) -> None:
    size, delta = spec.train.batch_size, spec.privacy.delta
    few = eligible[counts < size].tolist()
    if few:
        text = f"clients {listed(few)} have fewer than the {size} training samples of a batch"
        raise MasqueradeError("E202", f"{text}; lower train.batch_size, or merge clients")
    most = int(counts.max())
    if delta * most >= 1:
        text = f"`privacy.delta` is {delta:g}, and a client has {most} training samples"
        raise MasqueradeError("E202", f"{text}; give less than one in so many")


def _check_task(spec: TrainingSpec, task: Task) -> None:
    if couples(task, spec.federation.x.to(task.sample.device)):
        text = "an output of the network depends on other samples of the batch (batch norm?)"
        how = "gradients of samples cannot be told apart; take GroupNorm or LayerNorm"
        raise MasqueradeError("E202", f"{text}: {how}")


def check_sums(spec: TrainingSpec) -> None:
    """Refuse what clients' data decide beside training."""
    covered = "differential privacy covers training alone"
    if isinstance(spec.task.preprocess, Unfitted):
        text = "and preprocessing would be fitted to clients' data"
        raise MasqueradeError("E202", f"{covered}, {text}; take known constants (data.normalize)")
    if spec.train.class_weights != "none":
        text = "and class weights tell how often labels come"
        raise MasqueradeError("E202", f'{covered}, {text}; take train.class_weights="none"')
    if spec.novel:
        text = "and novel clients train without being accounted for"
        raise MasqueradeError("E202", f"{covered}, {text}; take data.novel=0")


def check_stages(method: Method, task: Task, spec: TrainingSpec) -> None:
    """Refuse methods that see data otherwise than in SGD steps on training samples."""
    rounds, device = spec.train.rounds, task.sample.device
    name = type(method).__name__
    for kind, phase in _rounds(method, spec):
        for stage in method.stages(task, Round.of(kind, phase, 0, rounds, 1.0, device)):
            if kind == "adapt":
                text = f"the view `{phase[0]}` of {name} is trained before use"
                how = "its guarantee would be another one; take a view that is not (`views`)"
                raise MasqueradeError("E202", f"{text}: {how}")
            why = uncovered(stage.step, stage.data, stage.draws)
            if why:
                text = f"{name}, stage `{stage.name}`: {why}, which DP-SGD does not cover"
                raise MasqueradeError("E202", f"{text}; take a method that docs/privacy.md lists")


def _rounds(method: Method, spec: TrainingSpec) -> Iterable[tuple[str, Any]]:
    """List every sort of round that a run has, and the views that are used."""
    phases = (method.schedule(number, spec.train.rounds) for number in range(spec.train.rounds))
    yield "setup", None
    for phase in dict.fromkeys(phases):
        yield "train", phase
    for view in spec.views:
        yield "adapt", (view, False)


def uncovered(step: object, data: str, draws: int) -> str:
    """Say why a stage is not covered; empty where it is."""
    if not isinstance(step, SGDStep):
        return "a step that is not `sgd_step`"
    if data != "train":
        return "a pass over validation samples"
    return "several batches in one step" if draws > 1 else ""
