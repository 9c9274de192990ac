"""Add tokens to a model: to its tokenizer, its embedding table and its output layer."""

import pathlib
import shutil
import tempfile
from collections.abc import Sequence

import flax.traverse_util
import jax
import jax.numpy as jnp
from jaxtyping import Array

from t5x_like import hub, paths, systems
from t5x_like.hf import folder as files
from t5x_like.pretrained.loading import parameter_shapes
from t5x_like.pretrained.model import Pretrained
from t5x_like.vocabularies import files as vocabulary_files
from t5x_like.vocabularies import new_tokens, saving


def save_with_tokens(model: Pretrained, folder: pathlib.Path, tokens: Sequence[str]) -> None:
    """Write a folder that Hugging Face loads, with additional tokens; see `save_pretrained`.

    The tokens get the first ids after the vocabulary's, and each is one token wherever it stands
    in a text. The embedding of a new token, and its row and bias of the output layer, are the means
    over all tokens of the vocabulary (Hewitt 2021, "Initializing New Word Embeddings for Pretrained
    Language Models"): a new token then is about as likely as an average one.

    Raises:
        ValueError: a token cannot be added (`new_tokens.check`), the vocabulary of the model is not
            known, or Hugging Face has no tokenizer.json for it.
    """
    _check_known(model)
    network = model.tokenizer_network(model.hugging_face_config())
    with tempfile.TemporaryDirectory() as name:  # to find what is wrong before the model is written
        tried = pathlib.Path(name)
        files.write_json(tried / files.CONFIG, network.config)
        saving.save(model.vocabulary, tried, network)
        first = new_tokens.add(tried, tokens)
    with_rows(model, first=first, number=len(tokens)).save_pretrained(folder)
    new_tokens.add(folder, tokens)


def with_tokens(model: Pretrained, folder: pathlib.Path, tokens: Sequence[str]) -> Pretrained:
    """Return the model with additional tokens, for a network that Hugging Face may not have.

    Args:
        folder: a new folder, which is its vocabulary: a tokenizer in Hugging Face's format.

    Raises:
        ValueError: see `save_with_tokens`; then nothing is written.
    """
    _check_known(model)
    spec = model.vocabulary
    path = vocabulary_files.find(spec) if hub.names(spec) else paths.path(spec)
    # The model_type there decides which class reads a tokenizer that does not name its class.
    config = files.read_json(path / files.CONFIG) if (path / files.CONFIG).is_file() else {}
    with tempfile.TemporaryDirectory() as name:
        tried = pathlib.Path(name) / "vocabulary"
        tried.mkdir()
        if config:
            files.write_json(tried / files.CONFIG, config)
        saving.save(spec, tried, model.tokenizer_network(config))
        first = new_tokens.add(tried, tokens)
        more = with_rows(model, first=first, number=len(tokens))
        shutil.copytree(tried, folder)
    more.vocabulary = str(folder)
    return more


def _check_known(model: Pretrained) -> None:
    if not model.vocabulary:
        raise ValueError("tokens cannot be added: the model's vocabulary is not known")


def with_rows(model: Pretrained, *, first: int, number: int) -> Pretrained:
    """Return the model with rows for new tokens, each the mean over the tokens before them.

    Args:
        first: the id of the first new token. The table grows if it has no room; rows that it has
            for padding to a round number are used.
        number: the number of new tokens.

    Raises:
        ValueError: the table has other rows after its vocabulary.
    """
    old = model.config["vocab_size"]
    config = {**model.config, "vocab_size": max(old, first + number)}
    probe = systems.build(model.system, {**config, "vocab_size": old + 1})
    longer = flax.traverse_util.flatten_dict(
        parameter_shapes(probe, dtype=jnp.float32, mesh=None), sep="/"
    )
    flat = flax.traverse_util.flatten_dict(model.params, sep="/")
    for path, leaf in flat.items():
        axes = [n for n, size in enumerate(leaf.shape) if longer[path].shape[n] != size]
        for axis in axes:
            if leaf.shape[axis] != old:
                raise ValueError(
                    f"tokens cannot be added: {path} has {leaf.shape[axis]} rows, and "
                    f"model.vocab_size={old}"
                )
            flat[path] = _grown(leaf, axis, first=first, number=number)
    return type(model)(
        systems.build(model.system, config),
        flax.traverse_util.unflatten_dict(flat, sep="/"),
        system=model.system,
        config=config,
        generation=model.generation,
        token_ids=model.token_ids,
        model_type=model.model_type,
        labels=model.labels,
        from_folder=model.from_folder,
        vocabulary=model.vocabulary,
        card=model.card,
    )


def _grown(leaf: Array, axis: int, *, first: int, number: int) -> Array:
    """Set `number` rows from `first` on to the mean of the rows before; append them if needed."""
    rows = jnp.moveaxis(leaf, axis, 0)
    mean = jnp.mean(rows[:first].astype(jnp.float32), axis=0, keepdims=True).astype(leaf.dtype)
    new = jnp.repeat(mean, number, axis=0)
    table = jnp.concatenate([rows[:first], new, rows[first + number :]])
    return jax.device_put(jnp.moveaxis(table, 0, axis))
