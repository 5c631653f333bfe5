"""One policy a file. To add one: write it, name it in registry.py, test it."""
