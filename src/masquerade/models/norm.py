"""Normalization by groups, which survives slicing, and by batches, which survives one sample."""

from collections.abc import Callable

from torch import Tensor, nn

from masquerade.errors import MasqueradeError, nearest


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


class ChannelBatchNorm(nn.BatchNorm1d):
    """Normalize channels over a batch [samples, channels, ...], which may be a single value each.

    The last batch of an epoch is as small as it is. One value has no variance, so such a batch is
    normalized by the running statistics, as in use, and leaves them as they are.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        """Take images as well as vectors."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize [samples, channels, ...]."""
        if input.numel() > input.shape[1]:
            return super().forward(input)
        return nn.functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": nn.Identity,
    "group": ChannelGroupNorm,
    "batch": ChannelBatchNorm,
}


def norm_of(kind: str, channels: int) -> nn.Module:
    """Make what stands behind a hidden layer: "none", "group" or "batch"."""
    if kind not in _NORMS:
        known = ", ".join(_NORMS)
        raise MasqueradeError(
            "E202", f"unknown norm `{kind}`{nearest(kind, _NORMS)}; known are {known}"
        )
    return _NORMS[kind](channels)
