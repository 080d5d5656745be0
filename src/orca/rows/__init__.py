"""Rows: bytes of tables. Arrow columns and numpy arrays, rows spooled to a file, trees of arrays."""
