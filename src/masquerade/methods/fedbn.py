"""FedBN (Li et al., 2021): FedAvg in which every client keeps its own norm layers.

Scales, shifts and running statistics of norm layers are never sent nor averaged; everything else
is FedAvg. On a network without norm layers it is FedAvg.
"""

from dataclasses import dataclass
from typing import ClassVar

from masquerade.core import ClientInfo, Message, Method, Part, Round, State, Task
from masquerade.core.tree import split
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class FedBN(Method):
    """Shared weights between personal norm layers."""

    views: ClassVar[tuple[str, ...]] = ("personal",)

    def server_init(self, task: Task) -> State:
        """Hold everything but norm layers."""
        # Differs: all kinds of norm layers are personal; the paper speaks of batch norm.
        _, rest = split(task.initial, task.norms)
        return {"params": rest}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold norm layers."""
        norms, _ = split(task.initial, task.norms)
        return {"norms": norms}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Put the own norm layers between the received weights."""
        return {"params": task.join(message["params"].values, client["norms"])}

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send everything but norm layers, and keep those."""
        norms, rest = split(work["params"], client["norms"])
        return {"params": Part(rest)}, {"norms": norms}

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the newest weights with the own norm layers."""
        return {"params": Part(task.join(message["params"].values, client["norms"]))}


ENTRIES = {
    "fedbn": MethodEntry(
        method=FedBN,
        view="personal",
        title="FedBN",
        paper="Li et al., 2021",
        personal="norm layers and their statistics",
        sent="all other weights",
        variant="bn",
        # The network of the laws has no norm layers.
        neutral={},
    ),
}
