"""FairMean in a PyTorch training loop of one's own: ranks as clients, groups in a batch, gradient accumulation."""
