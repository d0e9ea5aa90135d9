"""From TOML to settings and back; all faults are listed at once, before any work."""

import dataclasses
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from masquerade.config import code
from masquerade.config.availability import check as check_available
from masquerade.config.budgets import check as check_budgets
from masquerade.config.metrics import WORDS as METRIC_WORDS
from masquerade.config.normalize import check as check_normalize
from masquerade.config.settings import (
    CHOICES,
    ENDLESS,
    LENGTHS,
    LONGEST,
    MANY,
    MOST,
    NEXT,
    RANGES,
    RULES,
    SECTIONS,
    Config,
    Evaluate,
    Privacy,
)
from masquerade.core.method import Bounds, Choices, Method
from masquerade.core.old_words import VALUES, hint
from masquerade.cost.bandwidth import bandwidth
from masquerade.data import parse as parse_partition
from masquerade.data.corruption import KINDS
from masquerade.errors import MasqueradeError, brief, is_deeper, listed, nearest, printable
from masquerade.methods import METHODS
from masquerade.models import MODELS
from masquerade.rules import PRIORS
from masquerade.tables.words import words_in

DEEPEST = 16
"""Tables and lists within one another, at most."""
HEAVIEST = 1 << 20
"""Bytes of a configuration, at most."""
SHOWN = 80
"""Letters that are shown of a key."""

Problems = list[str]
Tables = dict[str, Any]
"""Tables of TOML as they are read: anything may stand in them until `parse` has looked."""


@dataclass(frozen=True)
class Limits:
    """What the values of some settings, by name, may be."""

    bounds: Bounds
    choices: Choices


def limits(cls: type[Any], section: str) -> Limits:
    """Collect the limits of a section's settings, or of a method's and those it inherits."""
    if not issubclass(cls, Method):
        return Limits(
            RANGES,
            CHOICES
            | {
                "evaluate.corruptions": ("all", *KINDS),
                "evaluate.metrics": METRIC_WORDS,
                "evaluate.prior": ("none", *PRIORS),
            },
        )
    lines = [line for line in reversed(cls.__mro__) if issubclass(line, Method)]
    return Limits(
        {f"{section}.{key}": value for line in lines for key, value in line.bounds.items()},
        {f"{section}.{key}": value for line in lines for key, value in line.choices.items()},
    )


def _fits(value: Any, default: Any, key: str, within: Limits, problems: Problems) -> Any:
    """Return a value in the type of the default; note what is wrong with it."""
    if isinstance(default, tuple):
        if key in RULES and isinstance(value, str):
            return value
        if isinstance(value, str):
            # On a command line commas are easier to write than a list of TOML.
            named = not default or isinstance(default[0], str)
            value = [one if named else value_of(one) for one in words_in(value)]
        many = value if isinstance(value, (list, tuple)) else [value]
        if len(many) != LENGTHS.get(key, len(many)):
            problems.append(f"`{key}` is {brief(value)}; give {LENGTHS[key]} values")
        if len(many) > MANY:
            problems.append(f"`{key}` has {len(many):,} values; give at most {MANY:,}")
            return default
        # A list that is empty by default is one of names.
        first = default[0] if default else ""
        return tuple(_fits(one, first, key, within, problems) for one in many)
    if isinstance(default, float) and type(value) is int:
        # TOML has integers of any size; one beyond all floats is outside of every range.
        value = float(value) if abs(value) < 1e300 else (math.inf if value > 0 else -math.inf)
    if type(value) is not type(default):
        problems.append(f"`{key}` must be {type(default).__name__}, not {brief(value)}")
        return default
    if isinstance(value, str) and (said := _of_text(value)):
        problems.append(f"`{key}` is {brief(value, 40)}, which {said}")
        return default
    words = within.choices.get(key, (value,))
    if value not in words:
        known, renamed = ", ".join(words), VALUES.get(key, {}).get(value)
        said = f", which is {renamed!r} here" if renamed else nearest(value, words)
        problems.append(f"`{key}` is {brief(value)}{said}; choose from {known}")
    if type(value) in MOST and not (key in ENDLESS and value == math.inf):
        most = MOST[type(value)]
        low, high = within.bounds.get(key, (-most, most))
        low, high = max(low, -most), most if math.isinf(high) else high
        if not low <= value <= high:
            problems.append(f"`{key}` is {brief(value, 40)}; {_between(low, high)}")
    return value


def _of_text(text: str) -> str:
    """Say what is wrong with a text; no name, path or rule has such."""
    if len(text) > LONGEST:
        return f"has {len(text):,} letters; give at most {LONGEST:,}"
    strange = next((each for each in text if printable(each) != each or each == "\n"), "")
    return f"has the sign {strange!r}; leave it out" if strange else ""


def _between(low: float, high: float) -> str:
    """Say what a number must be."""
    # A bound that is next to a whole number leaves out that number alone.
    least = f"above {round(low)}" if low % 1 == NEXT else f"at least {_figure(low)}"
    most = f"below {round(high)}" if high % 1 == 1 - NEXT else f"at most {_figure(high)}"
    return f"it must be {least} and {most}"


def _figure(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def fill(cls: type[Any], given: Mapping[str, Any], prefix: str, problems: Problems) -> Any:
    """Make a dataclass of a table; unknown keys and unfit values become problems."""
    untouched = cls()
    defaults = {each.name: getattr(untouched, each.name) for each in dataclasses.fields(cls)}
    values, within = {}, limits(cls, prefix)
    for key, value in given.items():
        if key in defaults:
            values[key] = _fits(value, defaults[key], f"{prefix}.{key}", within, problems)
        else:
            problems.append(_unknown(prefix, key, defaults))
    return cls(**values)


def _unknown(section: str, key: str, known: Iterable[str]) -> str:
    """Say that a section has no such key, which keys are near, and where there is one."""
    key = key[:SHOWN]
    said = said_of(section, key)
    near = "" if said and not _homes(section, key) else nearest(key, known, most=3)
    said = said or f"; there are {listed(known, most=30)}"
    return f"unknown key `{section}.{key}`{near}{said}"


def said_of(section: str, key: str) -> str:
    """Say which section has a key that this one lacks, or what the key is called here."""
    if homes := _homes(section, key):
        return f"; there is {' and '.join(homes)}"
    renamed = hint(section, key)
    return f"; {renamed}" if renamed else ""


def _homes(section: str, key: str) -> list[str]:
    homes = [f"`{name}.{key}`" for name, cls in SECTIONS.items() if key in vars(cls())]
    users = [name for name, line in METHODS.items() if key in _names_of(line.method)]
    if users:
        whose = f"for {listed(users, 4)}"
        homes.append(f"one {whose}" if section == "method" else f"`method.{key}` {whose}")
    return homes


def parse(tables: Mapping[str, Any], where: str = "configuration") -> Config:
    """Make a configuration of nested tables; raise E201 with all faults at once.

    `where` says whence the tables come.
    """
    problems: Problems = []
    known = {"methods", "method", "code", *SECTIONS}
    strange = [key[:SHOWN] for key in tables if key not in known]
    there = f"; there are {listed(sorted(known))}"
    problems += [f"unknown key `{key}`{nearest(key, known) or there}" for key in strange]
    given = {}
    for name in ("method", "code", *SECTIONS):
        given[name] = tables.get(name, {})
        if not isinstance(given[name], Mapping):
            problems.append(f"`{name}` is {brief(given[name])}; write a table [{name}]")
            given[name] = {}
    sections = {name: fill(cls, given[name], name, problems) for name, cls in SECTIONS.items()}
    given_names = tables.get("methods", ["fedavg"])
    names = _fits(given_names, ("fedavg",), "methods", limits(Config, ""), problems)
    config = Config(methods=names, method=given["method"], code=given["code"], **sections)
    problems += code.problems({name: str(value) for name, value in config.code.items()})
    _check_methods(config, problems)
    _check_rest(config, problems)
    if problems:
        raise MasqueradeError("E201", f"{where}: " + "; ".join(dict.fromkeys(problems)))
    return config


def load(path: Path) -> Config:
    """Make a configuration of a TOML file."""
    return parse(read_file(path), str(path))


def _own_tables(settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {key: value for key, value in settings.items() if isinstance(value, Mapping)}


def _common(settings: Mapping[str, Any]) -> Tables:
    return {key: value for key, value in settings.items() if not isinstance(value, Mapping)}


def _names_of(cls: type[Method]) -> list[str]:
    return [each.name for each in dataclasses.fields(cls)]


def _settings(name: str, config: Config) -> Tables:
    """Collect a method's settings: those for all methods, its family's, and over them its own.

    Names that share a class are views of one training: `fedavg_ft` reads `[method.fedavg]`, and
    then its own table, if it has one. What a name with a budget of its own says is for it alone.
    """
    entry = METHODS[name]
    tables = _own_tables(config.method)
    family = (n for n in METHODS if n in tables and METHODS[n].method is entry.method)
    first = next((tables[n] for n in family if not METHODS[n].like), {})
    common = {k: v for k, v in _common(config.method).items() if k in _names_of(entry.method)}
    own = dict(tables.get(name, {}))
    if entry.like:
        own.pop("like", None)
    return dict(entry.settings) | common | dict(first) | own


def like_of(name: str, config: Config) -> str:
    """Name the method that one with a budget costs as many FLOPs as; "" for all others."""
    default = METHODS[name].like
    return str(_own_tables(config.method).get(name, {}).get("like", default)) if default else ""


def title_of(name: str, config: Config) -> str:
    """Return the title of a method; of one with a budget it says whose."""
    like = like_of(name, config)
    return f"{METHODS[name].title} ({METHODS[like].title})" if like else METHODS[name].title


def _check_methods(config: Config, problems: Problems) -> None:
    """Note unknown methods and settings, also in tables of methods that are not run."""
    tables = _own_tables(config.method)
    for name in (*config.methods, *tables):
        if name not in METHODS and name in config.code:
            continue
        if name not in METHODS and code.is_code(name):
            text = f"`{name}` is code, which is imported only where a command names it"
            problems.append(f"{text}: --method {name}")
        elif name not in METHODS:
            known = ", ".join(METHODS)
            problems.append(f"unknown method `{name}`{nearest(name, METHODS)}; known are {known}")
    if not config.methods:
        problems.append("`methods` is empty; name at least one")
    if len(set(config.methods)) < len(config.methods):
        problems.append(f"`methods` names one twice: {', '.join(config.methods)}")
    used = [METHODS[name].method for name in config.methods if name in METHODS]
    known_keys = {key for cls in used for key in _names_of(cls)}
    for key, value in _common(config.method).items():
        if key not in known_keys:
            problems.append(_unknown("method", key, known_keys))
        for cls in used:
            fill(cls, {key: value} if key in _names_of(cls) else {}, "method", problems)
    for name in {*config.methods, *tables} & METHODS.keys():
        if METHODS[name].like:
            _check_budget(name, tables.get(name, {}), problems)
        before = len(problems)
        made = fill(METHODS[name].method, _settings(name, config), "method", problems)
        if len(problems) == before:
            problems += made.problems()


def _check_budget(name: str, own: Mapping[str, Any], problems: Problems) -> None:
    """Note a budget that is no method's, or that is given as a number."""
    others = tuple(other for other, line in METHODS.items() if not line.like)
    within = Limits({}, {"method.like": others})
    _fits(own.get("like", METHODS[name].like), "", "method.like", within, problems)
    if "spend" in own and "like" not in own:
        problems.append(f"`method.{name}.spend` is computed; say what it is to be with `like`")


def _check_rest(config: Config, problems: Problems) -> None:
    data, train, evaluate = config.data, config.train, config.evaluate
    if any(share < 0 for share in data.split) or abs(sum(data.split) - 1) > 1e-6:
        problems.append(f"`data.split` is {data.split}; give three shares that sum to 1")
    elif len(data.split) == 3 and not data.split[1 if evaluate.split == "validation" else 2]:
        text = f"`evaluate.split` is {evaluate.split}, but `data.split` leaves no"
        problems.append(f"{text} {evaluate.split} data")
    _check_evaluate(evaluate, problems)
    _check_privacy(config.privacy, problems)
    if not train.seeds:
        problems.append("`train.seeds` is empty; give one or more")
    if len(set(train.seeds)) < len(train.seeds):
        problems.append(f"`train.seeds` names one twice: {train.seeds}")
    if train.model not in ("auto", *MODELS, *config.code):
        known = ", ".join(("auto", *MODELS))
        if code.is_code(train.model):
            known += f"; code is imported only where a command names it: --model {train.model}"
        problems.append(
            f"unknown model `{train.model}`{nearest(train.model, MODELS)}; known are {known}"
        )
    for checked in (
        partial(parse_partition, "iid" if data.partition == "auto" else data.partition),
        partial(check_available, train.available),
        partial(check_budgets, data.budgets),
        partial(check_normalize, data.normalize),
        partial(bandwidth, evaluate.bandwidth),
    ):
        try:
            checked()
        except MasqueradeError as error:
            problems.append(str(error).removeprefix("E201 "))


def _check_evaluate(evaluate: Evaluate, problems: Problems) -> None:
    if 0 not in evaluate.degrees or any(not 0 <= degree <= 100 for degree in evaluate.degrees):
        problems.append(f"`evaluate.degrees` is {evaluate.degrees}; give 0 and others up to 100")
    if evaluate.corruptions and not evaluate.severities:
        problems.append("`evaluate.severities` is empty; give one or more, from 1 to 5")


def _check_privacy(privacy: Privacy, problems: Problems) -> None:
    asked = privacy != Privacy(unit=privacy.unit)
    if privacy.unit == "none" and asked:
        problems.append('`privacy.unit` is none, and other settings are given; say "sample"')


def check(**records: Any) -> None:
    """Refuse settings outside their types and ranges, given as section=record; E201 lists all."""
    problems: Problems = []
    for section, record in records.items():
        within = limits(type(record), section)
        for each in dataclasses.fields(record):
            if each.default is not dataclasses.MISSING:
                value, key = getattr(record, each.name), f"{section}.{each.name}"
                if isinstance(each.default, tuple) and isinstance(value, str) and key not in RULES:
                    problems.append(f"`{key}` is {value!r}; write ({value!r},)")
                    continue
                _fits(value, each.default, key, within, problems)
        if isinstance(record, Method) and not problems:
            problems += record.problems()
        if isinstance(record, Evaluate) and not problems:
            _check_evaluate(record, problems)
        if isinstance(record, Privacy) and not problems:
            _check_privacy(record, problems)
    if problems:
        raise MasqueradeError("E201", "settings: " + "; ".join(problems))


def method_of(name: str, config: Config) -> Method:
    """Make the method that a name and the settings describe."""
    made: Method = fill(METHODS[name].method, _settings(name, config), "method", [])
    return made


def complete(config: Config) -> Tables:
    """Return the configuration as tables, every setting of every method written out."""
    tables: Tables = {"methods": list(config.methods)}
    for name in SECTIONS:
        tables[name] = plain(getattr(config, name))
    tables["method"] = {name: plain(method_of(name, config)) for name in config.methods}
    for name in config.methods:
        if METHODS[name].like:
            tables["method"][name]["like"] = like_of(name, config)
    if config.code:
        tables["code"] = dict(config.code)
    return tables


def plain(record: Any) -> Tables:
    """Return a record as a table."""
    values = {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
    }


def dump(config: Config) -> str:
    """Write a complete configuration as TOML."""
    return write(complete(config))


def write(tables: Mapping[str, Any]) -> str:
    """Write tables as TOML."""
    # Simulating without a run directory needs torch and numpy alone.
    import tomli_w

    return tomli_w.dumps(tables)


def read(text: str) -> Tables:
    """Read TOML into tables."""
    try:
        found: Tables | None = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MasqueradeError("E201", f"configuration is not TOML: {error}") from None
    except ValueError:
        text = "a number has more digits than Python reads; no setting has so many"
        raise MasqueradeError("E201", f"configuration: {text}") from None
    except RecursionError:
        found = None
    if found is None or is_deeper(found, DEEPEST):
        text = f"tables and lists are nested more than {DEEPEST} deep"
        raise MasqueradeError("E201", f"configuration: {text}; no setting is")
    return found


def read_file(path: str | Path) -> Tables:
    """Read a TOML file into tables; where it names a `base` beside it, that file lies under it."""
    return _read_over(Path(path), ())


def _read_over(path: Path, seen: tuple[Path, ...]) -> Tables:
    try:
        with path.open("rb") as file:
            data = file.read(HEAVIEST + 1)
        if len(data) > HEAVIEST:
            raise ValueError(f"it has more than {HEAVIEST:,} bytes")
        text = data.decode()
    except (OSError, ValueError) as error:
        said = str(error.strerror if isinstance(error, OSError) else error)
        said += "; save it as UTF-8" * isinstance(error, UnicodeDecodeError)
        text = f"cannot read configuration {str(path)[:LONGEST]}: {said}"
        raise MasqueradeError("E201", text) from None
    tables = read(text.replace("\r\n", "\n"))
    base = tables.pop("base", None)
    if base is None:
        return tables
    seen = (*seen, path.resolve())
    if not isinstance(base, str) or _of_text(base) or (path.parent / base).resolve() in seen:
        text = f"`base` of {path} is {brief(base)}; name a file that does not lead back to this one"
        raise MasqueradeError("E201", text)
    return merged(_read_over(path.parent / base, seen), tables)


def merged(tables: Mapping[str, Any], over: Mapping[str, Any]) -> Tables:
    """Return tables with others put over them, key by key."""
    found = dict(tables)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if both else value
    return found


def apply(tables: Tables, assignments: Iterable[str]) -> Tables:
    """Return tables with `section.key=value` settings put in; values are TOML, or else words."""
    for text in assignments:
        key, found, value = text.partition("=")
        if not found:
            raise MasqueradeError("E201", f"`--set {text}`: write section.key=value")
        tables = put(tables, {key.strip(): value_of(value)})
    return tables


def value_of(text: str) -> Any:
    """Read a value as TOML writes it, or else as a word."""
    # TOML asks for a digit on both sides of a point.
    text = re.sub(r"^([+-]?)\.(?=\d)", r"\g<1>0.", text.strip())
    text = re.sub(r"^([+-]?\d+)\.(?=$|[eE])", r"\1.0", text)
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def put(tables: Tables, settings: Mapping[str, Any]) -> Tables:
    """Return tables with settings put in, `section.key` → value."""
    import copy

    tables = copy.deepcopy(tables)
    for key, value in settings.items():
        path = key.split(".")
        if len(path) < 2 or not all(path):
            said = said_of("", key) if len(path) == 1 else ""
            raise MasqueradeError("E201", f"`{key}` is no setting{said}; write section.key=value")
        table = tables
        if path[0] == "method" and len(path) == 2:
            # Said of every method, so it also stands over what a file says of one of them.
            for own in table.get("method", {}).values():
                if isinstance(own, dict):
                    own.pop(path[1], None)
        for step in path[:-1]:
            table = table.setdefault(step, {})
            if not isinstance(table, dict):
                raise MasqueradeError("E201", f"`{key}`: `{step}` is not a section")
        table[path[-1]] = value
    return tables
