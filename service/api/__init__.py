"""The routes: they read requests, ask predictions and jobs, and shape answers."""
