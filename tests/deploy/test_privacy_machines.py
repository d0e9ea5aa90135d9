"""Differential privacy of real processes: ε is what it would be had nobody been killed."""

import json
from pathlib import Path

import pytest

from masquerade.deploy.agreement import Agreement
from masquerade.deploy.budget import FILE as SPENT
from masquerade.deploy.budget import Ledger
from masquerade.deploy.roster import read_roster
from masquerade.results.json_records import from_json
from masquerade.storage.results import read_sheets
from tests.deploy.machines import Machines, alone, masquerade

pytest.importorskip("flwr")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(1700)]

FLEET = {"quorum": 2, "deadline": 60.0, "wait": 10.0}
ROUNDS, EPSILON, DELTA = 5, 8.0, 1e-4


def test_what_is_killed_spends_no_privacy_twice(tmp_path: Path) -> None:
    privacy = {"unit": "sample", "epsilon": EPSILON, "delta": DELTA}
    folder = tmp_path / "fed"
    with (
        alone(),
        Machines(folder, "fedavg", 3, ROUNDS, FLEET, privacy, batch_size=10) as machines,
    ):
        machines.round(1)
        machines.kill(machines.state, "server-app")
        machines.round(2)
        machines.kill(machines.home("client-1"), "worker")
        machines.round(3)
        machines.kill(machines.state, "superlink")
        machines.finish()
        ledgers = {}
        for name in machines.names:
            (path,) = (machines.member(name) / "runs").glob(f"*/{SPENT}")
            ledgers[name] = from_json(Ledger, json.loads(path.read_bytes()))
    (sheet,) = read_sheets(folder)
    made = sheet.guarantee
    assert made is not None
    told = {machines.names[int(id)]: epsilon for id, epsilon in made.clients.items()}
    assert told == {name: each.epsilon(DELTA) for name, each in ledgers.items()}
    assert 0 < made.epsilon == max(told.values()) <= EPSILON
    for name, known in read_roster(folder, Agreement.load(folder).run).clients.items():
        # A round that was lost was not done twice, and one that came late was done once.
        assert ledgers[name].steps <= ROUNDS * -(-known.facts.train // 10)
    assert f"{made.epsilon:.3g} at δ" in masquerade("report", folder, "--privacy").stdout
    refused = masquerade("deploy", "replay", folder)
    assert refused.returncode != 0
    assert "E632" in refused.stderr
