"""Looking inside a trained model: observation, diagnostics, inversion."""
