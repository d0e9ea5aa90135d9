"""What a person says of a table: which column is what, and how its file is written."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from masquerade.core.table import IMPUTE
from masquerade.data.dataset import check_task
from masquerade.errors import MasqueradeError, nearest
from masquerade.tables.csv_text import check_text
from masquerade.tables.words import words_in

OTHERS_WORDS = {"mode": "most_frequent", "mostfrequent": "most_frequent", "average": "mean"}
"""What other libraries call ways of imputing."""


@dataclass(frozen=True)
class TableOptions:
    """Options of tables; the command's have the same names."""

    label: str = ""
    """The column of the labels; "" takes `y`."""
    client: str = ""
    """The column that names the client of a row; "" takes `client`, if there is one."""
    drop: tuple[str, ...] = ()
    """Columns that are left out."""
    categorical: tuple[str, ...] = ()
    """Columns whose values are categories, words or numbers."""
    impute: str = ""
    """What stands in for missing values: "mean", "median" or "most_frequent"; "" allows none."""
    sep: str = ""
    """What separates the fields of a line; "" takes the one that the first line has most of."""
    encoding: str = ""
    """How a text file is encoded; "" takes UTF-8."""
    missing: tuple[str, ...] = ()
    """Texts that mean a missing value, besides an empty field, NA, N/A, NaN, null and ?."""
    task: str = ""
    """What labels are: "classification" or "regression"; "" goes by their values."""
    one_client: bool = False
    """Whether all rows are one client's, so that no column is advised for its name. No command has
    it: who joins a federation is one."""

    in_python: bool = False
    """Whether a program asks, and is answered with arguments in the place of options."""

    def __post_init__(self) -> None:
        if self.impute not in IMPUTE:
            meant = OTHERS_WORDS.get(self.impute.lower(), self.impute)
            text = f"`impute` is {self.impute!r}{nearest(meant, IMPUTE)}"
            raise MasqueradeError("E201", f"{text}; choose from {', '.join(IMPUTE[1:])}")
        check_task(self.task)
        check_text(self.sep, self.encoding)

    @property
    def given(self) -> list[str]:
        """Name the options that are not as they are by default."""
        named = [each for each in fields(self) if each.name not in ("one_client", "in_python")]
        return [each.name for each in named if getattr(self, each.name) != each.default]


AS_IT_IS = TableOptions()
"""The defaults."""


def names_of(given: str | Iterable[str | int]) -> tuple[str, ...]:
    """Return column names, of which one text may hold several; pandas may number them."""
    return words_in(given) if isinstance(given, str) else tuple(map(str, given))
