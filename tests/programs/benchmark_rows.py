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


MRQA_SUBSETS = ("NewsQA", "TriviaQA-web", "SearchQA", "HotpotQA", "NaturalQuestionsShort", "SQuAD")
MRQA_SUBSETS += ("BioASQ", "DROP", "DuoRC.ParaphraseRC", "RACE", "RelationExtraction", "TextbookQA")


def mrqa(n):
    """A row of each subset: the files of Hugging Face's mrqa mix them."""
    row = squad(n)
    animal = row["answers"]["text"][0]
    place = row["context"].index(animal)
    spans = {"start": [place, place + 1], "end": [place + len(animal) - 1, place + 2]}
    found = {
        "qid": f"q{n}",
        "context": row["context"],
        "question": row["question"],
        "detected_answers": {"text": [animal.upper()], "char_spans": [spans]},
        "answers": [animal, f"the {animal}"],
    }
    return [{"subset": subset, **found} for subset in MRQA_SUBSETS]


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


def snli(n):
    row = {name: mnli(n)[name] for name in ("premise", "hypothesis")}
    return {**row, "label": n % 3}


def scitail(n):
    row = {name: mnli(n)[name] for name in ("premise", "hypothesis")}
    return {**row, "label": ("entails", "neutral")[n % 2]}


def anli(n):
    return {"uid": f"u{n}", **snli(n), "reason": ""}


def fever(n):
    nothing = {"left_context": "", "mention": "", "right_context": "", "partial_evidence": []}
    found = {"wikipedia_id": str(n), "title": "Otter", "section": "Section::::Abstract."}
    answer = {"answer": ("SUPPORTS", "REFUTES")[n % 2], "meta": None, "provenance": [found]}
    return {"id": str(n), "input": _sentence(n), "meta": nothing, "output": [answer]}


def imdb(n):
    word = ("dull and tedious", "bright and funny")[n % 2]
    return {"text": f"A {word} film.<br /><br />It has {n} otters.", "label": n % 2}


def sst5(n):
    words = ("very negative", "negative", "neutral", "positive", "very positive")
    text = f"a {words[n % 5]} film about {n} otters"
    return {"text": text, "label": n % 5, "label_text": words[n % 5]}


def story_cloze(n):
    endings = ["It slept.", "It sold the moon."][:: -1 if n % 2 else 1]
    sentences = (_sentence(n), "It rained.", "It woke.", "It ate.")
    return {
        "story_id": f"s{n}",
        **{f"input_sentence_{m}": text for m, text in enumerate(sentences, 1)},
        "sentence_quiz1": endings[0],
        "sentence_quiz2": endings[1],
        "answer_right_ending": 1 + n % 2,
    }


def social_iqa(n):
    answers = [f"{word} {n}" for word in ("tired", "rich", "purple")]
    answers[0], answers[n % 3] = answers[n % 3], answers[0]
    named = dict(zip(("answerA", "answerB", "answerC"), answers, strict=True))
    context = f"{_pick(PEOPLE, n)} walked {n} hours."
    return {"context": context, "question": "How is that?", **named, "label": str(1 + n % 3)}


def mmlu(n):
    row = arc(n - n % 5)
    subject = ("anatomy", "virology")[n % 2]
    return {"question": f"{row['question']} ({n})", "subject": subject} | {
        "choices": row["choices"]["text"],
        "answer": n % 4,
    }


def truthful_qa(n):
    one = {"choices": [f"No, {n} do not.", "Yes, all do.", "Only blue ones."], "labels": [1, 0, 0]}
    many = {"choices": [*one["choices"], "They do not."], "labels": [1, 0, 0, 1]}
    if n % 2:
        one = {name: values[::-1] for name, values in one.items()}
    return {"question": f"Do {n} otters fly?", "mc1_targets": one, "mc2_targets": many}


def drop(n):
    spans = (["3"], [_pick(PEOPLE, n), _pick(PEOPLE, n + 1)], [_pick(PEOPLE, n)] * 2)[n % 3]
    kinds = (["number"], ["span", "span"], ["span", "span"])[n % 3]
    ids = {"section_id": f"nfl_{n}", "query_id": f"q{n}"}
    texts = {"passage": _sentence(n), "question": f"Who kicked {n} goals?"}
    return {**ids, **texts, "answers_spans": {"spans": spans, "types": kinds}}


def hotpot_qa(n):
    person, place = _pick(PEOPLE, n), _pick(PLACES, n)
    sentences = [[f"{person} drew {n} otters.", " It rained."], [f"Otters live in a {place}."]]
    return {
        "id": f"h{n}",
        "question": f"Where do the otters of {person} live ({n})?",
        "answer": ("yes", f"a {place}")[n % 2],
        "type": "bridge",
        "level": "hard",
        "supporting_facts": {"title": [person, "Otter"], "sent_id": [0, 0]},
        "context": {"title": [person, "Otter"], "sentences": sentences},
    }


def trivia_qa_reading(n):
    page = {"doc_source": ["TagMe"], "filename": ["a.txt"], "title": ["Otter"]}
    pages = {**page, "wiki_context": [f"{_pick(PEOPLE, n)} drew it."]}
    none = {name: [] for name in pages}
    found = {"title": ["A"], "search_context": [f"Drawn by {_pick(PEOPLE, n)}."]}
    nothing = {name: [] for name in found}
    own = {"entity_pages": pages, "search_results": nothing}
    if n % 2:
        own = {"entity_pages": none, "search_results": found}
    return trivia_qa(n) | own


def coqa(n):
    person, place = _pick(PEOPLE, n), _pick(PLACES, n)
    answers = {"input_text": [person, f"in the {place}"], "answer_start": [0, 5]}
    return {
        "source": "wikipedia",
        "story": f"{person} slept {n} hours in the {place}.",
        "questions": ["Who slept?", "Where?"],
        "answers": {**answers, "answer_end": [4, 9]},
    }


def quac(n):
    person = _pick(PEOPLE, n)
    first = f"{person} was born in {1900 + n}"
    right = [[first, f"born in {1900 + n}"], ["CANNOTANSWER"]]
    return {
        "dialogue_id": f"C_{n}",
        "wikipedia_page_title": person,
        "background": "",
        "section_title": "Life",
        "context": f"{first}. CANNOTANSWER",
        "turn_ids": [f"C_{n}_q#0", f"C_{n}_q#1"],
        "questions": [f"When was {person} born?", "Why?"],
        "followups": [0, 1],
        "yesnos": [2, 2],
        "answers": {"texts": right, "answer_starts": [[0, 6], [20]]},
        "orig_answers": {"texts": [first, "CANNOTANSWER"], "answer_starts": [0, 20]},
    }


def gigaword(n):
    return {"document": f"{_sentence(n)} it rained .".lower(), "summary": f"otter sleeps {n} hours"}


def scientific_paper(n):
    return {"article": _sentence(n), "abstract": f"We study {n} otters.", "section_names": "Otters"}


def big_patent(n):
    return {"description": f"A device for {n} otters.", "abstract": f"A device ({n})."}


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
SQUAD = {"squad": squad, "squad_v2": squad_v2, "mrqa": mrqa}
RACE = {"all": race, "middle": race, "high": race}
SUMMARIZATION = {
    "cnn_dailymail": cnn_dailymail,
    "xsum": xsum,
    "gigaword": gigaword,
    "arxiv": scientific_paper,
    "pubmed": scientific_paper,
    "big_patent": big_patent,
}
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
    "story_cloze": story_cloze,
    "social_iqa": social_iqa,
    "mmlu": mmlu,
    "truthful_qa": truthful_qa,
}
LANGUAGES = (
    *("ar", "bg", "de", "el", "en", "es", "fr", "hi"),
    *("ru", "sw", "th", "tr", "ur", "vi", "zh"),
)
ENTAILMENT = {
    "snli": snli,
    "scitail": scitail,
    "anli": anli,
    **{f"xnli_{language}": snli for language in LANGUAGES},
    "fever": fever,
}
SENTIMENT = {"imdb": imdb, "sst5": sst5}


def wiki_hop(n):
    animal, place = _pick(ANIMALS, n), _pick(PLACES, n)
    return {
        "id": f"q{n}",
        "question": f"lives_in {animal}",
        "answer": place,
        "candidates": [_pick(PLACES, n - n % 3 + k) for k in range(4)],
        "supports": [f"The {animal} lives by water.", f"Water is in the {place}."],
        "annotations": [],
    }


def natural_questions_long(n):
    """A page of two paragraphs and a list within a table; 5 annotators, 1 in the first split."""
    person, place = _pick(PEOPLE, n), _pick(PLACES, n)
    parts = [["<P>", person, "came", ".", "</P>"], ["<P>", "In", place, ".", "</P>"]]
    tokens = [*parts[0], *parts[1], "<Table>", "<Tr>", "wet", "</Tr>", "</Table>"]
    spans = [(0, 5, True), (5, 10, True), (10, 15, True), (11, 14, False)]
    votes = ([0, -1, -1, 0, 1], [-1, -1, 1, -1, -1], [3, 3, -1, 1, -1])[n % 3]
    votes = votes[:1] if n < ROWS else votes

    def span(vote):
        start, end = (-1, -1) if vote < 0 else spans[vote][:2]
        return {"candidate_index": vote, "start_token": start, "end_token": end}

    def short(vote):
        """The person or the place; for a table none, but yes or no."""
        spans = {0: [(1, 2)], 1: [(7, 8)]}.get(vote, [])
        return {
            "start_token": [first for first, _ in spans],
            "end_token": [end for _, end in spans],
            "text": [tokens[first] for first, _ in spans],
        }

    return {
        "id": str(n),
        "document": {
            "title": person,
            "tokens": {"token": tokens, "is_html": [one.startswith("<") for one in tokens]},
        },
        "question": {"text": f"where did {person} go ({n})", "tokens": ["where"]},
        "long_answer_candidates": {
            "start_token": [one[0] for one in spans],
            "end_token": [one[1] for one in spans],
            "top_level": [one[2] for one in spans],
        },
        "annotations": {
            "id": [str(k) for k in range(len(votes))],
            "long_answer": [span(vote) for vote in votes],
            "short_answers": [short(vote) for vote in votes],
            "yes_no_answer": [int(n % 2) if vote == 3 else -1 for vote in votes],
        },
    }


READING_QA = {
    "natural_questions_long": natural_questions_long,
    "drop": drop,
    "hotpot_qa": hotpot_qa,
    "trivia_qa_reading": trivia_qa_reading,
    "wiki_hop": wiki_hop,
    "coqa": coqa,
    "quac": quac,
}
SPLITS = (
    *("train", "validation", "validation_matched", "validation_mismatched", "test"),
    *(f"{split}_r{n}" for n in (1, 2, 3) for split in ("train", "dev", "test")),
    "auxiliary_train",
)


def write(folder: pathlib.Path, suite, *, rows: int = ROWS) -> pathlib.Path:
    """Write FOLDER/TASK/SPLIT.jsonl of all tasks of a suite; splits have different rows."""
    for task, make in suite.items():
        (folder / task).mkdir(parents=True)
        for number, split in enumerate(SPLITS):
            made: list[dict] = []
            for n in range(number * rows, (number + 1) * rows):
                one = make(n)
                made += one if isinstance(one, list) else [one]
            lines = "".join(json.dumps(row) + "\n" for row in made)
            (folder / task / f"{split}.jsonl").write_text(lines)
    return folder
