"""What crosses the wire: parts as bytes, and what need not be sent again."""

from masquerade.wire.codec import Stamp, decode, encode
from masquerade.wire.message_size import count, nbytes, values_bytes
from masquerade.wire.session import Same, Session, digest

__all__ = [
    "Same",
    "Session",
    "Stamp",
    "count",
    "decode",
    "digest",
    "encode",
    "nbytes",
    "values_bytes",
]
