"""Ports of the loopback that nobody listens at."""

import socket


def free_ports(count: int) -> list[int]:
    """Return some, all different."""
    opened = [socket.socket() for _ in range(count)]
    for each in opened:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    return ports
