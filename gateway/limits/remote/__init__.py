"""Quotas in Redis or Valkey, counted together by every process that names the same server."""
