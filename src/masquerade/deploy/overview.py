"""How a federation is: what runs, who is connected, how far training is, what to see to."""

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass

from masquerade.deploy import keys
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.layout import ServerFolder
from masquerade.deploy.processes import SUPERVISOR, running
from masquerade.deploy.server_app import Starts
from masquerade.deploy.status import Status
from masquerade.deploy.traffic import read_traffic
from masquerade.errors import listed

LINK = "superlink"
VAIN = 2
"""Starts of the server's part without a round in between that are one too many."""
AWAY = 60.0
"""A client that was not heard of for so many seconds is away; nodes ask every 3, or work."""


@dataclass(frozen=True)
class ClientView:
    """One client, as the server sees it."""

    name: str
    state: str
    """ "connected", "away", "never seen", "refused" or "removed"."""
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
    troubles: tuple[str, ...]
    """What keeps training from going on, or a client from taking part."""
    warnings: tuple[str, ...]

    @property
    def well(self) -> bool:
        """Whether the server runs, and nothing waits for its operator."""
        return not self.troubles

    def record(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {"well": self.well, **asdict(self)}


def overview(layout: ServerFolder) -> Overview:
    """Look how a federation is."""
    from masquerade.deploy.founding import address_of

    config = FederationConfig.load(layout.settings)
    status = Status.read(layout.path)
    alive = running(layout.state)
    left = [keys.days_left(layout.certificate(n)[0].read_bytes()) for n in ("server", "ca")]
    ended = ["W621 a certificate has ended, and clients refuse it"] if min(left) <= 0 else []
    troubles = [*_missing(alive, layout), *_hindrances(status, config), *ended]
    return Overview(
        config.fleet.name,
        address_of(config),
        tuple(sorted(alive)),
        status,
        tuple(_clients(layout, config, status, SUPERVISOR in alive)),
        tuple(troubles),
        tuple(ending(layout)),
    )


def _missing(alive: Collection[str], layout: ServerFolder) -> list[str]:
    """Say which process is not there that should be."""
    if SUPERVISOR not in alive:
        return [f"the server does not run; `masquerade deploy server {layout.path}` starts it"]
    said = [] if LINK in alive else ["SuperLink does not run; it is started again"]
    starts = Starts.read(layout.restarts)
    if starts.in_vain >= VAIN:
        text = f"W620 the server's app has ended {starts.in_vain} times since the last round"
        said.append(f"{text}; {layout.state / 'logs'} says why")
    return said


def _hindrances(status: Status | None, config: FederationConfig) -> list[str]:
    """Say what training waits for, and who cannot take part."""
    if status is None:
        return []
    said = [
        f"{name} cannot take part: {text}"
        for name, text in sorted(status.refusals.items())
        if name not in config.fleet.removed
    ]
    if status.doing == "failed":
        said.append(f"training has failed: {status.problem}")
    if status.doing == "waiting":
        fleet = config.fleet
        wanted = [each for each in fleet.clients if each not in fleet.removed]
        away = [each for each in wanted if each not in status.connected]
        text = f"training waits for clients: it needs {fleet.quorum}"
        said.append(text + (f"; not connected: {listed(away)}" if away else ""))
    return said


def _clients(
    layout: ServerFolder, config: FederationConfig, status: Status | None, serving: bool
) -> list[ClientView]:
    traffic, now = read_traffic(layout.traffic), time.time()
    views = []
    for name in config.fleet.clients:
        seen = traffic.get(name)
        last = seen.last if seen else None
        if name in config.fleet.removed:
            state = "removed"
        elif status is not None and name in status.refusals:
            state = "refused"
        elif last is None:
            state = "never seen"
        else:
            state = "connected" if serving and now - last < AWAY else "away"
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
