"""What a method's functions must return: each is called once before the first round."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, dataclass, field, replace
from difflib import get_close_matches
from inspect import isfunction
from typing import Any, Literal

import torch
from torch import Tensor, nn

from masquerade.core import tree
from masquerade.core.aggregation import PLAIN, Aggregation
from masquerade.core.method import Method
from masquerade.core.padding import couples, padding_error
from masquerade.core.part import Message, Part
from masquerade.core.round import Batch, ClientInfo, Cohort, Round, Stage, client_round
from masquerade.core.sgd import SGDStep
from masquerade.core.task import Task
from masquerade.core.tree import State, Tree
from masquerade.engine.base import EngineContext
from masquerade.errors import MasqueradeError, listed, nearest, told, warn

SAMPLES = 4
"""Samples of a client that a step is tried on."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2}
"""How far padding may move a step, as a share of the step; a mistake moves it by much more."""
NEAR = 0.8
"""Similarity from which one name is taken for a misspelling of another."""
ROUGH = 0.2
"""The tolerance where products are taken in a shorter type."""


def check(
    context: EngineContext, info: ClientInfo, engine: str, aggregation: Aggregation = PLAIN
) -> None:
    """Do one client's rounds with one step per stage; refuse what a function must not return.

    A step on padded samples is held against the step without padding, but where the loop was asked
    for, which never pads, or where the network itself couples samples.
    """
    _warn_of_misspelt(context.method)
    task, data = context.task, context.loader.federation
    devices = [data.x.device] if data.x.is_cuda else []
    with torch.random.fork_rng(devices), warnings.catch_warnings():
        # Rounds warn of what they find; nothing is said twice.
        warnings.simplefilter("ignore")
        # With and without padding a step has other noise.
        pads = engine != "loop" and task.dp is None and not couples(task, data.x)
        trial = Trial(context, info, pads, aggregation)
        try:
            trial.run()
        except KeyError as error:
            trial.explain(error)
            error.add_note(f"in client {info.id}, {trial.at}, tried before the first round")
            raise
        except FrozenInstanceError as error:
            text = f"{trial.at} keeps something on `self` ({error}), and a method is frozen"
            where = "keep it in `client`, which `finish` returns; what all share is in `server`"
            raise MasqueradeError("E205", f"{text}; {where}") from error
        except Exception as error:
            if isinstance(error, TypeError) and "'Round'" in str(error):
                text = f"{trial.at} computes with `round`, which is a record; its number is"
                raise MasqueradeError("E205", f"{text} `round.number`, a tensor") from error
            error.add_note(f"in client {info.id}, {trial.at}, tried before the first round")
            raise


def misspelt(cls: type[Method]) -> dict[str, str]:
    """Return functions of a class whose names are nearly those of a method's, with the latter."""
    theirs = {_plain(name): name for name, each in vars(Method).items() if isfunction(each)}
    own = {
        name
        for line in cls.__mro__
        if issubclass(line, Method) and line is not Method
        for name, each in vars(line).items()
        if isfunction(each) and not name.startswith("_") and name not in theirs.values()
    }
    near = {name: get_close_matches(_plain(name), theirs, 1, NEAR) for name in sorted(own)}
    return {name: theirs[found[0]] for name, found in near.items() if found}


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _warn_of_misspelt(method: Method) -> None:
    for name, meant in misspelt(type(method)).items():
        warn(
            f"W205 `{name}` of {type(method).__name__} is no function that a method has, and is "
            f"never called by the library: `{meant}` is, so write that (or another name)",
        )


MADE_BY = {
    "server": "server_init",
    "row": "row_init",
    "rows": "row_init",
    "client": "client_init",
    "message": "download",
    "work": "start",
    "uploads": "finish",
    "personal": "personalize",
}
"""Which function makes what others are given."""


@dataclass
class Trial:
    """One client's rounds, held to what they must give; `client_round` runs it as a method."""

    context: EngineContext
    info: ClientInfo
    pads: bool
    aggregation: Aggregation = PLAIN
    at: str = "`server_init`"
    """What is being called."""
    given: dict[str, Any] = field(default_factory=dict)
    """The states and messages that it was given, by what they are called in `MADE_BY`."""
    _padded: list[object] = field(default_factory=list)
    """Steps that were tried with padding; several stages may have one."""

    def run(self) -> None:
        """Go through the phases of a run, each with what the one before left."""
        method, task = self.context.method, self.context.task
        server = state("`server_init`", method.server_init(task))
        self._calling("`row_init`")
        row = state(self.at, method.row_init(task, self.info))
        self._calling("`client_init`")
        client = state(self.at, method.client_init(task, self.info))
        for kind, phase in self.context.phases():
            round = self.context.round(kind, phase, 0)
            self._calling("`download`", server=server, row=row)
            sent = message(self.at, method.download(task, server, row, round))
            sent = self.context.as_received(sent, self.info.id, None)
            upload, after = client_round(
                self, task, sent, client, self._batches, round, steps=self._step
            )
            if kind == "adapt":
                self._use(sent, after, round.phase[0])
            else:
                server, row = self._aggregate(server, row, upload, round)
                client = after

    def _calling(self, at: str, **given: Any) -> None:
        self.at, self.given = at, given

    def explain(self, error: KeyError) -> None:
        """Raise E205 where a function looked up a name that nothing it was given has."""
        key = error.args[0] if error.args else None
        known = {name for each in self.given.values() for name in (*each, *_names(each))}
        if not isinstance(key, str) or not self.given or key in known:
            return
        held = [
            f"`{name}`, which `{MADE_BY[name]}` makes, has {listed(each) or 'nothing'}"
            for name, each in self.given.items()
        ]
        text = f"{self.at} reads `{key}`{nearest(key, known)}, and is not given it"
        raise MasqueradeError("E205", f"{text}: {'; '.join(held)}; make it there") from error

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        """Return the work of a round."""
        self._calling("`start`", message=message, client=client)
        return state(self.at, self.context.method.start(task, message, client, round))

    def stages(self, task: Task, round: Round) -> tuple[Stage, ...]:
        """List the stages, whose `begin` and `then` are looked at too."""
        self._calling(f"the stages of `{round.kind}`")
        return tuple(map(self._watched, self.context.method.stages(task, round)))

    def finish(
        self, task: Task, work: State, received: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Return the upload and what the client holds."""
        self._calling("`finish`", work=work, message=received, client=client)
        found = self.context.method.finish(task, work, received, client, round)
        upload, after = pair(self.at, found, "(upload, client): what is sent, and what is kept")
        if round.kind == "adapt":
            # Of a copy, which may hold what it likes.
            return message(self.at, upload), state(self.at, after)
        alike(f"{self.at}, for the client,", after, client, "`client_init`")
        sent = (round.label, 0)
        return self.context.as_received(message(self.at, upload), self.info.id, sent), after

    def _watched(self, stage: Stage) -> Stage:
        def begin(work: State, round: Round) -> State:
            self._calling(f"stage `{stage.name}`, `begin`", work=work)
            return state(self.at, stage.begin(work, round))

        def then(work: State, round: Round) -> State:
            self._calling(f"stage `{stage.name}`, `then`", work=work)
            return state(self.at, stage.then(work, round))

        return replace(stage, begin=begin, then=then)

    def _batches(self, stage: Stage) -> list[Any]:
        """Return two steps' batches of the client's samples."""
        return [
            (one,) * stage.draws if stage.draws > 1 else one for one in map(self._batch, (0, 1))
        ]

    def _batch(self, place: int) -> Batch:
        data, own = self.context.loader.federation, self.context.loader.federation.train
        most = min(SAMPLES, self.context.loader.size)
        pieces = torch.split(own[self.info.id], most)
        some = pieces[place] if place + 1 < len(pieces) else pieces[0]
        return Batch(data.x[some], data.y[some], None, torch.tensor(0, device=data.x.device))

    def _step(self, stage: Stage, work: State, batches: list[Any], round: Round) -> State:
        self._calling(f"stage `{stage.name}`, step 0", work=work)
        with self._in_training(stage):
            after = stage.step(work, batches[0], round)
        alike(f"the step of the stage `{stage.name}`", after, work, "the work that it was given")
        if self.pads and not any(stage.step is each for each in self._padded):
            self._padded.append(stage.step)
            self._pad(stage, work, batches, round)
        return after

    @contextmanager
    def _in_training(self, stage: Stage) -> Iterator[None]:
        """Refuse an SGD step whose loss runs the network as in use, where that is another."""
        task, modes = self.context.task, set[bool]()

        def note(module: nn.Module, given: Any) -> None:
            modes.add(module.training)

        hook = task.module.register_forward_pre_hook(note)
        try:
            yield
        finally:
            hook.remove()
        if isinstance(stage.step, SGDStep) and task.trains_otherwise and modes == {False}:
            raise MasqueradeError(
                "E205",
                f"the loss of the stage `{stage.name}` runs the network as in use: without dropout "
                "and transform, norms with old statistics; call `task.outputs(values, batch)`",
            )

    def _pad(self, stage: Stage, work: State, batches: list[Any], round: Round) -> None:
        """Refuse a step that padding changes, on both batches: rounding may tip a choice on one."""
        exact = self.context.precision == "float32"
        bar = TOLERANCES.get(self.context.task.dtype, ROUGH) if exact else ROUGH
        for given in batches:
            try:
                entry, apart = padding_error(stage, work, given, round)
            except Exception:
                # What cannot be mapped is looped, where nothing is padded.
                return
            if not apart > bar:
                return
        raise MasqueradeError(
            "E206",
            f"padding changes the stage `{stage.name}`: where samples that are not real fill up a "
            f"batch, its step moves `{entry}` elsewhere (by {apart:.0%} of the step). Average with "
            "`batch.mean`, return losses per sample, or leave out what `batch.valid` does not "
            'mark; compute.engine="loop" never pads',
        )

    def _use(self, sent: Message, client: State, view: str) -> None:
        """Try a model in use."""
        method, task = self.context.method, self.context.task
        self._calling("`personalize`", message=sent, client=client)
        personal = message(self.at, method.personalize(task, sent, client, view))
        self._calling("`predict`", personal=personal)
        x = self._batch(0).x
        with torch.no_grad():
            output = method.predict(task, personal, x)
        if not isinstance(output, Tensor) or output.shape[:1] != x.shape[:1]:
            text = f"`predict` returned {told(output)} for {len(x)} samples"
            raise MasqueradeError("E205", f"{text}; return a tensor with an output for each")

    def _aggregate(
        self, server: State, row: State, upload: Message, round: Round
    ) -> tuple[State, State]:
        """Try what the server makes of an upload."""
        rows, uploads = tree.stack([row]), tree.stack([upload])
        self._calling("`aggregate`", server=server, rows=rows, uploads=uploads)
        ids, samples = torch.tensor([self.info.id]), torch.tensor([self.info.samples])
        cohort = Cohort(ids, samples, 1, 1, self.aggregation)
        found = self.context.method.aggregate(
            self.context.task, server, rows, uploads, cohort, round
        )
        new, after = pair(self.at, found, "(server, rows), also where the rows stay as they are")
        alike(f"{self.at}, for the server,", new, server, "`server_init`")
        alike(f"{self.at}, for the rows,", after, rows, "`row_init`, stacked,")
        if not self.aggregation.plain:
            self._defended(server, row, upload, round)
        return new, tree.take(after, 0)

    def _defended(self, server: State, row: State, upload: Message, round: Round) -> None:
        """Refuse to defend what the server learns of clients' values by another way than the rule.

        Under a rule that learns nothing, it may not matter to anybody else what a client sends.
        """
        rows = tree.stack([row, row])
        other = {
            key: replace(part, values=tree.each(_another, part.values))
            for key, part in upload.items()
        }
        ids, samples = torch.tensor([self.info.id, self.info.id + 1]), torch.tensor([1, 1])
        cohort = Cohort(ids, samples, 2, 2, _Deaf())
        left, right = (
            self.context.method.aggregate(
                self.context.task, server, rows, tree.stack([upload, second]), cohort, round
            )
            for second in (upload, other)
        )
        before, after = (
            tree.named({"server": new, "rows": tree.take(known, 0)}) for new, known in (left, right)
        )
        for path, value in before.items():
            same = (value == after[path]) | ((value != value) & (after[path] != after[path]))
            if not bool(same.all()):
                raise MasqueradeError(
                    "E202",
                    f"{type(self.context.method).__name__}: `aggregate` makes `{path}` of clients' "
                    "values by another way than `cohort.average`, so that no setting of `train` "
                    "can defend it; write cohort.average(part, otherwise) for mq.average, or take "
                    "aggregation = mean, clip_updates = 0 and min_contributors = 1",
                )


@dataclass(frozen=True)
class _Deaf(Aggregation):
    """Learns nothing of clients."""

    def reduce(
        self,
        part: Part,
        weights: Tensor,
        otherwise: Mapping[str, Tensor],
        absent: Literal["skip", "zero"] = "skip",
        least: int = 1,
    ) -> Tree:
        """Leave everything as it was."""
        return {name: otherwise[name] for name in part.values}


def _another(value: Tensor) -> Tensor:
    """Return other values of the same type."""
    return ~value if value.dtype is torch.bool else value + 1


def _names(given: Any) -> set[str]:
    """Return all names inside of a state or a message."""
    return {name for path in tree.named(given) for name in path.split("/")}


def state(whose: str, found: Any) -> State:
    """Return a state; refuse what is none."""
    if type(found) is not dict:
        text = f"{whose} returned {told(found)}; return a dict of tensors and trees"
        raise MasqueradeError("E205", text)
    for path, value in tree.named(found).items():
        if not isinstance(value, Tensor):
            text = f"{whose} returned {told(value)} at `{path}`"
            raise MasqueradeError("E205", f"{text}; states hold tensors: torch.tensor(...)")
    return found


def alike(whose: str, found: Any, given: State, like: str) -> None:
    """Refuse a state whose structure is not that of another."""
    new, old = tree.named(state(whose, found)), tree.named(given)
    for path in (*old, *new):
        if path not in new:
            text = f"{whose} returned no `{path}`; return all that {like} has: {listed(old)}"
            raise MasqueradeError("E205", text)
        if path not in old:
            text = f"{whose} returned `{path}`{nearest(path, old)}, which {like} does not have"
            raise MasqueradeError("E205", f"{text}; make it there, or leave it out")
        if new[path].shape != old[path].shape:
            shapes = f"{list(new[path].shape)}, which is {list(old[path].shape)} in {like}"
            raise MasqueradeError("E205", f"{whose} returned `{path}` of shape {shapes}; keep it")
        if new[path].dtype != old[path].dtype:
            types = f"{new[path].dtype}, which is {old[path].dtype} in {like}"
            raise MasqueradeError("E205", f"{whose} returned `{path}` of {types}; keep it")


def message(whose: str, found: Any) -> Message:
    """Return a message; refuse what is no dict of parts."""
    if type(found) is not dict:
        text = f"{whose} returned {told(found)} for a message; return a dict of parts"
        raise MasqueradeError("E205", f'{text}: {{"params": mq.Part(values)}}')
    for key, part in found.items():
        if not isinstance(part, Part):
            text = f"{whose} returned {told(part)} at `{key}` of a message"
            raise MasqueradeError("E205", f"{text}; write mq.Part(values), of a dict of tensors")
        if type(part.values) is not dict:
            text = f"{whose} returned a part of {told(part.values)} at `{key}`"
            raise MasqueradeError("E205", f'{text}; a part is of a dict of tensors: {{"w": …}}')
    return found


def pair(whose: str, found: Any, wanted: str) -> tuple[Any, Any]:
    """Return the two things that a function returns; refuse anything else."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise MasqueradeError("E205", f"{whose} returned {told(found)}; return {wanted}")
    return found
