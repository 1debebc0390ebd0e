"""Runs against each other: two, a grid, a search, and their store."""
