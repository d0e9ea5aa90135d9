"""How a federation is: what runs, who is connected, how far training is, what to see to."""

import time
from dataclasses import asdict, dataclass

from masquerade.deploy import keys
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.layout import ServerFolder
from masquerade.deploy.processes import SUPERVISOR, running
from masquerade.deploy.status import Status
from masquerade.deploy.traffic import read_traffic

AWAY = 60.0
"""A client that was not heard of for so many seconds is away; nodes ask every 3, or work."""


@dataclass(frozen=True)
class ClientView:
    """One client, as the server sees it."""

    name: str
    state: str
    """ "connected", "away", "never seen" or "removed"."""
    last_seen: float | None
    """In seconds of Unix time."""
    up: int
    """Bytes that came from it, with those of HTTP."""
    down: int
    """Bytes that went to it."""


@dataclass(frozen=True)
class Overview:
    """How a federation is."""

    federation: str
    address: str
    running: tuple[str, ...]
    """The processes of the server that run."""
    status: Status | None
    """Of training."""
    clients: tuple[ClientView, ...]
    warnings: tuple[str, ...]

    @property
    def well(self) -> bool:
        """Whether the server runs, and nothing waits for its operator."""
        return SUPERVISOR in self.running and "superlink" in self.running

    def record(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {"well": self.well, **asdict(self)}


def overview(layout: ServerFolder) -> Overview:
    """Look how a federation is."""
    from masquerade.deploy.founding import address_of

    config = FederationConfig.load(layout.settings)
    status = Status.read(layout.path)
    alive = running(layout.state)
    return Overview(
        config.fleet.name,
        address_of(config),
        tuple(sorted(alive)),
        status,
        tuple(_clients(layout, config)),
        tuple(ending(layout)),
    )


def _clients(layout: ServerFolder, config: FederationConfig) -> list[ClientView]:
    traffic, now = read_traffic(layout.traffic), time.time()
    views = []
    for name in config.fleet.clients:
        seen = traffic.get(name)
        last = seen.last if seen else None
        if name in config.fleet.removed:
            state = "removed"
        elif last is None:
            state = "never seen"
        else:
            state = "connected" if now - last < AWAY else "away"
        views.append(
            ClientView(name, state, last, seen.up if seen else 0, seen.down if seen else 0)
        )
    return views


def ending(layout: ServerFolder) -> list[str]:
    """Return a sentence for every certificate that has ended or soon will."""
    said = []
    for name, what in (("server", "the server's certificate"), ("ca", "the authority")):
        left = keys.days_left(layout.certificate(name)[0].read_bytes())
        if left < keys.WARN_DAYS:
            how = f"ends in {left:.0f} days" if left > 0 else "has ended; clients refuse it"
            do = (
                f"`masquerade deploy renew {layout.path}` renews it, while the server runs"
                if name == "server"
                else "make a new federation before: clients know it by this authority"
            )
            said.append(f"W621 {what} {how}; {do}")
    return said
