"""What methods share whose clients use a copy of the model, fine-tuned just before use."""

from dataclasses import dataclass

from masquerade.core import Message, Method, Part, Round, State, Task


@dataclass(frozen=True, kw_only=True)
class FineTuned(Method):
    """FedAvg in which `adapt` makes the model that is used, and training never sees it."""

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Hand a fine-tuned copy to `personalize`; a training round keeps nothing."""
        if round.kind == "adapt":
            return {}, {"params": work["params"]}
        return super().finish(task, work, message, client, round)

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the copy; where `adapt` has no stage for a view, it is the shared model."""
        return {"params": Part(client["params"])}
