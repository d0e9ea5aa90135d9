"""Bytes down and up: what a client got last is not sent to it again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from masquerade.core import Message, Part, tree
from masquerade.cost.traffic import Seen, Traffic, at_first, measure
from masquerade.methods import FedAvg
from masquerade.wire import digest, encode
from tests.support import network, simulate

FLAG = 8 + 1
"""A header and one part that is as the other side has it."""
FULL = FLAG + 1 + 3 * 4
"""A header and one part: its flag, its tensor's flag, three float32."""
INITIAL = {"w": torch.tensor([1.0, 2.0, 3.0])}


def params(*values: float) -> Message:
    return {"params": Part({"w": torch.tensor(values, dtype=torch.float32)})}


SAME, ONE, TWO = params(1, 2, 3), params(4, 5, 6), params(7, 8, 9)


def first() -> dict[str, Tensor]:
    """What one client and the server hold before anything was sent."""
    return {name: value[0] for name, value in at_first(INITIAL, 1).items()}


def bytes_of(traffic: Traffic) -> tuple[float, float, float, float]:
    columns = (traffic.down, traffic.up, traffic.values_down, traffic.values_up)
    down, up, values_down, values_up = (float(column) for column in columns)
    return down, up, values_down, values_up


def test_the_initial_model_is_not_sent() -> None:
    traffic, _ = measure(SAME, ONE, first(), lead=0)
    assert bytes_of(traffic) == (FLAG, FULL, 0, 12)


def test_some_tensors_of_the_initial_model_are_not_sent_either() -> None:
    """A body alone (FedPer) is known at first as much as the whole model."""
    initial = INITIAL | {"head": torch.tensor([9.0])}
    known = {name: value[0] for name, value in at_first(initial, 1, SAME).items()}
    traffic, _ = measure(SAME, {}, known, lead=0)
    assert bytes_of(traffic) == (FLAG, 0, 0, 0)
    traffic, _ = measure(ONE, {}, known, lead=0)
    assert bytes_of(traffic) == (FULL, 0, 12, 0)


def test_what_was_downloaded_last_is_not_downloaded_again() -> None:
    traffic, known = measure(ONE, {}, first(), lead=0)
    assert bytes_of(traffic) == (FULL, 0, 12, 0)
    traffic, known = measure(ONE, {}, known, lead=0)
    assert bytes_of(traffic) == (FLAG, 0, 0, 0)
    traffic, known = measure(TWO, {}, known, lead=0)
    assert bytes_of(traffic) == (FULL, 0, 12, 0)
    # Only the last version is held, not all that ever came.
    traffic, known = measure(ONE, {}, known, lead=0)
    assert bytes_of(traffic) == (FULL, 0, 12, 0)


def test_an_upload_is_always_sent_and_does_not_change_what_was_downloaded() -> None:
    _, known = measure(ONE, TWO, first(), lead=0)
    traffic, known = measure(ONE, ONE, known, lead=0)
    assert bytes_of(traffic) == (FLAG, FULL, 0, 12)
    traffic, _ = measure(TWO, TWO, known, lead=0)
    assert bytes_of(traffic) == (FULL, FULL, 12, 12)


def test_what_is_held_is_returned_and_not_written() -> None:
    before = first()
    copy = dict(before)
    _, known = measure(ONE, TWO, before, lead=0)
    assert known["params"] == digest(ONE["params"])
    assert before == copy


def test_parts_are_held_by_name() -> None:
    head = {"head": Part({"w": torch.tensor([0.5])})}
    _, known = measure(ONE, {}, first(), lead=0)
    _, known = measure(head, {}, known, lead=0)
    traffic, _ = measure(ONE | head, {}, known, lead=0)
    assert bytes_of(traffic) == (FLAG + 1, 0, 0, 0)
    # The same tensors under another name are another part, and as at first there.
    traffic, _ = measure({"other": ONE["params"]}, {}, known, lead=0)
    assert bytes_of(traffic) == (FULL, 0, 12, 0)


def test_remembering_digests_changes_no_count() -> None:
    """Clients that get one download share its digest, and tensors that look alike do not."""
    seen: Seen = {}
    for message in (ONE, ONE, TWO, params(4, 5, 6), SAME):
        remembered = measure(message, ONE, first(), 0, seen)
        plain = measure(message, ONE, first(), 0)
        assert bytes_of(remembered[0]) == bytes_of(plain[0])
        assert remembered[1] == plain[1]
    masked = {"params": Part(ONE["params"].values, {"w": torch.tensor([True, True, False])})}
    _, known = measure(masked, {}, first(), 0, seen)
    assert known["params"] == digest(masked["params"]) != digest(ONE["params"])


def test_nothing_costs_nothing() -> None:
    traffic, known = measure({}, {}, at_first(INITIAL, 3), lead=1)
    for column in (traffic.down, traffic.up, traffic.values_down, traffic.values_up):
        assert column.tolist() == [0, 0, 0]
    assert known.keys() == {""}


def test_a_mask_is_charged_to_us_and_not_to_the_papers() -> None:
    masked = {"params": Part(INITIAL, {"w": torch.tensor([True, False, True])})}
    traffic, _ = measure(masked, ONE, first(), lead=0)
    # The mask makes it another version than the initial one: a byte of bits and two values.
    assert bytes_of(traffic) == (FLAG + 1 + 1 + 8, FULL, 8, 12)
    assert float(traffic.paper) == (8 + 12) / 2


def test_a_cohort_costs_what_its_clients_cost() -> None:
    known = at_first(INITIAL, 3)
    downloads, uploads = [SAME, ONE, SAME], [ONE, ONE, SAME]
    together, after = measure(tree.stack(downloads), tree.stack(uploads), known, lead=1)
    for place, (down, up) in enumerate(zip(downloads, uploads, strict=True)):
        alone, then = measure(down, up, tree.take(known, place), lead=0)
        columns = zip(vars(together).values(), vars(alone).values(), strict=True)
        assert all(float(many[place]) == float(one) for many, one in columns)
        assert {name: int(value[place]) for name, value in after.items()} == {
            name: int(value) for name, value in then.items()
        }
    assert together.down.tolist() == [FLAG, FULL, FLAG]
    assert together.up.tolist() == [FULL, FULL, FULL]


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_run_is_charged_for_the_messages_that_were_sent(engine: str) -> None:
    run: Callable[..., Any] = simulate
    made, progress = run(FedAvg(epochs=1), rounds=3, participation=1.0, engine=engine)
    whole = len(encode({"params": Part(made.task.initial)}))
    # Six clients, three rounds; in round 0 everybody has the initial model already.
    assert progress.costs["train"]["up"] == 3 * 6 * whole
    assert progress.costs["train"]["down"] == 6 * FLAG + 2 * 6 * whole
    values = 8 * sum(value.numel() for value in network().parameters())
    assert progress.costs["train"]["values_down"] == 2 * 6 * values
    assert progress.costs["train"]["values_up"] == 3 * 6 * values
