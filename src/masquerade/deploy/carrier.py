"""What carries messages between the server and its clients: names, bytes, and what went wrong.

A carrier knows nothing of rounds. Whether an answer is late, stale or a duplicate is for whoever
uses it to say (`fleet.py`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Delivery:
    """What came of a message to a client: its answer, or why there is none."""

    client: str
    """The registered name of whoever answered, by its key: not what the answer says of itself."""
    body: bytes | None
    """None where it failed at the client, or on the way."""
    error: str = ""
    """What went wrong, as a text; empty where there is an answer."""
    last: bool = True
    """Whether it came of the last message that this client was sent, and not of an earlier one."""


class Carrier(Protocol):
    """Carries bytes between the server and clients, which it knows by their registered names."""

    def connected(self) -> Collection[str]:
        """Return the names of the clients that can be reached now."""
        ...

    def send(self, messages: Mapping[str, bytes]) -> None:
        """Hand over one message for each of some clients, and return at once.

        A client that cannot be reached answers nothing, or gets a delivery with an error; sending
        to it is no error. A client may be sent a message before it answered the last one.
        """
        ...

    def receive(self, wait: float) -> Sequence[Delivery]:
        """Return what has arrived; wait at most so many seconds for the first of it.

        An answer may come late, twice, or never, and answers may come in any order.
        """
        ...
