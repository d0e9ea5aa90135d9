"""How a client is: what runs, the last round that it did, what was refused, what to see to."""

from collections.abc import Collection
from dataclasses import asdict, dataclass

from masquerade.deploy import keys
from masquerade.deploy.hello import Unreachable, say_hello
from masquerade.deploy.join_file import JoinFile
from masquerade.deploy.joining import NODE, WORKER
from masquerade.deploy.layout import ClientFolder
from masquerade.deploy.processes import SUPERVISOR, running
from masquerade.deploy.status import ClientStatus
from masquerade.errors import MasqueradeError


@dataclass(frozen=True)
class ClientOverview:
    """How a client is."""

    client: str
    federation: str
    address: str
    """Of the server."""
    server: str
    """What the server says to this client now: that it answers, or why it does not."""
    certificate: float | None
    """In how many days the server's certificate ends; None where the server showed none."""
    running: tuple[str, ...]
    """The processes of the client that run."""
    status: ClientStatus | None
    """What its worker does and did; None before it was asked anything."""
    troubles: tuple[str, ...]
    """What keeps it from taking part."""
    warnings: tuple[str, ...]

    @property
    def well(self) -> bool:
        """Whether it takes part, and nothing waits for its operator."""
        return not self.troubles

    def record(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {"well": self.well, **asdict(self)}


def client_overview(layout: ClientFolder) -> ClientOverview:
    """Look how a client is; its server is asked too."""
    joined, status = JoinFile.read(layout.joined), ClientStatus.read(layout.member)
    alive, certificate, fault = running(layout.path), None, ""
    try:
        greeting = say_hello(joined.address, layout.authority, joined.key.encode())
        certificate = keys.days_until(greeting.ends)
    except Unreachable as error:
        fault = f"W622 {error}"
    except MasqueradeError as error:
        fault = str(error)
    refused = [f"it does not take part: {status.refused}"] if status and status.refused else []
    return ClientOverview(
        client=joined.name,
        federation=joined.federation,
        address=joined.address,
        server=fault or "answers",
        certificate=certificate,
        running=tuple(sorted(alive)),
        status=status,
        troubles=(*_missing(alive, layout, not fault), *[fault] * bool(fault), *refused),
        warnings=tuple(_ending(joined, certificate)),
    )


def _missing(alive: Collection[str], layout: ClientFolder, answered: bool) -> list[str]:
    """Say which process is not there that should be."""
    if SUPERVISOR not in alive:
        return [f"this client does not run; `masquerade deploy join {layout.path}` starts it"]
    said = [] if WORKER in alive else ["the worker does not run; it is started again"]
    # Without a server there is no node: it waits for one.
    if NODE not in alive and answered:
        said.append("the node does not run; it is started again")
    return said


def _ending(joined: JoinFile, certificate: float | None) -> list[str]:
    """Return a sentence for every certificate that soon ends."""
    authority = keys.days_left(joined.authority.encode())
    said = []
    if certificate is not None and certificate < keys.WARN_DAYS:
        text = f"W621 the server's certificate ends in {certificate:.0f} days"
        said.append(f"{text}; the server's operator renews it (`masquerade deploy renew`)")
    if authority < keys.WARN_DAYS:
        how = f"ends in {authority:.0f} days" if authority > 0 else "has ended"
        said.append(f"W621 the authority {how}; ask the server's operator for a new federation")
    return said
