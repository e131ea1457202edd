"""The provider `openai_responses`: OpenAI's Responses API, or a server compatible with it."""

from typing import Unpack

from midstream.providers.http_provider import HttpProvider, HttpSettings, endpoint
from midstream.providers.openai_responses_request import FORMAT, openai_responses_body
from midstream.providers.openai_responses_stream import OpenAIResponsesStreamDecoder

_HOST = "api.openai.com"


class OpenAIResponsesProvider(HttpProvider):
    """Streams from `POST {base_url}/responses`.

    The key comes from `api_key` or OPENAI_API_KEY, the address from `base_url` (with `/v1`,
    as OpenAI's own clients take it) or OPENAI_BASE_URL. Raises ConfigError for an address or
    a key that cannot be one.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        name: str = "openai_responses",
        **settings: Unpack[HttpSettings],
    ) -> None:
        super().__init__(
            name=name,
            format=FORMAT,
            url=endpoint(base_url, "OPENAI_BASE_URL", f"https://{_HOST}/v1", "/responses"),
            official_host=_HOST,
            api_key=api_key,
            key_variable="OPENAI_API_KEY",
            key_headers=lambda key: {"authorization": f"Bearer {key}"},
            body_of=openai_responses_body,
            decoder=OpenAIResponsesStreamDecoder,
            settings=settings,
        )
