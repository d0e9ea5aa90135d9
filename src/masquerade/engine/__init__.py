"""Who does the clients' work: one after another, or many at once; both run `client_round`."""
