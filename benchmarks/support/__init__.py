"""What several benchmarks share: rows, pairs, servers, load, models and inputs."""
