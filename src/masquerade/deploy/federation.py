"""The settings of a federation: those of a run, and `[fleet]`, in one `federation.toml`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from masquerade.config import code, toml
from masquerade.config.resolve import trainings
from masquerade.config.settings import Config, Fleet
from masquerade.core.method import Method
from masquerade.errors import MasqueradeError, listed
from masquerade.methods import METHODS, MethodEntry
from masquerade.storage import atomic
from masquerade.storage.run_directory import check_name

FILE = "federation.toml"


@dataclass(frozen=True)
class FederationConfig:
    """What a federation trains, and who takes part."""

    config: Config
    fleet: Fleet

    @classmethod
    def load(cls, path: Path) -> "FederationConfig":
        """Read a folder's `federation.toml`, or the file itself; all faults are listed (E201)."""
        file = path / FILE if path.is_dir() else path
        return cls.parse(toml.read_file(file), str(file))

    @classmethod
    def parse(cls, tables: toml.Tables, where: str = FILE) -> "FederationConfig":
        """Make it of tables; code that `[fleet]` names is imported."""
        rest = dict(tables)
        given, problems = rest.pop("fleet", {}), list[str]()
        fleet = Fleet()
        if isinstance(given, dict):
            fleet = toml.fill(Fleet, given, "fleet", problems)
        else:
            problems.append(f"`fleet` is {given!r}; write a table [fleet]")
        _check_fleet(fleet, problems)
        if not problems:
            load_code(fleet.code)
        config = None
        try:
            config = toml.parse(rest, where)
        except MasqueradeError as error:
            problems.append(str(error).removeprefix(f"E201 {where}: "))
        if config is not None:
            _check_config(config, fleet, problems)
        if problems or config is None:
            raise MasqueradeError("E201", f"{where}: " + "; ".join(problems))
        return cls(of_real_clients(config, fleet.name), fleet)

    def tables(self) -> toml.Tables:
        """Return it as tables, every setting written out."""
        return toml.complete(self.config) | {"fleet": toml.plain(self.fleet)}

    def dump(self) -> str:
        """Write it as TOML."""
        return toml.write(self.tables())

    def save(self, folder: Path) -> None:
        """Write it into a folder."""
        atomic.write_file(folder / FILE, self.dump().encode())

    def with_clients(self, names: Sequence[str]) -> "FederationConfig":
        """Return it with further clients behind the others."""
        fleet = replace(self.fleet, clients=(*self.fleet.clients, *names))
        return FederationConfig.parse(self.tables() | {"fleet": toml.plain(fleet)})

    def without(self, name: str) -> "FederationConfig":
        """Return it with a client removed, which keeps its number; at most all others are needed.

        Who removes one may be in a hurry, and cannot be held up by the quorum.
        """
        removed = tuple(dict.fromkeys([*self.fleet.removed, name]))
        left = len(self.fleet.clients) - len(removed)
        quorum = max(1, min(self.fleet.quorum, left))
        fleet = replace(self.fleet, removed=removed, quorum=quorum)
        return FederationConfig.parse(self.tables() | {"fleet": toml.plain(fleet)})


def of_real_clients(config: Config, name: str) -> Config:
    """Return settings as they are of real clients: each has its own data, and tests on them."""
    return replace(
        config,
        data=replace(config.data, name=name, clients=0, partition="client"),
        evaluate=replace(config.evaluate, degrees=(0,), draws=1),
        compute=replace(config.compute, engine="loop", device="cpu", processes=1),
    )


def load_code(paths: Sequence[str]) -> None:
    """Import methods, networks and data of one's own, each named as PATH/FILE.py:NAME."""
    for typed in paths:
        name, found = code.load(typed)
        if isinstance(found.found, type) and issubclass(found.found, Method):
            METHODS.add(name, MethodEntry.plain(found.found))


def _check_fleet(fleet: Fleet, problems: list[str]) -> None:
    for name in (fleet.name, *fleet.clients):
        try:
            check_name(name)
        except MasqueradeError as error:
            problems.append(f"`fleet`: {str(error).removeprefix('E203 ')}")
    if len(set(fleet.clients)) < len(fleet.clients):
        problems.append(f"`fleet.clients` names one twice: {listed(fleet.clients, 30)}")
    gone = [name for name in fleet.removed if name not in fleet.clients]
    if gone:
        text = "keep a removed client among `fleet.clients`, for its place is its number"
        problems.append(f"`fleet.removed` names {listed(gone)}, which is no client; {text}")
    left = len(fleet.clients) - len(set(fleet.removed))
    if fleet.clients and fleet.quorum > max(left, 1):
        text = f"`fleet.quorum` is {fleet.quorum}, and there are {left} clients"
        problems.append(f"{text}; lower it, or add clients")


REFUSED: dict[str, tuple[tuple[str, Any], ...]] = {
    "data": (("novel", 0.0), ("fraction", 1.0), ("partition_per_seed", False)),
    "train": (("available", "always"), ("drop", 0.0)),
}
"""Settings that draw what real clients decide, with the only value that they may have."""


def _check_config(config: Config, fleet: Fleet, problems: list[str]) -> None:
    for section, settings in REFUSED.items():
        for name, only in settings:
            found = getattr(getattr(config, section), name)
            if found != only:
                text = f"`{section}.{name}` is {found!r}, and is drawn in simulations alone"
                problems.append(f"{text}; leave it out")
    if config.privacy.unit == "client" and config.evaluate.every:
        text = "`privacy.unit` is client, and figures between rounds show clients a model before"
        how = "a server that crashes then would add other noise; take evaluate.every=0"
        problems.append(f"{text} its round is on the disk: {how}")
    if len(trainings(config)) > 1:
        text = "a federation trains once: name one method (and views of it), and one of train.seeds"
        problems.append(text)
    count = config.train.clients_per_round
    if count and count < fleet.quorum:
        text = f"`train.clients_per_round` is {count}, and `fleet.quorum` is {fleet.quorum}"
        problems.append(f"{text}; ask at least as many as a round needs")
    least = config.train.min_contributors
    if least > fleet.quorum:
        text = f"`train.min_contributors` is {least}, and `fleet.quorum` is {fleet.quorum}"
        problems.append(f"{text}: a round of so few would change nothing; raise the quorum")
