"""Numbers have a leading zero, and every module has a docstring.

Room by room, in the strings and comments of the code, the prose of the pages and the recipes.
The choice of words is for whoever reviews a change: CONTRIBUTING.md.
"""

import ast
import io
import re
import tokenize
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
from rooms import ROOMS, SOURCE

_, TESTS, REPOSITORY = Path(__file__).parents[:3]
PLACES = {
    **{room: sorted({SOURCE / f"{room}.py", *(SOURCE / room).rglob("*.py")}) for room in ROOMS},
    "recipes": sorted((SOURCE / "recipes").glob("*.toml")),
    "benchmarks": sorted((REPOSITORY / "benchmarks").glob("*.*")),
    "campaigns": sorted((REPOSITORY / "campaigns").glob("*.py")),
    "examples": sorted((REPOSITORY / "examples").glob("*.py")),
    "test helpers": [TESTS / "conftest.py", *sorted((TESTS / "support").glob("*.py"))],
    "docs": sorted(REPOSITORY.glob("docs/**/*.md")),
    "README": [REPOSITORY / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")],
}
"""The files of each room, and of what is written about them."""

NO_LEADING_ZERO = r"(?:^|[\s(|±+−/,-])\.\d+(?![\w.%])"  # not the .2f of a format


def strings_and_comments(code):
    """The strings and docstrings of a module, then its blocks of comments."""
    nodes = list(ast.walk(ast.parse(code)))
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if is_text(part) else "{}" for part in node.values)
        elif is_text(node) and id(node) not in parts:
            yield node.value
    yield from comments(code)


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def comments(code):
    """Blocks of comments, each as one text."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for kind, block in groupby((t for t in tokens if t.type not in layout), lambda t: t.type):
        if kind == tokenize.COMMENT:
            yield " ".join(token.string.lstrip("# ") for token in block)


def prose(text):
    """A page without fenced blocks, inline code and the targets of links."""
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


@cache
def texts(path):
    """The English of a file, without line breaks."""
    whole = path.read_text(encoding="utf-8")
    readers = {".py": strings_and_comments, ".md": lambda text: prose(text).split("\n\n")}
    pieces = readers.get(path.suffix, str.splitlines)(whole)
    return [" ".join(piece.split()) for piece in pieces]


def findings(path, pattern):
    for text in texts(path):
        for found in re.finditer(pattern, text, re.IGNORECASE):
            context = text[max(0, found.start() - 30) : found.end() + 30]
            yield f"{path.relative_to(REPOSITORY)}: …{context}…"


def files_of(place):
    files = [path for path in PLACES[place] if path.suffix in (".py", ".md", ".toml")]
    return [path for path in files if path.exists()]


@pytest.mark.parametrize("place", PLACES)
def test_numbers_have_a_leading_zero(place):
    assert files_of(place)
    found = [line for path in files_of(place) for line in findings(path, NO_LEADING_ZERO)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("place", [*ROOMS, "benchmarks", "campaigns", "examples"])
def test_every_module_says_what_it_is_for(place):
    modules = [path for path in files_of(place) if path.suffix == ".py"]
    silent = [p.name for p in modules if not ast.get_docstring(ast.parse(p.read_text()))]
    assert silent == []


def test_strings_that_are_joined_are_read_as_one():
    code = 'x = f(f"{1} goes "\n  "on")\n# a thing of\n# its own\n'
    assert list(strings_and_comments(code)) == ["{} goes on", "a thing of its own"]
