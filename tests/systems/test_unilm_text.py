"""UniLM as a text model: prompts and answers as texts, and a run by the commands."""

import json

import numpy as np
import pytest

from configs import unilm as configs
from t5x_like import decoding, evaluate, infer, train
from t5x_like.config import parse
from t5x_like.experiment.run import of_config
from t5x_like.inference import text_model
from t5x_like.inference.likelihood import TokenPair
from t5x_like.pretrained import from_pretrained
from t5x_like.research.inspection import inspected
from tests.programs import command_flags, tiny_writer
from tests.programs.tiny_encoder import SPECIAL_TOKENS

LETTERS = "abcdefgh"
CLS, SEP, MASK = (SPECIAL_TOKENS.index(name) for name in ("[CLS]", "[SEP]", "[MASK]"))
METRIC = "sequence_to_sequence/cross_entropy"
SOURCE, TARGET = 4, 5  # the segments of the authors' s2s rows
PROMPTS = ["a b c", "d", "e f g h a b c d e f g"]
# Float32 sums over other lengths of padding differ in their order.
TOLERANCE = 1e-4


def settings(folder, **changes):
    """The paper's fine-tuning on pairs of letters, with a tiny network from random parameters."""
    made = configs.get_config("generation")
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *LETTERS, *LETTERS.upper()]) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    made.workdir = str(folder / "run")
    made.model.update({"vocab_size": 24, "positions": 24, "layers": 2, "d_model": 64})
    made.model.update({"d_ff": 128, "heads": 4, "dropout": 0.0, "sep_id": SEP, "mask_id": MASK})
    made.data.update({"vocabulary": str(vocabulary), "lengths": {"inputs": 24}, "batch_size": 8})
    made.data.settings = {"files": str(folder / "pairs.jsonl"), "inputs": "q", "targets": "a"}
    made.data.objective_settings.target_length = 8
    made.decode = {"max_new_tokens": 8}
    made.update_from_flattened_dict({key.replace("__", "."): v for key, v in changes.items()})
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("unilm")
    tiny_writer.write(path / "run", settings(path))
    return path


def build(folder, **decode):
    own = settings(folder)
    own.decode.update(decode)
    return text_model.build(from_pretrained(folder / "run"), of_config(own).parts[0])


def logits_of(model, prompt, after):
    """The logits of the token after an answer's first tokens: one whole row, without a cache."""
    row = [CLS, *prompt, *after, MASK]
    first = 1 + len(prompt)
    batch = {
        "encoder_input_tokens": np.array([row]),
        "encoder_token_types": np.array([[SOURCE] * first + [TARGET] * (len(row) - first)]),
        "encoder_segment_ids": np.ones([1, len(row)], np.int32),
    }
    found = model.pretrained.module.apply({"params": model.pretrained.params}, batch)
    return np.asarray(found["logits"][0, -1], np.float64)


def test_a_prompt_is_a_source_between_cls_and_sep(folder):
    model = build(folder)
    tokens, mask = model.lay_out([model.prompt(text) for text in PROMPTS[:2]])
    assert mask[:, -1].all()
    rows = [row[real > 0].tolist() for row, real in zip(tokens, mask, strict=True)]
    assert rows == [[CLS, 5, 6, 7, SEP], [CLS, 8, SEP]]


def test_each_generated_token_is_the_likeliest_of_the_whole_row(folder):
    model = build(folder, no_repeat_ngram_size=1)  # so that a random network does not repeat one
    prompts = [model.prompt(text) for text in PROMPTS]
    written = model.generate_tokens(prompts)
    assert len(set(map(tuple, written))) == len(written)
    for prompt, tokens in zip(prompts, written, strict=True):
        expected = []
        while len(expected) < 8:
            logits = logits_of(model, prompt, expected)
            logits[[*prompt, CLS, *expected]] = -np.inf
            token = int(np.argmax(logits))
            if token == SEP:
                break
            expected.append(token)
        assert tokens == expected


def test_a_score_is_the_log_softmax_of_each_mask(folder):
    model = build(folder)
    pairs = [(PROMPTS[0], "B A"), (PROMPTS[1], "D"), (PROMPTS[2], "A C E"), ("a", "A " * 20)]
    for (prompt, answer), score in zip(pairs, model.score(pairs), strict=True):
        tokens = model.vocabulary.encode(answer)
        expected = []
        for number, token in enumerate([*tokens, SEP]):
            logits = logits_of(model, model.prompt(prompt), tokens[:number])
            expected.append(logits[token] - np.log(np.sum(np.exp(logits))))
        np.testing.assert_allclose(score.log_probs, expected, atol=TOLERANCE, rtol=0)
    assert model.excess("a", "A " * 21) == 1
    with pytest.raises(ValueError, match="prompt of 2 tokens and 22 after it are more than the 23"):
        model.score_tokens([TokenPair([5, SEP], [5] * 22)])


def test_greedy_tokens_are_likeliest_for_the_scorer_and_streamed(folder):
    model = build(folder)
    prompts = [model.prompt(text) for text in PROMPTS]
    written = model.generate_tokens(prompts)
    assert all(score.greedy for score in model.score_written(prompts, written))
    steps = []
    model.stream(prompts[1], steps.append)
    assert model.until_end(int(step.tokens[0]) for step in steps) == written[1]


def test_one_beam_is_greedy_and_several_are_no_worse(folder):
    model = build(folder)
    tokens, mask = model.lay_out([model.prompt(text) for text in PROMPTS])
    generator = model.pretrained.generator
    arguments = {"decoder_input_tokens": tokens, "decoder_mask": mask > 0}
    request = {"max_new_tokens": 6, "eos_ids": SEP}

    def started():
        return generator.prefill(arguments, cache_length=tokens.shape[1] + 6)

    greedy = decoding.generate(generator.extend, *started(), log_probs=True, **request)
    one = decoding.beam_search(generator.extend, *started(), beams=1, **request)
    np.testing.assert_array_equal(one.tokens[:, 0], greedy.tokens)
    total = np.sum(greedy.log_probs, axis=1) / np.asarray(greedy.lengths)
    np.testing.assert_allclose(one.scores[:, 0], total, atol=TOLERANCE, rtol=0)
    every = decoding.beam_search(generator.extend, *started(), beams=4, **request)
    assert np.all(every.scores[:, 0] >= one.scores[:, 0] - TOLERANCE)
    assert build(folder, num_beams=4).generate(PROMPTS)


def test_a_source_that_is_too_long_loses_its_end(folder):
    model = build(folder)
    assert model.room == 15  # of 24 tokens, without [CLS] and 8 new tokens
    text = "a b c d e f g h " * 3
    kept = text[: 2 * 14]
    assert model.generate([text]) == model.generate([kept])
    assert model.cut(model.prompt(text)) == 10
    with pytest.raises(ValueError, match=r"max_new_tokens=22 leaves no room.* 23 tokens.* 21 all"):
        build(folder, max_new_tokens=22).generate(["a"])


def test_positions_limit_only_what_is_generated(folder):
    """A prompt in a padded row still has all its positions."""
    model = from_pretrained(folder / "run")
    tokens = np.array([[CLS, 5, 6, SEP]])
    assert model.generate(tokens, max_new_tokens=20, eos_token_id=None).shape == (1, 24)
    with pytest.raises(ValueError, match="25 tokens together, more than the 24 positions"):
        model.generate(tokens, max_new_tokens=21)


def test_answers_keep_the_fields_of_their_rows(folder, tmp_path):
    """So that questions written about passages train a model with the passages' answers."""
    rows = [{"text": PROMPTS[0], "answers": ["b"], "id": 7}, {"text": PROMPTS[1], "answers": []}]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = build(folder)
    prompts = infer._prompts(model, str(source), columns={}, written=["prediction"])
    written = list(infer.answers_to(model, prompts))
    predicted = [row.pop("prediction") for row in written]
    assert predicted == model.generate(PROMPTS[:2])
    assert written == [{"inputs": row.pop("text"), **row} for row in rows]


def test_a_prompt_is_in_the_column_of_the_training_data(folder, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text(f"text,article\nnot read,{PROMPTS[0]}\n")
    columns = {"inputs": "article", "targets": "summary"}
    [row] = infer._prompts(build(folder), str(source), columns=columns)
    assert row == {"inputs": PROMPTS[0], "text": "not read"}
    source.write_text("body\na b\n")
    with pytest.raises(
        ValueError, match=r"has none of 'inputs', 'article', 'text', 'messages', but"
    ):
        infer._prompts(build(folder), str(source), columns=columns)


def test_a_conversation_is_written_by_the_chat_template(folder, tmp_path):
    source, model = tmp_path / "in.jsonl", build(folder)
    turns = [{"role": "system", "content": "short"}, {"role": "user", "content": PROMPTS[0]}]
    source.write_text(json.dumps({"id": 1, "messages": turns}) + "\n")
    [row] = infer._prompts(model, str(source), columns={}, template="plain")
    assert row == {
        "inputs": f"short\n\nUser: {PROMPTS[0]}\n\nAssistant:",
        "id": 1,
        "messages": turns,
    }
    with pytest.raises(ValueError, match=r"in.jsonl:1: messages need a chat template"):
        infer._prompts(model, str(source), columns={})
    turns.append({"role": "assistant", "content": "yes"})
    source.write_text(json.dumps({"messages": turns}) + "\n")
    with pytest.raises(ValueError, match=r"in.jsonl:1: messages end with an answer"):
        infer._prompts(model, str(source), columns={}, template="plain")


def test_rows_of_another_network_are_refused(folder):
    own = settings(folder, data__objective="language_modeling", data__converter="decoder")
    own.data.update({"objective_settings": {}, "lengths": {"targets": 24}})
    message = "'decoder' makes batches of decoder, but the model is an encoder that generates"
    with pytest.raises(ValueError, match=message):
        text_model.build(from_pretrained(folder / "run"), of_config(own).parts[0])


def test_a_vocabulary_without_special_tokens_is_refused(tmp_path):
    own = settings(tmp_path, model__vocab_size=384)
    model = from_pretrained(tiny_writer.write(tmp_path / "run", own))
    own.data.vocabulary = "bytes"
    with pytest.raises(ValueError, match="has no cls_id, sep_id, mask_id"):
        text_model.build(model, of_config(own).parts[0])


def test_its_folder_is_a_bert_with_a_masked_language_model(folder, tmp_path):
    from_pretrained(folder / "run").save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["architectures"] == ["BertForMaskedLM"]
    again = from_pretrained(tmp_path, system="unilm", head="generation", dropout=0.0)
    tokens = np.array([[CLS, 5, 6, 7, SEP]])
    np.testing.assert_array_equal(
        again.generate(tokens, max_new_tokens=8),
        from_pretrained(folder / "run").generate(tokens, max_new_tokens=8),
    )


def test_the_page_shows_what_it_generates(folder):
    """Each token with the probability by which the commands score it."""
    page = inspected.load(str(folder / "run"))
    assert page.about()["kind"] == "generated"
    assert not page.about()["lens"]
    tokens = page.read(PROMPTS[0])
    assert tokens == [CLS, 5, 6, 7, SEP]
    found = page.look(tokens)
    model = build(folder)
    written = [one["id"] for one in found["targets"]]
    assert written[0] == SEP
    assert written[1:9] == model.generate_tokens([model.prompt(PROMPTS[0])])[0]
    [score] = model.score_written([model.prompt(PROMPTS[0])], [written[1:]])
    shown = [np.log(one["probability"]) for one in found["targets"][1:]]
    np.testing.assert_allclose(shown, score.log_probs, atol=TOLERANCE, rtol=0)
    changed = page.look(tokens, [SEP, 9, 10])  # as a click replaces a token
    logits = logits_of(model, tokens[1:], [9, 10])
    after = np.exp(logits - logits.max()) / np.sum(np.exp(logits - logits.max()))
    assert changed["next"][0]["id"] == np.argmax(after)
    np.testing.assert_allclose(changed["next"][0]["probability"], after.max(), atol=TOLERANCE)


def test_the_page_shows_the_attention_of_source_and_target(folder):
    page = inspected.load(str(folder / "run"))
    tokens = [CLS, 5, 6, SEP]
    found = page.attention(tokens, [SEP, 9, 10], side="", layer=1, head=0)
    assert [one["id"] for one in found["keys"]] == [*tokens, 9, 10]
    weights = np.array(found["weights"])
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=TOLERANCE)
    seen = [4, 4, 4, 4, 5, 6]  # the source is seen by all, a target by those after it
    assert ((weights > 0).sum(axis=1) == seen).all()
    assert all((row[:number] > 0).all() for row, number in zip(weights, seen, strict=True))
    assert page.layers(tokens, [SEP, 9, 10], side="")["side"] == "encoder"
    with pytest.raises(ValueError, match="24 tokens leaves no room for a generated text"):
        page.look([CLS, *[5] * 22, SEP])


def test_the_page_fills_masks_with_the_head_for_them(folder):
    from_pretrained(folder / "run").save_pretrained(folder / "bert")
    for name in ("vocab.txt", "tokenizer_config.json"):
        (folder / "bert" / name).write_bytes((folder / name).read_bytes())
    found = inspected.load(str(folder / "bert"))
    assert found.about()["kind"] == "masks"
    assert found.look([CLS, 5, MASK, SEP])["tokens"][2]["top"]


def pairs(count, *, seed):
    """Two to five letters, and the same as capitals from the last to the first."""
    random = np.random.default_rng(seed)
    words = [random.choice(list(LETTERS), random.integers(2, 6)) for _ in range(count)]
    return [{"q": " ".join(word), "a": " ".join(word[::-1]).upper()} for word in words]


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_fine_tuned_on_pairs_it_answers_new_sources_by_the_commands(tmp_path, monkeypatch, capsys):
    lines = map(json.dumps, pairs(4000, seed=0))
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    tiny = settings(
        tmp_path,
        loss__label_smoothing=0.0,
        loss__predicted=0.5,
        data__batch_size=64,
        data__shards=1,
        train__steps=700,
        evaluate__every=700,
        evaluate__batches=1,
        optimizer__learning_rate=2e-3,
        optimizer__warmup_steps=1,
        optimizer__decay_steps=700,
        decode__num_beams=3,
        evaluate__measures__generation__metrics=("exact_match", "rouge_l", "bleu"),
    )
    train.main(parse(tiny))
    command_flags.give(monkeypatch)
    evaluate.main(parse(tiny))
    assert "nan" not in capsys.readouterr().out  # of masks that no row has
    measured = json.loads((tmp_path / "run/evaluation.json").read_text())["tasks"]["text_files"]
    assert [name for name in measured if "/cross_entropy" in name] == [METRIC]
    assert measured["generation/exact_match"] > 0.9
    assert measured["generation/rouge_l"] > 0.9
    assert measured["generation/bleu"] > 50  # few answers have four letters
    capsys.readouterr()
    command_flags.give(monkeypatch, examples=2)
    infer.main(parse(tiny))
    shown = capsys.readouterr().out
    assert shown.count("model: ") == shown.count("original: ") == 2
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    new = pairs(16, seed=1)
    source.write_text("".join(f"{row['q']}\n" for row in new))
    command_flags.give(monkeypatch, input=str(source), output=str(out), log_probs=True)
    infer.main(parse(tiny))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    right = [row["prediction"] == pair["a"] for row, pair in zip(rows, new, strict=True)]
    assert np.mean(right) > 0.9
    assert all(len(row["log_probs"]) == len(row["tokens"]) for row in rows)
