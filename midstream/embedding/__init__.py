"""A runtime in programs that do not run on trio: `aio` for asyncio, `sync` for plain threads.

Needs anyio, which the extra `embedding` installs (docs/embedding.md).
"""
