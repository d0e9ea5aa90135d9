"""A run of 10,000 rounds takes no more memory, descriptors or disk than one of a hundred."""

import os
from pathlib import Path

import pytest

import masquerade as mq
from masquerade.results import RoundRecord
from tests.reliability import publish
from tests.support import federation, network

pytestmark = [pytest.mark.drill, pytest.mark.filterwarnings("ignore:W31")]
ROUNDS = 10_000
WARM = 100
"""Rounds after which a run has all that it needs."""

LOG = ("metrics.jsonl", "lines")
"""What has as much for every round: a line, and twelve bytes that seal it."""


class Watch(mq.Callback):
    """Notes what a run holds after some of its rounds."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.seen: dict[int, tuple[float, int, int]] = {}

    def on_round(self, run: object, record: RoundRecord) -> None:
        if record.round % WARM == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            held = pages * os.sysconf("SC_PAGESIZE") / 1e6
            self.seen[record.round] = held, len(os.listdir("/proc/self/fd")), self.disk()

    def disk(self) -> int:
        """Add up the bytes of all but the log, which has a line per round, and its hashes.

        Commits come and go.
        """
        found = 0
        for file in self.out.rglob("*"):
            try:
                found += file.stat().st_size * (file.is_file() and file.name not in LOG)
            except FileNotFoundError:
                continue
        return found


def test_ten_thousand_rounds_hold_what_a_hundred_held(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "run")
    mq.run(
        mq.methods.Ditto(local_epochs=1),
        network(),
        federation(),
        ROUNDS,
        batch_size=4,
        participation=0.34,
        evaluate=mq.Evaluate(every=0, degrees=(0,)),
        compute=mq.Compute(commit_every=0.05),
        out=tmp_path / "run",
        callbacks=[watch],
    )
    first, last = watch.seen[WARM], list(watch.seen.values())[-10:]
    grown = max(held for held, _, _ in last) - first[0]
    descriptors = max(count for _, count, _ in last) - first[1]
    sizes = [size for _, _, size in watch.seen.values()]
    early, most = max(sizes[:10]), max(sizes)
    publish(
        "soak",
        "pytest -m drill tests/drill/test_soak.py",
        {
            "rounds": ROUNDS,
            "MB grown after round 100": round(grown, 1),
            "descriptors grown": descriptors,
            "most bytes on the disk, apart from the log": most,
            "the same in the first tenth": early,
        },
    )
    assert grown < 20
    assert descriptors <= 2
    assert most < 1.5 * early
