"""What lies in the dead-letter queue: typed envelopes, each complete in itself.

A step is what the Ledger could not write for a session of its own; a report is the end of a
session outside that nobody took. The type is in the JSON (`kind`), so a file is never taken
for something else (spec/animator.md B4), and the key makes a step that was written after
all, or is in two queues, arrive once.
"""

import msgspec

from midstream.messages.enrolment import Enrolment
from midstream.messages.session_reports import RecordReport
from midstream.messages.work import Recording


class Envelope(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all envelopes."""


class StepEnvelope(Envelope, frozen=True, kw_only=True, tag="step"):
    """One step of a session, as it was asked to be written at the timestamp `at`."""

    enrolment: Enrolment
    step: int
    at: str
    recording: Recording

    @property
    def session_id(self) -> str:
        return self.enrolment.session_id

    @property
    def key(self) -> str:
        """Its idempotency key: owners count their steps, each from 1."""
        return f"{self.session_id}/{self.enrolment.fence.token}/{self.step}"

    @property
    def name(self) -> str:
        """Names sort in the order in which the steps of a session have to be written."""
        return f"{self.session_id}-{self.enrolment.fence.token:06}-{self.step:06}"


class ReportEnvelope(Envelope, frozen=True, kw_only=True, tag="session-record"):
    """The end of a session outside."""

    report: RecordReport

    @property
    def session_id(self) -> str:
        return self.report.session_id

    @property
    def key(self) -> str:
        return self.report.key

    @property
    def name(self) -> str:
        return self.session_id


AnyEnvelope = StepEnvelope | ReportEnvelope
