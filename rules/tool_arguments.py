"""The passages of a tool call, while its arguments are still being written.

`Watch` makes one `ToolArguments` for each call, feeds it the argument fragments and, at
the end, the final arguments; it gets back what the rules have to see:

- `PassageText(key, text)`, then `PassageEnded(key)`: the decoded text of one passage.
- `PassagePath(key, paths)` and once `PathsKnown(key, paths)`: where it goes to. Paths may
  come before, after or never; a rule that needs one waits for `PathsKnown` at most.
- `Restarted(call_id)`: all of that is void, the call comes again from its beginning.
- `ArgumentsMalformed(call_id, offset_chars, problem)`: a report; the watch goes on.

What is a passage (spec/ttsr.md 0.4, 3.3): of a tool that the table knows, the text that
the call introduces, one passage for each string and one for each file of a multi-file
payload, whose key has the `file`; of any other tool each string value, those that are
paths included. Passages are never joined. With `raw` the undecoded argument text is one
more passage, for rules with `match: json`; it goes to every path of the call.

Guarantees: the passages and their text do not depend on how the arguments were cut
(spec/ttsr.md 0.3); text is handed out with the character that decides it; the work is
proportional to the text; nothing that a model writes raises.
"""

from hashlib import blake2b

from midstream.rules.argument_reading import ArgumentReading
from midstream.rules.passage import ArgumentEvent, Restarted
from midstream.rules.tool_shapes import ToolTable

BUILT_IN_TABLE = ToolTable()


class ToolArguments:
    """The arguments of one call.

    `cwd` is the session's working directory, to which relative paths are resolved.
    """

    def __init__(
        self,
        call_id: str,
        tool_name: str,
        table: ToolTable = BUILT_IN_TABLE,
        cwd: str = "/",
        *,
        raw: bool = False,
    ) -> None:
        self._call_id = call_id
        self._shapes = table.shapes_of(tool_name)
        self._cwd = cwd
        self._raw = raw
        self._reading = self._read_anew()
        self._fed_chars = 0
        self._fed_digest = blake2b()
        self._finished = False

    def feed(self, fragment: str) -> list[ArgumentEvent]:
        """The next fragment of the argument text.

        What comes after `finish` says nothing: the final arguments were the last word.
        """
        if self._finished:
            return []
        self._fed_chars += len(fragment)
        self._fed_digest.update(_bytes(fragment))
        return self._reading.feed(fragment)

    def finish(self, final_arguments: str | None = None) -> list[ArgumentEvent]:
        """The call is over.

        `final_arguments`, if the provider gives them, are what the tool will get
        (spec/ttsr.md B4): what is missing in the fragments is read now, and if they say
        something else the call is read again.
        """
        if self._finished:
            return []
        self._finished = True
        events: list[ArgumentEvent] = []
        if final_arguments is not None:
            if self._begins_as_fed(final_arguments):
                final_arguments = final_arguments[self._fed_chars :]
            else:
                events.append(Restarted(self._call_id))
                self._reading = self._read_anew()
            events += self._reading.feed(final_arguments)
        return events + self._reading.finish()

    def _read_anew(self) -> ArgumentReading:
        return ArgumentReading(self._call_id, self._shapes, self._cwd, raw=self._raw)

    def _begins_as_fed(self, final_arguments: str) -> bool:
        """A digest stands for the fragments, so that they need not be kept."""
        beginning = blake2b(_bytes(final_arguments[: self._fed_chars]))
        return beginning.digest() == self._fed_digest.digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
