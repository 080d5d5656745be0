"""Storage: what is kept in files, here and on other machines, whole or not at all."""
