"""A whole federation in this process: every fault is named and counted, and replay is equal."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from masquerade.data import Federation
from masquerade.deploy import replay as replaying
from masquerade.deploy.facts import counts_of
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.fleet import STARTS, next_start
from masquerade.deploy.member import open_member
from masquerade.deploy.messages import Answer, Question, read, write
from masquerade.deploy.replay import MEMBERS, read_records, replay
from masquerade.deploy.server import serve
from masquerade.deploy.status import ClientStatus, Status
from masquerade.engine.exchange import Channel
from masquerade.errors import MasqueradeError
from masquerade.results import Attendance, RoundRecord
from masquerade.storage.results import read_results, read_sheets
from tests.deploy.network import SIZES, Crash, Network, federation, member_folder
from tests.support import raises, warns

pytestmark = pytest.mark.filterwarnings("ignore::masquerade.errors.MasqueradeWarning")


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are made of the same summaries elsewhere, and take seconds."""
    monkeypatch.setattr("masquerade.report.render.can_draw", lambda: False)


def served(network: Network) -> Network:
    """Serve until it is done, again after every crash."""
    while True:
        try:
            serve(network.folder, network, network.now)
            return network
        except Crash:
            continue


def is_its_replay(network: Network) -> None:
    found = replay(network.folder)
    assert not found.differences, found.differences
    assert not found.missing
    assert found.compared >= 2 * found.rounds


def lines(network: Network) -> list[RoundRecord]:
    return list(read_records(network.folder))


def attended(network: Network, number: int) -> Attendance:
    found = lines(network)[number].attendance
    assert found is not None
    return found


def once(name: str, number: int, what: str, kind: str = "train") -> Callable[[str, Question], str]:
    """One thing goes wrong, once, with the answer of a client in a round."""
    left = [what]

    def fault(who: str, question: Question) -> str:
        if (who, question.kind, question.number) == (name, kind, number) and left:
            return left.pop()
        return ""

    return fault


def again(question: Question) -> Question:
    """The same question, asked after all others."""
    return replace(question, order=(2**40, 0))


@pytest.mark.parametrize("method", ["fedavg", "dmpfl", "fedmask", "ditto", "pfedgate", "scaffold"])
def test_a_federation_is_its_replay(method: str, tmp_path: Path) -> None:
    network = served(federation(tmp_path, method))
    is_its_replay(network)
    status = Status.read(tmp_path)
    assert status is not None
    assert (status.doing, status.round, status.faults) == ("finished", 3, {})
    (sheet,) = read_sheets(tmp_path)
    listed = {name for line in sheet.lines for names in line.kinds.values() for name in names}
    assert {"fingerprint", "class_names", "own", "operations"} <= listed
    assert {line.name for line in sheet.lines} >= {"facts", "params", "figures"}
    assert not sheet.simulated
    for summary in read_results(tmp_path):
        assert summary.per_client is not None
        assert summary.per_client.names == ("c0", "c1", "c2")
        assert all(figure is not None for figure in summary.per_client.own)
        assert [point.round for point in summary.history] == (
            [2, 3] if not trains(summary) else [3]
        )


def trains(summary) -> bool:
    return summary.view == "tuned"


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("lost on the way", "W619"),
        ("slow", ""),
        ("late", "W610"),
        ("double", "W611"),
        ("corrupt", "W613"),
        ("stolen", "W615"),
        ("failed", "W616"),
        ("held", "W610"),
    ],
)
def test_what_goes_wrong_is_named_counted_and_settled(what: str, code: str, tmp_path: Path) -> None:
    network = federation(tmp_path, "ditto", train={"rounds": 4})
    network.fault = once("c1", 1, what)
    served(network)
    second = attended(network, 1)
    comes = what in ("slow", "double")
    assert second.back == ((0, 1, 2) if comes else (0, 2))
    counted = {code: counts for each in lines(network) for code, counts in faults(each)}
    wanted = "c0" if what == "stolen" else "c1"
    assert counted.get(code, {}).get(wanted, 0) == (code != "")
    assert set(counted) <= {code, "W619"}
    status = Status.read(tmp_path)
    assert status is not None
    assert status.lost == (not comes)
    is_its_replay(network)


def faults(record: RoundRecord) -> Iterator[tuple[str, dict[str, int]]]:
    assert record.attendance is not None
    yield from record.attendance.faults.items()


def test_what_comes_and_is_not_taken_costs(tmp_path: Path) -> None:
    """A late answer has gone up, and been computed, though nobody uses it."""
    whole = served(federation(tmp_path / "whole", train={"rounds": 2}))
    network = federation(tmp_path / "late", train={"rounds": 2})
    network.fault = once("c1", 0, "late")
    served(network)
    late, fine = lines(network), lines(whole)
    total = [sum(line.costs[way] for line in late) for way in ("down", "up", "dense")]
    assert attended(network, 0).back == (0, 2)
    assert late[0].costs["up"] < fine[0].costs["up"]
    assert late[1].costs["up"] > fine[1].costs["up"]
    assert attended(network, 1).faults == {"W610": {"c1": 1}}
    assert total[1:] == [sum(line.costs[way] for line in fine) for way in ("up", "dense")]


def test_no_round_begins_below_the_quorum(tmp_path: Path) -> None:
    network = federation(tmp_path, "fedavg")
    network.up = {"c0"}
    network.events.append((500.0, lambda: network.up.add("c2")))
    seen: list[Status | None] = []
    network.events.append((400.0, lambda: seen.append(Status.read(tmp_path))))
    served(network)
    assert network.time > 500
    assert seen[0] is not None
    assert (seen[0].doing, seen[0].connected) == ("waiting", ("c0",))
    assert seen[0].waiting_since > 0
    assert [each.attendance.asked for each in lines(network) if each.attendance] == [(0, 2)] * 3
    assert {name for name, _ in network.seen} == {"c0", "c2"}


def test_a_round_with_too_few_answers_changes_nothing(tmp_path: Path, golden) -> None:
    network = federation(tmp_path, "dmpfl")
    network.fault = lambda name, q: (
        "lost on the way" if (q.kind, q.number) == ("train", 1) and name != "c1" else ""
    )
    with warns("W618", 2) as warned:
        served(network)
    golden(next(each.message for each in warned if "W618" in str(each.message)))
    second = lines(network)[1]
    assert second.clients == ()
    assert second.attendance is not None
    assert second.attendance.below_quorum
    assert (second.attendance.answers, second.attendance.back) == (1, (1,))
    assert second.costs["up"] > 0
    assert lines(network)[2].clients == (0, 1, 2)
    is_its_replay(network)


def test_the_quorum_counts_updates_that_can_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three answers cannot be read, one is not finite: two that are of no use."""
    network, honest = federation(tmp_path, fleet={"quorum": 2}), Channel.write_upload

    def spoiled(channel, number, message, download, held) -> bytes:
        if (channel.client.id, number) == (1, 1):
            return b"garbage"
        if (channel.client.id, number) == (2, 1):
            for part in message.values():
                next(iter(part.values.values())).fill_(math.nan)
        return honest(channel, number, message, download, held)

    monkeypatch.setattr(Channel, "write_upload", spoiled)
    with warns("W618", 1, 2):
        served(network)
    first, second, third = lines(network)
    assert (second.clients, second.lost, second.refused) == ((), (1,), {"2": "W604"})
    attendance = attended(network, 1)
    assert (attendance.answers, attendance.below_quorum) == (1, True)
    assert first.clients == third.clients == (0, 1, 2)
    monkeypatch.undo()
    is_its_replay(network)


@pytest.mark.parametrize("method", ["dmpfl", "fedmask"])
@pytest.mark.parametrize("place", [0, 4, 7, 10, 13, 17])
def test_a_server_that_crashes_goes_on_from_its_last_commit(
    method: str, place: int, tmp_path: Path
) -> None:
    network, asked = federation(tmp_path, method), iter(range(1000))
    network.fault = lambda name, question: "crash" if next(asked) == place else ""
    with pytest.raises(Crash):
        serve(tmp_path, network, network.now)
    network.members.clear()
    serve(tmp_path, network, network.now)
    assert [line.round for line in lines(network)] == [1, 2, 3]
    is_its_replay(network)


def test_an_answer_to_a_server_that_crashed_is_stale(tmp_path: Path) -> None:
    network = federation(tmp_path, "dmpfl")
    network.fault = once("c2", 1, "crash")
    with pytest.raises(Crash):
        serve(tmp_path, network, network.now)
    serve(tmp_path, network, network.now)
    assert {code for each in lines(network) for code, _ in faults(each)} == {"W612"}
    is_its_replay(network)


@pytest.mark.parametrize("method", ["ditto", "scaffold"])
@pytest.mark.parametrize("quorum", [2, 3])
def test_a_question_that_a_newer_one_has_overtaken_is_not_done(
    method: str, quorum: int, tmp_path: Path
) -> None:
    """With a quorum of 3 a round without it changes nothing, so both begin from the same state."""
    network = federation(tmp_path, method, train={"rounds": 4}, fleet={"quorum": quorum})
    network.fault = once("c1", 1, "held")
    served(network)
    assert attended(network, 2).back == (0, 1, 2)
    is_its_replay(network)


def test_a_client_is_not_told_to_begin_anew_by_what_is_old(tmp_path: Path, golden) -> None:
    network = served(federation(tmp_path, "ditto"))
    asked = next(q for name, q in network.seen if (name, q.kind) == ("c1", "settle"))
    answer = read(Answer, network.member("c1").answer(write(asked)))
    assert (answer.code, answer.nonce) == ("E615", asked.nonce)
    golden(MasqueradeError(answer.code, answer.text.replace(str(asked.order[0]), "START")))
    is_its_replay(network)


def test_questions_are_newer_after_every_start(tmp_path: Path) -> None:
    """Also where the clock is set back, or an older copy of the folder is put back."""
    first = next_start(tmp_path)
    copy = (tmp_path / STARTS).read_bytes()
    (tmp_path / STARTS).write_text(str(first + 5000))
    assert next_start(tmp_path) == first + 5001
    (tmp_path / STARTS).write_bytes(copy)
    assert next_start(tmp_path) > first


def test_a_client_whose_disk_was_lost_begins_anew_and_the_record_says_so(tmp_path: Path) -> None:
    network = federation(tmp_path, "fedmask", train={"rounds": 4})
    network.fault = once("c1", 1, "disk")
    served(network)
    assert attended(network, 1).back == (0, 2)
    third = attended(network, 2)
    assert [(each.kind, each.clients) for each in third.prepared] == [
        ("renewed", (1,)),
        ("setup", (1,)),
    ]
    assert third.back == (0, 1, 2)
    is_its_replay(network)


def test_clients_join_and_leave_between_rounds(tmp_path: Path) -> None:
    network = federation(tmp_path, "dmpfl", train={"rounds": 5})
    member_folder(tmp_path, 3)

    def comes() -> None:
        FederationConfig.load(tmp_path).with_clients(["c3"]).save(tmp_path)
        network.up.add("c3")

    def goes() -> None:
        FederationConfig.load(tmp_path).without("c0").save(tmp_path)

    def fault(name: str, question: Question) -> str:
        if (name, question.kind) == ("c1", "train"):
            {1: comes, 3: goes}.get(question.number, lambda: None)()
        return ""

    network.fault = fault
    served(network)
    asked = [each.attendance.asked for each in lines(network) if each.attendance]
    assert asked == [(0, 1, 2)] * 2 + [(0, 1, 2, 3)] * 2 + [(1, 2, 3)]
    assert (attended(network, 2).joined, attended(network, 4).left) == ((3,), (0,))
    is_its_replay(network)
    (personal, *_) = read_results(tmp_path)
    assert personal.per_client is not None
    assert personal.per_client.names == ("c1", "c2", "c3")


@pytest.mark.parametrize("method", ["fedavg", "fedmask"])
def test_a_client_that_comes_after_training_is_evaluated_apart(method: str, tmp_path: Path) -> None:
    network = served(federation(tmp_path, method))
    before = (tmp_path / "metrics.jsonl").read_bytes()
    member_folder(tmp_path, 3)
    FederationConfig.load(tmp_path).with_clients(["c3"]).save(tmp_path)
    network.up.add("c3")
    served(network)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    for summary in read_results(tmp_path):
        assert summary.novel is not None
        assert summary.novel.clients.names == ("c3",)
        assert summary.clients == 3
    is_its_replay(network)
    assert open_member(tmp_path / MEMBERS / "c3").personal().predict(torch.zeros(2, 6)).shape == (
        2,
        3,
    )


def test_updates_that_are_not_finite_are_refused_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, honest = federation(tmp_path, "fedavg"), Channel.write_upload

    def spoiled(channel, number, message, download, held) -> bytes:
        if (channel.client.id, number) == (2, 1):
            for part in message.values():
                next(iter(part.values.values())).fill_(math.nan)
        return honest(channel, number, message, download, held)

    monkeypatch.setattr(Channel, "write_upload", spoiled)
    served(network)
    assert lines(network)[1].refused == {"2": "W604"}
    status = Status.read(tmp_path)
    assert status is not None
    assert status.refused == 1
    monkeypatch.undo()
    is_its_replay(network)


def test_who_does_not_fit_at_the_founding_is_told_and_the_others_train(tmp_path: Path) -> None:
    network = federation(tmp_path, "fedavg")
    np.savez(tmp_path / MEMBERS / "c0" / "own.npz", x=np.zeros((9, 4)), y=np.arange(9) % 3)
    with warns("W617", "E612", "c0", "c1", 6, 4, "cannot take part"):
        served(network)
    status = Status.read(tmp_path)
    assert status is not None
    assert (status.doing, list(status.refusals)) == ("finished", ["c0"])
    assert [each.clients for each in lines(network)] == [(1, 2)] * 3
    assert refusals_told(network)[0] == ("c0", "samples have the shape 6 at c1, and 4 at c0")
    is_its_replay(network)


def test_a_client_knows_where_it_stands(tmp_path: Path) -> None:
    network = federation(tmp_path, "fedavg")
    np.savez(tmp_path / MEMBERS / "c2" / "own.npz", x=np.zeros((9, 4)), y=np.arange(9) % 3)
    served(network)
    fine, refused = (ClientStatus.read(tmp_path / MEMBERS / name) for name in ("c1", "c2"))
    assert fine is not None
    assert (fine.doing, fine.round, fine.rounds, fine.refused) == ("waiting", 3, 3, "")
    assert 0 < fine.trained <= fine.measured <= fine.since
    assert sum(fine.samples) == SIZES[1]
    assert refused is not None
    assert (refused.round, refused.refused.partition(" ")[0]) == (0, "E612")
    question = next(q for name, q in network.seen if (name, q.kind) == ("c1", "train"))
    network.member("c1").answer(write(question))
    assert ClientStatus.read(tmp_path / MEMBERS / "c1") == replace(fine, since=ANY, updated=ANY)
    (tmp_path / MEMBERS / "c1" / "own.npz").write_bytes(b"")
    hello = next(q for name, q in network.seen if (name, q.kind) == ("c1", "hello"))
    network.member("c1").answer(write(hello))
    spoiled = ClientStatus.read(tmp_path / MEMBERS / "c1")
    assert spoiled is not None
    assert spoiled.refused.startswith("E3")


def refusals_told(network: Network) -> list[tuple[str, str]]:
    """Who was told why it is refused: what differs."""
    told = [(name, q.body.decode()) for name, q in network.seen if q.kind == "refused"]
    return [(name, text.removeprefix("E612 ").partition(";")[0]) for name, text in told]


def test_a_founding_waits_for_others_than_those_it_has_refused(tmp_path: Path) -> None:
    """The first of two that differ is right until a third one is like the second."""
    network = federation(tmp_path, "fedavg")
    for name in ("c1", "c2"):
        own = tmp_path / MEMBERS / name / "own.npz"
        np.savez(own, x=np.zeros((9, 4)), y=np.arange(9) % 3)
    network.up.discard("c2")
    seen: list[Status | None] = []
    network.events.append((40.0, lambda: seen.append(Status.read(tmp_path))))
    network.events.append((45.0, lambda: network.up.add("c2")))
    served(network)
    assert seen[0] is not None
    assert (seen[0].doing, list(seen[0].refusals)) == ("waiting", ["c1"])
    assert [name for name, _ in refusals_told(network)] == ["c1", "c0"]
    assert [each.clients for each in lines(network)] == [(1, 2)] * 3
    is_its_replay(network)


def test_who_is_refused_is_asked_ever_more_seldom(tmp_path: Path) -> None:
    """All others wait for its answer."""
    network = federation(tmp_path, "fedavg")
    np.savez(tmp_path / MEMBERS / "c1" / "own.npz", x=np.zeros((9, 4)), y=np.arange(9) % 3)
    network.up = {"c0", "c1"}
    network.events.append((400.0, lambda: network.up.add("c2")))
    served(network)
    assert 4 <= sum((name, q.kind) == ("c1", "hello") for name, q in network.seen) <= 6
    assert [each.clients for each in lines(network)] == [(0, 2)] * 3


def test_who_has_nothing_to_train_on_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden
) -> None:
    def counts(own: Federation, id: int) -> tuple[int, int, int]:
        found = counts_of(own, id)
        return (0, *found[1:]) if len(own.y) == SIZES[2] else found

    monkeypatch.setattr("masquerade.deploy.member.counts_of", counts)
    network = served(federation(tmp_path, "fedavg"))
    status = Status.read(tmp_path)
    assert status is not None
    golden(MasqueradeError("E612", status.refusals["c2"].removeprefix("E612 ")))
    assert [each.clients for each in lines(network)] == [(0, 1)] * 3


def test_who_was_away_is_told_again_why_it_is_refused(tmp_path: Path) -> None:
    network = federation(tmp_path, "fedavg", train={"rounds": 9})
    np.savez(tmp_path / MEMBERS / "c2" / "own.npz", x=np.zeros((9, 4)), y=np.arange(9) % 3)
    network.fault = lambda name, q: "slow" if q.kind == "train" else ""
    network.events.append((50.0, lambda: network.up.discard("c2")))
    network.events.append((55.0, lambda: network.up.add("c2")))
    served(network)
    said = [text.partition(",")[0] for _, text in refusals_told(network)]
    shape = "samples have the shape 6 at"
    assert said == [f"{shape} c0", *[f"{shape} the federation"] * 2]


def test_who_comes_later_with_unknown_classes_is_refused(tmp_path: Path) -> None:
    network = federation(tmp_path, "fedavg")
    own = member_folder(tmp_path, 3)
    np.savez(own / "own.npz", x=np.zeros((9, 6)), y=np.arange(9))
    network.fault = lambda name, q: network.up.add("c3") or ""
    tables = FederationConfig.load(tmp_path).with_clients(["c3"])
    network.events.append((1.5, lambda: tables.save(tmp_path)))
    with warns("W617", "E612", "c3", "class"):
        served(network)
    assert not any(3 in each.clients for each in lines(network))
    status = Status.read(tmp_path)
    assert status is not None
    assert "E612" in status.refusals["c3"]
    told = [question.body.decode() for name, question in network.seen if question.kind == "refused"]
    assert told == [status.refusals["c3"]]


def test_who_fits_after_all_is_not_refused_any_more(tmp_path: Path) -> None:
    network = federation(tmp_path, "fedavg", train={"rounds": 6})
    own = network.folder / MEMBERS / "c1" / "own.npz"
    whole = own.read_bytes()
    np.savez(own, x=np.zeros((9, 6)))
    network.events.append((60.0, lambda: own.write_bytes(whole) and None))
    network.fault = lambda name, question: "slow" if question.kind == "train" else ""
    served(network)
    status = Status.read(tmp_path)
    assert status is not None
    assert status.refusals == {}
    assert lines(network)[-1].clients == (0, 1, 2)


@pytest.mark.parametrize(
    ("fault", "doing"), [(KeyboardInterrupt, "stopped"), (ValueError, "failed")]
)
def test_who_is_stopped_has_not_failed(
    fault: type[BaseException], doing: str, tmp_path: Path
) -> None:
    network = federation(tmp_path, "fedavg")

    def ending(name: str, question: Question) -> str:
        raise fault

    network.fault = ending
    with pytest.raises(fault):
        serve(tmp_path, network, network.now)
    status = Status.read(tmp_path)
    assert status is not None
    assert status.doing == doing


def test_labels_are_numbered_alike_where_clients_lack_classes(tmp_path: Path) -> None:
    network = federation(tmp_path, "fedavg", clients=2)
    for name, words in (("c0", ["ant", "cow"]), ("c1", ["bee", "cow"])):
        x = np.random.default_rng(0).normal(size=(20, 6))
        y = np.array(words)[(x[:, 0] > 0).astype(int)]
        np.savez(tmp_path / MEMBERS / name / "own.npz", x=x, y=y)
    served(network)
    is_its_replay(network)
    labels = open_member(tmp_path / MEMBERS / "c0").personal().models.facts.class_names
    assert labels == ("ant", "bee", "cow")


def test_a_member_answers_whatever_comes(tmp_path: Path) -> None:
    network = served(federation(tmp_path, "fedavg"))
    member, rng = network.member("c0"), torch.Generator().manual_seed(1)
    for size in (0, 3, 40, 400):
        data = bytes(torch.randint(0, 256, (size,), generator=rng).tolist())
        assert b"E610" in member.answer(data)


def test_a_client_that_fails_says_no_more_than_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden
) -> None:
    network = federation(tmp_path, "fedavg")
    whole = Channel.write_upload

    def failing(channel, *given) -> bytes:
        if channel.client.id == 1:
            raise RuntimeError("the patient is called Smith")
        return whole(channel, *given)

    monkeypatch.setattr(Channel, "write_upload", failing)
    served(network)
    assert all(each.clients == (0, 2) for each in lines(network))
    assert attended(network, 0).faults == {"E614": {"c1": 1}}
    assert "Smith" not in "".join(path.read_text() for path in tmp_path.glob("*.json*"))
    asked = next(q for name, q in network.seen if (name, q.kind) == ("c1", "train"))
    answer = read(Answer, network.member("c1").answer(write(again(asked))))
    golden(MasqueradeError(answer.code, answer.text))


KINDS = (
    *("", "lost on the way", "held", "failed", "corrupt", "stolen", "double", "slow", "late"),
    "crash",
)


@pytest.mark.parametrize("method", ["dmpfl", "fedmask"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_whatever_goes_wrong_the_state_is_that_of_the_replay(
    method: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    network = federation(tmp_path_factory.mktemp("fuzz"), method, train={"rounds": 4})
    kinds = (*KINDS[:1] * 6, *KINDS, "disk")
    drawn = data.draw(st.lists(st.sampled_from(kinds), min_size=10, max_size=60))
    coming = iter(drawn)

    def fault(name: str, question: Question) -> str:
        what = next(coming, "")
        # What is lost at the end is asked for again; what is compared here was trained.
        return "" if question.kind == "adapt" and what == "disk" else what

    network.fault = fault
    served(network)
    found = replay(network.folder)
    assert not found.differences
    assert found.rounds == 4


def test_nothing_but_figures_comes_back_of_an_evaluation(tmp_path: Path) -> None:
    network = served(federation(tmp_path, "dmpfl"))
    member = network.member("c0")
    name, question = next(pair for pair in network.seen if pair[1].final and pair[0] == "c0")
    assert name == "c0"

    answer = read(Answer, member.answer(write(again(question))))
    assert json.loads(answer.body)["final"]
    model = member.participant(question.run).model_file("personal")
    assert model.stat().st_size > len(answer.body)


def test_clients_keep_their_places(tmp_path: Path, golden) -> None:
    network = federation(tmp_path, "fedavg")
    text = FederationConfig.load(tmp_path).dump()

    def swapped() -> None:
        (tmp_path / "federation.toml").write_text(
            text.replace('"c0",\n    "c1"', '"c1",\n    "c0"')
        )

    network.events.append((1.5, swapped))
    with raises("E617", "c0, c1, c2", "c1, c0, c2") as refusal:
        serve(tmp_path, network, network.now)
    golden(refusal.value)
    status = Status.read(tmp_path)
    assert status is not None
    assert (status.doing, "E617" in status.problem) == ("failed", True)


def test_an_evaluation_without_any_figure_is_refused_and_can_be_had_again(
    tmp_path: Path, golden
) -> None:
    network = federation(tmp_path, "fedavg")
    network.fault = lambda name, question: "failed" if question.final else ""
    with raises("E619") as refusal:
        served(network)
    golden(refusal.value)
    network.fault = lambda name, question: ""
    is_its_replay(served(network))


def test_a_replay_has_as_many_threads_as_the_federation_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums that are divided among more threads have other last bits."""
    network, seen = served(federation(tmp_path, train={"rounds": 1})), []
    real, threads = replaying.train, torch.get_num_threads()

    def noting(*given, **more):
        seen.append(torch.get_num_threads())
        return real(*given, **more)

    monkeypatch.setattr(replaying, "train", noting)
    try:
        torch.set_num_threads(3)
        is_its_replay(network)
        assert (seen, torch.get_num_threads()) == ([1], 3)
    finally:
        torch.set_num_threads(threads)


def test_a_client_exports_its_model_where_it_is(tmp_path: Path) -> None:
    network = served(federation(tmp_path, "dmpfl"))
    personal = open_member(network.folder / MEMBERS / "c1").personal("personal")
    out = tmp_path / "bundle"
    personal.export(out)
    assert (out / "model.onnx").is_file()
    with raises("E202", "sideways"):
        open_member(network.folder / MEMBERS / "c1").personal("sideways")
