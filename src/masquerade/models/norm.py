"""Normalization that means the same in a network and in a narrower slice of it."""

from torch import Tensor, nn

from masquerade.errors import MasqueradeError


class ChannelGroupNorm(nn.GroupNorm):
    """Normalize groups of `per_group` neighboring channels, however many channels there are.

    The number of groups is read off the weight at run time. With a fixed number of groups a sliced
    network would group other channels than the masked one and compute something else.
    """

    def __init__(self, channels: int, per_group: int = 4) -> None:
        if per_group < 1 or channels % per_group:
            raise MasqueradeError(
                "E202",
                f"{channels} channels do not make groups of {per_group}; "
                "choose a `per_group` that divides the channels",
            )
        super().__init__(channels // per_group, channels)
        self.per_group = per_group

    def forward(self, input: Tensor) -> Tensor:
        """Normalize [samples, channels, ...]."""
        groups = self.weight.shape[0] // self.per_group
        return nn.functional.group_norm(input, groups, self.weight, self.bias, self.eps)
