"""Bad input of every kind for the command line: exit code 1 or 2, one line, nothing half-written."""
