"""Let Atheris look for bytes that the decoder does not refuse as it should.

    python -m pip install atheris
    python -m attacks.fuzz_decode -runs=1000000

The first byte says who receives the rest, which is read as it is, and as what follows a header that
fits. What is read must be the only way to write it; whatever is raised but E605 is a fault.
"""

import sys

import atheris

with atheris.instrument_imports(include=["masquerade.wire"]):
    from masquerade.wire import codec as codec

from tests.wire.parts import HEADER, forged
from tests.wire.samples import SAMPLES
from tests.wire.test_hostile import survives

RECEIVERS = list(SAMPLES.values())


def read(data: bytes) -> None:
    """Read bytes as one of the receivers."""
    if data:
        receiver = RECEIVERS[data[0] % len(RECEIVERS)]
        survives(receiver, data[1:])
        survives(receiver, forged(receiver.encode()[:HEADER] + data[1:]))


if __name__ == "__main__":
    atheris.Setup(sys.argv, read)
    atheris.Fuzz()
