"""LSTM layers whose gates are linear layers: torch's own numbers, by name, batched and counted."""

import pytest
import torch
from torch import Tensor, nn

from masquerade.core.task import Task
from masquerade.cost.flops import Meter
from masquerade.models import LSTM, CharLSTM, RowLSTM, build
from tests.support import raises

GATES = ("input", "forget", "cell", "output")
"""In the order in which torch stacks them."""


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_it_equals_torchs_lstm_with_the_same_weights() -> None:
    ours, theirs = LSTM(3, 5).double(), nn.LSTM(3, 5, batch_first=True).double()
    linears = [getattr(ours, gate) for gate in GATES]
    weight = torch.cat([linear.weight.detach() for linear in linears])
    bias = torch.cat([linear.bias.detach() for linear in linears])
    theirs.load_state_dict(
        {
            "weight_ih_l0": weight[:, :3],
            "weight_hh_l0": weight[:, 3:],
            "bias_ih_l0": bias,
            "bias_hh_l0": torch.zeros_like(bias),
        }
    )
    x = drawn(4, 7, 3)
    torch.testing.assert_close(ours(x), theirs(x)[0], rtol=1e-12, atol=1e-12)


def test_the_next_character_network_has_the_size_of_the_papers() -> None:
    # 80·8 + 4·(128·136 + 128) + 4·(128·256 + 128) + 128·512 + 512 + 512·192 + 192 + 192·80 + 80
    task = Task(CharLSTM(80))
    assert task.parameters == 382_352
    # Table 5 has 1.53 MB of float32.
    assert round(task.parameters * 4 / 1e6, 2) == 1.53
    assert task(task.initial, torch.zeros(2, 20, dtype=torch.int64))[0].shape == (2, 80)


def test_an_image_is_read_row_by_row() -> None:
    model = RowLSTM(row=6, hidden=4, classes=3).double()
    assert sum(value.numel() for value in model.parameters()) == 4 * (4 * 10 + 4) + 4 * 3 + 3
    image = drawn(1, 2, 5, 3)
    rows = torch.stack([image[0, :, row].flatten() for row in range(5)])[None]
    expected = model.fc(model.lstm(rows)[:, -1])
    torch.testing.assert_close(model(image), expected)


def test_operations_are_counted_gate_by_gate() -> None:
    task = Task(RowLSTM(row=6, hidden=4, classes=3))
    counted = Meter(task).forward(torch.zeros(1, 1, 5, 6))
    # Five rows, four outputs of ten inputs, two operations each.
    assert {counted[f"lstm.{gate}.weight"] for gate in GATES} == {5 * 4 * 10 * 2}


@pytest.mark.parametrize(("name", "shape"), [("row_lstm", (28, 28)), ("char_lstm", (1, 8, 8))])
def test_inputs_of_another_form_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with raises("E202"):
        build(name, shape, 10, seed=0)
