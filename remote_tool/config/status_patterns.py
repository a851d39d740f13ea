"""What a pattern of ``status:`` may be: one group, and nothing that takes for ever on a line."""

from __future__ import annotations

import re

LONGEST = 200
# With so many, a line of 200 characters is looked through in a second at worst.
MOST_REPETITIONS = 3
MOST_OPTIONS = 6
_FIXED = re.compile(r"\{[0-9]\}\??")
_SYMBOL = re.compile(
    r"""\\.                              # something escaped
    | \[\^?\]?(?:\\.|[^\]\\])*\]         # a set
    | \((?:\?:|\?[^:()]{0,20}[:=!>])?  # the beginning of a group
    | [|*+]\?? | \{\d*,?\d*\}\?? | \?\?? | .""",
    re.DOTALL | re.VERBOSE,
)


def problem_of(text: str) -> str:
    """Return what is wrong with a pattern, to follow "must be"; empty when nothing is."""
    if not 0 < len(text) <= LONGEST:
        return f"a regular expression of 1 to {LONGEST} characters"
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        return f"a regular expression; it is none: {error}"
    if groups != 1:
        return f"a regular expression with one group ( ) around the value, found {groups}"
    return _repetition_problem(text)


def _repetition_problem(text: str) -> str:
    """Count what makes a search long: repetitions and choices, of which a repeated group may have none."""
    repetitions = options = 0
    is_long = [False]
    ended = False
    for symbol in _SYMBOL.findall(text):
        if _repeats(symbol):
            if ended:
                return "a regular expression that repeats no group which itself repeats or chooses, as (a+)* does"
            repetitions += not _FIXED.fullmatch(symbol)
            is_long[-1] = True
        options += symbol[0] in "?|"
        ended = _follow_groups(symbol, is_long)
    if repetitions > MOST_REPETITIONS or options > MOST_OPTIONS:
        return f"a regular expression with at most {MOST_REPETITIONS} repetitions and {MOST_OPTIONS} choices (? |)"
    return ""


def _follow_groups(symbol: str, is_long: list[bool]) -> bool:
    """Keep track of open groups; whether one has just ended that repeats or chooses."""
    if symbol[0] == "(":
        is_long.append(False)
    elif symbol == ")" and len(is_long) > 1:
        ended = is_long.pop()
        is_long[-1] = is_long[-1] or ended
        return ended
    elif symbol[0] in "|?":
        is_long[-1] = True
    return False


def _repeats(symbol: str) -> bool:
    return symbol[0] in "*+" or (symbol[0] == "{" and symbol != "{")
