"""Several words in one text, as options have them: `age,"weight, kg"`."""

import csv
import io
from collections.abc import Iterable
from itertools import chain


def words_in(text: str) -> tuple[str, ...]:
    """Return the words that commas separate; quotation marks keep one together, as in CSV."""
    fields = chain.from_iterable(csv.reader(io.StringIO(text, newline=""), skipinitialspace=True))
    return tuple(word for each in fields if (word := each.strip()))


def in_one_text(words: Iterable[str]) -> str:
    """Write words so that `words_in` reads them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(words)
    return text.getvalue()
