"""By what connections are counted, and how often they are looked at."""

import pytest

from gateway.core.connections import SHORTEST_SWEEP, SWEEP, ConnectionRules
from gateway.edge.connections import _network


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (("10.0.0.1", 5), ("10.0.0.1", 6), True),
        (("10.0.0.1", 5), ("10.0.0.2", 5), False),
        (("2001:db8::1", 5, 0, 0), ("2001:db8:0:0:ffff::2", 6, 0, 0), True),
        (("2001:db8::1", 5, 0, 0), ("2001:db8:0:1::1", 5, 0, 0), False),
        (("::ffff:10.0.0.1", 5, 0, 0), ("10.0.0.1", 6), True),
        (("::ffff:10.0.0.1", 5, 0, 0), ("::ffff:10.0.0.2", 5, 0, 0), False),
        (("fe80::1%eth0", 5, 0, 2), ("fe80::2%eth1", 5, 0, 3), True),
        ("", None, True),
    ],
)
def test_addresses_are_counted_as_customers_have_them(one, other, alike):
    assert (_network(one) == _network(other)) is alike


def test_sweeps_are_as_often_as_the_shortest_deadline_needs():
    assert ConnectionRules().sweep == SWEEP
    assert ConnectionRules(head=1.0).sweep == 0.25
    assert ConnectionRules(write_idle=0.4).sweep == 0.1
    assert ConnectionRules(head=0.001).sweep == SHORTEST_SWEEP
