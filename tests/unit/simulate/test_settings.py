import pytest

from gateway.simulate.settings import SimulateSettings


def test_the_incidents_own_numbers():
    settings = SimulateSettings(context=1_048_576, prefill_pool=681_280, decode_pool=4_000_000)
    assert settings.max_req_input_len("prefill") == 681_274
    assert settings.max_req_input_len("decode") == 1_048_570
    assert settings.max_prompt_tokens == 681_273


def test_the_smaller_leg_decides_and_pools_are_whole_pages():
    settings = SimulateSettings(context=10_000, prefill_pool=4_000, decode_pool=2_100)
    assert settings.pool("decode") == 2_048
    assert settings.max_prompt_tokens == 2_041


@pytest.mark.parametrize("bad", [{"page_size": 0}, {"prefill_pool": 63}, {"context": 3}])
def test_impossible_sizes_are_refused(bad: dict[str, int]):
    with pytest.raises(ValueError, match="at least"):
        SimulateSettings(**bad)
