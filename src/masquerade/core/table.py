"""Preprocessing of tables: missing values are imputed, numbers standardized, categories encoded."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from masquerade.core import tree
from masquerade.core.features import Feature
from masquerade.core.preprocess import FittedLater, Preprocess, mean_and_std, moments
from masquerade.core.tree import Tree
from masquerade.errors import MasqueradeError, listed

IMPUTE = ("", "mean", "median", "most_frequent")
"""What may stand in for missing values; "" where none may be missing."""
FROM_HISTOGRAMS = ("median", "most_frequent")
"""Of these, what clients have histograms of."""
HALF = (31 << 10) - 1
"""Bins of a histogram for the numbers of float16 above zero; as many are for those below."""


class FittedTabular(nn.Module):
    """Preprocess rows of a table [samples, columns] as training samples decided.

    A network reads the numbers first, standardized and in the order of their columns, then one
    number for each category of each column: 1 for the sample's own, 0 for all others.
    """

    mean: Tensor
    std: Tensor
    fill: Tensor | None
    numbers: Tensor
    encoded: Tensor
    codes: Tensor

    def __init__(
        self,
        features: Sequence[Feature],
        mean: Tensor,
        std: Tensor,
        fill: Tensor | None = None,
        impute: str = "",
    ) -> None:
        super().__init__()
        self.features, self.impute = tuple(features), impute
        # What everybody is sent; the rest follows from the columns.
        for name, value in (("mean", mean), ("std", std), ("fill", fill)):
            self.register_buffer(name, value)
        for name, value in zip(("numbers", "encoded", "codes"), _places(features), strict=True):
            self.register_buffer(name, value, persistent=False)

    @property
    def width(self) -> int:
        """Return how many numbers the network reads."""
        return width_of(self.features)

    @property
    def text(self) -> str:
        """Describe it."""
        return text_of(self.features, self.impute)

    def forward(self, x: Tensor) -> Tensor:
        """Return samples [samples, width]."""
        if x.ndim != 2 or x.shape[1] != len(self.features):
            text = f"the table has {len(self.features)} columns, and samples the shape"
            raise MasqueradeError("E202", f"{text} {list(x.shape[1:])}; give all columns, in order")
        known = x if self.fill is None else torch.where(x.isnan(), self.fill, x)
        numbers = (known.index_select(1, self.numbers) - self.mean) / self.std
        own = known.index_select(1, self.encoded) == self.codes
        return torch.cat([numbers, own.to(numbers.dtype)], 1)


class Tabular(FittedLater):
    """Preprocess tables: impute missing values, standardize numbers, one-hot encode categories.

    It is not fitted yet. A run fits it from what clients send of their training samples: of every
    number the count, the sum and the squared deviations from the own mean, of the known values.
    With `impute`, counts of every category are sent too: a missing category is replaced by the most
    frequent one, whatever numbers are replaced by. "median" and "most_frequent" take a second
    exchange, `TabularHistograms`.

    A constant column is divided by 1; what is missing everywhere is replaced by 0 or the first
    category. With `per_client` each client fits it on its own samples, and nothing is sent.
    """

    def __init__(
        self, features: Sequence[Feature], impute: str = "", per_client: bool = False
    ) -> None:
        super().__init__(per_client)
        if impute not in IMPUTE:
            known = ", ".join(IMPUTE[1:])
            raise MasqueradeError("E201", f"`impute` is {impute!r}; choose one of {known}")
        self.features, self.impute = tuple(features), impute

    @property
    def width(self) -> int:
        """Return how many numbers the network reads."""
        return width_of(self.features)

    @property
    def text(self) -> str:
        """Describe it."""
        return text_of(self.features, self.impute)

    def statistics(self, x: Tensor) -> Tree:
        """Return sums of the known values, and counts where missing ones are imputed."""
        if not self.impute:
            check_complete(x, self.features)
        numbers, encoded, codes = _places(self.features)
        values = x[:, numbers].double()
        known = ~values.isnan()
        sums = moments(values.T, known.sum(0, dtype=torch.float64), known.T)
        if self.impute and len(encoded):
            sums["categories"] = (x[:, encoded] == codes).sum(0, dtype=torch.int32)
        return sums

    def fitted(self, total: Tree) -> "FittedTabular | TabularHistograms":
        """Return the preprocessing that the sums decide, as far as they do."""
        mean, std = mean_and_std(total)
        if not self.impute:
            return FittedTabular(self.features, mean, std)
        fill = self._fill(total, mean)
        if self.impute in FROM_HISTOGRAMS and len(mean):
            return TabularHistograms(self.features, mean, std, fill, self.impute)
        return FittedTabular(self.features, mean, std, fill, self.impute)

    def _fill(self, total: Tree, mean: Tensor) -> Tensor:
        """Return the mean of every number, and the most frequent of every column's categories."""
        fill = torch.zeros(len(self.features), dtype=torch.float64)
        sizes = [len(feature.categories) for feature in self.features if feature.is_category]
        counts = torch.split(total["categories"], sizes) if sizes else ()
        of_categories, of_numbers = iter([int(each.argmax()) for each in counts]), iter(mean)
        for column, feature in enumerate(self.features):
            fill[column] = next(of_categories if feature.is_category else of_numbers)
        return fill


class TabularHistograms(FittedLater):
    """Preprocessing of a table whose mean and std are known: medians or modes are still to come.

    Everybody is sent mean and std, and sends a histogram of every number: (value − mean) / std,
    rounded to float16. So a value is known to within 2⁻¹¹ (0.05 %) of its distance from the mean,
    or 2⁻²⁵ of a std where that is more: the error is in units of the spread, not of the value. How
    many values are no whole numbers is sent too. Where none is, what stands in is made of whole
    numbers, which are exact within 1024 of the mean.

    The median is the mean of the two values in the middle; the most frequent is the least of
    several.
    """

    mean: Tensor
    std: Tensor
    fill: Tensor

    def __init__(
        self, features: Sequence[Feature], mean: Tensor, std: Tensor, fill: Tensor, impute: str
    ) -> None:
        super().__init__()
        self.features, self.impute = tuple(features), impute
        for name, value in (("mean", mean), ("std", std), ("fill", fill)):
            self.register_buffer(name, value)

    @property
    def width(self) -> int:
        """Return how many numbers the network reads."""
        return width_of(self.features)

    @property
    def text(self) -> str:
        """Describe it."""
        return text_of(self.features, self.impute)

    def merged(self, one: Tree, other: Tree) -> Tree:
        """Return the counts of two groups of samples together."""
        return tree.each(torch.add, one, other)

    def statistics(self, x: Tensor) -> Tree:
        """Return a histogram of every number, and how many values are no whole numbers."""
        values = x[:, _places(self.features)[0]].double()
        known = ~values.isnan()
        fractions = (known & (values != values.round())).sum(0, dtype=torch.int32)
        return {
            "histogram": _histogram((values - self.mean) / self.std, known),
            "fractions": fractions,
        }

    def fitted(self, total: Tree) -> FittedTabular:
        """Return the preprocessing that the counts decide."""
        histogram, mean, std = total["histogram"], self.mean.double(), self.std.double()
        find = _medians if self.impute == "median" else _modes
        values = mean[:, None] + std[:, None] * _bins()[find(histogram)]
        values = torch.where(total["fractions"][:, None] == 0, values.round(), values).mean(1)
        known = torch.where(histogram.sum(1) > 0, values, 0.0)
        fill = self.fill.double().index_copy(0, _places(self.features)[0], known)
        return FittedTabular(self.features, self.mean, self.std, fill, self.impute)


def width_of(features: Sequence[Feature]) -> int:
    """Count what a network reads of a row: every number, and every category."""
    return sum(len(feature.categories) or 1 for feature in features)


def text_of(features: Sequence[Feature], impute: str) -> str:
    """Say what is done to a table with these columns."""
    categories = any(feature.is_category for feature in features)
    done = []
    if impute:
        by = "most frequent value" if impute == "most_frequent" else impute
        mixed = categories and impute != "most_frequent"
        other = " (categories by the most frequent)" if mixed else ""
        done.append(f"missing values are replaced by the {by} of their column{other}")
    if not all(feature.is_category for feature in features):
        done.append("numbers are standardized by mean and std of the training samples")
    if categories:
        done.append("categories are one-hot encoded")
    return ", ".join(done)


def check_complete(x: Tensor, features: Sequence[Feature]) -> None:
    """Refuse rows with missing values, where none are imputed."""
    missing = x.isnan().sum(0).tolist()
    named = [f"`{each.name}` ({count})" for each, count in zip(features, missing, strict=True)]
    found = [text for text, count in zip(named, missing, strict=True) if count]
    if found:
        text = f"values are missing in {len(found)} columns: {listed(found)}"
        raise MasqueradeError(
            "E302", f"{text}; fill them in, or read the data with --impute median"
        )


def imputes(preprocess: Preprocess) -> bool:
    """Tell whether preprocessing puts something in the place of missing values."""
    return bool(getattr(preprocess, "impute", ""))


def _places(features: Sequence[Feature]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the columns of numbers, and for every category its column and its place there."""
    numbers = [place for place, feature in enumerate(features) if not feature.is_category]
    codes = [
        (place, code)
        for place, feature in enumerate(features)
        for code in range(len(feature.categories))
    ]
    encoded = torch.tensor(codes, dtype=torch.int64).reshape(-1, 2)
    return torch.tensor(numbers, dtype=torch.int64), encoded[:, 0], encoded[:, 1]


def _histogram(x: Tensor, known: Tensor) -> Tensor:
    """Count the values of every column by what they are in float16, in ascending order."""
    top = torch.finfo(torch.float16).max
    # The bits of a float are its place among those of its sign.
    bits = torch.where(x.isnan(), 0.0, x).clamp(-top, top).half().view(torch.int16).long()
    places = HALF + torch.where(bits < 0, torch.iinfo(torch.int16).min - bits, bits)
    counts = torch.zeros(x.shape[1], 2 * HALF + 1, dtype=torch.int32)
    return counts.scatter_add_(1, places.T, known.T.to(torch.int32))


def _bins() -> Tensor:
    """Return the value of every bin of a histogram."""
    positive = torch.arange(HALF + 1, dtype=torch.int32).to(torch.int16).view(torch.float16)
    return torch.cat([-positive[1:].flip(0), positive]).double()


def _medians(histogram: Tensor) -> Tensor:
    """Return the bins of the two values in the middle of every column."""
    below = histogram.cumsum(1)
    count = below[:, -1:]
    middle = torch.cat([(count - 1) // 2, count // 2], 1).clamp(min=0)
    return torch.searchsorted(below, middle, right=True).clamp(max=2 * HALF)


def _modes(histogram: Tensor) -> Tensor:
    """Return the bin with most values of every column, the least of several."""
    return histogram.argmax(1, keepdim=True)
