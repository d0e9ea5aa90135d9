"""A worker answers over a socket, one call after the other, whatever comes."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from masquerade.deploy import worker


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A worker that turns round what it is told, and does not like to be told nothing."""

    def answer(data: bytes) -> bytes:
        if not data:
            raise ValueError("nothing was said")
        time.sleep(0.2 if data == b"slow" else 0.0)
        return data[::-1]

    with listening(tmp_path / "worker", answer) as found:
        yield found


class listening:
    """A worker in a thread, which ends with the test."""

    def __init__(self, path: Path, answer: Callable[[bytes], bytes]) -> None:
        self.path, self.answer = path, answer
        self.socket = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Path:
        self.socket.bind(str(self.path))
        self.socket.listen(16)
        threading.Thread(target=self.serve, daemon=True).start()
        return self.path

    def serve(self) -> None:
        with suppress(OSError):
            worker.serve(self.socket, self.answer)

    def __exit__(self, *rest: object) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def test_what_is_asked_is_answered(path: Path) -> None:
    assert worker.ask(str(path), b"abc", 5.0) == b"cba"
    large = bytes(range(256)) * 20000
    assert worker.ask(str(path), large, 30.0) == large[::-1]


def test_an_error_of_the_worker_is_the_askers(path: Path) -> None:
    with pytest.raises(RuntimeError, match="nothing was said"):
        worker.ask(str(path), b"", 5.0)
    assert worker.ask(str(path), b"abc", 5.0) == b"cba"


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 9, b"\x00" + b"\xff" * 8, b"\x00" * 8])
def test_a_worker_outlives_whoever_says_nonsense_or_goes_away(path: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as to:
        to.connect(str(path))
        to.sendall(data)
    assert worker.ask(str(path), b"abc", 5.0) == b"cba"


def test_a_worker_outlives_whoever_does_not_wait_for_the_answer(path: Path) -> None:
    with pytest.raises(TimeoutError):
        worker.ask(str(path), b"slow", 0.05)
    assert worker.ask(str(path), b"abc", 5.0) == b"cba"


def test_a_worker_refuses_data_that_it_cannot_read_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.csv").write_text("age,ward,outcome\n" + "1,a,yes\n2,b,no\n" * 9)
    for name, label, code in (("gone.csv", "outcome", "E3"), ("own.csv", "disease", "E3")):
        (tmp_path / "data.toml").write_text(f'[data]\nname = "{name}"\nlabel_column = "{label}"\n')
        with pytest.raises(SystemExit) as ended:
            worker.main(tmp_path, -1)
        assert ended.value.code == worker.REFUSED
        said = capsys.readouterr().out
        assert said.startswith(code)
        # All rows are this client's: `join` has no option for a column of clients.
        assert "--client" not in said


def test_calls_are_answered_one_after_the_other(path: Path) -> None:
    begun, answers = time.monotonic(), []
    threads = [
        threading.Thread(target=lambda: answers.append(worker.ask(str(path), b"slow", 5.0)))
        for _ in range(3)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert answers == [b"wols"] * 3
    assert time.monotonic() - begun >= 0.6
