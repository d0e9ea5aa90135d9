"""The command `masquerade`."""

import signal

STATUS_WHEN_STOPPED: dict[int, int] = {signal.SIGTERM: 75, signal.SIGINT: 130}
"""The exit status of a command that was stopped, by signal."""
