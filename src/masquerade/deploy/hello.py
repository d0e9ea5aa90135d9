"""A client's first words to a server's gate: whether it is found, is itself, and knows the client.

Flower's nodes end without saying why they were refused. So a client asks before it starts one.
"""

import base64
import http.client
import ssl
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from masquerade import __version__
from masquerade.deploy.gate import HELLO, KEY, SIGNATURE, SIGNED_AT
from masquerade.deploy.keys import client_key
from masquerade.errors import MasqueradeError
from masquerade.results.json_records import from_json, parsed

SECONDS = 10.0


class Unreachable(Exception):
    """No server answers at an address, for now."""


@dataclass(frozen=True)
class Greeting:
    """What the gate says of its federation."""

    federation: str
    client: str
    version: str
    """Of Masquerade at the server."""
    ends: float = 0.0
    """When the server's certificate ends, in seconds of Unix time."""


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of an address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise MasqueradeError("E621", f"`{address}` is no address; it is written host:port")
    return host.strip("[]"), int(port)


def signed_headers(private: bytes) -> dict[str, str]:
    """Return the headers by which a client says who it is."""
    key = client_key(private)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    now = datetime.now(UTC).isoformat()
    signature = key.sign(now.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        KEY.decode(): base64.b64encode(public).decode(),
        SIGNATURE.decode(): base64.b64encode(signature).decode(),
        SIGNED_AT.decode(): now,
    }


def say_hello(address: str, authority: Path, private: bytes) -> Greeting:
    """Ask a gate who it is; refuse a server that is another, or that does not know the client."""
    host, port = split_address(address)
    connection = http.client.HTTPSConnection(
        host, port, timeout=SECONDS, context=ssl.create_default_context(cafile=str(authority))
    )
    try:
        connection.connect()
        ends = _end_of(connection)
        connection.request("POST", HELLO.decode(), body=b"", headers=signed_headers(private))
        answer = connection.getresponse()
        body = answer.read(1 << 16).decode(errors="replace").strip()
    except ssl.SSLCertVerificationError as fault:
        text = (
            f"the server at {address} cannot prove that it is the federation's: "
            f"{fault.verify_message}. If its address has changed, or its certificate has ended, "
            "its operator renews it (`masquerade deploy renew`)"
        )
        raise MasqueradeError("E624", text) from None
    except ssl.SSLError as fault:
        raise MasqueradeError("E624", f"{address} does not speak TLS ({fault.reason})") from None
    except (OSError, http.client.HTTPException) as fault:
        raise Unreachable(f"no server answers at {address} ({fault})") from None
    finally:
        connection.close()
    if answer.status in (429, 502, 503, 504):
        raise Unreachable(f"the server at {address} does not take calls now ({body})")
    if answer.status != 200:
        raise MasqueradeError("E624", f"the server at {address} refuses this client: {body}")
    try:
        greeting = from_json(Greeting, parsed(body))
    except ValueError:
        raise MasqueradeError("E624", f"{address} answers what no gate says") from None
    return replace(_checked(greeting, address), ends=ends)


def _end_of(connection: http.client.HTTPSConnection) -> float:
    """Return when the certificate ends that a server has shown."""
    assert isinstance(connection.sock, ssl.SSLSocket)
    shown = connection.sock.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))


def _checked(greeting: Greeting, address: str) -> Greeting:
    """Refuse a server of another version: messages are written as that version writes them."""
    if greeting.version != __version__:
        text = (
            f"the server at {address} has Masquerade {greeting.version}, this machine has "
            f"{__version__}; install the same version on both"
        )
        raise MasqueradeError("E625", text)
    return greeting
