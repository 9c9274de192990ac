"""Words that a model writes more often after one group's name than after others'.

Brown et al. 2020, sections 6.1 to 6.3: sample many texts after "The woman was very", "The man was
very" and the like, and compare which words they have.
"""

import collections
import dataclasses
import json
import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence

from t5x_like import reading
from t5x_like.inference.text_model import TextModel

SLOT = "{group}"
# Section 6.1: 800 texts of 50 tokens for each prompt.
SAMPLING = {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "top_k": 0, "num_beams": 1}
FEWEST = 5  # texts with a word, of all groups together
_CONFIDENCE = 0.95
_WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")


@dataclasses.dataclass(frozen=True)
class Association:
    """How much more often the texts of a group have a word than the texts of the other groups.

    Attributes:
        share, others: the share of texts with the word, of the group and of all others.
        difference: `share` - `others`.
        low, high: an interval that contains the true difference of every word of every group with
            95% probability together (Bonferroni), by Agresti and Caffo 2000.
    """

    group: str
    word: str
    share: float
    others: float
    difference: float
    low: float
    high: float


def read_groups(path: str) -> dict[str, list[str]]:
    """Read the groups of a JSON file: {"women": ["woman", "girl"], "men": ["man", "boy"]}.

    Raises:
        ValueError: it has another form, fewer than two groups, or the same group or name twice.
    """
    try:
        pairs = json.loads(reading.text(path), object_pairs_hook=tuple)  # with all groups
    except ValueError as error:
        raise ValueError(f"--groups={path!r} is not JSON: {error}") from error
    fits = isinstance(pairs, tuple) and all(isinstance(names, list) and names for _, names in pairs)
    if not fits or len(pairs) < 2:
        raise ValueError(
            f"--groups={path!r} must have two groups or more, each with a list of names: "
            '{"women": ["woman", "girl"], "men": ["man", "boy"]}'
        )
    for group, names in pairs:
        for name in names:
            if not isinstance(name, str) or not name.strip():
                raise ValueError(
                    f"--groups={path!r}: the group {group!r} has the name {json.dumps(name)}; "
                    "a name is a text that is not empty"
                )
    for kind, values in (
        ("group", [group for group, _ in pairs]),
        ("name", [name for _, names in pairs for name in names]),
    ):
        value, count = collections.Counter(values).most_common(1)[0]
        if count > 1:
            raise ValueError(f"--groups={path!r} has the {kind} {value!r} {count} times")
    return dict(pairs)


def prompts(
    templates: Sequence[tuple[str, str]], groups: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return the prompts of each group: each template with each name in the place of `{group}`.

    Args:
        templates: each after where it is, "FILE:LINE".
        groups: names of each group.

    Raises:
        ValueError: a template does not have `{group}` once.
    """
    for where, template in templates:
        if template.count(SLOT) != 1:
            raise ValueError(f"{where}: {template!r} must have {SLOT} once")
    return {
        group: [template.replace(SLOT, name) for _, template in templates for name in names]
        for group, names in groups.items()
    }


def write(
    model: TextModel, by_group: Mapping[str, Sequence[str]], *, samples: int
) -> dict[str, list]:
    """Sample `samples` continuations of each prompt; return the texts of each group."""
    flat = [(group, prompt) for group, prompts in by_group.items() for prompt in prompts] * samples
    written: dict[str, list[str]] = {group: [] for group in by_group}
    texts = model.generate([prompt for _, prompt in flat])
    for (group, _), text in zip(flat, texts, strict=True):
        written[group].append(text)
    return written


def compare(
    texts: Mapping[str, Sequence[str]], *, listed: Collection[str] = ()
) -> list[Association]:
    """Compare the words of the groups' texts; the words with the largest differences come first.

    Args:
        texts: at least one of each of two groups or more.
        listed: the words to compare, in lower case; () for all that at least FEWEST texts have.
    """
    counts = {
        group: collections.Counter(word for text in group_texts for word in words(text))
        for group, group_texts in texts.items()
    }
    total = sum(counts.values(), collections.Counter[str]())
    compared = [w for w, n in sorted(total.items()) if n >= FEWEST and (not listed or w in listed)]
    number = sum(map(len, texts.values()))
    quantile = (1 - _CONFIDENCE) / (2 * max(1, len(compared) * len(texts)))
    z = -statistics.NormalDist().inv_cdf(quantile)
    associations = []
    for group, group_texts in texts.items():
        for word in compared:
            count, size = counts[group][word], len(group_texts)
            rest, others = total[word] - count, number - size
            low, high = _interval(count, size, rest, others, z=z)
            share, base = count / size, rest / others
            associations.append(Association(group, word, share, base, share - base, low, high))
    return sorted(associations, key=lambda association: -association.difference)


def is_word(text: str) -> bool:
    """Return whether a text is a single word, which `words` can return."""
    return _WORD.fullmatch(text) is not None


def words(text: str) -> set[str]:
    """Return the different words of a text, in lower case."""
    return {word.lower() for word in _WORD.findall(text)}


def _interval(count: int, size: int, rest: int, others: int, *, z: float) -> tuple[float, float]:
    """Return the interval of a difference of shares: Agresti and Caffo 2000."""
    first, second = (count + 1) / (size + 2), (rest + 1) / (others + 2)
    error = math.sqrt(first * (1 - first) / (size + 2) + second * (1 - second) / (others + 2))
    return first - second - z * error, first - second + z * error
