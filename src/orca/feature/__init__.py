"""Feature: what happens to rows before a model sees them. preprocessing.py (tensors of columns), image.py (images)."""
