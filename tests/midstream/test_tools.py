"""A function becomes a tool: what the model is shown, and what comes back."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from threading import Event
from typing import Annotated, Any, Literal

import msgspec
import pytest
import trio
from msgspec import Meta

from midstream.actors.open_calls import ToolLimits
from midstream.actors.tool_runner import ArgumentsRefused
from midstream.messages.conversation import ToolSpec
from midstream.tools import Tool, ToolError, offer


class Place(msgspec.Struct):
    lat: float
    lon: float
    name: str | None = None


class Unit(Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


async def weather(
    city: Annotated[str, Meta(description="Its name, in English.", min_length=1)],
    days: Annotated[int, Meta(ge=1, le=14)] = 3,
    unit: Unit = Unit.CELSIUS,
    near: Place | None = None,
) -> str:
    """Tell the weather of a city.

    Not for the past.
    """
    await trio.lowlevel.checkpoint()
    return f"{city} {days} {unit.name} {near}"


def returns(value: Any) -> Tool:
    async def result() -> Any:
        """Return something."""
        await trio.lowlevel.checkpoint()
        return value

    return Tool(result)


# --- what the model is shown


def test_name_description_and_schema_come_from_the_function() -> None:
    assert Tool(weather).spec == ToolSpec(
        "weather",
        "Tell the weather of a city.\n\nNot for the past.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 1, "description": "Its name, in English."},
                "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 3},
                "unit": {"$ref": "#/$defs/Unit", "default": "celsius"},
                "near": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}], "default": None},
            },
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {
                "Unit": {"title": "Unit", "enum": ["celsius", "kelvin"]},
                "Place": {
                    "title": "Place",
                    "type": "object",
                    "properties": {
                        "lat": {"type": "number"},
                        "lon": {"type": "number"},
                        "name": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                    },
                    "required": ["lat", "lon"],
                },
            },
        },
    )


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    assert returns("x").spec.schema == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


def test_name_and_description_can_be_given() -> None:
    spec = Tool(weather, name="get-weather", description="Weather.").spec
    assert (spec.name, spec.description) == ("get-weather", "Weather.")


def test_a_schema_is_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(Tool(weather).spec), type=ToolSpec)


class Service:
    def __init__(self, answer: str) -> None:
        self._answer = answer

    async def ask(self, question: str) -> str:
        """Ask the service."""
        await trio.lowlevel.checkpoint()
        return self._answer + question


async def test_a_method_is_a_tool_of_its_object() -> None:
    tool = Tool(Service("forty-two: ").ask)
    assert list(tool.spec.schema["properties"]) == ["question"]
    assert await tool.run('{"question": "why"}') == "forty-two: why"


# --- arguments


async def test_arguments_are_decoded_to_the_types_of_the_parameters() -> None:
    arguments = '{"city": "Kyiv", "unit": "kelvin", "near": {"lat": 50.4, "lon": 30.5}}'
    said = await Tool(weather).run(arguments)
    assert said == "Kyiv 3 KELVIN Place(lat=50.4, lon=30.5, name=None)"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"city": 3}', "Expected `str`, got `int` - at `$.city`"),
        ('{"city": "Kyiv", "days": "3"}', "Expected `int`, got `str` - at `$.days`"),
        ('{"city": "Kyiv", "days": 90}', "Expected `int` <= 14 - at `$.days`"),
        ('{"city": "Kyiv", "near": {"lat": 1}}', "missing required field `lon` - at `$.near`"),
        ('{"city": "Kyiv", "unit": "rankine"}', "Invalid enum value 'rankine' - at `$.unit`"),
        ('{"city": "Kyiv", "town": "x"}', "unknown field `town`"),
        ("{}", "missing required field `city`"),
        ('["Kyiv"]', "Expected `object`, got `array`"),
        ('{"city": ', "Input data was truncated"),
    ],
)
async def test_arguments_that_do_not_fit_name_the_place(arguments: str, problem: str) -> None:
    with pytest.raises(ArgumentsRefused) as refused:
        await Tool(weather).run(arguments)
    assert problem in str(refused.value)
    assert str(refused.value).startswith("[error] The arguments of weather are wrong")


async def test_a_mutable_default_is_not_shared_between_calls() -> None:
    async def collect(item: str, into: list[str] = ["first"]) -> list[str]:  # noqa: B006
        """Collect."""
        await trio.lowlevel.checkpoint()
        into.append(item)
        return into

    tool = Tool(collect)
    assert await tool.run('{"item": "a"}') == '["first","a"]'
    assert await tool.run('{"item": "b"}') == '["first","b"]'


# --- results


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Place(1.0, 2.0), '{"lat":1.0,"lon":2.0,"name":null}'),
        (Point(1, 2), '{"x":1,"y":2}'),
        (None, "null"),
        (True, "true"),
    ],
)
async def test_a_string_is_passed_on_and_anything_else_is_json(value: object, text: str) -> None:
    assert await returns(value).run("{}") == text


async def test_a_result_that_is_no_json_is_an_error_of_the_tool() -> None:
    with pytest.raises(TypeError, match="Encoding objects of type Service"):
        await returns(Service("")).run("{}")


async def test_a_function_that_is_not_async_is_called_in_a_thread() -> None:
    def double(number: int) -> int:
        """Double it."""
        trio.from_thread.check_cancelled()
        return number * 2

    assert await Tool(double).run('{"number": 21}') == "42"


async def test_more_threads_than_trios_own_limit_can_be_left_behind() -> None:
    """Threads that hang must not keep others, such as the store's, from running."""
    released = Event()

    def hang() -> bool:
        """Hang."""
        return released.wait(60)

    tool = Tool(hang)
    with trio.move_on_after(0.2):
        async with trio.open_nursery() as nursery:
            for _ in range(45):
                nursery.start_soon(tool.run, "{}")
    assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
    assert await trio.to_thread.run_sync(lambda: "free") == "free"
    released.set()


# --- what cannot be a tool


def no_docstring(city: str) -> str:
    return city


def untyped(city: str) -> str:
    """Untyped."""
    return city


del untyped.__annotations__["city"]


def positional(city: str, /) -> str:
    """Positional."""
    return city


def variadic(*cities: str) -> str:
    """Variadic."""
    return str(cities)


def unreadable(service: Service) -> str:
    """Take what has no JSON form."""
    return str(service)


def unresolvable(city: str) -> str:
    """Take what does not exist."""
    return city


unresolvable.__annotations__["city"] = "Nowhere"


def ambiguous(place: Place | Point) -> str:
    """Take what msgspec cannot tell apart."""
    return str(place)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_docstring, "no_docstring: the model has to know what it does"),
        (untyped, "untyped: parameter city has no type"),
        (positional, "positional: parameter city cannot be passed by keyword"),
        (variadic, "variadic: parameter cities cannot be passed by keyword"),
        (unreadable, "unreadable: a parameter cannot be decoded from JSON"),
        (unresolvable, "unresolvable: its signature cannot be read: name 'Nowhere'"),
        (
            ambiguous,
            "ambiguous: a parameter cannot be decoded from JSON: Type unions may not",
        ),
        (lambda: "", "'<lambda>' cannot be the name of a tool"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_with_the_reason(
    function: Callable[..., Any], problem: str
) -> None:
    with pytest.raises(ToolError) as refused:
        Tool(function)
    assert problem in str(refused.value)


def test_a_deadline_must_be_in_the_future() -> None:
    with pytest.raises(ToolError, match="deadline_s must be more than 0"):
        Tool(weather, deadline_s=0)


@pytest.mark.parametrize("kind", ["tool", "spec"])
def test_two_tools_of_one_name_are_refused(kind: Literal["tool", "spec"]) -> None:
    other = Tool(weather) if kind == "tool" else ToolSpec("weather", "", {})
    with pytest.raises(ToolError, match="weather: two tools have this name"):
        offer([Tool(weather), other], ToolLimits())
