"""A method: what lives where, and the functions between the places. FedAvg is the default of each.

| place     | who sees it                                | what it costs         |
|-----------|--------------------------------------------|-----------------------|
| `server`  | the server only                            |                       |
| `row`     | the server, one per client                 |                       |
| `client`  | that client only, never sent               | storage on the device |
| `message` | crosses the wire: a dict of parts          | bytes                 |
| `work`    | inside one client's round                  | memory and FLOPs      |

The signatures keep the places apart: nothing at the server can receive a `client`, nothing at a
client a `server` or another client's `row`.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from torch import Tensor

from masquerade.core.old_words import refuse_unknown
from masquerade.core.part import Message, Part
from masquerade.core.round import ClientInfo, Cohort, Round, Stage
from masquerade.core.sgd import Loss, SGDStep, sgd_step
from masquerade.core.task import Task
from masquerade.core.tree import State
from masquerade.errors import MasqueradeError, told

Bounds = Mapping[str, tuple[float, float]]
Choices = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Method:
    """Federated averaging (McMahan et al., 2017); every other method is its difference from this.

    Fields are hyperparameters and nothing else.
    """

    lr: float = 0.1
    """Learning rate of a client's SGD (η); multiplied by the run's decay."""
    local_epochs: int = 5
    """Passes over a client's training data in a round (E)."""
    momentum: float = 0.0
    """Momentum of SGD; begun anew in every round."""
    weight_decay: float = 0.0
    """Weight decay of SGD: how strongly weights are pulled toward zero."""
    clip: float = math.inf
    """Largest norm of a gradient; a longer one is scaled down to it."""

    views: ClassVar[tuple[str, ...]] = ("global",)
    """The ways of using what was trained, by name; the first is the default."""
    prior: ClassVar[tuple[str, ...]] = ()
    """Rules on outputs that its views are evaluated under too where `evaluate.prior` names none."""
    bounds: ClassVar[Bounds] = {
        "lr": (0, math.inf),
        "local_epochs": (1, math.inf),
        "momentum": (0, 1),
        "weight_decay": (0, math.inf),
        "clip": (1e-30, math.inf),
    }
    """The least and the most of a setting that is a number; a class states those of its own."""
    choices: ClassVar[Choices] = {}
    """The words that a setting may be; a class states those of its own."""
    budgeted: ClassVar[bool] = False
    """Whether a client's model is as small as its budget asks (`ClientInfo.budget`)."""
    joins: ClassVar[bool] = True
    """Whether a client that comes after training does one round, sending nothing, before it uses a
    model; otherwise `adapt` has its rule for a phase (view, True)."""

    foreseen: ClassVar[bool] = True
    """Whether masks keep about the size of their first round, so that a forecast holds."""

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Refuse settings that it does not have; `__init__` takes those that it has."""
        _refuse_undecorated(cls, settings)
        refuse_unknown(cls, "method", settings)
        _refuse_bare_values(cls)
        return super().__new__(cls)

    def problems(self) -> list[str]:
        """Say what is wrong with settings that fit their bounds and do not fit one another."""
        return []

    def schedule(self, number: int, rounds: int) -> Hashable:
        """Name the phase of a round: static, and the same for every client."""
        return "train"

    def server_init(self, task: Task) -> State:
        """Return what the server holds before round 0."""
        return {"params": task.initial}

    def row_init(self, task: Task, info: ClientInfo) -> State:
        """Return what the server knows of one client before round 0."""
        return {}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Return what one client is sent."""
        return {"params": Part(server["params"])}

    def aggregate(
        self,
        task: Task,
        server: State,
        rows: State,
        uploads: Message,
        cohort: Cohort,
        round: Round,
    ) -> tuple[State, State]:
        """Return the new server and rows from stacked rows and uploads [clients, …]."""
        params = cohort.average(uploads["params"], server["params"])
        return {"params": params}, rows

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Return what one client holds before its first round."""
        return {}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Return the work of a round from what was received and what the client holds."""
        return {"params": message["params"].values}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """List the stages of a training round; only the static facts of `round` may decide."""
        return (Stage("train", self.sgd_step(task), self.local_epochs),)

    def setup(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """List the stages of a client's setup, before its first round; none by default."""
        return ()

    def adapt(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """List the stages that a client needs before it can use the view `round.phase[0]`."""
        return ()

    def stages(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """List the stages of a round of any kind."""
        lists = {"train": self.plan, "setup": self.setup, "adapt": self.adapt}
        stages = lists[round.kind](task, round.static)
        if not isinstance(stages, (tuple, list)) or not all(isinstance(s, Stage) for s in stages):
            name = "plan" if round.kind == "train" else round.kind
            text = f"`{name}` returned {told(stages)}; return a tuple of stages"
            raise MasqueradeError("E205", f"{text}: (mq.Stage(...),), or () for none")
        names = [stage.name for stage in stages]
        if len(set(names)) < len(names):
            listed = ", ".join(names)
            raise MasqueradeError("E202", f"two stages have one name ({listed}); rename one")
        return tuple(stages)

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Return the upload and what the client holds from now on."""
        return {"params": Part(work["params"])}, client

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Return the parts of the model that this client uses."""
        return {"params": message["params"]}

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        """Return the outputs for x, each from its own sample alone."""
        return task(personal["params"].values, x)[0]

    def contains_mix(self, view: str) -> bool:
        """Say whether outputs of a view have the client's label mix added, as logits + log mix.

        Rules on outputs then take it out again; otherwise they fit how much of it is in them.
        """
        return False

    def limit(self, task: Task, info: ClientInfo) -> dict[str, dict[str, int]]:
        """Return the most entries of a tensor, by what holds them: "use" and "upload".

        "use" is the model of the default view. A method whose clients send masks in their "setup"
        bounds these by an entry of that name. The tensor "" stands for all that are sent masked.
        """
        return {"use": {}, "upload": {}}

    def notes(self, task: Task, personal: Message) -> dict[str, Tensor]:
        """Return what a report may draw of a personal model."""
        return {}

    def sgd_step(self, task: Task, loss: Loss | None = None, **changes: Any) -> SGDStep:
        """Build the SGD step that this method's settings describe, some of them changed."""
        settings: dict[str, Any] = {
            "lr": self.lr,
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
            "clip": self.clip,
        }
        return sgd_step(task, loss, **(settings | changes))


def _refuse_undecorated(cls: type[Method], given: Iterable[str]) -> None:
    """Refuse a setting that a class declares and does not have, as it was made no dataclass."""
    known = {each.name for each in fields(cls)}
    for name in given:
        if name in vars(cls).get("__annotations__", {}) and name not in known:
            text = f"{cls.__name__}: `{name}` is declared, and the class is no dataclass, so that"
            how = "put @dataclass(frozen=True, kw_only=True) on the class"
            raise MasqueradeError("E201", f"{text} it is no setting; {how}")


def _refuse_bare_values(cls: type[Method]) -> None:
    """Refuse a class that writes a setting as a plain attribute: no instance would have it."""
    for each in fields(cls):
        value = vars(cls).get(each.name, each.default)
        if value is not each.default:
            given, kind = f"{each.name} = {value!r}", type(value).__name__
            text = f"{cls.__name__}: `{given}` changes no default, so that no method would have it"
            how = "put @dataclass(frozen=True, kw_only=True) on the class, and write"
            raise MasqueradeError("E201", f"{text}; {how} `{each.name}: {kind} = {value!r}`")
