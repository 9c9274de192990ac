"""Prompts from files: the batches of a decoder and of an encoder-decoder, and bad files."""

import json

import numpy as np
import pytest

from data import prompt_files
from t5x_like import vocabularies
from t5x_like.batches import converters
from t5x_like.batches.packing import to_batch
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.pipeline import SeqioBatches

START, END = 9, 1


@pytest.fixture
def files(tmp_path):
    prompts = ["ab", "abcdef", "c"]
    lines = [json.dumps({"prompt": one, "chosen": "x"}) for one in prompts]
    (tmp_path / "prompts.jsonl").write_text("\n".join([*lines, ""]))
    (tmp_path / "texts.txt").write_text("p\nqrstu\n")
    return {
        "prompts": str(tmp_path / "prompts.jsonl"),
        "pretraining": str(tmp_path / "texts.txt"),
        "held_out": 0.0,
    }


def ids(text):
    return [ord(letter) + 3 for letter in text]


def test_prompts_of_a_decoder_end_where_the_response_begins():
    converter = converters.build("decoder_prompts", pretraining_rows=2, start=START)
    lengths = {"inputs": 4, "targets": 3, "pretraining": 4}
    example = {
        "inputs": np.int32([5, 6]),
        "pretraining": np.int32([7, 8, 1, -1, 4, 3, 2, 5]),
    }
    rows = [[converter.sequences(example)], []]
    made = to_batch(
        rows, converter=converter, lengths=converter.feature_lengths(lengths), pack=False
    )
    expected = {
        "decoder_input_tokens": [[0, 0, START, 5, 6], [0] * 5],
        "decoder_segment_ids": [[0, 0, 1, 1, 1], [0] * 5],
        "responses": [[0] * 3] * 2,
        "pretraining_decoder_input_tokens": [[[START, 7, 8, 0], [START, 4, 3, 2]], [[0] * 4] * 2],
        "pretraining_decoder_target_tokens": [[[7, 8, 1, 0], [4, 3, 2, 5]], [[0] * 4] * 2],
        "pretraining_decoder_loss_weights": [[[1, 1, 1, 0], [1] * 4], [[0] * 4] * 2],
    }
    assert made.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(made[name], values, err_msg=name)


def test_prompts_of_an_encoder_decoder():
    converter = converters.build("encoder_prompts", pretraining_rows=2, start=START)
    lengths = {"inputs": 4, "targets": 3, "pretraining_inputs": 3, "pretraining_targets": 2}
    example = {
        "inputs": np.int32([5, 6]),
        "pretraining_inputs": np.int32([7, 8, 1, 4, 1, -1]),
        "pretraining_targets": np.int32([3, 1, 1, -1]),
    }
    rows = [[converter.sequences(example)], []]
    made = to_batch(
        rows, converter=converter, lengths=converter.feature_lengths(lengths), pack=False
    )
    expected = {
        "pretraining_encoder_input_tokens": [[[7, 8, 1], [4, 1, 0]], [[0] * 3] * 2],
        "pretraining_encoder_segment_ids": [[[1, 1, 1], [1, 1, 0]], [[0] * 3] * 2],
        "pretraining_decoder_input_tokens": [[[START, 3], [START, 0]], [[0] * 2] * 2],
        "pretraining_decoder_target_tokens": [[[3, 1], [1, 0]], [[0] * 2] * 2],
        "pretraining_decoder_loss_weights": [[[1, 1], [1, 0]], [[0] * 2] * 2],
        "encoder_input_tokens": [[5, 6, 0, 0], [0] * 4],
        "encoder_segment_ids": [[1, 1, 0, 0], [0] * 4],
        "decoder_input_tokens": [[START], [0]],
        "decoder_segment_ids": [[1], [0]],
        "responses": [[0] * 3] * 2,
    }
    assert made.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(made[name], values, err_msg=name)


def batches(converter, lengths, **settings):
    """The batches of 3 prompts of up to 4 tokens, in the order of the file."""
    read = {"shuffle": False, "repeat": False, "seed": 0, "shards": 1} | settings
    lengths = {"inputs": 4, "targets": 2} | lengths
    return SeqioBatches(
        "prompt_files", split="train", batch_size=3, lengths=lengths, converter=converter, **read
    )


@pytest.mark.parametrize("end", [True, False])
def test_files_become_prompts_with_texts_beside_them(files, end):
    settings = {"end_inputs": end, "pretraining_rows": 3}
    objective = seqio_objectives.build("prompts", **settings)
    prompt_files.register(vocabularies.load("bytes"), objective, **files)
    converter = converters.build("decoder_prompts", pretraining_rows=3, start=0)
    [made] = list(batches(converter, {"pretraining": 3}))
    found = [
        [int(token) for token, real in zip(*row, strict=True) if real][1:]
        for row in zip(made["decoder_input_tokens"], made["decoder_segment_ids"], strict=True)
    ]
    whole = [ids("ab"), ids("def") if end else ids("cdef"), ids("c")]
    assert sorted(found) == sorted(one + [END] * end for one in whole)
    texts = made["pretraining_decoder_target_tokens"].reshape(-1, 3).tolist()
    assert {tuple(one) for one in texts} == {(*ids("p"), END, 0), tuple(ids("qrs"))}
    assert len(texts) == 9


def chunk(inputs, targets, *, first):
    """The text that span corruption made a pair of; sentinels count down from `first`."""
    spans = []
    for token in targets:
        if token == first - len(spans):
            spans.append([])
        else:
            spans[-1].append(token)
    of = {first - n: span for n, span in enumerate(spans)}
    return [one for token in inputs for one in of.get(token, [token])]


@pytest.mark.parametrize("objective", ["span_corruption", "prefix_lm"])
def test_texts_beside_the_prompts_of_an_encoder_decoder_are_changed_by_their_objective(
    files, objective
):
    texts = [bytes(range(33, 33 + size)).decode() for size in (37, 90)]
    with open(files["pretraining"], "w") as file:
        file.write("\n".join(texts))
    vocabulary = vocabularies.load("bytes:20")
    settings = {"pretraining_rows": 4, "pretraining_objective": objective}
    prompt_files.register(vocabulary, seqio_objectives.build("prompts", **settings), **files)
    converter = converters.build("encoder_prompts", pretraining_rows=4, start=0)
    lengths = {"pretraining_inputs": 40, "pretraining_targets": 40}
    endless = iter(batches(converter, lengths, repeat=True))
    epochs = [next(endless), next(endless)]
    made = epochs[0]
    pairs = [
        [tuple(int(x) for x in tokens if x) for tokens in pair]
        for pair in zip(
            made["pretraining_encoder_input_tokens"].reshape(12, -1),
            made["pretraining_decoder_target_tokens"].reshape(12, -1),
            strict=True,
        )
    ]
    for inputs, targets in pairs:
        assert inputs[-1] == targets[-1] == END
        if objective == "prefix_lm":
            text = [*inputs[:-1], *targets[:-1]]
            assert len(inputs) > 1 < len(targets)
        else:
            text = chunk(inputs[:-1], targets[:-1], first=vocabulary.first_sentinel)
        # A short text is whole; of a long one it is what fills the inputs.
        assert text in (ids(texts[0]), ids(texts[1])[: 40 if objective == "prefix_lm" else 44])
    # Every row has noise of its own, and other noise in the next epoch.
    assert len({pair[0] for pair in pairs}) > 2
    name = "pretraining_encoder_input_tokens"
    assert np.any(made[name] != epochs[1][name])


@pytest.mark.parametrize(
    ("changes", "line", "message"),
    [
        ({"prompts": ""}, None, "data.settings.prompts is not set"),
        ({"prompts": "none.jsonl"}, None, "data.settings.prompts='none.jsonl' is not a file"),
        ({"pretraining": ""}, None, "data.settings.pretraining is not set"),
        ({"held_out": 1.0}, None, "held_out=1.0 must be a share"),
        ({}, "{", r"prompts.jsonl:1: it is not JSON"),
        (
            {},
            '{"promt": "a"}',
            r"prompts.jsonl:1: there is no 'prompt'. Did you mean 'promt'",
        ),
        ({"field": "text"}, None, "there is no 'text'"),
        ({}, '{"prompt": 3}', r"prompts.jsonl:1: prompt=3 is not a string$"),
        ({}, "[3]", r"prompts.jsonl:1: it is not a JSON object"),
        ({}, '{"prompt": []}', r"prompts.jsonl:1: \[\] is not a list of messages"),
        ({}, '{"prompt": [{"role": "human", "content": "a"}]}', "has the role 'human'; allowed"),
        ({}, '{"prompt": [{"role": "assistant", "content": "a"}]}', "there is nothing to answer"),
        ({"template": "chat"}, None, "template='chat' does not exist. Did you mean 'chatml'"),
    ],
)
def test_bad_files_are_named(files, changes, line, message):
    if line:
        with open(files["prompts"], "w") as file:
            file.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        prompt_files.read(2, **(files | changes))


def test_conversations_are_written_by_the_template_up_to_the_next_answer(files):
    question = {"role": "user", "content": "A pet?"}
    answered = [question, {"role": "assistant", "content": "A dog."}]
    rows = [{"prompt": [question]}, {"prompt": answered}, {"prompt": [*answered, question]}]
    with open(files["prompts"], "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    found = [row["inputs"] for row in prompt_files.read(**files)["train"]]
    asked = "User: A pet?\n\nAssistant:"
    assert found == [asked, asked, f"{asked} A dog.\n\n{asked}"]
    [row, *_] = prompt_files.read(**files, template="chatml")["train"]
    assert row["inputs"] == "<|im_start|>user\nA pet?<|im_end|>\n<|im_start|>assistant\n"


def test_other_objectives_and_packed_rows_are_refused(files):
    vocabulary = vocabularies.load("bytes")
    with pytest.raises(ValueError, match=r"data.objective='text_to_text'.*has 'prompts'"):
        prompt_files.register(vocabulary, seqio_objectives.build("text_to_text"), **files)
    converter = converters.build("decoder_prompts")
    lengths = {"inputs": 4, "targets": 3, "pretraining": 8}  # of which none are read without rows
    converters.check(converter, features=("inputs",), lengths=lengths)
    with pytest.raises(ValueError, match=r"data.pack=True: examples of decoder_prompts cannot"):
        converters.check(converter, features=("inputs",), lengths={"inputs": 4}, pack=True)
    converter = converters.build("encoder_prompts", pretraining_rows=2)
    with pytest.raises(ValueError, match="reads inputs, pretraining_inputs, pretraining_targets"):
        converters.check(converter, features=("inputs", "pretraining"), lengths={"inputs": 4})
    with pytest.raises(ValueError, match="pretraining_objective='span_corrupt' does not exist"):
        seqio_objectives.build("prompts", pretraining_objective="span_corrupt")
    with pytest.raises(ValueError, match="pretraining_rows=-1 of prompts must be 0 or more"):
        seqio_objectives.build("prompts", pretraining_rows=-1)
