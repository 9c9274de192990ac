"""Folders of Hugging Face's hub, by the names of their models: OWNER/NAME or OWNER/NAME@REVISION.

Its oldest models also have names without an owner, which the hub resolves: gpt2, t5-small.

huggingface_hub keeps them in its cache, and reads its settings from the environment: HF_HOME,
HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN and others. Only the files that this package reads are
downloaded. A folder of this machine takes precedence over a model with the same name.
"""

import functools
import importlib.util
import os
import pathlib
import re

# A branch, a tag or a commit follows the @; refs/pr/1 is a proposed change.
_WITH_OWNER = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
# No model was named like this since 2020, so that the list is closed: any other word is a path.
_WITHOUT_OWNER = (
    r"(albert|bert|distilbert|distilroberta|gpt2|roberta|t5|xlm-roberta|xlnet)(-[a-z0-9]+)+"
    r"|gpt2|distilgpt2|openai-gpt"
)
_NAME = re.compile(rf"(?P<model>{_WITH_OWNER}|{_WITHOUT_OWNER})(@(?P<revision>.+))?")
_SETTINGS = ("config.json", "generation_config.json", "adapter_config.json")
# The files of tokenizers, as patterns; all of them are data, and none is run.
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "target_vocab.json", "bpe.codes", "tekken.json"),
    *("chat_template.jinja", "chat_template.json"),
    *("*.model", "*.spm", "*.tiktoken"),
)
_TENSORS = (
    *("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
    "adapter_model.safetensors",
)
# Of models that nobody has converted since 2023, such as google/t5-v1_1-small.
_OLDER_TENSORS = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "pytorch_model-*-of-*.bin",
)
_COMMITS: dict[str, str] = {}  # of the models that this process has read


def names(text: str | os.PathLike[str]) -> bool:
    """Return whether a text has the form of a model's name; a relative path may have it, too."""
    return bool(_NAME.fullmatch(os.fspath(text)))


def check_source(text: str) -> None:
    """Raise ValueError if a text is neither a path that exists nor has the form of a name."""
    if not (pathlib.Path(text).expanduser().exists() or names(text)):
        raise ValueError(f"there is no folder {text}")


@functools.cache
def folder(name: str, *, weights: bool = True) -> pathlib.Path:
    """Return the folder of a model in the cache, after downloading what it lacks.

    The folder's name is the commit.

    Args:
        name: a name that `names` accepts.
        weights: whether the network's tensors are needed, rather than only the tokenizer.

    Raises:
        ValueError: huggingface_hub is not installed, the hub has no such model or revision, the
            model needs a token, or the hub cannot be reached and the cache lacks the model.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ValueError(
            f"a model named {name} is downloaded from the hub by huggingface_hub: pip install "
            "'t5x_like[hub]' (in a clone: pip install -e '.[hub]')"
        )
    import huggingface_hub
    from huggingface_hub import errors

    parts = _NAME.fullmatch(name)
    assert parts is not None, name
    wanted = [*_SETTINGS, *TOKENIZER, *(_TENSORS if weights else ())]
    download = functools.partial(
        huggingface_hub.snapshot_download,
        parts["model"],
        revision=parts["revision"],
        ignore_patterns=["*/*"],  # subfolders have other formats
    )
    try:
        path = pathlib.Path(download(allow_patterns=wanted))
        if weights and not any(path.glob("*.safetensors")):
            path = pathlib.Path(download(allow_patterns=[*wanted, *_OLDER_TENSORS]))
    except errors.GatedRepoError as error:
        problem = "its owner must grant access, on its page; then set HF_TOKEN"
        raise ValueError(f"the hub does not give {name} to everybody: {problem}") from error
    except errors.RepositoryNotFoundError as error:
        private = "; a private model needs HF_TOKEN"
        raise ValueError(f"the hub has no model {parts['model']}{private}") from error
    except errors.RevisionNotFoundError as error:
        problem = f"has no branch, tag or commit {parts['revision']!r}"
        raise ValueError(f"{parts['model']} of the hub {problem}") from error
    except errors.LocalEntryNotFoundError as error:
        raise ValueError(f"{name} is not in the cache of huggingface_hub, and {_why()}") from error
    except (OSError, errors.HFValidationError, errors.HfHubHTTPError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name} cannot be downloaded from the hub: {reason}") from error
    _COMMITS[name] = path.name
    return path


def _why() -> str:
    from huggingface_hub import constants

    offline = "HF_HUB_OFFLINE is set: unset it to download the model"
    return offline if constants.HF_HUB_OFFLINE else "the hub cannot be reached"


def commits(*wanted: str) -> dict[str, str]:
    """Return {name: commit} for the wanted models that this process has read."""
    return {name: _COMMITS[name] for name in wanted if name in _COMMITS}
