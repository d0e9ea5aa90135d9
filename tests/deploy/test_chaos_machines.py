"""Fifty rounds of real processes, of which some are killed and cut off in every round.

They are three federations, so that no test takes much longer than others.
"""

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from masquerade.deploy.processes import running
from masquerade.deploy.replay import read_records, replay
from masquerade.storage.run_directory import METRICS
from tests.deploy.machines import Machines, alone
from tests.reliability import publish

pytest.importorskip("flwr")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(1700)]

ROUNDS = int(os.environ.get("MASQUERADE_CHAOS_ROUNDS", "17"))
KILLS = -(-ROUNDS * 2 // 5)
"""Seven of 17 rounds: twenty in all, and one more."""
LONG = 1500.0
FLEET = {"quorum": 2, "deadline": 20.0, "wait": 4.0}
WORKER, NODE, APP, CUT = (
    *("the worker is killed", "the node is killed", "the node's app is killed"),
    "the worker is stopped for a round",
)
SERVER_APP, LINK = "the server's app is killed", "SuperLink is killed"
APP_SECONDS = 8.0
"""Within which the app of a message is there, if its client is asked."""


@dataclass
class Storm:
    """Hurts the processes of some clients in every round, and those of the server in some."""

    machines: Machines
    random: Random
    counted: Counter[str] = field(default_factory=Counter)
    seen: list[tuple[int, bytes]] = field(default_factory=list)
    """How many rounds were told to be done, and the metrics then."""

    def chosen(self, number: int) -> list[str]:
        """Draw 5 of 16 clients over four rounds, of four: about 30 %."""
        return self.random.sample(self.machines.names, 2 if number % 4 == 3 else 1)

    def round(self, number: int, kind: str) -> None:
        """Hurt some clients in a round, and then the server as `kind` says."""
        cut = [name for name in self.chosen(number) if self.hurt(name) == CUT]
        if kind:
            self.kill(self.machines.state, "server-app" if kind == SERVER_APP else "superlink")
            self.counted[kind] += 1
        if cut:
            self.over(max(number, self.machines.status().round))
        for name in cut:
            self.machines.kill(self.machines.home(name), "worker", signal.SIGCONT)

    def hurt(self, name: str) -> str:
        """Do something to a client; return what."""
        what, home = self.random.choice((WORKER, NODE, APP, CUT)), self.machines.home(name)
        if what == APP:
            try:
                self.machines.kill_client_app(name, APP_SECONDS)
            except (AssertionError, KeyError, OSError):
                # It was not asked, or its node is being started again.
                what = WORKER
        if what == CUT and name not in self.machines.status().outstanding:
            what = WORKER
        if what == CUT:
            self.kill(home, "worker", signal.SIGSTOP)
        elif what != APP:
            self.kill(home, "worker" if what == WORKER else "supernode")
        self.counted[what] += 1
        return what

    def kill(self, folder: Path, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process, once it runs."""
        end = time.monotonic() + 120.0
        while name not in running(folder):
            assert time.monotonic() < end, f"{name} does not come back\n{self.machines.told()}"
            time.sleep(0.1)
        self.machines.kill(folder, name, number)

    def over(self, number: int) -> None:
        """Wait until a round is done."""
        done = self.machines.wait(lambda status: status.round > number, LONG).round
        self.seen.append((done, (self.machines.folder / METRICS).read_bytes()))


@pytest.mark.parametrize("part", [1, 2, 3])
def test_through_fifty_rounds_of_killed_processes_nothing_is_lost(
    tmp_path: Path, part: int
) -> None:
    begun = time.monotonic()
    with (
        alone(),
        Machines(tmp_path / "fed", "dmpfl", clients=4, rounds=ROUNDS, fleet=FLEET) as machines,
    ):
        storm = Storm(machines, Random(part))
        when = sorted(storm.random.sample(range(ROUNDS), KILLS))
        kinds = {number: (SERVER_APP, LINK)[place % 2] for place, number in enumerate(when)}
        for number in range(ROUNDS):
            machines.round(number, LONG)
            storm.round(number, kinds.get(number, ""))
            storm.over(number)
        machines.finish(LONG)
        seconds = time.monotonic() - begun
        said = (machines.folder / "server.log").read_text(encoding="utf-8")
    final, records = (machines.folder / METRICS).read_bytes(), list(read_records(machines.folder))
    # What was told to be done is never done otherwise.
    for done, metrics in storm.seen:
        known = metrics.splitlines()[:done]
        assert (len(known), final.splitlines()[:done]) == (done, known)
    assert [record.round for record in records] == [*range(1, ROUNDS + 1)]
    lost = Counter[str]()
    for record in records:
        seen = record.attendance
        assert seen is not None
        assert not any(each.kind == "renewed" for each in seen.prepared), "states were lost"
        here = {machines.names[id] for id in seen.back}
        named = {
            machines.names[id] for id in (*record.lost, *(set(seen.eligible) - set(seen.asked)))
        }
        assert here | named == {machines.names[id] for id in seen.eligible}
        told = {name for counts in seen.faults.values() for name in counts}
        assert {machines.names[id] for id in record.lost} <= told
        lost.update(lost=len(record.lost), away=len(seen.eligible) - len(seen.asked))
        lost.update(empty=seen.below_quorum)
    found = replay(machines.folder)
    assert (found.rounds, found.differences, found.missing) == (ROUNDS, [], [])
    hurt = sum(storm.counted[what] for what in (WORKER, NODE, APP, CUT))
    assert storm.counted[SERVER_APP] + storm.counted[LINK] == KILLS
    figures = {
        "rounds": ROUNDS,
        "clients": len(machines.names),
        "clients killed or cut in the rounds": hurt,
        "answers that did not come, each named in the record": lost["lost"],
        "clients that were away from a round, each named in the record": lost["away"],
        "rounds below the quorum, which changed nothing": lost["empty"],
        "kills of the server": KILLS,
        "starts of server processes that were told (W620)": said.count("W620"),
        "tensors and figures compared with the replay": found.compared,
        "of them other than the replay's": len(found.differences),
        "minutes": round(seconds / 60, 1),
    }
    settings = "" if ROUNDS == 17 else f"MASQUERADE_CHAOS_ROUNDS={ROUNDS} "
    command = f"{settings}pytest -m drill tests/deploy/test_chaos_machines.py"
    publish(f"chaos-processes-{part}", command, figures | dict(sorted(storm.counted.items())))
