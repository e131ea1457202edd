"""A host on trio: one prompt, a rule that listens, and a websocket for whoever wants to watch.

    python examples/trio_host.py "Write a commit message for a bug fix"

Which model is asked, and where the door listens, is in `midstream.toml`.
"""

import sys

import trio

import midstream

NO_FLATTERY = midstream.Rule(
    name="no-flattery",
    conditions=(r"(?i)\bgreat question\b",),
    scope=(midstream.ScopeToken(midstream.Source.TEXT),),
    body="Answer the question. Do not praise it.",
)


async def main(prompt: str) -> None:
    async with (
        midstream.open_runtime(rules=[NO_FLATTERY]) as runtime,
        midstream.open_websocket(runtime) as door,
    ):
        handle = runtime.animate(prompt)
        print(f"midstream attach {handle.session_id} --url {door.urls[0]}", file=sys.stderr)
        async for chunk in handle.chunks:
            match chunk:
                case midstream.Text(text=text):
                    print(text, end="", flush=True)
                case midstream.Retracted(reason=reason):
                    print(f"\n[cut by {reason}; once more]")
                case _:
                    pass
        ended = await handle.result()
        print(f"\n{ended.status} after {ended.attempts} attempts")


if __name__ == "__main__":
    trio.run(main, " ".join(sys.argv[1:]) or "Say hello")
