"""What gateways that share a store tell each other: standings, incidents, fingerprints.

Nothing here is on the request path. One task a process exchanges what changed, at once where
something began here, and every so often to hear of others.
"""
