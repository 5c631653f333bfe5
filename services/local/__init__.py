"""The whole stack as processes of this machine, and the `tokenpath` command."""
