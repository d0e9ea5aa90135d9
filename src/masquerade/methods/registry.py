"""The table of methods: ours, found in this package, and those that other packages register."""

import pkgutil
import re
import warnings
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module, metadata
from typing import Any

from masquerade.core.method import Method
from masquerade.errors import MasqueradeError, MasqueradeWarning

GROUP = "masquerade.methods"
"""The group of entry points under which other packages register methods."""


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """An entry of the table: a class, the view it is evaluated by, and settings that differ."""

    method: type[Method]
    view: str
    title: str
    paper: str
    personal: str
    """What differs from client to client."""
    sent: str
    settings: tuple[tuple[str, Any], ...] = ()
    variant: str = ""
    """The kind of network it needs: of a network NAME it takes NAME_variant."""
    like: str = ""
    """The method whose FLOPs it is to cost, unless a configuration names another; `spend` is
    computed from it."""
    neutral: Mapping[str, Any] | None = field(default=None, hash=False)
    """Settings under which it is FedAvg, bit for bit."""
    neutral_within: float = 0.0
    """How far from FedAvg they may be by rounding, where a method adds up differences."""
    never_neutral: str = ""
    """Why there are no such settings."""

    def __post_init__(self) -> None:
        if (self.neutral is None) == (not self.never_neutral):
            text = f"the entry of {self.title} needs either `neutral`, settings under which it is"
            raise MasqueradeError("E202", f"{text} FedAvg, or `never_neutral`, why there are none")

    @classmethod
    def plain(cls, method: type[Method]) -> "MethodEntry":
        """Make the entry of a class about which nothing else is known."""
        return cls(
            method=method,
            view=method.views[0],
            title=method.__name__,
            paper="",
            personal="",
            sent="",
            never_neutral="not stated",
        )

    @property
    def year(self) -> int:
        """Return the year of the paper, 0 where there is none."""
        found = re.search(r"\b\d{4}\b", self.paper)
        return int(found[0]) if found else 0


def find(package: str, path: Iterable[str]) -> dict[str, MethodEntry]:
    """Collect the ENTRIES of a package's modules, ordered by year and then by module."""
    found: dict[str, MethodEntry] = {}
    for module in sorted(each.name for each in pkgutil.iter_modules(path)):
        entries = getattr(import_module(f"{package}.{module}"), "ENTRIES", {})
        for name in entries.keys() & found.keys():
            text = f"two modules name a method `{name}`, the second is `{package}.{module}`"
            raise MasqueradeError("E202", f"{text}; rename one")
        found |= entries
    return dict(sorted(found.items(), key=lambda item: item[1].year))


class MethodRegistry(Mapping[str, MethodEntry]):
    """Our entries, then those of other packages, each loaded when its name is looked up."""

    def __init__(self, ours: Mapping[str, MethodEntry]) -> None:
        self.ours = dict(ours)
        self._loaded: dict[str, MethodEntry] = {}
        self._left_out: set[str] = set()

    def add(self, name: str, entry: MethodEntry) -> None:
        """Add an entry for as long as this process lives."""
        self.ours[name] = entry

    def of_class(self, cls: type[Method]) -> dict[str, MethodEntry]:
        """Return the loaded entries of a class; a class that is in use has been loaded."""
        known = self.ours | self._loaded
        return {name: entry for name, entry in known.items() if entry.method is cls}

    @cached_property
    def _points(self) -> dict[str, list[metadata.EntryPoint]]:
        """What other packages register, by name."""
        points: dict[str, list[metadata.EntryPoint]] = {}
        for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
            points.setdefault(point.name, []).append(point)
        return points

    def __iter__(self) -> Iterator[str]:
        """Yield all names, and load nothing."""
        yield from dict.fromkeys((*self.ours, *self._points))

    def __len__(self) -> int:
        return len(self.ours.keys() | self._points.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.ours or name in self._points

    def __getitem__(self, name: str) -> MethodEntry:
        points = self._points.get(name, [])
        if name in self.ours:
            # No other package takes a name of ours.
            return self.ours[name]
        if not points:
            raise KeyError(name)
        if len(points) > 1:
            owners = " and ".join(f"`{point.value}`" for point in points)
            text = f"`{name}` names several methods, of {owners}"
            raise MasqueradeError("E202", f"{text}; uninstall or rename all but one")
        if name not in self._loaded:
            self._loaded[name] = _load(points[0])
        return self._loaded[name]

    def items(self) -> ItemsView[str, MethodEntry]:
        """Return our entries and those that can be loaded, with a warning for each that cannot."""
        return self._usable().items()

    def values(self) -> ValuesView[MethodEntry]:
        """Return the entries of `items`."""
        return self._usable().values()

    def _usable(self) -> dict[str, MethodEntry]:
        found = dict(self.ours)
        for name in self:
            if name in found or name in self._left_out:
                continue
            try:
                found[name] = self[name]
            except MasqueradeError as error:
                self._left_out.add(name)
                text = f"W202 the method `{name}` is left out: {str(error).removeprefix('E202 ')}"
                warnings.warn(text, MasqueradeWarning, stacklevel=3)
        return found


def _load(point: metadata.EntryPoint) -> MethodEntry:
    """Import what an entry point names; any failure there is raised as E202."""
    where = f"the entry point `{point.name}` ({point.value}) of the group {GROUP}"
    try:
        found = point.load()
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise MasqueradeError("E202", f"{where} cannot be loaded ({cause}); repair it") from error
    if isinstance(found, type) and issubclass(found, Method):
        return MethodEntry.plain(found)
    if isinstance(found, MethodEntry):
        return found
    text = f"{where} loads to {found!r}; it must be a MethodEntry or a subclass of Method"
    raise MasqueradeError("E202", text)
