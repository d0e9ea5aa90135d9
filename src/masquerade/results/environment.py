"""What a training ran on: enough to say why another machine may give other last digits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Environment:
    """Versions, machine and command."""

    masquerade: str
    python: str
    torch: str
    numpy: str
    system: str
    device: str
    """The processor, or the GPU where one was used."""
    cores: int
    date: str
    """The day on which training ended, in UTC."""
    command: str = ""
    """As it was typed; empty where a program trained."""
