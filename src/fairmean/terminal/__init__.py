"""The command line: verbs, tables, progress."""
