"""Recurrent networks of FedMask: an LSTM on the rows of images, and one on characters.

Torch's own LSTM cannot be mapped over clients and holds its four gates in one matrix. Here every
gate is a linear layer, so that methods and costs speak of gates by name.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


class _Forget(nn.Linear):
    """A forget gate that begins open, as is usual; else a long sequence is forgotten at once."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.ones_(self.bias)


class LSTM(nn.Module):
    """One layer of long short-term memory; its gates are `input`, `forget`, `cell` and `output`."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(inputs + hidden, hidden)
        self.forget = _Forget(inputs + hidden, hidden)
        self.cell = nn.Linear(inputs + hidden, hidden)
        self.output = nn.Linear(inputs + hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states [samples, time, hidden] of sequences [samples, time, inputs]."""
        hidden = memory = x.new_zeros(x.shape[0], self.input.out_features)
        states = []
        for now in x.unbind(1):
            both = torch.cat([now, hidden], 1)
            added = self.input(both).sigmoid() * self.cell(both).tanh()
            memory = self.forget(both).sigmoid() * memory + added
            hidden = self.output(both).sigmoid() * memory.tanh()
            states.append(hidden)
        return torch.stack(states, 1)


class RowLSTM(nn.Module):
    """One LSTM layer that reads an image row by row, and a linear layer on its last state."""

    def __init__(self, row: int, hidden: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.lstm = LSTM(row, hidden)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of images [samples, channels, rows, columns]."""
        rows = x.movedim(1, 2).flatten(2)
        logits: Tensor = self.fc(self.lstm(rows)[:, -1])
        return logits


class CharLSTM(nn.Module):
    """The next-character network of FedMask (Li et al., 2021): two LSTM and three dense layers.

    The paper gives the eight dimensions of a character and the number of layers. Their widths are
    ours: with 80 characters they make 382,352 parameters, the 1.53 MB of its Table 5.
    """

    def __init__(
        self, characters: int = 80, hidden: int = 128, dense: Sequence[int] = (512, 192)
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 8)
        self.lstm1 = LSTM(8, hidden)
        self.lstm2 = LSTM(hidden, hidden)
        self.fc1 = nn.Linear(hidden, dense[0])
        self.fc2 = nn.Linear(dense[0], dense[1])
        self.fc3 = nn.Linear(dense[1], characters)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, characters] of what follows texts [samples, time], int64."""
        last = self.lstm2(self.lstm1(self.embedding(x)))[:, -1]
        logits: Tensor = self.fc3(relu(self.fc2(relu(self.fc1(last)))))
        return logits
