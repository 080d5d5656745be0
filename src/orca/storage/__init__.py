"""Storage: files here and on other machines, written whole or not at all."""
