"""Units by which systemd keeps a server or a client running."""

import os
import sys
from pathlib import Path

UNIT = """\
# sudo cp {name}.service /etc/systemd/system/ && sudo systemctl enable --now {name}
[Unit]
Description=Masquerade: {what}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
WorkingDirectory={folder}
User={user}
# Flower's programs also end with status 0 when they lose each other.
Restart=always
RestartSec=12
TimeoutStopSec=60
KillMode=control-group
LimitNOFILE=8192
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""


def unit(name: str, what: str, words: list[str], folder: Path, user: str) -> str:
    """Return a unit that runs a command of ours in a folder."""
    command = " ".join(map(_quoted, [sys.executable, "-m", "masquerade", "deploy", *words]))
    return UNIT.format(
        name=name, what=what, command=command, folder=os.path.abspath(folder), user=user
    )


def _quoted(word: str) -> str:
    """Write a word as systemd reads it."""
    word = word.replace("%", "%%").replace("$", "$$")
    if word and not set(word) & set(" \t\"'\\;"):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
