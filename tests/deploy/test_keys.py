"""A federation's authority, certificates, keys and join files."""

import ssl
import stat
from pathlib import Path

import pytest

from masquerade.deploy import keys
from masquerade.deploy.join_file import JoinFile
from masquerade.deploy.private import write_private
from tests.support import raises


def test_a_certificate_is_for_all_names_and_addresses_of_a_server() -> None:
    made = keys.new_server(keys.new_authority("fed"), ["fed.example.org", "10.0.0.1", "::1"])
    assert keys.hosts_of(made.certificate) == ("fed.example.org", "10.0.0.1", "::1")


def test_a_certificate_says_when_it_ends() -> None:
    authority = keys.new_authority("fed")
    for days in (1, 365):
        found = keys.days_left(keys.new_server(authority, ["a"], days).certificate)
        assert days - 0.01 < found <= days


def handshake(server: keys.Certificate, authority: bytes, host: str, folder: Path) -> None:
    """Shake hands in memory, as a client of an authority does with a server of a name."""
    certificate, key = folder / "certificate", folder / "key"
    certificate.write_bytes(server.certificate)
    write_private(key, server.key)
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(certificate, key)
    here = ssl.create_default_context(cadata=authority.decode())
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = here.wrap_bio(down, up, server_hostname=host)
    answering = there.wrap_bio(up, down, server_side=True)
    waiting = [client, answering]
    for _ in range(6):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert waiting == []


def test_a_client_takes_a_server_of_its_authority_under_its_name(tmp_path: Path) -> None:
    authority = keys.new_authority("fed")
    server = keys.new_server(authority, ["fed.example.org", "10.0.0.1"])
    for host in ("fed.example.org", "10.0.0.1"):
        handshake(server, authority.certificate, host, tmp_path)


def test_a_client_refuses_another_name_another_authority_and_an_old_certificate(
    tmp_path: Path,
) -> None:
    authority, other = keys.new_authority("fed"), keys.new_authority("fed")
    server = keys.new_server(authority, ["fed.example.org"])
    ended = keys.new_server(authority, ["fed.example.org"], days=0)
    for made, known, host in (
        (server, authority, "elsewhere.example.org"),
        (server, other, "fed.example.org"),
        (ended, authority, "fed.example.org"),
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(made, known.certificate, host, tmp_path)


def test_a_join_file_is_read_as_it_was_written_and_is_its_owners_alone(tmp_path: Path) -> None:
    key = keys.new_client_key().decode()
    authority = keys.new_authority("fed").certificate.decode()
    joined = JoinFile("fed", "client-1", "10.0.0.1:8443", authority, key)
    path = tmp_path / "client-1.join"
    joined.write(path)
    assert JoinFile.read(path) == joined
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    joined.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, ["gone.join"]),
        ("not toml [", ["gone.join"]),
        ("federation = 'fed'", ["gone.join", "address", "key"]),
        ("federation='f'\nname='n'\naddress='a:1'\nauthority='x'\nkey='no key'", []),
    ],
)
def test_what_is_no_join_file_is_refused(
    tmp_path: Path, text: str | None, named: list[str]
) -> None:
    path = tmp_path / "gone.join"
    if text is not None:
        path.write_text(text)
    with raises("E621", *named):
        JoinFile.read(path)


def test_private_files_replace_others_and_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "open").write_text("before")
    (tmp_path / "open").chmod(0o644)
    write_private(tmp_path / "open", b"after")
    assert (tmp_path / "open").read_bytes() == b"after"
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with raises("E405"):
        write_private(tmp_path / "link", b"elsewhere")
