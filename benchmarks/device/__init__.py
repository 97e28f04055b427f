"""What `benchmarks.gpu` measures on a device, one part a module."""
