"""Mixtures: the paper's rates, number by number, and what is sampled by them."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like.preprocessing import mixtures
from t5x_like.preprocessing.pipeline import SeqioBatches

SIZES = {"mixture_small": 100, "mixture_medium": 1_000, "mixture_large": 4_000}
FEATURES = {"targets": seqio.Feature(seqio.PassThroughVocabulary(9), add_eos=False)}


@pytest.fixture(scope="module", autouse=True)
def tasks():
    """Three tasks of different size, whose examples are all the same token."""
    for token, (name, size) in enumerate(SIZES.items(), start=3):
        register(name, token=token, size=size, known_size=size)
    register("mixture_unknown", token=7, size=5)


def register(name, *, token, size, known_size=None):
    def read(split, shuffle_files, seed=None):
        targets = tf.fill([size, 1], token)
        return tf.data.Dataset.from_tensor_slices({"targets": targets})

    seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(
            read,
            splits=["train", "test"] if name == "mixture_large" else ["train"],
            num_input_examples=known_size and {"train": known_size, "test": known_size},
        ),
        preprocessors=[],
        output_features=FEATURES,
    )


def shares(rate, split="train"):
    mixture = mixtures.mixture("mixture_of_three", list(SIZES), rate=rate)
    found = mixtures.shares(mixture, split=split)
    assert sum(found.values()) == pytest.approx(1)
    return [found[name] for name in SIZES if name in found]


def paper(limit, temperature):
    """Section 3.5.2, step by step."""
    clipped = np.minimum(list(SIZES.values()), limit)
    rates = (clipped / clipped.sum()) ** (1 / temperature)
    return rates / rates.sum()


def test_equal():
    assert shares(mixtures.equal()) == pytest.approx([1 / 3] * 3)


def test_a_rate_of_seqio_needs_the_size_of_a_task():
    rates = [("mixture_small", 1), ("mixture_unknown", seqio.mixing_rate_num_examples)]
    seqio.MixtureRegistry.remove("mixture_of_seqio")
    mixture = seqio.MixtureRegistry.add("mixture_of_seqio", rates)
    with pytest.raises(ValueError, match=r"mixture_unknown.*computed.*num_input_examples"):
        mixtures.shares(mixture, split="train")


def test_examples_proportional():
    assert shares(mixtures.examples_proportional()) == pytest.approx([1 / 51, 10 / 51, 40 / 51])
    limited = shares(mixtures.examples_proportional(limit=1_000))
    assert limited == pytest.approx([100 / 2_100, 1_000 / 2_100, 1_000 / 2_100])


@pytest.mark.parametrize(("temperature", "limit"), [(1, 2**21), (2, 2**21), (4, 2_000), (8, 50)])
def test_temperature(temperature, limit):
    found = shares(mixtures.temperature(temperature, limit=limit))
    assert found == pytest.approx(paper(limit, temperature))


def test_a_high_temperature_is_nearly_equal():
    assert shares(mixtures.temperature(1e6)) == pytest.approx([1 / 3] * 3, abs=1e-5)


def test_rates_by_name_and_by_number():
    by_name = mixtures.rate("temperature", value=2, limit=500)
    assert shares(by_name) == shares(mixtures.temperature(2, limit=500))
    numbers = {"mixture_small": 1, "mixture_medium": 0, "mixture_large": 3}
    assert shares(numbers) == [0.25, 0, 0.75]


def test_a_mixture_of_mixtures():
    mixtures.mixture("mixture_inner", ["mixture_small", "mixture_medium"], rate=mixtures.equal())
    outer = mixtures.mixture(
        "mixture_outer",
        ["mixture_inner", "mixture_large"],
        rate={"mixture_inner": 1, "mixture_large": 3},
    )
    expected = {"mixture_small": 0.125, "mixture_medium": 0.125, "mixture_large": 0.75}
    assert mixtures.shares(outer, split="train") == expected


def test_tasks_without_the_split_are_left_out():
    assert shares(mixtures.equal(), split="test") == [1.0]


@pytest.mark.parametrize("pack", [False, True])
def test_sampled_frequencies(pack):
    mixtures.mixture("mixture_sampled", list(SIZES), rate=mixtures.temperature(2))
    batches = SeqioBatches(
        "mixture_sampled",
        split="train",
        batch_size=500,
        lengths={"targets": 4 if pack else 1},
        converter="decoder",
        pack=pack,
        shards=2,
    )
    tokens = np.concatenate([next(batches)["decoder_target_tokens"].ravel() for _ in range(4)])
    count = np.bincount(tokens, minlength=6)[3:]
    expected = paper(2**21, 2)
    # Four standard deviations of a binomial draw; the seed is fixed.
    assert np.all(abs(count / count.sum() - expected) < 4 * np.sqrt(expected / count.sum()))
    counted = list(batches.counts().values())
    if not pack:  # then no example is read ahead of its row
        np.testing.assert_array_equal(sorted(counted), sorted(count))
    assert sum(counted) >= count.sum()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mixtures.rate("temperatur", value=2), "mean 'temperature'"),
        (lambda: mixtures.rate("temperature"), "temperature.value is not set"),
        (lambda: mixtures.rate("equal", limit=3), "limit"),
        (lambda: mixtures.temperature(0), "temperature=0 must be above 0"),
        (lambda: mixtures.examples_proportional(limit=0), "limit=0 must be 1 or more"),
        (lambda: mix(["mixture_smal"]), "mean 'mixture_small'"),
        (lambda: mix(["mixture_small"] * 2), "twice"),
        (lambda: mix(["mixture_small"], rate={}), "no rate for the task 'mixture_small'"),
        (lambda: mix([]), "no tasks"),
        (lambda: weigh(["mixture_small"], rate={"mixture_small": 0}), "not all 0"),
        (lambda: weigh(["mixture_unknown"], rate=mixtures.examples_proportional()), "not known"),
    ],
)
def test_errors_name_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def mix(names, rate=None):
    return mixtures.mixture("mixture_wrong", names, rate=mixtures.equal() if rate is None else rate)


def weigh(names, rate):
    mixtures.shares(mix(names, rate), split="train")
