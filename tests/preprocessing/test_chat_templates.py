"""Chat templates of folders: the texts are those of transformers' apply_chat_template.

`golden/make_chat_templates.py` froze the texts of transformers 5.24.
"""

import json
from pathlib import Path

import pytest

from t5x_like.vocabularies import chat
from tests.preprocessing.test_tokenizer_folders import change, write

FROZEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "chat_templates.json").read_text("utf-8")
)
TURNS = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]


@pytest.mark.parametrize("name", FROZEN)
def test_conversations_are_written_as_by_transformers(name):
    frozen = FROZEN[name]
    template = chat.JinjaTemplate(frozen["template"], frozen["tokens"])
    for row in frozen["rows"]:
        if "error" in row:
            with pytest.raises(ValueError, match=row["error"]):
                template.prompt(row["turns"])
        else:
            begin = frozen["tokens"].get("bos_token", "")
            assert template.prompt(row["turns"]) == row["text"].removeprefix(begin)


@pytest.mark.parametrize("name", [name for name in FROZEN if name != "safe"])
def test_an_answer_follows_its_prompt(name):
    frozen = FROZEN[name]
    template = chat.JinjaTemplate(frozen["template"], frozen["tokens"])
    question = {"role": "user", "content": "three"}
    whole = template.prompt([*TURNS, question])
    assert whole.startswith(template.prompt(TURNS[:1]) + template.answer(TURNS))


# What follows "two" in the templates of the folders, before the end token.
ENDS = {"llama_2": " ", "gemma": "<end_of_turn>"}


@pytest.mark.parametrize("name", [name for name in FROZEN if name != "safe"])
def test_an_answer_ends_as_the_template_ends_a_turn(name):
    frozen = FROZEN[name]
    template = chat.JinjaTemplate(frozen["template"], frozen["tokens"])
    answer = template.answer([TURNS[0], {"role": "assistant", "content": "two"}])
    assert answer.strip(" \n").removesuffix(ENDS.get(name, "").strip()) == "two"
    assert answer.endswith(f"two{ENDS.get(name, '')}")
    assert template.content(answer).strip() == "two"
    other = chat.JinjaTemplate(frozen["template"], {**frozen["tokens"], "eos_token": "<other>"})
    end = other.answer([TURNS[0], {"role": "assistant", "content": "two"}]).rpartition("two")[2]
    marks = {"chatml": "<|im_end|>", "qwen2": "<|im_end|>", "llama_3": "<|eot_id|>"}
    assert end.strip() == {**marks, "gemma": "<end_of_turn>"}.get(name, "")


def test_a_template_may_change_an_answer():
    """LLaMA 3's removes white space around a content; another keeps it."""
    turns = [TURNS[0], {"role": "assistant", "content": " two "}]
    trims = chat.JinjaTemplate(FROZEN["llama_3"]["template"], FROZEN["llama_3"]["tokens"])
    assert trims.answer(turns) == "two"
    source = "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}"
    keeps = chat.JinjaTemplate(source, {})
    assert keeps.answer(turns) == "assistant: two "


def test_a_conversation_without_tools_and_documents_has_none():
    """As transformers 5.24 renders it: both are given, and None."""
    given = "tools is not none or documents is not none"
    source = f"{{% if {given} %}}tools{{% endif %}}{{{{ messages[0].content }}}}"
    assert chat.JinjaTemplate(source, {}).prompt(TURNS[:1]) == "one"


@pytest.mark.parametrize("name", ["plain", "chatml"])
def test_our_templates_are_written_in_jinja(name):
    ours = chat.find_template(name)
    theirs = chat.JinjaTemplate(ours.jinja, {})
    turns = [{"role": "system", "content": 'a "{}" \\n'}, *TURNS, {"role": "user", "content": "b"}]
    assert theirs.prompt(turns) == ours.prompt(turns)


@pytest.mark.parametrize("place", ["tokenizer_config.json", "list", "chat_template.jinja"])
def test_a_folder_has_its_template_in_one_of_three_places(place, tmp_path):
    write("gpt2/saved", tmp_path)
    source = "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
    if place == "chat_template.jinja":
        change(tmp_path, "tokenizer_config.json", chat_template="another")
        (tmp_path / place).write_text(source)
    else:
        named = [{"name": "tools", "template": "x"}, {"name": "default", "template": source}]
        change(
            tmp_path, "tokenizer_config.json", chat_template=named if place == "list" else source
        )
    template = chat.find_template(str(tmp_path))
    assert template.prompt(TURNS) == "one<|endoftext|>two<|endoftext|>"
    assert template.jinja == source


def test_mistakes_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"an error in line 2: Expected an expression"):
        chat.JinjaTemplate("\n{% if %}", {})
    with pytest.raises(ValueError, match=r"does not write these turns: .*unsafe"):
        chat.JinjaTemplate("{{ messages.__class__.__mro__ }}", {}).prompt(TURNS)
    with pytest.raises(ValueError, match="does not write these turns: "):
        chat.JinjaTemplate("{{ messages.append(1) }}", {}).prompt(TURNS)
    write("gpt2/saved", tmp_path)
    with pytest.raises(ValueError, match=r"has no chat template \(chat_template.jinja\)"):
        chat.find_template(str(tmp_path))
    with pytest.raises(ValueError, match="Did you mean 'chatml'"):
        chat.find_template("chatlm")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 't5x_like\[hub\]'"):
        chat.JinjaTemplate("", {})
