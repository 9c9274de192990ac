"""Statistics of layers: small arrays by hand, and the states that a model returns."""

import io
import json

import matplotlib.image
import numpy as np
import pytest

from t5x_like import inspect
from t5x_like.research.inspection import drawings, inspected, layer_statistics
from t5x_like.research.inspection.network_states import States
from tests.programs import tiny_encoder, tiny_writer

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog"]
TEXTS = ["the cat sat on the mat", "a dog"]


def states(*, hidden=None, attention=None):
    return States(logits=None, attention=attention or {}, hidden=hidden or {}, experts={})


def heads(*matrices):
    """One layer with these heads: [1, H, T, S]."""
    return np.array([matrices], np.float32)


def test_the_change_of_a_layer_by_hand():
    # Two tokens: a right angle with 3-4-5 sides; then half a turn, and no change.
    hidden = np.array([[[3, 0], [0, 1]], [[0, 4], [0, 1]], [[0, -4], [0, 1]]], np.float32)
    change = layer_statistics.of_texts([states(hidden={"encoder": hidden})]).layers["encoder"]
    np.testing.assert_allclose(change.l2, [(5 + 0) / 2, (8 + 0) / 2])
    np.testing.assert_allclose(change.cosine, [(0 + 1) / 2, (-1 + 1) / 2])
    np.testing.assert_allclose(change.degrees, [(90 + 0) / 2, (180 + 0) / 2])


def test_the_shares_of_patterns_by_hand():
    itself = np.eye(6)
    previous = np.eye(6, k=-1) + np.eye(6)[:, :1] @ np.eye(6)[:1]  # the first attends to itself
    two_before = np.roll(np.eye(6), -2, axis=1)
    stripe = np.tile([0, 0, 0, 0, 0.75, 0.25], (6, 1))
    assert layer_statistics.diagonal(itself) == 1
    assert layer_statistics.diagonal(previous) == 1
    assert layer_statistics.diagonal(two_before) == 0
    # Of the six queries, 3 see key 4 beside them, and 2 see key 5.
    assert layer_statistics.diagonal(stripe) == pytest.approx((3 * 0.75 + 2 * 0.25) / 6)
    assert layer_statistics.vertical(stripe) == 1
    assert layer_statistics.vertical(itself) == pytest.approx(3 / 6)
    found = layer_statistics.of_texts([states(attention={"encoder": heads(itself, stripe)})])
    shares = found.attention["encoder"]
    np.testing.assert_allclose(shares.diagonal, [[1, (3 * 0.75 + 2 * 0.25) / 6]])
    np.testing.assert_allclose(shares.vertical, [[3 / 6, 1]])


def test_uniform_attention_is_over_the_keys_that_the_mask_allows():
    causal = np.tril(np.full((4, 4), 0.1)) + np.diag([0.9, 0.8, 0.7, 0.6])
    found = layer_statistics.of_texts([states(attention={"decoder": heads(causal)})])
    # Queries of 1, 2, 3 and 4 keys have 1, 2, 2 and 2 of them on the diagonal. The last key has
    # the least, a quarter of the last query.
    expected = [(1 + 1 + 2 / 3 + 2 / 4) / 4, 1 - 1 / 4 / 4]
    np.testing.assert_allclose(found.attention["decoder"].uniform, expected)


def test_a_network_without_states_is_an_error():
    with pytest.raises(ValueError, match="return neither hidden states nor attention"):
        layer_statistics.of_texts([states()])


def test_each_token_has_the_same_weight_in_the_mean_of_texts():
    short = np.array([[[0.0]], [[1.0]]]), heads(np.ones((1, 1)))
    long = np.array([[[0.0]] * 3, [[5.0]] * 3]), heads(np.full((3, 3), 1 / 3))
    found = layer_statistics.of_texts(
        states(hidden={"encoder": hidden}, attention={"encoder": weights})
        for hidden, weights in (short, long)
    )
    assert (found.texts, found.tokens) == (2, {"encoder": 4})
    np.testing.assert_allclose(found.layers["encoder"].l2, [(1 + 3 * 5) / 4])
    np.testing.assert_allclose(found.attention["encoder"].diagonal, [[(1 + 7 / 3) / 4]])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("layers")
    (made / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    tiny_encoder.write(made / "bert", "bert", words=WORDS)
    tiny_writer.write(made / "t5", tiny_writer.settings("t5"))
    return made


def test_the_command_prints_the_states_that_the_model_returns(folders, tmp_path, capsys):
    json_file, figure = tmp_path / "layers.json", tmp_path / "new" / "layers.png"
    inspect.main(
        [
            *("layers", str(folders / "texts.txt"), f"--from={folders / 'bert'}"),
            *(f"--json={json_file}", f"--figure={figure}"),
        ]
    )
    model = inspected.load(str(folders / "bert"))
    distances, degrees = [], []
    for text in TEXTS:
        tokens = np.array([model.read(text)])
        hidden = np.array(model.pretrained(tokens, output_hidden_states=True).hidden_states[:, 0])
        distances.append(np.sqrt(np.square(hidden[1:] - hidden[:-1]).sum(-1)))
        unit = hidden / np.sqrt(np.square(hidden).sum(-1, keepdims=True))
        degrees.append(np.rad2deg(np.arccos((unit[1:] * unit[:-1]).sum(-1))))
    found = json.loads(json_file.read_text())[str(folders / "bert")]
    expected = np.concatenate(distances, axis=1).mean(axis=1)
    np.testing.assert_allclose(found["layers"]["encoder"]["l2"], expected, rtol=1e-4)
    expected = np.concatenate(degrees, axis=1).mean(axis=1)
    np.testing.assert_allclose(found["layers"]["encoder"]["degrees"], expected, rtol=1e-3)
    assert found["tokens"] == {"encoder": 8 + 4}  # with [CLS] and [SEP]
    # With 4 tokens three keys have nearly all; 10 and 22 of 16 and 64 pairs are on the diagonal.
    uniform = [(4 * 10 / 16 + 8 * 22 / 64) / 12, (4 * 3 / 4 + 8 * 3 / 8) / 12]
    np.testing.assert_allclose(found["attention"]["encoder"]["uniform"], uniform, rtol=1e-6)
    weights = [model.attention(model.read(text), None, side="", layer=1, head=2) for text in TEXTS]
    shares = [
        sum(sum(row[max(0, n - 1) : n + 2]) for n, row in enumerate(one["weights"]))
        for one in weights
    ]
    diagonal = found["attention"]["encoder"]["diagonal"]
    assert np.shape(diagonal) == (2, 4)
    assert diagonal[1][2] == pytest.approx(sum(shares) / 12, rel=1e-4)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"{folders / 'bert'}: 2 texts", "encoder, 12 tokens"]
    row = lines[4].split()
    assert row[:2] == ["1", f"{found['layers']['encoder']['l2'][1]:.2f}"]
    assert matplotlib.image.imread(figure).std() > 0.05


def test_both_sides_of_an_encoder_decoder_and_its_cross_attention(folders, capsys):
    texts = str(folders / "texts.txt")
    inspect.main(["layers", texts, f"--from={folders / 't5'}", f"--and={folders / 'bert'}"])
    model = inspected.load(str(folders / "t5"))
    sizes = {"encoder": 0, "decoder": 0}
    for text in TEXTS:
        found = model.look(model.read(text))
        sizes["encoder"] += len(found["tokens"])
        sizes["decoder"] += len(found["targets"])
    lines = capsys.readouterr().out.splitlines()
    for side, size in (*sizes.items(), ("cross", sizes["decoder"])):
        assert f"{side}, {size} tokens" in lines
    assert f"{folders / 'bert'}: 2 texts" in lines


def test_the_figure_has_a_line_for_each_side():
    weights = heads(np.eye(3))
    one = layer_statistics.of_texts([states(attention={"encoder": weights, "cross": weights})])
    file = io.BytesIO(drawings.draw_layers({"model": one}))
    drawn = matplotlib.image.imread(file)[..., :3].reshape(-1, 3)
    for colour in ("#1f77b4", "#ff7f0e"):  # C0 and C1
        rgb = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
        assert (np.abs(drawn - rgb).max(axis=1) < 0.01).sum() > 50
