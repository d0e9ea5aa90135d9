"""All clients as the server sees them: it asks them, waits, and takes what answers its questions.

Every question has a nonce, which its answer repeats. So what is late, a duplicate, stale, of
another run or of another client is told apart, named, counted, and not taken. Who a client is, the
carrier says, by its key; what an answer says of itself has to agree. Questions are in an order,
over all starts of the server, so that a client does none that a newer one has overtaken.
"""

import re
import secrets
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from masquerade.deploy.carrier import Carrier, Delivery
from masquerade.deploy.messages import Answer, Question, read, write
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.storage import atomic

STARTS = "starts"
"""A file of a server's folder: the number of its last start."""
BEAT = 1.0
"""Seconds that the carrier is waited for at a time."""
SHOWN = 300
"""Letters that are shown of what a client says."""
REFUSES = "it refuses what it was asked"
FAULTS = {
    "W610": "its answer came after the deadline",
    "W611": "its answer came twice",
    "W612": "it answers what an earlier process of the server asked",
    "W613": "its answer cannot be read",
    "W614": "its answer is of another run",
    "W615": "its answer names another client",
    "W616": "the carrier could not get an answer",
    "W617": REFUSES,
    "W608": "an answer that cannot be read counts as lost",
    "W619": "no answer came by the deadline",
}
"""Why an answer is not taken, by code."""
RENEWED = ("E606", "E611")
"""What a client refuses by that has lost its states."""


def next_start(folder: Path) -> int:
    """Return the number of a server's start, larger than all before; it is on the disk then.

    It is the time, in seconds, where that is larger: so it rises even after an older copy of the
    folder was put back, or what is in the file cannot be read.
    """
    path = folder / STARTS
    try:
        last = int(path.read_text("ascii"))
    except (FileNotFoundError, ValueError):
        last = 0
    number = max(last + 1, int(time.time()))
    atomic.write_file(path, str(number).encode())
    return number


@dataclass
class Fleet:
    """The clients of a federation, and what came of asking them."""

    run: str
    carrier: Carrier
    now: Callable[[], float] = time.monotonic
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    """Names this process of the server."""
    start: int = 0
    """Its number: larger than those of all processes before."""
    beat: Callable[[], None] = lambda: None
    """Is called whenever something may have changed."""
    faults: dict[str, dict[str, int]] = field(default_factory=dict)
    """By code and client, how often; since they were last taken."""
    unused: list[Answer] = field(default_factory=list)
    """Answers that came and are not taken; since they were last taken."""
    begin_anew: set[str] = field(default_factory=set)
    """Clients that said that they have no state to go on from."""
    refusals: dict[str, Answer] = field(default_factory=dict)
    """The last refusal of a client."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Who is being waited for: nonce → client."""
    _counter: "count[int]" = field(default_factory=count)
    _answered: set[str] = field(default_factory=set)
    _answers: dict[str, Answer] = field(default_factory=dict)

    def connected(self, among: Mapping[str, int]) -> list[str]:
        """Return those of some clients that can be reached now, in the order of their numbers."""
        here = set(self.carrier.connected())
        return [name for name in among if name in here]

    def ask(self, questions: Mapping[str, Question], deadline: float) -> dict[str, Answer]:
        """Ask some clients; return the answers of those that did it within so many seconds."""
        messages = {}
        for name, question in questions.items():
            number = next(self._counter)
            nonce, order = f"{self.token}-{number}", (self.start, number)
            self.waiting[nonce] = name
            asked = replace(question, run=self.run, client=name, nonce=nonce, order=order)
            messages[name] = write(asked)
        end = self.now() + deadline
        self.carrier.send(messages)
        while self.waiting and (left := end - self.now()) > 0:
            self.listen(min(left, BEAT))
        for name in self.waiting.values():
            self.note("W619", name)
        self.waiting.clear()
        answers, self._answers = self._answers, {}
        return answers

    def listen(self, wait: float) -> None:
        """Take what arrives, waiting at most so long for the first of it."""
        for delivery in self.carrier.receive(wait):
            self._receive(delivery)
        self.beat()

    def note(self, code: str, name: str, text: str = "", what: str = REFUSES) -> None:
        """Count a fault of a client, and warn of the first of its kind."""
        counts = self.faults.setdefault(code, {})
        if name not in counts:
            said = f"client {name}: {FAULTS.get(code, what)}"
            more = f" ({text})" if text else ""
            label = code if code in FAULTS else f"W617 {code},"
            warnings.warn(f"{label} {said}{more}", MasqueradeWarning, stacklevel=3)
        counts[name] = counts.get(name, 0) + 1

    def taken_faults(self) -> dict[str, dict[str, int]]:
        """Return what went wrong since this was last asked for."""
        found, self.faults = self.faults, {}
        return found

    def _receive(self, delivery: Delivery) -> None:
        name = delivery.client
        if delivery.body is None:
            self.note("W616", name, delivery.error)
            self._give_up(delivery)
            return
        try:
            answer = read(Answer, delivery.body)
        except MasqueradeError as error:
            self.note("W613", name, str(error))
            self._give_up(delivery)
            return
        fault = self._fault(answer, name)
        if fault:
            self.note(fault, name)
            self.unused.append(answer)
            return
        del self.waiting[answer.nonce]
        self._answered.add(answer.nonce)
        if not answer.code:
            self._answers[name] = answer
            return
        self.refusals[name] = answer
        if answer.code in RENEWED:
            self.begin_anew.add(name)
        # What a client says is shown, and is nothing to count by unless it is a code.
        code = answer.code if re.fullmatch("[EW][0-9]{3}", answer.code) else "W617"
        self.note(code, name, answer.text[:SHOWN])

    def _fault(self, answer: Answer, name: str) -> str:
        """Return the code that says why an answer is not taken; empty where it is."""
        if answer.client != name or self.waiting.get(answer.nonce, name) != name:
            return "W615"
        if answer.run != self.run:
            return "W614"
        if answer.nonce.partition("-")[0] != self.token:
            return "W612"
        if answer.nonce in self._answered:
            return "W611"
        return "" if answer.nonce in self.waiting else "W610"

    def _give_up(self, delivery: Delivery) -> None:
        """Wait no longer for a client from which nothing that can be read has come.

        What came of an earlier question says nothing of this one, which is still to be answered.
        """
        asked = self.waiting.items() if delivery.last else ()
        for nonce in [each for each, name in asked if name == delivery.client]:
            del self.waiting[nonce]
