"""What reading runs: Python's own audit tells of pickles, programs and connections."""

import inspect
import pickle
import shutil
import socket
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import masquerade as mq
from attacks.make_files import FOLDER, TABLE
from masquerade.config.toml import load
from masquerade.deploy.messages import Answer
from masquerade.deploy.messages import read as read_message
from masquerade.errors import MasqueradeError
from masquerade.laws.toy import federation, network_of
from masquerade.methods import FedAvg
from masquerade.models.weights import read_weights
from masquerade.results.json_records import parsed
from masquerade.storage.run_directory import encode_tensors
from tests.export.hostile import READERS
from tests.wire.samples import GOLDEN, SAMPLES
from tests.wire.test_attacks import HERE as MESSAGES
from tests.wire.test_attacks import TABLE as HOSTILE

FORBIDDEN = ("pickle.find_class", "exec", "os.system", "os.exec", "os.posix_spawn")
FORBIDDEN += ("subprocess.Popen", "socket.connect", "ctypes.dlopen", "shutil.unpack_archive")
LOOPBACK = ("127.0.0.1", "::1")

heard: list[tuple[str, Any]] = []
listening: list[bool] = []


def hook(event: str, arguments: Any) -> None:
    """Note what nothing that is read may do; a hook cannot be taken away again."""
    if listening and event in FORBIDDEN and not _is_harmless(event, arguments):
        heard.append((event, arguments))


def _is_harmless(event: str, arguments: Any) -> bool:
    if event == "socket.connect":
        address = arguments[1]
        return not isinstance(address, tuple) or address[0] in LOOPBACK
    # Modules of libraries are loaded where they are first needed, and typing evaluates what our own
    # annotations say; neither comes from data.
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename in ("<frozen importlib._bootstrap>", typing.__file__):
            return True
        frame = frame.f_back
    return False


sys.addaudithook(hook)


@contextmanager
def listened() -> Iterator[list[tuple[str, Any]]]:
    """Yield what is heard of; refusals are no fault."""
    heard.clear()
    listening.append(True)
    try:
        with suppress(MasqueradeError):
            yield heard
    finally:
        listening.clear()


def connect() -> None:
    with socket.socket(socket.AF_INET) as to, suppress(OSError):
        to.settimeout(0.01)
        to.connect(("192.0.2.1", 9))


ACTS: dict[str, Callable[[], object]] = {
    "exec": lambda: exec("1"),
    "subprocess.Popen": lambda: subprocess.run(["true"], check=True),
    "pickle.find_class": lambda: pickle.loads(pickle.dumps(print)),
    "socket.connect": connect,
}


@pytest.mark.parametrize("event", ACTS)
def test_the_hook_hears_what_it_is_for(event: str) -> None:
    with listened() as events:
        ACTS[event]()
    assert event in [name for name, _ in events]


@pytest.mark.parametrize("name", parsed(TABLE.read_bytes()))
def test_no_hostile_file_runs_or_connects(name: str, tmp_path: Path) -> None:
    reader = READERS[parsed(TABLE.read_bytes())[name]["reader"]]
    path = Path(shutil.copy(FOLDER / name, tmp_path))
    with listened() as events:
        reader(path)
    assert events == []


def test_no_message_runs_or_connects() -> None:
    for name, sample in SAMPLES.items():
        data = (GOLDEN / f"{name}.bin").read_bytes()
        with listened() as events:
            sample.decode(data)
        assert events == []
    for name, told in HOSTILE.items():
        data = (MESSAGES / f"{name}.bin").read_bytes()
        for read in (SAMPLES[told["receiver"]].decode, partial(read_message, Answer)):
            with listened() as events:
                read(data)
            assert events == []


def test_neither_weights_nor_settings_run_or_connect(tmp_path: Path) -> None:
    weights = {"0.weight": torch.ones(2, 2)}
    (tmp_path / "w.safetensors").write_bytes(encode_tensors(weights))
    torch.save(weights, tmp_path / "w.pth")
    torch.save(weights, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "x.toml").write_text("[train]\nrounds = 3\n")
    with listened() as events:
        read = [read_weights(tmp_path / name) for name in ("w.safetensors", "w.pth", "old.pth")]
        assert load(tmp_path / "x.toml").train.rounds == 3
    assert events == []
    assert all(torch.equal(each["0.weight"], weights["0.weight"]) for each in read)


def test_neither_a_result_nor_its_models_run_or_connect(tmp_path: Path) -> None:
    task = mq.Task(network_of(FedAvg()))
    mq.run(FedAvg(), task, federation(), 1, batch_size=4, out=tmp_path / "run")
    with listened() as events:
        loaded = mq.load_result(tmp_path / "run", method=FedAvg(), model=task)
        assert loaded.client(0)
    assert events == []
