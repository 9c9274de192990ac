"""Invented rows of each benchmark, in the schema of its files: 20 of each split, and folders."""

import json
import pathlib

ANIMALS = ("otter", "heron", "badger", "lizard", "falcon")
PLACES = ("harbor", "orchard", "mill", "library", "quarry")
PEOPLE = ("Marta", "Osei", "Lin", "Tomas", "Yuki")
ROWS = 20


def _pick(words, n):
    return words[n % len(words)]


def _sentence(n):
    return f"The {_pick(ANIMALS, n)} near the {_pick(PLACES, n // 2)} slept {n} hours."


def _pair(n, first="sentence1", second="sentence2"):
    """Two sentences that are the same in every second row."""
    return {first: _sentence(n), second: _sentence(n + n % 2), "idx": n}


def cola(n):
    words = _sentence(n).split()
    return {"sentence": " ".join(words[::-1] if n % 2 else words), "label": 1 - n % 2, "idx": n}


def sst2(n):
    word = ("dull and tedious", "bright and funny")[n % 2]
    return {"sentence": f"a {word} film about a {_pick(ANIMALS, n)} ", "label": n % 2, "idx": n}


def same(n, first="sentence1", second="sentence2"):
    return {**_pair(n, first, second), "label": 1 - n % 2}


def stsb(n):
    return {**_pair(n), "label": float(5 - 5 * (n % 2)) if n % 3 else 2.533}


def mnli(n):
    hypothesis = (_sentence(n), "It may have rained there.", f"No {_pick(ANIMALS, n)} slept.")
    return {"premise": _sentence(n), "hypothesis": hypothesis[n % 3], "label": n % 3, "idx": n}


def qnli(n):
    return {**_pair(n, "question", "sentence"), "label": n % 2}


def rte(n):
    return {**_pair(n), "label": n % 2}


def boolq(n):
    question = f"did the {_pick(ANIMALS, n + n % 2)} sleep"
    return {"question": question, "passage": _sentence(n), "idx": n, "label": 1 - n % 2}


def cb(n):
    row = mnli(n)
    return {**row, "premise": f"{row['premise']} B: Really?"}


def copa(n):
    choices = {"choice1": "It was tired.", "choice2": "It was painted blue."}
    if n % 2:
        choices = dict(zip(choices, reversed(choices.values()), strict=True))
    question = ("cause", "effect")[n % 2]
    return {"premise": _sentence(n), **choices, "question": question, "idx": n, "label": n % 2}


def multirc(n):
    paragraph = f"<b>Sent 1: </b>{_sentence(n // 4)}<br><b>Sent 2: </b>It woke at noon.<br>"
    idx = {"paragraph": n // 4, "question": n // 2, "answer": n}
    answer = (f"The {_pick(ANIMALS, n // 4)}", "A tractor")[n % 2]
    row = {"paragraph": paragraph, "question": "Who slept?", "answer": answer}
    return {**row, "idx": idx, "label": 1 - n % 2}


def record(n):
    one, two, three = (_pick(PEOPLE, n + m) for m in range(3))
    passage = f"{one} met {two}.\n@highlight\n{three} stayed home\n@highlight\nIt rained {n} hours"
    return {
        "passage": passage,
        "query": f"@placeholder met {two} in the {_pick(PLACES, n)}",
        "entities": [three, one, two],
        "entity_spans": {"text": [one, two, three], "start": [0, 9, 30], "end": [5, 12, 35]},
        "answers": [one, three] if n % 2 else [one],
        "idx": {"passage": n, "query": 100 + n},
    }


def super_glue_rte(n):
    return {**_pair(n, "premise", "hypothesis"), "label": n % 2}


def wic(n):
    first, second = (
        f"The bank of the {_pick(PLACES, n)}",
        "She robbed a bank" if n % 2 else "A bank",
    )
    places = {"start1": 4, "start2": 2, "end1": 8, "end2": 6}
    row = {"word": "bank", "sentence1": first, "sentence2": second}
    return {**row, **places, "idx": n, "label": 1 - n % 2}


def wsc(n):
    one, two = _pick(PEOPLE, n), _pick(PEOPLE, n + 1)
    text = f"{one} thanked {two} because she had helped with {_pick(PLACES, n)} {n} ."
    spans = {"span1_index": (2, 0)[n % 2], "span2_index": 4}
    named = {"span1_text": (two, one)[n % 2], "span2_text": "she"}
    return {"text": text, **spans, **named, "idx": n, "label": 1 - n % 2}


def axb(n):
    return {**_pair(n), "label": n % 2}


def dpr(n):
    one, two = _pick(PEOPLE, n), _pick(PEOPLE, n + 1)
    sentence = f"{one} called {two} at {n} since she was late, and she ran."
    row = {"sentence": sentence, "pronoun": "she", "candidates": [one, two]}
    return {**row, "label": n % 2}


def squad(n):
    animal, place = _pick(ANIMALS, n), _pick(PLACES, n // 2)
    context = f'In the {place}, a café of 1845-1986, the {animal} slept ("soundly").'
    answers = {"text": [animal, f"the {animal}"], "answer_start": []}
    answers["answer_start"] = [context.index(text) for text in answers["text"]]
    question = f"Who slept in the {place}?"
    return {"id": f"q{n}", "title": place, "context": context, "question": question} | {
        "answers": answers
    }


def squad_v2(n):
    return {**squad(n), **({"answers": {"text": [], "answer_start": []}} if n % 2 else {})}


def race(n):
    options = [f"A {_pick(ANIMALS, n + m)}" for m in range(4)]
    article = f"{_sentence(n)} Nobody saw it."
    row = {"example_id": f"high{n}.txt", "article": article, "answer": "ABCD"[n % 4]}
    options[n % 4], options[0] = options[0], options[n % 4]
    return {**row, "question": "What slept?", "options": options}


def cnn_dailymail(n):
    return {"article": f"{_sentence(n)} It rained.", "highlights": _sentence(n), "id": f"{n:040x}"}


def xsum(n):
    return {"document": f"{_sentence(n)}\nIt rained.", "summary": _sentence(n), "id": str(n)}


def natural_questions(n):
    place = _pick(PLACES, n)
    return {"question": f"where does the otter {n} live", "answer": [f"the {place}", place]}


def trivia_qa(n):
    person = _pick(PEOPLE, n)
    answer = {
        "aliases": [f"{person} Berg", person, f"Dr. {person} Berg"],
        "normalized_aliases": [
            f"{person} berg".lower(),
            person.lower(),
            f"dr {person} berg".lower(),
        ],
        "matched_wiki_entity_name": "",
        "normalized_matched_wiki_entity_name": "",
        "normalized_value": person.lower(),
        "type": "WikipediaEntity",
        "value": person,
    }
    nothing = {"entity_pages": {"title": []}, "search_results": {"title": []}}
    question = f"Who drew the {_pick(ANIMALS, n)} number {n}?"
    return {"question": question, "question_id": f"tc_{n}", "question_source": "", **nothing} | {
        "answer": answer
    }


def web_questions(n):
    url = f"http://www.example.com/{n}"
    return {"url": url, "question": f"who is {n}?", "answers": [_pick(PEOPLE, n), "nobody"]}


def hellaswag(n):
    endings = ["goes to sleep.", "turns into a lamp.", "reads the moon.", "sells its shadow."]
    endings[0], endings[n % 4] = endings[n % 4], endings[0]
    first, second = _sentence(n), f"the {_pick(ANIMALS, n)}"
    return {
        "ind": n,
        "activity_label": "Sleeping",
        "ctx_a": first,
        "ctx_b": second,
        "ctx": f"{first} {second}",
        "endings": endings,
        "source_id": f"activitynet~v_{n}",
        "split": "train",
        "split_type": "indomain",
        "label": str(n % 4),
    }


def swag(n):
    row = hellaswag(n)
    endings = {f"ending{m}": ending for m, ending in enumerate(row["endings"])}
    texts = {"startphrase": row["ctx"], "sent1": row["ctx_a"], "sent2": row["ctx_b"]}
    places = {"video-id": f"lsmdc_{n}", "fold-ind": str(n), "gold-source": "gold"}
    return {**places, **texts, **endings, "label": n % 4}


def piqa(n):
    solutions = ["Use a spoon.", "Use a cloud."]
    first, second = solutions[:: -1 if n % 2 else 1]
    return {"goal": f"Stir {n} cups", "sol1": first, "sol2": second, "label": n % 2}


def arc(n):
    labels = ["1", "2", "3"] if n % 5 == 4 else ["A", "B", "C", "D"]
    texts = [_pick(PLACES, n + m) for m in range(len(labels))]
    row = {"id": f"Mercury_{n}", "question": f"Where do {n} otters sleep?"}
    right = labels[n % len(labels)]
    return {**row, "choices": {"text": texts, "label": labels}, "answerKey": right}


def openbookqa(n):
    row = arc(n - n % 5)
    return {
        "id": row["id"],
        "question_stem": f"{n} otters sleep in the",
        **{name: row[name] for name in ("choices", "answerKey")},
    }


def google_boolq(n):
    return {"question": boolq(n)["question"], "answer": n % 2 == 0, "passage": _sentence(n)}


def winogrande(n):
    one, two = _pick(PEOPLE, n), _pick(PEOPLE, n + 1)
    sentence = f"{one} called {two} because _ was {('bored', 'missed')[n % 2]}."
    return {"sentence": sentence, "option1": one, "option2": two, "answer": str(1 + n % 2)}


def lambada(n):
    return {"text": f"{_sentence(n)} so she called it the {_pick(ANIMALS, n)}", "domain": "None"}


def wnli(n):
    animal, other = _pick(ANIMALS, n), _pick(ANIMALS, n + 1)
    return {
        "sentence1": f"The {animal} saw the {other} {n} times before it ran away.",
        "sentence2": f"The {_pick([animal, other], n)} ran away.",
        "label": n % 2,
        "idx": n,
    }


# By the folder of each task: what makes a row, and the files that are published with labels.
GLUE = {
    "cola": cola,
    "sst2": sst2,
    "mrpc": same,
    "qqp": lambda n: same(n, "question1", "question2"),
    "stsb": stsb,
    "mnli": mnli,
    "qnli": qnli,
    "rte": rte,
    "wnli": wnli,
    "ax": mnli,
}
SUPER_GLUE = {
    "boolq": boolq,
    "cb": cb,
    "copa": copa,
    "multirc": multirc,
    "record": record,
    "rte": super_glue_rte,
    "wic": wic,
    "wsc.fixed": wsc,
    "axb": axb,
    "axg": super_glue_rte,
    "definite_pronoun_resolution": dpr,
}
SQUAD = {"squad": squad, "squad_v2": squad_v2}
RACE = {"all": race, "middle": race, "high": race}
SUMMARIZATION = {"cnn_dailymail": cnn_dailymail, "xsum": xsum}
CLOSED_BOOK_QA = {
    "natural_questions": natural_questions,
    "trivia_qa": trivia_qa,
    "web_questions": web_questions,
}
COMMONSENSE = {
    "swag": swag,
    "hellaswag": hellaswag,
    "piqa": piqa,
    "arc_easy": arc,
    "arc_challenge": arc,
    "openbookqa": openbookqa,
    "boolq": google_boolq,
    "winogrande": winogrande,
    "lambada": lambada,
}
SPLITS = ("train", "validation", "validation_matched", "validation_mismatched", "test")


def write(folder: pathlib.Path, suite, *, rows: int = ROWS) -> pathlib.Path:
    """Write FOLDER/TASK/SPLIT.jsonl of all tasks of a suite; splits have different rows."""
    for task, make in suite.items():
        (folder / task).mkdir(parents=True)
        for number, split in enumerate(SPLITS):
            made = [make(n) for n in range(number * rows, (number + 1) * rows)]
            lines = "".join(json.dumps(row) + "\n" for row in made)
            (folder / task / f"{split}.jsonl").write_text(lines)
    return folder
