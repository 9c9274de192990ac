"""Which class of transformers a folder's tokenizer is of, by its name without "Tokenizer"."""

import re

from t5x_like.vocabularies.hugging_face import piece_recipes, unigram_recipes
from t5x_like.vocabularies.hugging_face.tokenizer_files import TokenizerFiles
from t5x_like.vocabularies.hugging_face.tokenizer_recipe import Recipe

RECIPES: dict[str, Recipe] = {**piece_recipes.RECIPES, **unigram_recipes.RECIPES}
AS_WRITTEN = ""  # tokenizer.json as it is, or a SentencePiece model as its own code reads it

# The class of each model_type that has one of its own.
_OF_MODEL = {
    "albert": "Albert",
    "bart": "Roberta",
    "bert": "Bert",
    "big_bird": "BigBird",
    "bigbird_pegasus": AS_WRITTEN,
    "byt5": "ByT5",
    "deberta": "Deberta",
    "deberta-v2": "DebertaV2",
    "distilbert": "Bert",
    "electra": "Bert",
    "gemma": "Gemma",
    "gpt2": "GPT2",
    "gpt_neox": "GPTNeoX",
    "gptj": "GPT2",
    "marian": "Marian",
    "mbart": "MBart",
    "mistral": AS_WRITTEN,
    "mixtral": AS_WRITTEN,
    "mt5": "T5",
    "openai-gpt": "OpenAIGPT",
    "opt": "GPT2",
    "pegasus": "Pegasus",
    "qwen2": "Qwen2",
    "roberta": "Roberta",
    "switch_transformers": "T5",
    "t5": "T5",
    "umt5": AS_WRITTEN,
    "xlm-roberta": "XLMRoberta",
    "xlnet": "XLNet",
}
# The class of such a model's older files, where the folder does not name it.
_OF_FILES = {"longt5": "T5", "umt5": "T5"}
_MISNAMED = {"qwen2"}  # many of whose folders name the class of another model


def class_name(files: TokenizerFiles) -> str | None:
    """The class of a folder's tokenizer; None where neither its tokenizer nor its model has a name.

    tokenizer_config.json names it, or config.json; a model whose tokenizers have no class of their
    own, or whose folders are known to name a wrong one, decides for itself.
    """
    model = files.model.get("model_type")
    named = files.settings.get("tokenizer_class") or files.model.get("tokenizer_class")
    if named is not None and not isinstance(named, str):
        raise ValueError(f"has tokenizer_class={named!r:.80}; allowed: the name of a class.")
    registered = _OF_MODEL.get(str(model))
    if named is None:
        is_known = registered is not None or str(model) in _OF_FILES
        as_written = files.has("tokenizer.json") or files.has("tokenizer.model")
        unnamed = AS_WRITTEN if is_known or (model is not None and as_written) else None
        return registered or unnamed
    name = _plain(named)
    if name == "Llama" and registered != AS_WRITTEN and _is_byte_level(files):
        return AS_WRITTEN
    if registered == AS_WRITTEN:
        return AS_WRITTEN
    if model in _MISNAMED:
        return registered
    return name


def _plain(name: str) -> str:
    name = re.sub("(Fast|Legacy)$", "", name)
    name = re.sub("Tokenizer$|Backend$", "", name)
    return AS_WRITTEN if name in ("PreTrained", "Tokenizers", "Bloom", "Python") else name


def _is_byte_level(files: TokenizerFiles) -> bool:
    """Whether a tokenizer.json that is called LLaMA's is LLaMA 3's, of another kind."""
    parts = (files.tokenizer.get(name) for name in ("pre_tokenizer", "decoder"))
    return any("ByteLevel" in repr(part) for part in parts)


def recipe(files: TokenizerFiles, name: str) -> Recipe | None:
    """How the class makes its tokenizer; None to take tokenizer.json, or the model, as it is.

    Raises:
        ValueError: the class is not known here, and the folder has no tokenizer.json.
    """
    found = RECIPES.get(name)
    if files.has("tokenizer.json"):
        return found if found and found.model == _kind(files) else None
    if found is None and name == AS_WRITTEN:
        # Such a class reads no other file than tokenizer.model in transformers.
        own = _plain(str(files.settings.get("tokenizer_class") or ""))
        own = own or _OF_FILES.get(str(files.model.get("model_type")), "")
        return None if files.has("tokenizer.model") else RECIPES.get(own)
    if found is None:
        raise ValueError(
            f"has tokenizer_class={name + 'Tokenizer'!r} and no tokenizer.json. Save the tokenizer "
            "with transformers 5, which writes tokenizer.json, or take a folder of one of "
            f"{', '.join(RECIPES)}."
        )
    return found


def _kind(files: TokenizerFiles) -> str:
    """The kind of a tokenizer.json's model, which old files do not name."""
    model = files.tokenizer.get("model")
    if not isinstance(model, dict):
        return ""
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return model.get("type") or ("BPE" if "merges" in model else "WordPiece")


def reads(name: str, file: str) -> bool:
    """Whether a class makes its tokenizer from this file."""
    own = RECIPES[name].files if name in RECIPES else ()
    return file in ("tokenizer.json", "tokenizer.model", *own)
