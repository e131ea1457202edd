"""Random conditions, texts and cuts, from a seed: for the properties of the engine."""

from random import Random

PIECES = ("a", "b", "c", "x", ".", "[ab]", "[^a]", r"\w", r"\W", r"\s", " ", r"\d", "é", "😀")
ZERO_WIDTH = (r"\b", r"\B", "^", "$")
LOOKS = ("(?=", "(?!", "(?<=", "(?<!")
QUANTIFIERS = ("*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,3}", "{2,}", "{0,40}")
FLAGS = ("", "", "", "(?i)", "(?m)", "(?s)", "(?ims)")
ALPHABET = "aabbccx  \n1é😀AB"


def random_condition(random: Random) -> str:
    """A condition in the ECMAScript dialect, valid by construction."""
    return random.choice(FLAGS) + _pattern(random, 4)


def _pattern(random: Random, depth: int) -> str:
    dice = random.random()
    if dice < 0.02:
        return f"({_pattern(random, 1)}){_pattern(random, 1)}\\1"
    if depth == 0 or dice < 0.2:
        return random.choice(PIECES)
    if dice < 0.5:
        return _pattern(random, depth - 1) + _pattern(random, depth - 1)
    if dice < 0.6:
        return f"(?:{_pattern(random, depth - 1)}|{_pattern(random, depth - 1)})"
    if dice < 0.75:
        return f"(?:{_pattern(random, depth - 1)}){random.choice(QUANTIFIERS)}"
    if dice < 0.85:
        return random.choice(ZERO_WIDTH)
    return f"{random.choice(LOOKS)}{_pattern(random, depth - 1)})"


def random_text(random: Random, most: int = 12) -> str:
    """A short text over an alphabet in which the conditions find something to match."""
    return "".join(random.choice(ALPHABET) for _ in range(random.randint(0, most)))


def random_cuts(random: Random, text: str) -> list[str]:
    """The text in pieces, some of them empty."""
    pieces: list[str] = []
    while text:
        length = random.choice((0, 1, 1, 2, 3, len(text)))
        pieces.append(text[:length])
        text = text[length:]
    return pieces
