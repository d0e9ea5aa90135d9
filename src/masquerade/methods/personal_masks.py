"""What methods share whose clients prune one global model, each to a mask of its own."""

from dataclasses import dataclass

from masquerade.core import mask, tree
from masquerade.core.method import Method
from masquerade.core.part import Message, Part
from masquerade.core.round import ClientInfo, Cohort, Round
from masquerade.core.task import Task
from masquerade.core.tree import State


@dataclass(frozen=True, kw_only=True)
class PersonalMasks(Method):
    """FedAvg inside masks: a client's is sent both ways, and a weight is averaged by holders."""

    def row_init(self, task: Task, info: ClientInfo) -> State:
        """Remember a client's mask, at first all weights; biases and norms have none."""
        names = mask.masked_names(task.layers, first_dense=False, biases_dense=True)
        return {"keep": mask.full({name: task.initial[name] for name in names})}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send the weights inside the client's mask."""
        return {"params": Part(tree.only(row["keep"], server["params"]), row["keep"])}

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send the weights and the mask."""
        return {"params": Part(work["params"], work["keep"])}, client

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Average over the holders, and remember their masks."""
        # Differs: the releases (LotteryFL, Sub-FedAvg) count every client equally; here, as in
        # FedAvg, samples weigh.
        new, _ = super().aggregate(task, server, rows, uploads, cohort, round)
        return new, {"keep": uploads["params"].keep}
