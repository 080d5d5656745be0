"""Core: what all engines, sources and frameworks share. Imports nothing of ours but `errors`."""
