"""A runtime in programs that do not run on trio: `aio` for asyncio, `sync` for plain threads.

Needs anyio, which the extra `embedding` installs (docs/embedding.md).
"""

from importlib.util import find_spec

if find_spec("anyio") is None:
    raise ModuleNotFoundError(
        "midstream.embedding needs anyio, which is not installed; "
        "install it with: pip install 'midstream[embedding]'",
        name="anyio",
    )
