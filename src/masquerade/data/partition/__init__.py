"""How samples are partitioned over clients: by label skew (Dirichlet, shards), by a paper."""
