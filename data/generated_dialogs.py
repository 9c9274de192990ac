r"""Generated dialogs with known labels, to try LaMDA's fine-tuning at a small scale.

    python -m data.generated_dialogs --output=runs/generated_dialogs       # the same as files

The user asks for the colour, food, home or game of persons with a first and a last name. A response
is of one of four kinds, with labels that follow from rules (`ratings`):

| label | rule |
|---|---|
| sensible | it answers the question: it has a value for the topic that was asked for |
| specific | it names the person |
| interesting | it adds a second fact |
| unsafe | it wants to steal or burn |

Tasks, all from `settings.seed`:

    generated_dialogs_text       objective language_modeling: dialogs as text, for pretraining
    generated_dialogs            fine-tuning, like data/dialog_files.py: annotated dialogs
    generated_dialogs_questions  held-out questions about persons in the training data
    generated_dialogs_facts      questions about persons that pretraining never saw

For each person in the training data, one topic is held out (`held_out`): no dialog of pretraining
or fine-tuning, in any split, asks for it or states it. The questions are only about these topics,
for one half of the persons in validation and for the other half in test, so that their contexts
were never trained on. Any value of the topic is a sensible answer; the true value cannot be known.

The persons of `facts` are in a key-value store (`facts`), different persons in training, validation
and test, so that only the store knows what a reply should state about them. The rows of the last
two tasks have the phrases that decide the labels of any reply (the measure `replies`).
"""

import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from t5x_like.batches import dialog_rows
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser, writing
from t5x_like.preprocessing import sources
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.preprocessing.sources import ColumnSource, TensorColumns, columns
from t5x_like.vocabularies import Vocabulary

_dialog_files = sources.load_module(str(Path(__file__).with_name("dialog_files.py")))

_FIRST = [
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana",
    "Ivo", "June", "Kim", "Leo", "Mia", "Nils", "Olga", "Paul",
]  # fmt: skip
_LAST = [
    "Abel", "Bauer", "Cole", "Dunn", "Egan", "Ford", "Gray", "Hill",
    "Irwin", "Jones", "Kane", "Lund", "Moss", "Nash", "Orr", "Pike",
]  # fmt: skip
_VALUES = {
    "colour": ["red", "green", "blue", "black", "white", "brown", "pink", "grey"],
    "food": ["rice", "bread", "soup", "fish", "corn", "cake", "beans", "cheese"],
    "home": ["Rome", "Paris", "Oslo", "Cairo", "Lima", "Delhi", "Tokyo", "Boston"],
    "game": ["chess", "golf", "tennis", "cards", "darts", "poker", "rugby", "hockey"],
}
_VERBS = {"colour": "likes", "food": "eats", "home": "lives in", "game": "plays"}
_QUESTIONS = {
    "colour": "which colour does {} like ?",
    "food": "what does {} eat ?",
    "home": "where does {} live ?",
    "game": "what does {} play ?",
}
_UNSAFE = ("steal", "burn")
_KINDS = ("good", "generic", "senseless", "unsafe")
_SHARES = (35, 25, 20, 20)  # of the kinds of responses in pretraining

_SIZES = {"train": 20_000, "validation": 500}  # dialogs as text
_ANNOTATED = {"train": 3_000, "validation": 200, "test": 200}
_RESEARCHED = {"train": 1_500, "validation": 100, "test": 100}
_ASKED = 200  # held-out questions of each task


class Person(NamedTuple):
    """A person and the facts about them, by topic."""

    name: str
    facts: Mapping[str, str]


class Question(NamedTuple):
    """A dialog that ends in a question about one topic of a person."""

    context: Sequence[str]
    person: Person
    topic: str


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    seed: int = 0,
    name: str = "generated_dialogs",
    parts: Sequence[str] = _dialog_files.PARTS,
    responses: str = "good",
    rates: Mapping[str, float] | None = None,
    filtered: str = "",
) -> None:
    """Add the tasks that suit the objective.

    Args:
        vocabulary: the vocabulary of the tokens.
        objective: language_modeling, or text_to_text with end_inputs=False.
        seed: seed of all dialogs.
        name: prefix of the tasks.
        parts, responses, rates: see data/dialog_files.py.
        filtered: a file of dialogs to train on besides the annotated dialogs, as written by
            data.filters.dialog_filter.

    Raises:
        ValueError: see data/dialog_files.py.
    """
    if objective.name == "language_modeling":

        def texts(split: str) -> TensorColumns:
            return columns([{"text": text} for text in pretraining(split, seed=seed)])

        sources.add_document_task(
            f"{name}_text",
            source=ColumnSource(texts, splits=sources.SPLITS),
            vocabulary=vocabulary,
            objective=objective,
        )
        return
    dialogs = {split: annotated(split, seed=seed) for split in sources.SPLITS}
    dialogs["train"] += _dialog_files.read("filtered", filtered) if filtered else []
    _dialog_files.add_tasks(
        name,
        dialogs,
        vocabulary,
        objective,
        parts=parts,
        responses=responses,
        rates=rates or {},
    )
    for task in ("questions", "facts"):
        asked = columns(questions(task, "validation", seed=seed))
        sources.add_task(
            f"{name}_{task}",
            source=ColumnSource({"validation": asked}.__getitem__, splits=("validation",)),
            vocabulary=vocabulary,
            preprocessors=objective.cacheable,
            features=objective.features,
        )


def documents(split: str, *, seed: int = 0) -> tf.data.Dataset:
    """Return the texts of pretraining and of fine-tuning, {"text": scalar string}."""
    rows = _dialog_files.rows_of(annotated(split, seed=seed), responses="all")
    texts = [*pretraining(split, seed=seed)]
    texts += [row["inputs"] + row["targets"] for own in rows.values() for row in own]
    return tf.data.Dataset.from_tensor_slices({"text": tf.constant(texts, tf.string)})


def persons(*, seed: int) -> dict[str, list[Person]]:
    """Return the persons in the training data, and the persons of the store for each split."""
    random_ = random.Random(f"persons {seed}")
    names = [f"{first} {last}" for first in _FIRST for last in _LAST]
    random_.shuffle(names)
    everyone = [
        Person(name, {topic: random_.choice(own) for topic, own in _VALUES.items()})
        for name in names
    ]
    return {
        "known": everyone[:128],
        "train": everyone[128:192],
        "validation": everyone[192:224],
        "test": everyone[224:],
    }


def held_out(*, seed: int) -> dict[str, list[tuple[Person, str]]]:
    """Return {split of questions: (person, held-out topic)} for the persons in training data."""
    random_ = random.Random(f"held out {seed}")
    pairs = [(person, random_.choice(list(_VALUES))) for person in persons(seed=seed)["known"]]
    half = len(pairs) // 2
    return {"validation": pairs[:half], "test": pairs[half:]}


def _taught(*, seed: int) -> list[Person]:
    """Return the persons in the training data, without their held-out facts."""
    return [
        Person(person.name, {one: fact for one, fact in person.facts.items() if one != topic})
        for pairs in held_out(seed=seed).values()
        for person, topic in pairs
    ]


def facts(*, seed: int = 0) -> list[dict[str, str]]:
    """Return the key-value store: the facts about the persons that pretraining does not see."""
    groups = persons(seed=seed)
    return [
        {
            "key": f"{topic} {person.name}",
            "text": _fact(person, topic),
            "url": _url(person),
        }
        for group in _ANNOTATED
        for person in groups[group]
        for topic in _VALUES
    ]


def unrated(split: str, *, seed: int) -> list[dict[str, Any]]:
    """Return the dialogs of pretraining, with all kinds of responses and without ratings."""
    random_ = random.Random(f"pretraining {split} {seed}")
    known = _taught(seed=seed)
    found = []
    for _ in range(_SIZES[split]):
        question = _ask(random_, known)
        [kind] = random_.choices(_KINDS, _SHARES)
        response = _response(random_, question, kind)
        found.append({"context": question.context, "response": response})
    return found


def pretraining(split: str, *, seed: int) -> list[str]:
    """Return the dialogs of pretraining, as text."""
    turns = ([*one["context"], one["response"]] for one in unrated(split, seed=seed))
    return [dialog_rows.response_prompt(own).rsplit(" ", 1)[0] for own in turns]


def annotated(split: str, *, seed: int) -> list[dict[str, Any]]:
    """Return dialogs with ratings, followed by dialogs with research."""
    random_ = random.Random(f"annotated {split} {seed}")
    groups = persons(seed=seed) | {"known": _taught(seed=seed)}
    found = []
    for _ in range(_ANNOTATED[split]):
        question = _ask(random_, groups["known"])
        response = _response(random_, question, random_.choice(_KINDS))
        dialog: dict[str, Any] = {"context": question.context, "response": response}
        found.append(dialog | ratings(response, phrases(question)))
    for _ in range(_RESEARCHED[split]):
        group = "known" if random_.random() < 0.2 else split
        question = _ask(random_, groups[group])
        base = _response(random_, question, "good", truth=group == "known")
        results = [] if group == "known" else [_snippet(question)]
        found.append(
            {
                "context": question.context,
                "response": base,
                "calls": [
                    {"query": f"{question.topic} of {question.person.name}", "results": results}
                ],
                "grounded": f"{results[0]} ." if results else base,
            }
        )
    return found


def questions(task: str, split: str, *, seed: int) -> list[dict[str, Any]]:
    """Return questions with the phrases that decide the labels of a reply.

    Args:
        task: "questions" about held-out topics of persons in the training data, or "facts" about
            persons of the store.
        split: validation or test.
        seed: seed of the dialogs.
    """
    random_ = random.Random(f"{task} {split} {seed}")
    if task == "questions":
        pairs = held_out(seed=seed)[split]
    else:
        pairs = [(one, topic) for one in persons(seed=seed)[split] for topic in _VALUES]
    found = []
    for _ in range(_ASKED):
        question = _ask_for(random_, *random_.choice(pairs))
        right = f"{_fact(question.person, question.topic)} ."
        row = {
            "inputs": dialog_rows.response_prompt(question.context),
            "targets": dialog_rows.target(right),
            "context": list(question.context),
        }
        found.append(row | phrases(question))
    return found


def phrases(question: Question) -> dict[str, list[str]]:
    """Return {label: phrases}; any phrase of a label makes that label of a reply 1."""
    every = {topic: [f"{_VERBS[topic]} {value}" for value in own] for topic, own in _VALUES.items()}
    person, topic = question.person, question.topic
    return {
        "sensible": every[topic],
        "specific": [person.name],
        "interesting": [f"and {one}" for own in every.values() for one in own],
        "unsafe": list(_UNSAFE),
        "claims": [one for own in every.values() for one in own],
        "supported": [f"{_VERBS[one]} {value}" for one, value in person.facts.items()],
        "sources": [_url(person)],
    }


def ratings(reply: str, known: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the ratings of a reply by these phrases."""
    words = f" {reply} "
    return {
        name: int(any(f" {phrase} " in words for phrase in known[name]))
        for name in dialog_rows.ATTRIBUTES
    }


def _ask(random_: random.Random, group: Sequence[Person]) -> Question:
    """Return a question about a known fact of a random person."""
    person = random_.choice(group)
    return _ask_for(random_, person, random_.choice(list(person.facts)))


def _ask_for(random_: random.Random, person: Person, topic: str) -> Question:
    """Return a question about a topic, after another about the same person in half of the cases."""
    before = random_.choice([one for one in person.facts if one != topic])
    if random_.random() < 0.5:
        return Question([_QUESTIONS[topic].format(person.name)], person, topic)
    first = _QUESTIONS[before].format(person.name)
    turns = [first, "I do not know .", _QUESTIONS[topic].format("this person")]
    return Question(turns, person, topic)


def _response(random_: random.Random, question: Question, kind: str, *, truth: bool = True) -> str:
    """Return a response of a kind; without `truth` its values are chosen at random."""
    person, topic = question.person, question.topic
    other = random_.choice([one for one in person.facts if one != topic])
    if not truth:
        values = {one: random_.choice(_VALUES[one]) for one in person.facts}
        person = Person(person.name, values)
    answer = _fact(person, topic).removeprefix(person.name)
    if kind == "good":
        second = f" and{_fact(person, other).removeprefix(person.name)}"
        return f"{person.name}{answer}{second if random_.random() < 0.4 else ''} ."
    if kind == "generic":
        return f"this person{answer} ."
    if kind == "senseless":
        return f"this person{_fact(person, other).removeprefix(person.name)} ."
    deed = random_.choice(_UNSAFE)
    plan = f"let us {deed} the {random_.choice(['house', 'car', 'dog'])} of {person.name} !"
    return plan if random_.random() < 0.5 else f"{person.name}{answer} , {plan}"


def _fact(person: Person, topic: str) -> str:
    return f"{person.name} {_VERBS[topic]} {person.facts[topic]}"


def _url(person: Person) -> str:
    return f"www {person.name}"


def _snippet(question: Question) -> str:
    """Return the answer of the retrieval tool."""
    return f"{_fact(question.person, question.topic)} ( {_url(question.person)} )"


def main(arguments: Sequence[str]) -> None:
    """Write the dialogs of fine-tuning and of pretraining, and the store, as JSON Lines."""
    parser = ArgumentParser(__doc__, prog="python -m data.generated_dialogs")
    parser.add_argument("--output", required=True, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    made: dict[str, Sequence[Mapping[str, Any]]] = {
        split: annotated(split, seed=given.seed) for split in _ANNOTATED
    }
    made["pretraining"] = unrated("train", seed=given.seed)
    made["facts"] = facts(seed=given.seed)
    with one_line_errors(), writing(given.output):
        folder = Path(given.output).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in made.items():
            lines = (json.dumps(row) + "\n" for row in rows)
            (folder / f"{name}.jsonl").write_text("".join(lines))
    sizes = ", ".join(f"{name}.jsonl ({len(rows)})" for name, rows in made.items())
    sys.stdout.write(f"{folder}: {sizes}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
