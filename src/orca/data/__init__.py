"""Data outside of training: files, wherever they lie. Owns nothing itself; see file.py."""
