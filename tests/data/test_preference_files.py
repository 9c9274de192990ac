"""Files of demonstrations and comparisons: every form that is read, and each bad line named."""

import importlib.util
import json
import pathlib

import numpy as np
import pytest

from t5x_like import vocabularies
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.pipeline import source_rows

SPEC = importlib.util.spec_from_file_location(
    "preference_files", pathlib.Path(__file__).parents[2] / "data" / "preference_files.py"
)
preference_files = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(preference_files)

USER, OTHER = ({"role": "user", "content": text} for text in ("A pet?", "Or a fish?"))
DOG, NO = ({"role": "assistant", "content": text} for text in ("A dog.", "No."))
RANKED = {"prompt": "A pet?", "responses": ["A dog.", "No.", "Cat"], "ranks": [1, 3, 2]}
PAIR = {"prompt": "A pet?", "chosen": "A dog.", "rejected": "No."}
CHAT = {"prompt": "User: A pet?\n\nAssistant:", "responses": [" A dog.", " No."], "ranks": [1, 2]}


@pytest.fixture
def write(tmp_path):
    def write(*lines):
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (tmp_path / "rows.jsonl").write_text("\n".join(texts) + "\n")
        return str(tmp_path / "rows.jsonl")

    return write


def plain(row):
    return {
        name: value.decode()
        if isinstance(value, bytes)
        else [one.decode() if isinstance(one, bytes) else int(one) for one in value]
        for name, value in row.items()
    }


def rows(path, *, objective="comparisons", split="train", held_out=0.0, **settings):
    made = seqio_objectives.build(
        objective, **({"responses": 4} if objective == "comparisons" else {})
    )
    vocabulary = vocabularies.load("bytes:0")
    preference_files.register(vocabulary, made, train=path, held_out=held_out, **settings)
    return [plain(row) for row in source_rows("preference_files", split=split)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (RANKED, RANKED),
        (PAIR, {"prompt": "A pet?", "responses": ["A dog.", "No."], "ranks": [1, 2]}),
        # ultrafeedback_binarized: the prompt is the first message, too.
        ({"prompt": "A pet?", "chosen": [USER, DOG], "rejected": [USER, NO]}, CHAT),
        ({"chosen": [USER, DOG], "rejected": [USER, NO]}, CHAT),
        ({"prompt": [USER], "chosen": "A", "rejected": "B"}, CHAT | {"responses": ["A", "B"]}),
        (
            {"prompt": [USER], "responses": [NO, [DOG]], "ranks": [2, 1]},
            CHAT | {"responses": [" No.", " A dog."], "ranks": [2, 1]},
        ),
        # Anthropic/hh-rlhf.
        (
            {
                "chosen": "\n\nHuman: Hi\n\nAssistant: Hi!\n\nHuman: A pet?\n\nAssistant: A dog.",
                "rejected": "\n\nHuman: Hi\n\nAssistant: Hi!\n\nHuman: A pet?\n\nAssistant: No.",
            },
            CHAT | {"prompt": "User: Hi\n\nAssistant: Hi!\n\nUser: A pet?\n\nAssistant:"},
        ),
        # openai/summarize_from_feedback.
        (
            {
                "info": {"subreddit": "dogs", "title": "Fish", "post": "So.", "article": None},
                "summaries": [{"text": " One"}, {"text": "Two"}],
                "choice": 1,
            },
            {
                "prompt": "SUBREDDIT: r/dogs\n\nTITLE: Fish\n\nPOST: So.\n\nTL;DR:",
                "responses": [" One", " Two"],
                "ranks": [2, 1],
            },
        ),
        # openai/webgpt_comparisons, whose other fields are not read.
        (
            {
                "question": {"dataset": "eli5", "id": "3", "full_text": "Why?\n\nSay it."},
                **{"answer_0": "As it is [1].", "answer_1": "No.\n", "quotes_0": {"title": []}},
                **{"score_0": -0.25, "score_1": 0.25},
            },
            {
                "prompt": "User: Why?\n\nSay it.\n\nAssistant:",
                "responses": [" As it is [1].", " No."],
                "ranks": [2, 1],
            },
        ),
    ],
)
def test_comparisons_of_every_form(write, line, expected):
    assert rows(write(line)) == [expected]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"prompt": "A pet?", "response": "A dog."}, [("A pet?", "A dog.")]),
        ({"prompt": "A pet?", "completion": "A dog."}, [("A pet?", "A dog.")]),
        ({"inputs": "A pet?", "targets": "A dog."}, [("A pet?", "A dog.")]),
        (RANKED | {"ranks": [2, 1, 3]}, [("A pet?", "No.")]),  # the best one
        (
            {"messages": [USER, DOG, OTHER, NO]},
            [
                ("User: A pet?\n\nAssistant:", " A dog."),
                ("User: A pet?\n\nAssistant: A dog.\n\nUser: Or a fish?\n\nAssistant:", " No."),
            ],
        ),
    ],
)
def test_demonstrations_of_every_form(write, line, expected):
    found = rows(write(line), objective="text_to_text")
    assert [(row["inputs"], row["targets"]) for row in found] == expected


def test_templates(write):
    line = {"messages": [{"role": "system", "content": "Be kind."}, USER, DOG]}
    [row] = rows(write(line), objective="text_to_text", template="chatml")
    assert row == {
        "inputs": "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nA pet?<|im_end|>\n"
        "<|im_start|>assistant\n",
        "targets": "A dog.",
    }
    own = {"system": "{}|", "user": "Q {}|", "assistant": "A  {}|"}
    [row] = rows(write(line), objective="text_to_text", template=own)
    assert row == {"inputs": "Be kind.|Q A pet?|A", "targets": "  A dog."}


def test_ties_are_left_out_and_counted(write, caplog):
    tied = RANKED | {"ranks": [1, 1, 1]}
    with caplog.at_level("INFO"):
        found = rows(write(tied, RANKED | {"ranks": [1, 1, 2]}, tied))
    assert [row["ranks"] for row in found] == [[1, 1, 2]]
    assert "2 lines in which all responses are tied are left out" in caplog.text


def test_a_share_of_the_prompts_is_held_out(write):
    lines = [PAIR | {"prompt": f"{n % 50}?"} for n in range(100)]
    path = write(*lines)
    train, validation = (
        {row["prompt"] for row in rows(path, split=split, held_out=0.2)}
        for split in ("train", "validation")
    )
    assert not train & validation
    assert len(train | validation) == 50
    assert 2 <= len(validation) <= 20  # 10 in the mean, deviating by 2.8
    texts = preference_files.documents("validation", train=path, held_out=0.2)
    assert len(list(texts)) == 3 * 2 * len(validation)
    assert np.all([text["text"].numpy() for text in texts])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"rows\.jsonl:2: it is not JSON"),
        ("[1]", r"rows\.jsonl:2: it is not a JSON object"),
        ({"prompt": "a", "chosen": "b"}, r"rows\.jsonl:2: there is no 'rejected': .* a winner"),
        (PAIR | {"chosen": None}, r"there is no 'chosen': a comparison needs a winner"),
        ({"chosen": "a", "rejected": "b"}, r"there is no 'prompt'"),
        ({"responses": ["a", "b"], "prompt": "a"}, r"no list 'ranks': without a ranking no resp"),
        (RANKED | {"ranks": [1, 2]}, r"3 responses have 2 ranks"),
        (RANKED | {"ranks": [0, 1, 2]}, r"ranks=\[0, 1, 2\] must be whole numbers, 1 for the best"),
        (RANKED | {"ranks": [2, 3, 4]}, r"must be whole numbers, 1 for the best"),
        (RANKED | {"ranks": [1, 2.5, 3]}, r"must be whole numbers"),
        (RANKED | {"responses": ["a"], "ranks": [1]}, r"responses: 1 cannot be compared"),
        ({"prompt": "a", "response": "b"}, r"responses: 1 cannot be compared, give two or more"),
        (
            {"prompt": "a", "responses": ["a"] * 5, "ranks": [1, 2, 3, 4, 5]},
            r"5 responses are more than data\.objective_settings\.responses=4",
        ),
        (RANKED | {"responses": ["a", 1, "b"]}, r"1 is not a list of messages"),
        ({"chosen": [USER, DOG], "rejected": [OTHER, NO]}, r"differ before the last answer"),
        ({"chosen": [USER], "rejected": [USER]}, r"does not end with an answer"),
        ({"messages": [USER]}, r"messages has no answer of the assistant"),
        (
            {"messages": [{"role": "me", "content": "a"}]},
            r"message 1 has the role 'me'; allowed: s",
        ),
        ({"messages": [{"role": "user"}]}, r"message 1 is not an object with a role and a content"),
        ({"messages": []}, r"\[\] is not a list of messages"),
        ({"text": "a"}, r"the fields text are neither a demonstration nor a comparison"),
        ({"question": "Why?", "answer_0": "a", "answer_1": "b"}, r"question\.full_text, answer_0"),
        (
            {"question": {"full_text": "Why?"}, "answer_0": "a", "answer_1": "b", "score_0": 1},
            r"score_0=1 and score_1=None are not two numbers",
        ),
        ({"info": {}, "summaries": [{}, {}], "choice": 2}, r"choice=2 must be 0 or 1"),
        ({"info": {}, "summaries": [{}, {}], "choice": 1}, r"summaries lack a text, or info one"),
    ],
)
def test_a_bad_line_is_named_by_its_file(write, line, message):
    with pytest.raises(ValueError, match=message):
        rows(write(RANKED, line))


def test_answers_of_the_same_score_are_a_tie(write):
    scored = {"question": {"full_text": "Why?"}, "answer_0": "So.", "answer_1": "No."}
    first, tie = ({**scored, "score_0": score, "score_1": -score} for score in (1, 0.0))
    assert [row["ranks"] for row in rows(write(first, tie))] == [[1, 2]]  # a tie is left out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"template": "plan"}, r"template='plan' does not exist\. Did you mean 'plain'"),
        ({"template": {"user": "{}"}}, r"it needs one for each of system, user, assistant"),
        (
            {"template": {"system": "{}", "user": "U", "assistant": "{}"}},
            r"template\.user='U' must be a text with one \{\}",
        ),
        ({"held_out": 1.0}, r"held_out=1\.0 must be a share"),
        ({"held_out": "x"}, r"data\.settings\.held_out='x' must be a number"),
        ({"most": 3}, r"data\.settings\.most does not exist"),
    ],
)
def test_bad_settings_are_named(write, settings, message):
    with pytest.raises(ValueError, match=message):
        rows(write(RANKED), **{"held_out": 0.0} | settings)


def test_files_that_are_not_there_are_named(write):
    near = write(RANKED).replace("rows", "row")
    with pytest.raises(ValueError, match=r"is not a file\. Did you mean 'rows\.jsonl'"):
        rows(near)
    with pytest.raises(ValueError, match=r"train is not set: give a \.jsonl file"):
        rows("")
    with pytest.raises(ValueError, match=r"no lines to learn from; 1 ties were left out"):
        rows(write(PAIR | {"responses": ["a", "b"], "ranks": [1, 1]}))
