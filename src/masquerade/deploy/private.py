"""Files and folders that their owner alone can read."""

from pathlib import Path

from masquerade.storage import atomic


def private_folder(path: Path) -> Path:
    """Make a folder, unless it is there, that nobody else can enter."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_private(path: Path, data: bytes) -> None:
    """Write a file that nobody else can read, at no instant either."""
    atomic.write_file(path, data, private=True)
