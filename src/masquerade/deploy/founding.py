"""A federation's folder: made, and its clients' keys and certificates added, revoked, renewed."""

import getpass
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from masquerade.deploy import keys
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.join_file import JoinFile
from masquerade.deploy.keys import Certificate
from masquerade.deploy.layout import ClientFolder, ServerFolder
from masquerade.deploy.private import private_folder, write_private
from masquerade.deploy.systemd import unit
from masquerade.errors import MasqueradeError, listed
from masquerade.storage import atomic

README = """\
# The federation {name}

| | |
|---|---|
| what is trained | `federation.toml` |
| start the server | `masquerade deploy server {folder}` |
| start it with the machine | the first line of `{service}.service` says how |
| a client | bring it its file `NAME.join`; there: `masquerade deploy join NAME.join --data DATA` |
| how it goes | `masquerade deploy status {folder}` |
| results | `masquerade report {folder}` |
| end it | `masquerade deploy stop {folder}` |

Clients reach {address} over TCP; open that port, and no other.

**Secret:** `keys/` and every `.join` file. Remove a `.join` file here once its client has it. Back
up the whole folder, encrypted.
"""


def address_of(config: FederationConfig) -> str:
    """Return the address that clients are given."""
    host = config.fleet.host
    return f"[{host}]:{config.fleet.port}" if ":" in host else f"{host}:{config.fleet.port}"


def is_loopback(host: str) -> bool:
    """Whether a host is reached from its own machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def found(folder: Path, config: FederationConfig, hosts: Sequence[str] = ()) -> list[Path]:
    """Make the folder of a federation; return the join files of its clients."""
    layout = ServerFolder(folder)
    if folder.exists() and any(folder.iterdir()):
        raise MasqueradeError("E620", f"{folder} is there and not empty; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    private_folder(layout.keys)
    layout.clients.mkdir()
    private_folder(layout.state)
    authority = keys.new_authority(config.fleet.name)
    _put(layout, "ca", authority)
    _put(layout, "loopback", keys.new_server(authority, keys.LOOPBACK, keys.AUTHORITY_DAYS))
    _put(layout, "server", keys.new_server(authority, _hosts(config, hosts)))
    files = [_client(layout, config, name) for name in config.fleet.clients]
    service = f"masquerade-{config.fleet.name}"
    words = ["server", str(folder.resolve())]
    text = unit(service, f"server of {config.fleet.name}", words, folder, getpass.getuser())
    atomic.write_file(folder / f"{service}.service", text.encode())
    about = README.format(
        name=config.fleet.name,
        folder=folder.resolve(),
        service=service,
        address=address_of(config),
    )
    atomic.write_file(folder / "README.md", about.encode())
    # Last: what has it is whole.
    config.save(folder)
    return files


def opened(folder: Path) -> tuple[ServerFolder, FederationConfig]:
    """Return a federation's folder and settings; refuse a folder that is none."""
    layout, client = ServerFolder(folder), ClientFolder(folder)
    if client.joined.exists():
        text = f"{folder} is the folder of a client, and this is done at the server"
        raise MasqueradeError("E620", f"{text}; `masquerade deploy status` says how a client is")
    if not layout.settings.exists():
        text = f"{folder} is no federation; `masquerade deploy init {folder}` makes one"
        raise MasqueradeError("E620", text)
    return layout, FederationConfig.load(layout.settings)


def add(folder: Path, name: str) -> Path:
    """Let one more client come; return its join file."""
    layout, config = opened(folder)
    if name in config.fleet.removed:
        text = f"{name} was removed, and its place is its own; give the new client another name"
        raise MasqueradeError("E201", text)
    more = config.with_clients([name])
    path = _client(layout, config, name)
    more.save(folder)
    return path


def remove(folder: Path, name: str) -> int:
    """Revoke a client's key, and ask it no more; return the quorum, which may have to be lower."""
    layout, config = opened(folder)
    if name not in config.fleet.clients:
        text = f"there is no client {name}; there are {listed(config.fleet.clients)}"
        raise MasqueradeError("E201", text)
    # Whatever becomes of the rest: a key that was stolen is good for nothing from here on.
    (layout.clients / f"{name}.pub").unlink(missing_ok=True)
    layout.join_file(name).unlink(missing_ok=True)
    less = config.without(name)
    less.save(folder)
    return less.fleet.quorum


def renew(folder: Path, hosts: Sequence[str] = ()) -> tuple[str, ...]:
    """Renew the server's certificate; return the names and addresses that it is for."""
    layout, config = opened(folder)
    certificate, key = layout.certificate("ca")
    try:
        authority = Certificate(certificate.read_bytes(), key.read_bytes())
    except FileNotFoundError:
        text = f"{key} is not there; bring the authority's key back to renew, then put it away"
        raise MasqueradeError("E620", text) from None
    old = keys.hosts_of(layout.certificate("server")[0].read_bytes())
    if hosts:
        # The first is told to clients that are added from now on.
        config = replace(config, fleet=replace(config.fleet, host=hosts[0]))
        config.save(folder)
    wanted = _hosts(config, [*old, *hosts])
    _put(layout, "server", keys.new_server(authority, wanted))
    return wanted


def _hosts(config: FederationConfig, others: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([config.fleet.host, *others, *keys.LOOPBACK]))


def _client(layout: ServerFolder, config: FederationConfig, name: str) -> Path:
    private = keys.new_client_key()
    authority = layout.certificate("ca")[0].read_text(encoding="utf-8")
    path = layout.join_file(name)
    joined = JoinFile(config.fleet.name, name, address_of(config), authority, private.decode())
    joined.write(path)
    atomic.write_file(layout.clients / f"{name}.pub", keys.public_key(private))
    return path


def _put(layout: ServerFolder, name: str, pair: Certificate) -> None:
    """Write a certificate and its key; the certificate last, by which a server sees a new one."""
    certificate, key = layout.certificate(name)
    write_private(key, pair.key)
    atomic.write_file(certificate, pair.certificate)
    os.chmod(certificate, 0o644)
