"""What the services themselves cost: time added to a request and to a token, and CPU a token."""
