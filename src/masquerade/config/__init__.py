"""Settings: their names and bounds, TOML, and what a configuration resolves to."""
