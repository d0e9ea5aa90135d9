"""A method whose functions take the stacked states of clients, each mapped over them."""

from dataclasses import dataclass, replace
from typing import Any

from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.round import Round, Stage
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.core.vmap import over
from masquerade.engine.replay.convolutions import convolving


def mapped(clients: int, function: Any, *states: Any) -> Any:
    """Map a function over clients."""
    with over(clients) as inside:
        found = function(*(tree.transform(inside.enter, state) for state in states))
        return tree.transform(inside.leave, found)


@dataclass(frozen=True)
class VmappedMethod:
    """A method whose functions take and give stacked states: what `client_round` runs here."""

    method: Method
    clients: int
    products: bool = True
    """Whether convolutions may be computed as products of matrices."""

    def map(self, function: Any, *states: Any) -> Any:
        """Map a function over clients."""
        return mapped(self.clients, function, *states)

    def download(self, task: Task, server: State, rows: State, round: Round) -> Message:
        """Return what the clients are sent."""
        found: Message = self.map(lambda row: self.method.download(task, server, row, round), rows)
        return found

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Return the clients' work."""
        begun: State = self.map(
            lambda one, own: self.method.start(task, one, own, round), message, client
        )
        return begun

    def stages(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """List the stages, each of their functions mapped."""
        return tuple(self.vmap(stage) for stage in self.method.stages(task, round))

    def vmap(self, stage: Stage) -> Stage:
        """Map the functions of a stage; its steps take any number of clients."""

        def step(work: State, batch: Any, round: Round) -> State:
            first = tree.leaves(batch)[0]
            with convolving(first.device, self.products):
                new: State = mapped(
                    len(first), lambda one, part: stage.step(one, part, round), work, batch
                )
            return new

        def begin(work: State, round: Round) -> State:
            begun: State = self.map(lambda one: stage.prepare(one, round), work)
            return begun

        def then(work: State, round: Round) -> State:
            if stage.then is Stage.then:
                return work
            ended: State = self.map(lambda one: stage.then(one, round), work)
            return ended

        return replace(stage, step=step, begin=begin, then=then)

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Return the uploads and what the clients hold."""
        ended: tuple[Message, State] = self.map(
            lambda *one: self.method.finish(task, one[0], one[1], one[2], round),
            work,
            message,
            client,
        )
        return ended
