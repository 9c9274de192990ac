"""Find the pronoun that a second sentence replaces by a noun: WNLI's pairs as WSC's rows."""

import re

PRONOUNS = frozenset(("he", "she", "they", "it", "her", "his", "their", "them", "him"))
_ARTICLES = ("a", "an", "the")
_ENDS = ".,?!"


def marked_pronoun(premise: str, hypothesis: str) -> tuple[str, str]:
    """Return the premise with asterisks around a pronoun, and its noun in the hypothesis.

    As in T5's released code (`wnli_simple`): choose the pronoun with the longest context of words
    that the hypothesis repeats. The hypothesis' words between these contexts are the noun, from the
    last of the first "a", the first "an" and the first "the", and without a possessive.

    Raises:
        ValueError: the premise has no pronoun, or the hypothesis has no text between the contexts.
    """
    ours, theirs = premise.split(), hypothesis.split()
    plain, other = ([_plain(word) for word in words] for words in (ours, theirs))
    positions = [position for position, word in enumerate(plain) if word in PRONOUNS]
    if not positions:
        raise ValueError(f"sentence1={premise!r:.80} has none of {', '.join(sorted(PRONOUNS))}.")

    def repeated(position: int) -> tuple[list[str], list[str]]:
        """Return the words before and after a pronoun that the hypothesis repeats."""
        before, after = plain[:position], plain[position + 1 :]
        while before and _find(other, before) is None:
            before = before[1:]
        while after and _find(other, after) is None:
            after = after[:-1]
        return before, after

    position = max(positions, key=lambda position: sum(map(len, repeated(position))))
    span = _between(other, *repeated(position))
    if span is None:
        raise ValueError(f"sentence2={hypothesis!r:.80} has nothing in the place of a pronoun.")
    first, last = span
    between = other[first:last]
    articles = [between.index(article) for article in _ARTICLES if article in between]
    noun = " ".join(theirs[first + max(articles, default=0) : last]).rstrip(_ENDS)
    ours[position] = _marked(ours[position])
    return " ".join(ours), _no_possessive(noun)


def _between(words: list[str], before: list[str], after: list[str]) -> tuple[int, int] | None:
    """Return the range between two sequences, from the start or to the end if one is missing."""
    begins = _find(words, before) if before else None
    ends = _find(words, after, last=True) if after else None
    begin = None if begins is None else begins + len(before)
    if begin is not None and ends is not None and begin < ends:
        return begin, ends
    if ends:
        return 0, ends
    return (begin, len(words)) if begin is not None and begin < len(words) else None


def _find(words: list[str], part: list[str], *, last: bool = False) -> int | None:
    """Return the first or last index of a sequence in another; None if it does not occur."""
    starts = range(len(words) - len(part) + 1)
    matches = [start for start in starts if words[start : start + len(part)] == part]
    return (matches[-1] if last else matches[0]) if matches else None


def _plain(word: str) -> str:
    return re.sub(rf"[{_ENDS}]$", "", word.lower())


def _marked(word: str) -> str:
    """Write *it*, with a following punctuation mark separated by a space."""
    return f"*{word[:-1]}* {word[-1]}" if word[-1] in _ENDS else f"*{word}*"


def _no_possessive(noun: str) -> str:
    return noun.removesuffix("'s") if noun.endswith("'s") else noun.removesuffix("'")
