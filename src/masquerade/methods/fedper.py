"""FedPer (Arivazhagan et al., 2019): base layers are shared, the last layers are each client's own.

In a round a client joins the base it received with its own personal layers, trains all of them
together, sends the base and keeps the rest. Personal layers are never sent nor averaged.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from masquerade.core import Bounds, ClientInfo, Message, Method, Part, Round, State, Task
from masquerade.core.tree import split
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class FedPer(Method):
    """A shared body under personal heads, trained together."""

    personal_layers: int = 1
    """How many of the last layers are personal (K_P)."""

    views: ClassVar[tuple[str, ...]] = ("personal",)
    bounds: ClassVar[Bounds] = {"personal_layers": (0, math.inf)}

    def server_init(self, task: Task) -> State:
        """Hold the body alone."""
        body, _ = task.divide(self.personal_layers)
        return {"params": body}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold a head; all clients begin with the same one."""
        # Differs: the paper lets every client draw its own initial head.
        _, head = task.divide(self.personal_layers)
        return {"head": head}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Put the received body under the own head."""
        return {"params": task.join(message["params"].values, client["head"])}

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send the body, keep the head."""
        head, body = split(work["params"], client["head"])
        return {"params": Part(body)}, {"head": head}

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the newest body under the own head."""
        return {"params": Part(task.join(message["params"].values, client["head"]))}


ENTRIES = {
    "fedper": MethodEntry(
        method=FedPer,
        view="personal",
        title="FedPer",
        paper="Arivazhagan et al., 2019",
        personal="the last layers",
        sent="the others",
        neutral={"personal_layers": 0},
    ),
}
