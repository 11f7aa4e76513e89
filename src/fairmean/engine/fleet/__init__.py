"""Many runs at once: stacked, or each replayed as a CUDA graph."""
