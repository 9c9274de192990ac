"""What InstructGPT on documentation measures: prompts with a demonstration in them."""

import dataclasses

import pytest

from benchmarks import instructgpt_measures
from data.generators import instructions


@dataclasses.dataclass
class Words:
    """What `prompt` needs of a text model, whose tokens are the words of a text."""

    length: int
    new_tokens: int = 24

    def prompt(self, text):
        return text.split()


def instruction(text, kind, answer):
    prompt = f"Text: {text} Question: {instructions.QUESTIONS[kind]} Answer:"
    return {"prompt": prompt, "kind": kind, "text": text, "answer": answer}


@pytest.fixture
def shown():
    """The demonstrations shown, of two kinds: a wrong one and a longer one are not taken."""
    rows = [
        {**instruction(text, kind, answer), "response": f" {response}"}
        for text, kind, answer, response in [
            ("A rank.", "package", "numpy", "It is from jax."),
            ("Return the rank.", "package", "numpy", "It is from numpy."),
            ("Return the rank of all.", "package", "numpy", "It is from numpy."),
            ("Get it.", "first", "Get", "Simply, the first word is Get."),
            ("Get all of it.", "first", "Get", "The first word is Get."),
        ]
    ]
    return instructgpt_measures.demonstrations(rows)


def test_a_prompt_begins_with_a_whole_demonstration_of_its_own_question(shown):
    assert shown["package"].startswith("Text: Return the rank. Question: which package")
    for kind, response in (("package", "It is from numpy."), ("first", "The first word is Get.")):
        row = instruction("word " * 60, kind, "word")
        tokens = instructgpt_measures.prompt(Words(128), row, shown=shown)
        text = " ".join(tokens)
        assert text.startswith(" ".join(shown[kind].split()))
        assert response in text
        assert text.endswith(f"word Question: {instructions.QUESTIONS[kind]} Answer:")
        own = instructgpt_measures.prompt(Words(128), row)  # cut on the left, as in training
        assert len(own) == instructgpt_measures.LENGTHS["inputs"]
        assert tokens == [*shown[kind].split(), *own]


def test_a_prompt_that_would_be_cut_is_refused(shown):
    row = instruction("word " * 60, "first", "word")
    size = len(instructgpt_measures.prompt(Words(128), row, shown=shown))
    fits = instructgpt_measures.prompt(Words(size + 24), row, shown=shown)
    assert len(fits) == size
    with pytest.raises(
        ValueError, match=rf"{size} tokens, 17 in the .* longer than the {size - 1}"
    ):
        instructgpt_measures.prompt(Words(size + 23), row, shown=shown)
