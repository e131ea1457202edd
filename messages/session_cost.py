"""What a session has cost, as far as its record says (spec/animator.md 3.2, 5.4)."""

from midstream.messages.record import SessionRecord, Shape


class SessionCost(Shape, frozen=True, kw_only=True):
    """`cost_usd` is 0 where nobody has said; tokens are None, and absent in JSON, then."""

    cost_usd: float
    input_tokens: int | None = None
    output_tokens: int | None = None


def cost_of(record: SessionRecord) -> SessionCost:
    """The cost in `record`."""
    usage = record.token_usage
    return SessionCost(
        cost_usd=record.cost_usd or 0.0,
        input_tokens=usage.input_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
    )
