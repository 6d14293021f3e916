"""A simulated prefill/decode engine with real page tables and switchable faults."""
