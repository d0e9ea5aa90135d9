"""Loss and metric of a regression, one number per sample; outputs [n, 1] fit targets [n]."""

from torch import Tensor


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    """Return the squared error of every sample, the mean over its targets."""
    return _per_sample((output.reshape(y.shape) - y).square())


def mae(output: Tensor, y: Tensor) -> Tensor:
    """Return the absolute error of every sample, whose mean is the MAE."""
    return _per_sample((output.reshape(y.shape) - y).abs().double())


def _per_sample(errors: Tensor) -> Tensor:
    return errors if errors.ndim == 1 else errors.flatten(1).mean(1)
