"""Which client has which key, and under which number its node is known to the carrier."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from masquerade.storage import atomic


@dataclass
class Nodes:
    """The file that maps numbers of nodes to names of clients; read anew when it changes."""

    path: Path
    _stamp: tuple[int, int] = (0, 0)
    _names: dict[int, str] | None = None

    def names(self) -> dict[int, str]:
        """Return the names of clients by the numbers of their nodes."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return {}
        stamp = found.st_mtime_ns, found.st_ino
        if self._names is None or stamp != self._stamp:
            self._names, self._stamp = {}, stamp
            # Whoever registers keys learns damaged ones anew.
            with suppress(ValueError, AttributeError):
                record = json.loads(self.path.read_text(encoding="utf-8"))
                self._names = {int(node): str(name) for node, name in record.items()}
        return self._names

    def write(self, names: dict[int, str]) -> None:
        """Write the names of clients by the numbers of their nodes."""
        record = {str(node): name for node, name in sorted(names.items())}
        atomic.write_file(self.path, json.dumps(record, indent=1).encode())
