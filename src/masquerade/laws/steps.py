"""Laws 9 and 11: a step serves every round of its phase, and padding changes nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from masquerade.core.padding import couples, padded
from masquerade.core.round import Batch, Round, Stage
from masquerade.core.tree import State
from masquerade.data import Federation
from masquerade.engine.batched import Batched
from masquerade.engine.replay.recorded import Recordings
from masquerade.engine.vmapped import VmappedMethod
from masquerade.evaluation.evaluate import Evaluator
from masquerade.laws.compare import close, equal
from masquerade.laws.engines import TOLERANCE, batched, round_of
from masquerade.laws.law import DoesNotApply, LawBroken, Where, at, law, summary
from masquerade.laws.problem import ROUNDS, Exchange, Problem, after, exchanges, kinds, two_clients
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState

Step = Callable[[State, Any, Tensor, Tensor], State]
"""From work, a batch, and the number and the decay of a round to work."""


@law(
    9,
    "A traced step serves every round of its phase.",
    "let numbers of a round stay tensors (`lr * round.decay`, not `float(round.decay)`), and count "
    "nothing in Python; what changes a plan is a phase of `schedule`",
)
def traced_steps_serve_every_round(problem: Problem) -> None:
    """Trace steps and record them; repeated in other rounds, they are the steps as written."""
    with problem.simulating(ROUNDS) as made:
        for kind, phase in kinds(made):
            with at(kind=kind, phase=phase):
                _stages_are_traced(made, made.context.round(kind, phase, 1))
    _replayed_steps_are_the_steps(problem)


def _stages_are_traced(made: Simulation, round: Round) -> None:
    """Trace a step of every stage: one that makes a changing number a constant has it there."""
    state, loader, task = made.begin(), made.context.loader, made.server.task
    ids = torch.arange(len(made.server.clients))
    method = VmappedMethod(made.server.method, len(ids))
    download = method.download(task, state.server, state.rows.state, round)
    work = method.start(task, download, state.clients.state, round)
    for stage in method.stages(task, round):
        with at(stage=stage.name):
            work = stage.prepare(work, round)
            stacked = loader.stack(loader.shuffle(ids, stage, round, 1))
            batch = loader.batch(stacked.rows[0], stacked.draws, whole=False)
            step = _stepper(stage, round)
            numbers = round.number, round.decay
            traced = _traced(step, work, batch, *numbers)
            for number in (1, 6):
                with at(number=number):
                    later = made.context.round(round.kind, round.phase, number)
                    given = (work, batch, later.number, later.decay)
                    text = "the step that was traced in round 1 gives something else"
                    equal(step(*given), traced(*given), text)
            work = step(work, batch, *numbers)


def _traced(step: Step, *given: Any) -> Any:
    """Trace a step by shapes alone: one that reads a number on the host fails, in any round."""
    try:
        return make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
    except Exception as error:
        text = f"the step cannot be traced, so it reads a number in Python ({summary(error)})"
        raise LawBroken(text) from error


def _stepper(stage: Stage, round: Round) -> Step:
    """Make a step, and what follows the last one, a function of tensors alone."""

    def step(work: State, batch: Any, number: Tensor, decay: Tensor) -> State:
        moved = replace(round, number=number, decay=decay)
        return stage.then(stage.step(work, batch, moved), moved)

    return step


def _replayed_steps_are_the_steps(problem: Problem) -> None:
    """What is recorded in early rounds serves the late ones, bit for bit, and evaluation too."""
    rounds = min(problem.rounds, 6)
    with batched(problem, rounds) as replayed, batched(problem, rounds, replay="off") as written:
        recordings = _recordings(replayed)
        # Recorded at once, not only after some steps of a form.
        recordings.often = 0
        one, two = replayed.begin(), written.begin()
        for number in range(rounds):
            replayed.advance(one)
            written.advance(two)
            with at(**round_of(written, number)):
                equal(one.tensors(), two.tensors(), "replayed steps are other steps")
        for view in problem.method.views:
            with at(kind="adapt", phase=(view, False)):
                scores = _scores(replayed, one, view), _scores(written, two, view)
                equal(*scores, otherwise="replayed steps give other scores")
    if not recordings.made:
        raise LawBroken("none of its steps was recorded")
    if recordings.unfit:
        kind, phase, name, *_ = recordings.unfit[0]
        raise LawBroken("a step cannot be recorded", Where(str(kind), phase, stage=str(name)))


def _recordings(made: Simulation) -> Recordings:
    assert isinstance(made.engine, Batched)
    assert isinstance(made.engine.steps, Recordings)
    return made.engine.steps


def _scores(made: Simulation, state: RunState, view: str) -> dict[str, Tensor]:
    found = Evaluator.of(made).measure(state, view, list(made.federation.test))
    return {"scores": torch.cat(found.scores)}


@law(
    11,
    "Padding changes nothing: a step sees the real samples of a batch alone.",
    "average and add up with `batch.mean` and `batch.total`, and count with `batch.count`: they "
    "leave out samples that `batch.valid` does not mark",
)
def padding_changes_nothing(problem: Problem) -> None:
    """Take a step of every stage with and without padding."""
    x = problem.federation.x
    if couples(problem.task.fitted_on(x), x):
        raise DoesNotApply("an output of the network depends on other samples of the batch")
    with problem.simulating(4) as made:
        for state in (made.begin(), after(made, 4)):
            for exchange in exchanges(made, state, two_clients(made)):
                with at(**exchange.place):
                    _stages_are_blind_to_padding(exchange)


def _stages_are_blind_to_padding(exchange: Exchange) -> None:
    made, round = exchange.made, exchange.round
    method, task, data = made.server.method, made.server.task, made.federation
    own = data.train[exchange.id]
    work = method.start(task, exchange.download, exchange.client, round)
    for stage in method.stages(task, round):
        with at(stage=stage.name):
            work = stage.prepare(work, round)
            given = [_some(data, own, draw, stage.draws) for draw in range(stage.draws)]
            batch = tuple(given) if stage.draws > 1 else given[0]
            plain = stage.step(work, batch, round)
            text = "samples that `batch.valid` does not mark change the work of a step"
            close(stage.step(work, padded(batch), round), plain, TOLERANCE, text)
            work = stage.then(plain, round)


def _some(data: Federation, own: Tensor, draw: int, draws: int) -> Batch:
    """Return the batch of a draw, samples being dealt out in turn; the first serves for none."""
    chosen = own[draw::draws] if len(own) > draw else own[:1]
    return Batch(data.x[chosen], data.y[chosen], None, torch.tensor(0))
