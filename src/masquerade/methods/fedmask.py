"""FedMask (Li et al., SenSys 2021): every client learns bits over frozen random weights.

    y = (W ⊙ m) x        m = [σ(m^r) ≥ ½]        ∂L/∂m^r = σ(m^r)(1 − σ(m^r)) ⊙ ∂L/∂m      (Eq. 2–8)

`setup`      one epoch, then the last layers keep the share p_r where W · m^r changed most: the
             structure
`train`      bits become scores, or a client's own scores go on; they are trained under a group
             lasso (Eq. 9–10), and bits are sent
`aggregate`  the rounded mean bit where two structures overlap or more; elsewhere nothing changes

W is `task.initial`, which a seed gives, so what a client uses is a seed and its bits.
"""

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

import torch
from torch import Tensor

from masquerade.core import Bounds, Choices, Message, Method, Part, Task, mask, tree
from masquerade.core.round import Batch, ClientInfo, Cohort, Round, Stage
from masquerade.core.sgd import Losses, SGDStep
from masquerade.core.tree import State, Tree
from masquerade.methods.registry import MethodEntry

TINY = 1e-30
"""The least square of a norm, below that of any group that has a score."""


@dataclass(frozen=True, kw_only=True)
class FedMask(Method):
    """Personal structures in the last layers, shared bits where they overlap."""

    density: float = 0.2
    """Share of a pruned layer's weights that its structure keeps (p_r); with `keep_off` less those
    whose bits are off after the setup, about half of them where scores are spread."""
    pruned_layers: int = 2
    """How many of the last layers are pruned to a structure; real layers count and are not pruned.
    With 0 there is no setup."""
    # Differs: §3.4 rejects |W · m^r| for its change, Algorithm 1 has it, and §3.4 also W · m^r.
    prune_by: str = "change"
    """Which weights a structure keeps: those whose W · m^r changed most in size in the setup
    ("change"), is largest in size ("size"), or is largest ("value")."""
    # Algorithm 1 multiplies what is received by the pruned bits (line 11): zeros among them stay.
    keep_off: bool = True
    """Whether bits of pruned layers that are off after pruning stay off for good."""
    # Differs: the paper does not say what m^0 is, and what scores a round begins with. Where all
    # bits are on and all scores equal, many flip in the same step, and all that can flip go off.
    scores: str = "spread"
    """How scores begin: "equal", all ±scale, bits being on at first; or "spread", from near zero to
    twice their mean by the sizes drawn, half of the bits being on at first."""
    scale: float = 2.0
    """How large scores are that begin anew (c): scale if they are "equal", for which 0.001 serves;
    from 0 to c = scale / √entries of their tensor if they are "spread". lr / c decides how soon
    bits flip."""
    # Differs: a round's scores are made of the bits that are received (line 14); the paper does not
    # say of what size. Begun anew, what a client learned beyond its bits is lost in every round.
    keep_scores: bool = True
    """Whether a client keeps a score whose bit comes back as it was sent; other scores begin anew,
    and without this all do."""
    # Differs: the paper gives no learning rate. At a constant one the last batches decide the bits.
    lr_schedule: str = "cosine"
    """How the learning rate of scores runs over the epochs of a round: "constant", or down by a
    "cosine"."""
    # Differs: the paper's text has a hard forward pass, its Algorithm 1 a soft one.
    forward: str = "hard"
    """What weights are multiplied by in training: "hard" bits, or "soft" σ(m^r)."""
    group_lasso: float = 2e-4
    """Strength of the group lasso on filters and channels, rows and columns (λ_R)."""
    # Differs: the paper draws weights at random and says no more. With torch's own draw the signal
    # shrinks from layer to layer, and bits cannot make up for it as trained weights do.
    weights: str = "scaled"
    """Frozen weights: the signs drawn times √(2 / inputs), the inputs being all ("signed") or those
    that are used at first ("scaled"); or all as "drawn"."""
    real: tuple[str, ...] = ("*lstm*.output",)
    """Layers without bits, by patterns of names: they are trained and averaged as in FedAvg."""
    # Differs: the paper does not round, but reports the bytes of one bit per weight each way.
    round_mean: bool = True
    """Whether mean bits are rounded before they are sent; fractions cost a number each."""
    receive: str = "current"
    """What a client gets: the "current" aggregate, or the one of its "last" participation."""

    views: ClassVar[tuple[str, ...]] = ("personal", "received")
    bounds: ClassVar[Bounds] = {
        "density": (1e-9, 1),
        "pruned_layers": (0, math.inf),
        "scale": (1e-9, math.inf),
        "group_lasso": (0, math.inf),
    }
    choices: ClassVar[Choices] = {
        "prune_by": ("size", "change", "value"),
        "forward": ("hard", "soft"),
        "scores": ("equal", "spread"),
        "lr_schedule": ("constant", "cosine"),
        "weights": ("signed", "scaled", "drawn"),
        "receive": ("current", "last"),
    }

    def problems(self) -> list[str]:
        """Refuse a pattern that no layer can have."""
        text = "`method.real` has an empty pattern; name layers, or give [] to mask them all"
        return [] if all(self.real) else [text]

    def masked(self, task: Task) -> list[str]:
        """List the tensors that have bits; norms and buffers are numbers, as in FedAvg."""
        real = {
            layer.name
            for layer in task.layers
            if layer.kind == "norm" or any(fnmatchcase(layer.name, each) for each in self.real)
        }
        names = (name for name in task.initial if name.rpartition(".")[0] not in real)
        return [name for name in names if task.trainable(name)]

    def frozen(self, task: Task) -> Tree:
        """Return the weights that bits choose from."""
        drawn = {name: task.initial[name] for name in self.masked(task)}
        if self.weights == "drawn":
            return drawn
        kept = self.counts(task) if self.weights == "scaled" else {}
        on = 0.5 if self.weights == "scaled" and self.scores == "spread" else 1.0
        return {
            name: _signed(value, on * kept.get(name, value.numel()))
            for name, value in drawn.items()
        }

    def counts(self, task: Task) -> dict[str, int]:
        """Return how many entries of every pruned weight are kept; biases stay whole."""
        names, last = self.masked(task), task.last(self.pruned_layers)
        pruned = {name: task.shapes[name] for name in last if name in names}
        shapes = {name: shape for name, shape in pruned.items() if len(shape) > 1}
        return mask.counts(shapes, mask.uniform_densities(shapes, self.density))

    def server_init(self, task: Task) -> State:
        """Hold the aggregated bits, where they are defined, and what is averaged as numbers."""
        bits = self._first_bits(task)
        params = {name: value for name, value in task.initial.items() if name not in bits}
        nowhere = tree.each(torch.zeros_like, bits)
        return {"params": params, "bits": self._means(task, bits), "defined": nowhere}

    def row_init(self, task: Task, info: ClientInfo) -> State:
        """Remember a client's structure, at first all weights, and its bits."""
        bits = self._first_bits(task)
        structure = mask.full({name: task.initial[name] for name in self.counts(task)})
        return {"structure": structure, "bits": self._means(task, bits)}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        """Hold its structure and bits, and what is trained as numbers."""
        bits, params = self._first_bits(task), self.server_init(task)["params"]
        held = {**self.row_init(task, info), "bits": bits, "params": params}
        return {**held, "scores": self._begun(task, bits)} if self.keep_scores else held

    def _first_bits(self, task: Task) -> Tree:
        """Return m^0: bits are on where drawn weights are large, or all."""
        drawn = {name: task.initial[name] for name in self.masked(task)}
        if self.scores == "equal":
            return mask.full(drawn)
        return {name: _beyond(value) >= 0 for name, value in drawn.items()}

    def _sizes(self, task: Task) -> Tree:
        """Return the sizes of the scores that a round begins with."""
        drawn = {name: task.initial[name] for name in self.masked(task)}
        if self.scores == "equal":
            return tree.each(lambda value: torch.full_like(value, self.scale), drawn)
        # The more entries a tensor has, the less the loss asks of each.
        kept = self.counts(task)
        return {
            # A size of zero would make a one of a zero that is received.
            name: _beyond(value).abs().clamp_min(TINY)
            * (self.scale / math.sqrt(kept.get(name, value.numel())))
            for name, value in drawn.items()
        }

    def _begun(self, task: Task, bits: Tree) -> Tree:
        """Return the scores that bits, or fractions, begin with."""
        # Differs: 0 and 1 as scores would turn every zero into a one, because σ(0) = ½.
        return tree.each(
            lambda bit, size: (2 * bit.to(task.dtype) - 1) * size, bits, self._sizes(task)
        )

    def _means(self, task: Task, bits: Tree) -> Tree:
        """Return bits as the server holds means of them: as bits, or as fractions."""
        return bits if self.round_mean else tree.each(lambda bit: bit.to(task.dtype), bits)

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        """Send the aggregate where it is defined, the client's own bits elsewhere (line 11)."""
        bits = row["bits"]
        if self.receive == "current":
            bits = tree.each(torch.where, server["defined"], server["bits"], bits)
        # The whole mask is sent, a bit per weight: to send the structure again would cost more.
        whole = Part(tree.only(row["structure"], bits))
        return {"params": Part(server["params"]), "bits": whole}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Turn bits into scores (line 14)."""
        scores = self._begun(task, message["bits"].values)
        if self.keep_scores:
            scores = tree.each(_kept, client["scores"], scores)
        held = {"params": message["params"].values, "structure": client["structure"]}
        return {**held, "scores": scores, "first": scores}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train the scores inside the structure, and what is real beside them."""
        if self.lr_schedule == "constant":
            return (Stage("train", self._step(task), self.local_epochs, masks=self._cost),)
        turns = [math.pi * epoch / self.local_epochs for epoch in range(self.local_epochs)]
        steps = [self._step(task, (1 + math.cos(turn)) / 2) for turn in turns]
        return tuple(
            Stage(f"train {epoch}", step, epoch=epoch, masks=self._cost)
            for epoch, step in enumerate(steps)
        )

    def setup(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """Train for one epoch and prune (lines 21–28)."""
        counts, frozen = self.counts(task), self.frozen(task)

        def prune(work: State, round: Round) -> State:
            worth = tree.each(self._worth, frozen, work["scores"], work["first"])
            work = {**work, "structure": mask.top_by_layer(worth, counts)}
            return {**work, "structure": _on(work)} if self.keep_off else work

        return (Stage("prune", self._step(task), then=prune, masks=self._cost),) if counts else ()

    def _worth(self, weight: Tensor, scores: Tensor, first: Tensor) -> Tensor:
        """Return what a structure keeps the largest of."""
        value = weight * (scores - first if self.prune_by == "change" else scores)
        return value if self.prune_by == "value" else value.abs()

    def _step(self, task: Task, share: float = 1.0) -> SGDStep:
        """Build the SGD step on scores, straight through the threshold, and on real weights.

        Scores take that share of the learning rate, real weights all of it.
        """
        frozen = self.frozen(task)

        def loss(work: State, batch: Batch, round: Round) -> Losses:
            soft = tree.only(work["structure"], tree.each(torch.sigmoid, work["scores"]))
            gates = soft
            if self.forward == "hard":
                # The value is the bit, the slope that of the sigmoid.
                gates = tree.each(lambda bit, s: bit + (s - s.detach()), _bits(work), soft)
            weights = tree.each(torch.mul, frozen, gates)
            losses = task.losses({**weights, **work["params"]}, batch)
            return *losses, self.group_lasso * group_norms(soft)

        on, lr = ("scores", "params"), (share * self.lr, self.lr)
        return self.sgd_step(task, loss, on=on, lr=lr, within=lambda work: work["structure"])

    def _cost(self, work: State) -> tuple[Tree, Tree]:
        """Return what runs forward, and whose gradient is taken: all of the structure."""
        runs = _bits(work) if self.forward == "hard" else work["structure"]
        return runs, work["structure"]

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Send the bits; at the setup the structure with them, once and for all."""
        if round.kind == "adapt":
            return {}, client
        kept = ("params", "structure", *(["scores"] if self.keep_scores else []))
        held = {key: work[key] for key in kept} | {"bits": _bits(work)}
        if round.kind == "setup":
            return {"bits": Part(held["bits"], held["structure"])}, held
        return {"params": Part(held["params"]), "bits": Part(held["bits"])}, held

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        """Average bits, by samples, where two or more structures overlap; a mean of ½ is a one."""
        sent = uploads["bits"]
        if round.kind == "setup":
            return server, {"structure": sent.keep, "bits": self._means(task, sent.values)}
        nothing = tree.each(
            lambda bits: torch.full_like(bits, -1, dtype=task.dtype), server["bits"]
        )
        inside = Part(sent.values, self._pruned(task, rows["structure"]))
        mean = cohort.average(inside, nothing, least=2)
        heard = tree.each(lambda m: m >= 0, mean)
        means = tree.each(lambda m: m >= 0.5, mean) if self.round_mean else mean
        means = tree.each(lambda m, old: m.to(old.dtype), means, server["bits"])
        bits = tree.where(heard, means, server["bits"])
        own = tree.where(heard, means, self._means(task, sent.values))
        own = tree.only(rows["structure"], own)
        params = cohort.average(uploads["params"], server["params"])
        defined = mask.either(server["defined"], heard)
        return {"params": params, "bits": bits, "defined": defined}, {**rows, "bits": own}

    def _pruned(self, task: Task, structures: Tree) -> Tree:
        """Empty the structures of clients whose setup was refused: theirs are still whole."""
        most = self.counts(task)
        return {
            name: keep & (keep.sum(tuple(range(1, keep.ndim)), keepdim=True) <= most[name])
            for name, keep in structures.items()
        }

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        """Use the bits that it trained last, or those it would receive now; weights are seeded."""
        if view == "received":
            rounded = tree.each(lambda bit: bit >= 0.5, message["bits"].values)
            return {**message, "bits": Part(rounded, client["structure"])}
        params, bits = Part(client["params"]), Part(client["bits"], client["structure"])
        return {"params": params, "bits": bits}

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        """Run the frozen weights where their bits are ones (Eq. 2)."""
        weights = tree.only(personal["bits"].values, self.frozen(task))
        return task({**weights, **personal["params"].values}, x)[0]

    def limit(self, task: Task, info: ClientInfo) -> dict[str, dict[str, int]]:
        """Bound the personal model and the setup by the structure; uploads are bits of it all."""
        counts = self.counts(task)
        whole = {name: task.shapes[name].numel() for name in self.masked(task)}
        return {"use": whole | counts, "setup": counts, "upload": {}}


def _signed(drawn: Tensor, used: float) -> Tensor:
    """Return ±√(2 / inputs), which keeps the scale of what passes a ReLU; biases as drawn.

    So many weights are used, and so a mean number of inputs for each output.
    """
    return drawn.sign() * math.sqrt(2 * len(drawn) / used) if drawn.ndim > 1 else drawn


def _beyond(drawn: Tensor) -> Tensor:
    """Return how far sizes are above their mean, as a share of it; 1 for biases."""
    if drawn.ndim < 2:
        return torch.ones_like(drawn)
    sizes = drawn.abs()
    return sizes / sizes.mean().clamp_min(TINY) - 1


def _kept(own: Tensor, begun: Tensor) -> Tensor:
    """Return a client's own scores where they have the signs of those that begin anew."""
    return torch.where((own >= 0) == (begun >= 0), own, begun)


def _bits(work: State) -> Tree:
    """Return [σ(m^r) ≥ ½], which is [m^r ≥ 0], inside the structure."""
    return mask.both(tree.each(lambda score: score >= 0, work["scores"]), work["structure"])


def _on(work: State) -> Tree:
    """Return the part of the structure whose bits are on."""
    bits = _bits(work)
    return {name: bits[name] for name in work["structure"]}


def group_norms(soft: Tree) -> Tensor | float:
    """Sum the norms of filters and channels, of rows and columns (Eq. 9)."""
    total: Tensor | float = 0.0
    for value in soft.values():
        # One pass of squares serves both axes; `vector_norm` would take several times as long.
        squares = value.square()
        for axis in (0, 1) if value.ndim > 1 else ():
            sums = squares.sum([other for other in range(value.ndim) if other != axis])
            # Where a whole group is pruned, the slope of its norm is zero and not NaN.
            total = total + sums.clamp_min(TINY).sqrt().sum()
    return total


ENTRIES = {
    "fedmask": MethodEntry(
        method=FedMask,
        view="personal",
        title="FedMask",
        paper="Li et al., 2021",
        personal="bits over frozen weights, a structure of the last layers",
        sent="one bit per weight",
        neutral={"real": ("*",), "pruned_layers": 0},
    ),
}
