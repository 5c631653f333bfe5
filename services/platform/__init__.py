"""What every service shares: settings, RPC, telemetry, discovery. Imports nothing of ours but the stubs."""
