"""DM-PFL and DM-PFL+ (Zhang, Zhou, Wang, Tong; KDD 2023): dual masks, one global, one personal.

    θ_g = w_g ⊙ m_g        θ_c = w_g ⊙ (m_g ∩ m_c) + w_c ⊙ (m_c − m_g)                      (Eq. 4)

`dual`      clients train θ_c inside m_c, prune by magnitude, regrow by gradient, send w_c and m_c;
            the server averages over the holders (Eq. 5) and takes m_g from the largest weights
            that more than 30 % of the sampled clients hold (Algorithm 1)
`global`    FedAvg inside the fixed m_g (Algorithm 2)
`personal`  each client trains m_c − m_g alone; nothing is sent up (Algorithm 3)

The three follow one another, `iterations` times. DM-PFL+ is the view `adaptive`: per sample, the
personal or the global model answers, by entropy and agreement (Algorithm 4).
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from masquerade.core import (
    Batch,
    Bounds,
    Choices,
    ClientInfo,
    Cohort,
    Message,
    Method,
    Part,
    Round,
    Stage,
    State,
    Task,
    Tree,
    mask,
    tree,
)
from masquerade.core.average import votes
from masquerade.methods.registry import MethodEntry

_update_mask, _trained = itemgetter("update_mask"), itemgetter("keep", "update_mask")
"""What of the work a step may change; and, for costs, what it multiplies by besides."""


@dataclass(frozen=True, kw_only=True)
class DMPFL(Method):
    """A sparse global model and sparse personal models that share weights where masks overlap."""

    sparsity: float = 0.5
    """Share of the weights of every masked layer that are zero (S)."""
    # Differs: the text says ERK; Table 4 fits a uniform sparsity with a dense first layer. Eq. 3
    # bounds all parameters, here the masked tensors are bounded, so the whole is a little denser.
    densities: str = "uniform"
    """How layers share the sparsity: all alike ("uniform"), or small layers denser ("erk")."""
    first_dense: bool = True
    """Whether the first layer stays dense."""
    biases_dense: bool = True
    """Whether biases stay dense."""
    # Differs: Algorithm 1 keeps m_c from round to round ("own"). Where a client begins from what it
    # receives ("global"), less of m_g is missing from θ_c, which is then more robust under shift.
    mask_start: str = "own"
    """Mask and weights that a client begins a dual round with: its "own", or the "global" ones that
    it receives, which needs a readjustment in every round."""
    # Differs: the paper gives neither ratio nor interval; this is RigL's, every third round, and
    # annealed over the whole run rather than anew in every iteration.
    readjust: float = 0.3
    """Share of a mask that a readjustment prunes and regrows (α_s)."""
    readjust_every: int = 3
    """Rounds from one readjustment to the next."""
    anneal: bool = True
    """Whether `readjust` falls by cosine to 0 over the run."""
    # Differs: the paper readjusts after the last epoch (`settle` 0); here the new mask is trained.
    settle: int = 1
    """Epochs at the end of a round that train inside the readjusted mask."""
    votes: float = 0.3
    """The global mask takes positions that more than this share of the sampled clients hold."""
    # Differs: the paper says "iteratively"; these shares give the communication of its Table 4,
    # and personal refine at the sampled clients, not at all, gives its FLOPs.
    iterations: int = 2
    """How many times training goes through the three phases."""
    phases: tuple[float, float, float] = (0.5, 0.25, 0.25)
    """Shares of the rounds: dual masks, global refine, personal refine."""
    # Differs: Algorithm 3 forgets the personal weights that its text keeps; keeping is the default.
    restart: bool = False
    """Whether personal refine starts the personal weights from zero (Algorithm 3, line 3)."""
    refine_lr_scale: float = 1.0
    """Factor on `lr` in personal refine."""
    # Differs: Algorithm 3 refines every client; in rounds that is every sampled one.
    refine_epochs: int = 0
    """Epochs of personal refine at every client before its model is used, besides those in
    rounds."""
    # Differs: the paper compares "outputs"; its entropies need probabilities, so these are taken.
    similarity: str = "probabilities"
    """What DM-PFL+ compares the two models by: the cosine of "probabilities" or of "logits"."""

    views: ClassVar[tuple[str, ...]] = ("personal", "adaptive", "global")
    bounds: ClassVar[Bounds] = {
        "sparsity": (0, 1 - 1e-9),
        "readjust": (0, 1),
        "readjust_every": (1, math.inf),
        "settle": (0, math.inf),
        "votes": (0, 1),
        "iterations": (1, math.inf),
        "refine_lr_scale": (0, math.inf),
        "refine_epochs": (0, math.inf),
    }
    choices: ClassVar[Choices] = {
        "densities": ("uniform", "erk"),
        "mask_start": ("own", "global"),
        "similarity": ("probabilities", "logits"),
    }

    def problems(self) -> list[str]:
        """Refuse phases that are not three shares, and masks that begin anew and never differ."""
        found = []
        if not (len(self.phases) == 3 and min(self.phases) >= 0 and sum(self.phases) > 0):
            text = "give 3 values, none negative, some more than 0"
            found.append(f"`method.phases` is {self.phases}; {text}")
        if self.mask_start == "global" and not (self.readjust and self.readjust_every == 1):
            text = "masks begin as m_g in every dual round and would stay it"
            found.append(f"`method.mask_start` is global: {text}; set `readjust_every` to 1")
        return found

    def schedule(self, number: int, rounds: int) -> Hashable:
        """Return ("dual", whether masks are readjusted), ("global",) or ("personal", iteration)."""
        dual, refine, _ = (share / sum(self.phases) for share in self.phases)
        some = [int(share > 0) for share in self.phases]
        # A short run has fewer iterations, so that each of them has a round of every phase.
        iterations = max(1, min(self.iterations, rounds // sum(some)))
        iteration = number * iterations // rounds
        first, after = (-(-turn * rounds // iterations) for turn in (iteration, iteration + 1))
        length, place = after - first, number - first
        ends = [math.ceil(share * length - 0.5 - 1e-9) for share in (dual, dual + refine)]
        to_global = max(some[0], min(ends[0], length - some[1] - some[2]))
        to_personal = max(to_global + some[1], min(ends[1], length - some[2]))
        if place < to_global:
            return "dual", self.readjust > 0 and number % self.readjust_every == 0
        return ("global",) if place < to_personal else ("personal", iteration)

    def counts(self, task: Task) -> dict[str, int]:
        """Return how many entries of every masked tensor are kept."""
        return mask.budget(task, self.sparsity, self.densities, self.first_dense, self.biases_dense)

    def first_mask(self, task: Task) -> Tree:
        """Prune the initial weights by magnitude: the same mask for the server and every client."""
        # Differs: the paper does not say how masks begin.
        return mask.top_by_layer(tree.each(torch.abs, task.initial), self.counts(task))

    def server_init(self, task: Task) -> State:
        """Hold dense weights w_g and the mask m_g."""
        return {"params": task.initial, "keep": self.first_mask(task)}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold weights w_c, the mask m_c, and the iteration whose personal refine has begun."""
        keep = self.first_mask(task)
        begun = torch.tensor(-1, device=next(iter(task.initial.values())).device)
        return {"params": tree.only(keep, task.initial), "keep": keep, "begun": begun}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send m_g and w_g ⊙ m_g."""
        return {"params": Part(tree.only(server["keep"], server["params"]), server["keep"])}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Compose θ_c as Eq. 4 says; θ_g where it is refined or masks start from m_g."""
        received, ours, mine = message["params"].values, message["params"].keep, client["keep"]
        phase = _phase(round)
        if phase == "global" or (phase == "dual" and self.mask_start == "global"):
            return {"params": received, "keep": ours, "update_mask": ours}
        own, begun = client["params"], client["begun"]
        if self.restart and (phase == "personal" or (phase == "use" and self.refine_epochs)):
            again = begun == round.phase[1] if phase == "personal" else begun >= 0
            own = {name: torch.where(again, value, 0) for name, value in own.items()}
        params = tree.only(mine, tree.where(ours, received, own))
        # Differs: what has no mask (first layer, biases, norms) is shared, so it is frozen there.
        update_mask = mine if phase == "dual" else mask.beyond(mine, ours, params)
        work = {"params": params, "keep": mine, "update_mask": update_mask}
        if _view(round) == "adaptive":
            zero = torch.zeros((), dtype=task.dtype, device=begun.device)
            work |= {"global": received, "entropy": torch.stack([zero, zero]), "seen": zero}
        return work

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train inside the phase's mask; readjust it before the last `settle` epochs."""
        if round.phase[0] == "personal":
            return (self._refine(task, self.local_epochs),)
        step = self.sgd_step(task, within=_update_mask)
        if round.phase != ("dual", True):
            return (Stage("train", step, self.local_epochs, masks=_trained),)
        search = max(1, self.local_epochs - self.settle)
        dense = self.sgd_step(task, within=_update_mask, gradient=True)
        return (
            Stage("search", dense, search, then=self._readjust, masks=mask.searched),
            Stage("settle", step, self.local_epochs - search, epoch=search, masks=_trained),
        )

    def adapt(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Refine θ_c, and measure the base entropies for the view `adaptive`."""
        # Differs: the paper does not say on which data. Where a client has no validation data it
        # is its training data, on which θ_c is too sure.
        refine = self._refine(task, self.refine_epochs)
        base = Stage(
            "base entropies", self._base_entropies(task), data="validation", masks=mask.seen
        )
        refines = self.refine_epochs > 0 and _view(round) != "global"
        return (refine,) * refines + (base,) * (_view(round) == "adaptive")

    def _refine(self, task: Task, epochs: int) -> Stage:
        """Train the personal weights alone (Algorithm 3)."""
        step = self.sgd_step(task, within=_update_mask, lr=self.lr * self.refine_lr_scale)
        return Stage("refine", step, epochs, masks=_trained)

    def _readjust(self, work: State, round: Round) -> State:
        """Prune α_s of each layer's mask by magnitude, regrow as many by gradient."""
        # Differs: the paper does not say whose gradient; the last batch's is the one at hand.
        ratio = torch.full_like(round.progress, self.readjust)
        if self.anneal:
            ratio = mask.annealed(self.readjust, round.progress)
        work = mask.readjust(work, ratio)
        return {**work, "update_mask": work["keep"]}

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send w_c and m_c, or the refined w_g, or nothing; keep w_c and m_c."""
        phase, params, keep = _phase(round), work["params"], work["keep"]
        if phase == "global":
            return {"params": Part(params, keep)}, client
        held = {"params": params, "keep": keep, "begun": client["begun"]}
        if phase == "dual":
            return {"params": Part(params, keep)}, held
        if round.kind == "train":
            held["begun"] = torch.full_like(client["begun"], round.phase[1])
        elif _view(round) == "adaptive":
            held["base"] = work["entropy"] / work["seen"].clamp(min=1)
        return {}, held

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Average over the holders (Eq. 5); after dual rounds, choose m_g anew.

        w_g stays dense here: a position that nobody holds keeps its value.
        """
        if not uploads:
            return server, rows
        params = cohort.average(uploads["params"], server["params"])
        keep = server["keep"]
        if _phase(round) == "dual":
            keep = {}
            for name, count in self.counts(task).items():
                # Differs: the paper does not say whether votes are weighted (they are not) nor
                # whether layers share the budget (each has its own).
                wanted = votes(uploads["params"].keep[name]) > self.votes * cohort.asked + 1e-9
                # With too few candidates the mask is sparser: no position enters without votes.
                keep[name] = wanted & mask.top(torch.where(wanted, params[name].abs(), -1), count)
        return {"params": params, "keep": keep}, rows

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use θ_c, or θ_g, or both with their base entropies; weights they share are held once."""
        received, mine = message["params"], client["keep"]
        if view == "global":
            return {"params": received}
        personal = {"params": Part(client["params"], mine)}
        if view == "adaptive":
            rest = mask.beyond(received.keep, mine, received.values)
            personal["rest"] = Part(tree.only(rest, received.values), rest)
            personal["shared"] = Part(mask.both(received.keep, mine))
            personal["base"] = Part({"entropy": client["base"]})
        return personal

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        """Answer by θ_c, unless adaptive inference finds θ_g the surer one (Algorithm 4)."""
        mine = personal["params"].values
        if "base" not in personal:
            return task(mine, x)[0]
        rest = personal["rest"]
        ours = tree.where(rest.keep, rest.values, tree.only(personal["shared"].values, mine))
        own, common = task(mine, x)[0], task(ours, x)[0]
        base = personal["base"].values["entropy"]
        pair = (own, common)
        if self.similarity == "probabilities":
            pair = (own.softmax(-1), common.softmax(-1))
        shift = 1 - cosine_similarity(*pair, dim=-1)
        surer = _entropy(own) - shift * base[0] < _entropy(common) - shift * base[1]
        return torch.where(surer[..., None], own, common)

    def limit(self, task: Task, info: ClientInfo) -> dict[str, dict[str, int]]:
        """Bound both the personal model and the upload by the sparsity."""
        return {"use": self.counts(task), "upload": self.counts(task)}

    @staticmethod
    def _base_entropies(task: Task) -> Callable[[State, Batch, Round], State]:
        """Add up the entropies of both models on data that is not shifted."""

        def step(work: State, batch: Batch, round: Round) -> State:
            models = (work["params"], work["global"])
            found = [batch.total(_entropy(task(each, batch.x)[0])) for each in models]
            seen = work["seen"] + batch.count().to(work["seen"].dtype)
            return {**work, "entropy": work["entropy"] + torch.stack(found), "seen": seen}

        return step


def _entropy(output: Tensor) -> Tensor:
    return -(output.softmax(-1) * output.log_softmax(-1)).sum(-1)


def _phase(round: Round) -> str:
    """Return "dual", "global" or "personal"; models in use are composed as in the last."""
    return str(round.phase[0]) if round.kind == "train" else "use"


def _view(round: Round) -> str | None:
    return str(round.phase[0]) if round.kind == "adapt" else None


_NEUTRAL = {"sparsity": 0.0, "readjust": 0.0, "phases": (1.0, 0.0, 0.0), "iterations": 1}

ENTRIES = {
    "dmpfl": MethodEntry(
        method=DMPFL,
        view="personal",
        title="DM-PFL",
        paper="Zhang et al., 2023",
        personal="mask, and weights outside the global mask",
        sent="weights inside a mask, and the mask",
        neutral=_NEUTRAL,
    ),
    "dmpfl_plus": MethodEntry(
        method=DMPFL,
        view="adaptive",
        title="DM-PFL+",
        paper="Zhang et al., 2023",
        personal="as DM-PFL, beside the global model",
        sent="as DM-PFL",
        neutral=_NEUTRAL,
    ),
}
