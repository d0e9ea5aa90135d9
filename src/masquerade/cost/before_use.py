"""What a client has to be sent before it can use a view: the model as the server has it now."""

from dataclasses import replace

from torch import Tensor

from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.round import Round, client_round
from masquerade.core.task import Task
from masquerade.core.tree import State


def needed(method: Method, task: Task, message: Message, client: State, round: Round) -> Message:
    """Return the parts of a download that the model in use depends on.

    Each part is replaced by another in turn, and the round of use is played without a step. A part
    is needed if the model changes with it; a model that lies with its client, as Ditto's, does not.
    The phase is (view, novel).
    """

    def model(sent: Message) -> list[Tensor]:
        _, after = client_round(method, task, sent, client, lambda stage: (), round)
        return tree.leaves(method.personalize(task, sent, after, round.phase[0]))

    found = model(message)
    other = {
        name: replace(part, values=tree.each(_other, part.values)) for name, part in message.items()
    }
    return {
        name: part
        for name, part in message.items()
        if not all(map(_same, found, model(message | {name: other[name]})))
    }


def _other(values: Tensor) -> Tensor:
    """Return values that differ from these in every entry, and mostly in sign."""
    return -1 - values if values.is_floating_point() else ~values


def _same(left: Tensor, right: Tensor) -> bool:
    # What is averaged over no step may be no number.
    return bool(((left == right) | ((left != left) & (right != right))).all())
