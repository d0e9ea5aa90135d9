"""Damage to the folders of a federation: whoever reads them is told, and goes on where it can."""

import random
import shutil
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch

from masquerade.deploy.agreement import AGREED, Agreement
from masquerade.deploy.fleet import STARTS, next_start
from masquerade.deploy.member import RUNS, SEAT, open_member
from masquerade.deploy.participant import MODELS, STATES
from masquerade.deploy.replay import MEMBERS, replay
from masquerade.deploy.roster import CLIENTS, check_whole, read_roster
from masquerade.deploy.server import serve
from masquerade.errors import MasqueradeError
from masquerade.experiments.checkpoints import CommitFacts, Origin
from masquerade.results.json_records import from_json
from masquerade.storage.manifest import unseal
from tests.damage import damaged, drilled, read_run
from tests.deploy.network import Network, federation
from tests.messages import Golden
from tests.reliability import publish
from tests.support import raises

pytestmark = pytest.mark.filterwarnings("ignore::masquerade.errors.MasqueradeWarning")
UNREAD = ("lock", "report.html", "status.json", STARTS, "federation.toml", "data.toml", "own.npz")
"""What no result depends on, what people write, and data, whose fingerprint the server has."""


def served(folder: Path) -> Path:
    """A finished federation of three clients with states of their own."""
    network = federation(folder, "ditto")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("masquerade.report.render.can_draw", lambda: False)
        serve(folder, network, network.now)
    return folder


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished federation, and beside it another."""
    folder = tmp_path_factory.mktemp("federations")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        served(folder / "other")
        return served(folder / "fed")


@pytest.fixture
def fed(done: Path, tmp_path: Path) -> Path:
    return shutil.copytree(done, tmp_path / "fed")


def run_of(folder: Path, name: str = "c1") -> Path:
    """The folder of the run at a client."""
    return next((folder / MEMBERS / name / RUNS).iterdir())


def states_of(folder: Path) -> dict[str, list[int]]:
    """By client, the bases of the states that it holds."""
    found = {}
    for name in ("c0", "c1", "c2"):
        files = sorted((run_of(folder, name) / STATES).iterdir())
        found[name] = [int(each.stem, 16) for each in files]
    return found


def read_all(states: dict[str, list[int]], folder: Path) -> None:
    """Read what the server and all clients hold."""
    check_whole(folder)
    agreement = Agreement.load(folder)
    roster = read_roster(folder, agreement.run)
    read_run(folder)
    origin = Origin(agreement.config, agreement.run, agreement.initial, torch.__version__)
    # The server goes on from any that is intact, if newer ones are not, and checks whose it is.
    for manifest in (folder / "rounds").glob("*/manifest.json"):
        if found := unseal(manifest.read_bytes()):
            from_json(CommitFacts, found["facts"]).origin.check(origin)
    for name, bases in states.items():
        assert name in roster.clients
        made = open_member(folder / MEMBERS / name).participant(agreement.run)
        if not made.last():
            raise MasqueradeError("E401", "what it was asked last is damaged, which its log says")
        for view in ("personal", "global"):
            made.model(view)
            made.report(view)
        for base in bases:
            made.client.load(base)


def test_no_damage_of_a_federation_is_read_in_silence(done: Path, tmp_path: Path) -> None:
    read, other = partial(read_all, states_of(done)), done.parent / "other"
    found = damaged(done, other, tmp_path / "fed", 100, read, UNREAD)
    assert found.silent == []
    assert found.cleared < 30


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_two_thousand_damages_of_a_federation_are_not_read_in_silence(done: Path) -> None:
    read, other = partial(read_all, states_of(done)), done.parent / "other"
    found = drilled("damage-federation", done, other, read, UNREAD, thousands=2)
    publish("damage-federation", "pytest tests/deploy/test_damage.py -m drill", found)
    assert found["damaged folders"] == 2000


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[random.Random(len(data)).randrange(9, len(data))] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", [AGREED, CLIENTS])
def test_a_server_goes_on_from_no_damaged_record(fed: Path, name: str, golden: Golden) -> None:
    flip(fed / name)
    network = Network(fed)
    with raises("E401", name) as refusal:
        serve(fed, network, network.now)
    golden(refusal.value)


@pytest.mark.parametrize("name", [AGREED, CLIENTS])
def test_a_server_that_lost_a_record_asks_nobody_to_begin_anew(fed: Path, name: str) -> None:
    (fed / name).unlink()
    network = Network(fed)
    for go_on in (lambda: serve(fed, network, network.now), lambda: replay(fed)):
        with raises("E401", name):
            go_on()
    assert network.seen == []


@pytest.mark.parametrize("name", [AGREED, SEAT])
def test_a_client_whose_record_is_damaged_is_told_anew(fed: Path, name: str) -> None:
    run = run_of(fed)
    flip(run / name)
    with raises("E611", name):
        open_member(fed / MEMBERS / "c1").participant(run.name)


def test_a_client_goes_on_from_no_damaged_state_nor_from_that_of_another(fed: Path) -> None:
    run = run_of(fed)
    client = open_member(fed / MEMBERS / "c1").participant(run.name).client
    for state in sorted((run / STATES).iterdir()):
        client.load(int(state.stem, 16))
        # Both have sent as much, so that their states have one name.
        shutil.copy(run_of(fed, "c2") / STATES / state.name, state)
        with raises("E606", state.name):
            client.load(int(state.stem, 16))
    flip(state)
    with raises("E606", state.name):
        client.load(int(state.stem, 16))


def test_a_damaged_model_of_a_client_is_not_used(fed: Path) -> None:
    flip(run_of(fed) / MODELS / "personal.safetensors")
    with raises("E401", "personal.safetensors"):
        open_member(fed / MEMBERS / "c1").personal()


@pytest.mark.parametrize("text", ["", "x", "9" * 5000, "\xff"])
def test_a_start_that_cannot_be_read_is_as_late_as_the_clock(tmp_path: Path, text: str) -> None:
    (tmp_path / STARTS).write_text(text, encoding="latin-1")
    first = next_start(tmp_path)
    assert first > 1_700_000_000
    assert next_start(tmp_path) > first


def test_a_replay_has_the_threads_of_the_run_and_leaves_those_of_the_process(done: Path) -> None:
    torch.set_num_threads(2)
    try:
        assert replay(done).differences == []
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
