"""FedSelect (Tamirisa et al., 2023): each client selects which entries of the model are its own.

    θ_c = where(m_c, v_c, u)     m_c = 1: personal, never sent; m_c = 0: shared and averaged

GradLTN   from θ_0 and a mask of ones: train inside the mask, keep the share p of the largest
          changes |θ − θ_0| inside it, rewind to θ_0; L prunings in every round (Algorithm 1)
LocalAlt  passes over v_c and over u take turns; u is sent, and averaged over those who share an
          entry (Algorithm 2)

`fedselect_grow` is the later variant: masks begin empty, and every few rounds the shared entries
that changed most become personal.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from masquerade.core import mask, tree
from masquerade.core.method import Bounds, Choices, Method
from masquerade.core.part import Message, Part
from masquerade.core.round import Batch, ClientInfo, Cohort, Round, Stage
from masquerade.core.task import Task
from masquerade.core.tree import State, Tree
from masquerade.methods.fedselect import halves
from masquerade.methods.registry import MethodEntry


@dataclass(frozen=True, kw_only=True)
class FedSelect(Method):
    """Personal and shared entries in one model; `local_epochs` are those of LocalAlt."""

    select: str = "tickets"
    """How masks are found: by a search for lottery tickets in every round ("tickets", GradLTN), or
    by making more entries personal every few rounds ("growth")."""
    personal_share: float = 0.5
    """Share of entries that stay personal at each pruning (p)."""
    # Differs: the paper's words fit both; it does not say whether tensors compete.
    share_of: str = "all"
    """What `personal_share` is a share of: "all" entries, or "survivors", so that it compounds."""
    ranking: str = "tensor"
    """Which entries are ranked together: those of each "tensor", or all ("overall")."""
    iterations: int = 5
    """Prunings in a round (L); there is one training more than prunings."""
    search_epochs: int = 5
    """Passes over the training data in each training of the search (E)."""
    stop: str = "iterations"
    """What may end the search sooner: nothing ("iterations"), a "share" or an "accuracy"."""
    target_share: float = 0.1
    """With stop = "share": the least share of entries that prunings leave personal."""
    target_accuracy: float = 90.0
    """With stop = "accuracy": a mask is pruned only if its model reaches this on validation
    data."""
    rewind: bool = True
    """Whether weights go back to θ_0 after the search; otherwise the trained ones stay (θ_L)."""
    grow: float = 0.25
    """With select = "growth": share of a tensor's shared entries that become personal at a time."""
    grow_every: int = 3
    """With select = "growth": rounds from one growth to the next; none in round 0."""
    grow_target: float = 0.8
    """With select = "growth": largest share of a tensor that becomes personal."""
    # Differs: the paper does not speak of norms; the release keeps their buffers local.
    norms: str = "masked"
    """Parameters of norms are "masked" as all others, or whole: "shared" or "personal"."""
    buffers: str = "local"
    """Buffers, such as running means, stay "local" or are "averaged"."""

    views: ClassVar[tuple[str, ...]] = ("personal",)
    foreseen: ClassVar[bool] = False
    bounds: ClassVar[Bounds] = {
        **dict.fromkeys(("personal_share", "target_share", "grow", "grow_target"), (0, 1)),
        **dict.fromkeys(("iterations", "search_epochs", "grow_every"), (1, math.inf)),
        "target_accuracy": (0, math.inf),
    }
    choices: ClassVar[Choices] = {
        "select": ("tickets", "growth"),
        "share_of": ("survivors", "all"),
        "ranking": ("tensor", "overall"),
        "stop": ("iterations", "share", "accuracy"),
        "norms": ("masked", "shared", "personal"),
        "buffers": ("local", "averaged"),
    }

    def schedule(self, number: int, rounds: int) -> str:
        """Name the rounds at whose end masks grow."""
        grows = self.select == "growth" and number > 0 and number % self.grow_every == 0
        return "grow" if grows else "train"

    def server_init(self, task: Task) -> State:
        """Hold u, dense, without what never leaves a client."""
        return {"params": halves.split(task, self.norms, self.buffers)[2]}

    def row_init(self, task: Task, info: ClientInfo) -> State:
        """Share everything with a client that has no mask yet."""
        # Differs: Algorithm 2 writes into such clients by the union of the *personal* masks.
        return {"shared": mask.full(halves.split(task, self.norms, self.buffers)[0])}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold v_c, nothing at first, and what is never sent."""
        masked, private, _ = halves.split(task, self.norms, self.buffers)
        return {"own": Part({**masked, **private}, halves.invert(mask.full(masked)))}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send u on the entries that this client shares."""
        return {"params": Part(server["params"], row["shared"])}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Compose θ_c; a search starts from it with a mask of ones."""
        params, personal = halves.compose(client["own"], message["params"]), client["own"].keep
        own = {name: params[name] for name in client["own"].values if task.trainable(name)}
        work = {"own": own, "shared": params, "personal": personal}
        if round.kind == "train" and self.select == "tickets":
            some = next(iter(own.values()))
            zero = some.new_zeros((), dtype=torch.float64)
            work |= {
                "personal": mask.full(personal),
                "going": zero == 0,
                "score": zero,
                "seen": zero,
            }
        return work

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Find the mask, then train both halves in turn."""
        search = self._search(task) if self.select == "tickets" else ()
        return (*search, *halves.alternate(self, task))

    def _search(self, task: Task) -> Iterator[Stage]:
        """Train L + 1 times and prune L times (Algorithm 1); what is not trained keeps θ_0."""
        within = None if self.stop == "iterations" else _waiting
        step, epochs = halves.step(self, task, "own", within=within), self.search_epochs
        for turn in range(self.iterations + 1):
            yield Stage(
                f"ticket {turn}",
                step,
                epochs,
                begin=partial(self.prune, task) if turn else _same,
                then=self._return if turn == self.iterations else _same,
                stream=2,
                epoch=turn * epochs,
                masks=_searched,
            )
            if self.stop == "accuracy" and turn < self.iterations:
                yield Stage(f"measure {turn}", _measure(task), data="validation", masks=_measured)

    def prune(self, task: Task, work: State, round: Round) -> State:
        """Keep the largest changes γ = |θ − θ_0| ⊙ m, and rewind to θ_0."""
        begun, held, going = work["shared"], work["personal"], work["going"]
        left = mask.shrink(
            held,
            {name: (work["own"][name] - begun[name]).abs() for name in held},
            self.personal_share,
            of_all=self.share_of == "all",
            overall=self.ranking == "overall",
            least=self.target_share if self.stop == "share" else 0.0,
        )
        if self.stop == "accuracy":
            sign = 1 if task.better == "higher" else -1
            going = going & (sign * (work["score"] - self.target_accuracy * work["seen"]) >= 0)
        personal = {name: mine & (left[name] | ~going) for name, mine in held.items()}
        if self.stop != "iterations":
            # A mask that shrinks no more is found; such a client waits while others search on.
            fell = [(mine & ~personal[name]).any() for name, mine in held.items()]
            going = going & torch.stack(fell).any()
        zero = torch.zeros_like(work["score"])
        work = {**work, "personal": personal, "going": going, "score": zero, "seen": zero}
        return self._rewound(work, going)

    def _return(self, work: State, round: Round) -> State:
        """Hand θ_0 or θ_L to LocalAlt."""
        return self._rewound(work, torch.full_like(work["going"], self.rewind))

    def _rewound(self, work: State, where: Tensor) -> State:
        """Put the own half back to θ_0 where the condition holds; its momentum begins anew."""
        begun = work["shared"]
        own = {name: torch.where(where, begun[name], now) for name, now in work["own"].items()}
        work = {**work, "own": own}
        if self.momentum:
            work["momentum"] = {"own": tree.zeros(work["momentum"]["own"])}
        return work

    def _grown(self, work: State, begun: Tree) -> State:
        """Make the shared entries of each tensor that changed most in this round personal."""
        # Differs: the release measures changes from one growth to the next, averaging included.
        own, shared, personal = {**work["own"]}, work["shared"], {}
        for name, mine in work["personal"].items():
            wanted = torch.floor((~mine).sum().double() * self.grow + 1e-9)
            room = math.floor(mine.numel() * self.grow_target + 1e-9) - mine.sum()
            count = torch.minimum(wanted, room.double()).to(torch.int64)
            personal[name] = mask.regrow(mine, (shared[name] - begun[name]).abs(), count)
            own[name] = torch.where(mine, own[name], shared[name])
        return {**work, "own": own, "personal": personal}

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send u on what is shared from now on; keep v_c and what is never sent."""
        if round.phase == "grow":
            work = self._grown(work, halves.compose(client["own"], message["params"]))
        own, shared, personal = work["own"], work["shared"], work["personal"]
        sent = {name: shared[name] for name in message["params"].values}
        held = {name: own.get(name, shared[name]) for name in client["own"].values}
        upload = Part(sent, halves.invert(personal))
        return {"params": upload}, {"own": Part(tree.only(personal, held), personal)}

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Average u over those who share an entry; remember what each shares."""
        params = cohort.average(uploads["params"], server["params"])
        return {"params": params}, {"shared": uploads["params"].keep}

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use θ_c, in its two halves."""
        return {"own": client["own"], "shared": message["params"]}

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        """Answer by θ_c."""
        return task(halves.compose(personal["own"], personal["shared"]), x)[0]

    def limit(self, task: Task, info: ClientInfo) -> dict[str, dict[str, int]]:
        """Bound uploads by what L prunings leave shared; masks that grow begin by sharing all."""
        if self.select == "growth":
            return {"use": {}, "upload": {}}
        masked = halves.split(task, self.norms, self.buffers)[0]
        sizes = {name: value.numel() for name, value in masked.items()}
        if self.ranking == "overall":
            sizes = {"": sum(sizes.values())}
        most = {name: size - self.least_personal(size) for name, size in sizes.items()}
        return {"use": {}, "upload": most}

    def least_personal(self, size: int) -> int:
        """Return how many of so many entries are personal after all prunings of a round."""
        left = size
        least = math.ceil(size * self.target_share - 1e-9) if self.stop == "share" else 0
        for _ in range(self.iterations):
            base = size if self.share_of == "all" else left
            left = min(left, max(math.floor(base * self.personal_share + 1e-9), least))
        return left


def _same(work: State, round: Round) -> State:
    return work


def _measure(task: Task) -> Callable[[State, Batch, Round], State]:
    """Add up the metric of a ticket."""

    def step(work: State, batch: Batch, round: Round) -> State:
        output = task(halves.model(work), batch.x)[0]
        score = work["score"] + batch.total(task.metric(output, batch.y))
        return {**work, "score": score, "seen": work["seen"] + batch.count()}

    return step


def _waiting(work: State) -> Tree:
    """Freeze all of a client whose search has ended."""
    going: Tensor = work["going"]
    return dict.fromkeys(work["own"], going)


def _searched(work: State) -> tuple[Tree, Tree]:
    """Count the gradient of the ticket alone, and nothing once a search has ended."""
    forward, _ = _measured(work)
    going = work["going"]
    gradient = {
        name: mine & going.reshape(*going.shape, *[1] * (mine.ndim - going.ndim))
        for name, mine in work["personal"].items()
    }
    return forward, gradient


def _measured(work: State) -> tuple[Tree, None]:
    going: Tensor = work["going"][..., None]
    return dict.fromkeys(("", *work["personal"]), going), None


ENTRIES = {
    "fedselect": MethodEntry(
        method=FedSelect,
        view="personal",
        title="FedSelect",
        paper="Tamirisa et al., 2023",
        personal="a mask, and the weights inside it",
        sent="weights outside the own mask, and the mask",
        neutral={"personal_share": 0.0, "stop": "iterations"},
    ),
    "fedselect_grow": MethodEntry(
        method=FedSelect,
        view="personal",
        title="FedSelect, growing",
        paper="Tamirisa et al., 2024",
        personal="as FedSelect, in a mask that grows",
        sent="as FedSelect",
        settings=(("select", "growth"),),
        neutral={"grow": 0.0},
    ),
}
