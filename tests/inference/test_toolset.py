"""The tools of a dialog: arithmetic and nothing else, a table of words, a key-value store."""

import json

import pytest

from t5x_like.inference import toolset
from t5x_like.inference.toolset import calculate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("135+7721", "7856"),
        (" 2 * (3 - 5) = ", "-4"),
        ("7/2", "3.5"),
        ("7//2 + 7%4", "6"),
        ("2^10 - -1", "1025"),
        ("2**-1", "0.5"),
        ("0.1+0.2", "0.3"),
        ("1**10000000000", "1"),
    ],
)
def test_an_expression_has_a_value(text, value):
    assert calculate(text) == [value]


@pytest.mark.parametrize(
    "text",
    [
        *("", "hello", "42", "1/0", "0**-1", "(-1)**0.5", "1e308*10", "'a'*3", "True+1", "1<2"),
        *("__import__('os').getcwd()", "abs(-1)", "(lambda: 1)() + 1", "x+1", "[1]*9", "1;2"),
        *("9**9**9**9", "2**100000", "10**299*10", "9" * 150 + "*" + "9" * 150, "1+" * 200 + "1"),
        *("(" * 99 + "1" + ")" * 99 + "+", "1\n+2"),
    ],
)
def test_all_else_has_none(text):
    assert calculate(text) == []


@pytest.fixture
def write(tmp_path):
    def write(name, *rows):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return str(tmp_path / name)

    return write


def test_the_texts_of_all_tools_come_in_their_order(write):
    words = write("words", {"text": "hello", "language": "French", "translation": "bonjour"})
    facts = write(
        "facts",
        {"key": "height Eiffel Tower", "text": "It is 330 metres high.", "url": "tower.org"},
        {"key": "Eiffel Tower", "text": "A tower in Paris."},
        {"key": "Eiffel", "text": "An engineer."},
        {"key": "Tower Bridge", "text": "A bridge."},
    )
    tools = toolset.build(calculator=True, translator=words, retrieval=facts)
    assert tools("135+7721") == ["7856"]
    assert tools("Hello in french") == ["bonjour"]
    assert tools("hello in German") == []
    assert tools("the height of the Eiffel Tower?") == [
        "It is 330 metres high. ( tower.org )",
        "A tower in Paris.",
        "An engineer.",
    ]
    assert tools("a cat") == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "file:1: it is not JSON"),
        ([1], "file:1: it is not a JSON object"),
        ({"key": "a"}, "file:1: there is no string 'text'"),
        ({"key": "a", "text": "b", "url": 1}, "url=1 is not a string"),
    ],
)
def test_a_bad_line_of_a_store_is_named(write, row, message):
    with pytest.raises(ValueError, match=message) as error:
        toolset.build(calculator=False, translator="", retrieval=write("file", row))
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named_and_no_tool_is_no_toolset():
    with pytest.raises(ValueError, match=r"dialog\.translator='words.jsonl' is not a file"):
        toolset.build(calculator=True, translator="words.jsonl", retrieval="")
    assert toolset.build(calculator=False, translator="", retrieval="") is None
