"""The ways to compute a round of one run, each equal to the reference."""
