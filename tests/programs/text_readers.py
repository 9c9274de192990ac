"""All readers of JSON Lines, each a function from a file to its texts, for tests of their rules."""

import functools
import json
from pathlib import Path

from data.filters import json_lines
from t5x_like import infer, vocabulary
from t5x_like.batches.data_modules import load
from t5x_like.grain_pipeline.rows_of_files import open_files
from t5x_like.inference import toolset
from t5x_like.preprocessing import line_datasets
from t5x_like.reading import labelled_text

DATA = Path(__file__).parents[2] / "data"


def row(text: str) -> bytes:
    """A line of JSON Lines, without its end, with a text in all fields that are read here."""
    names = ("text", "inputs", "targets", "text_a", "label", "prompt", "key", "response")
    return json.dumps(dict.fromkeys(names, text), ensure_ascii=False).encode()


def of_seqio(path, **settings):
    data = load(str(DATA / "text_files.py")).documents(
        "train", files=str(path), held_out=0.0, **settings
    )
    return [one["text"].decode() for one in line_datasets.named(data.as_numpy_iterator())]


def of_pairs(path):
    data = load(str(DATA / "parallel_text.py"))
    pairs = {"pairs": str(path), "columns": ("inputs", "targets"), "held_out": 0.0}
    rows = data.source_of_pairs(**pairs).get_dataset("train", shuffle=False)
    return [one["inputs"].decode() for one in line_datasets.named(rows.as_numpy_iterator())]


def of_grain(path):
    files = open_files("files", str(path), {"text": "text"})
    rows = [files[number] for number in range(len(files))]
    return [row["text"] for row in rows if row is not None]


def of_vocabulary(path):
    settings = {"files": str(path), "held_out": 0.0}
    return list(vocabulary.training_texts(str(DATA / "text_files.py"), settings))


def of_filters(path):
    return [one.text for one in json_lines.documents([str(path)], text="text")]


def of_labelled(path):
    names = {"text_a": "text_a", "label": "label"}
    return [
        one["text_a"] for one in labelled_text.read(str(path), kind="classification", names=names)
    ]


def of_prompts(path):
    module = load(str(DATA / "prompt_files.py"))
    return [one["inputs"] for one in module.read(prompts=str(path), held_out=0.0)["train"]]


def of_prompted(path):
    return [
        one["inputs"]
        for one in load(str(DATA / "prompted_files.py")).read(train=str(path))["train"]
    ]


def of_preferences(path):
    rows = load(str(DATA / "preference_files.py")).read(1, train=str(path), held_out=0.0)["train"]
    return [one["prompt"] for one in rows]


def of_infer(path):
    as_prompt = functools.partial(infer._prompt, columns={}, chat=None, written=())
    lines = infer._read(str(path), as_prompt=as_prompt)
    return [one if isinstance(one, str) else one["inputs"] for one in lines]


def of_predictor(path):
    return [one["text_a"] for one in infer._read(str(path))]


def of_tool(path):
    return [text for _, text in toolset.Retrieval(str(path))._entries]


OF_OBJECTS = {
    "seqio": of_seqio,
    "pairs": of_pairs,
    "vocabulary": of_vocabulary,
    "filters": of_filters,
    "labelled": of_labelled,
    "prompts": of_prompts,
    "prompted": of_prompted,
    "preferences": of_preferences,
    "infer": of_infer,
    "predictor": of_predictor,
    "tool": of_tool,
    "grain": of_grain,
}
