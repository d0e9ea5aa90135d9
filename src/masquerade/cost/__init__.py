"""What a run costs, read off what it does: bytes from messages, FLOPs from stages and masks."""
