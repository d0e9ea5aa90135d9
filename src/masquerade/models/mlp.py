"""Fully connected networks."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import relu

from masquerade.models.norm import norm_of


class MLP(nn.Module):
    """Linear layers with ReLU between them; without hidden layers, logistic regression.

    `norm` stands between a hidden layer and its ReLU: "none", "group" (of four units) or "batch".
    """

    def __init__(
        self,
        inputs: int,
        hidden: tuple[int, ...] = (64,),
        classes: int = 10,
        norm: str = "none",
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise((inputs, *hidden)):
            linear = nn.Linear(before, after)
            layers.append(linear if norm == "none" else nn.Sequential(linear, norm_of(norm, after)))
        self.layers = nn.ModuleList([*layers, nn.Linear((inputs, *hidden)[-1], classes)])

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [samples, classes] of inputs of any shape [samples, ...]."""
        x = x.flatten(1)
        *hidden, last = self.layers
        for layer in hidden:
            x = relu(layer(x))
        logits: Tensor = last(x)
        return logits
