"""A method invented in front of your eyes, beside FedAvg on the embedded digits.

    python examples/new_method.py

Halfway: in every round a client meets the others halfway. It starts from the mean of the model it
receives and the model it had, trains, sends the result, and keeps it. It is from no paper.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from rich.console import Console
from torch import Tensor

import masquerade as mq
from masquerade.core import Message, State, tree
from masquerade.report import terminal


@dataclass(frozen=True, kw_only=True)
class Halfway(mq.Method):
    """FedAvg whose clients keep a share of their own model; with `own=0` it is FedAvg."""

    own: float = 0.5
    """Share of the own model in what a client starts from."""

    # What a training can be used as: the first is the default.
    views: ClassVar[tuple[str, ...]] = ("personal", "global")

    def client_init(self, task: mq.Task, info: mq.ClientInfo) -> State:
        """Hold a model of one's own."""
        return {"params": task.initial}

    def start(self, task: mq.Task, message: Message, client: State, round: mq.Round) -> State:
        """Meet halfway."""

        def meet(theirs: Tensor, mine: Tensor) -> Tensor:
            return torch.lerp(theirs, mine, self.own)

        return {"params": tree.each(meet, message["params"].values, client["params"])}

    def finish(
        self, task: mq.Task, work: State, message: Message, client: State, round: mq.Round
    ) -> tuple[Message, State]:
        """Send the trained model, and keep it."""
        return {"params": mq.Part(work["params"])}, {"params": work["params"]}

    def personalize(self, task: mq.Task, message: Message, client: State, view: str) -> Message:
        """Use the model that `start` has just composed, or the one received."""
        return message if view == "global" else {"params": mq.Part(client["params"])}


# The rest is FedAvg: `download` sends the server's model, `plan` trains it, `aggregate` averages.
# Both engines, the costs and the evaluation under shift come with it, and so does the command:
# `masquerade run --method examples/new_method.py:Halfway`. One seed and settings that nobody tuned:
# the table shows how to compare, not who is better. With 10 rounds for 20, FedAvg leads on own
# data.

if __name__ == "__main__":
    federation = mq.partition(mq.load("digits"), clients=20, by=mq.Dirichlet(0.3), seed=1)
    model = mq.models.build("mlp", (1, 8, 8), classes=10, seed=1)
    summaries = []
    for method in (mq.methods.FedAvg(), Halfway()):
        views = [view for view in method.views if view != "tuned"]
        result = mq.run(method, model, federation, rounds=20, views=views)
        summaries += result.summaries
    Console().print(terminal(summaries))
    # Is it right? Anybody's method is held to the laws that ours keep.
    Console().print(mq.check(Halfway()))
