"""By which id the upstream knows a response that a client knows by another.

A Responses message that was continued bears the id of its first attempt, and the upstream
has kept the last one, which holds the whole conversation. A client that goes on with
`previous_response_id` names the first. Nor has the upstream kept the reasoning of an attempt
that was cut; a client that sends its items names it, and would be refused. The oldest are
forgotten; with a `document` the rest survives a restart.
"""

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from midstream.actors.state_document import StateDocument
from midstream.doors.gateway_wire import Json
from midstream.providers.json_fields import list_of, object_of

DOCUMENT_ID = "gateway-responses"
IDS_LIMIT = 500

_PAIRS = msgspec.json.Decoder(dict[str, str])


class ResponseIds:
    """See the module."""

    def __init__(self, document: StateDocument | None = None) -> None:
        self._document = document
        self._ids: OrderedDict[str, str] = OrderedDict()

    async def recall(self) -> None:
        """Read what an earlier run of this gateway knew."""
        if self._document is not None:
            self._ids.update(_decoded(await self._document.read()))

    async def learn(self, aliases: Mapping[str, str]) -> None:
        """Ids of the client, each with the upstream's, which is empty for what that has not
        kept."""
        if not aliases:
            return
        self._ids = _newest(self._ids, aliases)
        if self._document is not None:
            await self._document.change(lambda kept: _newest(_decoded(kept), aliases))

    def translated(self, body: Json) -> Json:
        """A request in the upstream's ids; the very same body where nothing changes."""
        known = body.get("previous_response_id")
        if isinstance(known, str) and self._ids.get(known):
            body = {**body, "previous_response_id": self._ids[known]}
        items = list_of(body.get("input"))
        kept = [item for item in items if not self._is_lost(object_of(item))]
        return body if len(kept) == len(items) else {**body, "input": kept}

    def _is_lost(self, item: Json) -> bool:
        """Whether an item is reasoning that the upstream can neither look up nor read."""
        if item.get("type") != "reasoning" or item.get("encrypted_content"):
            return False
        return item.get("status") == "incomplete" or self._ids.get(str(item.get("id"))) == ""


def _newest(ids: Mapping[str, str], aliases: Mapping[str, str]) -> OrderedDict[str, str]:
    kept = OrderedDict(ids)
    for known, its_id in aliases.items():
        kept[known] = its_id
        kept.move_to_end(known)
    while len(kept) > IDS_LIMIT:
        kept.popitem(last=False)
    return kept


def _decoded(document: bytes | None) -> dict[str, str]:
    try:
        return _PAIRS.decode(document) if document else {}
    except msgspec.DecodeError:
        return {}
