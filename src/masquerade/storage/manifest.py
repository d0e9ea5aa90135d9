"""Sealed manifests: JSON that is wrapped with its own hash, and lists the hashes of other files."""

import hashlib
import json
from typing import Any

from masquerade.results.json_records import parsed


def fingerprint(data: bytes) -> dict[str, int | str]:
    """Return the size and hash of a file, as manifests list them."""
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def seal(manifest: object) -> bytes:
    """Wrap a manifest with its own hash."""
    return _wrapped(json.dumps(manifest).encode())


def unseal(data: bytes) -> Any:
    """Return a manifest, or None where a bit differs; it is parsed only if none does."""
    body = data[len(_wrapped(b"")) - 2 : -2]
    if data != _wrapped(body):
        return None
    try:
        return parsed(body)
    except ValueError:
        # The hash agrees, but what it was made of never was a manifest.
        return None


def _wrapped(body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest().encode()
    return b'{"sha256": "%s", "manifest": %s}\n' % (digest, body)
