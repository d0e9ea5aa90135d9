"""What a run that is under way has written so far: how far it is, and what it was worth by round.

Files are read as they are, and nothing is locked: whoever watches disturbs nobody.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from masquerade.config import toml
from masquerade.config.resolve import trainings
from masquerade.errors import MasqueradeError
from masquerade.methods import METHODS
from masquerade.results import (
    Accuracy,
    Bytes,
    Costs,
    Flops,
    ModelSize,
    PaperCosts,
    Participations,
    Point,
    RoundRecord,
    Spent,
    Statistics,
    Storage,
    Summary,
)
from masquerade.results.json_records import from_json, parsed
from masquerade.storage.results import COMPARISON, is_sweep
from masquerade.storage.run_directory import CONFIG, HASHES, METRICS


@dataclass(frozen=True)
class Watched:
    """A training, as far as its files tell."""

    name: str
    """The name of its method."""
    title: str
    data: str
    seed: int
    rounds: int
    clients: int
    done: int
    """Rounds that were committed."""
    finished: bool
    seconds: float
    """From its beginning to its last commit."""
    points: Sequence[Point] = ()
    """Its curve, of the first view that was measured between rounds."""
    view: str = ""

    @property
    def left(self) -> float:
        """Return the seconds that its other rounds would take at the same pace."""
        others = self.rounds - self.done
        return (
            0.0 if self.finished else self.seconds / self.done * others if self.done else math.nan
        )


def watch(path: Path) -> list[Watched]:
    """Read the trainings of a run or a comparison, in their order; some may not have begun."""
    if is_sweep(path):
        text = f"{path} is a sweep; watch one of its run directories: {path / 'trials'}"
        raise MasqueradeError("E202", text)
    several = (path / COMPARISON).is_file()
    folders = sorted(file.parent for file in path.glob(f"*/{CONFIG}")) if several else [path]
    if not (path / CONFIG).is_file():
        raise MasqueradeError("E408", f"no run at {path}: it has no {CONFIG}; check the path")
    begun = sorted(folders, key=lambda folder: (folder / CONFIG).stat().st_mtime)
    waiting = _planned(path) if several else []
    known = {folder.name for folder in begun}
    found = [_watched(folder) for folder in begun]
    return [*found, *(each for folder, each in waiting if folder not in known)]


def _planned(path: Path) -> list[tuple[str, Watched]]:
    """Return what a comparison trains, by folder; nothing where code of its own says so."""
    tables = toml.read((path / CONFIG).read_text("utf-8"))
    if "python" in tables or not all(name in METHODS for name in tables["methods"]):
        return []
    config = toml.parse(tables, str(path / CONFIG))
    return [
        (
            each.folder,
            Watched(
                name=each.names[0],
                title=METHODS[each.names[0]].title,
                data=config.data.name,
                seed=each.seed,
                rounds=config.train.rounds,
                clients=config.data.clients,
                done=0,
                finished=False,
                seconds=0.0,
            ),
        )
        for each in trainings(config)
    ]


def finished(path: Path) -> bool:
    """Tell whether all results of a directory are there."""
    return (path / HASHES).is_file()


def _watched(folder: Path) -> Watched:
    tables = toml.read((folder / CONFIG).read_text("utf-8"))
    program, train = tables.get("python", {}), tables.get("train", {})
    called = str(program.get("method", folder.name)).partition("(")[0]
    name = (tables.get("methods") or [called])[0]
    records = list(_records(folder))
    measured = [record.evaluation for record in records if record.evaluation]
    view = next((name for found in measured for name in found.views), "")
    began = (folder / CONFIG).stat().st_mtime
    latest = (folder / METRICS).stat().st_mtime if records else time.time()
    return Watched(
        name=name,
        title=METHODS[name].title if name in METHODS else name,
        data=tables.get("data", {}).get("name", ""),
        seed=int((train.get("seeds") or [program.get("seed", 1)])[0]),
        rounds=int(train.get("rounds") or program.get("rounds", 0)),
        clients=int(tables.get("data", {}).get("clients", 0)),
        done=records[-1].round if records else 0,
        finished=finished(folder),
        seconds=latest - began,
        points=tuple(
            Point(each.round, found.mean, found.std, each.down, each.up, each.flops)
            for each in measured
            if (found := each.views.get(view)) is not None
        ),
        view=view,
    )


def _records(folder: Path) -> Iterator[RoundRecord]:
    """Yield the rounds that were committed; a last line that is being written is not read."""
    file = folder / METRICS
    whole, _, _ = (file.read_bytes() if file.is_file() else b"").rpartition(b"\n")
    for line in whole.splitlines():
        try:
            yield from_json(RoundRecord, parsed(line))
        except ValueError:
            return


_NOTHING = Spent(
    Bytes(math.nan, math.nan), Flops(math.nan, math.nan, math.nan), PaperCosts(math.nan, math.nan)
)


def so_far(trainings: Sequence[Watched]) -> list[Summary]:
    """Return what figures by round are drawn from: summaries that know a curve alone."""
    return [
        Summary(
            method=each.name,
            title=each.title,
            view=each.view,
            data=each.data,
            seed=each.seed,
            rounds=each.rounds,
            clients=each.clients,
            network="",
            metric="accuracy",
            better="higher",
            accuracy=Accuracy(Statistics(each.points[-1].own, each.points[-1].std)),
            costs=Costs(_NOTHING, Storage(math.nan, math.nan, math.nan), math.nan),
            model=ModelSize(0, math.nan, math.nan),
            participation=Participations(math.nan, 0, 0),
            history=tuple(each.points),
            rounds_to_80=each.rounds,
        )
        for each in trainings
        if each.points
    ]
