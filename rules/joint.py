"""Many automata stepped as one.

A joint state is the tuple of the states of several conditions' automata. Its transitions
are remembered too, so that a character that was seen in this situation before costs one
look-up in a dict, however many conditions are watched. Conditions whose states vary
independently of each other make many joint states; a group that cannot reuse what it has
learnt is split in two, if need be down to single conditions.

Groups are shared by all passages that watch the same conditions. A passage holds a
`Cursor`, which is its place in each group.
"""

from collections.abc import Iterable, Sequence

from midstream.rules.automaton import Automaton, State

GROUP_SIZE = 256
"""Conditions that are stepped together at first."""

MAX_TRANSITIONS = 50_000
"""Transitions that one group remembers (some 5 MB); above it, it forgets them all."""

_WINDOW_MISSES = 4_096
_MIN_REUSE = 6
"""A group that in a window of misses steps less often than this per miss is split."""


class JointState(dict[str, "JointState"]):
    """The states of a group's conditions; `state[character]` is the next."""

    __slots__ = ("busy", "certain", "given_up", "group", "standing", "states")

    def __init__(self, group: "Group", states: tuple[State, ...]) -> None:
        super().__init__()
        self.group = group
        self.states = states
        self.busy = group.busy_numbers(states)
        """Numbers of the conditions that a match may have begun for and is not decided."""
        self.certain = group.numbers_where(states, "certain")
        """Numbers of the conditions that have a match which nothing can undo."""
        self.given_up = group.numbers_where(states, "given_up")
        """Numbers of the conditions that have become too complex for an automaton."""
        self.standing = len(self.certain) + len(self.given_up)
        """Grows whenever a condition joins one of the two; neither is ever left."""

    def __missing__(self, character: str) -> "JointState":
        return self.group.step(self, character)


class Group:
    """Conditions that are stepped together; `numbers` says which, in ascending order."""

    def __init__(self, automata: Sequence[Automaton], numbers: Sequence[int]) -> None:
        self._automata = tuple(automata)
        self._numbers = tuple(numbers)
        self._states: dict[tuple[int, ...], JointState] = {}
        self._transitions = 0
        self._window = 0
        self.stepped = 0
        """Characters that passages have fed since the window of misses began."""
        self.halves: tuple[Group, ...] = ()
        """What this group was split into, once it was."""

    def numbers_where(self, states: tuple[State, ...], attribute: str) -> frozenset[int]:
        pairs = zip(self._numbers, states, strict=True)
        return frozenset(number for number, state in pairs if getattr(state, attribute))

    def busy_numbers(self, states: tuple[State, ...]) -> frozenset[int]:
        pairs = zip(self._numbers, states, strict=True)
        return frozenset(number for number, state in pairs if not (state.idle or state.certain))

    def state(self, states: tuple[State, ...]) -> JointState:
        key = tuple([state.number for state in states])
        joint = self._states.get(key)
        if joint is None:
            joint = self._states[key] = JointState(self, states)
        return joint

    def initial(self) -> JointState:
        return self.state(tuple(automaton.initial for automaton in self._automata))

    def step(self, joint: JointState, character: str) -> JointState:
        following = self.state(tuple([state[character] for state in joint.states]))
        joint[character] = following
        self._transitions += 1
        self._window += 1
        if self._window >= _WINDOW_MISSES:
            self._close_window()
        if self._transitions >= MAX_TRANSITIONS:
            self._forget()
        return following

    def _close_window(self) -> None:
        wasteful = self.stepped < self._window * _MIN_REUSE
        self._window = self.stepped = 0
        if wasteful and len(self._automata) > 1 and not self.halves:
            middle = len(self._automata) // 2
            self.halves = (
                Group(self._automata[:middle], self._numbers[:middle]),
                Group(self._automata[middle:], self._numbers[middle:]),
            )
            self._forget()

    def _forget(self) -> None:
        for joint in self._states.values():
            joint.clear()
        self._states.clear()
        self._transitions = 0

    def divide(self, joint: JointState) -> Iterable[JointState]:
        """`joint` of this group, which was split, as states of its halves."""
        middle = len(self._automata) // 2
        for half, states in zip(
            self.halves, (joint.states[:middle], joint.states[middle:]), strict=True
        ):
            yield from half.divide(half.state(states)) if half.halves else (half.state(states),)


class Cursor:
    """The place of one passage in all groups that watch it."""

    __slots__ = ("_busy_since", "_places")

    def __init__(self, groups: Iterable[Group]) -> None:
        self._busy_since: dict[int, int] = {}
        self._places = [
            place
            for group in groups
            for place in (group.divide(group.initial()) if group.halves else (group.initial(),))
        ]

    def feed(self, text: str) -> bool:
        """Step over `text`. Whether any condition has changed its standing.

        The inner loop is the hot path of the whole program: one look-up a character.
        """
        changed = False
        for number, before in enumerate(self._places):
            before.group.stepped += len(text)
            joint = before
            for character in text:
                joint = joint[character]
            self._places[number] = joint
            changed = changed or joint.standing != before.standing
        self._divide()
        return changed

    def feed_and_track(self, text: str, offset: int) -> bool:
        """`feed`, and remember since when each condition has been busy.

        `offset` is the place of `text` in its passage. Costs more than `feed`, so only
        those pay who hold text back.
        """
        changed = False
        for number, before in enumerate(self._places):
            before.group.stepped += len(text)
            joint = before
            for at, character in enumerate(text, offset):
                following = joint[character]
                if following.busy is not joint.busy:
                    self._note(joint.busy, following.busy, at)
                joint = following
            self._places[number] = joint
            changed = changed or joint.standing != before.standing
        self._divide()
        return changed

    def _note(self, before: frozenset[int], after: frozenset[int], at: int) -> None:
        for number in before - after:
            self._busy_since.pop(number, None)
        for number in after - before:
            self._busy_since[number] = at

    def held_from(self, numbers: frozenset[int]) -> int | None:
        """The earliest offset at which a match of one of `numbers` may have begun and is
        still undecided; None if there is none. Only after `feed_and_track`."""
        if not self._busy_since:
            return None
        return min((at for n, at in self._busy_since.items() if n in numbers), default=None)

    def _divide(self) -> None:
        if not any(joint.group.halves for joint in self._places):
            return
        self._places = [
            place
            for joint in self._places
            for place in (joint.group.divide(joint) if joint.group.halves else (joint,))
        ]

    def certain(self) -> frozenset[int]:
        """Numbers of the conditions that have matched for good."""
        return frozenset[int]().union(*(joint.certain for joint in self._places))

    def given_up(self) -> frozenset[int]:
        """Numbers of the conditions that have to be matched in another way."""
        return frozenset[int]().union(*(joint.given_up for joint in self._places))

    def at_end(self) -> frozenset[int]:
        """Numbers of the conditions that match if the passage ends here."""
        return frozenset[int]().union(
            *(joint.group.numbers_where(joint.states, "at_end") for joint in self._places)
        )
