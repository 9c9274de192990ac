"""A dialog model of a tiny decoder with random parameters, and a vocabulary of whole words."""

import flax.linen as nn
import jax

from t5x_like import partitioning, systems
from t5x_like.inference.likelihood import PromptFormat
from t5x_like.inference.text_model import TextModel
from t5x_like.pretrained import Pretrained
from t5x_like.systems import lamda
from t5x_like.vocabularies.sentence_piece import T5Vocabulary

WORDS = (
    *("0", "1", "TURN", "RESPONSE", "BASE", "RESEARCH", "RESULT", "TS,", "User,"),
    *("SENSIBLE", "SPECIFIC", "INTERESTING", "UN", "SAFE"),
    *(f"w{number}" for number in range(40)),
)


class Words(T5Vocabulary):
    """Text is words between blanks; UNSAFE has two tokens, all others have one."""

    def __init__(self, words=WORDS):
        super().__init__(vocab_size=64, contents=" ".join(words).encode())
        self._words = words

    def encode(self, text):
        pieces = text.replace("UNSAFE", "UN SAFE").split()
        return [self._words.index(one) + 3 if one in self._words else self.unk_id for one in pieces]

    def _until_end(self, ids):
        return ids

    def _decode(self, ids):
        return " ".join(self._words[one - 3] for one in map(int, ids) if 3 <= one < 57)


def make(*, vocabulary=None, max_new_tokens=6, length=64, batch_size=8, mesh=None):
    """A text model whose parameters are large enough that its contexts matter.

    Args:
        mesh: to shard the parameters over; None: one device.
    """
    config = lamda.SIZES["2b"] | {
        "vocab_size": 64,
        "layers": 2,
        "d_model": 16,
        "d_ff": 32,
        "heads": 2,
        "head_width": 8,
    }
    module = systems.build("lamda", config)

    def boxed():
        return module.init(jax.random.key(0), module.example_batch())["params"]

    def init():
        return jax.tree.map(lambda x: 3 * x if x.ndim > 1 else x, nn.unbox(boxed()))

    axes = nn.get_partition_spec(jax.eval_shape(boxed))
    where = partitioning.shardings(mesh, axes) if mesh else None
    params = jax.jit(init, out_shardings=where)()
    return TextModel(
        Pretrained(module, params, system="lamda", config=config, mesh=mesh),
        vocabulary or Words(),
        PromptFormat(length=length, ends=(False, True)),
        batch_size=batch_size,
        # Several end tokens, so that random texts end early.
        decode={"max_new_tokens": max_new_tokens, "eos_token_id": [1, *range(20, 32)]},
    )
