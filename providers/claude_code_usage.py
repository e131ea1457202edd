"""What a run of Claude Code has consumed so far. Pure."""

import msgspec

from midstream.messages.usage import Usage
from midstream.providers.json_fields import count_of, number_of, object_of
from midstream.providers.ndjson import JsonObject


class RunUsage:
    """Adds up the messages of one run. The counts of one message are running totals."""

    def __init__(self) -> None:
        self._messages: dict[str, Usage] = {}

    def add(self, message_id: str, usage: object) -> Usage:
        """New figures of a message; the total with them."""
        given = {k: v for k, v in msgspec.structs.asdict(_usage(usage)).items() if v is not None}
        before = self._messages.get(message_id, Usage())
        self._messages[message_id] = msgspec.structs.replace(before, **given)
        return _sum(*self._messages.values())


def usage_of_result(result: JsonObject) -> Usage:
    """The figures of the whole run in its `result` line.

    When a run failed, `usage` may be all zeros although `modelUsage` knows better.
    """
    total = _usage(result.get("usage"))
    models = [_model_usage(each) for each in object_of(result.get("modelUsage")).values()]
    if models and not (total.input_tokens or total.output_tokens):
        total = _sum(*models)
    return msgspec.structs.replace(total, cost_usd=number_of(result.get("total_cost_usd")))


def _sum(*usages: Usage) -> Usage:
    total = Usage()
    for usage in usages:
        total = total.plus(usage)
    return total


def _usage(value: object) -> Usage:
    fields = object_of(value)
    return Usage(
        count_of(fields.get("input_tokens")),
        count_of(fields.get("output_tokens")),
        count_of(fields.get("cache_read_input_tokens")),
        count_of(fields.get("cache_creation_input_tokens")),
    )


def _model_usage(value: object) -> Usage:
    fields = object_of(value)
    return Usage(
        count_of(fields.get("inputTokens")),
        count_of(fields.get("outputTokens")),
        count_of(fields.get("cacheReadInputTokens")),
        count_of(fields.get("cacheCreationInputTokens")),
    )
