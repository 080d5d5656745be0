"""Engines: each starts n ranks together. They know nothing of frameworks."""
