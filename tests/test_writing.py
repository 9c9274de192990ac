"""The commands on models that write: infer, a conversation, scores of all kinds, on any folder."""

import importlib.util
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from t5x_like import config, convert, evaluate, infer
from t5x_like.config import parse
from t5x_like.experiment import completion
from t5x_like.experiment.run import of_config
from t5x_like.inference import interactive, text_model
from t5x_like.preprocessing import sources
from t5x_like.pretrained import from_pretrained
from t5x_like.vocabularies.chat import find_template
from tests.programs import command_flags, in_process, tiny_encoder, tiny_writer

ROOT = pathlib.Path(__file__).parents[1]
# Each system that writes text, and settings of its own.
SYSTEMS = {"gpt2": {}, "t5": {}}
ROWS = [
    {"inputs": f"Is {n} even?", "targets": ["yes", "no"][n % 2], "choices": ["yes", "no"]}
    for n in range(6)
]
LINES = [f"line {n} of naïve text\n" for n in range(40)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The run of each system, and files to score."""
    folder = tmp_path_factory.mktemp("writers")
    for system, model in SYSTEMS.items():
        made = tiny_writer.settings(system, **model)
        made.data.module, made.data.task = "data/text_files.py", "text_files"
        made.data.settings = {"files": str(folder / "text.txt"), "held_out": 0.5}
        if made.data.objective == "text_to_text":
            made.data.objective = "span_corruption"
        tiny_writer.write(folder / system, made)
        made.workdir = str(folder / system)
        (folder / system / "config.json").write_text(json.dumps(config.to_dict(parse(made))))
    (folder / "text.txt").write_text("".join(LINES))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


@pytest.fixture(params=SYSTEMS)
def system(request):
    return request.param


def load(name, argument):
    spec = importlib.util.spec_from_file_location(f"config_{name}", ROOT / "configs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(argument)


def pretrained(kind, folder, *, files, **changes):
    """The config of configs/pretrained.py, with e.g. `in_context__shots=2`."""
    made = load("pretrained", kind)
    made.initialize = str(folder)
    if "files" in made.data.settings:
        made.data.settings.files = str(files / "text.txt")
    else:
        made.data.settings.train = made.data.settings.validation = str(files / "rows.jsonl")
    made.decode.max_new_tokens = 4
    keys = {key: key.replace("__", ".") for key in changes}
    keys |= {key: f"evaluate.measures.{keys[key]}" for key in changes if key.startswith(kind)}
    made.update_from_flattened_dict({keys[key]: value for key, value in changes.items()})
    of_config(made)
    return made


def measure(made, tmp_path, monkeypatch):
    """What evaluate writes, and the predictions."""
    command_flags.give(monkeypatch, output=str(tmp_path / "out.json"))
    made.evaluate.predictions = str(tmp_path / "predictions.jsonl")
    evaluate.main(parse(made))
    [(task, found)] = json.loads((tmp_path / "out.json").read_text())["tasks"].items()
    predicted = [
        json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()
    ]
    assert {one["task"] for one in predicted} == {task}
    [name] = made.evaluate.measures
    assert {one["measure"] for one in predicted} == {name}
    assert all(key.startswith(f"{name}/") for key in found)
    return {key.removeprefix(f"{name}/"): value for key, value in found.items()}, predicted


def test_infer_continues_lines_with_log_p(folders, system, tmp_path, monkeypatch, capsys):
    prompts, output = tmp_path / "prompts.txt", tmp_path / "predictions.jsonl"
    texts = ["A", "", "The naïve cat", "x" * 900]
    prompts.write_text("\n".join(texts) + "\n")
    command_flags.give(monkeypatch, input=str(prompts), output=str(output), log_probs=True)
    made = load("run", str(folders / system))
    infer.main(parse(made))
    predicted = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one["inputs"] for one in predicted] == texts
    assert '{"inputs": "The naïve cat"' in output.read_text("utf-8")
    model = text_model.build(from_pretrained(folders / system), of_config(made).parts[0])
    assert [one["prediction"] for one in predicted] == model.generate(texts)
    lost = f"{len(model.prompt(texts[-1])) - model.room:,}"
    assert capsys.readouterr().err.endswith(f"{lost}.0 tokens on average, at most {lost}\n")
    for one in predicted:
        assert 0 < len(one["tokens"]) == len(one["log_probs"]) <= 12
        assert all(log_prob < 0 for log_prob in one["log_probs"])


def test_infer_shows_examples_with_what_was_there(folders, system, monkeypatch, capsys):
    command_flags.give(monkeypatch, examples=2)
    infer.main(parse(load("run", str(folders / system))))
    shown = capsys.readouterr().out
    assert shown.count("model: ") == shown.count("original: ") == 2
    if system == "gpt2":  # the halves of a row
        parts = [line.partition(": ")[2] for line in shown.splitlines() if line.strip()]
        for prompt, _, original in (parts[:3], parts[3:]):
            assert prompt
            assert {f"{prompt}{original}\n", f"{prompt} {original}\n"} & set(LINES)


def test_infer_types_answers_as_they_come(folders, system, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", in_process.standard_input("A\nThe naïve\n"))
    command_flags.give(monkeypatch, input="-", stream=True)
    made = load("run", str(folders / system))
    infer.main(parse(made))
    model = text_model.build(from_pretrained(folders / system), of_config(made).parts[0])
    typed = [
        ("" if model.encodes else text) + generated
        for text, generated in zip(
            ("A", "The naïve"), model.generate(["A", "The naïve"]), strict=True
        )
    ]
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in typed)


def test_a_stream_leaves_out_the_beam_search_of_a_config(monkeypatch):
    made = tiny_writer.settings("t5")
    made.decode = {"max_new_tokens": 12, "num_beams": 4, "length_penalty": 0.6}
    [part] = of_config(made).parts
    # One beam, too, if a folder's generation_config.json has several.
    assert infer.without_beams(part).decode == {"max_new_tokens": 12, "num_beams": 1}
    assert part.decode["num_beams"] == 4
    monkeypatch.setattr("sys.argv", ["infer", "--config.decode.num_beams=2"])
    assert infer.without_beams(part).decode["num_beams"] == 4  # then a stream is an error


class Terminal(io.StringIO):
    """Lines that are typed; at "^C" Ctrl-C is pressed."""

    def __next__(self):
        line = super().__next__()
        if line == "^C\n":
            raise KeyboardInterrupt
        return line


@pytest.fixture(scope="module")
def writers(folders):
    made = {system: load("run", str(folders / system)) for system in SYSTEMS}
    return {
        system: text_model.build(from_pretrained(folders / system), of_config(own).parts[0])
        for system, own in made.items()
    }


def test_a_conversation_shows_the_likeliest_next_tokens_under_the_text(writers, system):
    model, out = writers[system], io.StringIO()
    interactive.converse(model, lines=Terminal("The cat\n"), out=out)
    _, typed, forecast, end = out.getvalue().split("\n", 3)
    assert end == "> \n"
    prompt = model.prompt("The cat")
    [written] = model.generate_tokens([prompt])
    written = written[:11]  # the last one is foretold
    text = model.text(written, prompt=prompt)
    assert typed == "> " + ("" if model.encodes else "The cat") + text
    pairs = [(prompt, [*written, token]) for token in range(model.vocabulary.vocab_size)]
    last = [score.log_probs[-1] for score in model.score_tokens([_pair(*one) for one in pairs])]
    best = np.argsort(last)[::-1][:5]
    expected = [f"{model.shown(int(one))} {100 * np.exp(last[one]):.1f}%" for one in best]
    assert forecast.strip().split("   ") == expected


def _pair(prompt, tokens):
    return text_model.TokenPair(prompt, tokens)


def test_an_empty_line_goes_on_with_the_text(writers):
    model, out = writers["gpt2"], io.StringIO()
    interactive.converse(model, lines=Terminal("The cat\n\n"), out=out)
    _, first, _, second, *_ = out.getvalue().split("\n")
    prompt = model.prompt("The cat")
    [one] = model.generate_tokens([prompt])
    [two] = model.generate_tokens([[*prompt, *one[:11]]])
    assert second == "> " + model.text(two[:11], prompt=[*prompt, *one[:11]])
    assert first.startswith("> The cat")


@pytest.mark.parametrize("lines", ["", "^C\n", "A\n^C\nB\n"])
def test_a_conversation_ends_at_ctrl_c_and_ctrl_d(writers, lines):
    out = io.StringIO()
    interactive.converse(writers["gpt2"], lines=Terminal(lines), out=out)
    assert out.getvalue().endswith("> \n")
    assert out.getvalue().count("\n> ") == 1 + lines.count("A")


def test_ctrl_c_stops_a_text_and_not_the_conversation(writers, monkeypatch):
    model, out = writers["gpt2"], io.StringIO()
    stream = type(model).stream

    def interrupted(self, prompt, callback, **settings):
        def two(step):
            callback(step)
            if step.step == 2:
                raise KeyboardInterrupt

        stream(self, prompt, two, **settings)

    monkeypatch.setattr(type(model), "stream", interrupted)
    interactive.converse(model, lines=Terminal("The cat\nA\n"), out=out)
    typed = out.getvalue().split("\n")
    assert typed[1].endswith(" ...")
    assert typed[3].startswith("> A")
    assert out.getvalue().endswith("> \n")


def test_a_chat_keeps_the_turns_that_fit(writers, system, monkeypatch):
    """Rows of 64 bytes, from which a language model needs 12 for its answer."""
    model, out, read = writers[system], io.StringIO(), []

    def answered(self, prompt, callback, *, seed):
        read.append(self.vocabulary.decode(self.until_end(prompt)))
        for token in [*self.vocabulary.encode(" yes"), self.vocabulary.eos_id]:
            log_probs = np.zeros((1, self.vocabulary.vocab_size))
            callback(types.SimpleNamespace(tokens=np.array([token]), log_probs=log_probs))

    monkeypatch.setattr(type(model), "stream", answered)
    lines = Terminal("Hi\nOh\nWhy so?\n\nNew\n^C\n")
    interactive.chat(model, find_template("plain"), lines=lines, out=out)
    assert read == [
        "User: Hi\n\nAssistant:",
        "User: Hi\n\nAssistant: yes\n\nUser: Oh\n\nAssistant:",
        "User: Oh\n\nAssistant: yes\n\nUser: Why so?\n\nAssistant:",
        "User: New\n\nAssistant:",
    ]
    assert out.getvalue().split("\n")[1:] == [">  yes"] * 3 + ["> >  yes", "> ", ""]


@pytest.mark.slow
def test_a_conversation_in_a_terminal_ends_at_ctrl_c(folders):
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "t5x_like.infer", "--interactive"),
            f"--config=configs/run.py:{folders / 'gpt2'}",
        ],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run.stdin.write("The cat\n")
    run.stdin.flush()
    lines = iter(run.stdout.readline, "")
    forecast = next(line for line in lines if line.startswith("    ") and "%" in line)
    assert forecast.count("%") == 5
    run.send_signal(signal.SIGINT)
    output, errors = run.communicate(timeout=240)
    assert run.returncode == 0
    assert output in ("\n", "> \n")  # the prompt may have been read before
    assert "Traceback" not in errors


def test_the_loss_of_a_language_model_has_bits_per_byte_beside_it(folders, monkeypatch):
    command_flags.give(monkeypatch)
    made = load("run", str(folders / "gpt2"))
    made.evaluate.batches = 0
    evaluate.main(parse(made))
    run = folders / "gpt2"
    found = json.loads((run / "evaluation.json").read_text())["tasks"]["text_files"]
    # By NumPy, from the logits of one document after the other.
    model = from_pretrained(run)
    apply = jax.jit(model.module.apply)
    held_out = _held_out(found["documents/documents"], LINES, folders)
    nats, tokens = 0.0, 0
    for text in held_out:
        row = np.array([*text.encode(), -2]) + 3
        batch = {"decoder_input_tokens": np.array([[0, *row[:-1]]])}
        logits = np.float64(apply({"params": model.params}, batch)[0])
        own = logits[np.arange(len(row)), row] - np.log(np.sum(np.exp(logits), axis=-1))
        nats, tokens = nats - own.sum(), tokens + len(row)
    size = sum(len(text.encode()) for text in held_out)
    assert found["documents/tokens"] == tokens
    assert found["documents/bits_per_byte"] == pytest.approx(nats / np.log(2) / size, rel=1e-5)
    assert found["documents/perplexity"] == pytest.approx(np.exp(nats / tokens), rel=1e-4)


def _held_out(number, lines, folders):
    module = sources.load_module(str(ROOT / "data/text_files.py"))
    texts = module.documents("validation", files=str(folders / "text.txt"), held_out=0.5)
    found = [row["text"].decode() for row in texts.as_numpy_iterator()]
    assert len(found) == number
    assert {f"{text}\n" for text in found} <= set(lines)
    return found


@pytest.mark.parametrize("kind", ["documents", "last_word"])
def test_a_run_is_scored_on_texts(folders, kind, tmp_path, monkeypatch):
    made = pretrained(kind, folders / "gpt2", files=folders)
    found, predicted = measure(made, tmp_path, monkeypatch)
    assert len(predicted) == len(LINES)
    model = text_model.build(
        from_pretrained(folders / "gpt2"), of_config(load("run", folders / "gpt2")).parts[0]
    )
    text = predicted[0]["text"]
    if kind == "documents":
        [score] = model.score_tokens([_pair([], model.tokens(text, end=True))])
    else:
        prompt, _, word = text.rpartition(" ")
        [score] = model.score([(prompt, f" {word}")])
        assert found["accuracy"] == np.mean([one["correct"] for one in predicted])
    assert predicted[0]["log_prob"] == pytest.approx(score.total, abs=1e-3)


@pytest.mark.parametrize("kind", ["choice", "in_context", "summary", "translation"])
def test_every_kind_of_prompts_works_for_every_system(folders, system, kind, tmp_path, monkeypatch):
    changes = {f"{kind}__shots": 1} if kind in ("in_context", "translation") else {}
    made = pretrained(kind, folders / system, files=folders, **changes)
    found, predicted = measure(made, tmp_path, monkeypatch)
    assert found["examples"] == len(predicted) == len(ROWS)
    rates = {name for name in found if name not in ("examples", "mean_shots", "bleu")}
    assert all(0 <= found[name] <= 1 for name in rates)
    if kind == "choice":
        picked = [one["prediction"] == one["targets"] for one in predicted]
        assert found["accuracy"] == np.mean(picked)
    if kind == "translation":
        assert 0 <= found["bleu"] <= 100
        assert all(one["prompt"].count(" = ") == 2 for one in predicted)
    if kind == "summary":
        assert all(one["prompt"].endswith("?\nTL;DR: ") for one in predicted)


def test_a_sweep_over_examples_has_a_table_and_a_figure(folders, tmp_path, monkeypatch, capsys):
    made = pretrained("in_context", folders / "gpt2", files=folders, in_context__sweep=(0, 1))
    figure = tmp_path / "new" / "shots.png"
    command_flags.give(monkeypatch, output=str(tmp_path / "out.json"), figure=str(figure))
    evaluate.main(parse(made))
    [found] = json.loads((tmp_path / "out.json").read_text())["tasks"].values()
    assert found["in_context/1_shots/mean_shots"] == 1
    assert found["in_context/constant_accuracy"] == 0.5
    lines = capsys.readouterr().out.splitlines()
    [at] = [n for n, line in enumerate(lines) if line.endswith("examples in a prompt:")]
    assert [line.split()[0] for line in lines[at + 1 : at + 6]] == [
        *("shots", "0", "1", "constant", "chance")
    ]
    assert f"{found['in_context/1_shots/accuracy']:.4f}" in lines[at + 3]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_figure_without_a_sweep_is_refused(folders, tmp_path, monkeypatch, capsys):
    made = pretrained("in_context", folders / "gpt2", files=folders)
    command_flags.give(monkeypatch, figure=str(tmp_path / "shots.png"))
    with pytest.raises(SystemExit):
        evaluate.main(parse(made))
    error = capsys.readouterr().err
    assert error.startswith("error: --figure=")
    assert "set evaluate.measures.in_context.sweep" in error
    assert error.count("\n") == 1


def test_self_consistency_of_samples_without_noise_is_the_greedy_answer(
    folders, system, tmp_path, monkeypatch
):
    """At a temperature near 0 each sample is the greedy text, whatever the model."""
    changes = {"in_context__by": "generation", "in_context__samples": 3}
    changes |= {"decode__do_sample": True, "decode__temperature": 1e-6}
    made = pretrained("in_context", folders / system, files=folders, **changes)
    found, predicted = measure(made, tmp_path, monkeypatch)
    assert all(one["samples"] == [one["prediction"]] * 3 for one in predicted)
    assert {found[f"{name}_accuracy"] for name in ("majority", "sample", "greedy")} == {
        found["greedy_accuracy"]
    }
    assert found["consistency"] == np.mean([one["majority"] != "" for one in predicted])


@pytest.mark.parametrize(
    ("name", "kind", "form"),
    [("gpt2", "last_word", "hf"), ("t5", "choice", "hf"), ("t5", "choice", "t5x")],
)
def test_the_folder_of_another_library_is_scored_as_the_run_it_was(
    folders, name, kind, form, tmp_path, monkeypatch
):
    to = tmp_path / "exported"
    convert.main([f"--from={folders / name}", f"--to={to}", f"--format={form}"])
    first, second = (
        pretrained(kind, folder, files=folders, data__vocabulary="bytes")
        for folder in (folders / name, to)
    )
    assert measure(first, tmp_path, monkeypatch) == measure(second, tmp_path, monkeypatch)


@pytest.mark.parametrize(("system", "special_tokens"), [("bart", True), ("gpt2", False)])
def test_a_folder_of_hugging_faces_decides_objective_and_converter(
    system, special_tokens, tmp_path
):
    run = tiny_encoder.write(tmp_path / "run", system, words=["the", "cat"])
    from_pretrained(run).save_pretrained(tmp_path / "exported")
    shutil.copy(run / "vocab.txt", tmp_path / "exported")
    made = load("pretrained", "in_context")
    made.initialize = str(tmp_path / "exported")
    made.data.lengths.targets = 24
    made.decode.max_new_tokens = 8
    [part] = completion.complete(of_config(made)).parts
    data = part.data
    assert data.objective == ("marked_text_to_text" if special_tokens else "text_to_text")
    assert data.converter == ("encoder_decoder" if special_tokens else "decoder")
    assert data.lengths == ({"inputs": 64} if special_tokens else {}) | {"targets": 24}
    model = text_model.build(
        from_pretrained(made.initialize), completion.complete(of_config(made)).parts[0]
    )
    assert model.prompt("the cat") == ([2, 5, 6, 3] if special_tokens else [5, 6])


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("in_context", {"in_context__shots": 6}, "shots=6, and the training split has 5"),
        ("in_context", {"in_context__shots": 5}, "in_context.too_long='fewer_shots'"),
        ("in_context", {"in_context__by": "likely"}, "Did you mean 'likelihood'"),
        ("in_context", {"in_context__samples": 2}, "in_context.samples=2 needs in_context.by="),
        (
            "in_context",
            {"in_context__by": "generation", "in_context__samples": 2},
            "samples=2 needs a model that samples: decode.do_sample=True",
        ),
        ("in_context", {"in_context__kind": "in_contex"}, "Did you mean 'in_context'"),
        ("choice", {"choice__kind": "last_word"}, "measures.choice.blank does not exist"),
        ("documents", {"documents__stride": 65}, "documents.stride=65 must be from 1 to 64"),
        ("documents", {"initialize": "nowhere"}, "there is no folder nowhere"),
    ],
)
def test_a_mistake_is_one_line(folders, kind, changes, message, tmp_path, monkeypatch, capsys):
    made = pretrained(kind, folders / "gpt2", files=folders, **changes)
    command_flags.give(monkeypatch, output=str(tmp_path / "out.json"))
    with pytest.raises(SystemExit):
        evaluate.main(parse(made))
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
