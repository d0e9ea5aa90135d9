"""CSV: a line of column names, and a row of each sample below."""

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from masquerade.errors import MasqueradeError, listed, warn
from masquerade.tables.columns import Column, Table, missing_of, texts_of
from masquerade.tables.faults import SHOWN, Fault, Places, refusal, short
from masquerade.tables.layout import Layout

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


def check_text(sep: str, encoding: str) -> None:
    """Refuse a separator, or an encoding, that there is not."""
    if sep and sep not in SEPARATORS:
        text = f"`sep` is {sep!r}; choose from , ; | tab, or leave it out"
        raise MasqueradeError("E201", text)
    try:
        codecs.lookup(encoding or "utf-8")
    except LookupError:
        text = f"`encoding` is {encoding!r}, which is not known"
        raise MasqueradeError("E201", f"{text}; utf-8, latin-1 and cp1252 are usual") from None


def parsed(
    data: bytes,
    source: str,
    *,
    sep: str = "",
    encoding: str = "",
    drop: Sequence[str] = (),
    missing: Sequence[str] = (),
    in_python: bool = False,
) -> Table:
    """Cut a file into columns of texts; what is wrong with its lines goes into the table's faults.

    Rows with too few or too many fields are left out, and columns of `drop` stay empty. "" is what
    the first line has most of for `sep`, and UTF-8 for `encoding`. `missing` are texts that mean a
    missing value besides the usual ones. `in_python` writes options as arguments.
    """
    text, faults = _decoded(data, encoding)
    sep = SEPARATORS[sep] if sep else guess(text)
    found = _cut(text, sep)
    if not found.header:
        raise refusal(source, [*faults, Fault("it is empty")], in_python)
    if len(found.header) == 1 and (other := guess(text)) in found.header[0]:
        # Whatever else is wrong is said as it is with the other one.
        faults.append(Fault(f"line 1 is one field, {short(found.header[0])}", (("sep", other),)))
        sep, found = other, _cut(text, other)
    faults += found.faults
    if not found.rows:
        # Without a row nothing can be said of columns.
        if not found.faults:
            faults.append(Fault("there are no rows below the line of column names"))
        raise refusal(source, faults, in_python)
    names, unnamed = _named(found.header)
    faults += unnamed
    texts = zip(*found.rows, strict=True)
    columns = [
        _column(column, () if column in drop else values, missing)
        for column, values in zip(names, texts, strict=True)
    ]
    places = Places("line", np.array(found.lines, dtype=np.int64))
    return Table(source, tuple(columns), places, tuple(faults), sep)


def ways(data: bytes, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield how a file may be meant, separator and encoding: as it looks, and as a layout says."""
    for encoding in dict.fromkeys((likely(data, layout.encoding), layout.encoding)):
        looks = guess(_decoded(data, encoding)[0])
        for sep in dict.fromkeys((looks, layout.sep or looks)):
            yield sep, encoding


def _column(name: str, given: Sequence[str], missing: Sequence[str]) -> Column:
    values = np.char.strip(texts_of(given, name))
    return Column(name, values, missing_of(values, missing))


def _decoded(data: bytes, encoding: str) -> tuple[str, list[Fault]]:
    """Return the text; where it is in another encoding, as far as it can be read, and the fault."""
    utf_8 = codecs.lookup(encoding or "utf-8").name == "utf-8"
    try:
        return data.decode("utf-8-sig" if utf_8 else encoding), []
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        bad = f"line {line}: byte 0x{data[error.start]:02x} is not {encoding or 'UTF-8'}"
    other = likely(data) or "utf-8"
    return data.decode(other, "replace"), [Fault(bad, (("encoding", other),))]


def likely(data: bytes, known: str = "") -> str:
    """Return the encoding that a text has by its bytes, "" for UTF-8, or a known one."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    try:
        data.decode()
    except UnicodeDecodeError:
        return known or ("cp1252" if _is_of_windows(data) else "latin-1")
    return ""


def _is_of_windows(data: bytes) -> bool:
    """Tell whether a text has bytes that are letters and signs of Windows alone."""
    return any(0x80 <= byte < 0xA0 for byte in set(data))


def warn_of_windows(data: bytes, source: str, encoding: str) -> None:
    """Warn of a text that is said to be Latin-1, and has signs that are none there (W313)."""
    if not encoding or codecs.lookup(encoding).name != "iso8859-1" or not _is_of_windows(data):
        return
    place = next(place for place, byte in enumerate(data) if 0x80 <= byte < 0xA0)
    line = data[:place].count(b"\n") + 1
    text = (
        f"W313 {source}: line {line} has byte 0x{data[place]:02x}, which is no sign of {encoding}"
    )
    text += f" and is {data[place : place + 1].decode('cp1252', 'replace')!r} on Windows"
    warn(f"{text}: --encoding cp1252")


def guess(text: str) -> str:
    """Return the separator that cuts the first line into most fields."""
    first = text.partition("\n")[0]
    return max(GUESSED, key=lambda sep: len(next(csv.reader([first], delimiter=sep), [])))


def _cut(text: str, sep: str) -> _Rows:
    """Cut a text into rows; note those that have not as many fields as the first."""
    found, uneven, repeated = _Rows(), [], []
    for line, row in _records(text, sep, found.faults):
        if not found.header:
            found.header = row
        elif row == found.header and not any(map(_is_number, row)):
            repeated.append(line)
        elif len(row) != len(found.header):
            uneven.append((line, len(row)))
        else:
            found.rows.append(row)
            found.lines.append(line)
    if repeated:
        shown = listed((f"line {line}" for line in repeated), SHOWN)
        repeats, these = ("repeat", "these lines") if repeated[1:] else ("repeats", "it")
        found.faults.append(Fault(f"{shown} {repeats} line 1", advice=f"delete {these}"))
    counts = {count for _, count in uneven}
    if len(uneven) > 1 and not found.rows and len(counts) == 1:
        text = f"line 1 has {_fields(len(found.header))}, and every line below {counts.pop()}"
        advice = "it is no line of column names: delete it, or write one"
        found.faults.append(Fault(text, advice=_decimals(found, sep, uneven) or advice))
    elif uneven:
        shown = listed((f"line {line} has {count}" for line, count in uneven), SHOWN)
        rows = f"{len(uneven)} of {len(uneven) + len(found.rows)} ({shown})"
        text = f"rows that have not the {_fields(len(found.header))} of line 1: {rows}"
        found.faults.append(Fault(text, advice=_decimals(found, sep, uneven) or "correct them"))
    return found


def _decimals(found: _Rows, sep: str, uneven: Sequence[tuple[int, int]]) -> str:
    """Return advice where nearly all rows have too many fields, as decimal commas give them."""
    many = sum(count > len(found.header) for _, count in uneven)
    if sep != "," or len(found.header) == 1 or many * 10 < 9 * (len(uneven) + len(found.rows)):
        return ""
    return "if numbers have decimal commas, separate fields by ; or put numbers in quotation marks"


def _fields(count: int) -> str:
    return f"{count} field{'s' * (count != 1)}"


def _records(text: str, sep: str, faults: list[Fault]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, and the lines that they begin in.

    Sheets are often saved with rows of separators alone.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sep, strict=True)
    line = 1
    try:
        for row in reader:
            if len(row) == 1 or any(map(str.strip, row)):
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        text = f"line {line}: it cannot be cut into fields ({error})"
        faults.append(Fault(text, advice="see to its quotation marks"))


def _named(header: list[str]) -> tuple[list[str], list[Fault]]:
    """Return a name for every column, and what is wrong with the first line."""
    names = [name.strip() or f"column {place}" for place, name in enumerate(header, 1)]
    faults = []
    if all(map(_is_number, names)):
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
