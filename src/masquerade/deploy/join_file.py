"""The file by which a client joins: where the server is, how to know it, and the client's own key.

It is a secret: whoever has it is that client.
"""

import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import tomli_w

from masquerade.deploy.keys import public_key
from masquerade.deploy.private import write_private
from masquerade.errors import MasqueradeError
from masquerade.storage.run_directory import check_name

HEAD = """\
# A secret: whoever has this file is this client. Bring it to the client's machine over a channel
# that you trust, then remove it from every other place. There:
#   masquerade deploy join {name}.join --data DATA
"""


@dataclass(frozen=True)
class JoinFile:
    """What a client needs to find a server, and to be known there."""

    federation: str
    name: str
    """The client's."""
    address: str
    """Of the server's gate: host:port."""
    authority: str
    """The certificate by which the server is known."""
    key: str
    """The client's private key."""

    def write(self, path: Path) -> None:
        """Write it so that its owner alone can read it."""
        text = HEAD.format(name=self.name) + tomli_w.dumps(asdict(self), multiline_strings=True)
        write_private(path, text.encode())

    @staticmethod
    def read(path: Path) -> "JoinFile":
        """Read one; refuse what is none."""
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise MasqueradeError("E621", f"there is no join file {path}") from None
        except (OSError, ValueError) as fault:
            raise MasqueradeError("E621", f"{path} cannot be read ({fault})") from None
        names = {each.name for each in fields(JoinFile)}
        values = {key: value for key, value in found.items() if isinstance(value, str)}
        if values.keys() != names:
            missing = ", ".join(sorted(names - values.keys())) or "nothing"
            text = f"{path} is no join file as `deploy init` writes it; it lacks {missing}"
            raise MasqueradeError("E621", text)
        joined = JoinFile(**values)
        # Both go into the name and the text of a systemd unit.
        for each in (joined.federation, joined.name):
            check_name(each)
        public_key(joined.key.encode())
        return joined
