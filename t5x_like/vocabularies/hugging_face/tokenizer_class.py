"""Find the transformers class of a folder's tokenizer, by its name without "Tokenizer"."""

import re

from t5x_like.vocabularies.hugging_face import tokenizer_recipes
from t5x_like.vocabularies.hugging_face.tokenizer_files import TokenizerFiles
from t5x_like.vocabularies.hugging_face.tokenizer_recipes import Recipe

RECIPES: dict[str, Recipe] = {
    **tokenizer_recipes.PIECE_RECIPES,
    **tokenizer_recipes.UNIGRAM_RECIPES,
}
# Use tokenizer.json unchanged, or a SentencePiece model like the library SentencePiece.
AS_WRITTEN = ""

# The class of each model_type that has a specific class.
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
    "transfo-xl": "TransfoXL",
    "umt5": AS_WRITTEN,
    "xlm-roberta": "XLMRoberta",
    "xlnet": "XLNet",
}
# The class for the older files of such a model, if the folder does not name it.
_OF_FILES = {"longt5": "T5", "umt5": "T5"}
_MISNAMED = {"qwen2"}  # many of its folders name the class of another model


def class_name(files: TokenizerFiles) -> str | None:
    """Return the class of a folder's tokenizer; None if neither tokenizer nor model names it.

    tokenizer_config.json or config.json names it. The model_type decides instead if its tokenizers
    have no specific class, or if its folders are known to name a wrong class.

    Raises:
        ValueError: the name of the class is not a string.
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
    """Return whether a tokenizer.json of class LLaMA is in fact LLaMA 3's byte-level BPE."""
    parts = (files.tokenizer.get(name) for name in ("pre_tokenizer", "decoder"))
    return any("ByteLevel" in repr(part) for part in parts)


def recipe(files: TokenizerFiles, name: str) -> Recipe | None:
    """Return the recipe of a class; None to use tokenizer.json or tokenizer.model unchanged.

    Raises:
        ValueError: the class is not known here, and the folder has no tokenizer.json.
    """
    class_recipe = RECIPES.get(name)
    if files.has("tokenizer.json"):
        return class_recipe if class_recipe and class_recipe.model == _kind(files) else None
    if class_recipe is None and name == AS_WRITTEN:
        # In transformers such a class reads no other file than tokenizer.model.
        class_name = _plain(str(files.settings.get("tokenizer_class") or ""))
        class_name = class_name or _OF_FILES.get(str(files.model.get("model_type")), "")
        return None if files.has("tokenizer.model") else RECIPES.get(class_name)
    if class_recipe is None:
        raise ValueError(
            f"has tokenizer_class={name + 'Tokenizer'!r} and no tokenizer.json. Save the tokenizer "
            "with transformers 5, which writes tokenizer.json, or take a folder of one of "
            f"{', '.join(RECIPES)}."
        )
    return class_recipe


def _kind(files: TokenizerFiles) -> str:
    """Return the kind of a tokenizer.json's model, inferred if the file is old and lacks it."""
    model = files.tokenizer.get("model")
    if not isinstance(model, dict):
        return ""
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return model.get("type") or ("BPE" if "merges" in model else "WordPiece")


def reads(name: str, file: str) -> bool:
    """Return whether a class can make its tokenizer from a file of this name."""
    vocabulary_files = RECIPES[name].files if name in RECIPES else ()
    return file in ("tokenizer.json", "tokenizer.model", *vocabulary_files)
