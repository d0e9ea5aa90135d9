"""What passed a gate, by client, as a file that outlives the server's process."""

import json
from dataclasses import asdict
from pathlib import Path

from masquerade.deploy.gate import Gate, Seen
from masquerade.storage import atomic


def read_traffic(path: Path) -> dict[str, Seen]:
    """Return what passed a gate before."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {name: Seen(**seen) for name, seen in record["clients"].items()}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}


def write_traffic(path: Path, gate: Gate) -> None:
    """Write what passed a gate, and what it refused."""
    record = {
        "clients": {name: asdict(seen) for name, seen in sorted(gate.seen.items())},
        "refused": dict(sorted(gate.refused.items())),
    }
    atomic.write_file(path, json.dumps(record).encode())
