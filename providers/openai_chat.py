"""The provider `openai_chat`: OpenAI's Chat Completions API, or a server compatible with it."""

from functools import partial
from typing import Unpack

from midstream.providers.http_provider import HttpProvider, HttpSettings, endpoint
from midstream.providers.openai_chat_request import FORMAT, openai_chat_body
from midstream.providers.openai_chat_stream import OpenAIChatStreamDecoder

_HOST = "api.openai.com"


class OpenAIChatProvider(HttpProvider):
    """Streams from `POST {base_url}/chat/completions`.

    The key comes from `api_key` or OPENAI_API_KEY, the address from `base_url` (with `/v1`,
    as OpenAI's own clients take it) or OPENAI_BASE_URL. Raises ConfigError for an address or
    a key that cannot be one.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        name: str = "openai_chat",
        **settings: Unpack[HttpSettings],
    ) -> None:
        url = endpoint(base_url, "OPENAI_BASE_URL", f"https://{_HOST}/v1", "/chat/completions")
        max_tokens_key = "max_completion_tokens" if url.host == _HOST else "max_tokens"
        super().__init__(
            name=name,
            format=FORMAT,
            url=url,
            official_host=_HOST,
            api_key=api_key,
            key_variable="OPENAI_API_KEY",
            key_headers=lambda key: {"authorization": f"Bearer {key}"},
            body_of=partial(openai_chat_body, max_tokens_key=max_tokens_key),
            decoder=OpenAIChatStreamDecoder,
            settings=settings,
        )
