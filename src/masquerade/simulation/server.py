"""The server: what it knows, and its round loop. It holds no data.

`train` is federated learning as a textbook has it. Whoever does the clients' work is an `Engine`: a
loop over clients, a batch of them, one day other machines; the server knows nothing of that.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.aggregation import PLAIN, Aggregation
from masquerade.core.dp_mean import DPMean
from masquerade.core.method import Method
from masquerade.core.round import ClientInfo, Cohort, Round, round_name
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.cost.flops import Meter
from masquerade.engine.base import Engine, Job, Outcome
from masquerade.engine.store import Place, Store
from masquerade.errors import MasqueradeWarning
from masquerade.results import EvaluationRecord, RoundRecord
from masquerade.simulation.participation import Participation
from masquerade.simulation.sent import note_sent
from masquerade.simulation.state import COSTS, RunState, phase_name
from masquerade.simulation.update_checks import all_finite, refusals, warn_of_refusals
from masquerade.wire import session


@dataclass(frozen=True, eq=False)
class Turn:
    """Who is asked to do what: a round of training, or the clients' setup before the first."""

    kind: str
    number: int
    round: Round
    asked: Tensor
    """The clients that are asked, in ascending order."""
    back: Tensor
    """The places among them of those whose answer is not lost."""

    @property
    def phase(self) -> str:
        """Name the phase, for costs."""
        return self.kind if self.round.phase is None else phase_name(self.round.phase)


@dataclass(frozen=True, eq=False)
class Answers:
    """What came back of a turn, and what of it is taken."""

    received: Outcome
    """Of all whose answer was not lost."""
    refused: dict[int, str]
    """Clients whose update is not taken, and the code that says why."""
    ids: Tensor
    """Clients whose update is taken."""
    rows: State
    accepted: Outcome


@dataclass(frozen=True, eq=False)
class Server:
    """What the server of a federation knows of its run: all that does not change."""

    method: Method
    task: Task
    clients: tuple[ClientInfo, ...]
    participation: Participation
    rounds: int
    lr_decay: float
    novel: tuple[int, ...]
    """Clients with data that are kept out of training."""
    known: tuple[int, ...]
    """All clients that are not kept out."""
    meter: Meter
    place: Place
    """Where the states of clients lie between rounds."""
    holds_clients: bool = True
    """Whether it simulates clients, and has their states; else they have them."""
    aggregation: Aggregation = PLAIN
    """How clients' values become one."""
    quorum: int = 1
    """Updates that a round of training needs: with fewer none is taken."""
    _limits: dict[int, dict[str, dict[str, int]]] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Return the device of models and messages."""
        return self.task.sample.device

    @cached_property
    def samples(self) -> Tensor:
        """Return how many training samples each client has."""
        return torch.tensor([info.samples for info in self.clients])

    @cached_property
    def layers(self) -> list[str]:
        """List the weights that FLOPs are counted by; "" has the rest."""
        return list(self.meter.forward(self.task.sample))

    def begin(self) -> RunState:
        """Return the state before round 0."""
        server = self.method.server_init(self.task)
        row = self.method.row_init(self.task, self.clients[0])
        download = self.method.download(self.task, server, row, self.round("train", 0))
        begun = tree.take(session.begin(self.task.initial, 1, download), 0)
        client_init = self.method.client_init if self.holds_clients else _no_state
        return RunState(
            0,
            server,
            self._store(lambda id: self.method.row_init(self.task, self.clients[id])),
            self._store(lambda id: client_init(self.task, self.clients[id])),
            self._store(lambda id: begun),
            *torch.zeros(2, len(self.clients), dtype=torch.int64),
        )

    def _store(self, first: Callable[[int], State]) -> Store:
        return Store(first, len(self.clients), self.device, self.place)

    def round(self, kind: str, number: int, phase: object = None) -> Round:
        """Make a round as methods see it; the phase of a training round is its schedule's."""
        if kind == "train":
            phase = self.method.schedule(number, self.rounds)
        return Round.of(kind, phase, number, self.rounds, self.lr_decay, self.device)

    def has_setup(self) -> bool:
        """Tell whether clients have something to do before their first round."""
        return bool(self.method.setup(self.task, self.round("setup", 0)))

    def choose(self, state: RunState) -> Turn:
        """Choose who is asked next: those who have a setup to do, else the cohort of a round."""
        number, chosen = state.number, self.participation
        new = chosen.setup(number, state.set_up) if self.has_setup() else chosen.eligible[:0]
        if len(new):
            return Turn("setup", number, self.round("setup", number), new, torch.arange(len(new)))
        asked = chosen.cohort(number)
        back = chosen.returning(number, asked)
        return Turn("train", number, self.round("train", number), asked, back)

    def make_job(self, state: RunState, ids: Tensor, round: Round, lend: bool = False) -> Job:
        """Return what some clients are to do, with all that it depends on."""
        rows, clients = state.rows.take(ids), state.clients.take(ids, lend)
        return Job(state.server, rows, clients, state.session.take(ids), ids, round, state.number)

    def noised_steps(self, turn: Turn) -> dict[int, int]:
        """Return what differential privacy counts of each client in a turn: steps, or turns."""
        if isinstance(self.aggregation, DPMean) and turn.kind == "train":
            return dict.fromkeys(turn.asked.tolist(), 1)
        if self.task.dp is None:
            return {}
        epochs = sum(stage.epochs for stage in self.method.stages(self.task, turn.round))
        taken = self.task.dp.steps(self.samples[turn.asked]) * epochs
        return dict(zip(turn.asked.tolist(), taken.tolist(), strict=True))

    def prepare(self, engine: Engine, number: int) -> None:
        """Let an engine prepare a round to come, while it works on one."""
        if not engine.prepares or number >= self.rounds:
            return
        ids = self.participation.cohort(number)
        if len(ids):
            engine.prepare(ids, self.round("train", number), number)

    def check(self, turn: Turn, job: Job, sent: Outcome, warned: set[str]) -> Answers:
        """Tell which answers are taken: some are lost, some refused."""
        ids, rows, received = turn.asked, job.rows, sent
        if len(turn.back) < len(ids):
            ids, rows = ids[turn.back], tree.take(rows, turn.back)
            received = sent.take(turn.back) if sent.back is None else sent
        everybody = len(turn.back) == len(turn.asked)

        def before() -> State:
            return job.clients if everybody else tree.take(job.clients, turn.back)

        refused, taken = self.refused(received, ids, turn.round, turn.number, warned, before)
        accepted = received
        if refused:
            ids, rows, accepted = ids[taken], tree.take(rows, taken), received.take(taken)
        if turn.kind == "train" and len(ids) < self.quorum:
            ids = ids[:0]
        return Answers(received, refused, ids, rows, accepted)

    def refused(
        self,
        outcome: Outcome,
        ids: Tensor,
        round: Round,
        number: int,
        warned: set[str],
        before: Callable[[], State],
    ) -> tuple[dict[int, str], Tensor]:
        """Return the clients whose update is refused, and why; and the places of all others.

        `before` returns the states that they had.
        """
        sent = "upload" if round.kind == "train" else round.kind
        limits = [self._limit(id).get(sent, {}) for id in ids.tolist()]
        found = refusals(outcome.uploads, limits, outcome.clients, before)
        refused = {int(ids[place]): code for place, code in found.items()}
        warn_of_refusals(refused, len(ids), round_name(round.kind, number), warned)
        taken = [place for place in range(len(ids)) if place not in found]
        return refused, torch.tensor(taken, dtype=torch.int64)

    def _limit(self, id: int) -> dict[str, dict[str, int]]:
        """Return the most entries of a tensor that a client may send, by occasion."""
        if id not in self._limits:
            self._limits[id] = self.method.limit(self.task, self.clients[id])
        return self._limits[id]

    def cohort(self, ids: Tensor, asked: int) -> Cohort:
        """Return the clients whose uploads are aggregated, as methods see them."""
        clients = len(self.participation.eligible)
        return Cohort(ids, self.samples[ids], asked, clients, self.aggregation)


def _no_state(task: Task, info: ClientInfo) -> State:
    return {}


def train(
    server: Server,
    engine: Engine,
    state: RunState,
    evaluate: Callable[[RunState], EvaluationRecord | None] = lambda state: None,
    after_round: Callable[[RunState, RoundRecord], None] = lambda state, record: None,
    until: int | None = None,
) -> RunState:
    """Do the rounds that are left, in place: all of them, or those before round `until`.

    `after_round` is told of every round: what writes commits or shows progress stands there.
    """
    while state.number < (server.rounds if until is None else until):
        turn = server.choose(state)
        with state.spending("training", lap=turn.kind == "train"):
            record = federated_round(server, engine, state, turn)
        if record is not None:
            after_round(state, replace(record, evaluation=evaluate(state)))
    return state


def federated_round(
    server: Server, engine: Engine, state: RunState, turn: Turn
) -> RoundRecord | None:
    """Send, work, check, aggregate, keep; return the round's record, of a setup None.

    Clients whose answer is lost or refused are as if they had never been asked; where nobody is
    asked, or fewer answers than the quorum can be taken, a round changes nothing. What clients gave
    is let go of at the end, so that an engine can use its memory again.
    """
    if not len(turn.asked):
        return _finish_turn(state, turn, turn.asked, {}, dict.fromkeys(COSTS, 0.0))
    for id, steps in server.noised_steps(turn).items():
        state.noised[id] = state.noised.get(id, 0) + steps
    job = server.make_job(state, turn.asked, turn.round, lend=engine.copies)
    sent = engine.work(job)
    # Who comes back is drawn before a round, or seen in it where clients are elsewhere.
    turn = turn if sent.back is None else replace(turn, back=sent.back)
    server.prepare(engine, turn.number + (turn.kind == "train"))
    answers = server.check(turn, job, sent, state.warned)
    finite: Tensor | bool = True
    if _enough(server, turn, answers):
        cohort = server.cohort(answers.ids, len(turn.asked))
        uploads = answers.accepted.uploads
        changed, rows = server.method.aggregate(
            server.task, state.server, answers.rows, uploads, cohort, turn.round
        )
        # Of clients that come later the server keeps what it knows of them, and learns nothing.
        if turn.kind == "train" or not turn.number:
            state.server = changed
        state.keep(answers.ids, rows, answers.accepted)
        finite = all_finite([state.server, answers.accepted.clients])
    # On CUDA aggregation goes on meanwhile: `finite` is asked for after this.
    cost = state.count(turn.kind, turn.phase, sent, answers.received, server.layers)
    note_sent(state, server, turn, answers, cost)
    _note_divergence(state, turn, finite)
    return _finish_turn(state, turn, answers.ids, answers.refused, cost)


def _enough(server: Server, turn: Turn, answers: Answers) -> bool:
    """Tell whether a turn has the answers that it takes to change anything."""
    count, quorum = len(answers.ids), server.aggregation.quorum if turn.kind == "train" else 1
    if 1 <= count < quorum:
        text = f"W618 {round_name(turn.kind, turn.number)}: {count} answers, and the noise is for"
        warnings.warn(f"{text} {quorum}: it changes nothing", MasqueradeWarning, stacklevel=4)
    return count >= quorum


def _finish_turn(
    state: RunState, turn: Turn, taken: Tensor, refused: dict[int, str], cost: dict[str, float]
) -> RoundRecord | None:
    """Move the state on past a turn; return the round's record, of a setup None."""
    state.refused += len(refused)
    codes = {str(id): code for id, code in refused.items()}
    if turn.kind == "setup":
        state.set_up, state.refused_setup = True, codes
        return None
    state.number += 1
    back = turn.asked[turn.back]
    state.changed[turn.asked] = True
    state.sampled[turn.asked] += 1
    state.answered[back] += 1
    at_setup, state.refused_setup = state.refused_setup, {}
    return RoundRecord(
        round=state.number,
        clients=tuple(taken.tolist()),
        costs=cost,
        lost=tuple(sorted(set(turn.asked.tolist()) - set(back.tolist()))),
        refused=codes,
        refused_setup=at_setup,
    )


def _note_divergence(state: RunState, turn: Turn, finite: Tensor | bool) -> None:
    """Note and tell that what is kept has left the finite numbers."""
    if state.diverged is None and not finite:
        state.diverged = turn.number
        warnings.warn(
            f"W604 training diverged in {round_name(turn.kind, turn.number)}: values that are not "
            "finite; its figures mean nothing (lower method.lr?)",
            MasqueradeWarning,
            stacklevel=3,
        )
