"""From a run to an artifact, in every precision; and which runtime serves it the fastest."""
