"""Classic: what older programs need beyond a name, written on the core."""
