"""Callbacks: those that tell of a fit, on a screen, in files or to a service."""
