"""The tree of one session, declared in one place.

    ses-…               rest_for_one
    ├── session         temporary, significant: its end is the end of the tree
    ├── retry_scheduler
    ├── rule_matcher
    ├── stream_monitor
    └── tool_runner

A crash of the matcher takes the monitor along, so no stream goes on unwatched. Nobody
depends on the runner, so it is the last: its crash costs the calls that run, and no more.
"""

from collections.abc import Mapping

import msgspec

from midstream.actors.abort_latch import AbortLatch
from midstream.actors.address import Address
from midstream.actors.announcer import AnnouncerMessage
from midstream.actors.dispatch_gate import DispatchGate
from midstream.actors.ledger_messages import LedgerMessage
from midstream.actors.open_calls import Message as RunnerMessage
from midstream.actors.open_calls import ToolLimits
from midstream.actors.outcome import Outcome
from midstream.actors.retry_scheduler import RetryScheduler, SchedulerMessage
from midstream.actors.rule_matcher import MatcherMessage, RuleMatcher
from midstream.actors.session import Neighbours, Session, SessionMessage
from midstream.actors.stop_latch import StopLatch
from midstream.actors.stream_monitor import MonitorMessage, StreamMonitor
from midstream.actors.submit import Prompt, Submit
from midstream.actors.tool_runner import RunnableTool, ToolRunner, ToolRunnerMessage
from midstream.actors.turn_settings import TurnSettings
from midstream.actors.work_probe import WorkProbeMessage
from midstream.messages.enrolment import Enrolment
from midstream.providers.provider import Provider
from midstream.rules.policy import PolicySettings
from midstream.rules.rule_set import RuleSet
from midstream.rules.watch import NewArguments, Watch
from midstream.supervisors.child_spec import ActorSpec
from midstream.supervisors.restart import Intensity, Restart, Strategy
from midstream.supervisors.supervisor import Supervisor

SESSION_INTENSITY = Intensity(max_restarts=3, within_s=10.0)
"""Crashes of its helpers that a session survives."""

SESSION_MAILBOX_CAPACITY = 256
"""Batches that may wait for a session before its stream is slowed down."""

SESSION_SHUTDOWN_S = 10.0
"""Seconds in which a session that is stopped has to write its record."""


class Watching(msgspec.Struct, frozen=True):
    """What a session is watched by."""

    rule_set: RuleSet
    policy: PolicySettings
    new_arguments: NewArguments
    passage_cap_chars: int


class Tools(msgspec.Struct, frozen=True):
    """The tools of a session: those that are run, by name, and those that the host answers."""

    run: Mapping[str, RunnableTool]
    host: frozenset[str]
    limits: ToolLimits


class SessionTree(msgspec.Struct, frozen=True):
    """A session that is ready to be started: its supervisor, and whom to talk to."""

    supervisor: Supervisor
    session: Address[SessionMessage]
    tools: Address[ToolRunnerMessage]
    stop: StopLatch


def session_tree(
    enrolment: Enrolment,
    *,
    settings: TurnSettings,
    prompt: Prompt,
    submit: Submit,
    provider: Provider,
    watching: Watching,
    tools: Tools,
    work: Address[WorkProbeMessage],
    ledger: Address[LedgerMessage],
    announcer: Address[AnnouncerMessage],
    gate: DispatchGate,
    outcome: Outcome,
) -> SessionTree:
    """The tree of one session. Nothing of it runs yet."""
    aborts, stop = AbortLatch(), StopLatch()
    # The actors refer to each other, so the addresses come first.
    session: ActorSpec[SessionMessage] = ActorSpec(
        "session",
        lambda: Session(enrolment, settings, prompt, submit, neighbours, outcome),
        restart=Restart.TEMPORARY,
        significant=True,
        shutdown_s=SESSION_SHUTDOWN_S,
        mailbox_capacity=SESSION_MAILBOX_CAPACITY,
    )
    scheduler: ActorSpec[SchedulerMessage] = ActorSpec(
        "retry_scheduler", lambda: RetryScheduler(session.address)
    )
    matcher: ActorSpec[MatcherMessage] = ActorSpec(
        "rule_matcher",
        lambda: RuleMatcher(
            Watch(watching.rule_set, watching.new_arguments, watching.passage_cap_chars),
            watching.policy,
            session.address,
            aborts,
        ),
    )
    monitor: ActorSpec[MonitorMessage] = ActorSpec(
        "stream_monitor",
        lambda: StreamMonitor(provider, matcher.address, session.address, gate, aborts, stop),
    )
    runner: ActorSpec[RunnerMessage] = ActorSpec(
        "tool_runner", lambda: ToolRunner(tools.run, tools.host, tools.limits, session.address)
    )
    neighbours = Neighbours(
        aborts=aborts,
        monitor=monitor.address,
        matcher=matcher.address,
        scheduler=scheduler.address,
        tools=runner.address,
        work=work,
        ledger=ledger,
        announcer=announcer,
    )
    supervisor = Supervisor(
        enrolment.session_id,
        [session, scheduler, matcher, monitor, runner],
        strategy=Strategy.REST_FOR_ONE,
        intensity=SESSION_INTENSITY,
        restart=Restart.TEMPORARY,
    )
    return SessionTree(supervisor, session.address, runner.address, stop)
