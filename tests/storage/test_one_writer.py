"""All that the package writes goes through `storage/atomic.py`: the source says so, and runs do.

Run as a program, this file is what is watched: `python -m tests.storage.test_one_writer FOLDER`.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "masquerade"
WRITER = PACKAGE / "storage" / "atomic.py"

WRITES = {
    *("write_text", "write_bytes", "touch", "rename", "renames", "truncate", "ftruncate"),
    *("symlink", "symlink_to", "link", "hardlink_to", "pwrite", "writev", "sendfile", "mkfifo"),
    *("rmtree", "copy", "copy2", "copyfile", "copytree", "move", "make_archive", "unpack_archive"),
    *("save", "savez", "savez_compressed", "savetxt", "savefig", "save_file", "tofile", "to_csv"),
    *("to_parquet", "TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory", "mkstemp"),
    *("mkdtemp", "FileHandler", "RotatingFileHandler"),
}
MODULES = {"os", "shutil", "np", "numpy", "torch", "path", "file"}
AMBIGUOUS = {"copy", "move", "save", "link", "touch", "truncate"}
"""What other objects do as well, and these write by."""

EXCEPTIONS = {
    "cli/deploy.py: TemporaryDirectory": "scratch, gone at the end",
    "cli/export.py: TemporaryDirectory": "scratch, gone at the end",
    "cost/memory.py: write_text": "a command to the kernel in /proc",
    "deploy/joining.py: mkdtemp": "a socket lies there, no file",
    "deploy/processes.py: RotatingFileHandler": "the log of a child process",
    "deploy/trial.py: open": "the log of a child process",
    "deploy/trial.py: symlink_to": "a new folder of a trial, to show where clients' folders are",
    "engine/ranks.py: TemporaryDirectory": "scratch, gone at the end",
    "engine/ranks.py: write_text": "what a child failed by, in scratch",
    "engine/shared_memory.py: NamedTemporaryFile": "memory that processes share",
    "engine/shared_memory.py: ftruncate": "memory that processes share",
    "engine/shared_memory.py: open": "memory that processes share",
    "engine/store.py: TemporaryFile": "a file without a name, for states between rounds",
    "engine/store.py: truncate": "a file without a name, for states between rounds",
    "reproduce/raw.py: savez_compressed": "into memory",
    "export/predict.py: save": "into memory",
    "data/cache.py: save": "into a file that the writer opened",
    "storage/regular.py: open": "to read, without waiting for a pipe's writer",
    "storage/run_directory.py: open": "the lock, which is no file of the run",
    "storage/run_directory.py: ftruncate": "the lock, which is no file of the run",
    "storage/run_directory.py: write": "the lock, which is no file of the run",
}
"""What writes in another way, and why."""


def writes(tree: ast.AST) -> Iterator[str]:
    """Yield what writes to the disk, as it is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            owner, _, name = ast.unparse(node.func).rpartition(".")
            if may_write(node, owner, name):
                yield name


def may_write(call: ast.Call, owner: str, name: str) -> bool:
    """Whether a call may write to the disk."""
    if name == "open":
        return opens_for_writing(call, owner)
    if name == "replace":
        return is_rename(call, owner)
    if name == "write":
        return owner == "os"
    if name in AMBIGUOUS:
        return owner.rpartition(".")[2] in MODULES
    return name in WRITES


def opens_for_writing(call: ast.Call, owner: str) -> bool:
    """Whether a call of `open` may write; what cannot be read off the call may."""
    if owner == "os":
        flags = ast.unparse(call.args[1])
        return flags != "os.O_RDONLY"
    place = 0 if owner and owner not in ("io", "gzip", "bz2", "lzma", "tarfile", "Image") else 1
    known = [each.value for each in call.keywords if each.arg == "mode"]
    mode = known[0] if known else call.args[place] if len(call.args) > place else None
    if mode is None:
        return False
    if isinstance(mode, ast.Constant) and isinstance(mode.value, str):
        return bool(set(mode.value) & set("wax+"))
    # A `Folder`, a run and the like are opened by what is no mode.
    return not owner


def is_rename(call: ast.Call, owner: str) -> bool:
    """Whether `replace` renames a file: a text is given two arguments, a record names."""
    return owner == "os" or (len(call.args) == 1 and not call.keywords and bool(owner))


@pytest.mark.parametrize(
    "text",
    [
        "open(path, 'w')",
        "open(path, mode='ab')",
        "path.open('r+b')",
        "open(path, mode)",
        "os.open(path, flags)",
        "os.write(file, data)",
        "path.write_text(text)",
        "(folder / name).write_bytes(data)",
        "np.save(path, array)",
        "torch.save(state, path)",
        "figure.savefig(path)",
        "os.rename(one, other)",
        "os.replace(one, other)",
        "staged.replace(path)",
        "shutil.copy(one, other)",
        "shutil.rmtree(path)",
    ],
)
def test_what_writes_is_seen(text: str) -> None:
    assert len(list(writes(ast.parse(text)))) == 1


READS = ("open(path)", "path.open('rb')", "Folder.open(path)", "os.open(path, os.O_RDONLY)")
OTHERWISE = ("text.replace('a', 'b')", "replace(record, key=1)", "dataclasses.replace(it, key=1)")


@pytest.mark.parametrize("text", [*READS, *OTHERWISE])
def test_what_reads_is_not(text: str) -> None:
    assert not list(writes(ast.parse(text)))


def test_nothing_but_the_writer_writes() -> None:
    found: set[str] = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        if file != WRITER:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            found |= {f"{file.relative_to(PACKAGE)}: {each}" for each in writes(tree)}
    assert found == set(EXCEPTIONS)


def test_a_run_opens_no_file_for_writing_but_by_the_writer(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x=x, y=rng.integers(0, 2, 60))
    command = [sys.executable, "-m", __name__, str(tmp_path)]
    env = os.environ | {"MASQUERADE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["beside"] == []
    assert found["through"] > 30


ELSEWHERE = ("/dev/", "/proc/", tempfile.gettempdir() + "/tmp")
"""Where nothing lasts."""
OTHERS = ("matplotlib", "onnx", "torch/_", "numba", "fontconfig")
"""Who keeps a cache of its own at home."""


def watched(folder: Path) -> dict[str, Any]:
    """Train, report, export, sweep, and tell what was written, by whom."""
    through: Counter[str] = Counter()
    beside: set[str] = set()

    def see(event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = given
            plain = isinstance(mode, str) and not set(mode) & set("wax+")
            if plain or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event in ("os.rename", "os.link", "os.symlink", "os.truncate"):
            path = given[0]
        else:
            return
        frames = [frame.filename for frame in traceback.extract_stack()]
        if str(WRITER) in frames:
            through[event] += 1
        elif not isinstance(path, int) and Path(os.fsdecode(path)).name != "lock":
            name = os.fsdecode(path)
            by = next((each for each in reversed(frames) if each.startswith(str(PACKAGE))), "")
            other = any(each in frame for frame in frames for each in OTHERS)
            if by and not other and not name.startswith(ELSEWHERE):
                beside.add(f"{event} {name} by {by}")

    sys.addaudithook(see)
    from masquerade.cli.app import app
    from masquerade.report import plots

    # Drawing takes longer than all of the rest, and is into memory.
    plots.figures = lambda *given: {}
    small = ["--data", folder / "mine.npz", "--clients", 3, "--rounds", 2, "--quiet"]
    small += ["--set", "method.local_epochs=1", "--model", "logistic"]
    own = folder / "run"
    for words in (
        ["run", "--method", "fedavg", *small, "--out", own],
        ["compare", "--methods", "local", *small, "--out", folder / "one"],
        ["resume", own, "--rounds", 3, "--quiet"],
        ["report", own, "--quiet"],
        ["export", own, "--client", 1, "--out", folder / "bundle", "--quiet"],
        ["predict", folder / "bundle", "--input", folder / "mine.npz", "--out", folder / "a.csv"],
        ["sweep", "--method", "fedavg", *small, "--over", "method.lr=.1", "--out", folder / "s"],
    ):
        app([str(word) for word in words], standalone_mode=False)
    return {"through": sum(through.values()), "beside": sorted(beside)}


if __name__ == "__main__":
    print(json.dumps(watched(Path(sys.argv[1]))))
