"""Toy systems by the contracts of `t5x_like.systems.system` alone, as a user's file has them."""

import functools
import pathlib
from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import losses
from t5x_like.losses import distillation
from t5x_like.nn.attention.cores import masked_as_zero
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.blocks import PreNormBlock, Shared, constrain_residual
from t5x_like.nn.embeddings import TokenEmbed
from t5x_like.nn.linear import MLP, LayerNorm, Linear, replicate_last_axis
from t5x_like.nn.networks import Tower
from t5x_like.nn.stack import Stack
from t5x_like.systems.system import System, Task

FILE = str(pathlib.Path(__file__).resolve())
SIZE = {"vocab_size": 384, "width": 16}
VOWELS = np.array([ord(letter) + 3 for letter in "aeiou"])  # ids of bytes begin at 3


class Toy(nn.Module):
    """A table of vectors for the tokens, and nothing yet that reads them."""

    vocab_size: int
    width: int
    sides: ClassVar[tuple[str, ...]] = ("decoder",)
    generates: ClassVar[bool] = False

    def embed(self, batch):
        init = nn.initializers.normal(0.1)
        table = TokenEmbed(self.vocab_size, self.width, embedding_init=init, name="embedding")
        return table(batch["decoder_input_tokens"])

    def to_vocabulary(self, x, name="output"):
        return Linear((self.vocab_size,), axes=("embed", "vocab"), name=name)(x)

    @staticmethod
    def example_batch():
        return {"decoder_input_tokens": jnp.zeros((1, 8), jnp.int32)}


def next_token(logits, batch):
    return losses.cross_entropy(
        logits, batch["decoder_target_tokens"], batch["decoder_loss_weights"]
    )


class Bigram(Toy):
    """The next token from the one before."""

    @nn.compact
    def __call__(self, batch):
        return self.to_vocabulary(self.embed(batch))


def bigram_loss(module, params, batch, rng):
    return next_token(module.apply({"params": params}, batch), batch)


TEACHER = System(
    name="teacher",
    sizes={"toy": SIZE},
    build=lambda settings: Bigram(**settings),
    tasks={"": Task(loss=bigram_loss)},
)


class TwoHeads(Toy, kw_only=True):
    """A head for each task: `outputs` are their sizes."""

    outputs: dict
    task: str | None = None

    @nn.compact
    def __call__(self, batch):
        return Heads(self.outputs, self.task, name="head")(self.embed(batch))


class Heads(nn.Module):
    outputs: dict
    task: str | None

    @nn.compact
    def __call__(self, x):
        return {
            name: Linear((size,), axes=("embed", "classes"), name=name)(x)
            for name, size in self.outputs.items()
            if name == self.task or self.is_initializing()
        }[self.task or next(iter(self.outputs))]


def build_two_heads(settings):
    sizes = {task: head["labels"] for task, head in settings["head"].items()}
    return TwoHeads(settings["vocab_size"], settings["width"], outputs=sizes)


def vowel_loss(module, params, batch, rng, *, scale=1.0):
    labels = jnp.isin(batch["decoder_target_tokens"], VOWELS).astype(jnp.int32)
    logits = module.apply({"params": params}, batch)
    total, *rest = losses.cross_entropy(logits, labels, batch["decoder_loss_weights"])
    return scale * total, *rest


TWO_HEADS = System(
    name="two_heads",
    sizes={"toy": {**SIZE, "head": "", "labels": 0}},
    build=build_two_heads,
    tasks={"next": Task(loss=bigram_loss), "vowels": Task(loss=vowel_loss)},
)


class Student(Toy, kw_only=True):
    """Half as wide as its teacher."""

    teacher_width: int

    def setup(self):
        self.own = Bigram(self.vocab_size, self.width)
        self.teacher = Bigram(self.vocab_size, self.teacher_width)

    def __call__(self, batch):
        return self.own(batch), self.teacher(batch)


def student_loss(module, params, batch, rng):
    own, teacher = module.apply({"params": params}, batch)
    return distillation.soft_targets(own, teacher, batch["decoder_loss_weights"], temperature=2.0)


def start_student(module, settings, read):
    own = jax.jit(lambda: nn.unbox(module.init(jax.random.key(0), module.example_batch())))()
    own = own["params"]
    return own | {"teacher": read("teacher", system=f"{FILE}:TEACHER")}


STUDENT = System(
    name="student",
    sizes={"toy": {**SIZE, "width": 8, "teacher_width": 16}},
    build=lambda settings: Student(**settings),
    tasks={"": Task(loss=student_loss, start=start_student, start_required=True)},
)


def sample(module, state, batch, rng):
    """A token for each place, and which parameters it was sampled with."""
    logits = module.apply({"params": state.params}, batch)
    rows = batch["decoder_input_tokens"].shape[:1]
    norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(state.params)))
    seen = {"seen_step": state.step.astype(jnp.float32), "seen_norm": norm}
    fields = {name: jnp.full(rows, value) for name, value in seen.items()}
    return {**batch, "sampled": jax.random.categorical(rng, logits), **fields}


def sampled_loss(module, params, batch, rng):
    """The log-likelihood of what was sampled, where it is the right token (Williams 1992)."""
    logits = jax.nn.log_softmax(module.apply({"params": params}, batch))
    chosen = jnp.take_along_axis(logits, batch["sampled"][..., None], axis=-1)[..., 0]
    weights = batch["decoder_loss_weights"]
    right = (batch["sampled"] == batch["decoder_target_tokens"]) * weights
    sums = {
        name: (jnp.sum(batch[name]), jnp.float32(len(batch[name])))
        for name in ("seen_step", "seen_norm")
    }
    sums["sampled"] = jnp.sum(batch["sampled"] * weights), jnp.sum(weights)
    return -jnp.sum(chosen * (right + 0.01 * weights)), jnp.sum(weights), sums


SAMPLER = System(
    name="sampler",
    sizes={"toy": SIZE},
    build=lambda settings: Bigram(**settings),
    tasks={"": Task(loss=sampled_loss, prepare=sample)},
)


class Remembering(Toy):
    """The next token from the one before, and from the mean of the segment before."""

    @nn.compact
    def __call__(self, batch, memory=None):
        x = self.embed(batch)
        if memory is None:
            memory = self.first_memory(batch)
        recalled = Linear((self.width,), axes=("embed", "mlp"), name="recall")(memory)
        x = x + replicate_last_axis(recalled)[:, None]
        return self.to_vocabulary(x), jnp.mean(x, axis=1)

    def first_memory(self, batch):
        return jnp.zeros((len(batch["decoder_input_tokens"]), self.width))


def remembering_loss(module, params, batch, rng, *, carry):
    logits, memory = module.apply({"params": params}, batch, carry)
    total, weight, sums = next_token(logits, batch)
    sums["remembered"] = jnp.sum(jnp.abs(carry)), jnp.float32(carry.size)
    return (total, weight, sums), memory


MEMORY = System(
    name="memory",
    sizes={"toy": SIZE},
    build=lambda settings: Remembering(**settings),
    tasks={"": Task(loss=remembering_loss, carry=lambda module, batch: module.first_memory(batch))},
)


class Layered(Toy, kw_only=True):
    """A language model of two layers; `make_block` and the rest are a tower's."""

    make_block: Callable[..., nn.Module]
    make_entrance: Callable[..., nn.Module] | None = None
    make_exit: Callable[..., nn.Module] | None = None

    @nn.compact
    def __call__(self, batch, collect=()):
        tower = Tower(
            make_stack=functools.partial(Stack, make_block=self.make_block, layers=2),
            make_entrance=self.make_entrance,
            make_exit=self.make_exit,
            name="tower",
        )
        shared = Shared(mask=AttentionMask(visibility="causal"), collect=collect)
        x, collected = tower(self.embed(batch), shared)
        return self.to_vocabulary(x), collected


def layered_loss(module, params, batch, rng):
    logits, _ = module.apply({"params": params}, batch)
    return next_token(logits, batch)


def block(make_attention):
    """A pre-norm layer around an attention of two heads."""
    return functools.partial(
        PreNormBlock,
        make_norm=LayerNorm,
        make_self_attention=functools.partial(make_attention, heads=2, width=8),
        make_feed_forward=functools.partial(MLP, hidden=32),
    )


def watched_loss(module, params, batch, rng):
    """Keeps the hidden states of all layers small, and their scores."""
    collect = ("hidden_states", "attention_scores")
    logits, found = module.apply({"params": params}, batch, collect)
    total, weight, sums = next_token(logits, batch)
    states = jnp.mean(jnp.square(found.hidden_states))
    scores = jnp.mean(jnp.square(masked_as_zero(found.attention_scores)))
    sums["hidden_states"] = states * weight, weight
    sums["layers"] = jnp.float32(len(found.hidden_states)), jnp.ones(())
    return total + weight * (0.1 * states + 0.1 * scores), weight, sums


WATCHER = System(
    name="watcher",
    sizes={"toy": SIZE},
    build=lambda settings: Layered(**settings, make_block=block(Attention)),
    tasks={"": Task(loss=watched_loss)},
)


class KeyedAttention(Attention):
    """A bias for each key, which the key itself predicts (as in content-based biases)."""

    def prepare_scores(self, query, keys_values, bias, *, mask, extra):
        key = keys_values.key  # [B, H, S, K]
        init = nn.with_logical_partitioning(nn.initializers.normal(0.1), ("heads", "kv"))
        vector = self.param("key_bias", init, key.shape[1::2])
        own = jnp.einsum("BHSK,HK->BHS", key, vector)[:, :, None]
        return query, own if bias is None else bias + own


KEYED = System(
    name="keyed",
    sizes={"toy": SIZE},
    build=lambda settings: Layered(**settings, make_block=block(KeyedAttention)),
    tasks={"": Task(loss=layered_loss)},
)


class TwoStreamBlock(nn.Module):
    """A stream of contents and one of queries, which reads the other (Yang et al. 2019)."""

    @nn.compact
    def __call__(self, carry, shared, per_layer):
        attention = Attention(heads=2, width=8, name="attention")
        keys_values = attention.keys_values(carry["content"])
        after = {
            name: constrain_residual(
                x + attention(LayerNorm(name=f"{name}_norm")(x), keys_values, mask=shared.mask)
            )
            for name, x in carry.items()
        }
        return after, None


class BothStreams(nn.Module):
    """The first carry: the vectors of the tokens, and a learned query for each place."""

    @nn.compact
    def __call__(self, x, positions):
        init = nn.with_logical_partitioning(nn.initializers.normal(0.1), ("embed",))
        query = self.param("query", init, x.shape[-1:])
        return {"content": x, "query": jnp.broadcast_to(query, x.shape)}


class QueryStream(nn.Module):
    """The output: the stream of queries."""

    def __call__(self, carry):
        return carry["query"]


TWO_STREAMS = System(
    name="two_streams",
    sizes={"toy": SIZE},
    build=lambda settings: Layered(
        **settings,
        make_block=TwoStreamBlock,
        make_entrance=BothStreams,
        make_exit=QueryStream,
    ),
    tasks={"": Task(loss=layered_loss)},
)
