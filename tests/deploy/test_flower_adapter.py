"""The adapter carries bytes in Flower's own messages, by names, with what went wrong."""

import json
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.supercore.task_identity import TaskIdentity

from masquerade.deploy import flower, worker
from masquerade.deploy.carrier import Delivery
from masquerade.deploy.flower import FlowerCarrier, client_app, unwrap, wrap
from masquerade.deploy.nodes import Nodes


@pytest.fixture(autouse=True, scope="module")
def task() -> None:
    """Be a task of Flower's, as its processes are."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    found = Nodes(tmp_path / "nodes.json")
    found.write({11: "ann", 22: "bob"})
    return found


@dataclass
class Grid:
    """Stands for Flower's grid: it keeps messages, and hands out the answers that it is given."""

    online: list[int] = field(default_factory=lambda: [11, 22, 99])
    pushed: dict[str, Message] = field(default_factory=dict)
    answers: dict[str, Message] = field(default_factory=dict)

    def get_node_ids(self) -> list[int]:
        return self.online

    def push_messages(self, messages: Iterable[Message]) -> Iterator[str | None]:
        for message in messages:
            name = f"message-{len(self.pushed)}"
            vars(message.metadata)["_message_id"] = name
            self.pushed[name] = message
            yield name

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        return [self.answers.pop(name) for name in names if name in self.answers]

    def answer(self, name: str, content: RecordDict | Error) -> None:
        """Have an answer to a message arrive."""
        self.answers[name] = Message(content, reply_to=self.pushed[name])


def carrier(grid: Grid, nodes: Nodes, seconds: float = 60.0) -> FlowerCarrier:
    """Return a carrier over a stand-in."""
    return FlowerCarrier(grid, nodes, seconds)  # type: ignore[arg-type]


def test_bytes_come_out_as_they_went_in() -> None:
    for data in (b"", b"\x00\xff", bytes(range(256)) * 1000):
        assert unwrap(wrap(data)) == data


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"message": ConfigRecord({"bytes": b"abc"})}),
        RecordDict({"message": MetricRecord({"bytes": 1})}),
        RecordDict({"message": ArrayRecord()}),
        RecordDict({"message": ArrayRecord({"bytes": Array("uint8", (3,), "numpy", b"abc")})}),
    ],
)
def test_other_content_is_refused(content: RecordDict) -> None:
    with pytest.raises(ValueError, match="no bytes of Masquerade"):
        unwrap(content)


def test_clients_are_known_by_the_nodes_that_their_keys_were_given(nodes: Nodes) -> None:
    grid = Grid()
    found = carrier(grid, nodes)
    assert found.connected() == ["ann", "bob"]
    grid.online = [22]
    assert found.connected() == ["bob"]
    nodes.write({22: "bob", 99: "cid"})
    grid.online = [99]
    assert found.connected() == ["cid"]


def test_messages_go_to_the_nodes_of_their_clients(nodes: Nodes) -> None:
    grid = Grid()
    carrier(grid, nodes, 45.0).send({"bob": b"to bob", "ann": b"to ann", "nobody": b"lost"})
    sent = {m.metadata.dst_node_id: unwrap(m.content) for m in grid.pushed.values()}
    assert sent == {11: b"to ann", 22: b"to bob"}
    assert {m.metadata.ttl for m in grid.pushed.values()} == {45.0}


def test_answers_are_of_whom_was_asked_and_come_once(nodes: Nodes) -> None:
    grid = Grid()
    found = carrier(grid, nodes)
    found.send({"ann": b"1", "bob": b"2"})
    assert found.receive(0.0) == []
    grid.answer("message-1", wrap(b"from bob"))
    assert found.receive(0.0) == [Delivery("bob", b"from bob")]
    grid.answer("message-1", wrap(b"again"))
    assert found.receive(0.0) == []
    grid.answer("message-0", Error(code=2, reason="it broke"))
    (told,) = found.receive(0.0)
    assert (told.client, told.body) == ("ann", None)
    assert "it broke" in told.error


def test_an_error_says_whether_it_came_of_the_last_message(nodes: Nodes) -> None:
    grid = Grid()
    found = carrier(grid, nodes)
    found.send({"ann": b"1"})
    found.send({"ann": b"2"})
    for name in ("message-0", "message-1"):
        grid.answer(name, Error(code=2, reason="it broke"))
    assert [each.last for each in found.receive(0.0)] == [False, True]


def test_a_node_that_is_one_answer_behind_is_sent_nothing_behind_its_question(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower, "NUDGE", 0.0)

    def sent(grid: Grid) -> list[bytes]:
        return [unwrap(each.content) for each in grid.pushed.values()]

    grid = Grid()
    found = carrier(grid, nodes)
    found.send({"ann": b"1", "bob": b"1"})
    assert found.receive(0.05) == []
    found.send({"ann": b"2", "bob": b"2"})
    # The answer to the first question comes once the second was taken.
    grid.answer("message-0", wrap(b"one"))
    (late,) = found.receive(0.0)
    assert (late.client, late.last) == ("ann", False)
    assert found.receive(0.05) == []
    assert sent(grid) == [b"1", b"1", b"2", b"2", b""]
    assert next(reversed(grid.pushed.values())).metadata.dst_node_id == 11
    # So the second answer is there in time, and the nudge is nobody's answer.
    grid.answer("message-2", wrap(b"two"))
    assert [each.body for each in found.receive(0.0)] == [b"two"]
    # Its own answer is kept until the third question: ann is still behind.
    found.send({"ann": b"3"})
    grid.answer("message-4", wrap(b""))
    assert found.receive(0.05) == []
    assert sent(grid)[5:] == [b"3", b""]
    # Whoever answers nothing at once is not behind any more.
    grid.answer("message-5", wrap(b"three"))
    grid.answer("message-6", wrap(b""))
    assert [each.body for each in found.receive(0.0)] == [b"three"]
    found.send({"ann": b"4"})
    assert found.receive(0.05) == []
    assert sent(grid)[7:] == [b"4"]


def test_a_client_that_was_late_and_answers_by_itself_is_not_behind(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid()
    found = carrier(grid, nodes)
    found.send({"ann": b"1"})
    found.send({"ann": b"2"})
    grid.answer("message-0", wrap(b"late"))
    grid.answer("message-1", wrap(b"in time"))
    assert [each.last for each in found.receive(0.0)] == [False, True]
    monkeypatch.setattr(flower, "NUDGE", 0.0)
    found.send({"ann": b"3"})
    assert found.receive(0.05) == []
    assert len(grid.pushed) == 3


def test_an_answer_of_other_content_is_delivered_as_an_error(nodes: Nodes) -> None:
    grid = Grid()
    found = carrier(grid, nodes)
    found.send({"ann": b"1"})
    grid.answer("message-0", RecordDict({"message": ConfigRecord({"bytes": b"abc"})}))
    (told,) = found.receive(0.0)
    assert (told.client, told.body) == ("ann", None)
    assert told.error


def test_what_is_too_old_is_asked_for_no_more(nodes: Nodes) -> None:
    grid = Grid()
    found = carrier(grid, nodes, seconds=0.05)
    found.send({"ann": b"1"})
    assert found.receive(0.1) == []
    grid.answer("message-0", wrap(b"late"))
    assert found.receive(0.0) == []


def test_a_client_app_hands_bytes_to_the_worker_and_back(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "worker"))
        opened.listen(1)

        def serve() -> None:
            with suppress(OSError):
                worker.serve(opened, lambda data: data.upper())

        threading.Thread(target=serve, daemon=True).start()
        asked = Message(wrap(b"abc"), 11, "train", ttl=30.0)
        context = Context(1, 11, {"socket": str(tmp_path / "worker")}, RecordDict(), {})
        answer = client_app(asked, context)
        assert unwrap(answer.content) == b"ABC"
        # What asks nothing does not wait for the worker.
        context.node_config["socket"] = str(tmp_path / "none")
        nothing = client_app(Message(wrap(b""), 11, "train", ttl=30.0), context)
        assert unwrap(nothing.content) == b""
        opened.shutdown(socket.SHUT_RDWR)


def test_numbers_of_nodes_may_be_damaged_and_are_learned_anew(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    assert Nodes(path).names() == {}
    path.write_text("{")
    assert Nodes(path).names() == {}
    path.write_text(json.dumps({"x": "ann"}))
    assert Nodes(path).names() == {}
