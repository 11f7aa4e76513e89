"""The paper's tables and figures: its own numbers, the calibrated reproduction, and the evidence beyond it."""
