"""Freezes what transformers makes of conversations by chat templates: chat_templates.json.

python tests/golden/make_chat_templates.py   (made with transformers 5.24.0, jinja2 3.1.6)

The templates are short ones of our own, for the formats of the models that they are named after.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
QWEN2 = """
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}
{%- if tools %}{{ tools | tojson(indent=1) }}{% endif %}
""" + CHATML.strip()
LLAMA_2 = """
{% if messages[0]['role'] == 'system' %}
  {% set rules = '<<SYS>>\\n' ~ messages[0]['content'] ~ '\\n<</SYS>>\\n\\n' %}
  {% set turns = messages[1:] %}
{% else %}
  {% set rules, turns = '', messages %}
{% endif %}
{% for turn in turns %}
  {% if (turn['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('roles must alternate, from user to assistant') }}
  {% endif %}
  {% if turn['role'] == 'user' %}
    {% set text = (rules if loop.first else '') ~ turn['content'].strip() %}
    {{- bos_token ~ '[INST] ' ~ text ~ ' [/INST]' -}}
  {% else %}
    {{- ' ' ~ turn['content'].strip() ~ ' ' ~ eos_token -}}
  {% endif %}
{% endfor %}
"""
LLAMA_3 = """
{%- set here = namespace(first=true) %}
{%- for message in messages %}
    {%- if here.first %}{{ bos_token }}{% set here.first = false %}{% endif %}
    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' }}
    {%- generation %}{{ message.content | trim }}{% endgeneration %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
GEMMA = """
{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('no system turn here') }}{% endif %}
{% for message in messages %}
{% set role = 'model' if message.role == 'assistant' else message.role %}
{{ '<start_of_turn>' + role + '\\n' + message.content | trim + '<end_of_turn>' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<start_of_turn>model' }}
{% endif %}
"""
MISTRAL = """
{{- bos_token }}
{%- for message in messages %}
  {%- if message['role'] == 'system' %}{% continue %}{% endif %}
  {%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
  {%- else %}{{ ' ' + message['content'] + eos_token }}{% endif %}
{%- endfor %}
"""
ZEPHYR = """
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""
SAFE = """{{ messages | tojson }}{{ (strftime_now('%Y') | int) > 2000 }}{{ unk_token }}"""
# The template, and the special tokens.
TEMPLATES = {
    "chatml": (CHATML, {"eos_token": "<|im_end|>"}),
    "qwen2": (QWEN2, {"eos_token": "<|im_end|>"}),
    "llama_2": (LLAMA_2, {"bos_token": "<s>", "eos_token": "</s>"}),
    "llama_3": (LLAMA_3, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
    "gemma": (GEMMA, {"bos_token": "<bos>", "eos_token": "<eos>"}),
    "mistral": (MISTRAL, {"bos_token": "<s>", "eos_token": "</s>"}),
    "zephyr": (ZEPHYR, {"bos_token": "<s>", "eos_token": "</s>"}),
    "safe": (SAFE, {"unk_token": "<unk>"}),
}
CONVERSATIONS = [
    [("user", "What is 2 < 3 & 'x'?")],
    [("user", " Hi {{ x }} "), ("assistant", " caf\u00e9\n"), ("user", "And \u6771\u4eac?")],
    [("system", "Be short."), ("user", "Hi"), ("assistant", "Hello."), ("user", "Bye")],
    [("assistant", "I begin."), ("user", "No.")],
]


def main() -> None:
    frozen = {}
    for name, (lines, tokens) in TEMPLATES.items():
        template = lines.strip()
        words = {
            token: number
            for number, token in enumerate({"<unk>": 0, **dict.fromkeys(tokens.values())})
        }
        model = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, **tokens)
        tokenizer.chat_template = template
        rows = []
        for pairs in CONVERSATIONS:
            turns = [{"role": role, "content": content} for role, content in pairs]
            try:
                text = tokenizer.apply_chat_template(
                    turns, tokenize=False, add_generation_prompt=True
                )
                rows.append({"turns": turns, "text": text})
            except Exception as error:
                rows.append({"turns": turns, "error": str(error)})
        frozen[name] = {"template": template, "tokens": tokens, "rows": rows}
    path = Path(__file__).with_name("chat_templates.json")
    path.write_text(json.dumps(frozen, indent=1, ensure_ascii=False) + "\n")
    sys.stdout.write(f"{len(frozen)} templates\n")


if __name__ == "__main__":
    main()
