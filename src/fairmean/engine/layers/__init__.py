"""Every client's gradient from one pass, layer by layer."""
