"""The simulated engine's HTTP endpoints, in the shapes SGLang 0.5.23 was seen to use."""
