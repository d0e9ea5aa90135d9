"""A run on disk: a locked directory in which rounds are committed as transactions.

A commit is a folder that appears whole beside the older ones, sealed by a manifest of hashes, so
that a crash at any instant leaves the old state or the new one. Metrics are JSON lines that count
up to the byte offset in the newest manifest, which has their hash too. What a run ends with is
sealed in the same way, by a manifest of its own (`storage/results.py` reads it). Runs need a POSIX
system (`flock`, synced directories). Every change to the disk goes through `atomic` and `os` alone.
"""

import errno
import hashlib
import json
import logging
import os
import re
import socket
import struct
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

from torch import Tensor

from masquerade.errors import MasqueradeError, MasqueradeWarning, missing
from masquerade.results.json_records import LONGEST, Json, from_json
from masquerade.storage import atomic
from masquerade.storage.manifest import fingerprint, seal, unseal
from masquerade.storage.regular import MOST, read_regular

Tensors = Mapping[str, Tensor]

NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.EFBIG)
"""What the system says of a path where no regular file is, or one that is too long."""

VERSION = 7
READ = (4, 5, 6, 7)
"""Formats that are read.

4 had the states of all clients in every commit, 5 no hash of metrics, 6 none of each line.
"""
CONFIG = "config.toml"
METRICS = "metrics.jsonl"
DAMAGED = "damaged-metrics.jsonl"
"""Where damaged metrics are kept, which nothing makes again."""
STATE = "state.safetensors"
LINES = "lines"
"""Of a commit: length and hash of each line of metrics that counts, so that one can be missed."""
_LINE = struct.Struct("<I8s")
PIECES = "states"
"""The folder of clients' states, which several commits may share."""
MANIFEST = "manifest.json"
"""Of a commit."""
HASHES = "hashes.json"
"""The manifest of results, which lies beside them; bundles have a `manifest.json` there."""
SUMMARY = "summary.json"
ROUNDS, CLIENTS = "rounds", "clients"
"""Folders of commits, and of clients' models."""
FILES = (
    *(CONFIG, METRICS, DAMAGED, HASHES, SUMMARY, "results.json", "data.json", "privacy.json"),
    *("environment.json", "initial.safetensors", "report.html", "comparison", "sweep"),
)
"""What lies in a run's directory as a file, if it is there."""


def check_name(name: str) -> str:
    """Return the name of a run, client or file, or refuse one that could lead elsewhere."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        return name
    allowed = "at most 64 letters, digits, `.`, `_` and `-`, the first a letter or digit"
    raise MasqueradeError("E203", f"A name may hold {allowed} (got {name!r}).")


def decode_tensors(data: bytes, name: str) -> dict[str, Tensor]:
    """Read the bytes of the safetensors file `name`; anything else is refused by its content."""
    # Here and below: simulating without a run directory needs torch and numpy alone.
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Tensor] = load(data)
        return tensors
    except (SafetensorError, KeyError) as fault:
        known = {b"\x80": "a pickle file; pickle can run code", b"P": "a zip archive"}
        kind = known.get(data[:1], "not a safetensors file")
        raise MasqueradeError("E403", f"{name} is {kind}. Only safetensors is read.") from fault


def encode_tensors(tensors: Tensors, facts: dict[str, str] | None = None) -> bytes:
    """Write a safetensors file, with `facts` about the tensors, name → text."""
    from safetensors.torch import save

    data: bytes = save(_apart(tensors), metadata=facts)
    return data


def _apart(tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors as safetensors takes them: not strided, and no memory under two names.

    Only these are copied: the states of thousands of clients are large.
    """
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, each in tensors.items():
        here = each.detach().cpu().contiguous()
        memory = here.untyped_storage().data_ptr()
        found[name] = here.clone() if memory in taken else here
        taken.add(memory)
    return found


@dataclass(frozen=True)
class _Manifest:
    """What is sealed with a commit."""

    version: int
    number: int
    metrics: int
    """Bytes of metrics that count."""
    facts: Json
    files: Mapping[str, Mapping[str, int | str]]
    """Size and hash of every file."""
    pieces: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    """The same of files with clients' states, older ones first: what changed, commit by commit."""
    lines: str = ""
    """SHA-256 of the metrics that count."""

    def counts(self, metrics: bytes) -> bool:
        """Tell whether metrics begin with those that count."""
        counted = metrics[: self.metrics]
        same = not self.lines or hashlib.sha256(counted).hexdigest() == self.lines
        return same and len(counted) == self.metrics


class _Intact(NamedTuple):
    """A commit in which no bit differs."""

    manifest: _Manifest
    state: bytes
    lines: bytes
    """Length and hash of each line of metrics that counts; older formats have none."""

    def lines_of(self, metrics: bytes) -> list[bytes]:
        """Return the lines of damaged metrics by their places, empty where one is lost.

        A line is where it was or, where others were put aside before, anywhere.
        """
        held = {_hash_of(line): line for line in metrics.splitlines(keepends=True)}
        found, start = [], 0
        for length, known in _LINE.iter_unpack(self.lines):
            line = metrics[start : start + length]
            found.append(line if _hash_of(line) == known else held.get(known, b""))
            start += length
        return found


def _hash_of(line: bytes) -> bytes:
    return hashlib.sha256(line).digest()[:8]


def _sealed_lines(metrics: bytes) -> bytes:
    """Return length and hash of each line."""
    lines = metrics.splitlines(keepends=True)
    return b"".join(_LINE.pack(len(line), _hash_of(line)) for line in lines)


def _inspect(folder: Path) -> _Intact | str:
    """Return a commit, or what is damaged; hashes first, then meaning."""
    sealed = _content(folder / MANIFEST, LONGEST)
    if sealed is None:
        return f"{MANIFEST}: missing"
    found = unseal(sealed)
    if found is None:
        return f"{MANIFEST}: hash differs"
    if not isinstance(found, dict) or found.get("version") not in READ:
        known = f"{folder} has format {found.get('version')}, but {VERSION} is read here."
        raise MasqueradeError("E402", f"{known} Use the version of Masquerade that wrote it.")
    try:
        manifest = from_json(_Manifest, found)
    except ValueError as fault:
        return f"{MANIFEST}: {fault}"
    if manifest.number != int(folder.name):
        return f"{MANIFEST}: belongs to {manifest.number}"
    held = {name: _content(folder / name) for name in manifest.files.keys() & {STATE, LINES}}
    for name in (STATE, *manifest.files):
        data = held.get(name)
        if data is None:
            return f"{name}: missing"
        if manifest.files[name] != fingerprint(data):
            return f"{name}: hash differs"
    lines = held.get(LINES) or b""
    if len(lines) % _LINE.size:
        return f"{LINES}: it is cut off"
    for name, sealed_with in manifest.pieces.items():
        piece = _content(folder.parent.parent / PIECES / check_name(name))
        if piece is None or fingerprint(piece) != sealed_with:
            return f"{PIECES}/{name}: missing, or its hash differs"
    return _Intact(manifest, held[STATE] or b"", lines)


def _content(path: Path, most: int = MOST) -> bytes | None:
    """Return the bytes of a regular file; None where there is none."""
    try:
        return read_regular(path, most)
    except OSError as fault:
        if fault.errno in NO_FILE:
            return None
        raise


def obstacle(path: Path) -> MasqueradeError | None:
    """Return the refusal of a directory that cannot be opened as a run until a person acts.

    Nothing is changed there before that is clear, so that the next try finds all that this one did.
    """
    if not is_begun(path):
        if not any((path / name).exists() for name in (HASHES, METRICS)):
            return MasqueradeError("E408", f"No run at {path}: it has no {CONFIG}. Check the path.")
        text = f"{path / CONFIG} is gone, and no commit there has what it said"
        return MasqueradeError("E408", f"{text}. Put a copy of it there.")
    if (wrong := _misplaced(path)) is not None:
        text = f"{wrong} is no {'folder' if wrong.name in FOLDERS else 'file'}, but a run has one"
        return MasqueradeError("E405", f"{text} there. Move it away, then do the same again.")
    staged = (path.glob(f"{folder}{atomic.TEMPORARY}*") for folder in ("", f"{CLIENTS}/"))
    here = chain(_written(path), *staged)
    if (link := next((each for each in here if each.is_symlink()), None)) is not None:
        return atomic.linked(link)
    if not (path / ROUNDS).is_dir() and (_size(path / METRICS) or (path / SUMMARY).exists()):
        text = f"{path / ROUNDS} is gone, and with it all commits: results that are intact can be"
        todo = "Put a copy of that folder there, or start a new run."
        return MasqueradeError("E408", f"{text} read, but not written again or resumed. {todo}")
    return None


FOLDERS = (ROUNDS, CLIENTS, PIECES)
"""Folders in a run's directory."""


def _written(path: Path) -> Iterator[Path]:
    """Yield what a run writes in its directory, if it is there."""
    yield from (path / name for name in ("lock", *FOLDERS, *FILES))
    yield from (path / CLIENTS).glob("[!.]*.safetensors")


def _misplaced(path: Path) -> Path | None:
    """Return what cannot be written because it is of another kind."""
    for name in FOLDERS:
        if (path / name).exists() and not (path / name).is_dir():
            return path / name
    # What is renamed to a path takes the place of anything there but a folder; these are not.
    for name in (CONFIG, METRICS):
        if (path / name).exists() and not (path / name).is_file():
            return path / name
    return next(
        (each for each in _written(path) if each.name not in FOLDERS and each.is_dir()), None
    )


def is_begun(path: Path) -> bool:
    """Tell whether a directory has a run, though its settings may be gone."""
    return os.path.lexists(path / CONFIG) or _has_commits(path)


def _has_commits(path: Path) -> bool:
    return any(each.name.isdecimal() for each in (path / ROUNDS).glob("*"))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


class Commit(NamedTuple):
    """The state of a run after `number` rounds."""

    number: int
    tensors: dict[str, Tensor]
    facts: Json
    pieces: Iterable[Tensors] = ()
    """Clients' states, read one after another; what is in later pieces holds."""


class RunDirectory:
    """A run's directory, held by this process alone until `close`."""

    def __init__(self, path: Path, config: str | None, mark: str | None = None) -> None:
        """Hold a new run (see `create`) or, without a config, an old one (see `open`)."""
        self.path = path
        self.last: int | None = None
        self._offset = 0
        self._lines = hashlib.sha256()
        self._sealed_lines = b""
        self._pieces: dict[str, Mapping[str, int | str]] = {}
        with self._faults("opening the run"):
            os.makedirs(path, exist_ok=True)
            self.path = path.resolve()
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._lock = os.open(self.path / "lock", flags, 0o644)
            # A fork shares the lock, and would keep it if it outlived a killed run.
            os.register_at_fork(after_in_child=self.close)
            try:
                self._claim()
                self._recover() if config is None else self._begin(config, mark)
            except BaseException:
                self.close()
                raise

    @classmethod
    def create(cls, path: str | Path, config: str, mark: str | None = None) -> Self:
        """Make the directory of a new run, with the text of its `config.toml`.

        `mark` names an empty file that tells one kind of directory from another.
        """
        return cls(Path(path), config, mark)

    @classmethod
    def open(cls, path: str | Path, without_settings: bool = False) -> Self:
        """Open an existing run, and clear away what a crash left beyond its newest commit.

        It may be `without_settings` where whoever opens it writes them again.
        """
        path = Path(path)
        if refusal := obstacle(path):
            raise refusal
        if not without_settings and not (path / CONFIG).exists():
            text = f"No settings at {path}: it has no {CONFIG}. To have it again:"
            raise MasqueradeError("E408", f"{text} masquerade resume {path}")
        return cls(path, None)

    def close(self) -> None:
        """Let other processes in."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            with self._faults("closing the run"):
                os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def commit(
        self,
        number: int,
        tensors: Tensors,
        facts: Json,
        lines: Iterable[Json] = (),
        pieces: Iterable[Tensors] = (),
        whole: bool = False,
    ) -> None:
        """Make the state after `number` rounds durable, and the metrics since the last commit.

        `pieces` have clients' states that changed since then or, if they are `whole`, of all that
        ever did: earlier ones do not count any more. Numbers rise. After an error, open the run
        again before committing a later round.
        """
        assert self.last is None or number > self.last
        state = encode_tensors(tensors)
        added = "".join(json.dumps(line) + "\n" for line in lines).encode()
        offset, lines_so_far = self._offset + len(added), self._lines.copy()
        lines_so_far.update(added)
        with self._faults(f"writing checkpoint {number}"):
            added_pieces = self._write_pieces(number, pieces)
            counted = added_pieces if whole else self._pieces | added_pieces
            sealed_lines = self._sealed_lines + _sealed_lines(added)
            held = {STATE: state, LINES: sealed_lines}
            files = {name: fingerprint(data) for name, data in held.items()}
            digest = lines_so_far.hexdigest()
            sealed = seal(vars(_Manifest(VERSION, number, offset, facts, files, counted, digest)))
            target = self._inside(ROUNDS) / f"{number:08d}"
            # Damaged, and passed over when the run was resumed.
            if target.exists():
                atomic.remove(target)
            atomic.write_at(self._inside(METRICS), added, self._offset)
            atomic.write_folder(target, {**held, MANIFEST: sealed})
            kept = (number, self.last)
            needed = self._pieces.keys() | counted.keys()
            self.last, self._offset, self._pieces = number, offset, counted
            self._lines, self._sealed_lines = lines_so_far, sealed_lines
            for folder in self._commits():
                if int(folder.name) not in kept:
                    atomic.remove(folder)
            self._remove_pieces(needed)

    def _write_pieces(
        self, number: int, pieces: Iterable[Tensors]
    ) -> dict[str, Mapping[str, int | str]]:
        """Write files with clients' states; they count when a manifest names them."""
        found: dict[str, Mapping[str, int | str]] = {}
        for place, tensors in enumerate(pieces):
            data, name = encode_tensors(tensors), f"{number:08d}-{place}.safetensors"
            if not self._inside(PIECES).is_dir():
                os.makedirs(self._inside(PIECES))
                atomic.sync(self.path)
            atomic.write_file(self._inside(f"{PIECES}/{name}"), data)
            found[name] = fingerprint(data)
        return found

    def _remove_pieces(self, needed: Container[str]) -> None:
        """Remove the files with clients' states that no commit names."""
        for file in sorted(self._inside(PIECES).glob("*")):
            if file.name not in needed:
                atomic.remove(file)

    def latest(self) -> Commit | None:
        """Read the newest intact commit, with a warning for each damaged one passed over."""
        with self._faults("reading checkpoints"):
            found, _, damages = self._newest()
        if found is None:
            return None
        manifest = found.manifest
        number, name = manifest.number, f"{STATE} of checkpoint {manifest.number}"
        for damage in damages:
            warnings.warn(f"E401 {damage} Using {number}.", MasqueradeWarning, stacklevel=2)
        pieces = (
            decode_tensors((self._inside(PIECES) / each).read_bytes(), each)
            for each in manifest.pieces
        )
        return Commit(number, decode_tensors(found.state, name), manifest.facts, pieces)

    def go_back(self) -> None:
        """Take the newest commit back."""
        assert self.last is not None
        with self._faults("taking a checkpoint back"):
            atomic.remove(self._inside(ROUNDS) / f"{self.last:08d}")
            self.last, self._offset, self._pieces = None, 0, {}
            self._recover(opening=False)

    def write_file(self, name: str, data: bytes) -> None:
        """Write a file such as `program.txt`, which appears whole or not at all."""
        with self._faults(f"writing {name}"):
            target = self._inside(name)
            if not target.parent.is_dir():
                os.makedirs(target.parent)
                atomic.sync(self.path)
            atomic.write_file(target, data)

    def change_settings(self, config: str) -> None:
        """Write another `config.toml`; results of the former one do not count any more."""
        if refusal := obstacle(self.path):
            raise refusal
        self._unseal()
        self.write_file(CONFIG, config.encode())

    def write_results(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write what a run ended with, and at last the manifest without which it does not count.

        It has the hashes of all of that, of the settings and of the metrics.
        """
        if refusal := obstacle(self.path):
            raise refusal
        self._unseal()
        hashes = {}
        for name, data in files:
            self.write_file(name, data)
            hashes[name] = fingerprint(data)
        with self._faults(f"writing {HASHES}"):
            for name in (CONFIG, METRICS):
                hashes[name] = fingerprint((self.path / name).read_bytes())
        self.write_file(HASHES, seal({"files": hashes}))

    def _unseal(self) -> None:
        with self._faults(f"removing {HASHES}"):
            if os.path.lexists(self.path / HASHES):
                atomic.remove(self.path / HASHES)
                atomic.sync(self.path)

    def _claim(self) -> None:
        """Take the kernel's lock, which dies with the process; the text only says who has it."""
        import fcntl  # Importing this module must work on systems that have no such lock.

        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._lock, 512).decode(errors="replace") or "another process"
            text = f"Run {self.path} is in use by {owner}. Wait for it, or stop it first."
            raise MasqueradeError("E404", text) from None
        atomic.refuse_second_name(self._lock, self.path / "lock")
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"process {os.getpid()} on host {socket.gethostname()}".encode())

    def _begin(self, config: str, mark: str | None) -> None:
        os.makedirs(self._inside(ROUNDS), exist_ok=True)
        if (self.path / CONFIG).exists() or self._commits():
            todo = f"Choose another --out, or: masquerade resume {self.path}"
            raise MasqueradeError("E407", f"{self.path} already holds a run. {todo}")
        if mark is not None:
            atomic.write_file(self._inside(mark), b"")
        os.makedirs(self._inside(CLIENTS), exist_ok=True)
        atomic.write_at(self._inside(METRICS), b"")
        # The config comes last, because a directory that has one is a run.
        atomic.write_file(self._inside(CONFIG), config.encode())
        atomic.sync(self.path.parent)

    def _recover(self, opening: bool = True) -> None:
        if not (self.path / ROUNDS).is_dir():
            # A comparison has none in it, and copies may leave out folders that are empty.
            os.makedirs(self._inside(ROUNDS))
        newest, kept, _ = self._newest()
        metrics = self._metrics()
        if newest is not None:
            manifest = newest.manifest
            self.last = manifest.number
            self._pieces = dict(manifest.pieces)
            needed = set(manifest.pieces)
            for folder in self._commits():
                if int(folder.name) < self.last:
                    older = _inspect(folder)
                    # A kill may have come while an old commit was being removed.
                    if isinstance(older, str):
                        atomic.remove(folder)
                    else:
                        needed |= older.manifest.pieces.keys()
                elif int(folder.name) > self.last:
                    # Damaged, and left as it is until it is written anew.
                    needed |= {file.name for file in self._inside(PIECES).glob(f"{folder.name}-*")}
            self._remove_pieces(needed)
        for folder in (self.path, *map(self._inside, FOLDERS)):
            # `check_name` lets no other name begin so.
            for leftover in folder.glob(f"{atomic.TEMPORARY}*"):
                atomic.remove(leftover)
                logging.getLogger(__name__).info("Removed unfinished %s", leftover)
        # What a commit that is taken back had is no damage, and what was is put aside by then.
        if opening and newest is not None and not newest.manifest.counts(metrics):
            self._put_aside(metrics, kept)
        self._offset, self._lines = len(kept), hashlib.sha256(kept)
        self._sealed_lines = _sealed_lines(kept)
        atomic.write_at(self._inside(METRICS), b"", self._offset)

    def _put_aside(self, metrics: bytes, kept: bytes) -> None:
        """Keep damaged lines, behind those that were damaged before, and those that are intact."""
        intact, file = set(kept.splitlines()), self._inside(DAMAGED)
        lost = b"".join(each for each in metrics.splitlines(True) if each.rstrip() not in intact)
        before = file.read_bytes() if file.is_file() else b""
        # A kill may have come before they were taken away.
        if not before.endswith(lost):
            atomic.write_file(file, before + lost)
        atomic.write_file(self._inside(METRICS), kept)

    def _commits(self) -> list[Path]:
        """List the commits, newest first."""
        rounds = self.path / ROUNDS
        numbered = [name for name in os.listdir(rounds) if name.isdecimal()]
        return [rounds / name for name in sorted(numbered, key=int, reverse=True)]

    def _newest(self) -> tuple[_Intact | None, bytes, list[str]]:
        """Return the newest intact commit, its lines of metrics, and what is wrong with newer."""
        damages: list[str] = []
        partly: _Intact | None = None
        metrics = self._metrics()
        for folder in self._commits():
            found = _inspect(folder)
            if not isinstance(found, str):
                if found.manifest.counts(metrics):
                    return found, metrics[: found.manifest.metrics], damages
                partly = partly or found
                found = f"{METRICS}: lines are missing, or their hash differs"
            damages.append(f"Checkpoint {int(folder.name)} damaged ({found}).")
        if partly is not None:
            lines = partly.lines_of(metrics)
            return partly, b"".join(lines), [self._lost(lines)]
        if damages:
            raise MasqueradeError("E401", f"{' '.join(damages)} None is intact; start a new run.")
        return None, b"", damages

    def _lost(self, lines: list[bytes]) -> str:
        """Say which lines of metrics are lost."""
        places = missing((place for place, line in enumerate(lines, 1) if line), len(lines))
        which = (
            f"of its {len(lines)} lines these are lost: {places}" if lines else "no line is left"
        )
        text = f"Damaged: {METRICS}; {which}. Nothing makes them again; what is left of them,"
        return f"{text} if anything, is in {DAMAGED}."

    def _metrics(self) -> bytes:
        file = self.path / METRICS
        return file.read_bytes() if file.is_file() else b""

    def _inside(self, name: str) -> Path:
        """Return the path of a file of this run, unless writing it would follow a link."""
        target = self.path.joinpath(*map(check_name, name.split("/")))
        for step in (*reversed(target.parents), target):
            atomic.refuse_link(step)
        return target

    @contextmanager
    def _faults(self, action: str) -> Iterator[None]:
        """Turn an error of the system into one that says what is safe and what to do."""
        try:
            yield
        except OSError as fault:
            full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
            what = f"Disk full {action}" if full else f"I/O error {action} ({fault})"
            safe = "No round is committed" if self.last is None else f"Round {self.last} is intact"
            todo = "Free space" if full else "Check the disk and the permissions"
            begun = (self.path / CONFIG).exists()
            then = f"masquerade resume {self.path}" if begun else "start again"
            text = f"{what}. {safe}. {todo}, then: {then}"
            raise MasqueradeError("E501" if full else "E502", text) from fault
