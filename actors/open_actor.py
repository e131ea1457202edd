"""One actor alone: for a program that needs no tree, and to try an actor out."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
import trio

from midstream.actors.actor import DEFAULT_CLEANUP_S, Actor, ActorRun
from midstream.actors.address import Address
from midstream.actors.cell import DEFAULT_MAILBOX_CAPACITY, Cell
from midstream.actors.dead_letters import DeadLetters

M = TypeVar("M", bound=msgspec.Struct)


@asynccontextmanager
async def open_actor(
    actor: Actor[M],
    *,
    who: str = "actor",
    mailbox_capacity: int = DEFAULT_MAILBOX_CAPACITY,
    cleanup_s: float = DEFAULT_CLEANUP_S,
    dead_letters: DeadLetters | None = None,
) -> AsyncGenerator[Address[M]]:
    """Run one actor without a supervisor, for as long as the block lasts.

    The block begins when `started` has returned. A crash cancels the block, and comes out
    of it in an exception group, as from a nursery. At the end of the block the actor is
    stopped and ends for good.
    """
    cell: Cell[M] = Cell(who, mailbox_capacity)
    cell.adopt(who, dead_letters or DeadLetters())
    run = ActorRun(actor, cell, cleanup_s=cleanup_s)
    run.for_good = True
    ready = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.run, ready.set)
        await ready.wait()
        yield Address(cell)
        run.request_stop()
