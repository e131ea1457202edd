"""What a dialect's parser gives back: a tree, or the news that there is none.

The engine compiles a `ParsedPattern` from its tree and hands an `Opaque` to the `regex`
package as it is. Both are values.
"""

import msgspec

from midstream.rules.syntax import Node


class ParsedPattern(msgspec.Struct, frozen=True):
    """A condition as a tree.

    The flags are those of the leading `(?ims)` groups, for display: they are already
    folded into `tree`. `group_names` holds (name, group number) by number; a name that
    occurs in several alternatives has several entries. `warnings` say, in sentences for the
    rule's author, which parts are valid but probably do not mean what was intended.
    """

    tree: Node
    ignore_case: bool = False
    multiline: bool = False
    dot_all: bool = False
    group_count: int = 0
    group_names: tuple[tuple[str, int], ...] = ()
    warnings: tuple[str, ...] = ()


class Opaque(msgspec.Struct, frozen=True):
    """A valid condition of the Python dialect that has no tree.

    `regex.compile(pattern)` runs it. `reason` names the construct that has no equivalent.
    """

    pattern: str
    reason: str
    warnings: tuple[str, ...] = ()
