"""Classic: parts of older APIs that are more than a name, written on the core."""
