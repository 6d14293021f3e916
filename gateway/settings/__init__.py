"""The configuration: parsed once to typed, frozen settings, with every fault told at once."""

from gateway.settings.explain import explain
from gateway.settings.models import (
    Backend,
    BackendLimit,
    Settings,
)
from gateway.settings.parse import for_backend, parse, with_addresses
from gateway.settings.problems import Problem, SettingsError
from gateway.settings.sources import NoSecrets, SecretSource
from gateway.settings.tenants import Policy, Quotas, Tenant, TenantKey
from gateway.settings.units import HostPort

__all__ = [
    "Backend",
    "BackendLimit",
    "HostPort",
    "NoSecrets",
    "Policy",
    "Problem",
    "Quotas",
    "SecretSource",
    "Settings",
    "SettingsError",
    "Tenant",
    "TenantKey",
    "explain",
    "for_backend",
    "parse",
    "with_addresses",
]
