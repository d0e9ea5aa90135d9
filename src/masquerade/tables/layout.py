"""How the file of a table is laid out, beside its features."""

from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Layout:
    """What training was told of a table, and what rows of a file are therefore read by."""

    ignored: tuple[str, ...] = ()
    """Columns that are no features: label, client, those that were left out."""
    client: str = ""
    """The column that names the client of a row; "" where none does."""
    missing: tuple[str, ...] = ()
    """Texts that mean a missing value, besides the usual ones."""
    sep: str = ""
    """What separates the fields of a line; "" where the table was no CSV file."""
    encoding: str = ""
    """How its text is encoded; "" is UTF-8."""

    @classmethod
    def from_json(cls, given: Any) -> Self:
        """Read it from a manifest; what does not fit raises KeyError or TypeError."""
        ignored, missing = (tuple(map(str, given[key])) for key in ("ignored", "missing"))
        client, sep, encoding = (str(given[key]) for key in ("client", "sep", "encoding"))
        return cls(ignored, client, missing, sep, encoding)


PLAIN = Layout()
"""That of a table of which nothing was said."""
