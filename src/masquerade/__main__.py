"""The command `masquerade`, which `python -m masquerade` is too.

It can be stopped from its first line on: the rest of the package takes a while to be imported.
"""

import os
import signal
import sys

from masquerade.cli import STATUS_WHEN_STOPPED


def main() -> None:
    """Import the command and run it."""
    for each in STATUS_WHEN_STOPPED:
        signal.signal(each, _end)
    from masquerade.cli.app import main as command

    command()


def _end(number: int, frame: object) -> None:
    # An exception would go through modules that are half imported, and some would keep it.
    print("Stopped at your request. Nothing had been started.", file=sys.stderr, flush=True)
    os._exit(STATUS_WHEN_STOPPED[number])


if __name__ == "__main__":
    main()
