"""By which id the upstream knows a response that a client knows by another.

A Responses message that was continued bears the id of its first attempt, and the upstream
has kept the last one, which holds the whole conversation. A client that goes on with
`previous_response_id` names the first. The oldest are forgotten; with a `document` the rest
survives a restart.
"""

from collections import OrderedDict

import msgspec

from midstream.actors.state_document import StateDocument
from midstream.doors.gateway_wire import Json

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

    async def learn(self, renamed: tuple[str, str] | None) -> None:
        """The client's id of a response, and the upstream's."""
        if renamed is None:
            return
        known, its_id = renamed
        self._ids = _newest(self._ids, known, its_id)
        if self._document is not None:
            await self._document.change(lambda kept: _newest(_decoded(kept), known, its_id))

    def translated(self, body: Json) -> Json:
        """A request in the upstream's ids; the very same body where nothing changes."""
        known = body.get("previous_response_id")
        its_id = self._ids.get(known) if isinstance(known, str) else None
        return body if its_id is None else {**body, "previous_response_id": its_id}


def _newest(ids: dict[str, str], known: str, its_id: str) -> OrderedDict[str, str]:
    kept = OrderedDict(ids)
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
