"""What the server and all clients agree on before training, and the training that follows from it.

It is found once, from what clients say and sum up, and told to every client. Whoever has it builds
the same task, to the bit.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from masquerade.config import toml
from masquerade.config.code import LOADED
from masquerade.config.normalize import parse, resolved, spelled
from masquerade.config.resolve import LoadedConfig, TrainingSpec, trainings
from masquerade.config.settings import Config
from masquerade.core.part import Message, Part
from masquerade.core.preprocess import Preprocess, Raw, Unfitted, describe, moved
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.deploy.facts import Form
from masquerade.errors import MasqueradeError
from masquerade.results.json_records import from_json, parsed, to_json
from masquerade.simulation import class_weights, fitting
from masquerade.simulation.class_weights import Weighting
from masquerade.simulation.fitting import Fitting
from masquerade.storage import sealed
from masquerade.wire import decode, digest, encode

AGREED = "agreement.json"
"""The file that has it, at the server and at every client."""


@dataclass(frozen=True)
class Agreement:
    """What all agree on."""

    run: str
    """Names the run; no other has this name."""
    name: str
    """Of the federation."""
    config: str
    """The settings, as TOML."""
    form: Form
    preprocess: str = ""
    """What is done to samples, as `data.normalize` spells it, as far as it is fitted; empty where
    nothing is yet, and where each client fits it."""
    text: str = ""
    """The same in words."""
    class_weights: tuple[float, ...] = ()
    summed: tuple[int, ...] = ()
    """Clients whose sums decided that, in every exchange."""
    sent: tuple[str, ...] = ()
    """What they sent sums of."""
    fitting_bytes: tuple[float, float] = (0.0, 0.0)
    """Down and up, as means over these clients; of class weights likewise."""
    weighing_bytes: tuple[float, float] = (0.0, 0.0)
    initial: int = 0
    """A digest of the initial weights."""
    torch: str = torch.__version__

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        return json.dumps(to_json(self), indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Agreement":
        """Read it."""
        try:
            return from_json(cls, parsed(data))
        except ValueError as error:
            raise MasqueradeError("E610", f"what was agreed cannot be read: {error}") from None

    def save(self, folder: Path) -> None:
        """Write it into the folder of the server, or of a client's run."""
        sealed.write_record(folder / AGREED, "", self)

    @classmethod
    def load(cls, folder: Path) -> "Agreement":
        """Read it there; E401 says that it is damaged."""
        return sealed.read_record(cls, folder / AGREED, "", sealed.NO_OTHER)

    def settings(self) -> Config:
        """Return the settings; code that they name has to be here, and be the same (E613)."""
        tables = toml.read(self.config)
        check_code(tables.get("code", {}))
        return toml.parse(tables, "the settings of the federation")

    @property
    def seed(self) -> int:
        """Return the seed of training."""
        return self.settings().train.seeds[0]

    def specified(self, data: Federation) -> TrainingSpec:
        """Return the training over some clients' data: all of them, one, or none that has any."""
        return specified(self.settings(), data)

    def fitted_so_far(self, data: Federation) -> TrainingSpec:
        """Return the training with preprocessing as far as clients' sums have decided it."""
        spec = self.specified(data)
        if not self.preprocess:
            return spec
        return replace(spec, task=spec.task.with_preprocess(parse(self.preprocess)))

    def task(self, spec: TrainingSpec, data: Federation) -> Task:
        """Return the task; `data` are preprocessed where each client does it by itself."""
        preprocess = parse(self.preprocess) if self.preprocess else Raw()
        weights = torch.tensor(self.class_weights).to(spec.task.dtype)
        task = spec.task.with_preprocess(preprocess)
        return task.with_class_weights(weights if len(weights) else None).with_example(data.x)

    def fitting(self, spec: TrainingSpec) -> Fitting:
        """Return what is done to samples, and what it cost to find out."""
        down, up = self.fitting_bytes
        if not self.preprocess:
            return Fitting(Raw(), own=(spec.task.preprocess,))
        return Fitting(parse(self.preprocess), down, up, self.sent)

    @property
    def weighting(self) -> Weighting:
        """Return what classes weigh, and what it cost to find out."""
        weights = torch.tensor(self.class_weights) if self.class_weights else None
        return Weighting(weights, *self.weighing_bytes)

    def applied(self, spec: TrainingSpec, id: int) -> Federation:
        """Return a client's samples as it preprocesses them, where each does it in its own way."""
        data = spec.federation
        if self.preprocess:
            return data
        own = fitted_alone(spec, id)
        return replace(data, x=own(data.x), features=(), impute="")


def fitted_alone(spec: TrainingSpec, id: int) -> Preprocess:
    """Return preprocessing that a client fits on its own training samples."""
    unfitted, data = spec.task.preprocess, spec.federation
    assert isinstance(unfitted, Unfitted)
    return moved(fitting.fitted_alone(unfitted, data.x[data.train[id]]), spec.task.dtype)


def specified(config: Config, data: Federation) -> TrainingSpec:
    """Return the one training of a federation's settings, over some clients' data."""
    (training,) = trainings(config)
    normalize = resolved(config.data.normalize, bool(data.features))
    known = replace(config.data, normalize=normalize)
    return LoadedConfig(config, {training.seed: data}, known).resolve(training)


def check_code(wanted: Mapping[str, str]) -> None:
    """Refuse to go on where code of the federation is not here, or is another."""
    for name, sha256 in wanted.items():
        here = LOADED[name].sha256 if name in LOADED else ""
        if here != sha256:
            what = f"is another ({here[:12]})" if here else "is not here"
            text = f"`{name}` {what}, and the server has {sha256[:12]}"
            raise MasqueradeError("E613", f"{text}; name the same file under `code.paths`")


def shared_by_all(spec: TrainingSpec) -> bool:
    """Tell whether preprocessing is the same for all, and not fitted by each client alone."""
    return not getattr(spec.task.preprocess, "per_client", False)


def wanted_sums(agreement: Agreement, spec: TrainingSpec) -> tuple[bool, bool]:
    """Tell whether sums of samples are needed, and whether counts of labels are."""
    unfitted = isinstance(spec.task.preprocess, Unfitted) and shared_by_all(spec)
    return unfitted, spec.train.class_weights != "none" and not agreement.class_weights


_LENGTH = struct.Struct("<I")


def write_sums(agreement: Agreement, data: Federation, id: int) -> bytes:
    """Write what a client's training samples and labels sum to."""
    spec = agreement.fitted_so_far(data)
    samples, labels = wanted_sums(agreement, spec)
    own, found = data.train[id], []
    if samples:
        assert isinstance(spec.task.preprocess, Unfitted)
        found.append(fitting.upload(spec.task.preprocess, data.x[own]))
    if labels:
        found.append(class_weights.upload(data.y[own], data.classes or 0))
    messages = [encode(message) for message in found]
    return b"".join(_LENGTH.pack(len(each)) + each for each in messages)


def read_sums(agreement: Agreement, spec: TrainingSpec, data: bytes) -> list[Message]:
    """Read the same at the server, whose `spec` knows what samples look like; refuse all else."""
    samples, labels = wanted_sums(agreement, spec)
    templates: list[Message] = []
    if samples:
        assert isinstance(spec.task.preprocess, Unfitted)
        templates.append(fitting.upload(spec.task.preprocess, spec.federation.x[:1]))
    if labels:
        templates.append(class_weights.upload(spec.federation.y[:0], spec.federation.classes or 0))
    found, place = [], 0
    for template in templates:
        (size,) = _LENGTH.unpack(data[place : place + 4].ljust(4, b"\0"))
        body = data[place + 4 : place + 4 + size]
        message = decode(body, template, any_masks=True)
        sums = message.get("statistics")
        if encode(message if sums is None else fitting.message_of(sums.values)) != body:
            raise MasqueradeError("E610", "sums with masks that no client sends")
        _check_sums(message)
        found.append(message)
        place += 4 + size
    if place < len(data):
        raise MasqueradeError("E610", f"{len(data) - place} bytes after the sums of a client")
    return found


def _check_sums(message: Message) -> None:
    """Refuse sums that would spoil those of all others."""
    for part in message.values():
        for name, values in part.values.items():
            counts = name not in ("sum",)
            if not bool(values.isfinite().all()) or (counts and bool((values < 0).any())):
                raise MasqueradeError("E612", f"`{name}` has sums that no samples have")


def settled(
    agreement: Agreement, spec: TrainingSpec, sums: Mapping[int, Sequence[Message]]
) -> Agreement:
    """Return the agreement with what clients' sums decide; they are those of some clients."""
    samples, labels = wanted_sums(agreement, spec)
    dtype, found = spec.task.dtype, replace(agreement, summed=tuple(sums))
    if samples:
        before = Fitting(spec.task.preprocess, *agreement.fitting_bytes, agreement.sent)
        fit = before.after((each[0] for each in sums.values()), dtype, len(sums))
        found = replace(
            found,
            preprocess=spelled(fit.preprocess),
            sent=fit.sent,
            fitting_bytes=(fit.down, fit.up),
        )
    if labels:
        weighed = class_weights.merged([each[-1] for each in sums.values()], dtype, len(sums))
        assert weighed.weights is not None
        found = replace(
            found,
            class_weights=tuple(weighed.weights.tolist()),
            weighing_bytes=(weighed.down, weighed.up),
        )
    return found


def concluded(agreement: Agreement, spec: TrainingSpec) -> Agreement:
    """Return the agreement with what needs no sums, or no more of them."""
    preprocess = spec.task.preprocess
    text = spelled(preprocess) if shared_by_all(spec) else ""
    initial = int(digest(Part(spec.task.initial)))
    return replace(agreement, preprocess=text, text=describe(preprocess), initial=initial)
