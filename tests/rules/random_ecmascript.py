"""Random conditions that make trouble: loops over captures, empty parts, lookbehinds."""

from random import Random

ATOMS = (
    *("a", "b", "c", "ab", ".", "[ab]", "[^a]", r"\w", r"\W", r"\d", r"\s", "A", "K", "é", "ſ"),
    *("", "", r"\S", "[]", "[^]", r"\u212a", "k", "s", "ß", r"\x61", "😀", "[😀]", "{", "]"),
)
QUANTIFIERS = ("*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,2}?", "{2,}", "{0}", "{2,3}?")
FLAGS = ("", "", "", "(?i)", "(?m)", "(?s)", "(?ims)")
TAILS = ("", "", "c", r"\1c", r"\2$", r"\1\1$", "$", r"(?=\1$)", "(?<!a)c", r"(?!\1)", r"\b")
LETTERS = "aaabbbcc aAkKsS1_éÉß\u212aſ😀\n\r\u2028"


def random_condition(random: Random) -> str:
    """A condition, not always valid."""
    prefix = random.choice(FLAGS) + random.choice(("", "", "^"))
    body = _disjunction(random, random.choice((1, 2, 3)))
    if random.random() < 0.4:
        return prefix + body
    return f"{prefix}(?:{body}){random.choice((*QUANTIFIERS, ''))}{random.choice(TAILS)}"


def random_text(random: Random) -> str:
    """A short text in which the conditions find something."""
    letters = LETTERS[:8] if random.random() < 0.6 else LETTERS
    return "".join(random.choice(letters) for _ in range(random.randint(0, 9)))


def _disjunction(random: Random, depth: int) -> str:
    return "|".join(_sequence(random, depth) for _ in range(random.choice((1, 1, 1, 2, 2, 3))))


def _sequence(random: Random, depth: int) -> str:
    return "".join(_term(random, depth) for _ in range(random.choice((0, 1, 1, 2, 2, 3))))


def _term(random: Random, depth: int) -> str:
    dice = random.random()
    if depth > 0 and dice < 0.45:
        opening = random.choice(
            ("(", "(", "(", "(", "(?:", "(?:", "(?=", "(?!", "(?<=", "(?<!"),
        )
        term = f"{opening}{_disjunction(random, depth - 1)})"
        if opening.startswith("(?<"):
            return term
    elif dice < 0.52:
        return random.choice(("^", "$", r"\b", r"\B"))
    elif dice < 0.66:
        term = f"\\{random.randint(1, 3)}"
    else:
        term = random.choice(ATOMS)
    if term and random.random() < 0.4:
        term += random.choice(QUANTIFIERS)
    return term
