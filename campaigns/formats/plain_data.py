"""Damage to plain data: tables of JSON and TOML, and the words of text."""

import json
import re
from random import Random
from typing import Any

_VALUES = (
    *(None, True, 0, 1, -1, 2**31, 2**63, 2**64, 10**400, 1e308, 1e-308, 0.5, -0.5),
    *("", "x", "\0", "é" * 300, [], [[]], [1, -1], {}, {"x": 1}, [1.5, "x"], "nan"),
    *(float("nan"), float("inf"), -float("inf")),
)
_TOML = (
    *("0", "-1", "1", "2147483648", "9223372036854775808", "9" * 400, "9" * 5000, "1e400", "nan"),
    *("inf", "-inf", "true", '""', '"x"', "[]", "{}", "[[]]", "{x=1}", "1979-05-27", "0x7fffffff"),
    *("[1, 2", "'''", "1e-400", "0.5", "[" * 3000, "07:32:00", "1979-13-27T99:00:00Z", "-0.0"),
    *('"\\uD800"', '"\\U00110000"', "1_000_000_000_000", "[0, 0]", "[-1, -1]", "[nan, nan]", "3"),
)


def changed_tree(tree: Any, dice: Random) -> Any:
    """Return JSON data with one value replaced, removed, renamed or doubled."""
    tree = json.loads(json.dumps(tree))
    places = list(_places(tree))
    if not places:
        return dice.choice(_VALUES)
    parent, key = dice.choice(places)
    kind = dice.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[dice.choice((f"{key}x", "", "x" * 3000, "\0"))] = parent.pop(key)
    elif kind == 2 and isinstance(parent, list):
        parent *= dice.choice((2, 100))
    else:
        parent[key] = dice.choice(_VALUES)
    return tree


def changed_toml(text: str, dice: Random) -> str:
    """Return a TOML text with a value, a line or a key changed."""
    lines = text.splitlines()
    for _ in range(dice.choice((1, 1, 2, 3))):
        place = dice.randrange(len(lines))
        kind = dice.randrange(8)
        if kind == 0:
            del lines[place]
            lines = lines or [""]
        elif kind == 1:
            lines.insert(place, dice.choice(lines))
        elif kind == 2:
            odd = ("[x]", "[[model]]", "x = 1", "[model.levels]", "a.b.c = 1", "\0", '"" = 1')
            lines.insert(place, dice.choice(odd))
        elif kind == 3:
            numbers = list(re.finditer(r"[\w.+-]+", lines[place]))
            if numbers:
                found = dice.choice(numbers)
                line = lines[place]
                lines[place] = line[: found.start()] + dice.choice(_TOML) + line[found.end() :]
        else:
            key, equals, _ = lines[place].partition("=")
            lines[place] = f"{key}= {dice.choice(_TOML)}" if equals else lines[place]
    return dice.choice(("\n", "\n", "\n", "\r\n", "\r")).join(lines)


def _places(tree: Any) -> Any:
    """Yield (container, key) of every value."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)
