"""Monitor: messages of ranks to the driver while they run: progress, output, failures."""
