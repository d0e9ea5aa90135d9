"""What BatchNorm does with one value per channel: the last batch of an epoch may be one sample.

One value has no variance, and torch refuses it. A layer with running statistics normalizes by them
then, as in use, and leaves them as they are. One without has its bias as the output: whatever the
value, it is its own mean.
"""

from typing import Any

from torch import Tensor, nn

_AGAIN, _IN_USE = "again", "in use"


def take_one_value(module: nn.Module) -> None:
    """Let all BatchNorm layers of a network take a batch of one value per channel."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.register_forward_pre_hook(_before)
            layer.register_forward_hook(_after, always_call=True)


def _before(layer: nn.Module, given: tuple[Any, ...]) -> Any:
    x = given[0]
    if not layer.training or x.ndim < 2 or x.numel() > x.shape[1]:
        return None
    if layer.running_mean is None:
        layer.__dict__["_one_value"] = _AGAIN
        return (x.expand(2, *x.shape[1:]),)
    layer.__dict__["_one_value"], layer.training = _IN_USE, False
    return None


def _after(layer: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
    done = layer.__dict__.pop("_one_value", None)
    if done == _IN_USE:
        layer.training = True
    return output[:1] if done == _AGAIN and isinstance(output, Tensor) else None
