"""The instruments: what the theorems speak of, measured in a run."""
