"""Keys and certificates of a federation: an authority of its own, the server's, one key a client.

The authority signs two certificates of the server: one for the address that clients know, which is
renewed, and one for the loopback alone, behind the gate.
"""

import ipaddress
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from masquerade.errors import MasqueradeError

AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
WARN_DAYS = 30
"""A certificate that ends sooner is warned of."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
EARLIER = timedelta(hours=1)
"""Clients whose clocks are behind by less take a new certificate at once."""


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes


def new_authority(name: str) -> Certificate:
    """Return a new authority, which signs its own certificate."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _subject(f"Masquerade federation {name}")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    signed = (
        _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    return Certificate(signed.public_bytes(Encoding.PEM), _private_pem(key))


def new_server(
    authority: Certificate, hosts: Sequence[str], days: int = SERVER_DAYS
) -> Certificate:
    """Return a certificate for the names and addresses of a server."""
    signer = load_pem_private_key(authority.key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    signed = (
        _builder(_subject(hosts[0][:64]), issuer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(list(map(_name, hosts))), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA384())
    )
    return Certificate(signed.public_bytes(Encoding.PEM), _private_pem(key))


def hosts_of(certificate: bytes) -> tuple[str, ...]:
    """Return the names and addresses that a certificate is for."""
    names = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return tuple(str(name.value) for name in names.value)


def days_left(certificate: bytes) -> float:
    """Return in how many days a certificate ends; less than none where it has ended."""
    return days_until(x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp())


def days_until(end: float) -> float:
    """Return in how many days something is, of Unix time."""
    return (end - time.time()) / 86400


def new_client_key() -> bytes:
    """Return a client's new private key, as OpenSSH writes it."""
    key = ec.generate_private_key(ec.SECP384R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def public_key(private: bytes) -> bytes:
    """Return the public key of a client's private key, as OpenSSH writes it."""
    return client_key(private).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def told_public_key(text: bytes) -> bytes | None:
    """Return a client's public key as `public_key` writes it; None where a text is none."""
    try:
        key = load_ssh_public_key(text)
    except (ValueError, UnsupportedAlgorithm):
        return None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return None
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def client_key(private: bytes) -> ec.EllipticCurvePrivateKey:
    """Read a client's private key; refuse what is none."""
    try:
        key = load_ssh_private_key(private, password=None)
    except ValueError as fault:
        raise MasqueradeError("E621", f"this is no client's private key ({fault})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise MasqueradeError("E621", "a client's key is an elliptic-curve key; this is another")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
