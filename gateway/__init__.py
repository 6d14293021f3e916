"""poolgate: the edge gateway that no over-long prompt and no foreign text gets past."""

__version__ = "0.1.0"
