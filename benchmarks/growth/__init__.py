"""How cost grows: tenants, backends, prompt tokens, open streams, workers."""
