"""The provider `anthropic`: Anthropic's Messages API, or a gateway that speaks like it."""

from typing import Unpack

from midstream.providers.anthropic_request import FORMAT, anthropic_body
from midstream.providers.anthropic_stream import AnthropicStreamDecoder
from midstream.providers.http_provider import HttpProvider, HttpSettings, endpoint

API_VERSION = "2023-06-01"


class AnthropicProvider(HttpProvider):
    """Streams from `POST {base_url}/v1/messages`.

    The key comes from `api_key` or ANTHROPIC_API_KEY, the address from `base_url` (without
    `/v1`, as Anthropic's own clients take it; with it is understood too) or
    ANTHROPIC_BASE_URL. Beta features go into `headers` as `anthropic-beta`. Raises
    ConfigError for an address or a key that cannot be one.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        name: str = "anthropic",
        **settings: Unpack[HttpSettings],
    ) -> None:
        url = endpoint(base_url, "ANTHROPIC_BASE_URL", "https://api.anthropic.com", "")
        root = url.path.rstrip("/").removesuffix("/v1")
        super().__init__(
            name=name,
            format=FORMAT,
            url=url.copy_with(path=f"{root}/v1/messages"),
            official_host="api.anthropic.com",
            api_key=api_key,
            key_variable="ANTHROPIC_API_KEY",
            key_headers=lambda key: {"x-api-key": key},
            body_of=anthropic_body,
            decoder=AnthropicStreamDecoder,
            settings={
                **settings,
                "headers": {"anthropic-version": API_VERSION, **settings.get("headers", {})},
            },
        )
