"""Folders of federations and clients: made, changed, refused, and told of."""

import asyncio
import errno
import json
import os
import stat
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from masquerade.deploy import (
    founding,
    health,
    joining,
    keys,
    processes,
    server_app,
    superlink,
    systemd,
    worker,
)
from masquerade.deploy.client_overview import client_overview
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.gate import Gate, Seen
from masquerade.deploy.hello import Greeting, Unreachable, split_address
from masquerade.deploy.join_file import JoinFile
from masquerade.deploy.layout import ClientFolder, ServerFolder
from masquerade.deploy.overview import ending, overview
from masquerade.deploy.ports import free_ports
from masquerade.deploy.processes import SUPERVISOR, Process, recorded
from masquerade.deploy.replay import Replayed
from masquerade.deploy.server_app import Starts
from masquerade.deploy.serving import Address, Server, client_keys, server_tls
from masquerade.deploy.status import ClientStatus, Status, StatusFile
from masquerade.deploy.traffic import read_traffic, write_traffic
from masquerade.deploy.trial import Trial
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.storage.results import read_results
from tests.messages import Golden
from tests.support import raises

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from masquerade.cli.app import app


def config(**fleet: object) -> FederationConfig:
    """Return the settings of a federation of two clients."""
    names = {"name": "fed", "clients": ["ann", "bob"], "quorum": 1, "host": "fed.example.org"}
    return FederationConfig.parse({"methods": ["fedavg"], "fleet": names | fleet})


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    """A federation's folder."""
    founding.found(tmp_path / "fed", config())
    return tmp_path / "fed"


@pytest.mark.parametrize("part", ["federation", "name"])
@pytest.mark.parametrize("name", ["fed\nExecStartPre=/bin/sh", "../fed", "a/b", ""])
def test_a_join_file_of_a_name_that_no_unit_can_have_is_refused(
    fed: Path, part: str, name: str
) -> None:
    lines = (fed / "ann.join").read_text().splitlines()
    others = [f"{part} = {json.dumps(name)}" if each.startswith(part) else each for each in lines]
    (fed / "ann.join").write_text("\n".join(others))
    with raises("E203"):
        JoinFile.read(fed / "ann.join")


def test_a_federation_has_all_that_it_needs_and_keeps_its_secrets(fed: Path) -> None:
    layout = ServerFolder(fed)
    assert FederationConfig.load(fed).fleet.clients == ("ann", "bob")
    assert {path.name for path in fed.iterdir()} == {
        *("README.md", "federation.toml", "keys", "carrier", "masquerade-fed.service"),
        *("ann.join", "bob.join"),
    }
    for path in [*fed.glob("*.join"), *layout.keys.glob("*.key")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for path in (fed, layout.keys, layout.state):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert not [path for path in layout.clients.iterdir() if b"PRIVATE" in path.read_bytes()]


def test_a_join_file_holds_the_key_that_the_server_knows(fed: Path) -> None:
    layout = ServerFolder(fed)
    for name in ("ann", "bob"):
        joined = JoinFile.read(layout.join_file(name))
        assert (joined.name, joined.address) == (name, "fed.example.org:8443")
        assert client_keys(layout)[0][keys.public_key(joined.key.encode())] == name
        assert joined.authority == layout.certificate("ca")[0].read_text()


def test_the_server_is_known_by_its_host_and_superlink_by_the_loopback_alone(fed: Path) -> None:
    layout = ServerFolder(fed)
    names = {
        name: keys.hosts_of(layout.certificate(name)[0].read_bytes())
        for name in ("server", "loopback")
    }
    assert names["server"] == ("fed.example.org", *keys.LOOPBACK)
    assert names["loopback"] == keys.LOOPBACK


def test_a_folder_that_is_there_stays_as_it_is(fed: Path, golden: Golden) -> None:
    before = (fed / "federation.toml").read_bytes()
    with raises("E620", fed) as refusal:
        founding.found(fed, config())
    golden(refusal.value)
    assert (fed / "federation.toml").read_bytes() == before


def test_a_client_is_added_and_another_removed(fed: Path) -> None:
    layout = ServerFolder(fed)
    path = founding.add(fed, "cid")
    known, bad = client_keys(layout)
    assert known[keys.public_key(JoinFile.read(path).key.encode())] == "cid"
    assert bad == []
    founding.remove(fed, "ann")
    assert sorted(client_keys(layout)[0].values()) == ["bob", "cid"]
    assert not layout.join_file("ann").exists()
    fleet = FederationConfig.load(fed).fleet
    assert (fleet.clients, fleet.removed) == (("ann", "bob", "cid"), ("ann",))


@pytest.mark.parametrize("name", ["bob", "../x", "a b", ""])
def test_names_that_are_taken_or_lead_elsewhere_are_refused(fed: Path, name: str) -> None:
    before = sorted(fed.rglob("*"))
    with raises("E201"):
        founding.add(fed, name)
    assert sorted(fed.rglob("*")) == before


def test_who_is_no_client_cannot_be_removed(fed: Path) -> None:
    with raises("E201", "nobody"):
        founding.remove(fed, "nobody")


def test_a_certificate_is_renewed_by_the_same_authority_for_more_names(fed: Path) -> None:
    layout = ServerFolder(fed)
    certificate, _ = layout.certificate("server")
    before, authority = certificate.read_bytes(), layout.certificate("ca")[0].read_bytes()
    assert "new.example.org" in founding.renew(fed, ["new.example.org"])
    assert certificate.read_bytes() != before
    assert keys.hosts_of(certificate.read_bytes())[:2] == ("new.example.org", "fed.example.org")
    assert JoinFile.read(founding.add(fed, "cid")).address == "new.example.org:8443"
    assert layout.certificate("ca")[0].read_bytes() == authority
    layout.certificate("ca")[1].unlink()
    with raises("E620", "ca.key"):
        founding.renew(fed)


def test_certificates_warn_before_they_end(fed: Path, golden: Golden) -> None:
    layout = ServerFolder(fed)
    assert ending(layout) == []
    pair = (path.read_bytes() for path in layout.certificate("ca"))
    authority = keys.Certificate(*pair)
    for days, word in ((29, "29"), (0, "ended")):
        made = keys.new_server(authority, ["fed.example.org"], days)
        layout.certificate("server")[0].write_bytes(made.certificate)
        (said,) = ending(layout)
        assert said.startswith("W621 ")
        assert word in said
    golden(said)


def test_a_federation_is_told_of(fed: Path) -> None:
    layout = ServerFolder(fed)
    found = overview(layout)
    assert not found.well
    assert [client.state for client in found.clients] == ["never seen", "never seen"]
    assert CliRunner().invoke(app, ["deploy", "status", str(fed)]).exit_code == 0
    founding.remove(fed, "bob")
    gate = Gate(("", 0), None, {}.get, lambda name: {}, bool)  # type: ignore[arg-type]
    gate.seen["ann"] = Seen(3, 2_000_000, 10, 1.0)
    write_traffic(layout.traffic, gate)
    Process.here(SUPERVISOR).record(layout.state)
    Process.here("superlink").record(layout.state)
    # Who was refused and is removed keeps nothing waiting.
    StatusFile(fed, Status(doing="training", refusals={"bob": "E612 other columns"})).update()
    found = overview(layout)
    assert found.well
    assert [client.state for client in found.clients] == ["away", "removed"]
    (fed / "status.json").unlink()
    shown = CliRunner().invoke(app, ["deploy", "status", str(fed)]).stdout
    assert "2.0 MB" in shown
    assert "not begun" in shown


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (Status(doing="failed", problem="E402 of another torch"), "E402"),
        (Status(doing="waiting", connected=("ann",)), "bob"),
        (Status(doing="training", refusals={"bob": "E612 other columns"}), "E612"),
    ],
)
def test_a_federation_is_not_well_while_somebody_has_to_see_to_it(
    fed: Path, said: Status, named: str, golden: Golden
) -> None:
    layout = ServerFolder(fed)
    for name in (SUPERVISOR, "superlink"):
        Process.here(name).record(layout.state)
    StatusFile(fed, said).update()
    well, body = health.answer(layout)
    (trouble,) = json.loads(body)["troubles"]
    assert not well
    assert named in trouble
    assert trouble in CliRunner().invoke(app, ["deploy", "status", str(fed)]).stdout.replace(
        "\n", " "
    ).replace("  ", " ")
    golden(trouble)
    StatusFile(fed, said).update(doing="training", refusals={})
    assert health.answer(layout)[0]


def test_a_federation_is_not_well_whose_app_ends_again_and_again(fed: Path, golden: Golden) -> None:
    layout, starts = ServerFolder(fed), Starts()
    for name in (SUPERVISOR, "superlink"):
        Process.here(name).record(layout.state)
    found = []
    for rounds in (0, 0, 1, 1, 1):
        starts = starts.after(Status(doing="training", round=rounds))
        starts.write(layout.restarts)
        found.append(overview(layout).well)
    assert found == [True, True, True, True, False]
    golden(overview(layout).troubles[0])


def test_an_app_that_does_rounds_is_started_again_soon_however_often_it_ends() -> None:
    starts, waits = Starts(), []
    for rounds in (0, 0, 0, 1, 1, 2, *[2] * 2000):
        starts = starts.after(Status(doing="training", round=rounds))
        waits.append(starts.wait)
    assert waits[:6] == [1.0, 2.0, 4.0, 1.0, 2.0, 1.0]
    assert max(waits) == 32.0


def test_a_federation_is_not_well_whose_certificate_has_ended(fed: Path) -> None:
    layout = ServerFolder(fed)
    for name in (SUPERVISOR, "superlink"):
        Process.here(name).record(layout.state)
    authority = keys.Certificate(*(path.read_bytes() for path in layout.certificate("ca")))
    for days, well in ((5, True), (0, False)):
        made = keys.new_server(authority, ["fed.example.org"], days)
        layout.certificate("server")[0].write_bytes(made.certificate)
        assert overview(layout).well == well


def test_results_of_a_federation_that_trains_are_to_come(fed: Path, golden: Golden) -> None:
    (fed / "config.toml").write_text("")
    with raises("E408", fed) as refusal:
        read_results(fed)
    golden(refusal.value)


def test_what_the_server_warns_of_is_in_a_log(fed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def serving(*given: object) -> None:
        for _ in range(2):
            warnings.warn("W619 client ann: no answer", MasqueradeWarning, stacklevel=1)
        raise MasqueradeError("E619", "nobody reported")

    monkeypatch.setattr("masquerade.deploy.server.serve", serving)
    layout = ServerFolder(fed)
    with warnings.catch_warnings():
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        server_app.run(fed, lambda nodes, seconds: None, "7")  # type: ignore[arg-type,return-value]
    log = (layout.state / "logs" / "server-app.log").read_text()
    assert log.count("W619 client ann: no answer") == 2
    assert "E619 nobody reported" in log
    assert server_app.Outcome.read(layout.outcome) == server_app.Outcome(
        "7", "E619 nobody reported"
    )


def test_an_app_ends_the_one_before_it_and_a_run_in_use_is_tried_again(
    fed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app that was given up came late, beside the next one, and ended the server with E404."""
    layout, refusals = ServerFolder(fed), ["E404", "E404", "E619"]
    late = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Process.of(server_app.NAME, late.pid).record(layout.state)

    def serving(*given: object) -> None:
        assert late.wait(10) != 0
        if len(refusals) == 3:
            # The next one is there already: what it wrote is its own.
            Process(server_app.NAME, 1, "another").record(layout.state)
        raise MasqueradeError(refusals.pop(0), "no")

    monkeypatch.setattr("masquerade.deploy.server.serve", serving)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    for there in ({server_app.NAME}, set()):
        with warnings.catch_warnings(), raises("E404"):
            server_app.run(fed, lambda nodes, seconds: None, "7")  # type: ignore[arg-type,return-value]
        assert recorded(layout.state).keys() & {server_app.NAME} == there
        assert server_app.Outcome.read(layout.outcome) is None
    with warnings.catch_warnings():
        server_app.run(fed, lambda nodes, seconds: None, "8")  # type: ignore[arg-type,return-value]
    outcome = server_app.Outcome.read(layout.outcome)
    assert outcome is not None
    assert outcome.error == "E619 no"


def test_what_passed_outlives_the_server_and_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    assert read_traffic(path) == {}
    path.write_text("{")
    assert read_traffic(path) == {}


def join(fed: Path, name: str, home: Path, users: joining.Users | None = None) -> ClientFolder:
    """Lay out a client's folder."""
    layout = ClientFolder(home)
    joined = JoinFile.read(ServerFolder(fed).join_file(name))
    joining.prepare(layout, joined, users or joining.Users())
    joining.write_unit(layout, joined, users or joining.Users())
    return layout


def test_a_clients_folder_keeps_its_key_and_data_from_others(fed: Path, tmp_path: Path) -> None:
    layout = join(fed, "ann", tmp_path / "ann")
    for path in (layout.path, layout.member, layout.node):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(layout.key.stat().st_mode) == 0o600
    assert keys.public_key(layout.key.read_bytes()) in client_keys(ServerFolder(fed))[0]
    assert join(fed, "ann", tmp_path / "ann") == layout


def test_a_client_is_told_of(fed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = join(fed, "ann", tmp_path / "ann")
    answers = ["later", MasqueradeError("E624", "a key that is not registered"), 200.0, 5.0]

    def hello(address: str, authority: Path, private: bytes) -> Greeting:
        found = answers.pop(0)
        if isinstance(found, MasqueradeError):
            raise found
        if isinstance(found, str):
            raise Unreachable(found)
        return Greeting("fed", "ann", "1", time.time() + 86400 * found)

    monkeypatch.setattr("masquerade.deploy.client_overview.say_hello", hello)
    stopped, away = client_overview(layout).troubles
    assert ("deploy join" in stopped, "W622 later" in away) == (True, True)
    for name in (SUPERVISOR, joining.WORKER):
        Process.here(name).record(layout.path)
    (refused,) = client_overview(layout).troubles
    assert refused.startswith("E624 a key")
    Process.here(joining.NODE).record(layout.path)
    status = StatusFile(layout.member, ClientStatus(samples=(30, 4, 6)))
    status.update(run="fed-1", rounds=50, round=7, trained=time.time() - 300)
    found = client_overview(layout)
    assert found.status is not None
    assert (found.well, found.server, found.warnings) == (True, "answers", ())
    assert (found.certificate, found.status.round) == (pytest.approx(200, abs=0.1), 7)
    status.update(refused="E612 columns are age at bob, and height at ann")
    shown = CliRunner().invoke(app, ["deploy", "status", str(layout.path)]).stdout
    for text in (
        "ann of fed",
        "30 to train",
        "7 of 50, 5 min ago",
        "E612 columns",
        "W621",
        "5 days",
    ):
        assert text in shown


def test_a_clients_folder_is_not_given_to_another(
    fed: Path, tmp_path: Path, golden: Golden
) -> None:
    join(fed, "ann", tmp_path / "home")
    with raises("E621", "ann", "bob") as refusal:
        join(fed, "bob", tmp_path / "home")
    golden(refusal.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as others")
def test_a_worker_and_a_node_of_other_users_are_kept_apart(
    fed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = joining.Users.of("daemon", None)
    assert users == joining.Users("daemon", "nobody")
    monkeypatch.setattr(sys, "executable", "/usr/bin/env")
    with raises("E626", "nobody"):
        join(fed, "ann", tmp_path / "ann", users)
    for parent in (tmp_path, *tmp_path.parents):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(0o711)
    layout = join(fed, "ann", tmp_path / "ann", users)
    owners = {path.name: path.owner() for path in (layout.member, layout.node, layout.key)}
    assert owners == {"member": "daemon", "node": "nobody", "key": "nobody"}
    assert stat.S_IMODE(layout.member.stat().st_mode) == 0o700
    assert stat.S_IMODE(layout.joined.stat().st_mode) == 0o600
    with joining.listening(users) as (_, path):
        assert (path.owner(), path.parent.owner()) == ("nobody", "root")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.parent.exists()


@pytest.fixture
def reachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that all users may pass through, with a Python that they can run."""
    monkeypatch.setattr(sys, "executable", "/usr/bin/env")
    for parent in (tmp_path, *tmp_path.parents):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(0o711)
    return tmp_path


DAEMON = joining.Users("daemon", "nobody")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as others")
def test_root_gives_away_nothing_that_a_user_has_put_into_its_folder(
    fed: Path, reachable: Path
) -> None:
    """A node that was broken into has links there, to files of root."""
    layout, secret = join(fed, "ann", reachable / "ann", DAEMON), reachable / "secret"
    secret.write_text("of root")
    os.symlink(reachable, layout.node / "link")
    os.link(secret, layout.node / "hard")
    os.link(secret, layout.node / ".tmp-key")
    layout.key.unlink()
    layout.key.symlink_to(secret)
    with raises("E405", layout.key):
        join(fed, "ann", reachable / "ann", DAEMON)
    layout.key.unlink()
    with pytest.raises(PermissionError):
        join(fed, "ann", reachable / "ann", DAEMON)
    assert (secret.owner(), secret.read_text()) == ("root", "of root")
    assert os.geteuid() == os.getegid() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as others")
def test_a_folder_of_somebody_else_is_not_taken_over(
    fed: Path, reachable: Path, golden: Golden
) -> None:
    join(fed, "ann", reachable / "ann")
    with raises("E626", "daemon", reachable / "ann" / "member") as refusal:
        join(fed, "ann", reachable / "ann", DAEMON)
    golden(refusal.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as others")
def test_a_client_keeps_its_users(fed: Path, reachable: Path, golden: Golden) -> None:
    layout = join(fed, "ann", reachable / "ann", DAEMON)
    assert joining.Users.of(None, None, layout) == DAEMON
    assert joining.Users.of(None, "games", layout) == joining.Users("daemon", "games")
    assert DAEMON.unsafe == ""
    golden(joining.Users().unsafe)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as others")
def test_a_worker_of_another_user_finds_nothing_of_what_root_has_around_it(
    fed: Path, reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "of root")
    monkeypatch.setenv("MASQUERADE_DATA", "/srv/data")
    layout, joined = join(fed, "ann", reachable / "ann", DAEMON), JoinFile.read(fed / "ann.join")
    seen: list[processes.Kept] = []

    async def kept(process: processes.Kept) -> None:
        seen.append(process)
        raise MasqueradeError("E301", "enough")

    monkeypatch.setattr(processes.Kept, "keep", kept)
    monkeypatch.setattr(superlink, "node_command", lambda *given: [])
    with raises("E301"):
        asyncio.run(joining.run(layout, joined, DAEMON, print))
    around = seen[0].environment
    assert "SECRET_TOKEN" not in around
    assert (around["MASQUERADE_DATA"], around["USER"]) == ("/srv/data", "daemon")


def test_a_worker_that_refuses_its_data_ends_a_client_with_all_that_it_said(
    fed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, joined = join(fed, "ann", tmp_path / "ann"), JoinFile.read(fed / "ann.join")
    said = ["W306 own.csv: a column", "E302 own.csv has 1 fault:", "- `bp`", "Try: --drop bp"]

    async def kept(process: processes.Kept) -> None:
        assert process.ended is not None
        await process.ended(worker.REFUSED, said)

    monkeypatch.setattr(processes.Kept, "keep", kept)
    monkeypatch.setattr(superlink, "node_command", lambda *given: [])
    with raises("E302", "own.csv", "bp", "--drop bp"):
        asyncio.run(joining.run(layout, joined, joining.Users(), print))


def test_a_stolen_key_is_revoked_though_the_quorum_needs_all(fed: Path) -> None:
    founding.found(fed / "other", config(quorum=2))
    layout = ServerFolder(fed / "other")
    assert founding.remove(fed / "other", "ann") == 1
    assert list(client_keys(layout)[0].values()) == ["bob"]
    assert founding.remove(fed / "other", "bob") == 1
    assert client_keys(layout)[0] == {}
    assert FederationConfig.load(layout.path).fleet.removed == ("ann", "bob")


def test_one_bad_key_keeps_nobody_else_out(fed: Path, golden: Golden) -> None:
    layout = ServerFolder(fed)
    (layout.clients / "cid.pub").write_text("no key")
    (layout.clients / "dan.pub").mkdir()
    bob = layout.clients / "bob.pub"
    bob.write_bytes(bob.read_bytes() + b" bob@his-machine\n")
    known, bad = client_keys(layout)
    assert sorted(known.values()) == ["ann", "bob"]
    key = JoinFile.read(layout.join_file("bob")).key.encode()
    assert known[keys.public_key(key)] == "bob"
    assert ["cid.pub" in bad[0], "dan.pub" in bad[1]] == [True, True]
    golden(bad[0])


def test_keys_are_not_forgotten_where_descriptors_run_out(
    fed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    for where, name in ((Path, "read_bytes"), (os, "listdir")):
        with monkeypatch.context() as patched:
            patched.setattr(where, name, full)
            with pytest.raises(OSError, match="Too many"):
                client_keys(ServerFolder(fed))


def test_a_server_whose_folder_cannot_be_read_goes_on_with_what_it_knew(
    fed: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    said: list[str] = []
    server = Server(ServerFolder(fed), "fed", Address(None, 1, 2), said.append)
    tls, full = server_tls(server.layout), OSError(errno.EMFILE, "Too many open files")
    assert server.look(tls) == ""

    def listing(path: Path) -> list[str]:
        raise full

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", listing)
        golden(server.look(tls))
    founding.renew(fed)
    assert server.look(tls) == ""
    assert said == ["The certificate was renewed."]


def test_a_join_file_on_two_machines_is_told_of(golden: Golden) -> None:
    lines = ["SuperNode could not connect.", "Exit Code: 305", ""]
    golden(joining.why_node_ended("ann", 1, lines))
    assert joining.why_node_ended("ann", 1, []) == processes.again("supernode", 1)


def test_users_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with raises("E626") as refusal:
        joining.Users.of("daemon", None)
    golden(refusal.value)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with raises("E626", "no-such-user"):
        joining.Users.of("no-such-user", None)
    with raises("E626"):
        joining.Users.of("nobody", None)
    assert joining.Users.of(None, None) == joining.Users()


def test_a_client_waits_for_a_server_that_is_not_there(
    fed: Path, tmp_path: Path, golden: Golden
) -> None:
    layout = join(fed, "ann", tmp_path / "ann")
    joined = replace(JoinFile.read(layout.joined), address=f"127.0.0.1:{free_ports(1)[0]}")
    said: list[str] = []

    async def greet() -> None:
        async with asyncio.timeout(0.5):
            await joining.greet(layout, joined, said.append)

    with pytest.raises(TimeoutError):
        asyncio.run(greet())
    (text,) = said
    golden(text)


def test_a_trial_says_why_one_of_its_processes_ended(tmp_path: Path, golden: Golden) -> None:
    trial = Trial(tmp_path / "trial", config(), 1, "digits", "iid")
    (tmp_path / "trial").mkdir()
    log = tmp_path / "trial" / "server.log"
    log.write_text("The server of trial\nE623 cannot listen\n")
    assert trial.why_ended(0).code == "E623"
    log.write_text("Killed")
    error = trial.why_ended(0)
    assert error.code == "E627"
    golden(error)


@pytest.mark.parametrize(
    ("text", "address"),
    [("a.b:1", ("a.b", 1)), ("[::1]:8443", ("::1", 8443)), ("10.0.0.1:80", ("10.0.0.1", 80))],
)
def test_addresses_are_split(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["a", ":1", "a:b", ""])
def test_what_is_no_address_is_refused(text: str) -> None:
    with raises("E621"):
        split_address(text)


def test_addresses_of_ipv6_have_brackets() -> None:
    assert founding.address_of(config(host="fd00::1")) == "[fd00::1]:8443"
    assert founding.is_loopback("::1")
    assert founding.is_loopback("localhost")
    assert not founding.is_loopback("10.0.0.1")
    assert not founding.is_loopback("localhost.example.org")


def test_units_quote_what_systemd_would_take_for_its_own() -> None:
    text = systemd.unit("x", "what", ["server", "/a b/100%/$HOME"], Path("/a b"), "me")
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert line.endswith('-m masquerade deploy server "/a b/100%%/$$HOME"')
    assert "Restart=always" in text


def test_the_environment_of_flower_calls_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "example.org")
    around = superlink.environment(tmp_path)
    switches = {name: value for name, value in around.items() if name.startswith("FLWR_")}
    assert switches["FLWR_TELEMETRY_ENABLED"] == "0"
    assert switches["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert switches["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert switches["FLWR_HOME"] == str(tmp_path)
    assert around["NO_PROXY"] == "example.org,127.0.0.1,localhost"


def test_superlink_listens_on_the_loopback_with_tls_and_keys(fed: Path) -> None:
    around = superlink.environment(fed)
    words = superlink.link_command(ServerFolder(fed), 1234, around)
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert "--enable-supernode-auth" in words
    assert "--insecure" not in words


def test_flower_reads_what_we_write_for_it(fed: Path) -> None:
    layout = ServerFolder(fed)
    superlink.write_home(layout, 1234)
    home = tomllib.loads((layout.flower_home / "config.toml").read_text())
    connection = home["superlink"][superlink.CONNECTION]
    assert connection["address"] == "127.0.0.1:1234"
    assert Path(connection["root-certificates"]).is_absolute()
    app_file = tomllib.loads((layout.app / "pyproject.toml").read_text())
    assert app_file["project"]["dependencies"] == []
    shipped = sum(path.stat().st_size for path in layout.app.rglob("*") if path.is_file())
    assert shipped < 2000


def test_a_command_of_flower_that_fails_is_an_error(fed: Path, golden: Golden) -> None:
    layout = ServerFolder(fed)
    program = fed / "flwr"
    program.write_text("#!/bin/sh\necho 'no such thing'\nexit 1\n")
    program.chmod(0o755)
    control = superlink.Control(layout, {"PATH": f"{fed}:{os.environ['PATH']}"})
    with raises("E622") as refusal:
        asyncio.run(control.nodes())
    golden(refusal.value)
    program.write_text(
        "#!/bin/sh\necho 'a word before'\n"
        """echo '{"success": true, "nodes": [{"node-id": "5", "status": "online"}]}'\n"""
    )
    assert asyncio.run(control.nodes()) == [{"node-id": "5", "status": "online"}]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which somebody listens."""
    import socket

    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        opened.listen(1)
        yield opened.getsockname()[1]


def test_a_server_whose_port_is_taken_says_so(fed: Path, taken: int) -> None:
    address = Address("127.0.0.1", taken, free_ports(1)[0])
    server = Server(ServerFolder(fed), "fed", address, print)
    with raises("E623", taken):
        asyncio.run(server.run())


def test_a_second_supervisor_is_told_of_the_first(tmp_path: Path, golden: Golden) -> None:
    Process.here(SUPERVISOR).record(tmp_path)
    with raises("E623") as refusal:
        processes.be_supervisor(tmp_path)
    golden(refusal.value)


def invoke(*words: object) -> MasqueradeError:
    """Call a command that is refused; return why."""
    result = CliRunner().invoke(app, ["deploy", *map(str, words)])
    assert isinstance(result.exception, MasqueradeError), result.output
    return result.exception


def test_commands_refuse_folders_that_are_none(tmp_path: Path, fed: Path) -> None:
    for command in ("status", "server", "stop", "renew", "replay"):
        assert invoke(command, tmp_path).code == "E620"
    assert invoke("export", tmp_path, "--out", tmp_path / "model").code == "E620"
    assert invoke("add", tmp_path, "x").code == "E620"
    assert invoke("local", "--keep", tmp_path).code == "E620"
    assert invoke("init", fed).code == "E620"
    assert invoke("join", tmp_path / "gone.join").code == "E621"


def test_a_client_has_to_say_where_its_data_are(fed: Path) -> None:
    assert invoke("join", fed / "ann.join").code == "E202"
    assert processes.running(fed / "ann") == {}


def test_init_makes_what_the_server_reads(tmp_path: Path) -> None:
    words = ["init", tmp_path / "new", "--clients", "north,south", "--rounds", "7"]
    words += ["--host", "10.0.0.1", "--host", "fed.example.org", "--set", "train.batch_size=5"]
    told = CliRunner().invoke(app, ["deploy", *map(str, words)])
    assert told.exit_code == 0, told.output
    made = FederationConfig.load(tmp_path / "new")
    assert (made.fleet.name, made.fleet.clients) == ("new", ("north", "south"))
    assert (made.config.train.rounds, made.config.train.batch_size) == (7, 5)
    certificate = ServerFolder(tmp_path / "new").certificate("server")[0].read_bytes()
    assert keys.hosts_of(certificate)[:2] == ("10.0.0.1", "fed.example.org")
    assert "10.0.0.1:8443" in told.stdout


def test_a_replay_that_differs_is_an_error(
    fed: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    for differences, status in (([], 0), (["server/x"], 1)):
        found = Replayed(rounds=2, compared=3, differences=differences)
        monkeypatch.setattr("masquerade.deploy.replay.replay", lambda folder, found=found: found)
        result = CliRunner().invoke(app, ["deploy", "replay", str(fed)])
        assert result.exit_code == status
    golden(result.exception)
