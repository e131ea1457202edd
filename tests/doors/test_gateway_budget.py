"""What the gateway starts by itself for one request draws on one budget, whatever it is for."""

import pytest
from gateway_streams import STREAMS
from gateway_world import gateway_rules, rule
from msgspec.structs import replace

from midstream.actors.turn_settings import PromptBudget
from midstream.doors.gateway_exchange import Exchange, Phase
from midstream.doors.gateway_protocols import WIRES
from midstream.rules.policy import PolicySettings

MANY = 20
"""More starts than any budget here allows, and as many cuts as the rule may cause."""

BUDGETS = pytest.mark.parametrize(
    ("budget", "attempts"),
    [
        (PromptBudget(max_restarts=0), 1),
        (PromptBudget(max_restarts=2), 3),
        (PromptBudget(max_s=10.0), 3),
        (PromptBudget(max_output_tokens=1), 1),
    ],
    ids=["none", "count", "time", "tokens"],
)
SECONDS_EACH = 4.0
"""What each attempt takes."""


class Course:
    """One request whose upstream is asked as long as the gateway asks it."""

    def __init__(self, path: str, budget: PromptBudget, *, may_continue: bool = False) -> None:
        policy = PolicySettings(max_retries_per_rule=MANY, max_retries_per_prompt=MANY)
        rules = replace(gateway_rules(rule("secret")), budget=budget, policy=policy)
        self.stream = STREAMS[path]
        self.exchange = Exchange(
            WIRES[path],
            rules,
            {},
            streams=True,
            recorded={},
            turn=1,
            now_s=0.0,
            may_continue=may_continue,
        )

    @property
    def now_s(self) -> float:
        return self.exchange.attempts * SECONDS_EACH

    def hear(self, text: str) -> None:
        self.exchange.begin()
        for piece in self.stream(text):
            self.exchange.feed(piece)
        if self.exchange.phase is Phase.STREAMING:
            self.exchange.end()


@BUDGETS
@pytest.mark.parametrize("path", STREAMS)
def test_retries_draw_on_the_budget(path: str, budget: PromptBudget, attempts: int) -> None:
    course = Course(path, budget)
    exchange = course.exchange
    said, request = b"", {}
    while request is not None and exchange.attempts < MANY:
        course.hear("It is secret")
        assert exchange.phase is Phase.CUT
        said, request = exchange.retry(course.now_s)
    assert exchange.attempts == attempts
    assert exchange.capped is not None
    assert exchange.capped.encode() in said


@BUDGETS
@pytest.mark.parametrize("path", STREAMS)
def test_follow_ups_draw_on_the_budget(path: str, budget: PromptBudget, attempts: int) -> None:
    course = Course(path, budget, may_continue=True)
    exchange = course.exchange
    course.hear("done so far")
    while exchange.spent_budget(course.now_s) is None and exchange.attempts < MANY:
        exchange.follow_up({})
        course.hear("done so far")
    assert exchange.attempts == attempts


@pytest.mark.parametrize("path", STREAMS)
def test_a_follow_up_that_is_repeated_draws_on_the_budget_again(path: str) -> None:
    course = Course(path, PromptBudget(max_restarts=3), may_continue=True)
    exchange = course.exchange
    course.hear("done so far")
    exchange.follow_up({})
    course.hear("")
    while exchange.spent_budget(0.0) is None and exchange.attempts < MANY:
        exchange.again()
        course.hear("")
    assert exchange.attempts == 4
