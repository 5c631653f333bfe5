"""`python -m services.auth`."""

from services.auth.app import main

main()
