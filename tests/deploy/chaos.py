"""What is killed and cut while a federation trains: drawn from a seed, so that it comes again."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from masquerade.deploy.messages import Question
from masquerade.deploy.replay import MEMBERS, read_records, replay
from masquerade.deploy.server import serve
from masquerade.results import RoundRecord
from masquerade.storage.run_directory import METRICS, RunDirectory
from tests.deploy.network import Crash, Network
from tests.storage.disk import DeadDisk, Killed

CUT = "cut off before it is asked"
CLIENT: dict[str, str] = {
    "killed before it answers": "killed",
    "killed while it writes": "killed at step ",
    "killed after it answered": "killed after",
    "its question is lost": "lost on the way",
    "its question is overtaken": "held",
    "its answer is lost": "unheard",
    "its answer is late": "late",
    CUT: "",
}
"""What is done to clients, and the network's word for it."""
ASKING, WAITING = "killed while it asks", "killed while it waits"
BEFORE, WRITING, AFTER = (f"killed {when}" for when in ("before a commit", "in it", "after it"))
SERVER = (ASKING, WAITING, BEFORE, WRITING, AFTER)
STEPS, OF_COMMITS = 14, 40
"""Operations on the disk that a client's answer takes, and a commit, at most."""
ENDLESS = 1e6


@dataclass
class Chaos:
    """Hurts a share of the clients in every round, and the server in some of them."""

    network: Network
    rounds: int
    kills: int
    share: float = 0.3
    seed: int = 1
    hurt: dict[int, dict[str, str]] = field(default_factory=dict)
    """What was done to clients, by round: in the attempt that was committed."""
    counted: Counter[str] = field(default_factory=Counter)
    lines: dict[int, bytes] = field(default_factory=dict)
    """The line of a round, as it was when the round was committed."""
    _number: int = 0
    _left: dict[int, str] = field(init=False)
    """What is done to the server, by round."""
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        when = sorted(self._random.sample(range(self.rounds), self.kills))
        self._left = {n: SERVER[place % len(SERVER)] for place, n in enumerate(when)}
        self.network.fault, self.network.waits = self.fault, self.waits
        self.network.patience = ENDLESS

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in (self.network.folder / MEMBERS).iterdir())

    def draw(self, number: int) -> None:
        """Draw what becomes of clients in a round, or in another attempt at it."""
        self._number, self.hurt[number], self.network.up = number, {}, set(self.names)
        if number == self.rounds:
            return
        # Whoever is not there at first has no place yet, and is no client that can be lost.
        kinds = [what for what in CLIENT if number or what != CUT]
        for name in self._random.sample(self.names, round(self.share * len(self.names))):
            what = self._random.choice(kinds)
            self.hurt[number][name] = what
            self.counted[what] += 1
            if what == CUT:
                self.network.up.discard(name)

    def fault(self, name: str, question: Question) -> str:
        """Say what goes wrong with a client's answer."""
        if question.kind != "train":
            return ""
        if name == sorted(self.network.up)[-1] and self._is_due(ASKING):
            return "crash"
        word = CLIENT[self.hurt[question.number].get(name, CUT)]
        return f"{word}{self._random.randint(1, STEPS)}" if word.endswith("step ") else word

    def waits(self) -> None:
        """Kill the server in the midst of a round, where that is due."""
        if self._is_due(WAITING):
            raise Crash

    def _is_due(self, what: str) -> bool:
        """Tell whether the server is killed here; it is killed once."""
        if self._left.get(self._number) != what:
            return False
        del self._left[self._number]
        self.counted[what] += 1
        return True

    @contextmanager
    def _commits(self) -> Iterator[None]:
        """Kill the server before, in and after commits, and draw what comes next."""
        real = RunDirectory.commit

        def commit(directory: RunDirectory, number: int, *rest: object) -> None:
            if self._is_due(BEFORE):
                raise Crash
            writing = self._is_due(WRITING)
            with pytest.MonkeyPatch.context() as patch:
                if writing:
                    DeadDisk(self._random.randint(1, OF_COMMITS)).mount(patch.setattr)
                real(directory, number, *rest)  # type: ignore[arg-type]
            metrics = (self.network.folder / METRICS).read_bytes()
            self.lines[number] = metrics.splitlines()[-1]
            if writing or self._is_due(AFTER):
                raise Crash
            self.draw(number)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunDirectory, "commit", commit)
            yield

    def serve(self) -> None:
        """Serve until all is done, again after every kill."""
        network = self.network
        self.draw(0)
        with self._commits():
            while True:
                try:
                    serve(network.folder, network, network.now)
                    return
                except (Crash, Killed):
                    with RunDirectory.open(network.folder) as directory:
                        commit = directory.latest()
                    self.draw(commit.number if commit else 0)

    def check(self) -> dict[str, float]:
        """Find that nothing is lost, everybody named, and the end that of the replay."""
        metrics = (self.network.folder / METRICS).read_bytes().splitlines()
        assert len(metrics) == self.rounds
        for number, line in self.lines.items():
            assert metrics[number - 1] == line, f"round {number} is not what was committed"
        records = list(read_records(self.network.folder))
        named = [self._named(record) for record in records]
        found = replay(self.network.folder)
        assert (found.rounds, found.differences, found.missing) == (self.rounds, [], [])
        return {
            "rounds": self.rounds,
            "clients": len(self.names),
            "clients killed or cut in the rounds": sum(map(len, self.hurt.values())),
            "of them named in the record of their round": sum(named),
            "kills of the server": sum(self.counted[what] for what in SERVER),
            "tensors and figures compared with the replay": found.compared,
            "of them other than the replay's": len(found.differences),
        }

    def _named(self, record: RoundRecord) -> int:
        """Hold the record of a round against what was done in it; return how many it names."""
        seen, hurt = record.attendance, self.hurt[record.round - 1]
        assert seen is not None
        assert all(each.kind == "setup" for each in seen.prepared), "somebody lost its states"
        numbers = {name: place for place, name in enumerate(self.names)}
        away = {numbers[name] for name, what in hurt.items() if what == CUT}
        lost = {numbers[name] for name, what in hurt.items() if what != CUT}
        assert set(seen.eligible) == set(numbers.values())
        assert set(seen.eligible) - set(seen.asked) == away
        assert set(seen.asked) - set(seen.back) == set(record.lost) == lost
        told = {name for counts in seen.faults.values() for name in counts}
        assert {name for name, what in hurt.items() if what != CUT} <= told
        return len(away | lost)
