"""Core: the contract that all engines, sources and frameworks share."""
