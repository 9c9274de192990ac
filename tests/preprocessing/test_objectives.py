"""What each pretraining objective writes, on the T5 paper's own sentence, and what it refuses."""

import inspect

import numpy as np
import pytest
import seqio
import tensorflow as tf
from seqio import FunctionDataSource, TaskRegistry

from t5x_like import objectives as plain
from t5x_like import vocabularies
from t5x_like.batches.converters import CONVERTERS
from t5x_like.objectives import denoising, language_modeling
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from tests.number_vocabulary import NumberVocabulary

SENTENCE = "Thank you for inviting me to your party last week ."
WORDS = SENTENCE.split()
VOCABULARY = NumberVocabulary(120)
FEATURE = seqio.Feature(TaskVocabulary(VOCABULARY))
FEATURES = {"inputs": FEATURE, "targets": FEATURE}
settings_of = lambda make: inspect.signature(make).parameters  # noqa: E731
NAMES = {1: "EOS", 119: "<X>", 118: "<Y>", 117: "<Z>"}


def ids(words):
    return [3 + WORDS.index(word) for word in words]


def text(tokens):
    return " ".join(NAMES.get(i) or WORDS[i - 3] for i in tokens)


def run(objective, documents, *, inputs, targets, features=None, seed=0):
    """The examples of `objective` over documents of token ids, as lists of ids."""
    documents = tf.ragged.constant(documents, dtype=tf.int32, ragged_rank=1)
    dataset = tf.data.Dataset.from_tensor_slices({"text": documents})
    lengths = {"inputs": inputs, "targets": targets}
    own = getattr(objective, "plain", objective)
    with seqio.utils.map_seed_manager(seed):
        for step in seqio_objectives.SeqioObjective(own).preprocessors:
            step = seqio.utils.add_kwargs_to_transform(
                step, sequence_length=lengths, output_features=features or FEATURES
            )
            dataset = step(dataset)
    return [{k: v.tolist() for k, v in e.items()} for e in dataset.as_numpy_iterator()]


def noise_at(monkeypatch, module, name, *words):
    """Makes the mask function `name` of `module` choose exactly these words of the sentence."""
    mask = np.array([[word in words for word in WORDS]])
    monkeypatch.setattr(module, name, lambda *_, **__: mask)


def one(objective, **lengths):
    [example] = run(objective, [ids(WORDS)], **lengths)
    return text(example["inputs"]), text(example["targets"])


def test_span_corruption_by_eye(monkeypatch):
    noise_at(
        monkeypatch,
        denoising,
        "random_spans_mask",
        *["for", "inviting", "me", "last", "week", "."],
    )
    inputs, targets = one(denoising.span_corruption(rate=0.5), inputs=8, targets=12)
    assert inputs == "Thank you <X> to your party <Y> EOS"
    assert targets == "<X> for inviting me <Y> last week . EOS"


def test_span_corruption_by_eye_with_the_final_sentinel_of_the_papers_text(monkeypatch):
    noise_at(monkeypatch, denoising, "random_spans_mask", "for", "inviting", "last")
    objective = denoising.span_corruption(rate=0.25, mean_span=1.5, final_sentinel=True)
    inputs, targets = one(objective, inputs=12, targets=12)
    assert inputs == "Thank you <X> me to your party <Y> week . EOS"
    assert targets == "<X> for inviting <Y> last <Z> EOS"


def test_span_corruption_by_eye_with_a_span_rolled_over_the_end(monkeypatch):
    noise_at(monkeypatch, denoising, "random_spans_mask", "Thank", "week", ".")
    monkeypatch.setattr(denoising, "roll_mask", lambda _, mask: mask)
    objective = denoising.span_corruption(rate=0.3, mean_span=3.0, random_roll=True)
    inputs, targets = one(objective, inputs=11, targets=6)
    assert inputs == "<X> you for inviting me to your party last <Y> EOS"
    assert targets == "<X> Thank <Y> week . EOS"


def test_iid_replace_spans_by_eye(monkeypatch):
    noise_at(monkeypatch, denoising, "random_tokens_mask", "for", "inviting", "last")
    inputs, targets = one(denoising.iid_replace_spans(rate=0.3), inputs=12, targets=12)
    assert inputs == "Thank you <X> me to your party <Y> week . EOS"
    assert targets == "<X> for inviting <Y> last <Z> EOS"


def test_iid_replace_spans_keeps_each_span_behind_its_sentinel_at_the_very_start(monkeypatch):
    noise_at(monkeypatch, denoising, "random_tokens_mask", "Thank", "last")
    inputs, targets = one(denoising.iid_replace_spans(rate=0.2), inputs=12, targets=12)
    assert inputs == "<X> you for inviting me to your party <Y> week . EOS"
    assert targets == "<X> Thank <Y> last <Z> EOS"


def test_iid_drop_tokens_by_eye(monkeypatch):
    noise_at(monkeypatch, denoising, "random_tokens_mask", "for", "inviting", "last")
    inputs, targets = one(denoising.iid_drop_tokens(rate=0.3), inputs=12, targets=12)
    assert inputs == "Thank you me to your party week . EOS"
    assert targets == "for inviting last EOS"


def test_mass_style_by_eye(monkeypatch):
    noise_at(monkeypatch, denoising, "random_tokens_mask", "for", "inviting", "last")
    inputs, targets = one(denoising.mass_style(rate=0.3), inputs=12, targets=12)
    assert inputs == "Thank you <X> <X> me to your party <X> week . EOS"  # <X> is T5's <M>
    assert targets == SENTENCE + " EOS"


def test_bert_style_by_eye_without_its_random_tokens(monkeypatch):
    noise_at(monkeypatch, denoising, "random_tokens_mask", "for", "inviting", "last")
    masked, targets = one(denoising.bert_style(rate=0.3, random_rate=0), inputs=12, targets=12)
    assert masked == "Thank you <X> <X> me to your party <X> week . EOS"
    assert targets == SENTENCE + " EOS"
    kept, _ = one(denoising.bert_style(rate=0.3, random_rate=0, kept_rate=1), inputs=12, targets=12)
    assert kept == SENTENCE + " EOS"


def test_deshuffling_by_eye():
    inputs, targets = one(denoising.deshuffling(), inputs=12, targets=12)
    assert targets == SENTENCE + " EOS"
    assert inputs.endswith(" EOS")
    assert inputs != targets
    assert sorted(inputs.split()) == sorted(targets.split())


def test_prefix_lm_by_eye(monkeypatch):
    monkeypatch.setattr(language_modeling, "random_prefixes", lambda *_: [4])
    inputs, targets = one(language_modeling.prefix_lm(), inputs=12, targets=12)
    assert inputs == "Thank you for inviting EOS"
    assert targets == "me to your party last week . EOS"


def test_language_modeling_by_eye():
    documents = [ids(["Thank", "you"]), [], ids(["me"]), ids(["your", "party", "last", "week"])]
    examples = run(language_modeling.language_modeling(), documents, inputs=None, targets=4)
    assert [text(e["targets"]) for e in examples] == [
        "Thank you EOS me",
        "EOS your party last",
        "week EOS",
    ]


def test_text_to_text_by_eye():
    vocabulary = vocabularies.load("bytes:0")
    dataset = tf.data.Dataset.from_tensors({"inputs": "ab", "targets": "xyz", "id": 7})
    for step in seqio_objectives.build("text_to_text").preprocessors:
        step = seqio.utils.add_kwargs_to_transform(
            step,
            sequence_length={"inputs": 9, "targets": 3},
            output_features={k: seqio.Feature(TaskVocabulary(vocabulary)) for k in FEATURES},
        )
        dataset = step(dataset)
    [example] = dataset.as_numpy_iterator()
    assert example["inputs"].tolist() == [*vocabulary.encode("ab"), 1]
    assert example["targets"].tolist() == [*vocabulary.encode("xy"), 1]  # trimmed, then EOS
    assert (example["targets_pretokenized"], example["id"]) == (b"xyz", 7)


def test_features_without_eos_get_none_and_leave_its_place_to_text():
    bare = {k: seqio.Feature(TaskVocabulary(VOCABULARY), add_eos=False) for k in FEATURES}
    document = [3 + i % 90 for i in range(12)]
    [example] = run(denoising.mass_style(), [document], inputs=12, targets=12, features=bare)
    assert example["targets"] == document


OF_ENCODERS = {name for name, make in plain.OBJECTIVES.items() if "group" in settings_of(make)}
OF_LABELLED = {
    *("classification", "pair_classification", "regression", "tagging", "question_answering"),
    *("candidates", "supporting_facts", "long_answers"),
}
OF_KNOWLEDGE = {f"knowledge_{name}" for name in ("classification", "tagging", "question_answering")}
OF_EXTRACTION = {"gpt_classification", "gpt_similarity", "gpt_regression", "gpt_multiple_choice"}
OF_CHOICES = {"multiple_choice"}  # rows of rows
OF_PAIRS = {"random_spans", "text_to_text", "marked_text_to_text", "translation", "masked_targets"}
OF_FEEDBACK = {"comparisons", "judgements", "prompts"}
OF_SENTENCES = {"bart", "mass", "dae"}
OF_WORDS = {"bidirectional_lm"} | {
    f"word_{name}" for name in ("classification", "tagging", "question_answering")
}


@pytest.mark.parametrize(
    "name",
    sorted(
        plain.OBJECTIVES.keys()
        - OF_PAIRS
        - OF_FEEDBACK
        - OF_SENTENCES
        - OF_ENCODERS
        - OF_LABELLED
        - OF_KNOWLEDGE
        - OF_EXTRACTION
        - OF_CHOICES
        - OF_WORDS
    ),
)
def test_every_objective_serves_as_a_seqio_task(name):
    objective = seqio_objectives.build(name)
    vocabulary = vocabularies.load("bytes")
    texts = ["", "a", "été " * 40, "x" * 300]
    TaskRegistry.add(
        f"as_task_{name}",
        source=FunctionDataSource(
            lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
                {"text": texts}
            ),
            splits=["train"],
        ),
        preprocessors=objective.preprocessors,
        output_features={f: seqio.Feature(TaskVocabulary(vocabulary)) for f in objective.features},
    )
    lengths = dict.fromkeys(objective.features, 40)
    task = seqio.get_mixture_or_task(f"as_task_{name}")
    examples = list(task.get_dataset(lengths, "train", shuffle=False, seed=1).as_numpy_iterator())
    assert len(examples) > 5
    for example in examples:
        assert set(example) == set(objective.features)
        for tokens in example.values():
            assert tokens.dtype == "int32"
            assert 0 < tokens.size <= 40
            assert tokens.min() > 0
            assert tokens.max() < vocabulary.vocab_size


@pytest.mark.parametrize("name", plain.OBJECTIVES)
def test_the_converters_of_an_objective_read_its_features(name):
    objective = plain.build(name)
    assert objective.converters
    for converter in objective.converters:
        settings = objective.converter_settings
        assert set(CONVERTERS[converter](**settings).features) == set(objective.features)


def test_only_aligned_objectives_offer_themselves_to_an_encoder():
    fitting = {n for n in plain.OBJECTIVES if "encoder" in plain.build(n).converters}
    aligned = {"bert_style", "mass_style", "masked_targets"}
    assert fitting == aligned | OF_ENCODERS | OF_LABELLED | OF_KNOWLEDGE | OF_WORDS


def test_unknown_names_and_settings_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"objective='span_coruption' .*mean 'span_corruption'"):
        seqio_objectives.build("span_coruption")
    with pytest.raises(
        ValueError, match=r"objective_settings\.means_pan does not.* mean 'mean_span'"
    ):
        seqio_objectives.build("span_corruption", means_pan=2.0)


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, float("nan")])
@pytest.mark.parametrize(
    "name", ["span_corruption", "iid_replace_spans", "iid_drop_tokens", "bert_style", "mass_style"]
)
def test_rates_outside_0_to_1_are_refused(name, rate):
    with pytest.raises(
        ValueError, match=rf"{name}: rate must lie between|\.rate=nan must be a number"
    ):
        seqio_objectives.build(name, rate=rate)


def test_impossible_spans_and_shares_are_refused():
    with pytest.raises(ValueError, match=r"mean_span must be 1 token or more, got 0.5"):
        denoising.span_corruption(mean_span=0.5)
    with pytest.raises(ValueError, match=r"kept apart; use a mean_span of 4 or more"):
        denoising.span_corruption(rate=0.8, mean_span=3.0)
    with pytest.raises(ValueError, match=r"together at most 1, got 0.8 and 0.3"):
        denoising.bert_style(random_rate=0.8, kept_rate=0.3)


def unreadable():
    """A dataset that fails as soon as one example is read."""

    def example(i):
        tf.debugging.assert_less(i, tf.constant(0, tf.int64), message="read too early")
        return {"text": tf.range(100)}

    return tf.data.Dataset.range(1).map(example)


@pytest.mark.parametrize(
    ("name", "settings", "lengths", "message"),
    [
        ("span_corruption", {}, {"inputs": 512, "targets": 113}, "targets=113 must be 114 or more"),
        ("bert_style", {}, {"inputs": 512, "targets": 114}, "targets=114 must be 512 or more"),
        ("prefix_lm", {}, {"inputs": 512, "targets": 510}, "targets=510 must be 512 or more"),
        (
            "span_corruption",
            {"rate": 0.5, "mean_span": 1.0},
            {"inputs": 512, "targets": 1024},
            "can need 255 sentinels, the vocabulary of 120 has 100",
        ),
        ("iid_replace_spans", {"rate": 0.25}, {"inputs": 512, "targets": 512}, "129 sentinels"),
        ("deshuffling", {}, {"inputs": 2, "targets": 2}, "too short for two tokens"),
        ("mass_style", {}, {"inputs": 512}, "lengths.targets of 2 or more, got None"),
        ("language_modeling", {}, None, "lengths.targets of 2 or more, got None"),
        ("language_modeling", {}, {"targets": 0}, "lengths.targets of 2 or more, got 0"),
    ],
)
def test_lengths_and_vocabularies_that_do_not_fit_are_refused_unread(
    name, settings, lengths, message
):
    corrupt = seqio_objectives.build(name, **settings).preprocessors[1]
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        corrupt(unreadable(), sequence_length=lengths, output_features=FEATURES)


def test_features_that_do_not_fit_are_refused():
    tokenize, corrupt = seqio_objectives.build("deshuffling").preprocessors
    lengths = {"inputs": 8, "targets": 8}
    other = seqio.Feature(TaskVocabulary(NumberVocabulary(99)))
    no_eos = seqio.Feature(TaskVocabulary(NumberVocabulary(120, eos=False)))
    for features, message in [
        ({"targets": FEATURE}, "needs a feature 'inputs'.*have .'targets'."),
        ({"inputs": FEATURE, "targets": other}, "same vocabulary"),
        ({"inputs": no_eos, "targets": no_eos}, "add_eos=True, but its vocabulary has no eos_id"),
    ]:
        with pytest.raises(ValueError, match=message):
            corrupt(unreadable(), sequence_length=lengths, output_features=features)
    with pytest.raises(ValueError, match=r'with a feature "text".*content'):
        tokenize(tf.data.Dataset.from_tensors({"content": "a"}), output_features=FEATURES)
