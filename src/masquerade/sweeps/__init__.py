"""Hyperparameter sweeps: trials on validation data, the best of which becomes a configuration."""
