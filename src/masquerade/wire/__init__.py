"""What crosses the wire: parts as bytes, and what need not be sent again."""

from masquerade.wire.codec import Same, decode, digest, encode, nbytes, values_bytes

__all__ = ["Same", "decode", "digest", "encode", "nbytes", "values_bytes"]
