"""Records of runs and evaluations, and the pages made from them."""
