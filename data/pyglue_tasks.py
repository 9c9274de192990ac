"""The tasks of PyGLUE: functions that turn documented code into labelled rows.

`TASKS` lists them by name. A task makes its rows from the documented classes and functions of one
split; every random choice is a function of the row's text, so that rows are the same on every run.
data/pyglue_rows.py divides the code into splits, balances the labels and removes leaks.
"""

import collections
import dataclasses
import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Row = dict[str, Any]

# The classes of `topic`; only installed packages occur. TensorFlow includes Keras.
PACKAGES = (
    *("stdlib", "jax", "matplotlib", "numpy", "pandas", "scipy", "sklearn", "sympy"),
    "tensorflow",
)
CHOICES = 4  # of `continuation` and `ranking`

_WINDOW = 5  # words that `acceptability` shuffles
_CANDIDATES = 300  # for the second text of a pair that is not a paraphrase
_MOST_NAMESAKES = 8  # more namesakes mean that the name is too generic
_LEAST_OVERLAP = 0.15  # of namesakes: some share only the name of an interface
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_PACKAGE_NAMES = re.compile(
    r"\b(?:python\w*|jax|jnp|lax|xla|matplotlib|pyplot|numpy|np|ndarrays?|pandas|scipy|sklearn|"
    r"scikit-learn|sympy|tensorflow|tf|tensors?|keras)\b(?:\.\w+)*",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A documented class or function; see `documented_code.documented` for the other fields.

    Attributes:
        package: the name of its package.
        module: the dotted name of its module, with the package.
        name: its name within the module, as in Class.method.
    """

    package: str
    module: str
    name: str
    signature: str
    arguments: Sequence[str]
    summary: str
    rest: str
    parameters: Sequence[tuple[str, str, str]]

    @property
    def sentences(self) -> list[str]:
        """The sentences after the first paragraph."""
        return [one for line in self.rest.split("\n") for one in _SENTENCE_END.split(line) if one]

    @property
    def description(self) -> str:
        """The first sentence."""
        return _SENTENCE_END.split(self.summary)[0]


Entries = Sequence[Entry]


@dataclasses.dataclass(frozen=True)
class Task:
    """The definition of a task.

    Attributes:
        kind: kind of labelled text (reading/labelled_text.py); "" for a text-only task.
        make: the entries of a split -> its rows.
        balanced: the field whose values are made equally frequent; "" for no balancing.
    """

    kind: str
    make: Callable[[Entries], Iterator[Row]]
    balanced: str = ""


def _random(*key: str) -> random.Random:
    return random.Random("\n".join(key))


def _words(text: str) -> int:
    return text.count(" ") + 1


def _cut(text: str, words: int) -> str:
    return " ".join(text.split()[:words])


def _acceptability(entries: Entries) -> Iterator[Row]:
    """Yield sentences to judge for word order; half have five words in a row shuffled."""
    label = "acceptable"
    for entry in entries:
        found = [s for s in (entry.description, *entry.sentences) if 8 <= _words(s) <= 25]
        if found:
            text = _random("acceptability", *found).choice(found)
            shuffled = text if label == "acceptable" else _shuffled(text)
            if shuffled:
                yield {"text_a": shuffled, "label": label}
                label = {"acceptable": "unacceptable"}.get(label, "acceptable")


def _shuffled(text: str) -> str:
    """Return the text with five words shuffled so that no neighbours remain; "" if impossible."""
    chance, words = _random("shuffle", text), text.split()
    first = chance.randrange(1, len(words) - _WINDOW)
    window = words[first : first + _WINDOW]
    pairs = set(itertools.pairwise(window))
    for _ in range(100):
        chance.shuffle(window)
        if not pairs & set(itertools.pairwise(window)):
            return " ".join([*words[:first], *window, *words[first + _WINDOW :]])
    return ""


def _topic(entries: Entries) -> Iterator[Row]:
    """Yield descriptions labelled with their package, whose name and the like are blanked."""
    for entry in entries:
        text = _cut(_PACKAGE_NAMES.sub("_", f"{entry.summary} {entry.rest}"), 40)
        if entry.package in PACKAGES and _words(text) >= 8:
            yield {"text_a": text, "label": entry.package}


def _similarity(entries: Entries) -> Iterator[Row]:
    """Yield pairs of descriptions, with the closeness of the described in the tree of packages.

    5 in one docstring, 4 in one class, 3 in one module, 2 in one subpackage, 1 in one package, 0 in
    two packages.
    """
    places = [
        lambda e: "",
        lambda e: e.package,
        lambda e: _subpackage(e),
        lambda e: e.module,
        lambda e: f"{e.module}.{e.name.rpartition('.')[0]}" if "." in e.name else None,
    ]
    groups: list[dict[Any, list[Entry]]] = [collections.defaultdict(list) for _ in places]
    described = [entry for entry in entries if entry.summary]
    for entry in described:
        for place, group in zip(places, groups, strict=True):
            group[place(entry)].append(entry)
    value = 0
    for entry in described:
        other = _partner(entry, value, places, groups)
        if other and other != entry.description:
            yield {"text_a": entry.description, "text_b": other, "value": float(value)}
            value = (value + 1) % 6


def _subpackage(entry: Entry) -> str:
    return ".".join(entry.module.split(".")[:2])


def _partner(
    entry: Entry,
    value: int,
    places: Sequence[Callable[[Entry], Any]],
    groups: Sequence[Mapping[Any, list[Entry]]],
) -> str:
    """Return a description at this level of closeness to an entry, and no closer."""
    chance = _random("similarity", entry.description)
    if value == 5:
        return chance.choice(entry.sentences) if entry.sentences else ""
    place = places[value](entry)
    if place is None:
        return ""
    for other in chance.choices(groups[value][place], k=20):
        nearer = places[value + 1] if value < 4 else None
        if other is not entry and (nearer is None or nearer(other) != nearer(entry)):
            return other.description
    return ""


def _paraphrase(entries: Entries) -> Iterator[Row]:
    """Yield pairs of descriptions of the same name, such as two packages' functions, or not.

    The negative pairs have about as many words in common.
    """
    described = [entry for entry in entries if entry.summary]
    named: dict[str, set[str]] = collections.defaultdict(set)
    for entry in described:
        named[_last(entry.name)].add(entry.description)
    for name, found in sorted(named.items()):
        if len(name) > 3 and not name.startswith("_") and 2 <= len(found) <= _MOST_NAMESAKES:
            chance = _random("paraphrase", name)
            for first, second in itertools.pairwise(chance.sample(sorted(found), len(found))):
                candidates = chance.choices(described, k=_CANDIDATES)
                other = _near(first, name, second, candidates)
                if overlap(first, second) >= _LEAST_OVERLAP and other:
                    yield {"text_a": first, "text_b": second, "label": "paraphrase"}
                    yield {"text_a": first, "text_b": other, "label": "not_paraphrase"}


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _near(text: str, name: str, like: str, candidates: Entries) -> str:
    """Return the description of another name whose overlap with a text is closest to `like`'s."""
    wanted = overlap(text, like)
    others = [one.description for one in candidates if _last(one.name) != name]
    return min(others, key=lambda one: (abs(overlap(text, one) - wanted), one), default="")


def overlap(first: str, second: str) -> float:
    """Return the number of shared words divided by the number of all words (Jaccard)."""
    one, other = (set(re.findall(r"\w+", text.lower())) for text in (first, second))
    return len(one & other) / max(len(one | other), 1)


def _entailment(entries: Entries) -> Iterator[Row]:
    """Yield signatures with a sentence about one of their parameters, or about other code's.

    The other code is from the same package. The sentence does not begin with the parameter's name.
    """
    by_package: dict[str, list[Entry]] = collections.defaultdict(list)
    documented = [entry for entry in entries if _described(entry)]
    for entry in documented:
        by_package[entry.package].append(entry)
    label = "entailment"
    for entry in documented:
        chance = _random("entailment", entry.signature, entry.summary)
        source = entry
        if label == "not_entailment":
            source = chance.choice(by_package[entry.package])
        found = [
            text
            for name, text in _described(source)
            if (name in entry.arguments) == (label == "entailment")
        ]
        if found:
            yield {"text_a": entry.signature, "text_b": chance.choice(found), "label": label}
            label = {"entailment": "not_entailment"}.get(label, "entailment")


def _described(entry: Entry) -> list[tuple[str, str]]:
    """Return (name, first sentence) of parameters in the signature that have a description."""
    first = ((name, _SENTENCE_END.split(text)[0]) for name, _, text in entry.parameters)
    return [
        (name, text) for name, text in first if name in entry.arguments and 5 <= _words(text) <= 25
    ]


def _span(entries: Entries) -> Iterator[Row]:
    """Yield questions about one of several described parameters, answered by a part of the text."""
    for entry in entries:
        known = [one for one in entry.parameters if one[2] and _words(one[2]) <= 25]
        if len(known) < 2:
            continue
        chance = _random("span", entry.signature, *known[0])
        first = chance.randrange(max(1, len(known) - 3))
        shown = known[first : first + 4]
        heads = [f"{name} ({kind}): " if kind else f"{name}: " for name, kind, _ in shown]
        asked, (name, kind, text) = chance.choice(list(enumerate(shown)))
        before = "".join(
            f"{head}{one[2]} " for head, one in zip(heads, shown[:asked], strict=False)
        )
        question, answer = f"What does {name} do?", _SENTENCE_END.split(text)[0]
        start = len(before) + len(heads[asked])
        if kind and chance.random() < 0.5:
            question, answer, start = (
                f"What is the type of {name}?",
                kind,
                len(before) + len(name) + 2,
            )
        context = " ".join(f"{head}{one[2]}" for head, one in zip(heads, shown, strict=True))
        right = {"text": answer, "answer_start": start}
        yield {"question": question, "context": context, "answers": [right]}


def _continuation(entries: Entries) -> Iterator[Row]:
    """Yield sentences with four candidates for the next; wrong ones are from the same package."""
    by_package: dict[str, list[str]] = collections.defaultdict(list)
    for entry in entries:
        by_package[entry.package] += _fitting(entry.sentences)
    for entry in entries:
        texts = [entry.description, *entry.sentences]
        found = [
            (before, after)
            for before, after in itertools.pairwise(texts)
            if before and after in _fitting([after]) and _words(before) <= 30
        ]
        if found:
            chance = _random("continuation", *texts)
            before, after = chance.choice(found)
            yield from _chosen(chance, before, after, by_package[entry.package], CHOICES, texts)


def _fitting(sentences: Sequence[str]) -> list[str]:
    return [one for one in sentences if 6 <= _words(one) <= 25]


def _ranking(entries: Entries) -> Iterator[Row]:
    """Yield descriptions with four candidate texts; wrong ones are from the same package."""
    by_package: dict[str, list[str]] = collections.defaultdict(list)
    for entry in entries:
        if _words(entry.rest) >= 10:
            by_package[entry.package].append(_cut(entry.rest, 30))
    for entry in entries:
        if entry.summary and _words(entry.rest) >= 10:
            chance, right = _random("ranking", entry.summary), _cut(entry.rest, 30)
            others = by_package[entry.package]
            yield from _chosen(chance, entry.description, right, others, CHOICES, [right])


def _chosen(
    chance: random.Random,
    text: str,
    right: str,
    others: Sequence[str],
    number: int,
    not_these: Sequence[str],
) -> Iterator[Row]:
    """Yield a row with the right choice among wrong ones, or nothing if there are too few."""
    wrong = [
        one for one in dict.fromkeys(chance.choices(others, k=4 * number)) if one not in not_these
    ]
    if len(wrong) >= number - 1:
        answer = chance.randrange(number)
        choices = [*wrong[:answer], right, *wrong[answer : number - 1]]
        yield {"text_a": text, "choices": choices, "answer": answer}


def _summary(entries: Entries) -> Iterator[Row]:
    """Yield docstrings without their first sentence, and this sentence as the summary."""
    for entry in entries:
        text = _cut(entry.rest, 60)
        if 4 <= _words(entry.description) <= 20 and _words(text) >= 15 and entry.summary:
            yield {"inputs": text, "targets": entry.description}


TASKS = {
    "acceptability": Task("classification", _acceptability, balanced="label"),
    "topic": Task("classification", _topic, balanced="label"),
    "similarity": Task("regression", _similarity, balanced="value"),
    "paraphrase": Task("classification", _paraphrase, balanced="label"),
    "entailment": Task("classification", _entailment, balanced="label"),
    "span": Task("question_answering", _span),
    "continuation": Task("multiple_choice", _continuation),
    "ranking": Task("multiple_choice", _ranking),
    "summary": Task("", _summary),
}
