"""The fleet sorts what arrives, and the texts of what it and its clients refuse."""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from masquerade.core.features import Feature
from masquerade.deploy.agreement import check_code
from masquerade.deploy.carrier import Delivery
from masquerade.deploy.facts import Facts, Form, check_known, merged, translated, unlike
from masquerade.deploy.fleet import Fleet
from masquerade.deploy.member import Member
from masquerade.deploy.messages import Answer, Question, read, write
from masquerade.deploy.replay import opened_members
from masquerade.deploy.status import Status, StatusFile
from masquerade.errors import MasqueradeError
from tests.support import raises, warns

RUN, TOKEN = "fed-1", "abc"


@dataclass
class Scripted:
    """A carrier that delivers what it is told to, and notes what is sent."""

    deliveries: list[Delivery] = field(default_factory=list)
    time: float = 0.0

    def now(self) -> float:
        return self.time

    def connected(self) -> Sequence[str]:
        return ("ann", "bob")

    def send(self, messages: Mapping[str, bytes]) -> None:
        pass

    def receive(self, wait: float) -> Sequence[Delivery]:
        self.time += wait
        found, self.deliveries = self.deliveries, []
        return found


def fleet_of(*deliveries: Delivery) -> Fleet:
    carrier = Scripted(list(deliveries))
    return Fleet(RUN, carrier, carrier.now, TOKEN)


def told(client: str = "ann", nonce: str = f"{TOKEN}-0", run: str = RUN, **more) -> bytes:
    return write(Answer(run=run, client=client, nonce=nonce, **more))


ASKED = {"ann": Question(run="", client="", nonce="", kind="train")}
FINE = Delivery("ann", told(body=b"upload"))
TAKEN = {
    # What is delivered, before or after an answer that is taken, and why it is not.
    "W610": (Delivery("ann", told(nonce=f"{TOKEN}-77")), FINE),
    "W611": (FINE, FINE),
    "W612": (Delivery("ann", told(nonce="old-0")), FINE),
    "W614": (Delivery("ann", told(run="another")), FINE),
    "W615": (Delivery("ann", told("bob")), FINE),
}
LOST = {
    "W613": Delivery("ann", told()[:-1]),
    "W616": Delivery("ann", None, "the worker was killed"),
    "E614": Delivery("ann", told(code="E614", text="RuntimeError while it did `train`")),
    "W617": Delivery("ann", told(code="no code", text="no")),
}


@pytest.mark.parametrize("code", TAKEN)
def test_an_answer_that_is_not_taken_does_not_take_the_place_of_one(code: str, golden) -> None:
    fleet = fleet_of(*TAKEN[code])
    with warns(code, "ann") as warned:
        assert fleet.ask(ASKED, 10.0)["ann"].body == b"upload"
    golden(warned[0].message)
    assert fleet.taken_faults() == {code: {"ann": 1}}
    assert len(fleet.unused) == 1
    assert fleet.taken_faults() == {}


@pytest.mark.parametrize("code", LOST)
def test_nobody_waits_for_a_client_that_cannot_answer(code: str, golden) -> None:
    fleet = fleet_of(LOST[code])
    with warns("W617" if code.startswith("E") else code, "ann") as warned:
        assert not fleet.ask(ASKED, 10.0)
    golden(warned[0].message)
    assert fleet.now() < 10.0
    assert fleet.faults == {code: {"ann": 1}}


@pytest.mark.filterwarnings("ignore:W61[36]")
@pytest.mark.parametrize("code", ["W613", "W616"])
def test_what_came_of_an_earlier_question_does_not_end_the_waiting_for_this_one(code: str) -> None:
    """A worker that was killed in one round is reported in the next, which it answers."""
    fleet = fleet_of(replace(LOST[code], last=False), FINE)
    assert fleet.ask(ASKED, 10.0)["ann"].body == b"upload"
    assert fleet.faults == {code: {"ann": 1}}


def test_a_deadline_ends_the_waiting(golden) -> None:
    fleet = fleet_of()
    with warns("W619", "ann") as warned:
        assert not fleet.ask(ASKED, 10.0)
    golden(warned[0].message)
    assert fleet.now() == 10.0
    assert not fleet.waiting


@pytest.mark.filterwarnings("ignore:W619")
def test_one_client_cannot_answer_for_another() -> None:
    """It knows the nonce, and says that it is the other; its key says who it is."""
    fleet = fleet_of(Delivery("bob", told("ann", body=b"poison")), Delivery("bob", told("bob")))
    with warns("W615", "bob"):
        assert not fleet.ask(ASKED, 5.0)
    assert fleet.faults["W615"] == {"bob": 2}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"MQF\x01",
        b"GET / HTTP/1.1\r\nHost: server\r\n\r\n",
        told()[:-3],
        told()[:-1] + b"]",
        told().replace(b"MQF\x01", b"MQF\x02"),
        told() + b"more",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with raises("E610"):
        read(Answer, data)


def test_heads_that_are_no_answers_are_refused(golden) -> None:
    def framed(head: bytes) -> bytes:
        return struct.pack("<3sBII", b"MQF", 1, zlib.crc32(head), len(head)) + head

    for head in (b"[1]", b"{}", b'{"run": 3}', b"[" * 5000, b"\xff", b"9" * 5000):
        with raises("E610"):
            read(Answer, framed(head))
    about = {"run": RUN, "client": "ann", "nonce": "1"}
    for strange in ({"flops": [[10**400]]}, {"flops": [[[[]]]]}, {"code": []}):
        with raises("E610"):
            read(Answer, framed(json.dumps(about | strange).encode()))
    for strange in ({"base": 10**4000}, {"number": -1}, {"id": 2**32}, {"base": True}):
        with raises("E610"):
            read(Question, framed(json.dumps(about | {"kind": "train"} | strange).encode()))
    whole = about | {"body": "x", "flops": [["a"]]}
    with raises("E610") as refusal:
        read(Answer, framed(json.dumps(whole).encode()))
    golden(refusal.value)


def test_a_question_is_read_as_it_was_written() -> None:
    asked = Question(run=RUN, client="ann", nonce="1", kind="train", body=b"\0{}", base=2**64 - 1)
    assert read(Question, write(asked)) == asked
    with raises("E610"):
        read(Answer, write(asked))


def test_a_member_that_knows_no_run_says_so(tmp_path: Path, golden) -> None:
    asked = Question(run=RUN, client="ann", nonce="7", kind="train")
    answer = read(Answer, Member(tmp_path).answer(write(asked)))
    assert (answer.code, answer.nonce, answer.client) == ("E611", "7", "ann")
    golden(MasqueradeError(answer.code, answer.text))


TABLE = Form((2,), "float32", (), 2, ("no", "yes"), (Feature("age"), Feature("job", ("a", "b"))))


def test_forms_that_differ_are_refused_with_both_sides(golden) -> None:
    wrong = unlike({"ann": TABLE, "bob": replace(TABLE, dtype="uint8")})
    with raises("E612", "ann", "bob", "uint8", "float32") as refusal:
        raise wrong["bob"]
    golden(refusal.value)
    others = [
        replace(TABLE, shape=(3,)),
        replace(TABLE, classes=None, class_names=()),
        replace(TABLE, features=(Feature("age"), Feature("work", ("a", "b")))),
        replace(TABLE, features=(Feature("age"), Feature("job"))),
        replace(TABLE, impute="median"),
    ]
    for other in others:
        assert list(unlike({"ann": TABLE, "bob": other})) == ["bob"]
    assert unlike({}) == unlike({"ann": TABLE}) == {}


def test_most_clients_are_right_and_of_as_many_the_first() -> None:
    other = replace(TABLE, dtype="uint8")
    assert list(unlike({"ann": other, "bob": TABLE, "cid": TABLE})) == ["ann"]
    assert list(unlike({"ann": other, "bob": TABLE})) == ["bob"]
    four = {"ann": other, "bob": TABLE, "cid": TABLE, "dan": other}
    assert sorted(unlike(four)) == ["bob", "cid"]


def test_numbers_are_not_put_together_with_the_words_for_them(golden) -> None:
    numbers, words = Form((4,), "float32", (), 2), Form((4,), "float32", (), 2, ("no", "yes"))
    words = replace(words, worded=True)
    with raises("E612", "ann", "bob", "0, 1", "no, yes") as refusal:
        raise unlike({"ann": numbers, "bob": words})["bob"]
    golden(refusal.value)
    assert list(unlike({"ann": numbers, "bob": words, "cid": words})) == ["ann"]
    partly = replace(words, class_names=("1", "unknown"))
    assert unlike({"ann": numbers, "bob": partly}) == {}
    assert unlike({"ann": words, "bob": replace(words, class_names=("red", "blue"))}) == {}


def test_who_comes_later_may_have_less_and_not_more(golden) -> None:
    fewer = replace(TABLE, classes=1, class_names=("yes",))
    check_known(TABLE, fewer, "eve")
    more = replace(TABLE, features=(Feature("age"), Feature("job", ("a", "c"))))
    with raises("E612", "eve", "c") as refusal:
        check_known(TABLE, more, "eve")
    golden(refusal.value)


def test_names_are_put_together_and_numbers_follow(golden) -> None:
    one = replace(TABLE, features=(Feature("age"), Feature("job", ("c", "a"))))
    two = replace(TABLE, classes=2, class_names=("maybe", "yes"))
    form = merged([one, two])
    assert form.class_names == ("maybe", "no", "yes")
    assert form.features[1].categories == ("a", "b", "c")
    x = torch.tensor([[30.0, 0.0], [40.0, 1.0], [50.0, torch.nan]])
    own = replace(
        one.blank("own", ["ann"]), x=x, y=torch.tensor([0, 1, 1]), train=(torch.arange(3),)
    )
    found = translated(own, form)
    assert found.y.tolist() == [1, 2, 2]
    assert found.x[:2, 1].tolist() == [2.0, 0.0]
    assert found.x[2, 1].isnan()
    assert own.x[0, 1] == 0


def test_plain_numbers_of_classes_stay_numbers() -> None:
    ten, eight = (Form((1, 8, 8), "float32", (), count) for count in (10, 8))
    assert merged([eight, ten]) == ten


@pytest.mark.parametrize(
    "form",
    [
        replace(TABLE, dtype="load"),
        replace(TABLE, shape=(1 << 40,), features=()),
        replace(TABLE, shape=(-1,), features=()),
        replace(TABLE, class_names=("no", "no")),
        replace(TABLE, class_names=(), classes=1 << 20),
        replace(TABLE, features=(Feature("age"),)),
    ],
)
def test_facts_that_no_data_can_have_are_refused(form: Form) -> None:
    Facts(TABLE, 3, 0, 1, "").check()
    with raises("E610"):
        Facts(form, 3, 0, 1, "").check()
    with raises("E610"):
        Facts(TABLE, -3, 0, 1, "").check()


def test_code_that_differs_is_refused(golden) -> None:
    with raises("E613", "mine.py:Own") as refusal:
        check_code({"mine.py:Own": "0" * 64})
    golden(refusal.value)


def test_a_replay_needs_everybodys_data(tmp_path: Path, golden, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with raises("E618", "ann") as refusal:
        opened_members(Path("members"), ["ann"])
    golden(refusal.value)


def test_a_status_is_written_when_something_changed(tmp_path: Path) -> None:
    assert Status.read(tmp_path) is None
    file = StatusFile(tmp_path, Status(doing="gathering"))
    file.update(doing="training", round=3)
    first = (tmp_path / "status.json").read_bytes()
    file.update(round=3)
    assert (tmp_path / "status.json").read_bytes() == first
    file.update(round=4)
    found = Status.read(tmp_path)
    assert found is not None
    assert (found.round, found.doing) == (4, "training")
    assert found.updated > 0
