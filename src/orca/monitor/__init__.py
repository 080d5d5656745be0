"""Monitor: what ranks tell the driver while they run: where they are, what they print, how they fail."""
