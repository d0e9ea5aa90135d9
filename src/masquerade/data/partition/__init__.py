"""How samples are spread over clients: by label skew (Dirichlet, shards), by a paper's rule."""
