"""Feature: preprocessing of rows for a model. preprocessing.py (tensors of columns), image.py (images)."""
