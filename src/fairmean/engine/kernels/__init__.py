"""What library kernels are slow at, by kernels of our own; each has a plain form that it equals."""
