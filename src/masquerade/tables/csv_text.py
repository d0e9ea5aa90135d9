"""CSV: a line of column names, and a row of each sample below."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from masquerade.errors import listed
from masquerade.tables.columns import Column, Table, missing_of
from masquerade.tables.faults import SHOWN, Fault, Places, refusal, short

SEPARATORS = {",": ",", ";": ";", "\t": "\t", "|": "|", "\\t": "\t", "tab": "\t"}
"""What may separate the fields of a line, as it is typed."""
GUESSED = ",;\t|"
"""Separators that are looked for, in this order where several would do."""


@dataclass(eq=False)
class _Rows:
    """Rows that have as many fields as there are columns, their lines, and what is wrong."""

    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def parsed(
    data: bytes,
    source: str,
    *,
    sep: str = "",
    encoding: str | None = "",
    drop: Sequence[str] = (),
    missing: Sequence[str] = (),
) -> Table:
    """Cut a file into columns of texts; what is wrong with its lines goes into the table's faults.

    Rows with too few or too many fields are left out, and columns of `drop` stay empty. "" is what
    the first line has most of for `sep`, and UTF-8 for `encoding`, of which None takes the
    likeliest. `missing` are texts that mean a missing value besides the usual ones.
    """
    text, fault = _decoded(data, encoding or "")
    sep = SEPARATORS[sep] if sep else guess(text)
    found = _cut(text, sep)
    if len(found.header) == 1 and (other := guess(text)) in found.header[0]:
        # Whatever else is wrong comes from this.
        wrong = Fault(f"line 1 is one field, {short(found.header[0])}", (("sep", other),))
        raise refusal(source, [wrong], in_python=False)
    known = [fault] if fault and encoding is not None else []
    if found.faults and not found.rows:
        # Without a row nothing can be said of columns.
        raise refusal(source, known + found.faults, in_python=False)
    found.faults[:0] = known
    names, faults = _named(found.header)
    found.faults += faults
    if not found.rows:
        found.faults.append(Fault("there are no rows below the line of column names"))
    texts = zip(*found.rows, strict=True) if found.rows else [()] * len(names)
    columns = [
        _column(column, () if column in drop else values, missing)
        for column, values in zip(names, texts, strict=True)
    ]
    places = Places("line", np.array(found.lines, dtype=np.int64))
    return Table(source, tuple(columns), places, tuple(found.faults), decimal_comma=sep != ",")


def _column(name: str, given: Sequence[str], missing: Sequence[str]) -> Column:
    values = np.char.strip(np.array(given, dtype=str))
    return Column(name, values, missing_of(values, missing))


def _decoded(data: bytes, encoding: str) -> tuple[str, Fault | None]:
    """Return the text; where it is in another encoding, as far as it can be read, and the fault."""
    try:
        return data.decode(encoding or "utf-8-sig"), None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        bad = f"line {line}: byte 0x{data[error.start]:02x} is not {encoding or 'UTF-8'}"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        likely = "utf-16"
    else:
        # Only Windows has letters at these places.
        windows = any(0x80 <= byte < 0xA0 for byte in set(data))
        likely = "cp1252" if windows else "latin-1"
    return data.decode(likely, "replace"), Fault(bad, (("encoding", likely),))


def guess(text: str) -> str:
    """Return the separator that cuts the first line into most fields."""
    first = text.partition("\n")[0]
    return max(GUESSED, key=lambda sep: len(next(csv.reader([first], delimiter=sep), [])))


def _cut(text: str, sep: str) -> _Rows:
    """Cut a text into rows; note those that have not as many fields as the first."""
    found, uneven = _Rows(), []
    for line, row in _records(text, sep, found.faults):
        if not found.header:
            found.header = row
        elif len(row) != len(found.header):
            uneven.append((line, len(row)))
        else:
            found.rows.append(row)
            found.lines.append(line)
    counts = {count for _, count in uneven}
    if len(uneven) > 1 and not found.rows and len(counts) == 1:
        text = f"line 1 has {_fields(len(found.header))}, and every line below {counts.pop()}"
        advice = "it is no line of column names: delete it, or write one"
        found.faults.append(Fault(text, advice=advice))
    elif uneven:
        shown = listed((f"line {line} has {count}" for line, count in uneven), SHOWN)
        rows = f"{len(uneven)} of {len(uneven) + len(found.rows)} ({shown})"
        text = f"rows that have not the {_fields(len(found.header))} of line 1: {rows}"
        found.faults.append(Fault(text, advice="correct them"))
    return found


def _fields(count: int) -> str:
    return f"{count} field{'s' * (count != 1)}"


def _records(text: str, sep: str, faults: list[Fault]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, and the lines that they begin in."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sep, strict=True)
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        text = f"line {line}: it cannot be cut into fields ({error})"
        faults.append(Fault(text, advice="see to its quotation marks"))


def _named(header: list[str]) -> tuple[list[str], list[Fault]]:
    """Return a name for every column, and what is wrong with the first line."""
    names = [name.strip() or f"column {place}" for place, name in enumerate(header, 1)]
    faults = []
    if not names:
        faults.append(Fault("it is empty"))
    if names and all(map(_is_number, names)):
        text = f"line 1 has numbers alone ({', '.join(map(short, names[:3]))})"
        faults.append(Fault(text, advice="put a line with the names of the columns above it"))
    for name in dict.fromkeys(names):
        places = [str(place) for place, each in enumerate(names, 1) if each == name]
        if len(places) > 1:
            text = f"columns {' and '.join(places)} are both called `{name}`"
            faults.append(Fault(text, advice="rename one"))
    return names, faults


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True
