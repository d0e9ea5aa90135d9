"""Bytes on a device, by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from masquerade.core import Axis, Message, Part
from masquerade.cost.storage import model_bytes, session_bytes, state_bytes
from masquerade.results import Storage
from masquerade.wire.packed_bits import packed
from tests.support import METHOD_TABLE, final, simulate

run: Callable[..., Any] = simulate

VALUES = torch.arange(20.0).reshape(4, 5)
KEEP = VALUES % 3 == 0
"""Seven of twenty: 0, 3, 6, 9, 12, 15, 18."""


def test_a_dense_model_is_its_values() -> None:
    assert model_bytes({"params": Part({"w": VALUES, "b": torch.zeros(3)})}) == 80 + 12


def test_a_masked_model_is_its_kept_values_and_packed_bits() -> None:
    # Seven float32 values; twenty bits in three bytes.
    assert model_bytes({"params": Part({"w": VALUES}, {"w": KEEP})}) == 28 + 3


def test_a_mask_of_rows_has_a_bit_per_row() -> None:
    rows = torch.tensor([True, False, True, False])
    part = Part({"w": VALUES}, {"w": rows}, {"w": Axis(0)})
    assert model_bytes({"params": part}) == 2 * 5 * 4 + 1


def test_bits_on_a_structure_are_packed_twice_over() -> None:
    """FedMask: the bits of what the structure keeps, and the structure."""
    part = Part({"w": VALUES > 9}, {"w": KEEP})
    assert model_bytes({"bits": part}) == 1 + 3


def test_what_the_model_has_already_lies_once() -> None:
    personal: Message = {"params": Part({"w": VALUES}, {"w": KEEP})}
    held = {"params": {"w": VALUES}, "keep": {"w": KEEP}, "begun": torch.tensor(3)}
    assert state_bytes(held, personal) == 8
    other = {"params": {"w": VALUES + 1}, "keep": {"w": ~KEEP}}
    assert state_bytes(other, personal) == 80 + 3  # No zeros are left to save.


def test_a_tensor_of_zeros_lies_as_what_is_none() -> None:
    # Two of twenty float32 values, and twenty bits; one of two, and a byte.
    state = {"residual": {"w": VALUES * (VALUES > 17)}, "share": torch.tensor([0.0, 1.0])}
    assert state_bytes(state, {}) == 2 * 4 + 3 + (1 * 4 + 1)


def test_equal_numbers_of_another_name_are_something_else() -> None:
    personal: Message = {"params": Part({"bias": torch.zeros(4)})}
    assert state_bytes({"control": {"weight": torch.zeros(4)}}, personal) == 1
    assert state_bytes({"control": {"bias": torch.zeros(4)}}, personal) == 0


def test_parts_in_a_state_are_counted_by_their_masks() -> None:
    own = Part({"w": VALUES}, {"w": KEEP})
    assert state_bytes({"own": own}, {}) == 31
    assert state_bytes({"own": own}, {"own": own}) == 0


@pytest.mark.parametrize(
    ("name", "model", "state", "session"),
    [
        # 6 → 8 → 6 → 3 in float64: 131 parameters.
        ("fedavg", 131 * 8, 0, 0),
        ("local", 131 * 8, 0, 0),
        # The shared model is not the one in use: it stays for the wire.
        ("ditto", 131 * 8, 0, 131 * 8),
        ("fedper", 131 * 8, 0, 0),
        # The mixture is used; the own model and its share are kept, and the shared one.
        ("apfl", 131 * 8, 131 * 8 + 8, 131 * 8),
    ],
)
def test_storage_of_methods_by_hand(name: str, model: int, state: int, session: int) -> None:
    made, progress = run(METHOD_TABLE[name], rounds=3, participation=1.0)
    found = final(made, progress)[0][0].costs.storage
    assert found == Storage(model, state, session)


def test_a_session_is_the_last_download_and_the_bits_sent_last() -> None:
    download: Message = {"params": Part({"w": VALUES}, {"w": KEEP})}
    personal: Message = {"params": Part({"w": VALUES + 1}, {"w": ~KEEP})}
    # Of the download seven float32 values, and twenty bits in three bytes.
    assert session_bytes({}, download, {}, personal) == 28 + 3
    assert session_bytes({}, download, {"keep": {"w": KEEP}}, personal) == 28
    assert session_bytes({}, download, {}, download) == 0
    # Bits that went up lie in words of eight bytes, unless a mask of that name is the same.
    for sent, size in ((KEEP, 0), (~KEEP, 0), (VALUES > 9, 8), (VALUES < 0, 0)):
        session = {"up/params/w": packed(sent), "down/params/w": packed(KEEP)}
        assert session_bytes(session, download, {}, personal) == 31 + size
    other = {"up/params/v": packed(KEEP), "up/bits/v=": packed(~KEEP)}
    assert session_bytes(other, download, {}, personal) == 31 + 8 + 8


def test_a_device_of_dmpfl_holds_two_sparse_models_at_most() -> None:
    """The model that it uses takes the newest shared weights; its own stay for the next round."""
    made, progress = run(METHOD_TABLE["dmpfl"], rounds=3)
    found = final(made, progress)[0][0].costs.storage
    # Half of the two last layers' 48 + 18 weights go; their 66 bits take 6 + 3 bytes.
    assert found.model == (131 - 33) * 8 + 9
    assert 8 <= found.state <= found.model + 8
    # The last download is as large; of the bits sent last there are two words and one.
    assert 0 < found.session <= found.model + 24
