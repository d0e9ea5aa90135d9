"""Local: every client trains alone on its own data, and nothing is sent."""

from dataclasses import dataclass
from typing import ClassVar

from masquerade.core import Cohort, Message, Method, Part, Round, State, Task, Who


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Training without a federation, in the rounds in which a client is sampled."""

    views: ClassVar[tuple[str, ...]] = ("personal",)

    def server_init(self, task: Task) -> State:
        """Hold nothing."""
        return {}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send nothing."""
        return {}

    def aggregate(
        self,
        task: Task,
        server: State,
        rows: State,
        uploads: Message,
        cohort: Cohort,
        round: Round,
    ) -> tuple[State, State]:
        """Receive nothing."""
        return server, rows

    def client_init(self, task: Task, who: Who) -> State:
        """Start where everybody starts."""
        return {"params": task.initial}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Go on with the own model."""
        return {"params": client["params"]}

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Keep the own model."""
        return {}, {"params": work["params"]}

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the own model."""
        return {"params": Part(client["params"])}
