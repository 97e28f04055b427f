"""Lower precisions of an fp32 graph: half and int8."""
