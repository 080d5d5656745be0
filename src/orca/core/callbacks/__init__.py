"""Callbacks: what can hook into a run of any framework that has no callbacks of its own."""
