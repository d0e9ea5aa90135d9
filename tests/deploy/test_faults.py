"""Real federations through faults: what dies comes back, and what was done is what is simulated."""

import asyncio
import http.client
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from masquerade.deploy import keys, superlink
from masquerade.deploy.gate import FLEET
from masquerade.deploy.hello import signed_headers
from masquerade.deploy.layout import ServerFolder
from masquerade.deploy.replay import replay
from tests.deploy.machines import Machines, alone, masquerade

pytest.importorskip("flwr")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(1700)]

LONG = 1500.0
THREE = {"quorum": 2, "deadline": 60.0, "wait": 10.0}


@pytest.fixture(autouse=True)
def _one_test_at_a_time() -> Iterator[None]:
    with alone():
        yield


def assert_replayed(machines: Machines, rounds: int) -> None:
    """Simulate again what a federation did, and find every bit equal."""
    found = replay(machines.folder)
    assert (found.rounds, found.differences) == (rounds, [])


@pytest.mark.parametrize("method", ["fedavg", "dmpfl", "fedmask", "fedselect", "pfedgate"])
def test_five_rounds_on_three_nodes_are_what_is_simulated(tmp_path: Path, method: str) -> None:
    with Machines(tmp_path / "fed", method, clients=3, rounds=5) as machines:
        machines.finish(LONG)
    assert_replayed(machines, 5)


def test_whatever_is_killed_comes_back_and_nothing_is_lost(tmp_path: Path) -> None:
    with Machines(tmp_path / "fed", "dmpfl", clients=3, rounds=7, fleet=THREE) as machines:
        machines.round(1)
        machines.kill(machines.home("client-1"), "supernode")
        machines.round(2)
        machines.kill_client_app("client-2")
        machines.round(3)
        machines.kill(machines.state, "server-app")
        machines.round(4)
        machines.kill(machines.state, "superlink")
        machines.round(5)
        machines.kill(machines.home("client-3"), "worker")
        machines.finish(LONG)
        said = (machines.folder / "server.log").read_text()
        assert "W620 superlink ended" in said
        assert "W620 the server's app has ended" in said
    assert_replayed(machines, 7)


def test_a_node_that_does_not_answer_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    fleet = THREE | {"deadline": 30.0}
    with Machines(tmp_path / "fed", "fedmask", clients=3, rounds=4, fleet=fleet) as machines:
        machines.round(1)
        machines.kill(machines.home("client-2"), "worker", signal.SIGSTOP)
        machines.wait(lambda status: status.lost > 0, LONG)
        machines.kill(machines.home("client-2"), "worker", signal.SIGCONT)
        machines.finish(LONG)
        assert machines.status().lost >= 1
    assert_replayed(machines, 4)


def test_a_client_whose_disk_is_lost_begins_anew_and_the_record_says_so(tmp_path: Path) -> None:
    with Machines(tmp_path / "fed", "dmpfl", clients=3, rounds=10, fleet=THREE) as machines:
        machines.round(1)
        assert masquerade("deploy", "stop", machines.home("client-1")).returncode == 0
        machines.started.pop("client-1").wait(60)
        shutil.rmtree(machines.member("client-1") / "runs")
        machines.join("client-1")
        machines.finish(LONG)
        record = (machines.folder / "metrics.jsonl").read_text()
    assert "renewed" in record
    assert_replayed(machines, 10)


def test_who_is_not_registered_gets_nowhere_and_nonsense_breaks_nothing(tmp_path: Path) -> None:
    with Machines(tmp_path / "fed", "fedavg", clients=2, rounds=2) as machines:
        machines.round(0)
        layout = ServerFolder(machines.folder)
        port = machines.trial.config.fleet.port
        (tmp_path / "foreign").write_bytes(keys.new_client_key())
        (tmp_path / "foreign").chmod(0o600)
        authority = str(layout.certificate("ca")[0])
        around = superlink.environment(tmp_path)
        node = [superlink.program("flower-supernode", around), "--superlink", f"127.0.0.1:{port}"]
        for words in (
            ["--root-certificates", authority],
            [
                "--root-certificates",
                authority,
                "--auth-supernode-private-key",
                f"{tmp_path}/foreign",
            ],
            ["--insecure", "--max-retries", "1"],
        ):
            command = [*node, *words, "--port", "39217"]
            try:
                done = subprocess.run(
                    command, env=around, capture_output=True, timeout=60, check=False
                )
            except subprocess.TimeoutExpired:
                # It still tries; that it is not in, the nodes below say.
                continue
            assert done.returncode != 0, words
        control = superlink.Control(layout, superlink.environment(layout.flower_home))
        assert len(asyncio.run(control.nodes())) == 2
        context = ssl.create_default_context(cafile=authority)
        private = (machines.home("client-1") / "node" / "key").read_bytes()
        for path in sorted(FLEET):
            for body in (b"", b"\xff" * 1000, b"\x0a\x02\x08\x01" * 50):
                connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)
                headers = signed_headers(private) | {"content-type": "application/protobuf"}
                connection.request("POST", path.decode(), body, headers)
                assert connection.getresponse().status >= 400, (path, body)
                connection.close()
        machines.finish(LONG)
    assert_replayed(machines, 2)
