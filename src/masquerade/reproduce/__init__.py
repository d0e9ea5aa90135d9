"""The papers' tables, reproducible by name: their runs, their results, their pages."""
