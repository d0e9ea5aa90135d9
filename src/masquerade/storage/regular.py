"""Files of others, read whole: regular ones of a bounded size, nothing that waits or has no end."""

import errno
import os
import stat
from pathlib import Path

LARGEST = 4 << 30
"""Bytes, at most, that something packed may say it has; more is no dataset of ours."""
_UNKNOWN = 1 << 20
MOST = 1 << 40
"""Bytes of a file, at most."""


def read_regular(path: Path, most: int = MOST, links: bool = True) -> bytes:
    """Return the content of a regular file; OSError says that it is none, or too long.

    Without `links` the path itself may be no symbolic link.
    """
    # A pipe that nobody writes to would be waited for. Windows has neither flag.
    flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    flags |= 0 if links else getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, os.O_RDONLY | flags), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        # Some files of the system say that they have no bytes, and have some.
        data = file.read(max(facts.st_size, _UNKNOWN) + 1) if facts.st_size <= most else b""
        if len(data) > most or facts.st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
        return data
