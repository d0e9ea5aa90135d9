"""What `masquerade deploy join` keeps running where the data are: a worker and a SuperNode.

The worker has the data, and answers over a socket. The SuperNode has the key, and what a server
ships runs under it. With users of their own the second cannot read what the first has.
"""

import asyncio
import getpass
import os
import pwd
import re
import socket
import stat
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from masquerade.deploy import superlink, worker
from masquerade.deploy.hello import Greeting, Unreachable, say_hello
from masquerade.deploy.join_file import JoinFile
from masquerade.deploy.layout import ClientFolder
from masquerade.deploy.ports import free_ports
from masquerade.deploy.private import private_folder, write_private
from masquerade.deploy.processes import Kept, again
from masquerade.deploy.systemd import unit
from masquerade.errors import MasqueradeError
from masquerade.storage import atomic

NODE, WORKER = "supernode", "worker"
AGAIN = 12.0
"""Seconds before a node is started again: SuperLink holds its last session for some 30."""
LONGEST = 30.0

CODE = re.compile("E[0-9]{3} ")
"""How a line begins that says why something was refused."""
TWICE = "Exit Code: 305"
"""What a SuperNode says that SuperLink does not take, though it knows the key."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Users:
    """Under whom the two run; None where it is whoever started them."""

    worker: str | None = None
    node: str | None = None

    @staticmethod
    def of(worker: str | None, node: str | None, layout: ClientFolder | None = None) -> "Users":
        """Return them; refuse what this process may not do, or users that there are not.

        Who is not named is as it was when this client last joined.
        """
        if layout is not None and layout.users.is_file():
            before = Users(**tomllib.loads(layout.users.read_text(encoding="utf-8")))
            worker, node = worker or before.worker, node or before.node
        if worker is None and node is None:
            return Users()
        if os.geteuid() != 0:
            raise MasqueradeError("E626", "only root can start processes as other users (--user)")
        users = Users(worker, node or "nobody")
        for name in filter(None, (users.worker, users.node)):
            try:
                pwd.getpwnam(name)
            except KeyError:
                raise MasqueradeError("E626", f"there is no user `{name}`") from None
        if users.worker == users.node:
            text = "the worker and the node have to be different users, or data are not kept apart"
            raise MasqueradeError("E626", text)
        return users

    @property
    def unsafe(self) -> str:
        """Warn where root runs both; empty elsewhere."""
        if os.geteuid() != 0 or self.worker or self.node:
            return ""
        return (
            "W625 worker and node run as root, so what the server ships may read and change all of "
            "this machine; --user names who has the data, and the node is somebody else then"
        )


def prepare(layout: ClientFolder, joined: JoinFile, users: Users) -> None:
    """Lay out a client's folder; refuse one that belongs to another client."""
    if layout.joined.exists():
        other = JoinFile.read(layout.joined)
        if (other.federation, other.name) != (joined.federation, joined.name):
            text = (
                f"{layout.path} belongs to client {other.name} of {other.federation}, not to "
                f"{joined.name} of {joined.federation}; choose another with --home"
            )
            raise MasqueradeError("E621", text)
    layout.path.mkdir(parents=True, exist_ok=True)
    _check_reach(layout.path, users)
    # Others may pass through to the folder that is theirs, and read nothing on the way.
    layout.path.chmod(0o711 if users.node else 0o700)
    joined.write(layout.joined)
    if named := {part: user for part, user in vars(users).items() if user}:
        atomic.write_file(layout.users, tomli_w.dumps(named).encode())
    _folder_of(layout.member, users.worker)
    _folder_of(layout.node, users.node)
    with acting_as(users.node):
        write_private(layout.key, joined.key.encode())
        write_private(layout.authority, joined.authority.encode())


def _folder_of(path: Path, user: str | None) -> None:
    """Make a private folder of a user; refuse one that is somebody else's.

    What is in it is made by that user. Root gives away nothing that was there before: its owner
    could have put links there, to files that are not its own.
    """
    wanted = os.geteuid() if user is None else pwd.getpwnam(user).pw_uid
    if not path.exists():
        private_folder(path)
        if user is not None:
            os.chown(path, wanted, pwd.getpwnam(user).pw_gid, follow_symlinks=False)
    found = path.lstat()
    if found.st_uid != wanted or not stat.S_ISDIR(found.st_mode):
        name = user or getpass.getuser()
        text = f"{path} does not belong to {name}, who is to use it"
        raise MasqueradeError("E626", f"{text}; `sudo chown -R {name} {path}` gives it away")


@contextmanager
def acting_as(user: str | None) -> Iterator[None]:
    """Do something as another user would, with no more rights; None is whoever this is."""
    if user is None:
        yield
        return
    found, groups = pwd.getpwnam(user), os.getgroups()
    os.setgroups([])
    os.setegid(found.pw_gid)
    os.seteuid(found.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def _check_reach(path: Path, users: Users) -> None:
    """Refuse a folder, or a Python, that other users cannot reach."""
    for what in (path, Path(sys.executable)):
        closed = [each for each in what.resolve().parents if not each.stat().st_mode & 0o001]
        if users.node and closed:
            text = f"{users.node} cannot enter {closed[-1]}, where {what} is"
            raise MasqueradeError("E626", f"{text}; have both below /srv or /opt")


def write_unit(layout: ClientFolder, joined: JoinFile, users: Users) -> None:
    """Write the unit by which systemd has this client come back with the machine."""
    service = f"masquerade-{joined.federation}-{joined.name}"
    words = ["join", str(layout.path.resolve())]
    for option, user in (("--user", users.worker), ("--node-user", users.node)):
        words += [option, user] if user else []
    what = f"client {joined.name} of {joined.federation}"
    text = unit(service, what, words, layout.path, getpass.getuser())
    atomic.write_file(layout.path / f"{service}.service", text.encode())


@contextmanager
def listening(users: Users) -> Iterator[tuple[socket.socket, Path]]:
    """Yield the worker's socket and its path; only the node may connect to it."""
    # Paths of sockets are short: a client's own folder may lie too deep.
    folder = Path(tempfile.mkdtemp(prefix="masquerade-"))
    path = folder / "worker"
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(str(path))
            path.chmod(0o600)
            opened.listen(16)
            if users.node:
                # The folder stays root's: whoever owned it could put another socket there.
                os.chown(path, pwd.getpwnam(users.node).pw_uid, -1, follow_symlinks=False)
                folder.chmod(0o711)
            yield opened, path
    finally:
        atomic.discard(folder)


async def greet(layout: ClientFolder, joined: JoinFile, say: Say) -> Greeting:
    """Say hello until a server answers."""
    wait, said = 2.0, ""
    while True:
        try:
            return await asyncio.to_thread(
                say_hello, joined.address, layout.authority, joined.key.encode()
            )
        except Unreachable as fault:
            if str(fault) != said:
                said = str(fault)
                say(f"W622 {said}; waiting for it")
        await asyncio.sleep(wait)
        wait = min(2 * wait, LONGEST)


async def run(layout: ClientFolder, joined: JoinFile, users: Users, say: Say) -> None:
    """Keep a worker and a node running until this is canceled, or something has to be mended."""
    around = superlink.environment(layout.node)
    with listening(users) as (opened, path):
        ready = asyncio.Event()
        working = _worker(layout, opened, users, ready, say)
        node = _node(layout, joined, path, users, say)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(working.keep())
                group.create_task(_ready(layout, working, ready))
                await ready.wait()
                greeting = await greet(layout, joined, say)
                say(f"Client {greeting.client} of {greeting.federation}: data read, server found.")
                node.environment = around
                group.create_task(node.keep())
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None


def _worker(
    layout: ClientFolder, opened: socket.socket, users: Users, ready: asyncio.Event, say: Say
) -> Kept:
    async def ended(status: int, lines: Sequence[str]) -> None:
        ready.clear()
        refusals = [place for place, line in enumerate(lines) if CODE.match(line)]
        if status == worker.REFUSED and refusals:
            # It may have several lines.
            code, _, text = "\n".join(lines[refusals[-1] :]).partition(" ")
            raise MasqueradeError(code, text)
        say(again(WORKER, status))

    def heard(line: str) -> None:
        # Why it cannot take part, be it by its own data or by what the server says of them.
        if ready.is_set() and CODE.match(line):
            say(line)

    return Kept(
        WORKER,
        [
            *(sys.executable, "-m", "masquerade.deploy.worker"),
            *(str(layout.member), str(opened.fileno())),
        ],
        _around_worker(users.worker),
        layout.path,
        descriptors=[opened.fileno()],
        user=users.worker,
        ended=ended,
        heard=heard,
    )


def _around_worker(user: str | None) -> dict[str, str]:
    """Return what a worker finds around it; of another user's secrets nothing."""
    if user is None:
        return {**os.environ, "PYTHONUNBUFFERED": "1"}
    own = {"HOME": pwd.getpwnam(user).pw_dir, "USER": user, "LOGNAME": user}
    return {**superlink.passed(), **own, "PYTHONUNBUFFERED": "1"}


async def _ready(layout: ClientFolder, working: Kept, ready: asyncio.Event) -> None:
    while True:
        if not ready.is_set() and worker.READY in working.lines:
            ready.set()
        await asyncio.sleep(0.2)


def why_node_ended(client: str, status: int, lines: Sequence[str]) -> str:
    """Say that a node ended, and why, as far as it is known."""
    if not any(TWICE in line for line in lines):
        return again(NODE, status)
    text = f"W626 the server does not take the node of {client} now: it still has its last session,"
    return f"{text} or another machine uses the same join file; it is tried again"


def _node(layout: ClientFolder, joined: JoinFile, path: Path, users: Users, say: Say) -> Kept:
    around = superlink.environment(layout.node)

    async def ended(status: int, lines: Sequence[str]) -> None:
        say(why_node_ended(joined.name, status, lines))
        # It says why it is refused only here.
        await greet(layout, joined, say)

    command = superlink.node_command(layout, joined.address, free_ports(1)[0], path, around)
    return Kept(
        NODE,
        command,
        around,
        layout.path,
        first_wait=AGAIN,
        longest_wait=LONGEST,
        user=users.node,
        ended=ended,
    )
