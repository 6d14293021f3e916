import pytest

from gateway.simulate.faults import Faults


def test_default_has_none():
    assert not any(getattr(Faults(), name) for name in Faults.names())


def test_named_switches_on_what_was_asked():
    assert Faults.named(["to_finish", "len_check"]) == Faults(to_finish=True, len_check=True)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown fault swaps; known are to_finish, len_check"):
        Faults.named(["swaps", "salt"])
