"""The state of a run: everything that changes from round to round, and how it is written down."""

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.tree import State
from masquerade.cost import memory
from masquerade.engine.base import Outcome, astuple
from masquerade.engine.store import Store
from masquerade.errors import MasqueradeError, told
from masquerade.results import EvaluationRecord, Sent
from masquerade.simulation.clock import Clock
from masquerade.wire import session

COSTS = ("down", "up", "values_down", "values_up", "dense", "masked", "executed", "paper")
WAYS = ("dense", "masked", "executed")
SENT_UP = ("up", "values_up")

IDS = "ids"
"""The name under which a piece of a snapshot says whose states it has."""
PIECE = 2**26
"""Bytes of clients' states in a piece."""
Fetch = Callable[[], list[dict[str, Tensor]]]

_stream: Callable[[], Any] = torch.cuda.Stream


@dataclass(frozen=True)
class Snapshot:
    """What a commit writes."""

    fetch: Fetch
    """Returns the server's tensors, and then pieces of clients' states, by name."""
    whole: bool
    """Whether the pieces have the states of all clients that have changed since round 0."""


@dataclass(frozen=True)
class StateFacts:
    """What a commit holds of a state beside its tensors."""

    costs: Mapping[str, Mapping[str, float]]
    layers: Mapping[str, Mapping[str, Mapping[str, float]]]
    history: tuple[EvaluationRecord, ...]
    seconds: Mapping[str, float]
    memory: Mapping[str, float]
    diverged: int | None
    refused: int
    sent: tuple[Sent, ...] = ()
    noised: Mapping[str, int] = field(default_factory=dict)


@dataclass
class RunState:
    """Everything that changes from round to round."""

    number: int
    """Rounds completed."""
    server: State
    rows: Store
    clients: Store
    session: Store
    """What every client and the server hold of each other: masks and versions that went over."""
    sampled: Tensor
    """[clients]: in how many rounds each client was asked."""
    answered: Tensor
    """[clients]: in how many of them its answer came back."""
    costs: dict[str, dict[str, float]] = field(
        default_factory=lambda: {"train": dict.fromkeys(COSTS, 0.0)}
    )
    """Sums over clients by kind of round ("train", "setup"): `COSTS`, and parts as "up/params"."""
    layers: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """FLOPs over clients, by phase and layer: dense, masked, executed."""
    history: list[EvaluationRecord] = field(default_factory=list)
    """Evaluations between rounds."""
    sent: dict[tuple[str, str, str], Sent] = field(default_factory=dict)
    """What messages had, by kind or phase of the round, direction and part."""
    noised: dict[int, int] = field(default_factory=dict)
    """By client: the steps of DP-SGD that it has taken, or its rounds; lost rounds included."""
    clock: Clock = field(default_factory=Clock)
    memory: dict[str, float] = field(default_factory=dict)
    """The most bytes held at a time, by kind, and by kind and what the run was doing."""
    diverged: int | None = None
    """The first round that left values which are not finite, counted from 0."""
    refused: int = 0
    """Updates that were not taken."""
    refused_novel: dict[int, str] = field(default_factory=dict)
    """Clients that came after training and were refused, and the code that says why."""
    set_up: bool = False
    """Whether clients have done what they do before their first round."""
    refused_setup: dict[str, str] = field(default_factory=dict)
    """Clients whose setup was refused, until the next line of metrics says so."""
    warned: set[str] = field(default_factory=set)
    """What this process has warned of already."""
    changed: Tensor = field(init=False)
    """[clients]: whose state is another than the last snapshot's."""
    touched: Tensor = field(init=False)
    """[clients]: whose state is another than that before round 0."""
    handed: int = 0
    """States of clients in all snapshots since one was `whole`."""
    doing: str = "start-up"
    """The part of the run whose memory is being watched."""

    def __post_init__(self) -> None:
        self.changed, self.touched = torch.zeros(2, len(self.sampled), dtype=torch.bool)

    @contextmanager
    def spending(self, part: str, lap: bool = False) -> Iterator[None]:
        """Count time and memory for a part of the run."""
        if part != self.doing:
            self.note_memory()
            memory.again(self.rows.device)
            self.doing = part
        with self.clock.measure(part, lap):
            yield

    def note_memory(self) -> None:
        """Take note of the most memory held, in all and in this part of the run."""
        found = memory.peak(self.rows.device)
        by_part = {f"{kind}, {self.doing}": held for kind, held in found.items()}
        stores = (self.rows, self.clients, self.session)
        states = {"states": float(sum(each.nbytes for each in stores))}
        self.memory = memory.most(self.memory, found | by_part | states)

    def grow(self, fresh: "RunState") -> None:
        """Make room for clients that came since: `fresh` is the state before round 0 with them."""
        old = len(self.sampled)
        self.rows.grow(fresh.rows)
        self.clients.grow(fresh.clients)
        self.session.grow(fresh.session)
        self.sampled = torch.cat([self.sampled, fresh.sampled[old:]])
        self.answered = torch.cat([self.answered, fresh.answered[old:]])
        self.changed = torch.cat([self.changed, fresh.changed[old:]])
        self.touched = torch.cat([self.touched, fresh.touched[old:]])

    def renew(self, ids: Tensor, fresh: "RunState") -> None:
        """Have some clients begin anew: `fresh` is the state before round 0."""
        self.rows.put(ids, fresh.rows.take(ids))
        self.clients.put(ids, fresh.clients.take(ids))
        self.session.put(ids, tree.stack([self.session.begun(id) for id in ids.tolist()]))
        self.changed[ids] = True

    def keep(self, ids: Tensor, rows: Any, outcome: Outcome) -> None:
        """Store the new states of some clients, and the server's rows of them."""
        self.rows.put(ids, rows)
        self.clients.put(ids, outcome.clients)
        self.session.add(session.unsent(self.session.begun(0), outcome.session))
        self.session.put(ids, outcome.session)
        self.changed[ids] = True

    def count(
        self, kind: str, phase: str, sent: Outcome, received: Outcome, layers: list[str]
    ) -> dict[str, float]:
        """Add what a cohort's rounds cost, in all and by layer; return it.

        What was lost had been sent down and computed; it was not received.
        """
        cost = totals(sent)
        _add(cost, sent.beside)
        if received is not sent:
            back = totals(received).items()
            cost |= {n: value for n, value in back if n in SENT_UP or n.startswith("up/")}
        done = self.layers.setdefault(phase, {})
        for layer, counts in by_layer(sent, layers).items():
            _add(done.setdefault(layer, dict.fromkeys(WAYS, 0.0)), counts)
        _add(self.costs.setdefault(kind, dict.fromkeys(COSTS, 0.0)), cost)
        return cost

    def snapshot(self) -> Snapshot:
        """Copy what changed since the last snapshot, where it lies.

        Once snapshots hold twice as many states as there are, all are copied again.
        """
        self.touched |= self.changed
        ids = torch.nonzero(self.changed).flatten()
        whole = self.handed + len(ids) > 2 * int(self.touched.sum())
        if whole:
            ids, self.handed = torch.nonzero(self.touched).flatten(), 0
        self.handed += len(ids)
        self.changed = torch.zeros_like(self.changed)
        pieces = [tree.named(self._of_clients(some)) | {IDS: some} for some in self._divided(ids)]
        return Snapshot(_fetching([tree.named({"server": _copied(self.server)}), *pieces]), whole)

    def _divided(self, ids: Tensor) -> Sequence[Tensor]:
        """Divide clients so that the states of each group are about `PIECE` bytes."""
        if not len(ids):
            return []
        one = sum(leaf.nbytes for leaf in tree.leaves(self._of_clients(ids[:1])))
        return torch.split(ids, max(1, PIECE // one))

    def _of_clients(self, ids: Tensor) -> dict[str, Any]:
        """Return copies of all that is held of some clients."""
        return {
            "rows": self.rows.take(ids),
            "clients": self.clients.take(ids),
            "session": self.session.take(ids),
            "participation": {"sampled": self.sampled[ids], "answered": self.answered[ids]},
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of all tensors, by name, in host memory; of clients, of all of them."""
        everybody = torch.arange(len(self.sampled))
        copies = tree.named({"server": _copied(self.server)} | self._of_clients(everybody))
        return _fetching([copies])()[0]

    def facts(self) -> StateFacts:
        """Return a copy of the rest."""
        return StateFacts(
            costs=copy.deepcopy(self.costs),
            layers=copy.deepcopy(self.layers),
            history=tuple(self.history),
            seconds=dict(self.clock.seconds),
            memory=dict(self.memory),
            diverged=self.diverged,
            refused=self.refused,
            sent=tuple(self.sent.values()),
            noised={str(id): steps for id, steps in self.noised.items()},
        )

    def restore(
        self,
        number: int,
        tensors: Mapping[str, Tensor],
        facts: StateFacts,
        pieces: Iterable[Mapping[str, Tensor]] = (),
    ) -> None:
        """Take over what a commit holds; this state is the one before round 0, on its devices.

        Clients' states are in `pieces`, later ones after earlier ones, or all in `tensors`. What
        is of another network or of other clients is refused: a fitting hash does not tell.
        """
        _check_costs(facts)
        self.diverged = facts.diverged
        check_form({"server": self.server}, tensors)
        self._check_finite({"server": self.server}, tensors)
        self.server = tree.rebuild({"server": self.server}, self._moved(tensors))["server"]
        if "participation/sampled" in tensors:
            self._put(torch.arange(len(self.sampled)), tensors)
            # No piece has them: the next snapshot is whole.
            self.changed[:] = True
        for piece in pieces:
            self._check_ids(piece)
            self._put(piece[IDS], piece)
            self.handed += len(piece[IDS])
            self.touched[piece[IDS]] = True
        self.number, self.set_up = number, number > 0
        self.costs = {kind: dict(sums) for kind, sums in facts.costs.items()}
        self.layers = {
            phase: {layer: dict(counts) for layer, counts in layers.items()}
            for phase, layers in facts.layers.items()
        }
        self.history, self.memory = list(facts.history), dict(facts.memory)
        self.refused = facts.refused
        if nobody := facts.noised.keys() - {str(id) for id in range(len(self.sampled))}:
            raise foreign(f"it counts noise of clients {', '.join(sorted(nobody)[:5])}")
        self.noised = {int(id): steps for id, steps in facts.noised.items()}
        self.sent = {(each.when, each.direction, each.part): each for each in facts.sent}
        for part, seconds in facts.seconds.items():
            # This process has a start-up of its own.
            self.clock.seconds[part] += seconds

    def _check_ids(self, piece: Mapping[str, Tensor]) -> None:
        """Refuse states of clients that there are not."""
        check_form({IDS: torch.tensor(0)}, piece, len(piece.get(IDS, ())))
        ids = piece[IDS]
        known = range(len(self.sampled))
        if len(set(ids.tolist())) < len(ids) or not all(id in known for id in ids.tolist()):
            raise foreign(f"it has states of clients {ids.tolist()[:5]} of {len(known)}")

    def _check_finite(self, begun: State, tensors: Mapping[str, Tensor]) -> None:
        """Refuse numbers that are not finite, of a run that has not diverged.

        Rounds keep none: such updates are refused. What a method begins with may be infinite.
        """
        for name, like in tree.named(begun).items() if self.diverged is None else ():
            if not bool((tensors[name].isfinite() | ~like.isfinite().cpu()).all()):
                raise foreign(f"`{name}` is not finite, though training has not diverged")

    def _check_session(self, tensors: Mapping[str, Tensor], clients: int) -> None:
        """Refuse a session of other parts than before; masks that went over may come beside."""
        begun = self.session.begun(0)
        check_form({"session": begun}, tensors, clients)
        for name, value in tensors.items():
            if name.startswith("session/") and value.shape[:1] != (clients,):
                raise foreign(f"`{name}` is {told(value)}, of {clients} clients")

    def _moved(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to(self.rows.device) for name, value in tensors.items()}

    def _put(self, ids: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Write what `_of_clients` returned of some clients."""
        held = {"rows": self.rows.begun(0), "clients": self.clients.begun(0)}
        beside = {"sampled": self.sampled[0], "answered": self.answered[0]}
        check_form({**held, "participation": beside}, tensors, len(ids))
        self._check_finite({"clients": held["clients"]}, tensors)
        self._check_session(tensors, len(ids))
        moved = self._moved(tensors)
        for name, store in (("rows", self.rows), ("clients", self.clients)):
            store.put(ids, tree.rebuild({name: store.begun(0)}, moved)[name])
        sent = {
            name.removeprefix("session/"): value
            # A file gives names in any order; processes of one run have to have the same.
            for name, value in sorted(moved.items())
            if name.startswith("session/")
        }
        self.session.add(session.unsent(self.session.begun(0), sent))
        self.session.put(ids, sent)
        self.sampled[ids] = tensors["participation/sampled"]
        self.answered[ids] = tensors["participation/answered"]


def check_form(template: State, tensors: Mapping[str, Tensor], clients: int | None = None) -> None:
    """Refuse tensors of a commit that do not have the form of a state, stacked over clients."""
    for name, like in tree.named(template).items():
        shape = (*like.shape,) if clients is None else (clients, *like.shape)
        found = tensors.get(name)
        if found is None or (tuple(found.shape), found.dtype) != (shape, like.dtype):
            seen = "no tensor" if found is None else f"{found.dtype} {list(found.shape)}"
            raise foreign(f"`{name}` is {seen} and not {like.dtype} {list(shape)}")


def _check_costs(facts: StateFacts) -> None:
    """Refuse sums of costs that lack one."""
    sums = [facts.costs.get("train", {}), *facts.costs.values()]
    layers = [counts for phase in facts.layers.values() for counts in phase.values()]
    for known, found in ((COSTS, sums), (WAYS, layers)):
        if lost := {name for each in found for name in known if name not in each}:
            raise foreign(f"its costs lack {', '.join(sorted(lost))}")


def foreign(why: str) -> MasqueradeError:
    """Return the refusal of a commit that says what no commit of this run says."""
    text = f"a commit is not of this run, though its hash fits: {why.replace('torch.', '')}"
    return MasqueradeError("E401", f"{text}. Put an intact copy of it there, or start anew.")


def _copied(state: State) -> State:
    copied: State = tree.transform(lambda value: value.detach().clone(), state)
    return copied


def _fetching(copies: list[dict[str, Tensor]]) -> Fetch:
    """Return what fetches copies to host memory; a thread may do so while rounds go on."""
    on_cuda = any(value.is_cuda for piece in copies for value in piece.values())
    ready = torch.cuda.current_stream().record_event() if on_cuda else None

    def fetch() -> list[dict[str, Tensor]]:
        if ready is None:
            return [tree.each(Tensor.contiguous, piece) for piece in copies]
        beside = _stream()
        beside.wait_event(ready)
        with torch.cuda.stream(beside):
            return [tree.each(lambda value: value.cpu().contiguous(), piece) for piece in copies]

    return fetch


def totals(outcome: Outcome) -> dict[str, float]:
    """Add up what a cohort's rounds cost; bytes also by direction and part."""
    *sent, parts = astuple(outcome.traffic)
    columns = dict(zip(COSTS, (*sent, *astuple(outcome.flops)), strict=True)) | parts
    return {name: float(column.sum()) for name, column in columns.items()}


def by_layer(outcome: Outcome, layers: list[str]) -> dict[str, dict[str, float]]:
    """Add up a cohort's FLOPs by layer: weight name → dense, masked, executed."""
    sums = [getattr(outcome.flops, way).sum(0).expand(len(layers)).tolist() for way in WAYS]
    named = zip(layers, zip(*sums, strict=True), strict=True)
    return {layer: dict(zip(WAYS, counts, strict=True)) for layer, counts in named}


def phase_name(phase: Hashable) -> str:
    """Name a phase by its first word: ("dual", True) is a round of "dual"."""
    return str(phase[0] if isinstance(phase, tuple) else phase)


def _add(total: dict[str, float], cost: Mapping[str, float]) -> None:
    for name, value in cost.items():
        total[name] = total.get(name, 0.0) + value
