"""Names that want to lead elsewhere: whatever is called by one, nothing is written outside.

Python's own audit tells of every path that is opened for writing, made, moved, linked or removed;
beside, what lies around the folder is the same before and after.
"""

import errno
import io
import os
import random
import shutil
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import masquerade as mq
from masquerade.config.resolve import Training
from masquerade.data import cache
from masquerade.data.fetch import add, fetch
from masquerade.data.readers.reading import Reading
from masquerade.deploy import founding, joining
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.join_file import JoinFile
from masquerade.deploy.layout import ClientFolder
from masquerade.deploy.member import Member
from masquerade.errors import MasqueradeError
from masquerade.experiments.run_files import folder_of
from masquerade.export import predict
from masquerade.methods import FedAvg
from masquerade.reproduce.table import Search
from masquerade.storage import model_files, saved_folder
from masquerade.storage.manifest import fingerprint, seal
from masquerade.storage.run_directory import RunDirectory
from masquerade.trackers import TensorBoard
from masquerade.trackers.tracker import name_of
from tests.reliability import publish

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli.app import app

pytestmark = pytest.mark.filterwarnings("ignore::masquerade.errors.MasqueradeWarning")

PIECES = (
    *("..", "../", "/", "//", "\\", "..\\", "./", ".", "~", "~root", "$HOME", "${HOME}", "%2e%2e"),
    *("\0", "\n", "\r", "\t", "\x1b[2J", "\x7f", " ", "\u202e", "\u200f", "\ufeff", "\u2025"),
    *("CON", "NUL", "aux.txt", "C:", "C:\\", "\\\\host\\share", "file:///", "/dev/full", "`id`"),
    *("x" * 64, "y" * 255, "z" * 5000, "-", "--out", "*", "?", "|", ";", "&", "'", '"', "<", ":"),
    *("\udc80", "\ud800", "\uff0e\uff0e\uff0f", "e\u0301", "\U0001f4a5", "ß", "x", "1", "door"),
    *("door/", "lock", "rounds", "clients", "config.toml", "hashes.json", ".tmp-", "keys", ""),
)
"""Of these and their combinations names are made; `door` is a link that leads outside."""
MADE = ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.utime")
MOVED = ("os.rename", "os.link", "os.symlink")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

REFS = Path(f"/proc/{os.getpid()}/clear_refs")
"""Where the kernel is told to measure memory anew."""

inside: list[Path] = []
"""Where writing is allowed, while it is listened."""
outside: list[str] = []
"""What was written elsewhere."""


class Outside(BaseException):
    """Ends what is about to write elsewhere."""


def hook(event: str, given: Any) -> None:
    """Note what is written outside, and keep it from being; a hook cannot be taken away again."""
    if not inside:
        return
    if event == "open":
        paths = given[:1] if (given[2] or 0) & WRITES else ()
    elif event in MADE:
        paths = given[:1]
    else:
        paths = given[:2] if event in MOVED else ()
    for path in paths:
        if isinstance(path, (str, bytes, os.PathLike)):
            found = resolved(os.fsdecode(path), follows=event == "open")
            if found == REFS or "__pycache__" in found.parts:
                continue
            if found not in inside and not set(inside) & set(found.parents):
                outside.append(f"{event} {found}")
                raise Outside(outside[-1])


def resolved(path: str, follows: bool) -> Path:
    """Return where a path leads; over a link in its last place only if the call follows one."""
    if follows:
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))


sys.addaudithook(hook)


@contextmanager
def confined(root: Path) -> Iterator[None]:
    """Listen, while everything has to stay in a folder, and what is around it as it is."""
    before = around(root)
    outside.clear()
    inside.append(Path(os.path.realpath(root)))
    try:
        yield
    finally:
        inside.clear()
    assert outside == []
    assert around(root) == before


def around(root: Path) -> dict[str, bytes | None]:
    """Return all files and folders beside a folder, and above it the names."""
    found: dict[str, bytes | None] = {}
    for top, folders, files in os.walk(root.parent):
        folders[:] = [each for each in folders if Path(top, each) != root]
        found |= {os.path.join(top, each): None for each in folders}
        found |= {os.path.join(top, each): Path(top, each).read_bytes() for each in files}
    return found | {str(each): None for each in root.parent.parent.iterdir()}


def hostile(count: int) -> list[str]:
    """Return so many names, no two of them the same."""
    chance = random.Random(5)
    climbs = ["../" * times + "victim" for times in range(1, 9)]
    found = dict.fromkeys([*PIECES, *climbs, "/tmp/victim", "door/victim", "a/../../victim"])
    while len(found) < count:
        found["".join(chance.choices(PIECES, k=chance.randint(2, 6)))] = None
    return list(found)[:count]


class Doors:
    """What takes a name and makes a path of it, each in one folder that may be written to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "cache").mkdir()
        self.run = RunDirectory.create(root / "run", "")
        self.table = root / "table.csv"
        self.dataset = Reading(
            mq.from_arrays(np.ones((4, 2), np.float32), np.arange(4) % 2, np.arange(4) % 2)
        )
        config = {"methods": ["fedavg"], "fleet": {"name": "fed", "clients": ["ann"], "quorum": 1}}
        founding.found(root / "fed", FederationConfig.parse(config))
        self.joined = JoinFile.read(root / "fed" / "ann.join")
        for folder in (root, root / "cache", self.run.path, root / "fed", root / "fed" / "keys"):
            (folder / "door").symlink_to(root.parent / "elsewhere")

    def file_of_a_run(self, name: str) -> None:
        self.run.write_file(name, b"x")

    def results_of_a_run(self, name: str) -> None:
        self.run.write_results([(name, b"x")])

    def view(self, name: str) -> None:
        self.run.write_results([(model_files.client_file(1, name, 10), b"x")])

    def saved(self, name: str) -> None:
        shutil.rmtree(self.root / "saved", ignore_errors=True)
        saved_folder.write(self.root / "saved", [(name, b"x")])

    def saved_view(self, name: str) -> None:
        self.saved(model_files.client_file(1, name, 10))

    def row_of_a_comparison(self, name: str) -> None:
        RunDirectory.create(self.root / folder_of(0, name, 1), "").close()

    def method(self, name: str) -> None:
        RunDirectory.create(self.root / Training(FedAvg(), (name,), 1).folder, "").close()

    def trial(self, name: str) -> None:
        (trial,) = Search(trials=[{"lr": name}]).all_trials
        (self.root / f"{trial.name}.json").write_text("x")

    def followed_run(self, name: str) -> None:
        folder = TensorBoard(self.root / "board").folder
        (folder / name_of(SimpleNamespace(name=name, seed=1))).mkdir(parents=True, exist_ok=True)

    def dataset_written(self, name: str) -> None:
        cache.write(name, self.dataset, replace=True)

    def dataset_added(self, name: str) -> None:
        self.table.write_text("a,label\n1,x\n2,y\n")
        add(name, self.table, replace=True)

    def dataset_loaded(self, name: str) -> None:
        if cache.holds(name):
            mq.load(name)

    def dataset_fetched(self, name: str) -> None:
        fetch(name)

    def column(self, name: str) -> None:
        self.table.write_text(f"{name},label\n1,x\n2,y\n", "utf-8")
        add("columns", self.table, replace=True)

    def label(self, name: str) -> None:
        self.table.write_text(f"a,label\n1,{name}\n2,y\n", "utf-8")
        add("labels", self.table, replace=True)

    def client(self, name: str) -> None:
        data = self.root / "clients.npz"
        np.savez(data, x=np.ones((4, 2)), y=np.arange(4) % 2, client=[name, name, "b", "b"])
        add("clients", data, replace=True)
        mq.load("clients")

    def array(self, name: str) -> None:
        np.savez(self.root / "arrays.npz", **{name: np.ones(4)})
        add("arrays", self.root / "arrays.npz", replace=True)

    def file_in_a_zip(self, name: str) -> None:
        with zipfile.ZipFile(self.root / "files.zip", "w") as archive:
            # Its own constructor would take away what is behind a NUL.
            each = zipfile.ZipInfo("x")
            each.filename = name
            archive.writestr(each, "a,label\n1,x\n2,y\n")
        add("zips", self.root / "files.zip", replace=True)

    def file_in_a_tar(self, name: str) -> None:
        data = b"a,label\n1,x\n2,y\n"
        with tarfile.open(self.root / "files.tar", "w") as archive:
            each = tarfile.TarInfo(name)
            each.size = len(data)
            archive.addfile(each, io.BytesIO(data))
            link = tarfile.TarInfo("link.csv")
            link.type, link.linkname = tarfile.SYMTYPE, name
            archive.addfile(link)
        add("tars", self.root / "files.tar", replace=True)

    def client_added(self, name: str) -> None:
        founding.add(self.root / "fed", name)
        founding.remove(self.root / "fed", name)

    def client_removed(self, name: str) -> None:
        founding.remove(self.root / "fed", name)

    def client_joining(self, name: str) -> None:
        self._join(replace(self.joined, name=name))

    def federation_joined(self, name: str) -> None:
        self._join(replace(self.joined, federation=name))

    def _join(self, joined: JoinFile) -> None:
        written = self.root / "some.join"
        joined.write(written)
        layout, users = ClientFolder(self.root / "member"), joining.Users()
        shutil.rmtree(layout.path, ignore_errors=True)
        read = JoinFile.read(written)
        joining.prepare(layout, read, users)
        joining.write_unit(layout, read, users)
        (unit,) = layout.path.glob("*.service")
        assert sum(line.startswith("ExecStart=") for line in unit.read_text().split("\n")) == 1

    def federation_founded(self, name: str) -> None:
        shutil.rmtree(self.root / "other", ignore_errors=True)
        config = {"methods": ["fedavg"], "fleet": {"name": name, "clients": [], "quorum": 1}}
        founding.found(self.root / "other", FederationConfig.parse(config))

    def run_of_a_federation(self, name: str) -> None:
        Member(self.root / "member").participant(name)

    def named_in_a_manifest(self, name: str) -> None:
        folder = self.root / "named"
        folder.mkdir(exist_ok=True)
        (folder / "hashes.json").write_bytes(seal({"files": {name: fingerprint(b"x")}}))
        saved_folder.Folder.open(folder).read(name)

    def named_in_a_bundle(self, name: str) -> None:
        folder = self.root / "bundle"
        folder.mkdir(exist_ok=True)
        kind = {"shape": [1], "type": "float32", "divides_bytes": False}
        files = {each: fingerprint(b"x") for each in (predict.MODEL, name)}
        told = {"version": predict.VERSION, "input": kind, "labels": None, "files": files}
        (folder / predict.MANIFEST).write_bytes(seal(told))
        (folder / predict.MODEL).write_bytes(b"x")
        predict.open_bundle(folder)


DOORS = tuple(name for name in vars(Doors) if not name.startswith("_"))
WRITTEN = ("column", "label", "array", "file_in_a_zip", "file_in_a_tar", "client_joining")
WRITTEN += ("federation_joined",)
"""Doors whose names come in files, which hold texts alone."""
REFUSED = ("E201", "E203", "E301", "E302", "E401", "E405", "E406", "E407", "E502", "E611", "E621")


def tried(doors: Doors, door: str, name: str) -> str:
    """Go through a door under a name; return what came of it."""
    try:
        getattr(doors, door)(name)
    except MasqueradeError as refusal:
        if refusal.code not in REFUSED:
            raise
        return "refused"
    except OSError as fault:
        # The command says E203 of it.
        if fault.errno != errno.ENAMETOOLONG:
            raise
        return "refused"
    return "taken, inside"


def through(root: Path, share: int, names: list[str]) -> Counter[str]:
    """Go through every door under one of so many names; count what came of it."""
    doors, found = Doors(root), Counter[str](names=len(names), doors=len(DOORS))
    for place, door in enumerate(DOORS):
        # What a library imports late is imported here.
        tried(doors, door, "plain")
        with confined(root):
            for name in names[place % share :: share]:
                if door not in WRITTEN or is_text(name):
                    found[tried(doors, door, name)] += 1
    return found


def is_text(name: str) -> bool:
    """Tell whether a file can hold a name."""
    try:
        return name.encode() != b""
    except UnicodeEncodeError:
        return False


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that may be written to, in another one with what may not."""
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path / "root" / "cache"))
    (tmp_path / "elsewhere").mkdir()
    for path in (tmp_path / "victim", tmp_path / "elsewhere" / "victim"):
        path.write_text("precious")
    (tmp_path / "root").mkdir()
    monkeypatch.chdir(tmp_path / "root")
    return tmp_path / "root"


def test_what_is_written_outside_is_heard_and_kept_from_being(root: Path) -> None:
    (root / "door").symlink_to(root.parent / "elsewhere")
    harms: list[Callable[[], object]] = [
        lambda: (root / ".." / "new").write_text("x"),
        lambda: (root / "door" / "victim").write_text("x"),
        lambda: (root.parent / "victim").unlink(),
        lambda: os.mkdir("../new"),
        lambda: os.replace(root.parent / "victim", root / "victim"),
        lambda: (root / "door" / "link").symlink_to("victim"),
    ]
    for harm in harms:
        with pytest.raises(Outside), confined(root):
            harm()
    (root / "victim").write_text("inside")
    with pytest.raises(AssertionError), confined(root):
        # The audit hears of no change by another process.
        subprocess.run(["touch", "../new"], check=True)


def test_no_name_leads_outside(root: Path) -> None:
    """A door gets one of eighteen names, so that each of a thousand goes through one or two."""
    found = through(root, 18, hostile(1000))
    assert found["refused"] > 500
    assert found["taken, inside"] > 200


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_no_name_leads_outside_through_any_door(root: Path) -> None:
    found = through(root, 1, hostile(1000))
    publish("names", "pytest tests/storage/test_hostile_names.py -m drill", found)
    assert found["refused"] > 10_000


def test_trainings_and_exports_under_hostile_names_stay_inside(root: Path) -> None:
    names = [name for name in hostile(1000) if is_text(name) and name == name.strip("\0 \n\t")]
    names = [*names[:8], "../../victim", "/tmp/victim", "door/victim", "a" * 300]
    owner, chance = np.repeat(np.arange(len(names)), 6), np.random.default_rng(1)
    x = chance.normal(size=(len(owner), 2)).astype(np.float32)
    y = np.arange(len(owner)) % 2
    data = root / "mine.npz"
    np.savez(data, x=x, y=y, client=np.array(names)[owner])
    (root / "door").symlink_to(root.parent / "elsewhere")
    small = ["--rounds", "1", "--model", "logistic", "--engine", "loop", "--quiet"]
    small += ["--set", "method.local_epochs=1"]
    call("run", "--method", "local", "--data", data, *small, "--out", root / "run")
    federation = mq.partition(mq.load(str(data)), None, mq.ByClient(), seed=3)
    model = mq.models.build("logistic", (2,), 2, seed=1)
    found = Counter[str]()
    methods = {name: mq.methods.Local(local_epochs=1, lr=0.1 + n) for n, name in enumerate(names)}
    with confined(root):
        for name in names:
            found[tried_export(root / "run", name)] += 1
        mq.compare(methods, model, federation, 1, out=root / "both")
    assert found["exported"] == len(list(root.glob("run-client*.safetensors"))) > 5
    # Alike once they are files' names, or too long for one.
    assert found["E407"] + found["too long"] == len(names) - found["exported"]
    assert len(list((root / "both").glob("*/summary.json"))) == len(names)


def tried_export(run: Path, name: str) -> str:
    """Export a client's model to where its name says; return what came of it."""
    try:
        call("export", run, "--client", name, "--format", "dense", "--quiet")
    except MasqueradeError as refusal:
        return refusal.code
    except OSError as fault:
        if fault.errno != errno.ENAMETOOLONG:
            raise
        return "too long"
    return "exported"


def call(*words: object) -> None:
    """Run the command in this process; an error is raised, not printed."""
    app([str(word) for word in words], standalone_mode=False)
