"""Annotated dialogs as rows: where losses are, tools' results, bad files; generated dialogs."""

import importlib.util
import json
import pathlib
import re

import numpy as np
import pytest

from t5x_like.batches import converters
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.pipeline import SeqioBatches
from tests.programs.dialog_models import WORDS, Words


def load(name):
    path = pathlib.Path(__file__).parents[2] / "data" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dialog_files, generated = load("dialog_files"), load("generated_dialogs")

RATED = {
    "context": ["w1", "w2", "w3"],
    "response": "w4 w5",
    "sensible": 1,
    "specific": 1,
    "interesting": None,
    "unsafe": 0,
}
RESEARCHED = {
    "context": ["w6"],
    "response": "w7",
    "calls": [{"query": "w8 w9", "results": ["w10 w11", "w12"]}],
    "grounded": "w13",
}
ROWS = {
    "generation": [("w1 TURN w2 TURN w3 RESPONSE", "w4 w5 </s>")],
    "ratings": [
        ("w1 TURN w2 TURN w3 RESPONSE w4 w5 SENSIBLE", "1"),
        ("w1 TURN w2 TURN w3 RESPONSE w4 w5 SPECIFIC", "1"),
        ("w1 TURN w2 TURN w3 RESPONSE w4 w5 UN SAFE", "0"),
    ],
    "research": [
        ("w6 BASE w7 RESEARCH", "TS, w8 w9 </s>"),
        ("w6 BASE w7 RESEARCH TS, w8 w9 RESULT w10 w11 | w12 RESEARCH", "User, w13 </s>"),
    ],
}


@pytest.fixture
def write(tmp_path):
    def write(*rows):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / "dialogs.jsonl").write_text("\n".join(lines) + "\n")
        return str(tmp_path / "dialogs.jsonl")

    return write


def register(path, vocabulary=None, end_inputs=False, **settings):
    objective = seqio_objectives.build("text_to_text", end_inputs=end_inputs)
    dialog_files.register(vocabulary or Words(("|", *WORDS)), objective, train=path, **settings)


def test_a_loss_is_on_responses_ratings_and_queries_alone_also_in_packed_rows(write):
    vocabulary = Words(("|", *WORDS))
    register(write(RATED, "", RESEARCHED), vocabulary)
    expected = {pair for rows in ROWS.values() for pair in rows}
    batches = SeqioBatches(
        "dialog_files",
        split="train",
        batch_size=2,
        lengths={"inputs": 40, "targets": 8},
        converter=converters.build("prefix_lm"),
        pack=True,
        open_rows=4,
        seed=0,
        shuffle=True,
        repeat=True,
        shuffle_buffer=10,
        shards=1,
    )
    found, examples = set(), []
    for _, batch in zip(range(8), batches, strict=False):
        for row in range(2):
            segments = batch["decoder_segment_ids"][row]
            examples.append(segments.max())
            weights = batch["decoder_loss_weights"][row]
            assert not weights[segments == 0].any()
            for segment in range(1, segments.max() + 1):
                own = segments == segment
                tokens = batch["decoder_target_tokens"][row][own]
                # The first token that is read is the start, not the end of another example.
                assert batch["decoder_input_tokens"][row][own][0] == 0
                has_loss = weights[own] > 0
                found.add(tuple(text(tokens[part], vocabulary) for part in (~has_loss, has_loss)))
    assert found == expected
    assert max(examples) > 1  # rows were packed


def text(tokens, vocabulary):
    return " ".join("</s>" if one == 1 else vocabulary.decode([one]) for one in np.array(tokens))


def test_bad_responses_and_base_replies_are_not_generated():
    bad = [RATED | {name: value} for name, value in [("unsafe", 1), ("sensible", 0)]]
    found = dialog_files.rows_of([*bad, RATED, RESEARCHED], responses="good")
    assert len(found["generation"]) == 1
    assert len(dialog_files.rows_of([*bad, RESEARCHED], responses="all")["generation"]) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", ":1: it is not JSON"),
        ([1], ":1: it is not a JSON object"),
        ({"context": [], "response": "a"}, ":1: context=.* is not a list of turns"),
        ({"context": ["a"], "respons": "a"}, "no string 'response'. Did you mean 'respons'"),
        (RATED | {"unsafe": 2}, ":1: unsafe=2 must be 0 or 1"),
        (RATED | {"calls": [{"query": "a"}]}, "calls must be a list of objects"),
        (RATED | {"calls": RESEARCHED["calls"]}, "there are calls, but no string 'grounded'"),
    ],
)
def test_a_bad_line_is_named(write, row, message):
    with pytest.raises(ValueError, match=message) as error:
        register(write(row))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocabulary": Words(("w1", "0"))}, "the rating 1 becomes .* --whole_words 0 1"),
        ({"end_inputs": True}, "data.objective_settings.end_inputs=False"),
        ({"responses": "bad"}, "data.settings.responses='bad' does not exist"),
        ({"parts": ("rating",)}, "Did you mean 'ratings'"),
        ({"parts": ("research",)}, "the dialogs have no such rows"),
    ],
)
def test_a_bad_setting_is_one_line(write, settings, message):
    with pytest.raises(ValueError, match=message) as error:
        register(write(RATED), **settings)
    assert "\n" not in str(error.value)


def test_an_end_token_of_inputs_alone_is_refused():
    with pytest.raises(ValueError, match="end_targets=False needs end_inputs=False"):
        seqio_objectives.build("text_to_text", end_targets=False)


def test_generated_dialogs_are_the_same_and_follow_their_rules():
    train = generated.annotated("train", seed=0)
    assert train == generated.annotated("train", seed=0)
    assert train != generated.annotated("train", seed=1)
    rated = [one for one in train if "sensible" in one]
    shares = {
        name: np.mean([one[name] for one in rated]) for name in generated.dialog_rows.ATTRIBUTES
    }
    assert all(0.05 < share < 0.95 for share in shares.values())
    assert all(
        "steal" in one["response"] or "burn" in one["response"] for one in rated if one["unsafe"]
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_questions_are_about_what_no_dialog_of_training_asks_or_states(seed):
    """Neither as the question nor as one before it, nor in a response or a query."""
    splits = ("validation", "test")
    dialogs = [*generated.unrated("train", seed=seed), *generated.unrated("validation", seed=seed)]
    for split in ("train", *splits):
        dialogs += generated.annotated(split, seed=seed)
    contexts = {tuple(one["context"]) for one in dialogs}
    pairs = generated.held_out(seed=seed)
    topics = {person.name: topic for own in pairs.values() for person, topic in own}
    seen = set()
    for one in dialogs:
        [name] = re.findall(r" does (\w+ \w+) ", one["context"][0])
        if topic := topics.get(name):
            asked = (generated._QUESTIONS[topic].format(who) for who in (name, "this person"))
            stated = (f" {generated._VERBS[topic]} ", f"{topic} of {name}")
            words = json.dumps(one)
            assert not any(phrase in words for phrase in (*asked, *stated))
            seen.add(name)
    assert seen == set(topics)
    names = {split: {person.name for person, _ in pairs[split]} for split in splits}
    assert not names["validation"] & names["test"]
    for split in splits:
        asked = generated.questions("questions", split, seed=seed)
        assert {one["specific"][0] for one in asked} <= names[split]
        assert not {tuple(one["context"]) for one in asked} & contexts
        for one in asked:
            assert f" {generated._VERBS[topics[one['specific'][0]]]} " in one["targets"]


def test_pretraining_never_sees_the_persons_of_the_store():
    groups = generated.persons(seed=0)
    names = [person.name for group in groups.values() for person in group]
    assert len(set(names)) == len(names)
    seen = "\n".join(generated.pretraining("train", seed=0))
    assert all(person.name in seen for person in groups["known"])
    stored = {fact["key"].split(" ", 1)[1] for fact in generated.facts(seed=0)}
    assert stored == {*names} - {person.name for person in groups["known"]}
    assert not any(name in seen for name in stored)
    held_out = {one["sources"][0] for one in generated.questions("facts", "validation", seed=0)}
    assert held_out <= {f"www {person.name}" for person in groups["validation"]}
