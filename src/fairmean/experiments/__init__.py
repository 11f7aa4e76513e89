"""Runs on disk: what a run is, its config and folder, one run, and many."""
