"""Sources: one kind of data each. They know nothing of frameworks; DataFrames and Ray Datasets know their home."""
