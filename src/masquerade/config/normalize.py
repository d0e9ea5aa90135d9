"""The setting `data.normalize`: what is done to samples before the network reads them."""

from torch import Tensor

from masquerade.core.preprocess import Normalize, Preprocess, Raw, Scale, Standardize
from masquerade.errors import MasqueradeError, nearest

# Mean and std of every channel over all pixels of the original training part, pixels being from 0
# to 1. ImageNet's are those that torchvision's pretrained networks expect; the others are the
# figures that programs for these data commonly state, rounded as they state them.
CONSTANTS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": ((0.1307,), (0.3081,)),
}
WORDS = ("unit", "none", "standard", *CONSTANTS)


def parse(text: str) -> Preprocess:
    """Return the preprocessing that a text names, or spells as MEAN:STD.

    Both may be lists such as 0.5,0.4:0.2,0.2, a number for every channel or feature.
    """
    match text:
        case "unit":
            return Scale()
        case "none":
            return Raw()
        case "standard":
            return Standardize()
        case _ if text in CONSTANTS:
            return Normalize(*CONSTANTS[text])
    try:
        mean, std = ([float(one) for one in each.split(",")] for each in text.split(":"))
        return Normalize(mean, std)
    except (ValueError, MasqueradeError):
        known = f"{', '.join(WORDS)}, or MEAN:STD such as 0.5:0.5, STD above 0"
        problem = f"`data.normalize` is {text!r}{nearest(text, WORDS)}; write one of {known}"
        raise MasqueradeError("E201", problem) from None


def preprocess_for(text: str, x: Tensor) -> Preprocess:
    """Return the same for samples x [samples, …]; refuse constants of other channels."""
    if text in CONSTANTS:
        channels, shape = len(CONSTANTS[text][0]), list(x.shape[1:])
        if len(shape) != 3 or shape[0] != channels:
            raise MasqueradeError(
                "E202",
                f"`data.normalize` is {text}, which is for images of {channels} channels, and "
                f"samples have the shape {shape}; write standard, unit or MEAN:STD",
            )
    return parse(text)


def spelled(preprocess: Preprocess) -> str:
    """Return the text that `parse` makes the same preprocessing of, to the bit."""
    if isinstance(preprocess, Normalize):
        mean, std = (
            ",".join(map(repr, each.tolist())) for each in (preprocess.mean, preprocess.std)
        )
        return f"{mean}:{std}"
    for text in ("unit", "none", "standard"):
        if type(preprocess) is type(parse(text)):
            return text
    name = getattr(preprocess, "__name__", type(preprocess).__name__)
    raise MasqueradeError(
        "E202", f"the preprocessing `{name}` is code of your own, which no text spells"
    )
