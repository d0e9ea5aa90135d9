"""The server: its round loop, its state, who takes part, and which updates it takes."""
