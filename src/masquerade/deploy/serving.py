"""What `masquerade deploy server` keeps running: the gate, SuperLink, our app in it, and health."""

import asyncio
import errno
import os
import resource
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from masquerade import __version__
from masquerade.deploy import health, superlink
from masquerade.deploy.gate import Gate, Limits
from masquerade.deploy.keys import told_public_key
from masquerade.deploy.layout import ServerFolder
from masquerade.deploy.nodes import Nodes
from masquerade.deploy.overview import LINK, ending
from masquerade.deploy.ports import free_ports
from masquerade.deploy.processes import Kept, Process, again, end, running
from masquerade.deploy.server_app import NAME, Outcome, Starts
from masquerade.deploy.status import Status
from masquerade.deploy.traffic import read_traffic, write_traffic
from masquerade.errors import MasqueradeError

BEAT, LOOK = 0.3, 1.0
"""Seconds between two looks at processes, and at keys and certificates."""
APP_SECONDS = 180.0
"""Within which an app that was started is there, also on a machine with much to do."""
DAY = 86400.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Address:
    """Where the gate and health listen."""

    bind: str | None
    """Of the gate; None listens at all addresses."""
    port: int
    health: int
    """A port of the loopback."""


@dataclass
class Server:
    """The server of a federation."""

    layout: ServerFolder
    federation: str
    address: Address
    say: Say
    link_port: int = field(default_factory=lambda: free_ports(1)[0])
    _up: asyncio.Event = field(default_factory=asyncio.Event)
    _names: dict[bytes, str] = field(default_factory=dict)
    _registered: dict[bytes, str] = field(default_factory=dict)
    """The keys that SuperLink knows."""
    _stamp: int = 0
    """When the certificate in use was written."""
    done: bool = False

    @property
    def _nodes(self) -> Nodes:
        return Nodes(self.layout.nodes)

    async def run(self) -> None:
        """Serve until this is canceled, or until an operator has to mend something."""
        around = superlink.environment(self.layout.flower_home)
        superlink.write_home(self.layout, self.link_port)
        self._names, _ = client_keys(self.layout)
        control, tls = superlink.Control(self.layout, around), server_tls(self.layout)
        gate = self._gate()
        link = self._link(around)
        with _at(self.address.bind, self.address.port):
            listening = await gate.serve(self.address.bind, self.address.port, tls)
        with _at("127.0.0.1", self.address.health):
            looking = await health.serve(self.address.health, lambda: health.answer(self.layout))
        self.say(f"The server of {self.federation} is at port {self.address.port}; Ctrl-C ends it.")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(link.keep())
                group.create_task(self._link_up(link, control))
                group.create_task(self._app(control))
                group.create_task(self._watch(gate, tls))
        except BaseExceptionGroup as several:
            # The first that failed is why the others were ended.
            raise several.exceptions[0] from None
        finally:
            listening.close()
            looking.close()
            end([*filter(None, [self._running_app()])])

    def _running_app(self) -> Process | None:
        return running(self.layout.state).get(NAME)

    def _gate(self) -> Gate:
        authority = str(self.layout.certificate("ca")[0])
        return Gate(
            upstream=("127.0.0.1", self.link_port),
            upstream_tls=ssl.create_default_context(cafile=authority),
            client_of=lambda key: self._names.get(key),
            greeting=lambda client: {
                "federation": self.federation,
                "client": client,
                "version": __version__,
            },
            ready=lambda: self._up.is_set() and self._registered == self._names,
            limits=Limits().within(open_files(Limits().files)),
            seen=read_traffic(self.layout.traffic),
        )

    def _link(self, around: Mapping[str, str]) -> Kept:
        async def ended(status: int, lines: Sequence[str]) -> None:
            self._up.clear()
            self.say(again(LINK, status))

        return Kept(
            LINK,
            superlink.link_command(self.layout, self.link_port, around),
            around,
            self.layout.state,
            ended=ended,
            quiet=lambda line: '" 200' in line,
        )

    async def _link_up(self, link: Kept, control: superlink.Control) -> None:
        """Register keys whenever SuperLink has started, and whenever they change."""
        starts = 0
        while True:
            begun = link.starts
            new = begun != starts and await _answers(self.link_port)
            if new or (self._up.is_set() and self._registered != self._names):
                names = self._names
                try:
                    await self._register(control, set(names.values()))
                except MasqueradeError as fault:
                    self.say(f"{fault}; it is tried again")
                    await asyncio.sleep(LOOK)
                    continue
                starts, self._registered = begun, names
                self._up.set()
            await asyncio.sleep(BEAT)

    async def _register(self, control: superlink.Control, wanted: set[str]) -> None:
        """Have SuperLink know the keys of some clients, and of nobody else."""
        known = {
            int(str(node["node-id"]))
            for node in await control.nodes()
            if node["status"] != "unregistered"
        }
        had = self._nodes.names()
        kept = {node: name for node, name in had.items() if node in known and name in wanted}
        for node in known - kept.keys():
            await control.unregister(node)
        for name in sorted(wanted - set(kept.values())):
            kept[await control.register(self.layout.clients / f"{name}.pub")] = name
        if kept != had:
            self._nodes.write(kept)

    async def _app(self, control: superlink.Control) -> None:
        """Have our app run until it says that all is done."""
        starts = Starts()
        while not self.done:
            await self._up.wait()
            end([*filter(None, [self._running_app()])])
            starts = starts.after(Status.read(self.layout.path))
            starts.write(self.layout.restarts)
            number = await self._started(control)
            if number:
                await self._app_ended()
            outcome = Outcome.read(self.layout.outcome)
            if outcome is not None and outcome.run == number:
                if outcome.error:
                    code, _, text = outcome.error.partition(" ")
                    raise MasqueradeError(code, text)
                self.done = True
                self.say(
                    "Training is done. Clients may still connect; "
                    f"`masquerade deploy stop {self.layout.path}` ends the server."
                )
                return
            self.say("W620 the server's app has ended; it goes on from the last commit")
            await asyncio.sleep(starts.wait)

    async def _started(self, control: superlink.Control) -> str:
        """Start our app; return its number once it is there, or nothing."""
        try:
            number = await control.run()
        except MasqueradeError as fault:
            self.say(str(fault))
            return ""
        until = time.monotonic() + APP_SECONDS
        while time.monotonic() < until and self._up.is_set():
            outcome = Outcome.read(self.layout.outcome)
            if self._running_app() or (outcome and outcome.run == number):
                return number
            await asyncio.sleep(BEAT)
        # It would come after all, beside the next one.
        with suppress(MasqueradeError):
            await control.stop(number)
        return ""

    async def _app_ended(self) -> None:
        while (app := self._running_app()) is not None:
            if not self._up.is_set():
                # It belongs to a SuperLink that is gone.
                await asyncio.to_thread(end, [app], 3.0)
                return
            await asyncio.sleep(BEAT)

    async def _watch(self, gate: Gate, tls: ssl.SSLContext) -> None:
        """Take in what changes in the folder, write what passed, warn in time."""
        warned, said = 0.0, ""
        while True:
            fault = self.look(tls)
            if fault and fault != said:
                self.say(fault)
            said = fault
            with suppress(OSError):
                if time.monotonic() - warned > DAY or not warned:
                    for text in ending(self.layout):
                        self.say(text)
                    warned = time.monotonic()
                write_traffic(self.layout.traffic, gate)
            await asyncio.sleep(LOOK)

    def look(self, tls: ssl.SSLContext) -> str:
        """Take in keys and a certificate that changed; return what is wrong with them."""
        try:
            certificate = self.layout.certificate("server")
            if (found := _stamp(certificate[0])) != self._stamp:
                # For handshakes from now on; the first time it was taken when it was read.
                tls.load_cert_chain(*certificate)
                if self._stamp:
                    self.say("The certificate was renewed.")
                self._stamp = found
            self._names, bad = client_keys(self.layout)
        except OSError as error:
            # Of a moment: a certificate and its key are written one after the other, and
            # descriptors come back. What was known stays in use.
            return f"W623 the server cannot read its folder ({error.strerror}); it tries again"
        return "; ".join(bad)


@contextmanager
def _at(host: str | None, port: int) -> Iterator[None]:
    """Say where it was that nobody can listen."""
    try:
        yield
    except OSError as fault:
        text = f"cannot listen at {host or 'any address'}, port {port} ({fault.strerror})"
        raise MasqueradeError("E623", f"{text}; is a server running there?") from None


def open_files(wanted: int) -> int:
    """Let this process have so many open files, or as many as it may; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return wanted if soft == resource.RLIM_INFINITY else soft


NO_MORE_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def client_keys(layout: ServerFolder) -> tuple[dict[bytes, str], list[str]]:
    """Return the clients that may come, by their public keys; and what is wrong with others."""
    found: dict[bytes, str] = {}
    bad = []
    for name in sorted(os.listdir(layout.clients)):
        path = layout.clients / name
        if path.suffix != ".pub":
            continue
        try:
            key = told_public_key(path.read_bytes())
        except OSError as fault:
            if fault.errno in NO_MORE_FILES:
                raise
            key = None
        if key is not None:
            found[key] = path.stem
        else:
            bad.append(f"W624 {path} has no key of a client; {path.stem} cannot come")
    return found, bad


def server_tls(layout: ServerFolder) -> ssl.SSLContext:
    """Return how the gate proves who it is."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key = layout.certificate("server")
    tls.load_cert_chain(certificate, key)
    return tls


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns
