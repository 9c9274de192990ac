"""A small language in which some words are nouns and verbs, and a biLM that is trained on it.

python -m tests.programs.two_senses   (prints the arms' table of docs/systems/elmo.md)
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_like import systems
from t5x_like.losses import fine_tuning
from t5x_like.systems import elmo
from t5x_like.vocabularies.words import WordVocabulary, spell_all, spell_texts

NOUNS = ("house", "tree", "book", "door", "river", "horse", "garden", "letter", "window", "stone")
VERBS = ("see", "find", "take", "hold", "bring", "carry", "follow", "open", "break", "lift")
BOTH = ("play", "watch", "rock", "paint", "cook", "plant", "walk", "sail")
ADJECTIVES = ("old", "red", "long", "dark", "cold", "small", "quiet", "heavy", "green", "broken")
PEOPLE = ("they", "we", "you", "children", "sailors", "farmers", "friends", "people")
ADVERBS = ("today", "again", "slowly", "there", "often", "later", "outside")
WORDS = (*NOUNS, *VERBS, *BOTH, *ADJECTIVES, *PEOPLE, *ADVERBS, "the", "a", "was", "it", ".")
VOCABULARY = WordVocabulary(("</S>", "<S>", "<UNK>", *WORDS))
TAGS = ("noun", "verb", "other")
LENGTH, ROWS, UNROLL = 12, 16, 12
MODEL = elmo.SIZES["small"] | {
    "vocab_size": VOCABULARY.vocab_size,
    "filters": ((1, 8), (2, 16), (3, 24)),
    "cell": 64,
    "d_model": 24,
    "task_width": 16,
    "labels": len(TAGS),
}


def sentence(random, *, both=0.4):
    """Words with their tags: a noun and a verb, each of them perhaps a word of both kinds."""

    def one(words):
        return str(random.choice(BOTH if random.random() < both else words))

    noun, verb, again = one(NOUNS), one(VERBS), one(NOUNS)
    adjective, other = random.choice(ADJECTIVES, 2)
    who, when = random.choice(PEOPLE), random.choice(ADVERBS)
    forms = (
        f"the {noun}/noun was {adjective} {when} .",
        f"{who} {verb}/verb the {adjective} {again}/noun .",
        f"{who} {verb}/verb it {when} .",
        f"a {adjective} {noun}/noun was {other} .",
        f"{when} {who} {verb}/verb a {again}/noun .",
    )
    pairs = [word.partition("/") for word in str(random.choice(forms)).split()]
    return [word for word, _, _ in pairs], [tag or "other" for _, _, tag in pairs]


def stream_batches(number, *, seed):
    """Batches of two streams, as the objective bidirectional_lm has them."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(ROWS):
        places = []
        while len(places) < number * UNROLL:
            words = ["<S>", *sentence(random)[0], "</S>"]
            ids, spelled = [VOCABULARY.id_of(word) for word in words], spell_all(words)
            places += zip(ids[1:], ids[-2::-1], spelled[:-1], spelled[:0:-1], strict=True)
        rows.append([np.array(one) for one in zip(*places[: number * UNROLL], strict=True)])
    names = ("target_tokens", "backward_targets", "characters", "backward_characters")
    whole = {f"encoder_{n}": np.stack([row[k] for row in rows]) for k, n in enumerate(names)}
    ones = np.ones([ROWS, number * UNROLL])
    whole |= {"encoder_loss_weights": ones, "encoder_segment_ids": ones.astype(np.int32)}
    for start in range(0, number * UNROLL, UNROLL):
        yield {name: values[:, start : start + UNROLL] for name, values in whole.items()}


@functools.cache
def language_model(steps=200):
    """The parameters of a trained language model, and its loss on other text."""
    module = systems.build("elmo", MODEL)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(4e-3))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, batch, carry, key):
        def mean(params):
            (total, weight, _), after = elmo.loss(
                module, params, batch, key, carry=carry, sampled=0
            )
            return total / weight, after

        (value, carry), gradient = jax.value_and_grad(mean, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, carry, value

    carry = module.first_state(ROWS)
    for number, batch in enumerate(stream_batches(steps, seed=1)):
        params, state, carry, _ = step(params, state, batch, carry, jax.random.key(number))
    carry, sums = module.first_state(ROWS), []
    measure = jax.jit(lambda batch, carry: elmo.loss(module, params, batch, None, carry=carry))
    for batch in stream_batches(10, seed=2):
        (total, weight, _), carry = measure(batch, carry)
        sums.append((total, weight))
    total, weight = np.sum(sums, axis=0)
    return params, total / weight


def labelled(number, *, seed, kind):
    """A batch of sentences, with the tags of their words or with a class.

    The class is 1 where a word of both kinds is a verb.
    """
    random = np.random.default_rng(seed)
    pairs = [sentence(random) for _ in range(number)]
    spelled = spell_texts([words for words, _ in pairs])
    characters = np.zeros([number, LENGTH, spelled.shape[2]], np.int32)
    characters[:, : spelled.shape[1]] = spelled
    batch = {
        "encoder_characters": characters,
        "encoder_segment_ids": (characters[..., 0] > 0).astype(np.int32),
    }
    targets, weights = np.zeros([2, number, LENGTH], np.int32)
    for row, (_, tags) in enumerate(pairs):
        targets[row, 1 : len(tags) + 1] = [TAGS.index(tag) for tag in tags]
        weights[row, 1 : len(tags) + 1] = 1
    if kind == "classification":
        classes = [
            any(word in BOTH and tag == "verb" for word, tag in zip(*pair, strict=True))
            for pair in pairs
        ]
        return batch | {"label": np.array(classes, np.int32)}, pairs
    return batch | {"encoder_target_tokens": targets, "encoder_loss_weights": weights}, pairs


@functools.cache
def states(number, *, seed):
    """The hidden states of all layers [3, B, L, 48] of `labelled` sentences."""
    module = systems.build("elmo", MODEL | {"head": "features"})
    params = {name: language_model()[0][name] for name in ("words", "lstm")}
    batch, _ = labelled(number, seed=seed, kind="tagging")
    return jax.jit(lambda batch: module.apply({"params": params}, batch, method="states"))(batch)


@functools.cache
def task(kind, place, mix):
    """The functions of an arm: seed -> parameters to train, step, accuracy."""
    module = systems.build("elmo", MODEL | {"head": kind, "elmo": place, "mix": mix})
    optimizer = optax.adam(1e-2)
    example = (jnp.zeros((3, 1, LENGTH, 48)), labelled(1, seed=0, kind=kind)[0])

    def measure(own, states, batch, key):
        outputs = module.apply(
            {"params": own},
            states,
            batch,
            deterministic=key is None,
            rngs=None if key is None else {"dropout": key},
            method="read_out",
        )
        return fine_tuning.OF_OUTPUTS[kind](outputs, batch)

    @jax.jit
    def start(seed):
        key = jax.random.key(seed)
        own = module.init(key, *example, deterministic=True, method="read_out")
        own = nn.unbox(own)["params"]
        return own, optimizer.init(own)

    @jax.jit
    def step(own, state, states, batch, key):
        def mean(own):
            total, weight, _ = measure(own, states, batch, key)
            return total / weight

        updates, state = optimizer.update(jax.grad(mean)(own), state)
        return optax.apply_updates(own, updates), state

    @jax.jit
    def accuracy(own, states, batch):
        total, weight = measure(own, states, batch, None)[2]["accuracy"]
        return total / weight

    return start, step, accuracy


def accuracy_of(kind, place, mix, *, seed, examples, steps=60):
    """The accuracy on 400 sentences after training on a few, and the trained parameters.

    That of tags is the one on words of both kinds.
    """
    start, step, accuracy = task(kind, place, mix)
    batch, _ = labelled(examples, seed=100 + seed, kind=kind)
    read = states(examples, seed=100 + seed)
    own, state = start(seed)
    for number in range(steps):
        own, state = step(own, state, read, batch, jax.random.key(1000 * seed + number))
    held_out, pairs = labelled(400, seed=7, kind=kind)
    if kind == "tagging":
        weights = held_out["encoder_loss_weights"]
        for row, (words, _) in enumerate(pairs):
            weights[row, 1 : len(words) + 1] = [word in BOTH for word in words]
    return float(accuracy(own, states(400, seed=7), held_out)), own


def main():
    for examples in (4, 8):
        for place, mix in (
            ("none", "all"),
            ("input", "last"),
            ("input", "first"),
            ("input", "all"),
        ):
            found = [
                accuracy_of("tagging", place, mix, seed=seed, examples=examples)[0]
                for seed in range(8)
            ]
            error = np.std(found) / len(found) ** 0.5
            print(examples, place, mix, f"{np.mean(found):.3f} +- {error:.3f}")


if __name__ == "__main__":
    main()
