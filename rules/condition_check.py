"""Whether a condition of a rule file can be used, and what its author may have missed.

The seam between reading rule files and compiling them: `rule_trigger.py` asks here for each
condition, so that a file with a bad one says so when it loads. Pure.
"""

from midstream.rules import ecmascript, emit, python_dialect
from midstream.rules.condition import compile_condition
from midstream.rules.dialect_error import UntranslatableError
from midstream.rules.parsed_pattern import Opaque
from midstream.rules.rule import Dialect


def check_condition(condition: str, dialect: Dialect) -> tuple[str, ...]:
    """Warnings about a valid condition.

    Raises `DialectError` where the dialect does not allow it, and `UntranslatableError`
    where nothing here can match it exactly.
    """
    parse = python_dialect.parse if dialect is Dialect.PYTHON else ecmascript.parse
    parsed = parse(condition)
    if not isinstance(parsed, Opaque):
        try:
            emit.to_regex(parsed.tree)
        except UntranslatableError:
            # An automaton may still do. Building one is dear, so only then.
            compile_condition(condition, dialect)
    return parsed.warnings
