"""Flower as the carrier: all that the two apps do which its processes run.

Nothing else here imports Flower, and of it only what it calls public: `flwr.app`, `flwr.clientapp`
and `flwr.serverapp`. `superlink.py` has the commands of its processes.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from masquerade.deploy import server_app as serving
from masquerade.deploy import worker
from masquerade.deploy.carrier import Delivery
from masquerade.deploy.nodes import Nodes

STYPE = "masquerade.bytes.v1"
"""How an array says what it is. Flower moves large arrays in pieces, and a piece only once."""
TYPE = "train"
POLL, SHARE = 0.2, 0.1
"""Between two looks for answers: seconds at least, and a share of the time since something was
asked. So nobody waits much longer, and SuperLink is not asked five times a second for hours."""
NOTHING = b""
"""A message that asks nothing, and wants the same for an answer."""
NUDGE = 5.0
"""Seconds after a question that a node which is behind is sent nothing: it has taken the question
by then."""


def wrap(data: bytes) -> RecordDict:
    """Put bytes into what Flower carries."""
    array = Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)
    return RecordDict({"message": ArrayRecord({"bytes": array})})


def unwrap(content: RecordDict) -> bytes:
    """Take the bytes out again; refuse what `wrap` has not made."""
    record = content.get("message")
    array = record.get("bytes") if isinstance(record, ArrayRecord) else None
    if array is None or array.stype != STYPE:
        raise ValueError("a message that holds no bytes of Masquerade")
    return array.data


class FlowerCarrier:
    """Carries bytes between the server and SuperNodes; a client is who its registered key says."""

    def __init__(self, grid: Grid, nodes: Nodes, seconds: float) -> None:
        """Carry over a grid; a message that is older than `seconds` is given up."""
        self._grid, self._nodes, self._seconds = grid, nodes, seconds
        self._asked: dict[str, tuple[str, float]] = {}
        self._last: dict[str, str] = {}
        """The number of the last message to each client."""
        self._sent = 0.0
        self._behind: set[str] = set()
        """Clients whose nodes are one answer behind.

        A node sends the answers that it has right after it took a message, and then waits for the
        next one. Once it has one too many, as it may when an app is killed, it keeps every answer
        until it is asked something else. So it is sent nothing, behind the question.
        """
        self._nudges: dict[str, str] = {}
        """The number of what asks nothing → the client that it went to last."""

    def connected(self) -> Sequence[str]:
        """Return the clients whose nodes are online."""
        names = self._nodes.names()
        return sorted(names[node] for node in self._grid.get_node_ids() if node in names)

    def send(self, messages: Mapping[str, bytes]) -> None:
        """Hand messages to SuperLink, which nodes ask for them."""
        until = time.monotonic() + self._seconds
        # What comes of an earlier nudge says nothing of what is asked now.
        self._nudges = {n: name for n, name in self._nudges.items() if name not in messages}
        for name, data in messages.items():
            # One by one: together they would be as large as their sum.
            if number := self._push(name, data):
                self._asked[number], self._last[name] = (name, until), number
        self._sent = time.monotonic()

    def _push(self, name: str, data: bytes) -> str:
        """Hand a message to SuperLink; return its number, "" where the client is not there."""
        nodes = {name: node for node, name in self._nodes.names().items()}
        if name not in nodes:
            return ""
        message = Message(wrap(data), nodes[name], TYPE, ttl=self._seconds)
        return next(iter(self._grid.push_messages([message])), None) or ""

    def _nudge(self) -> None:
        """Ask nothing of those who are behind, and have not answered for a while."""
        waiting = {name for name, _ in self._asked.values()} - set(self._nudges.values())
        for name in sorted(self._behind & waiting):
            if number := self._push(name, NOTHING):
                self._nudges[number] = name

    def receive(self, wait: float) -> Sequence[Delivery]:
        """Return what has arrived."""
        until = time.monotonic() + wait
        while True:
            found = self._pull()
            now = time.monotonic()
            if found or now >= until:
                return found
            if now - self._sent >= NUDGE:
                self._nudge()
            time.sleep(min(max(POLL, SHARE * (now - self._sent)), until - now))

    def _pull(self) -> list[Delivery]:
        now = time.monotonic()
        self._asked = {key: asked for key, asked in self._asked.items() if asked[1] > now}
        numbers, found = [*self._asked, *self._nudges], []
        for message in self._grid.pull_messages(numbers) if numbers else ():
            number = message.metadata.reply_to_message_id
            asked, nudged = self._asked.pop(number, None), self._nudges.pop(number, "")
            # Whoever answers nothing before it is asked again keeps no answer.
            self._behind.discard(nudged)
            if asked is not None:
                name, last = asked[0], self._last[asked[0]] == number
                if not last:
                    self._behind.add(name)
                elif name not in self._nudges.values():
                    self._behind.discard(name)
                found.append(_delivery(name, message, last))
        return found


def _delivery(name: str, message: Message, last: bool) -> Delivery:
    if message.has_error():
        text = f"{message.error.reason} (Flower's {message.error.code})"
        return Delivery(name, None, text, last)
    try:
        return Delivery(name, unwrap(message.content), last=last)
    except ValueError as fault:
        return Delivery(name, None, str(fault), last)


client_app = ClientApp()


@client_app.train()
def forward(message: Message, context: Context) -> Message:
    """Hand a message to the client's worker, and its answer back."""
    path, data = str(context.node_config["socket"]), unwrap(message.content)
    answer = worker.ask(path, data, message.metadata.ttl) if data else NOTHING
    return Message(wrap(answer), reply_to=message)


server_app = ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Train the federation of a folder over the nodes of a grid."""
    folder = Path(str(context.run_config["folder"]))
    serving.run(
        folder, lambda nodes, seconds: FlowerCarrier(grid, nodes, seconds), str(context.run_id)
    )
