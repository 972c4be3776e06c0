"""The `flowtempo` command: `main` finds the command, `parsing` turns its signature into arguments."""
