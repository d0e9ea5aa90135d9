"""A run directory under kills, failing disks, damaged files and second processes.

Run as a program, this file is the part that forks, in a process of its own that has one thread:
`python -m tests.storage.test_run_directory FOLDER DRILL`.
"""

import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from masquerade.errors import MasqueradeError
from masquerade.experiments.checkpoints import Committer
from masquerade.simulation.state import Snapshot
from masquerade.storage.manifest import fingerprint, seal
from masquerade.storage.run_directory import (
    VERSION,
    RunDirectory,
    check_name,
    decode_tensors,
    encode_tensors,
)
from masquerade.storage.saved_folder import Folder, damages
from tests.messages import Golden
from tests.reliability import publish
from tests.storage.disk import DeadDisk, Disk, Killed, ShortDisk, raising
from tests.support import raises, warns

ROOT = Path(__file__).parents[2]


def state(number: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((10,), float(number)), "keep": torch.tensor([True, False])}


def lines(number: int) -> list[dict[str, object]]:
    return [{"round": number, "accuracy": number / 3}, {"round": number, "name": "é"}]


def pieces(number: int) -> list[dict[str, torch.Tensor]]:
    """What a round changes: the state of one of three clients; every fourth commit is whole."""
    ids = torch.arange(min(3, number)) if number % 4 == 0 else torch.tensor([number % 3])
    last = [max(n for n in range(number + 1) if n % 3 == id) for id in ids.tolist()]
    return [{"ids": ids, "v": torch.tensor(last)}]


def commit(run: RunDirectory, number: int) -> None:
    facts = {"number": number}
    run.commit(number, state(number), facts, lines(number), pieces(number), number % 4 == 0)


def snapshot(number: int) -> Snapshot:
    return Snapshot(lambda: [state(number), *pieces(number)], number % 4 == 0)


def last_of_clients(number: int) -> dict[int, int]:
    """By client the last of so many rounds in which it changed."""
    return {each % 3: each for each in range(1, number + 1)}


def check(path: Path, allowed: set[int]) -> int:
    """Open a run as a resume does, and see that everything is of one allowed round."""
    with RunDirectory.open(path) as run:
        found = run.latest()
        number = 0 if found is None else found.number
        assert number in allowed, (number, allowed)
        if found is not None:
            assert torch.equal(found.tensors["w"], state(number)["w"])
            assert found.facts == {"number": number}
            held: dict[int, int] = {}
            for piece in found.pieces:
                held |= zip(piece["ids"].tolist(), piece["v"].tolist(), strict=True)
            assert held == last_of_clients(number)
    expected = [line for each in range(1, number + 1) for line in lines(each)]
    written = (path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == expected
    assert not list(path.rglob(".tmp-*"))
    return number


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A closed run with the commits 1 and 2."""
    with RunDirectory.create(tmp_path / "run", "rounds = 9\n") as run:
        commit(run, 1)
        commit(run, 2)
    return tmp_path / "run"


def attempt(work: Callable[[], None]) -> MasqueradeError | None:
    """Return the refusal that work ends in; any other error fails the test."""
    try:
        work()
    except MasqueradeError as fault:
        return fault
    return None


def refused(code: str) -> Any:
    return raises(code)


def test_a_commit_copies_no_tensor_that_has_its_memory_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, twice, saved = torch.ones(3), torch.ones(4), {}
    monkeypatch.setattr(
        "safetensors.torch.save", lambda given, metadata: saved.update(given) or b""
    )
    with RunDirectory.create(tmp_path / "run", "") as run:
        run.commit(0, {"alone": alone, "twice": twice, "view": twice[:2]}, {})
    places = {name: value.data_ptr() for name, value in saved.items()}
    assert (places["alone"], places["twice"]) == (alone.data_ptr(), twice.data_ptr())
    assert places["view"] != twice.data_ptr()


def test_a_commit_returns_what_was_given(tmp_path: Path) -> None:
    shared = torch.arange(6.0, requires_grad=True)
    tensors = {
        "view": shared.view(2, 3).T,
        "again": shared,
        "part": shared[2:4],
        "scalar": torch.tensor(3),
        "bits": torch.tensor([True]),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "none": torch.empty(0, 4),
    }
    facts = {"seed": 2**70, "nan": float("inf"), "deep": {"10": [1, None], "9": "é"}}
    with RunDirectory.create(tmp_path / "a" / "run", "rounds = 9\n") as run:
        assert run.latest() is None
        run.commit(0, {}, {})
        nothing = run.latest()
        assert nothing is not None
        assert nothing[:3] == (0, {}, {})
        run.commit(5, tensors, facts)
        found = run.latest()
    assert found is not None
    assert (found.number, found.facts) == (5, facts)
    assert found.tensors.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found.tensors[name].dtype == value.dtype
        assert torch.equal(found.tensors[name], value)
    assert (tmp_path / "a" / "run" / "config.toml").read_text() == "rounds = 9\n"


def test_the_newest_two_commits_are_kept(two: Path) -> None:
    with RunDirectory.open(two) as run:
        commit(run, 3)
        assert sorted(os.listdir(two / "rounds")) == ["00000002", "00000003"]


def test_clients_states_are_kept_as_long_as_a_commit_names_them(two: Path) -> None:
    listed = {2: ["1", "2"], 3: ["1", "2", "3"], 4: ["1", "2", "3", "4"], 5: ["4", "5"]}
    with RunDirectory.open(two) as run:
        for number, kept in listed.items():
            if number > 2:
                commit(run, number)
            names = [f"0000000{each}-0.safetensors" for each in kept]
            assert sorted(os.listdir(two / "states")) == names
    check(two, {5})


def test_damage_of_states_that_all_commits_share_is_found(two: Path) -> None:
    (two / "states" / "00000001-0.safetensors").write_bytes(b"")
    with refused("E401") as fault:
        RunDirectory.open(two)
    assert "states/00000001-0.safetensors" in str(fault.value)


def test_a_run_is_not_created_over_another(two: Path, golden: Golden) -> None:
    with refused("E407") as fault:
        RunDirectory.create(two, "rounds = 1\n")
    golden(fault.value)
    assert f"masquerade resume {two}" in str(fault.value)
    assert (two / "config.toml").read_text() == "rounds = 9\n"
    (two / "config.toml").unlink()
    with refused("E407"):
        RunDirectory.create(two, "rounds = 1\n")


def test_only_a_run_is_opened(tmp_path: Path) -> None:
    with refused("E408") as fault:
        RunDirectory.open(tmp_path)
    assert "config.toml" in str(fault.value)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_removed_and_listed(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    (two / "rounds" / ".tmp-00000003").mkdir()
    (two / "rounds" / ".tmp-00000003" / "state.safetensors").write_bytes(b"half")
    (two / "clients" / ".tmp-3.safetensors").write_bytes(b"half")
    (two / ".tmp-summary.json").write_text("{")
    with (two / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"round": 3, "accu')
    with caplog.at_level(logging.INFO):
        check(two, {2})
    assert len(caplog.records) == 3


@pytest.mark.parametrize("name", ["a", "3.safetensors", "A_b-c.d", "x" * 64])
def test_plain_names_pass(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "/x", "a/b", "a\\b", ".x", "-x", "a b", "a\n", "é", "x" * 65, "\0"],
)
def test_other_names_are_refused(name: str) -> None:
    with refused("E203"):
        check_name(name)


@pytest.mark.parametrize("name", ["../x.json", "/etc/x", "clients/../../x", "clients//x", "a/"])
def test_no_name_leads_out_of_the_run(two: Path, name: str) -> None:
    before = sorted(two.parent.rglob("*"))
    with RunDirectory.open(two) as run, refused("E203"):
        run.write_file(name, b"x")
    assert sorted(two.parent.rglob("*")) == before


def test_files_are_written_whole(two: Path) -> None:
    with RunDirectory.open(two) as run:
        run.write_file("summary.json", b"[1]")
        run.write_file("summary.json", b"[]")
        run.write_file("clients/3.safetensors", encode_tensors(state(7)))
    assert (two / "summary.json").read_text() == "[]"
    read = decode_tensors((two / "clients" / "3.safetensors").read_bytes(), "3")
    assert torch.equal(read["w"], state(7)["w"])


@pytest.mark.parametrize(
    ("link", "write"),
    [
        ("summary.json", lambda run: run.write_file("summary.json", b"x")),
        ("clients", lambda run: run.write_file("clients/3.safetensors", b"")),
        ("rounds", lambda run: commit(run, 3)),
        ("metrics.jsonl", lambda run: commit(run, 3)),
    ],
)
def test_links_are_not_followed_for_writing(
    two: Path, link: str, write: Callable[[RunDirectory], None]
) -> None:
    outside = two.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    with RunDirectory.open(two) as run:
        if (two / link).exists():
            (two / link).rename(two.parent / "moved")
        (two / link).symlink_to(outside if link in ("clients", "rounds") else outside / "file")
        with refused("E405"):
            write(run)
    assert os.listdir(outside) == ["file"]
    assert (outside / "file").read_text() == "precious"


def test_a_link_in_the_place_of_a_temporary_is_not_followed(two: Path) -> None:
    (two.parent / "file").write_text("precious")
    with RunDirectory.open(two) as run:
        (two / ".tmp-summary.json").symlink_to(two.parent / "file")
        with refused("E502"):
            run.write_file("summary.json", b"x")
    assert (two.parent / "file").read_text() == "precious"


@pytest.mark.parametrize("link", ["rounds", "clients", "metrics.jsonl"])
def test_a_run_with_links_is_not_opened(two: Path, link: str, golden: Golden) -> None:
    (two / link).rename(two.parent / "moved")
    (two / link).symlink_to(two.parent / "moved")
    before = sorted(two.parent.rglob("*"))
    with refused("E405") as refusal:
        RunDirectory.open(two)
    golden(refusal.value)
    assert sorted(two.parent.rglob("*")) == before


def test_a_held_run_names_its_holder(two: Path, golden: Golden) -> None:
    with RunDirectory.open(two), refused("E404") as fault:
        RunDirectory.open(two)
    golden(fault.value)
    assert f"in use by process {os.getpid()} on host " in str(fault.value)
    check(two, {2})


def mutants(files: list[Path]) -> Iterator[tuple[Path, bytes | None]]:
    """Change every byte of the files once, cut them everywhere, zero blocks, empty, delete."""
    chance = random.Random(5)
    for file in files:
        data = file.read_bytes()
        for at in range(len(data)):
            yield file, data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
            yield file, data[:at]
        yield file, data + b"\n"
        yield file, b"\0" * len(data)
        yield file, None


def test_every_damage_is_found_and_the_commit_before_is_used(two: Path) -> None:
    newest = two / "rounds" / "00000002"
    files = [newest / "manifest.json", newest / "state.safetensors"]
    files.append(two / "states" / "00000002-0.safetensors")
    whole = {file: file.read_bytes() for file in files}
    count = 0
    with RunDirectory.open(two) as run:
        for file, data in mutants(files):
            if data is None:
                file.unlink()
            else:
                file.write_bytes(data)
            with warns("E401", 2, file.name):
                found = run.latest()
            assert found is not None
            assert found.number == 1
            assert torch.equal(found.tensors["w"], state(1)["w"])
            file.write_bytes(whole[file])
            count += 1
        found = run.latest()
    assert found is not None
    assert found.number == 2
    assert count > 900


def test_files_of_another_commit_are_damage(two: Path, golden: Golden) -> None:
    old, new = two / "rounds" / "00000001", two / "rounds" / "00000002"
    with RunDirectory.open(two) as run:
        for name in ("state.safetensors", "manifest.json"):
            kept = (new / name).read_bytes()
            shutil.copy(old / name, new / name)
            with warns("E401", 2, name, 1) as warned:
                run.latest()
            golden(warned[-1].message)
            (new / name).write_bytes(kept)
        shutil.copytree(old, two / "rounds" / "00000003")
        with warns("E401", 3, "manifest", 2):
            run.latest()


def test_a_run_goes_on_from_before_the_damage(two: Path) -> None:
    (two / "rounds" / "00000002" / "state.safetensors").write_bytes(b"")
    with RunDirectory.open(two) as run:
        with warns("E401", 1):
            run.latest()
        commit(run, 2)
    check(two, {2})


def test_damaged_commits_do_not_push_out_intact_ones(two: Path) -> None:
    (two / "rounds" / "00000002" / "state.safetensors").write_bytes(b"")
    with RunDirectory.open(two) as run:
        run.commit(3, state(3), {})
    assert sorted(os.listdir(two / "rounds")) == ["00000001", "00000003"]


def test_cut_metrics_send_the_run_back_to_where_they_are_whole(two: Path) -> None:
    metrics = two / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-1])
    with RunDirectory.open(two) as run, warns("E401", "metrics.jsonl"):
        assert run.latest() is not None
    check(shutil.copytree(two, two.parent / "copy", ignore=shutil.ignore_patterns("00000002")), {1})


def test_a_run_without_an_intact_commit_is_refused_and_left_alone(two: Path) -> None:
    for file in two.rglob("manifest.json"):
        file.write_text("{}")
    before = (two / "metrics.jsonl").read_bytes()
    with refused("E401") as fault:
        RunDirectory.open(two)
    assert "Checkpoint 2 damaged (manifest.json: hash differs)." in str(fault.value)
    assert "Checkpoint 1 damaged" in str(fault.value)
    assert (two / "metrics.jsonl").read_bytes() == before


def forge(folder: Path, data: bytes, version: int = VERSION) -> None:
    """Write a state and a manifest that agrees with it, as someone with a purpose would."""
    manifest = {"version": version, "number": int(folder.name), "metrics": 0, "facts": {}}
    manifest["files"] = {"state.safetensors": fingerprint(data)}
    (folder / "state.safetensors").write_bytes(data)
    (folder / "manifest.json").write_bytes(seal(manifest))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (
            b"\x80\x04\x95\x1e\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
            "pickle",
        ),
        (b"PK\x03\x04" + b"\0" * 40, "zip"),
        (b"cposix\nsystem\n(S'true'\ntR.", "not a safetensors"),
        (b"", "not a safetensors"),
    ],
)
def test_other_content_is_refused_though_its_hash_agrees(
    two: Path, data: bytes, kind: str, golden: Golden
) -> None:
    forge(two / "rounds" / "00000002", data)
    with RunDirectory.open(two) as run, refused("E403") as fault:
        run.latest()
    golden(fault.value)
    assert kind in str(fault.value)


def test_a_commit_of_another_format_is_refused(two: Path, golden: Golden) -> None:
    forge(two / "rounds" / "00000002", b"", version=99)
    with refused("E402") as refusal:
        RunDirectory.open(two)
    golden(refusal.value)


FAULTS: dict[str, Callable[[int], Disk]] = {
    "no space": lambda at: Disk(raising(errno.ENOSPC), at),
    "error": lambda at: Disk(raising(errno.EIO), at),
    "short": ShortDisk,
    "death before": lambda at: DeadDisk(at, half=False),
    "death in the middle": DeadDisk,
    "death after": lambda at: DeadDisk(at, done=True),
}
"""What happens at a step; a write that fails is half done."""
OLD, NEW = ([("summary.json", text), ("clients/1.safetensors", text)] for text in (b"old", b"new"))


def results_of(path: Path) -> list[bytes] | None:
    """Return what the results of a run hold: None where they are not complete, [] if damaged."""
    found = damages(path)
    if found is None:
        return None
    return [Folder.open(path).read(name) for name, _ in OLD] if not found else []


@pytest.mark.parametrize("kind", FAULTS)
def test_every_failing_step_leaves_the_old_state_or_the_new(two: Path, kind: str) -> None:
    with RunDirectory.open(two) as run:
        run.write_results(OLD)
    before, after = [b"old", b"old"], [b"new", b"new"]
    disk, at = None, 0
    while disk is None or disk.count >= at:
        at, fault = at + 1, None
        path = shutil.copytree(two, two.parent / f"copy-{at}")
        with pytest.MonkeyPatch.context() as patch:
            disk = FAULTS[kind](at)
            disk.mount(patch.setattr)
            try:
                with RunDirectory.open(path) as run:
                    commit(run, 3)
                    run.write_results(NEW)
            except (MasqueradeError, Killed) as met:
                fault = met
        if isinstance(fault, MasqueradeError):
            assert fault.code == ("E501" if kind == "no space" else "E502")
        number = check(path, {2, 3})
        # A commit adds to the metrics, with which results are sealed.
        assert results_of(path) in ((None, before) if number == 2 else (None, [], after))
        assert number == 3 or fault is not None
        assert fault is None or kind != "short"
    assert at > 50
    publish(
        f"io-{kind.replace(' ', '-')}",
        "pytest tests/storage/test_run_directory.py -k every_failing_step",
        {"fault": kind, "steps at which it came": at - 1},
    )


def test_a_run_that_could_not_be_made_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(path: Path) -> None:
        RunDirectory.create(path, "rounds = 9\n").close()

    fault, at = None, 0
    while at == 0 or fault is not None:
        at += 1
        path = tmp_path / str(at)
        with monkeypatch.context() as patch:
            Disk(raising(errno.ENOSPC), at).mount(patch.setattr)
            fault = attempt(partial(make, path))
        assert fault is None or fault.code == "E501"
        if not (path / "config.toml").exists():
            assert "then: start again" in str(fault)
            make(path)
        check(path, {0})
    assert at > 20


def test_a_full_disk_says_which_round_is_intact(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDirectory.open(two) as run:
        Disk(raising(errno.ENOSPC), 2).mount(monkeypatch.setattr)
        with refused("E501") as fault:
            commit(run, 3)
        assert str(fault.value) == (
            "E501 Disk full writing checkpoint 3. Round 2 is intact. "
            f"Free space, then: masquerade resume {two}"
        )
        commit(run, 3)
    check(two, {3})


def test_all_is_synced_before_a_commit_gets_its_name(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace: list[str] = []

    class Recorder(Disk):
        def counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def step(*args: Any) -> Any:
                what = os.readlink(f"/proc/self/fd/{args[0]}") if name == "fsync" else args[0]
                trace.append(f"{name} {Path(what).name}" if name in ("fsync", "replace") else name)
                return real(*args)

            return step

    with RunDirectory.open(two) as run:
        Recorder(raising(errno.EIO), 0).mount(monkeypatch.setattr)
        commit(run, 3)
    order = [entry for entry in trace if entry.startswith(("fsync", "rename", "replace", "unlink"))]
    assert order == [
        "fsync .tmp-00000003-0.safetensors",
        "replace .tmp-00000003-0.safetensors",
        "fsync states",
        "fsync metrics.jsonl",
        "fsync state.safetensors",
        "fsync lines",
        "fsync manifest.json",
        "fsync .tmp-00000003",
        "replace .tmp-00000003",
        "fsync rounds",
        "unlink",
        "unlink",
        "unlink",
    ]


def test_a_committer_commits_in_order_and_all_before_it_closes(two: Path) -> None:
    with RunDirectory.open(two) as run:
        committer = Committer(run, every=0)
        for number in range(3, 8):
            assert committer.due()
            committer.submit(number, snapshot(number), {"number": number}, lines(number))
        committer.close()
    check(two, {7})


def test_a_committer_raises_what_its_thread_met(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDirectory.open(two) as run:
        committer = Committer(run)
        Disk(raising(errno.ENOSPC), 4).mount(monkeypatch.setattr)
        committer.submit(3, snapshot(3), {})
        with refused("E501"):
            committer.submit(4, snapshot(4), {})
        Disk(raising(errno.EIO), 4).mount(monkeypatch.setattr)
        committer.submit(5, snapshot(5), {})
        with refused("E502"):
            committer.close()


def test_a_commit_is_due_when_its_time_has_passed(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with RunDirectory.open(two) as run:
        committer = Committer(run, every=5)
        assert not committer.due()
        now = 105.0
        assert committer.due()
        committer.submit(3, snapshot(3), {})
        assert not committer.due()
        committer.close()


def test_a_run_survives_kills_deaths_races_and_orphans(tmp_path: Path) -> None:
    """All in one process, whose start takes longer than most of them."""
    command = [sys.executable, "-m", __name__, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def forked(work: Callable[[], None]) -> int:
    """Start work in a forked process and return its id; status 1 says that the work failed."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException as fault:
        print(repr(fault), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def end(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def drill_kills(path: Path) -> None:
    """Kill a process that commits without pause, 40 times at random instants."""
    RunDirectory.create(path, "rounds = 9\n").close()
    chance, number = random.Random(3), 0
    for _ in range(40):
        reading, writing = os.pipe()

        def work(out: int = writing) -> None:
            with RunDirectory.open(path) as run:
                os.write(out, b"ready\n")
                for each in range((run.last or 0) + 1, 100_000):
                    commit(run, each)
                    os.write(out, f"{each}\n".encode())

        child = forked(work)
        os.close(writing)
        with os.fdopen(reading) as told:
            assert told.readline() == "ready\n"
            heard = [number, *(int(told.readline()) for _ in range(chance.randrange(3)))]
            time.sleep(chance.random() * 0.03)
            os.kill(child, signal.SIGKILL)
            assert end(child) == -signal.SIGKILL
            newest = [*heard, *map(int, told.read().split())][-1]
        number = check(path, {newest, newest + 1})
    assert number > 20


def drill_deaths(path: Path) -> None:
    """Die before, and after, every single operation of opening and committing."""
    with RunDirectory.create(path / "two", "rounds = 9\n") as run:
        commit(run, 1)
        commit(run, 2)

    def before(name: str, real: Callable[[], Any]) -> None:
        os._exit(9)

    def after(name: str, real: Callable[[], Any]) -> None:
        real()
        os._exit(9)

    for fail in (before, after):
        status, at = 9, 0
        while status == 9:
            at += 1
            copy = shutil.copytree(path / "two", path / f"{fail.__name__}-{at}")
            disk = Disk(fail, at)

            def work(copy: Path = copy, disk: Disk = disk) -> None:
                disk.mount(setattr)
                with RunDirectory.open(copy) as run:
                    commit(run, 3)

            status = end(forked(work))
            check(copy, {2, 3})
        assert status == 0
        assert at > 30


def drill_races(path: Path) -> None:
    """Let two processes open one run at once: one gets it, the other is told who has it."""
    RunDirectory.create(path, "rounds = 9\n").close()
    for _ in range(30):
        gate, opening = os.pipe()

        def work(gate: int = gate) -> None:
            os.read(gate, 1)
            try:
                RunDirectory.open(path)
            except MasqueradeError as fault:
                os._exit(4 if fault.code == "E404" else 1)
            time.sleep(60)

        children = forked(work), forked(work)
        os.write(opening, b"go")
        loser, status = os.wait()
        assert os.waitstatus_to_exitcode(status) == 4
        (winner,) = set(children) - {loser}
        os.kill(winner, signal.SIGKILL)
        end(winner)
        RunDirectory.open(path).close()
        os.close(gate)
        os.close(opening)


def drill_orphans(path: Path) -> None:
    """Kill a run whose forked worker lives on: the worker must not keep the lock."""
    RunDirectory.create(path, "rounds = 9\n").close()
    reading, writing = os.pipe()

    def tell_and_stay() -> None:
        os.write(writing, b"%d\n" % os.getpid())
        time.sleep(60)

    def work() -> None:
        with RunDirectory.open(path):
            forked(tell_and_stay)
            time.sleep(60)

    child = forked(work)
    worker = int(os.read(reading, 20))
    try:
        assert attempt(lambda: RunDirectory.open(path).close()) is not None
        os.kill(child, signal.SIGKILL)
        end(child)
        RunDirectory.open(path).close()
    finally:
        os.kill(worker, signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for drill in (drill_kills, drill_deaths, drill_races, drill_orphans):
        drill(Path(sys.argv[1]) / drill.__name__)
