"""Letters arrive in the order of their session, and hold up nobody else's."""

import pytest

from midstream.actors.dead_letter_office import DeadLetterOffice
from midstream.actors.ledger_messages import DrainCount
from midstream.messages.enrolment import Enrolment
from midstream.messages.envelope import AnyEnvelope, StepEnvelope
from midstream.messages.errors import FenceLost, MidstreamError, StoreError
from midstream.messages.record import Fence
from midstream.messages.work import AppendItems
from midstream.stores.dlq import MemoryQueue
from midstream.stores.memory import MemoryStore

BROKEN = StoreError("this one cannot be written")
NAMES = ["a 1", "a 2", "a 3", "b 1", "b 2"]


def letter(name: str) -> StepEnvelope:
    session_id, step = name.split(" ")
    return StepEnvelope(
        enrolment=Enrolment(
            session_id=session_id,
            conversation_id=f"con-{session_id}",
            provider="p",
            started_at="2026-01-01T00:00:00.000Z",
            fence=Fence("host", 1),
        ),
        step=int(step),
        at="2026-01-01T00:00:00.000Z",
        recording=AppendItems((), 1, 1),
    )


class Post:
    """An office with letters of two sessions; `broken` says why some cannot be written."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.queue = MemoryQueue()
        self.office = DeadLetterOffice(self.store, self.queue, self.write)
        self.broken: dict[str, MidstreamError] = {}
        self.written: list[str] = []

    async def write(self, envelope: AnyEnvelope) -> None:
        assert isinstance(envelope, StepEnvelope)
        name = f"{envelope.session_id} {envelope.step}"
        if error := self.broken.get(name):
            raise error
        self.written.append(name)

    async def deliver(self) -> DrainCount:
        return await self.office.deliver()


@pytest.fixture
async def post() -> Post:
    post = Post()
    for name in NAMES:
        await post.office.put(letter(name))
    return post


async def test_letters_arrive_in_the_order_of_their_sessions(post: Post) -> None:
    assert await post.deliver() == DrainCount(5, 0, 0)
    assert post.written == NAMES
    assert not post.office.keeps_back("a")


@pytest.mark.parametrize("stuck", ["a 1", "a 2"])
async def test_a_letter_that_is_stuck_keeps_the_later_ones_of_its_session_back(
    post: Post, stuck: str
) -> None:
    post.broken = {stuck: BROKEN}
    await post.deliver()
    assert post.written == [name for name in NAMES if name < stuck or name.startswith("b")]
    assert (post.office.keeps_back("a"), post.office.keeps_back("b")) == (True, False)
    post.broken = {}
    await post.deliver()
    assert [name for name in post.written if name.startswith("a")] == NAMES[:3]


async def test_a_letter_that_will_never_arrive_is_put_aside_and_keeps_nothing_back(
    post: Post,
) -> None:
    post.broken = {"a 2": FenceLost("somebody else owns a")}
    assert await post.deliver() == DrainCount(4, 1, 0)
    assert post.written == ["a 1", "a 3", "b 1", "b 2"]
    assert list(post.queue.rejected.values()) == ["FenceLost: somebody else owns a"]


async def test_a_store_that_is_down_is_not_asked_for_every_letter(post: Post) -> None:
    post.broken = {"a 1": BROKEN}
    post.store.failure = BROKEN
    assert await post.deliver() == DrainCount(0, 0, 5)
    assert post.written == []
