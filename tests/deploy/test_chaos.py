"""Clients and the server are killed and cut in every round, and nothing is lost."""

from collections import Counter
from pathlib import Path

import pytest

from tests.deploy.chaos import CLIENT, SERVER, Chaos
from tests.deploy.network import federation
from tests.reliability import publish

pytestmark = pytest.mark.filterwarnings("ignore::masquerade.errors.MasqueradeWarning")


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are made of the same summaries elsewhere, and take seconds."""
    monkeypatch.setattr("masquerade.report.render.can_draw", lambda: False)


def gone_through(folder: Path, method: str, clients: int, rounds: int, kills: int) -> Chaos:
    """Train through chaos."""
    more = {"train": {"rounds": rounds}, "evaluate": {"every": 10}, "fleet": {"quorum": 2}}
    chaos = Chaos(federation(folder, method, clients, **more), rounds, kills)
    chaos.serve()
    return chaos


def test_through_chaos_nothing_is_lost(tmp_path: Path) -> None:
    chaos = gone_through(tmp_path, "dmpfl", clients=4, rounds=8, kills=5)
    assert chaos.check()["kills of the server"] == 5
    assert all(chaos.counted[what] == 1 for what in SERVER)


METHODS = ("dmpfl", "fedmask", "scaffold")
"""What clients keep, and what they send, differs most between these."""


@pytest.mark.drill
@pytest.mark.timeout(1700)
def test_through_fifty_rounds_of_chaos_nothing_is_lost(tmp_path: Path) -> None:
    """30 % of the clients in every round, and 20 kills of the server, for each of the methods."""
    total, done = Counter[str](), Counter[str]()
    for method in METHODS:
        chaos = gone_through(tmp_path / method, method, clients=10, rounds=50, kills=20)
        total.update(chaos.check())  # type: ignore[arg-type]
        done.update(chaos.counted)
    assert set(done) == {*CLIENT, *SERVER}
    assert total["kills of the server"] == 20 * len(METHODS)
    assert total["of them named in the record of their round"] == 3 * 50 * len(METHODS)
    figures = {"methods": len(METHODS), **total, **{f"server {w}": done[w] for w in SERVER}}
    publish(
        "chaos",
        "pytest -m drill tests/deploy/test_chaos.py -k fifty",
        figures | {f"client, {what}": done[what] for what in CLIENT},
    )
