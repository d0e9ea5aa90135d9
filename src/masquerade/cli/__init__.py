"""The command `masquerade`."""
