"""A carrier in this process with a clock of its own, on which anything can go wrong."""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from masquerade.config import toml
from masquerade.core.random import normal
from masquerade.deploy.carrier import Delivery
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.member import Member, open_member
from masquerade.deploy.messages import Question, read
from masquerade.deploy.replay import MEMBERS
from tests.storage.disk import DeadDisk, Killed

SIZES = (23, 31, 18, 27)
"""Samples of each client."""
TAKES, DEADLINE = 1.0, 100.0
"""Seconds that an answer takes, and that a round waits for it."""
FOREVER = 3000.0
LATE = DEADLINE + TAKES / 2
"""Seconds that a late answer takes: it comes in the midst of the next round."""

Fault = Callable[[str, Question], str]
"""Says of a question to a client what goes wrong with its answer; "" is nothing."""


class Crash(BaseException):
    """The server's process is killed."""


@dataclass
class Network:
    """Carries messages to members in this process; `now` is its clock."""

    folder: Path
    """That of the server, with those of the members in it."""
    fault: Fault = lambda name, question: ""
    up: set[str] = field(default_factory=set)
    waits: Callable[[], None] = lambda: None
    """Is called when the server waits for answers; it may crash there."""
    patience: float = FOREVER
    """Seconds within which everything is done."""
    time: float = 0.0
    members: dict[str, Member] = field(default_factory=dict)
    seen: list[tuple[str, Question]] = field(default_factory=list)
    events: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """What happens at a time."""
    _queue: list[tuple[float, int, Delivery]] = field(default_factory=list)
    """When it comes, how many messages its client had been sent, and what comes."""
    _sent: Counter[str] = field(default_factory=Counter)
    _held: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    """Questions on their way until the next of their kind has overtaken them."""

    def now(self) -> float:
        return self.time

    def connected(self) -> Sequence[str]:
        return sorted(self.up)

    def member(self, name: str) -> Member:
        if name not in self.members:
            self.members[name] = open_member(self.folder / MEMBERS / name)
        return self.members[name]

    def lose_disk(self, name: str) -> None:
        """A client's states are gone; its data are still there."""
        shutil.rmtree(self.folder / MEMBERS / name / "runs", ignore_errors=True)
        self.members.pop(name, None)

    def send(self, messages: Mapping[str, bytes]) -> None:
        for name, data in messages.items():
            question = read(Question, data)
            self._sent[name] += 1
            self.seen.append((name, question))
            what = self.fault(name, question)
            if what == "crash":
                raise Crash
            if what == "disk":
                self.lose_disk(name)
            if what == "held":
                self._held.setdefault((name, question.kind), []).append(data)
            elif name in self.up and what != "lost on the way":
                self._answered(name, data, what)
                for late in self._held.pop((name, question.kind), ()):
                    self._answered(name, late, "")

    def _answered(self, name: str, data: bytes, what: str) -> None:
        if what.startswith("killed"):
            self._end_process(name, data, what)
        if what == "failed" or what.startswith("killed"):
            self._deliver(name, None, TAKES, "the worker was killed")
            return
        body = self.member(name).answer(data)
        if what == "corrupt":
            body = body[:-1] + bytes([body[-1] ^ 1])
        # Another client sends it as if it were its own.
        who = sorted(self.up - {name})[0] if what == "stolen" else name
        if what in ("", "disk", "corrupt", "stolen", "double", "slow"):
            self._deliver(who, body, TAKES * (20 if what == "slow" else 1))
        if what == "double":
            self._deliver(name, body, TAKES)
        if what == "late":
            self._deliver(name, body, LATE)

    def _end_process(self, name: str, data: bytes, what: str) -> None:
        """A client's process is killed; the next one goes on from its files."""
        step = int(what.partition("at step ")[2] or 0)
        if step:
            with pytest.MonkeyPatch.context() as patch, suppress(Killed):
                DeadDisk(step).mount(patch.setattr)
                self.member(name).answer(data)
        elif what == "killed after":
            self.member(name).answer(data)
        self.members.pop(name, None)

    def _deliver(self, name: str, body: bytes | None, after: float, error: str = "") -> None:
        self._queue.append((self.time + after, self._sent[name], Delivery(name, body, error)))

    def receive(self, wait: float) -> Sequence[Delivery]:
        if self._queue:
            self.waits()
        coming = [each[0] for each in (*self._queue, *self.events)]
        self.time = max(self.time, min([*coming, self.time + wait]))
        assert self.time < self.patience, "the server waits for what does not come"
        for at, event in [each for each in self.events if each[0] <= self.time]:
            self.events.remove((at, event))
            event()
        due = sorted((q for q in self._queue if q[0] <= self.time), key=lambda q: q[0])
        self._queue = [each for each in self._queue if each[0] > self.time]
        return [replace(each, last=number == self._sent[each.client]) for _, number, each in due]


def samples(id: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """What a client has; no two have the same."""
    x = normal(100 + id, (SIZES[id % len(SIZES)], 6))
    return x.numpy(), (x @ normal(2, (6, classes))).argmax(1).numpy()


def member_folder(folder: Path, id: int, name: str = "") -> Path:
    """Make the folder of a client with samples of its own."""
    own = folder / MEMBERS / (name or f"c{id}")
    own.mkdir(parents=True)
    x, y = samples(id)
    np.savez(own / "own.npz", x=x, y=y)
    (own / "data.toml").write_text('[data]\nname = "own.npz"\n')
    return own


def federation(folder: Path, method: str = "fedavg", clients: int = 3, **more) -> Network:
    """Make a server's folder and its clients', all of whom are there."""
    names = [f"c{id}" for id in range(clients)]
    for id in range(clients):
        member_folder(folder, id)
    settings = {
        "methods": [method],
        "train": {"rounds": 3, "batch_size": 8, "model": "mlp"},
        "evaluate": {"every": 2},
        "method": {"local_epochs": 1},
        "fleet": {"clients": names, "deadline": DEADLINE, "wait": 10.0},
    }
    config = FederationConfig.parse(toml.merged(settings, more))
    config.save(folder)
    return Network(folder, up=set(names))
