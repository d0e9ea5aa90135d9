"""Federations of real clients: each where its data are."""
