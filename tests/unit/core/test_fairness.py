"""Fair turns: order, room, places, and the estimate of a wait."""

from __future__ import annotations

import pytest

from gateway.core.fairness import REQUEST_COST, Bounds, FairQueue, Pace, Reason, State, Ticket

LARGE = 100_000


def queue(
    requests: int | None = 1,
    prompt_tokens: int | None = None,
    *,
    waiting: int = 1000,
    each: int | None = None,
) -> FairQueue:
    return FairQueue(Bounds(requests, prompt_tokens, waiting, each))


def served_in_turn(fair: FairQueue, running: list[Ticket]) -> list[Ticket]:
    """Let what runs end, one after another, until nothing waits: the order of those let in."""
    order = []
    while running:
        fair.leave(running.pop(0))
        admitted = fair.admit()
        order += admitted
        running += admitted
    return order


def test_with_room_everyone_runs_at_once() -> None:
    fair = queue(requests=2)
    first = fair.join("a", 1.0, 10)
    assert fair.admit() == [first]
    second = fair.join("a", 1.0, 10)
    assert fair.admit() == [second]
    third = fair.join("a", 1.0, 10)
    assert fair.admit() == []
    assert (first.state, third.state) == (State.RUNNING, State.WAITING)
    fair.leave(second)
    assert fair.admit() == [third]


def test_first_in_first_out_within_a_tenant() -> None:
    fair = queue()
    tickets = [fair.join("a", 1.0, tokens) for tokens in (5, LARGE, 1, 700)]
    assert fair.admit() == tickets[:1]
    assert served_in_turn(fair, tickets[:1]) == tickets[1:]


def test_long_prompts_of_one_do_not_starve_anothers_short_ones() -> None:
    fair = queue()
    long = [fair.join("a", 1.0, LARGE) for _ in range(20)]
    fair.admit()
    short = [fair.join("b", 1.0, 100) for _ in range(50)]
    order = served_in_turn(fair, long[:1])
    # b waits for the one long prompt that ran, and its 50 cost less than a's next.
    assert order[:50] == short
    assert order[50:] == long[1:]


def test_shares_follow_weights() -> None:
    fair = queue()
    running = fair.join("x", 1.0, 0)
    fair.admit()
    heavy = {fair.join("heavy", 3.0, 1000) for _ in range(300)}
    _ = [fair.join("light", 1.0, 1000) for _ in range(300)]
    order = served_in_turn(fair, [running])[:200]
    assert 149 <= sum(ticket in heavy for ticket in order) <= 151


def test_a_tenant_that_comes_late_gets_its_share_from_then_on_and_no_arrears() -> None:
    fair = queue()
    running = fair.join("a", 1.0, 1000)
    fair.admit()
    _ = [fair.join("a", 1.0, 1000) for _ in range(100)]
    for _ in range(50):
        fair.leave(running)
        [running] = fair.admit()
    late = {fair.join("b", 1.0, 1000) for _ in range(50)}
    order = served_in_turn(fair, [running])[:20]
    assert 9 <= sum(ticket in late for ticket in order) <= 11


def test_time_away_earns_no_credit() -> None:
    fair = queue()
    away = fair.join("a", 1.0, 1000)
    running = fair.join("b", 1.0, 1000)
    assert fair.admit() == [away]
    _ = [fair.join("b", 1.0, 1000) for _ in range(100)]
    fair.leave(away)
    [running] = fair.admit()
    for _ in range(50):
        fair.leave(running)
        [running] = fair.admit()
    back = {fair.join("a", 1.0, 1000) for _ in range(50)}
    order = served_in_turn(fair, [running])[:20]
    assert 9 <= sum(ticket in back for ticket in order) <= 11


def test_after_a_time_with_nothing_to_do_all_are_equal() -> None:
    fair = queue()
    for _ in range(5):
        fair.leave(fair.join("a", 1.0, LARGE))
    running = fair.join("x", 1.0, 1)
    fair.admit()
    first, second = fair.join("a", 1.0, 10), fair.join("b", 1.0, 10)
    assert served_in_turn(fair, [running]) == [first, second]


def test_tokens_in_flight_are_bounded() -> None:
    fair = queue(requests=None, prompt_tokens=1000)
    first, second = fair.join("a", 1.0, 600), fair.join("b", 1.0, 400)
    third = fair.join("c", 1.0, 1)
    assert fair.admit() == [first, second]
    assert fair.running_tokens == 1000
    fair.leave(second)
    assert fair.admit() == [third]


def test_a_prompt_over_the_whole_capacity_runs_alone() -> None:
    fair = queue(requests=None, prompt_tokens=1000)
    small, giant, after = (fair.join("a", 1.0, tokens) for tokens in (10, 5000, 10))
    assert fair.admit() == [small]
    fair.leave(small)
    assert fair.admit() == [giant]
    fair.leave(giant)
    assert fair.admit() == [after]


def test_nothing_passes_what_waits_for_room() -> None:
    fair = queue(requests=None, prompt_tokens=1000)
    running = fair.join("a", 1.0, 500)
    fair.admit()
    large, small = fair.join("b", 1.0, 900), fair.join("b", 1.0, 10)
    assert fair.admit() == []
    fair.leave(running)
    assert fair.admit() == [large, small]


def test_one_that_leaves_before_its_turn_costs_its_tenant_nothing() -> None:
    fair = queue()
    running = fair.join("x", 1.0, 1)
    fair.admit()
    gone = fair.join("a", 1.0, LARGE)
    stays, other = fair.join("a", 1.0, 10), fair.join("b", 1.0, 10)
    fair.leave(gone)
    assert served_in_turn(fair, [running]) == [stays, other]


def test_one_whose_only_request_left_does_not_hold_up_others() -> None:
    fair = queue()
    running = fair.join("x", 1.0, 1)
    fair.admit()
    gone, stays = fair.join("a", 1.0, 10), fair.join("b", 1.0, 10)
    fair.leave(gone)
    fair.leave(running)
    assert fair.admit() == [stays]


def test_a_place_is_given_up_once() -> None:
    fair = queue()
    first, second = fair.join("a", 1.0, 10), fair.join("a", 1.0, 10)
    fair.admit()
    for _ in range(3):
        fair.leave(first)
    assert (fair.running, fair.running_tokens, fair.waiting) == (0, 0, 1)
    assert fair.admit() == [second]
    fair.leave(second)
    assert (fair.running, fair.running_tokens, fair.waiting) == (0, 0, 0)


# --- places -----------------------------------------------------------------------------------


def filled(fair: FairQueue, **waiting: int) -> dict[str, list[Ticket]]:
    fair.join("running", 1.0, 1)
    fair.admit()
    return {name: [fair.join(name, 1.0, 1) for _ in range(n)] for name, n in waiting.items()}


def test_there_is_no_excess_while_there_are_places() -> None:
    fair = queue(waiting=3, each=3)
    assert fair.excess(filled(fair, a=3)["a"][-1]) is None


def test_a_tenants_own_bound_turns_its_newcomer_away() -> None:
    fair = queue(each=2)
    newcomer = filled(fair, b=1, a=3)["a"][-1]
    assert fair.excess(newcomer) == (newcomer, Reason.MAX_WAITING_PER_TENANT)


def test_in_a_full_queue_who_has_most_waiting_gives_up_its_last() -> None:
    fair = queue(waiting=5)
    tickets = filled(fair, a=5, b=1)
    assert fair.excess(tickets["b"][-1]) == (tickets["a"][-1], Reason.MAX_WAITING)


def test_at_equal_lengths_the_newcomer_goes() -> None:
    fair = queue(waiting=3)
    newcomer = filled(fair, a=2, b=2)["b"][-1]
    assert fair.excess(newcomer) == (newcomer, Reason.MAX_WAITING)


def test_places_follow_weights() -> None:
    fair = queue(waiting=7)
    fair.join("running", 1.0, 1)
    fair.admit()
    _ = [fair.join("heavy", 10.0, 1) for _ in range(5)]
    light = [fair.join("light", 1.0, 1) for _ in range(3)]
    assert fair.excess(light[-1]) == (light[-1], Reason.MAX_WAITING)


# --- how long ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("tenant", "weight"), [("b", 1.0), ("b", 4.0), ("a", 1.0), ("new", 1.0)])
def test_what_is_ahead_is_what_is_let_in_before(tenant: str, weight: float) -> None:
    def scene() -> tuple[FairQueue, Ticket]:
        fair = queue()
        running = fair.join("x", 1.0, 1)
        fair.admit()
        for tokens in (3000, 500, 40, 8000):
            fair.join("a", 1.0, tokens)
        for tokens in (100, 2000):
            fair.join("b", weight, tokens)
        return fair, running

    fair, running = scene()
    probe = fair.join(tenant, weight, 0)
    order = served_in_turn(fair, [running])
    before = sum(ticket.cost for ticket in order[: order.index(probe)])
    fair, _ = scene()
    turned_away = fair.join(tenant, weight, 0)
    fair.leave(turned_away)
    # Costs are whole requests; the estimate may cut into one of another tenant's.
    assert before - 8000 - REQUEST_COST <= fair.ahead_of_next(turned_away) <= before


def test_pace_is_the_cost_over_the_time_in_which_requests_waited() -> None:
    pace = Pace()
    assert pace.seconds_for(100) is None
    pace.start(50.0)
    pace.finished(1000, 51.0)
    assert pace.seconds_for(500) == pytest.approx(0.5)
    pace.start(1000.0)  # what lay between was no work
    pace.finished(1000, 1001.0)
    assert pace.seconds_for(500) == pytest.approx(0.5)


def test_pace_follows_what_changes() -> None:
    pace = Pace()
    pace.start(0.0)
    for second in range(1, 100):
        pace.finished(1000, float(second))
    for second in range(110, 1010, 10):
        pace.finished(1000, float(second))
    assert pace.seconds_for(1000) == pytest.approx(10, rel=0.05)
