"""Fully connected networks."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import relu


class MLP(nn.Module):
    """Linear layers with ReLU between them; without hidden layers, logistic regression."""

    def __init__(self, inputs: int, hidden: tuple[int, ...] = (64,), classes: int = 10) -> None:
        super().__init__()
        sizes = (inputs, *hidden, classes)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of inputs of any shape [samples, ...]."""
        x = x.flatten(1)
        *hidden, last = self.layers
        for layer in hidden:
            x = relu(layer(x))
        logits: Tensor = last(x)
        return logits
