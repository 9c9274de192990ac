"""SQuAD, summaries and other tasks as text, string by string: T5's released code, UnifiedQA."""

from pathlib import Path

import pytest

from t5x_like.preprocessing import sources

DATA = Path(__file__).parents[2] / "data"


def table(module, name):
    return getattr(sources.load_module(str(DATA / f"{module}.py")), name)


def pairs(benchmark, raw):
    return [(row["inputs"], row["targets"]) for row in benchmark.text_rows(raw, split="train")]


@pytest.mark.parametrize(
    ("module", "name", "task", "raw", "inputs", "targets"),
    [
        (
            "summarization",
            "SUMMARIES",
            "cnn_dailymail",
            {"article": "An article.", "highlights": "A summary."},
            "summarize: An article.",
            "A summary.",
        ),
        (
            "summarization",
            "SUMMARIES",
            "xsum",
            {"document": "A\ntext.", "summary": "A summary."},
            "summarize: A\ntext.",
            "A summary.",
        ),
        (
            "closed_book_qa",
            "QUESTIONS",
            "natural_questions",
            {"question": "who came", "answer": ["Ann", "Ann B."]},
            "nq question: who came",
            "Ann",
        ),
        (
            "closed_book_qa",
            "QUESTIONS",
            "trivia_qa",
            {"question": "Who came?", "answer": {"value": "Ann", "aliases": ["A.", "Ann"]}},
            "trivia_qa question: Who came?",
            "Ann",
        ),
        (
            "closed_book_qa",
            "QUESTIONS",
            "web_questions",
            {"question": "who came?", "answers": ["Ann", "Bo"]},
            "wq question: who came?",
            "Ann",
        ),
        (
            "race",
            "RACE",
            "race",
            {"article": "It is.", "question": "Is it?", "options": ["No", "Yes"], "answer": "B"},
            "Is it? \\n (A) No (B) Yes \\n It is.",
            "Yes",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "piqa",
            {"goal": "Stir.", "sol1": "A spoon.", "sol2": "A cloud.", "label": 0},
            "Stir. \\n (A) A spoon. (B) A cloud.",
            "A spoon.",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "arc_easy",
            {
                "question": "Where?",
                "choices": {"text": ["here", "there"], "label": ["1", "2"]},
                "answerKey": "2",
            },
            "Where? \\n (A) here (B) there",
            "there",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "winogrande",
            {
                "sentence": "Ann called Bo since _ left.",
                "option1": "Ann",
                "option2": "Bo",
                "answer": "2",
            },
            "Ann called Bo since _ left. \\n (A) Ann (B) Bo",
            "Bo",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "boolq",
            {"question": "is it", "passage": "It is.", "answer": True},
            "boolq passage: It is. question: is it",
            "True",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "lambada",
            {"text": "She called it the otter", "domain": "None"},
            "She called it the",
            "otter",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "story_cloze",
            {
                **{f"input_sentence_{n}": f"{n}." for n in (1, 2, 3, 4)},
                "sentence_quiz1": "Yes.",
                "sentence_quiz2": "No.",
                "answer_right_ending": 2,
            },
            "1. 2. 3. 4. \\n (A) Yes. (B) No.",
            "No.",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "social_iqa",
            {
                "context": "Ann left.",
                "question": "Why?",
                "answerA": "rain",
                "answerB": "sun",
                "answerC": "wind",
                "label": "3",
            },
            "Why? \\n (A) rain (B) sun (C) wind \\n Ann left.",
            "wind",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "mmlu",
            {"question": "Where?", "subject": "", "choices": ["a", "b", "c", "d"], "answer": 1},
            "Where? \\n (A) a (B) b (C) c (D) d",
            "b",
        ),
        (
            "commonsense",
            "COMMONSENSE",
            "truthful_qa",
            {"question": "Do they?", "mc1_targets": {"choices": ["No", "Yes"], "labels": [0, 1]}},
            "Do they?",
            "Yes",
        ),
        (
            "entailment",
            "ENTAILMENT",
            "snli",
            {"premise": "P.", "hypothesis": "H.", "label": 2},
            "snli hypothesis: H. premise: P.",
            "contradiction",
        ),
        (
            "entailment",
            "ENTAILMENT",
            "scitail",
            {"premise": "P.", "hypothesis": "H.", "label": "entails"},
            "scitail hypothesis: H. premise: P.",
            "entails",
        ),
        (
            "entailment",
            "ENTAILMENT",
            "anli_r2",
            {"premise": "P.", "hypothesis": "H.", "label": 0, "uid": "u", "reason": ""},
            "anli hypothesis: H. premise: P.",
            "entailment",
        ),
        (  # as in the docstring of mT5's process_xnli
            "entailment",
            "ENTAILMENT",
            "xnli_de",
            {"premise": "P.", "hypothesis": "H.", "label": 1},
            "xnli: premise: P. hypothesis: H.",
            "neutral",
        ),
        (
            "entailment",
            "ENTAILMENT",
            "fever",
            {"input": "It rains.", "output": [{"answer": "REFUTES", "provenance": []}]},
            "fever claim: It rains.",
            "REFUTES",
        ),
        (
            "sentiment",
            "SENTIMENT",
            "imdb",
            {"text": "Fine.", "label": 1},
            "imdb sentence: Fine.",
            "positive",
        ),
        (
            "sentiment",
            "SENTIMENT",
            "sst5",
            {"text": "fine", "label": 4, "label_text": "very positive"},
            "sst5 sentence: fine",
            "very positive",
        ),
        (
            "summarization",
            "SUMMARIES",
            "gigaword",
            {"document": "a text .", "summary": "text"},
            "summarize: a text .",
            "text",
        ),
        (
            "summarization",
            "SUMMARIES",
            "pubmed",
            {"article": "A text.", "abstract": "Text.", "section_names": "A"},
            "summarize: A text.",
            "Text.",
        ),
        (
            "summarization",
            "SUMMARIES",
            "big_patent",
            {"description": "A text.", "abstract": "Text."},
            "summarize: A text.",
            "Text.",
        ),
        (
            "reading_qa",
            "READING",
            "hotpot_qa",
            {
                "question": "Where?",
                "answer": "here",
                "context": {
                    "title": ["Ann", "Bo"],
                    "sentences": [["She left.", " It rained."], ["He is here."]],
                },
            },
            "Where? \\n Ann: She left. It rained. Bo: He is here.",
            "here",
        ),
        (
            "reading_qa",
            "READING",
            "trivia_qa_reading",
            {
                "question": "Who came?",
                "answer": {"value": "Ann", "aliases": ["A.", "Ann"]},
                "entity_pages": {"wiki_context": ["Ann came.", "So did Bo."]},
                "search_results": {"search_context": ["Who?"]},
            },
            "Who came? \\n Ann came.\nSo did Bo.",
            "Ann",
        ),
    ],
)
def test_other_tasks(module, name, task, raw, inputs, targets):
    assert pairs(table(module, name)[task], raw) == [(inputs, targets)]


@pytest.mark.parametrize(
    ("text", "spaced"),
    [
        (
            '"This  is a string with "punctuation (1845-1986) ".',
            ' " This is a string with " punctuation ( 1845 - 1986 ) " . ',
        ),
        ("a café", "a caf é "),  # the word characters of RE2 are those of ASCII
    ],
)
def test_punctuation_is_spaced_as_in_the_test_of_t5(text, spaced):
    assert table("squad", "spaced")(text) == spaced


def test_squad_as_text():
    raw = {
        "id": "x",
        "context": "Some context.",
        "question": '"A" question?',
        "answers": {"text": ["The answer.", "Another answer."], "answer_start": [0, 0]},
    }
    squad = table("squad", "_SQUAD")
    [row] = squad.text_rows(raw, split="train")
    assert row == {
        "inputs": 'question: " A " question ? context: Some context . ',
        "targets": "The answer . ",
        "answers": ["The answer . ", "Another answer . "],
    }


def test_several_spans_of_drop_are_one_answer():
    raw = {"passage": "P.", "question": "Who?", "answers_spans": {"spans": ["Ann", "Bo", "Ann"]}}
    [row] = table("reading_qa", "READING")["drop"].text_rows(raw, split="train")
    assert row == {
        "inputs": "Who? \\n P.",
        "targets": "Ann, Bo",
        "answers": ["Ann, Bo", "Ann", "Bo"],
    }
    raw["answers_spans"]["spans"] = ["3"]
    [row] = table("reading_qa", "READING")["drop"].text_rows(raw, split="train")
    assert (row["targets"], row["answers"]) == ("3", ["3"])


@pytest.mark.parametrize(
    ("task", "raw"),
    [
        (
            "coqa",
            {
                "story": "P.",
                "questions": ["Who?", "Why?"],
                "answers": {"input_text": ["Ann", "so"]},
            },
        ),
        (
            "quac",
            {
                "context": "P.",
                "questions": ["Who?", "Why?"],
                "answers": {"texts": [["Ann"], ["so"]]},
                "orig_answers": {"texts": ["Ann", "so"]},
            },
        ),
    ],
)
def test_a_question_of_a_conversation_has_those_before_it(task, raw):
    assert pairs(table("reading_qa", "READING")[task], raw) == [
        ("Q: Who? \\n P.", "Ann"),
        ("Q: Who? A: Ann Q: Why? \\n P.", "so"),
    ]


def test_all_answers_to_a_question_of_quac_are_right():
    raw = {"context": "P.", "questions": ["Who?"], "orig_answers": {"texts": ["Ann"]}}
    quac = table("reading_qa", "READING")["quac"]
    [row] = quac.text_rows({**raw, "answers": {"texts": [["Ann", "A."]]}}, split="validation")
    assert (row["targets"], row["answers"]) == ("Ann", ["Ann", "A."])


def test_a_question_of_mrqa_has_the_place_of_its_answer_and_all_right_answers():
    newsqa = table("squad", "_MRQA")["mrqa_newsqa"]
    raw = {
        "subset": "NewsQA",
        "qid": "7",
        "context": "[TLE] Ann's cat. [PAR] It slept.",
        "question": "Whose cat?",
        # MRQA lists all places of a span, each with its last character.
        "detected_answers": {"text": ["ann"], "char_spans": [{"start": [6], "end": [8]}]},
        "answers": ["Ann", "ann's"],
    }
    [text] = newsqa.text_rows(raw, split="validation")
    assert text["inputs"] == "question: Whose cat? context: [TLE] Ann's cat. [PAR] It slept."
    assert (text["targets"], text["answers"]) == ("Ann", ["Ann", "ann's"])
    row = newsqa.labelled_row(raw, most=4)
    assert (row["id"], row["answer_text"], row["answer_start"]) == ("7", "Ann", 6)
    assert newsqa.included(raw)
    assert not newsqa.included({**raw, "subset": "SQuAD"})
    empty = {**raw, "detected_answers": {"text": [], "char_spans": []}}
    with pytest.raises(ValueError, match="char_spans is empty: each question has an answer"):
        newsqa.text_rows(empty, split="validation")


def test_a_question_of_wikihop_has_its_supports_and_candidates():
    raw = {
        "question": "country_of_citizenship ann",
        "answer": "norway",
        "candidates": ["norway", "sweden"],
        "supports": ["Ann is from Oslo.", "Oslo is in Norway."],
    }
    [row] = table("reading_qa", "READING")["wiki_hop"].text_rows(raw, split="validation")
    wanted = r"country_of_citizenship ann \n Ann is from Oslo. Oslo is in Norway."
    assert (row["inputs"], row["targets"]) == (wanted, "norway")
    assert row["choices"] == ["norway", "sweden"]
