"""Per-tenant limits: one algorithm, thin stores."""
