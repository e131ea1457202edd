"""Tools: functions of the host that a model may call.

A `Tool` is made from a function. Its name, its docstring and the types of its parameters
become what the model is shown; what the model sends is checked against the same types
before the function is called. The runtime runs it (`ToolRunner`), with a deadline, and what
it returns or raises goes back to the model.
"""

import copy
import inspect
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import trio

from midstream.actors.open_calls import ToolLimits
from midstream.actors.tool_runner import ArgumentsRefused, RunnableTool
from midstream.messages.conversation import ToolSpec
from midstream.messages.errors import MidstreamError
from midstream.supervisors.session_tree import Tools

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What all providers accept (OpenAI API reference, `function.name`)."""

_THREADS = trio.CapacityLimiter(math.inf)
"""How many run at once is bounded by the runner. Threads that were left behind must not use
up the forty that trio has for everybody, the store among them."""


class ToolError(MidstreamError):
    """A function cannot be a tool; says which, and what to mend."""


class Tool:
    """A function that the model may call.

    >>> async def weather(city: Annotated[str, Meta(description="Its name")], days: int = 1) -> str:
    ...     '''Tell the weather of a city.'''
    ...     return await ask_the_weather_service(city, days)
    >>> handle = runtime.animate("Will it rain in Kyiv?", tools=[Tool(weather)])

    The model is shown the function's name and docstring, or `name` and `description`, and
    the JSON Schema of its parameters. They are passed by keyword; `Annotated` with
    `msgspec.Meta` describes and constrains them, and types may be whatever msgspec decodes.
    Arguments that do not fit go back to the model as an error that names the place.

    A result that is a string is passed on as it is, any other as JSON. `deadline_s` is for
    one call; None for that of the configuration. At the deadline, and when the session is
    stopped, the function is cancelled. It should end soon: the session waits five seconds
    for it, a runtime that closes waits until it has ended.

    A function that is not async runs in a worker thread. A thread cannot be cancelled: it is
    left behind, and its result is dropped. Such a function can call
    `trio.from_thread.check_cancelled` to notice.

    Raises `ToolError` if the function cannot be a tool.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        deadline_s: float | None = None,
    ) -> None:
        known_as: str = name or getattr(function, "__name__", "")
        if not _NAME.fullmatch(known_as):
            raise ToolError(
                f"{known_as!r} cannot be the name of a tool: "
                "letters, digits, `_` and `-`, at most 64"
            )
        description = description or inspect.getdoc(function)
        if not description:
            raise ToolError(f"{known_as}: the model has to know what it does; write a docstring")
        if deadline_s is not None and not deadline_s > 0:
            raise ToolError(f"{known_as}: deadline_s must be more than 0, not {deadline_s}")
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        arguments = _arguments_of(function, known_as)
        self.spec = ToolSpec(known_as, description, _schema_of(arguments, known_as))
        self.deadline_s = deadline_s
        self._decoder = msgspec.json.Decoder(arguments)

    async def run(self, arguments: str) -> str:
        """Call the function with the model's arguments, the text of a JSON object.

        Returns text for the model. Raises `ArgumentsRefused`, and what the function raises.
        """
        call = partial(self._function, **self._decoded(arguments))
        if self._is_async:
            result = await call()
        else:
            result = await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=_THREADS)
        return result if isinstance(result, str) else msgspec.json.encode(result).decode()

    def run_by(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> "Tool":
        """The same tool, whose function is wrapped if it is async; for programs whose async
        functions do not run in trio."""
        if not self._is_async:
            return self
        tool = copy.copy(self)
        tool._function = wrap(self._function)
        return tool

    def _decoded(self, arguments: str) -> dict[str, Any]:
        try:
            decoded = self._decoder.decode(arguments)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ArgumentsRefused(
                f"[error] The arguments of {self.spec.name} are wrong, so it was not run: {error}"
            ) from None
        return {field: getattr(decoded, field) for field in decoded.__struct_fields__}

    def __repr__(self) -> str:
        return f"<Tool {self.spec.name}>"


def offer(tools: Sequence[Tool | ToolSpec], limits: ToolLimits) -> Tools:
    """The tools of a session. Raises `ToolError` if two of them have the same name."""
    run: dict[str, RunnableTool] = {}
    host: set[str] = set()
    for tool in tools:
        name = tool.spec.name if isinstance(tool, Tool) else tool.name
        if name in run or name in host:
            raise ToolError(f"{name}: two tools have this name; a model could not tell them apart")
        if isinstance(tool, Tool):
            run[name] = tool
        else:
            host.add(name)
    return Tools(run, frozenset(host), limits)


def _arguments_of(function: Callable[..., Any], name: str) -> type[msgspec.Struct]:
    """The type of the object that holds the function's arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = typing.get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ToolError(f"{name}: its signature cannot be read: {error}") from error
    fields = [_field(parameter, hints, name) for parameter in parameters]
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _field(
    parameter: inspect.Parameter, hints: Mapping[str, Any], name: str
) -> tuple[str, Any] | tuple[str, Any, Any]:
    where = f"{name}: parameter {parameter.name}"
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ToolError(f"{where} cannot be passed by keyword; the model names what it passes")
    if parameter.name not in hints:
        raise ToolError(f"{where} has no type; annotate it, the model is shown what it may pass")
    if parameter.default is parameter.empty:
        return parameter.name, hints[parameter.name]
    default: Any = parameter.default
    if isinstance(parameter.default, list | dict | set | bytearray):
        default = msgspec.field(default_factory=partial(copy.deepcopy, default))
    return parameter.name, hints[parameter.name], default


def _schema_of(arguments: type[msgspec.Struct], name: str) -> dict[str, Any]:
    """The JSON Schema of the arguments: an object at the top, as providers demand."""
    try:
        (top,), definitions = msgspec.json.schema_components(
            (arguments,), ref_template="#/$defs/{name}"
        )
        msgspec.json.encode((top, definitions))
    except TypeError as error:
        raise ToolError(f"{name}: a parameter cannot be decoded from JSON: {error}") from error
    schema = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    del schema["title"]
    return {**schema, "$defs": definitions} if definitions else schema
