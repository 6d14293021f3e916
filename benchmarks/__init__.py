"""Measurements of the gateway beside its peers. Nothing here is part of the product."""
