"""Whether a model that was read is one that a method makes of a network.

Hashes do not tell: whoever puts another model there can write its hash too.
"""

import torch
from torch import Tensor

from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.round import ClientInfo, Round, client_round
from masquerade.core.task import Task
from masquerade.errors import MasqueradeError, brief

NONE = "no tensor"


def check_fits(parts: Message, name: str, method: Method, task: Task, view: str) -> None:
    """Refuse the model of the file `name` if it is of another network or method, and say why."""
    ours, theirs = _described(before_training(method, task, view)), _described(parts)
    faults = [
        f"`{place}` is {theirs.get(place, NONE)} and not {ours.get(place, NONE)}"
        for place in dict.fromkeys((*ours, *theirs))
        if ours.get(place) != theirs.get(place)
    ]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        text = f"{name} is no model of this run, though its hash fits: {', '.join(faults[:3])}"
        raise MasqueradeError("E401", f"{text}{more}. Put an intact copy of it there.")


def before_training(method: Method, task: Task, view: str) -> Message:
    """Return the model of a client that has not been trained: its tensors are named as later."""
    info = ClientInfo(0, 1, 0, 1.0)
    round = Round.of("adapt", (view, False), 0, 1, 1.0, torch.device("cpu"))
    row, client = method.row_init(task, info), method.client_init(task, info)
    message = method.download(task, method.server_init(task), row, round)
    _, after = client_round(method, task, message, client, lambda stage: (), round)
    return method.personalize(task, message, after, view)


def _described(parts: Message) -> dict[str, str]:
    """Return what every tensor looks like, and what every bit of a mask covers."""
    found: dict[str, str] = {}
    for part, held in parts.items():
        for field, tensors in (("values", held.values), ("keep", held.keep)):
            found |= {f"{part}/{field}/{name}": _shape(each) for name, each in tensors.items()}
        found |= {f"{part}/grain/{n}": brief(held.grain_of(n), 60) for n in held.keep}
    return found


def _shape(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
