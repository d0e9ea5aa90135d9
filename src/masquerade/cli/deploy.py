"""The commands `masquerade deploy`: a federation of real clients, over Flower."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from masquerade.cli.options import (
    AsJson,
    Categorical,
    ConfigFile,
    DataName,
    Debug,
    Drop,
    Encoding,
    Impute,
    Label,
    Missing,
    Model,
    OwnMethods,
    OwnModel,
    Partition,
    Quiet,
    Rounds,
    Sep,
    Settings,
    TaskName,
    column_options,
)
from masquerade.cli.progress import echo
from masquerade.errors import MasqueradeError, listed

if TYPE_CHECKING:
    from masquerade.config.toml import Tables
    from masquerade.deploy.layout import ClientFolder, ServerFolder
    from masquerade.deploy.status import Status

deploy_app = typer.Typer(
    help="Run a federation of real clients, each on its own machine, over Flower.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path, typer.Argument(help="Folder of the federation, at its server.", resolve_path=True)
]
Home = Annotated[
    Path, typer.Argument(help="Folder of the federation, or of a client.", resolve_path=True)
]
MethodName = Annotated[
    str | None, typer.Option("--method", help="A name of `masquerade methods`, or path.py:Class.")
]
ClientNames = Annotated[
    str, typer.Option("--clients", help="How many clients, or their names with commas between.")
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        help="Name or address by which clients reach the server; repeatable, the first is told.",
    ),
]
Deadline = Annotated[float | None, typer.Option(help="Seconds that a round waits for its clients.")]
Quorum = Annotated[int | None, typer.Option(help="Clients whose answers a round needs to count.")]


@deploy_app.command("init")
def deploy_init(
    folder: Folder,
    method: MethodName = None,
    config: ConfigFile = None,
    data: DataName = None,
    model: Model = None,
    rounds: Rounds = None,
    settings: Settings = None,
    clients: ClientNames = "3",
    name: Annotated[
        str | None, typer.Option(help="Of the federation; by default that of the folder.")
    ] = None,
    host: Hosts = None,
    port: Annotated[int | None, typer.Option(help="Port that clients reach.")] = None,
    deadline: Deadline = None,
    quorum: Quorum = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make a federation: its settings, its keys, and a join file for every client.

    Example: masquerade deploy init fed --method dmpfl --rounds 50 --host fed.example.org
    """
    from masquerade.deploy.federation import FederationConfig
    from masquerade.deploy.founding import address_of, found, is_loopback

    names = _client_names(clients)
    hosts = host or [_own_address()]
    fleet = {
        "name": name or folder.name,
        "clients": names,
        "host": hosts[0],
        "port": port,
        "deadline": deadline,
        "quorum": quorum,
    }
    tables = _tables(config, method, data, model, rounds, settings, fleet)
    made = FederationConfig.parse(tables)
    files = found(folder, made, hosts[1:])
    if quiet:
        return
    typer.echo(f"Made {folder}. Clients reach its server at {address_of(made)}.")
    if is_loopback(hosts[0]):
        typer.echo("That is this machine alone; --host gives others a way.")
    typer.echo(f"Start it:  masquerade deploy server {folder}")
    typer.echo("Bring each client its file, which is a secret, and have it join there:")
    for path in files:
        typer.echo(f"  {path}  ->  masquerade deploy join {path.name} --data DATA")


@deploy_app.command("server")
def deploy_server(
    folder: Folder,
    bind: Annotated[
        str | None,
        typer.Option(help="Address to listen at; all of them where the host is no loopback."),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(help="Port of the loopback that tells how the server is; else the next."),
    ] = None,
    method: OwnMethods = None,
    model: OwnModel = None,
    debug: Debug = False,
) -> None:
    """Run the server of a federation, until it is stopped.

    Example: masquerade deploy server fed
    """
    from masquerade.deploy.founding import is_loopback, opened
    from masquerade.deploy.serving import Address, Server

    layout, config = opened(folder)
    fleet = config.fleet
    bind = bind or (fleet.host if is_loopback(fleet.host) else None)
    address = Address(bind, fleet.port, health_port or fleet.port + 1)
    with supervised(layout.state):
        server = Server(layout, fleet.name, address, _say)
        _until_stopped(server.run())


@deploy_app.command("join")
def deploy_join(
    join: Annotated[
        Path, typer.Argument(help="A join file, or the folder of a client.", resolve_path=True)
    ],
    data: DataName = None,
    label: Label = None,
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = None,
    sep: Sep = None,
    encoding: Encoding = None,
    missing: Missing = None,
    task: TaskName = None,
    method: OwnMethods = None,
    model: OwnModel = None,
    home: Annotated[
        Path | None,
        typer.Option(
            help="Folder of this client; by default the join file's name, beside it.",
            resolve_path=True,
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="User of the worker, who alone reads data and states.")
    ] = None,
    node_user: Annotated[
        str | None, typer.Option(help="User of the SuperNode, where --user is given; else nobody.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Join a federation where the data are, and work for it until stopped.

    Example: masquerade deploy join client-3.join --data my.csv --label outcome --drop id
    """
    from masquerade.deploy import joining
    from masquerade.deploy.join_file import JoinFile
    from masquerade.deploy.layout import ClientFolder
    from masquerade.deploy.private import write_private

    layout = ClientFolder(join if join.is_dir() else home or join.with_suffix(""))
    joined = JoinFile.read(layout.joined if join.is_dir() else join)
    users = joining.Users.of(user, node_user, layout)
    columns = column_options(label, None, drop, categorical, impute, sep, encoding, missing, task)
    joining.prepare(layout, joined, users)
    with supervised(layout.path):
        record = _data_record(layout, data, columns, [*(method or []), *([model] if model else [])])
        if record is not None:
            with joining.acting_as(users.worker):
                write_private(layout.data, record)
        if users.unsafe:
            _say(users.unsafe)
        joining.write_unit(layout, joined, users)
        _until_stopped(joining.run(layout, joined, users, _say))


@deploy_app.command("status")
def deploy_status(folder: Home, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show how a federation is, at its server, or how a client is, where it is: what to see to.

    Example: masquerade deploy status fed
    """
    from masquerade.cli.deploy_tables import client_table, overview_table
    from masquerade.deploy.client_overview import client_overview
    from masquerade.deploy.layout import ServerFolder
    from masquerade.deploy.overview import overview

    known = _folder_of(folder)
    if isinstance(known, ServerFolder):
        found = overview(known)
        record, table = found.record(), overview_table(found)
    else:
        here = client_overview(known)
        record, table = here.record(), client_table(here)
    if as_json:
        typer.echo(json.dumps(record))
    else:
        echo(table)


@deploy_app.command("stop")
def deploy_stop(folder: Home, quiet: Quiet = False, debug: Debug = False) -> None:
    """End the server of a federation, or a client, and all that they started.

    Example: masquerade deploy stop fed
    """
    from masquerade.deploy.layout import ServerFolder
    from masquerade.deploy.processes import stop

    known = _folder_of(folder)
    ended = stop(known.state if isinstance(known, ServerFolder) else known.path)
    if not quiet:
        typer.echo(f"Ended: {', '.join(ended)}." if ended else "Nothing was running.")


@deploy_app.command("export")
def deploy_export(
    home: Annotated[Path, typer.Argument(help="Folder of a client.", resolve_path=True)],
    out: Annotated[Path, typer.Option(help="Where to write.")],
    view: Annotated[str, typer.Option(help="The view; by default the method's first.")] = "",
    format: Annotated[
        str, typer.Option(help="bundle, onnx, sliced, dense, packed or seeded.")
    ] = "bundle",
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Take a client's personal model out, where it is; `masquerade predict` uses it.

    Example: masquerade deploy export north --out model
    """
    from masquerade.deploy.layout import ClientFolder
    from masquerade.deploy.member import open_member

    layout = ClientFolder(home)
    if not layout.joined.exists():
        raise MasqueradeError("E620", f"{home} is the folder of no client")
    open_member(layout.member).personal(view).export(out, format=format)
    if not quiet:
        typer.echo(f"Wrote {out}")


@deploy_app.command("add")
def deploy_add(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Of the new client.")],
    debug: Debug = False,
) -> None:
    """Make a join file for one more client; a running server takes it in.

    Example: masquerade deploy add fed hospital-7
    """
    from masquerade.deploy.founding import add

    path = add(folder, name)
    typer.echo(f"{path} is its join file, and a secret: bring it to {name} and remove it here.")


@deploy_app.command("remove")
def deploy_remove(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Of the client.")],
    debug: Debug = False,
) -> None:
    """Revoke a client's key, and ask it no more; a running server does so at once.

    Example: masquerade deploy remove fed client-2
    """
    from masquerade.deploy.founding import opened, remove

    before = opened(folder)[1].fleet.quorum
    quorum = remove(folder, name)
    typer.echo(f"{name} is removed, and its key is good for nothing. What it contributed stays.")
    if quorum != before:
        typer.echo(f"The quorum was {before}, and is {quorum} now: `fleet.quorum` in {folder}.")


@deploy_app.command("renew")
def deploy_renew(folder: Folder, host: Hosts = None, debug: Debug = False) -> None:
    """Renew the server's certificate; a running server takes it at once, and clients need nothing.

    Example: masquerade deploy renew fed
    """
    from masquerade.deploy.founding import renew
    from masquerade.deploy.keys import SERVER_DAYS

    hosts = renew(folder, host or [])
    typer.echo(f"Renewed for {SERVER_DAYS} days: {', '.join(hosts)}.")


def _folder_of(folder: Path) -> "ServerFolder | ClientFolder":
    """Return what a folder is of; refuse one that is of neither."""
    from masquerade.deploy.layout import ClientFolder, ServerFolder

    server, client = ServerFolder(folder), ClientFolder(folder)
    if server.settings.exists():
        return server
    if client.joined.exists():
        return client
    raise MasqueradeError("E620", f"{folder} is the folder of no federation and no client")


def _client_names(text: str) -> list[str]:
    """Return the names of clients; a number stands for as many."""
    if text.isdigit():
        return [f"client-{number}" for number in range(1, int(text) + 1)]
    return [name.strip() for name in text.split(",") if name.strip()]


def _own_address() -> str:
    """Return the address of this machine in its network; nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, suppress(OSError):
        asked.connect(("192.0.2.1", 9))
        return str(asked.getsockname()[0])
    return "127.0.0.1"


def _tables(
    config: Path | None,
    method: str | None,
    data: str | None,
    model: str | None,
    rounds: int | None,
    settings: list[str] | None,
    fleet: Mapping[str, Any],
) -> "Tables":
    """Put together the settings of a federation from what a command was given."""
    from masquerade.cli.train import tables_of
    from masquerade.config.code import is_code

    methods = None if method is None else [method]
    tables = tables_of(
        config, methods, data, {}, None, None, model, rounds, None, None, None, settings
    )
    given = {key: value for key, value in fleet.items() if value is not None}
    if own := [_absolute_code(each) for each in (method, model) if each and is_code(each)]:
        given["code"] = own
    tables["fleet"] = {**tables.get("fleet", {}), **given}
    return tables


def _data_record(
    layout: "ClientFolder", data: str | None, columns: Mapping[str, Any], code: list[str]
) -> bytes | None:
    """Say where a client's data are, None where nothing changes; at first they have to be named."""
    if data is None:
        if not layout.data.exists():
            raise MasqueradeError("E202", "--data says what this client trains on")
        if columns or code:
            raise MasqueradeError("E202", "give --data with its other options, all of them anew")
        return None
    import tomli_w

    from masquerade.config.settings import TABLE_OPTIONS

    # Later this may start elsewhere, with the machine.
    record: dict[str, Any] = {"name": _absolute_data(data)}
    record |= {TABLE_OPTIONS[option]: value for option, value in columns.items()}
    tables: dict[str, Any] = {"data": record}
    if code:
        tables["code"] = {"paths": list(map(_absolute_code, code))}
    return tomli_w.dumps(tables).encode()


def _absolute_data(text: str) -> str:
    """Return the path of data in full; a dataset's name as it is."""
    known = _absolute_code(text)
    # One that is not there is named as it was meant from here.
    is_path = Path(text).exists() or Path(text).suffix[1:2].isalpha()
    return str(Path(text).resolve()) if known == text and is_path else known


def _absolute_code(text: str) -> str:
    """Return path.py:NAME with its path in full; another name as it is."""
    path, colon, name = text.rpartition(":")
    return f"{Path(path).resolve()}:{name}" if colon and path.endswith(".py") else text


def _say(text: str) -> None:
    typer.echo(text, err=True)


@contextmanager
def supervised(folder: Path) -> Iterator[None]:
    """Have this process be the one that keeps those of a folder."""
    from masquerade.deploy.processes import SUPERVISOR, be_supervisor, forget

    be_supervisor(folder)
    try:
        yield
    finally:
        forget(folder, SUPERVISOR)


def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Do work until a signal asks to end it; ending is in good order then."""

    async def guarded() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # `nohup` has the last one ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, task.cancel)
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(guarded())


@deploy_app.command("local")
def deploy_local(
    clients: Annotated[int, typer.Option(help="How many clients.")] = 3,
    method: MethodName = None,
    config: ConfigFile = None,
    data: DataName = None,
    partition: Partition = None,
    model: Model = None,
    rounds: Rounds = None,
    settings: Settings = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Folder that stays, with what server and clients wrote.", resolve_path=True
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Try a federation on this machine: a server and clients, all real processes, with TLS.

    Example: masquerade deploy local --clients 4 --method fedmask --data digits --rounds 5
    """
    import tempfile

    from masquerade.cli.report import show
    from masquerade.config.settings import Data
    from masquerade.deploy.federation import FederationConfig
    from masquerade.deploy.ports import free_ports
    from masquerade.deploy.trial import Trial

    port, health = free_ports(2)
    fleet = {
        "name": "trial",
        "clients": _client_names(str(clients)),
        "host": "127.0.0.1",
        "port": port,
        "quorum": clients,
    }
    named = None if data is None else _absolute_data(data)
    tables = _tables(config, method, named, model, rounds, settings, fleet)
    made, shared = FederationConfig.parse(tables), tables.get("data", {}).get("name", Data.name)
    if keep is not None and keep.exists():
        raise MasqueradeError("E620", f"{keep} is there already; choose another folder")
    with tempfile.TemporaryDirectory(prefix="masquerade-trial-") as scratch:
        folder, how = keep or Path(scratch) / "trial", partition or "dirichlet:0.3"
        trial = Trial(folder, made, health, shared, how)
        if not quiet and not as_json:
            typer.echo(
                f"{clients + 1} machines in one: about {0.45 + 0.65 * clients:.1f} GB, "
                "and 5 to 10 s a round.",
                err=True,
            )
        with _following(quiet or as_json) as watch:
            trial.run(watch)
        show(trial.folder, trial.results(), quiet, as_json)
    if keep is not None and not quiet and not as_json:
        typer.echo(f"Kept: {keep}, with its clients in {trial.homes}.", err=True)


@contextmanager
def _following(quiet: bool) -> "Iterator[Callable[[Status | None], None]]":
    """Show how far training is, in one line that changes."""
    if quiet:
        yield lambda status: None
        return
    from rich.console import Console

    from masquerade.cli.deploy_tables import progress_line

    with Console(stderr=True).status("starting") as line:
        yield lambda status: line.update(progress_line(status))


@deploy_app.command("replay")
def deploy_replay(
    folder: Folder,
    members: Annotated[
        Path | None,
        typer.Option(
            help="Folder of clients' `member` folders, by name; FOLDER/members if not given."
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Simulate again what a federation did, and compare every bit.

    It needs the data and states of all clients in one place, as `deploy local --keep` leaves them.

    Example: masquerade deploy replay fed
    """
    from dataclasses import asdict

    from masquerade.deploy.founding import opened
    from masquerade.deploy.replay import replay

    opened(folder)
    found = replay(folder, members) if members is not None else replay(folder)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        equal = "all equal" if not found.differences else f"{len(found.differences)} differ"
        typer.echo(f"{found.rounds} rounds, {found.compared} tensors and figures: {equal}.")
    if found.differences:
        text = f"{listed(found.differences)} differ from the simulator's"
        raise MasqueradeError("E628", f"{folder}: {text}")
