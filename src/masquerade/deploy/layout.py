"""Where things are in the folders of a server and of a client."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServerFolder:
    """The folder of a federation, at its server."""

    path: Path

    @property
    def settings(self) -> Path:
        """What is trained, by whom: the operator's file."""
        return self.path / "federation.toml"

    @property
    def keys(self) -> Path:
        """The authority, the server's certificates, and clients' public keys."""
        return self.path / "keys"

    @property
    def clients(self) -> Path:
        """A public key for every client, by its name."""
        return self.keys / "clients"

    @property
    def state(self) -> Path:
        """What the carrier keeps: database, numbers of nodes, logs, processes."""
        return self.path / "carrier"

    @property
    def nodes(self) -> Path:
        """Numbers of nodes and the names of their clients."""
        return self.state / "nodes.json"

    @property
    def outcome(self) -> Path:
        """How the last run of the server's part ended."""
        return self.state / "outcome.json"

    @property
    def restarts(self) -> Path:
        """How often the server's part was started in vain."""
        return self.state / "restarts.json"

    @property
    def traffic(self) -> Path:
        """What passed the gate, by client."""
        return self.state / "traffic.json"

    @property
    def database(self) -> Path:
        """What SuperLink has to know after a restart."""
        return self.state / "superlink.db"

    @property
    def flower_home(self) -> Path:
        """What Flower's commands read and write."""
        return self.state / "flwr"

    @property
    def app(self) -> Path:
        """The app that Flower ships to nodes."""
        return self.state / "app"

    def join_file(self, name: str) -> Path:
        """Return the file by which a client joins."""
        return self.path / f"{name}.join"

    def certificate(self, name: str) -> tuple[Path, Path]:
        """Return a certificate and its key: of the "ca", the "server" or the "loopback"."""
        return self.keys / f"{name}.crt", self.keys / f"{name}.key"


@dataclass(frozen=True)
class ClientFolder:
    """The folder of a client, where its data are."""

    path: Path

    @property
    def joined(self) -> Path:
        """The file by which it joined."""
        return self.path / "join.toml"

    @property
    def users(self) -> Path:
        """Under whom its processes run."""
        return self.path / "users.toml"

    @property
    def member(self) -> Path:
        """What its worker has: where its data are, its states, its models."""
        return self.path / "member"

    @property
    def data(self) -> Path:
        """Where its data are."""
        return self.member / "data.toml"

    @property
    def node(self) -> Path:
        """What its SuperNode has: the client's key, the server's certificate."""
        return self.path / "node"

    @property
    def key(self) -> Path:
        """The client's private key."""
        return self.node / "key"

    @property
    def authority(self) -> Path:
        """The certificate by which the server is known."""
        return self.node / "ca.crt"
