"""The Open Inference Protocol V2, with binary tensors and the repository extension."""
