"""What operators see: logs, metrics, traces, probes."""
