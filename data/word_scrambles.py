r"""GPT-3's five scrambles of words, to be undone (Brown et al. 2020, section 3.9.2).

    python -m t5x_like.evaluate --config=configs/pretrained.py:scrambles --config.initialize=gpt2 \
        --config.data.settings.words=count_1w.txt

| task | in the paper | inputs, targets |
|---|---|---|
| `cycle_letters_in_word` | CL: the letters are rotated | asinoc, casino |
| `mid_word_1_anagrams` | A1: all letters but the first and the last are shuffled | skicts, sticks |
| `mid_word_2_anagrams` | A2: all but the first two and the last two | volwskagen, volkswagen |
| `random_insertion_in_word` | RI: a character between all letters | d.o m i!n a n.t, dominant |
| `reversed_words` | RW: the letters are reversed | taefed, defeat |

`words` is a list of words, the most frequent first, one in each line, and what follows a blank or
tab does not count: Norvig's count_1w.txt (norvig.com/ngrams), which the paper used, is read as it
comes. Each word is scrambled once. Half of the words, chosen by the word, are the questions; the
examples in a prompt are sampled from the other half. In the paper both are sampled from all words.

The released questions (github.com/openai/gpt-3, data/) have words of 6 to 15 letters; the defaults
are of the text, "more than 4 characters and less than 15". As in the release, an anagram differs
from its word if it can, letters are rotated by at least one, and the inserted character is one of
" .!/".
"""

import pathlib
from collections.abc import Callable

import numpy as np

from t5x_like import reading
from t5x_like.grain_pipeline.corpus import Corpus, Split

INSERTED = " .!/"
_SPLITS = {"train": False, "validation": True}


def corpora(
    *, words: str, most: int = 10_000, shortest: int = 5, longest: int = 14, seed: int = 0
) -> dict[str, Corpus]:
    """Return the corpora of the five tasks, with the fields `targets` and `inputs`.

    Args:
        words: a file with a word in each line, the most frequent first.
        most: the number of words that are taken.
        shortest, longest: the number of letters of a word.
        seed: of the scrambles.

    Raises:
        ValueError: the file does not exist, or has no such word; `shortest` is below 4 or above
            `longest`, or `most` is below 1.
    """
    if not 4 <= shortest <= longest:
        raise ValueError(
            f"data.settings.shortest={shortest}, longest={longest}: 4 or more letters needed, and "
            "at least as many for the longest"
        )
    if most < 1:
        raise ValueError(f"data.settings.most={most} must be 1 or more")
    path = reading.existing_file("data.settings.words", words, ())
    chosen = [one for one in _words(path) if shortest <= len(one) <= longest][:most]
    if not chosen:
        raise ValueError(
            f"data.settings.words={words!r} has no word of {shortest} to {longest} letters"
        )
    found = {}
    for number, (name, scramble) in enumerate(TASKS.items()):
        generator = np.random.default_rng([seed, number])
        # The first field of a row decides about its split.
        rows = [{"targets": word, "inputs": scramble(word, generator)} for word in chosen]
        splits = {
            split: Split(rows, held_out=0.5, validation=validation, files=[path])
            for split, validation in _SPLITS.items()
        }
        found[name] = Corpus(splits, fields=("targets", "inputs"), cleaned=False)
    return found


def _words(path: str | pathlib.Path) -> list[str]:
    """Return the words of a file in order, in lower case, each once."""
    first = (line.split()[0].lower() for line in reading.lines(pathlib.Path(path)) if line.strip())
    return [*dict.fromkeys(word for word in first if word.isalpha())]


def cycle_letters(word: str, generator: np.random.Generator) -> str:
    """Return the word rotated by at least one letter."""
    start = int(generator.integers(1, len(word)))
    return word[start:] + word[:start]


def anagram(word: str, generator: np.random.Generator, *, kept: int) -> str:
    """Return the word with its letters shuffled, but for the first and last `kept`.

    It differs from the word, unless all letters between are equal.
    """
    middle = word[kept : len(word) - kept]
    while True:
        shuffled = "".join(middle[place] for place in generator.permutation(len(middle)))
        if shuffled != middle or len(set(middle)) < 2:
            return word[:kept] + shuffled + word[len(word) - kept :]


def insert(word: str, generator: np.random.Generator) -> str:
    """Return the word with a random character of INSERTED between all letters."""
    between = generator.choice(list(INSERTED), len(word) - 1)
    return word[0] + "".join(
        f"{one}{letter}" for one, letter in zip(between, word[1:], strict=True)
    )


TASKS: dict[str, Callable[[str, np.random.Generator], str]] = {
    "cycle_letters_in_word": cycle_letters,
    "mid_word_1_anagrams": lambda word, generator: anagram(word, generator, kept=1),
    "mid_word_2_anagrams": lambda word, generator: anagram(word, generator, kept=2),
    "random_insertion_in_word": insert,
    "reversed_words": lambda word, generator: word[::-1],
}
