r"""Commonsense and knowledge: SWAG, HellaSwag, PIQA, ARC, OpenBookQA, MMLU and others.

    --config.data.module=data/commonsense.py --config.data.task=hellaswag
    --config.data.settings="{'folder': 'commonsense'}"

The tasks are `swag`, `hellaswag`, `piqa`, `arc_easy`, `arc_challenge`, `openbookqa`, `boolq`,
`winogrande`, `lambada`, `story_cloze`, `social_iqa`, `mmlu` and `truthful_qa`. They are read from
FOLDER/TASK/train.jsonl and so on, in the schema of Hugging Face (allenai/swag, Rowan/hellaswag,
ybisk/piqa, allenai/ai2_arc, allenai/openbookqa, google/boolq, allenai/winogrande, cimec/lambada,
LSDSem/story_cloze, allenai/social_i_qa, cais/mmlu, truthfulqa/truthful_qa), or, except SWAG,
WinoGrande and the last three, from data that tfds prepared. docs/tasks.md has all settings.

The fields of Story Cloze (Mostafazadeh et al. 2016), Social IQa (Sap et al. 2019) and TruthfulQA
(Lin et al. 2022) are in the dataset scripts of huggingface/datasets, such as
datasets/story_cloze/story_cloze.py, and MMLU's (Hendrycks et al. 2021) in the data card of a copy,
hails/mmlu_no_train. Story Cloze has no training stories with two endings: like GPT, models are
trained on its validation set, and the test set validates. MMLU is trained on `auxiliary_train`; for
prompts with examples of its `dev` split set `data.settings.splits` to {'train': 'dev'}. TruthfulQA
has only validation rows; its task is multiple choice with a single true answer (MC1).

T5 only included BoolQ, as part of SuperGLUE. The text form of the others follows UnifiedQA
(Khashabi et al. 2020), which fine-tuned T5, except for its lower case; "\n" there is a backslash
and an n. The text form of SWAG, HellaSwag and LAMBADA is defined here. Rows of text also have
`choices`, for models that choose by likelihood without training (the measure in_context).
"""

from collections.abc import Iterable
from typing import Any

from t5x_like.preprocessing.benchmark_tasks import Benchmark, Suite, benchmark
from t5x_like.preprocessing.benchmark_tasks.benchmark import ChangeRow, Raw

_LETTERS = "ABCDE"


def _choices(inputs: str, **settings: Any) -> Benchmark:
    return Benchmark(inputs=inputs, targets="{choice}", kind="multiple_choice", **settings)


def _lettered(field: str) -> ChangeRow:
    """Add the index of the choice whose label is in `answerKey`: "A" or "1", and so on."""

    def change(raw: Raw) -> Raw:
        labels, right = benchmark.texts(raw, "choices.label"), benchmark.text(raw, "answerKey")
        question = benchmark.text(raw, field)
        return {
            **raw,
            "question": question,
            "number": labels.index(benchmark.label(raw, "answerKey", labels)) if right else -1,
        }

    return change


def _arc(name: str) -> Benchmark:
    return _choices(
        "{question} \\n {options}",
        text_a="{question}",
        choices="choices.text",
        label="number",
        prepare=_lettered("question"),
        test="test",
        prepared=f"ai2_arc/{name}:1.0.0",
        from_prepared=_letters_of_arc,
    )


def _letters_of_arc(raw: Raw) -> Iterable[Raw]:
    labels = [_LETTERS[number] for number in raw["choices"]["label"]]
    choices = {"text": raw["choices"]["text"], "label": labels}
    return [{**raw, "choices": choices, "answerKey": _LETTERS[raw["answerKey"]]}]


def _open_book_of_tfds(raw: Raw) -> Iterable[Raw]:
    letters = list(_LETTERS[:4])
    texts = [raw["question"][f"choice_{letter}"] for letter in letters]
    choices, right = {"text": texts, "label": letters}, _LETTERS[raw["answerKey"]]
    return [{"question_stem": raw["question"]["stem"], "choices": choices, "answerKey": right}]


def _hellaswag_of_tfds(raw: Raw) -> Iterable[Raw]:
    """Adapt HellaSwag's rows: TensorFlow Datasets has the two parts of the context as one."""
    return [{**raw, "ctx": raw["context"], "ctx_a": raw["context"], "ctx_b": ""}]


def _fill_blank(raw: Raw) -> Raw:
    """Split WinoGrande's sentence at the blank, and prefix the rest with each option."""
    before, blank, after = benchmark.text(raw, "sentence").partition("_")
    if not blank:
        raise ValueError(f"sentence={raw['sentence']!r:.80} has no blank, _.")
    options = [benchmark.text(raw, name) for name in ("option1", "option2")]
    return {**raw, "before": before.strip(), "filled": [option + after for option in options]}


def _two_options(raw: Raw) -> Iterable[Raw]:
    """List only the options, since the text form has the whole sentence before them."""
    options = [raw["option1"], raw["option2"]]
    listed = f"(A) {options[0]} (B) {options[1]}"
    own = {"options": listed, "choice": options[raw["right"]], "all_choices": options}
    return [{**raw, **own}]


def _last_word(raw: Raw) -> Raw:
    found = benchmark.text(raw, "text").rsplit(maxsplit=1)
    if len(found) < 2:
        raise ValueError(f"text={raw['text']!r:.80} has no two words.")
    return {**raw, "context": found[0], "word": found[1]}


def _join_story(raw: Raw) -> Raw:
    """Join the four sentences of a story, and number its right ending from 0."""
    sentences = [benchmark.text(raw, f"input_sentence_{n}") for n in (1, 2, 3, 4)]
    right = benchmark.number(raw, "answer_right_ending") - 1
    return {**raw, "story": " ".join(filter(None, sentences)), "number": right}


def _story_of_tfds(raw: Raw) -> Iterable[Raw]:
    """Adapt Story Cloze's rows: TensorFlow Datasets has the four sentences as one text."""
    first, second = raw["endings"]
    texts = {"input_sentence_1": raw["context"], **{f"input_sentence_{n}": "" for n in (2, 3, 4)}}
    endings = {"sentence_quiz1": first, "sentence_quiz2": second}
    return [{**texts, **endings, "answer_right_ending": raw["label"]}]


def _true_answer(raw: Raw) -> Raw:
    """Add the index of TruthfulQA's only true answer."""
    flags = benchmark.value(raw, "mc1_targets.labels")
    if not isinstance(flags, list) or flags.count(1) != 1:
        raise ValueError(f"mc1_targets.labels={flags!r:.80} must have a single 1.")
    return {**raw, "number": flags.index(1)}


COMMONSENSE = {
    "swag": _choices(
        "{sent1} {sent2} \\n {options}",
        text_a="{sent1}",
        text_b="{sent2}",
        labels=("0", "1", "2", "3"),
        choices=("ending0", "ending1", "ending2", "ending3"),
    ),
    "hellaswag": _choices(
        "{ctx} \\n {options}",
        text_a="{ctx_a}",
        text_b="{ctx_b}",
        labels=("0", "1", "2", "3"),
        choices="endings",
        prepared="hellaswag:1.1.0",
        from_prepared=_hellaswag_of_tfds,
    ),
    "piqa": _choices(
        "{goal} \\n {options}",
        text_a="{goal}",
        choices=("sol1", "sol2"),
        prepared="piqa:1.0.0",
    ),
    "arc_easy": _arc("ARC-Easy"),
    "arc_challenge": _arc("ARC-Challenge"),
    "openbookqa": _choices(
        "{question_stem} \\n {options}",
        text_a="{question_stem}",
        choices="choices.text",
        label="number",
        prepare=_lettered("question_stem"),
        test="test",
        prepared="openbookqa:0.1.0",
        from_prepared=_open_book_of_tfds,
    ),
    "boolq": Benchmark(
        inputs="boolq passage: {passage} question: {question}",
        targets="{label}",
        kind="classification",
        text_a="{question}",
        text_b="{passage}",
        label="answer",
        labels=("False", "True"),
        prepared="bool_q:1.0.0",
    ),
    "winogrande": _choices(
        "{sentence} \\n {options}",
        text_a="{before}",
        labels=("1", "2"),
        label="answer",
        choices="filled",
        prepare=_fill_blank,
        for_text=_two_options,
    ),
    "lambada": Benchmark(
        inputs="{context}",
        targets="{word}",
        prepare=_last_word,
        splits={"train": "validation", "validation": "test"},
        prepared="lambada:1.0.0",
        from_prepared=lambda raw: [{"text": raw["passage"]}],
    ),
    "story_cloze": _choices(
        "{story} \\n {options}",
        text_a="{story}",
        label="number",
        choices=("sentence_quiz1", "sentence_quiz2"),
        prepare=_join_story,
        splits={"train": "validation", "validation": "test"},
        prepared="story_cloze/2016:1.0.0",
        from_prepared=_story_of_tfds,
    ),
    "social_iqa": _choices(
        "{question} \\n {options} \\n {context}",
        text_a="{context}",
        text_b="{question}",
        labels=("1", "2", "3"),
        choices=("answerA", "answerB", "answerC"),
    ),
    "mmlu": _choices(
        "{question} \\n {options}",
        text_a="{question}",
        label="answer",
        labels=("A", "B", "C", "D"),
        choices="choices",
        splits={"train": "auxiliary_train", "validation": "validation"},
        test="test",
    ),
    "truthful_qa": _choices(
        "{question}",
        text_a="{question}",
        label="number",
        choices="mc1_targets.choices",
        prepare=_true_answer,
        splits={"validation": "validation"},
    ),
}

_SUITE = Suite(COMMONSENSE)
register, documents = _SUITE.register, _SUITE.documents
labels, measure = _SUITE.labels, _SUITE.measure
