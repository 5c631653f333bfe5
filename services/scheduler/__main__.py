"""`python -m services.scheduler`."""

from services.scheduler.app import main

main()
