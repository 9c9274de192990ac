"""Chat templates: where an answer begins, and which turns are left out of a long conversation."""

from t5x_like.vocabularies.chat import find_template

PLAIN = find_template("plain")


def turn(role, content):
    return {"role": role, "content": content}


def test_a_prompt_and_its_answer_are_the_whole_conversation():
    turns = [turn("user", "one {} two"), turn("assistant", "a"), turn("user", "b")]
    for name in ("plain", "chatml"):
        template = find_template(name)
        answered = [*turns, turn("assistant", "c")]
        whole = template.prompt([*answered, turn("user", "d")])
        assert whole.startswith(template.prompt(turns) + template.answer(answered))
    assert PLAIN.prompt(turns).startswith("User: one {} two\n\nAssistant: a\n\nUser: b")


def test_whole_turns_are_left_out_from_the_beginning():
    turns = [
        turn("system", "s"),
        turn("user", "1"),
        turn("assistant", "2"),
        turn("user", "3"),
        turn("assistant", "4"),
        turn("user", "5"),
    ]

    def kept(most, turns=turns):
        return [one["content"] for one in PLAIN.fitting(turns, lambda text: len(text) <= most)]

    whole = len(PLAIN.prompt(turns))
    assert kept(whole) == ["s", "1", "2", "3", "4", "5"]
    # An answer goes with its question; the system's turn and the last one stay.
    assert kept(whole - 1) == ["s", "3", "4", "5"]
    assert kept(0) == ["s", "5"]
    assert kept(0, turns[1:]) == ["5"]
