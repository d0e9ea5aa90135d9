"""Bytes down and up: what a client got last is not sent to it again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from masquerade.core import Message, Part, tree
from masquerade.core.random import uniform
from masquerade.cost.traffic import Traffic, measure_exchange
from masquerade.methods import DMPFL, FedAvg
from masquerade.wire import digest, encode, nbytes
from masquerade.wire.session import ANY, Seen, Session, begin
from tests.support import METHOD_TABLE, final, network, simulate

FLAG = 24 + 1
"""A header and one part that is as the other side has it."""
FULL = FLAG + 1 + 3 * 4
"""A header and one part: its flag, its tensor's flag, three float32."""
INITIAL = {"w": torch.tensor([1.0, 2.0, 3.0])}


def params(*values: float) -> Message:
    return {"params": Part({"w": torch.tensor(values, dtype=torch.float32)})}


SAME, ONE, TWO = params(1, 2, 3), params(4, 5, 6), params(7, 8, 9)


def first() -> Session:
    """What one client and the server hold before anything was sent."""
    return {name: value[0] for name, value in begin(INITIAL, 1).items()}


def bytes_of(traffic: Traffic) -> tuple[float, float, float, float]:
    columns = (traffic.down, traffic.up, traffic.values_down, traffic.values_up)
    down, up, values_down, values_up = (float(column) for column in columns)
    return down, up, values_down, values_up


def test_the_initial_model_is_not_sent() -> None:
    traffic, _ = measure_exchange(SAME, ONE, first(), lead=0)
    assert bytes_of(traffic) == (FLAG, FULL, 0, 12)


def test_some_tensors_of_the_initial_model_are_not_sent_either() -> None:
    """A body alone (FedPer) is known at first as much as the whole model."""
    initial = INITIAL | {"head": torch.tensor([9.0])}
    known = {name: value[0] for name, value in begin(initial, 1, SAME).items()}
    traffic, _ = measure_exchange(SAME, {}, known, lead=0)
    assert bytes_of(traffic) == (FLAG, 0, 0, 0)
    traffic, _ = measure_exchange(ONE, {}, known, lead=0)
    assert bytes_of(traffic) == (FULL, 0, 12, 0)


def test_what_was_downloaded_last_is_not_downloaded_again() -> None:
    traffic, known = measure_exchange(ONE, {}, first(), lead=0)
    assert bytes_of(traffic) == (FULL, 0, 12, 0)
    traffic, known = measure_exchange(ONE, {}, known, lead=0)
    assert bytes_of(traffic) == (FLAG, 0, 0, 0)
    traffic, known = measure_exchange(TWO, {}, known, lead=0)
    assert bytes_of(traffic) == (FULL, 0, 12, 0)
    # Only the last version is held, not all that ever came.
    traffic, known = measure_exchange(ONE, {}, known, lead=0)
    assert bytes_of(traffic) == (FULL, 0, 12, 0)


def test_an_upload_is_always_sent_and_does_not_change_what_was_downloaded() -> None:
    _, known = measure_exchange(ONE, TWO, first(), lead=0)
    traffic, known = measure_exchange(ONE, ONE, known, lead=0)
    assert bytes_of(traffic) == (FLAG, FULL, 0, 12)
    traffic, _ = measure_exchange(TWO, TWO, known, lead=0)
    assert bytes_of(traffic) == (FULL, FULL, 12, 12)


def test_what_is_held_is_returned_and_not_written() -> None:
    before = first()
    copy = dict(before)
    _, known = measure_exchange(ONE, TWO, before, lead=0)
    assert known[ANY + "params"] == digest(ONE["params"])
    assert before == copy


def test_parts_are_held_by_name() -> None:
    head = {"head": Part({"w": torch.tensor([0.5])})}
    _, known = measure_exchange(ONE, {}, first(), lead=0)
    _, known = measure_exchange(head, {}, known, lead=0)
    traffic, _ = measure_exchange(ONE | head, {}, known, lead=0)
    assert bytes_of(traffic) == (FLAG + 1, 0, 0, 0)
    # The same tensors under another name are another part, and as at first there.
    traffic, _ = measure_exchange({"other": ONE["params"]}, {}, known, lead=0)
    assert bytes_of(traffic) == (FULL, 0, 12, 0)


def test_remembering_digests_changes_no_count() -> None:
    """Clients that get one download share its digest, and tensors that look alike do not."""
    seen: Seen = {}
    for message in (ONE, ONE, TWO, params(4, 5, 6), SAME):
        remembered = measure_exchange(message, ONE, first(), 0, seen)
        plain = measure_exchange(message, ONE, first(), 0)
        assert bytes_of(remembered[0]) == bytes_of(plain[0])
        assert remembered[1] == plain[1]
    masked = {"params": Part(ONE["params"].values, {"w": torch.tensor([True, True, False])})}
    _, known = measure_exchange(masked, {}, first(), 0, seen)
    assert known[ANY + "params"] == digest(masked["params"]) != digest(ONE["params"])


def test_nothing_costs_nothing() -> None:
    traffic, known = measure_exchange({}, {}, begin(INITIAL, 3), lead=1)
    for column in (traffic.down, traffic.up, traffic.values_down, traffic.values_up):
        assert column.tolist() == [0, 0, 0]
    assert known.keys() == {ANY}


def test_a_mask_is_charged_to_us_and_not_to_the_papers() -> None:
    masked = {"params": Part(INITIAL, {"w": torch.tensor([True, False, True])})}
    traffic, _ = measure_exchange(masked, ONE, first(), lead=0)
    # The mask makes it another version than the initial one: how many of three bits are ones, a
    # byte of bits and two values.
    assert bytes_of(traffic) == (FLAG + 1 + 1 + 1 + 8, FULL, 8, 12)
    assert float(traffic.paper) == (8 + 12) / 2


def test_a_cohort_costs_what_its_clients_cost() -> None:
    known = begin(INITIAL, 3)
    downloads, uploads = [SAME, ONE, SAME], [ONE, ONE, SAME]
    together, after = measure_exchange(tree.stack(downloads), tree.stack(uploads), known, lead=1)
    for place, (down, up) in enumerate(zip(downloads, uploads, strict=True)):
        alone, then = measure_exchange(down, up, tree.take(known, place), lead=0)
        columns = zip(tree.leaves(vars(together)), tree.leaves(vars(alone)), strict=True)
        assert all(float(many[place]) == float(one) for many, one in columns)
        assert after.keys() == then.keys()
        assert all(torch.equal(value[place], then[name]) for name, value in after.items())
    assert together.down.tolist() == [FLAG, FULL, FLAG]
    assert together.up.tolist() == [FULL, FULL, FULL]


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_run_is_charged_for_the_messages_that_were_sent(engine: str) -> None:
    run: Callable[..., Any] = simulate
    made, progress = run(FedAvg(local_epochs=1), rounds=3, participation=1.0, engine=engine)
    whole = len(encode({"params": Part(made.server.task.initial)}))
    # Six clients, three rounds; in round 0 everybody has the initial model already.
    assert progress.costs["train"]["up"] == 3 * 6 * whole
    assert progress.costs["train"]["down"] == 6 * FLAG + 2 * 6 * whole
    values = 8 * sum(value.numel() for value in network().parameters())
    assert progress.costs["train"]["values_down"] == 2 * 6 * values
    assert progress.costs["train"]["values_up"] == 3 * 6 * values


def masked(keep: Tensor, values: float = 1.0) -> Message:
    return {"params": Part({"w": torch.full(keep.shape, values)}, {"w": keep})}


def drawn(count: int, share: float, key: int) -> Tensor:
    return uniform(key, (count,)) < share


def test_a_mask_that_goes_up_as_it_came_down_is_not_sent() -> None:
    keep = drawn(8000, 0.5, 1)
    traffic, known = measure_exchange(masked(keep), masked(keep, 2.0), first(), lead=0)
    down, up, values_down, values_up = bytes_of(traffic)
    assert values_down == values_up == 4 * int(keep.sum())
    # Two bytes say that no bit changed; new, the mask had a thousand bytes.
    assert up == FLAG + 1 + 2 + values_up
    assert down == up + 1000
    traffic, _ = measure_exchange(masked(keep, 3.0), {}, known, lead=0)
    assert float(traffic.down) == up


def test_a_mask_costs_what_changed_since_it_last_went_either_way() -> None:
    keep, few, many = drawn(8000, 0.5, 1), drawn(8000, 0.01, 2), drawn(8000, 0.2, 3)
    # Down: `keep`. Up: many bits of it changed. Down again: few bits of the upload changed.
    _, known = measure_exchange(masked(keep), masked(keep ^ many), first(), lead=0)
    traffic, _ = measure_exchange(masked(keep ^ many ^ few), {}, known, lead=0)
    alone, _ = measure_exchange(masked(few), {}, first(), lead=0)
    assert traffic.down - traffic.values_down == alone.down - alone.values_down
    # What went up and was lost is no reference.
    _, lost = measure_exchange(masked(keep), {}, first(), lead=0)
    traffic, _ = measure_exchange(masked(keep ^ many ^ few), {}, lost, lead=0)
    assert traffic.down - traffic.values_down > alone.down - alone.values_down


def test_bits_are_sent_as_changes_too() -> None:
    bits, few = drawn(8000, 0.5, 1), drawn(8000, 0.01, 2)
    _, known = measure_exchange({"bits": Part({"w": bits})}, {}, first(), lead=0)
    new = {"bits": Part({"w": bits ^ few})}
    traffic, _ = measure_exchange(new, {}, known, lead=0)
    assert int(nbytes(new)) > 1000 > 150 > int(traffic.down)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_dmpfl_sends_its_masks_when_they_change(engine: str) -> None:
    """In the rounds after the last readjustment masks are known at both ends."""
    run: Callable[..., Any] = simulate
    settings = {"rounds": 4, "participation": 1.0, "engine": engine}
    made, progress = run(DMPFL(local_epochs=1, readjust=0.0, phases=(1, 0, 0)), **settings)
    costs = progress.costs["train"]
    bits = 2 * 4 * 6 * sum(-(-made.server.task.shapes[name].numel() // 8) for name in MASKED)
    flags = 2 * 4 * 6 * (24 + 1 + len(made.server.task.shapes) + len(MASKED))
    masks = costs["down"] + costs["up"] - costs["values_down"] - costs["values_up"] - flags
    # Every client is sent the first mask once at most, instead of in each of four rounds each way.
    assert 0 < masks <= bits / 8 + 6


MASKED = ("2.weight", "4.weight")


@pytest.mark.parametrize(
    ("method", "sent"), [(FedAvg(local_epochs=1), False), (DMPFL(local_epochs=1), True)]
)
def test_a_first_download_is_sent_only_if_it_comes_with_a_mask(method: Any, sent: bool) -> None:
    run: Callable[..., Any] = simulate
    made, progress = run(method, rounds=1, participation=1.0)
    received = progress.costs["train"]["down"]
    if not sent:
        assert received == 6 * FLAG
    else:
        kept = sum(
            int(part.sum()) for part in made.server.method.first_mask(made.server.task).values()
        )
        assert received > 6 * 8 * kept


def test_bytes_by_part_are_all_but_the_headers() -> None:
    """Two parts of three numbers: one that the client has, one that it has not."""
    down: Message = {"old": SAME["params"], "new": ONE["params"]}
    traffic, _ = measure_exchange(down, ONE, first(), lead=0)
    found = {name: float(size) for name, size in traffic.parts.items()}
    assert found == {"down/old": 1, "down/new": 1 + 1 + 12, "up/params": 1 + 1 + 12}
    assert float(traffic.down) == 24 + 1 + 14


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", ["fedmask", "scaffold", "dmpfl"])
def test_a_run_adds_up_by_part(name: str, engine: str) -> None:
    run: Callable[..., Any] = simulate
    made, progress = run(METHOD_TABLE[name], rounds=3, engine=engine)
    for sums in progress.costs.values():
        for way in ("down", "up"):
            parts = {n: size for n, size in sums.items() if n.startswith(f"{way}/")}
            headers = sums[way] - sum(parts.values())
            assert headers % 24 == 0
            assert 0 < headers <= 24 * 3 * 6
    summary = final(made, progress)[0][0]
    sent = progress.costs["train"]
    assert summary.costs.train.parts.up == {
        n.removeprefix("up/"): size / 6 for n, size in sent.items() if n.startswith("up/")
    }
