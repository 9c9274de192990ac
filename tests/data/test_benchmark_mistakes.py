"""Benchmarks in wrong files or in a form that they do not have: a line names file and field."""

import json

import pytest

from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.pipeline import source_rows
from tests.programs import benchmark_rows
from tests.programs.benchmark_tasks import (
    BYTES,
    MODULES,
    SUITE_OF,
    SUITES,
    UNPARTED,
    benchmark,
    rows,
)


@pytest.mark.parametrize(
    ("suite", "task", "change", "message"),
    [
        ("glue", "glue_mnli", {"label": 3}, "label=3 is not a label: 0 to 2 are entailment, neu"),
        ("glue", "glue_mnli", {"label": "neutrl"}, "'neutrl' is not a label. Did you mean 'neut"),
        ("glue", "glue_mnli", {"label": -1}, "label=-1: the row has no label"),
        ("glue", "glue_mnli", {"premise": None}, "premise=None must be a string"),
        ("glue", "glue_rte", {"sentence1": ...}, "there is no field 'sentence1'. Did you"),
        ("glue", "glue_stsb", {"label": "high"}, "label='high' must be a number from 0 to 5"),
        ("super_glue", "super_glue_multirc", {"idx": 3}, "there is no field 'idx.paragraph'"),
        ("super_glue", "super_glue_record", {"answers": []}, "answers is an empty list"),
        ("super_glue", "super_glue_record", {"query": "Who?"}, r"query='Who\?' has no @placeh"),
        ("super_glue", "super_glue_wsc", {"span2_text": "he"}, "'he' is not a word from span2"),
        ("squad", "squad", {"answers": {"text": [], "answer_start": []}}, "squad_v2 has questions"),
        ("squad", "squad", {"answers": "otter"}, "there is no field 'answers.text'"),
        ("race", "race", {"answer": "E"}, "answer='E' is not a label"),
        ("race", "race", {"options": ["A", "B"]}, "answer='D' is not one of its 2 choices"),
        ("summarization", "xsum", {"summary": ["a"]}, r"summary=\['a'\] must be a string"),
        ("closed_book_qa", "trivia_qa", {"answer": {"value": "a"}}, "no field 'answer.aliases'"),
        ("commonsense", "hellaswag", {"label": ""}, "label='': the row has no label"),
        ("commonsense", "winogrande", {"sentence": "No."}, "sentence='No.' has no blank, _"),
        ("commonsense", "lambada", {"text": "one"}, "text='one' has no two words"),
        ("commonsense", "story_cloze", {"answer_right_ending": 3}, "number=2 is not one of its 2"),
        ("commonsense", "story_cloze", {"answer_right_ending": "1"}, "ending='1' must be a whole"),
        ("commonsense", "social_iqa", {"label": "4"}, "label=4 is not a label"),
        ("commonsense", "mmlu", {"answer": "E"}, "answer='E' is not a label"),
        ("commonsense", "truthful_qa", {"mc1_targets": {"labels": [0]}}, "must have a single 1"),
        ("entailment", "snli", {"label": 3}, "label=3 is not a label: 0 to 2 are entailment"),
        ("entailment", "scitail", {"label": "entail"}, "'entail' is not a label. Did you mean 'en"),
        ("entailment", "fever", {"output": []}, "label='': the row has no label"),
        ("entailment", "fever", {"output": "REFUTES"}, "output='REFUTES' must be a list"),
        ("sentiment", "imdb", {"label": -1}, "label=-1: the row has no label"),
        ("reading_qa", "drop", {"answers_spans": {"spans": []}}, "answers_spans.spans is an empty"),
        ("reading_qa", "hotpot_qa", {"context": {"title": ["A"], "sentences": []}}, "each of 1"),
        ("reading_qa", "wiki_hop", {"answer": "moon"}, "answer='moon' is not one of the"),
        ("reading_qa", "wiki_hop", {"answer": "a", "candidates": ["a", " "]}, "has a blank text"),
        ("reading_qa", "coqa", {"questions": ["Who?"]}, "there are 1 questions and 2 answers"),
        ("reading_qa", "quac", {"answers": {"texts": "Ann"}}, "texts='Ann' must have a list for"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_by_its_file_line_and_field(suite, task, change, message, tmp_path):
    folder = benchmark_rows.write(tmp_path / suite, SUITES[suite])
    for path in (
        folder / (benchmark(suite, task).folder or SUITE_OF[suite]._tasks[task][0])
    ).iterdir():
        made = [json.loads(line) for line in path.read_text().splitlines()]
        made[3] = {k: v for k, v in (made[3] | change).items() if v is not ...}
        path.write_text("".join(json.dumps(row) + "\n" for row in made))
    with pytest.raises(ValueError, match=rf"^\S+\.jsonl:4: .*{message}"):
        rows(suite, task, {suite: str(folder)}, splits=UNPARTED.get(suite))


def test_the_answers_of_spans_are_in_their_context(folders, tmp_path):
    folder = benchmark_rows.write(tmp_path / "squad", SUITES["squad"])
    path = folder / "squad" / "validation.jsonl"
    path.write_text(path.read_text().replace('"answer_start": [', '"answer_start": [1'))
    with pytest.raises(ValueError, match=r"validation.jsonl:1: the answer .* does not occur"):
        rows("squad", "squad", {"squad": str(folder)}, objective="question_answering")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"supporting_facts": ...}, "there is no field 'supporting_facts'"),
        ({"supporting_facts": {"title": ["A"], "sent_id": []}}, "two lists of one length, title"),
        ({"supporting_facts": {"title": ["A"], "sent_id": ["0"]}}, "sent_id with whole numbers"),
        ({"supporting_facts": [["A", 0]]}, r"supporting_facts=|facts=\[\['A', 0\]\] must have"),
        ({"answer": " "}, "its context and its answer must not be blank"),
    ],
)
def test_a_question_whose_facts_cannot_be_read_is_named(changes, message, tmp_path):
    folder = benchmark_rows.write(tmp_path, {"hotpot_qa": benchmark_rows.hotpot_qa})
    path = folder / "hotpot_qa" / "validation.jsonl"
    made = [json.loads(line) for line in path.read_text().splitlines()]
    made[3] = {k: v for k, v in (made[3] | changes).items() if v is not ...}
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    with pytest.raises(ValueError, match=rf"^\S+validation.jsonl:4: .*({message})"):
        rows("reading_qa", "hotpot_qa", {"reading_qa": str(folder)}, objective="supporting_facts")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"short_answers": ...}, "there is no field 'annotations.short_answers'"),
        ({"short_answers": []}, r"annotations.short_answers=\[\] must be a list of 5 values"),
        ({"short_answers": [{"start_token": [1]}] * 5}, "there is no field 'end_token'"),
        ({"yes_no_answer": [0]}, r"annotations.yes_no_answer=\[0\] must be a list of 5 values"),
    ],
)
def test_a_page_whose_answers_cannot_be_read_is_named(changes, message, tmp_path):
    task = "natural_questions_long"
    folder = benchmark_rows.write(tmp_path, {task: benchmark_rows.natural_questions_long})
    path = folder / task / "validation.jsonl"
    made = [json.loads(line) for line in path.read_text().splitlines()]
    changed = made[3]["annotations"] | changes
    made[3]["annotations"] = {k: v for k, v in changed.items() if v is not ...}
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    with pytest.raises(ValueError, match=rf"^\S+validation.jsonl:4: .*{message}"):
        rows("reading_qa", task, {"reading_qa": str(folder)}, objective="long_answers")


def test_more_choices_than_the_objective_has_are_named(folders):
    settings = {"folder": folders["commonsense"]}
    objective = seqio_objectives.build("multiple_choice", choices=3)
    MODULES["commonsense"].register(BYTES, objective, **settings)
    with pytest.raises(ValueError, match=r"jsonl:1: it has 4 choices, and .*choices=3"):
        list(source_rows("arc_easy", split="validation"))


def test_files_and_folders_that_are_not_there_are_named(folders, tmp_path):
    folder = benchmark_rows.write(tmp_path / "glue", {"cola": benchmark_rows.cola})
    (folder / "cola" / "validation.jsonl").rename(folder / "cola" / "val.jsonl")
    here = {"glue": str(folder)}
    with pytest.raises(
        ValueError, match=r"there is no file .*cola/validation.jsonl. Did you mean 'val"
    ):
        rows("glue", "glue_cola", here)
    with pytest.raises(ValueError, match=r"glue/sst2 is not a folder. Allowed: cola"):
        rows("glue", "glue_sst2", here)
    with pytest.raises(ValueError, match=r"glu is not a folder. Did you mean 'glue'"):
        rows("glue", "glue_sst2", {"glue": str(folder)[:-1]})
    (folder / "cola" / "validation.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"validation.jsonl as 'validation': it has no row"):
        rows("glue", "glue_cola", here)
    short = r"train.jsonl as 'train\[79168:\]': it has no row.*data\.settings\.splits\.validation"
    with pytest.raises(ValueError, match=short):
        rows("closed_book_qa", "natural_questions", folders, splits={})
    (folder / "cola" / "validation.jsonl").write_text('{"sentence": "a", "label": 0}\n{"sent')
    with pytest.raises(ValueError, match=r"validation.jsonl:2: it is not JSON"):
        rows("glue", "glue_cola", here)
    with pytest.raises(ValueError, match=r"data.settings.splits.train='train\[' must be the name"):
        rows("glue", "glue_cola", here, splits={"train": "train["})
    with pytest.raises(ValueError, match=r"data.settings.splits='test' does not exist"):
        rows("glue", "glue_cola", here, splits={"test": "test"})


def test_a_form_that_a_task_does_not_have_is_named(folders):
    message = r"objective='classification' is not a form of glue_stsb\. .*Allowed: .*regression"
    with pytest.raises(ValueError, match=message):
        rows("glue", "glue_stsb", folders, objective="classification")
    for function in (MODULES["summarization"].labels, MODULES["summarization"].measure):
        with pytest.raises(ValueError, match="'classification' is not a form of xsum"):
            function("classification", task="xsum")
    with pytest.raises(
        ValueError, match=r"data\.task='glue_col' does not exist\. Did you mean 'glue_cola'"
    ):
        MODULES["glue"].labels("classification", task="glue_col")
    with pytest.raises(
        ValueError, match="the tasks of the mixture 'glue' have measures of their own"
    ):
        MODULES["glue"].measure("text_to_text", task="glue")
