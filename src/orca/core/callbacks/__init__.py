"""Callbacks: hooks into a run of any framework that has no callbacks of its own."""
