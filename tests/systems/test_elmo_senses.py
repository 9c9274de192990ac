"""ELMo's states on a language with words of two kinds: neighbours go by the kind (section 5.3)."""

import numpy as np
import pytest

from tests.programs import two_senses


@pytest.mark.slow
def test_the_nearest_neighbour_of_a_word_of_two_kinds_has_its_kind():
    _, loss = two_senses.language_model()
    targets = [batch["encoder_target_tokens"] for batch in two_senses.stream_batches(10, seed=2)]
    shares = np.bincount(np.ravel(targets)) / np.size(targets)
    entropy = -np.sum(shares[shares > 0] * np.log(shares[shares > 0]))
    assert loss < 0.55 * entropy

    _, pairs = two_senses.labelled(300, seed=5, kind="tagging")
    states = np.asarray(two_senses.states(300, seed=5))
    tokens = [
        (row, place, word, tag)
        for row, pair in enumerate(pairs)
        for place, (word, tag) in enumerate(zip(*pair, strict=True), start=1)
        if word in two_senses.BOTH
    ]
    rows, places, words, tags = (np.array(one) for one in zip(*tokens, strict=True))
    same_kind = []
    for layer in states:
        vectors = layer[rows, places]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        near = np.where(words[:, None] == words, vectors @ vectors.T, -2)
        np.fill_diagonal(near, -2)
        same_kind.append(np.mean(tags[near.argmax(axis=1)] == tags))
    of_words, *of_layers = same_kind
    assert of_words < 0.7  # the vectors of a word without its context are all the same
    assert min(of_layers) > 0.9
