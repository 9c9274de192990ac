"""The page in headless Chromium, by keyboard: `make test-page`, where the browser is installed."""

import json
import math
import re
import threading

import numpy as np
import pytest

from t5x_like.research.inspection import inspected, server, word_neighbours
from tests.programs import tiny_encoder, tiny_writer
from tests.programs.browser import CONTROL, ENTER, LEFT, RIGHT, TAB, Browser

pytestmark = pytest.mark.browser

TEXT = "the <b>cat</b>"
SHOWN = "return [...document.querySelectorAll('section')].map(s => [...s.querySelectorAll"
TITLES = SHOWN + "('.tokens')].at(-1)).map(t => [...t.children].map(b => b.title))"
TEXTS = SHOWN + "('.tokens')].at(-1)).map(t => [...t.children].map(b => b.textContent))"
DONE = "return document.querySelector('#status').textContent === ''"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    words = ["the", "cat", "sat"]
    paths = [tiny_writer.write(folder / one, tiny_writer.settings(one)) for one in ("gpt2", "t5")]
    paths.append(tiny_encoder.write(folder / "bert", "bert", words=words))
    paths.append(tiny_writer.write(folder / "switch", tiny_writer.settings("switch")))
    return [inspected.load(str(path)) for path in paths]


@pytest.fixture
def opened(models):
    with server.make_server(models, port=0) as made, Browser() as browser:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        browser.open(f"http://127.0.0.1:{made.server_port}/")
        browser.until("return document.querySelectorAll('section').length === 4")
        yield browser
        made.shutdown()
        thread.join()


def done(browser):
    browser.until(DONE)


def look(browser, text):
    browser.press(*text)
    browser.press(ENTER, holding=CONTROL)
    browser.until("return document.querySelectorAll('.open-attention').length === 4")
    done(browser)


def test_the_page_shows_the_models_numbers_and_no_markup_of_the_text(models, opened):
    look(opened, TEXT)
    assert opened.run("return document.querySelectorAll('#models b').length") == 0
    found = models[0].look(models[0].read(TEXT))
    decoder, generated, *_ = opened.run(TITLES)
    shown = [one["text"].replace(" ", "\u2423") for one in found["tokens"][1:]]
    assert opened.run(TEXTS)[0][1:] == shown
    expected = [f"{one['bits']:.2f} bits" for one in found["tokens"][1:]]
    assert [title.split(",")[0] for title in decoder[1:]] == expected
    targets = models[1].look(models[1].read(TEXT))["targets"]
    assert [title.split(",")[0] for title in generated[1:]] == [
        f"{one['bits']:.2f} bits" for one in targets[1:]
    ]
    assert [one for one in opened.errors() if "/favicon.ico" not in one] == []
    elsewhere = (
        "return performance.getEntriesByType('resource').map(r => r.name)"
        ".filter(name => !name.startsWith(location.origin))"
    )
    assert opened.run(elsewhere) == []


def test_a_key_continues_the_text_and_opens_attention_and_lens(models, opened):
    look(opened, TEXT)
    before = len(opened.run(TEXTS)[0])
    opened.run("document.querySelector('section li button').focus()")
    opened.press(ENTER)
    opened.until(f"return ({TEXTS.replace('return ', '', 1)})[0].length === {before + 1}")
    done(opened)
    found = models[0].look(models[0].read(TEXT))
    tokens = [*(one["id"] for one in found["tokens"]), found["next"][0]["id"]]
    for name in ("attention", "lens"):
        opened.run(f"document.querySelector('section .open-{name}').focus()")
        opened.press(ENTER)
        opened.until(f"return document.querySelectorAll('table.{name}').length === 1")
        done(opened)
    cells = "return [...document.querySelectorAll('table.attention tbody td')].map(d => d.title)"
    weights = models[0].attention(tokens, None, side="", layer=0, head=0)["weights"]
    assert [title.rpartition(": ")[2] for title in opened.run(cells)] == [
        f"{100 * weight:.2f}%" for row in weights for weight in row
    ]
    opened.press(TAB)
    assert opened.run("return document.activeElement.tagName") != "BODY"


def test_a_token_is_masked_and_filled_in(models, opened):
    look(opened, "the cat")
    own = "document.querySelectorAll('section')[2]"
    opened.run(f"{own}.querySelectorAll('.token')[2].focus()")
    opened.press(ENTER)
    opened.run(f"{own}.querySelector('.mask-it').focus()")
    opened.press(ENTER)
    masked = f"return [...{own}.querySelectorAll('h3')].some(h => h.textContent.startsWith('Mask'))"
    opened.until(masked)
    done(opened)
    shown = opened.run(f"return {own}.querySelectorAll('.probability')[0].textContent")
    tokens = models[2].read("the cat")
    tokens[2] = models[2].about()["mask"]
    best = models[2].look(tokens)["tokens"][2]["top"][0]["probability"]
    assert shown == f"{100 * best:.2f}%"


def test_tokens_are_coloured_by_expert_and_dropped_ones_are_marked(models, opened):
    look(opened, TEXT)
    opened.run("document.querySelector('section .open-experts').focus()")
    opened.press(ENTER)
    routed = "[...document.querySelectorAll('.routed')]"
    opened.until(f"return {routed}.length > 0")
    done(opened)
    model = models[3]
    tokens = model.read(TEXT)
    targets = [one["id"] for one in model.look(tokens)["targets"]]
    found = model.experts(tokens, targets, side="", layer=0)
    by = [", ".join(f"expert {n}" for n in one["experts"]) for one in found["tokens"]]
    assert opened.run(f"return {routed}.map(t => t.title)") == [one or "dropped" for one in by]
    marked = opened.run(f"return {routed}.map(t => t.classList.contains('dropped'))")
    assert marked == [not one["experts"] for one in found["tokens"]]
    colours = opened.run(f"return {routed}.map(t => getComputedStyle(t).backgroundColor)")
    expected = {one: colour for one, colour in zip(by, colours, strict=True) if one}
    assert len(set(expected.values())) == len(expected) > 1
    counts = opened.run("return document.querySelector('.counts').textContent")
    assert f"expert {found['tokens'][0]['experts'][0]}: " in counts


def test_the_page_says_what_the_models_are_before_a_text_is_typed(models, opened):
    assert opened.run("return document.title") == "gpt2 and t5 and bert and switch: t5x_like"
    abouts = opened.run("return [...document.querySelectorAll('.about')].map(p => p.textContent)")
    sizes = [model.about()["sizes"]["parameters"] for model in models]
    for about, model, size in zip(abouts, models, sizes, strict=True):
        assert f"{model.pretrained.system}, " in about
        assert f"{size:,} parameters" in about
    examples = opened.run(
        "return [...document.querySelectorAll('.example')].map(e => e.textContent)"
    )
    kinds = {example.partition(": ")[0] for example in examples}
    assert kinds == {"Predictions", "Attention", "Layers", "Logit lens", "Experts"}


def click_example(browser, name):
    own = "[...document.querySelectorAll('.example')].find(e => e.textContent.startsWith"
    browser.run(f"{own}('{name}')).focus()")
    browser.press(ENTER)


def test_an_example_opens_its_view_and_the_address_opens_it_again(models, opened):
    click_example(opened, "Attention")
    opened.until("return document.querySelectorAll('table.attention').length === 4")
    done(opened)
    text = models[0].about()["examples"][1]
    assert opened.run("return document.querySelector('#text').value") == text
    address = opened.run("return location.href")
    opened.open("about:blank")
    opened.open(address)
    opened.until("return document.querySelectorAll('table.attention').length === 4")
    done(opened)
    assert opened.run("return document.querySelector('#text').value") == text
    click_example(opened, "Experts")
    opened.until("return document.querySelectorAll('.routed').length > 0")
    done(opened)


def test_layers_are_a_table_of_changes_and_shares(models, opened):
    click_example(opened, "Layers")
    opened.until("return document.querySelectorAll('table.layers').length === 4")
    done(opened)
    rows = (
        "return [...document.querySelectorAll('section')].map(s => [...s.querySelectorAll("
        "'table.layers tbody tr')].map(r => [...r.children].map(c => c.textContent)))"
    )
    tokens = models[0].read(models[0].about()["examples"][1])
    found = models[0].layers(tokens, None, side="decoder")
    layers, attention = found["layers"], found["attention"]
    assert opened.run(rows)[0] == [
        [
            *(f"layer {n}", f"{layers['l2'][n]:.2f}", f"{layers['degrees'][n]:.1f}"),
            f"{layers['cosine'][n]:.3f}",
            *(f"{100 * share:.2f}%" for share in attention["diagonal"][n]),
            *(f"{100 * share:.2f}%" for share in attention["vertical"][n]),
        ]
        for n in (0, 1)
    ]
    table = "document.querySelectorAll('section')[1].querySelector('table.layers')"
    assert len(opened.run(rows)[1][0]) == 4 + 2 * 2
    opened.run(
        f"const pick = {table}.closest('.scroll').parentElement.querySelector('.pick-side');"
        "pick.value = 'cross'; pick.dispatchEvent(new Event('change'))"
    )
    # Cross-attention has shares, but no hidden states of its own.
    opened.until(f"return {table}.querySelectorAll('thead th').length === {1 + 2 * 2}")
    done(opened)


def test_neighbours_of_a_word_are_listed_by_their_cosine(models, opened):
    look(opened, "the cat sat")
    own = "document.querySelectorAll('section')[2]"
    opened.run(f"{own}.querySelectorAll('.token')[2].click()")  # after [CLS]
    opened.run(f"{own}.querySelector('.open-neighbours').focus()")
    opened.press(ENTER)
    assert opened.run(f"return {own}.querySelector('.word').value") == "cat"
    texts = ["the <b>cat</b>", "", "\U0001f408 cat sat", "sat the Cat"]
    opened.run(f"{own}.querySelector('.texts').value = {json.dumps(chr(10).join(texts))}")
    opened.run(f"{own}.querySelector('.compare').focus()")
    opened.press(ENTER)
    rows = f"[...{own}.querySelectorAll('table.neighbours tr')]"
    opened.until(f"return {rows}.length === 3")
    done(opened)
    shown = f"return {rows}.map(r => [...r.children].map(c => c.textContent))"

    def expected(layer):
        found = word_neighbours.of_page(
            models[2], word="cat", text="the cat sat", texts=texts, layer=layer
        )
        return [[f"{one['cosine']:.3f}", one["text"]] for one in found["neighbours"]]

    assert opened.run(shown) == expected(None)
    marked = opened.run(f"return {rows}.map(r => r.querySelector('mark').textContent)")
    assert sorted(marked) == ["Cat", "cat", "cat"]
    opened.run(
        f"const pick = {own}.querySelector('.open-neighbours').closest('section')"
        ".querySelector('table.neighbours').closest('.scroll').parentElement"
        ".querySelector('.pick-layer'); pick.value = '0'; pick.dispatchEvent(new Event('change'))"
    )
    opened.until(f"return {own}.querySelector('.pick-layer').value === '0'")
    done(opened)
    assert opened.run(shown) == expected(0)
    opened.run(f"{own}.querySelector('.word').value = 'dog'")
    opened.run(f"{own}.querySelector('.compare').click()")
    line = opened.until("return document.querySelector('#status.error')?.textContent")
    assert line == "the text does not have the word 'dog'"


def test_answers_are_copied_as_json_and_as_an_image(models, opened):
    allowed = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    opened.emulate("Browser.grantPermissions", permissions=allowed)
    click_example(opened, "Attention")
    opened.until("return document.querySelectorAll('table.attention').length === 4")
    done(opened)
    own = "document.querySelector('section table.attention')"
    near = f"{own}.closest('.scroll').parentElement.querySelector('.copies')"
    read = "navigator.clipboard.read().then(async ([one]) => { window.copied = await one.getType("
    opened.run(f"{near}.querySelector('.copy-json').click()")
    opened.until("return document.querySelector('#status').textContent === 'JSON copied'")
    opened.run(f"{read}'text/plain').then(blob => blob.text()) }})")
    copied = json.loads(opened.until("return window.copied"))
    found = models[0].look(models[0].read(models[0].about()["examples"][1]))
    tokens = [one["id"] for one in found["tokens"]]
    expected = models[0].attention(tokens, None, side="", layer=0, head=0)
    np.testing.assert_allclose(copied["weights"], expected["weights"])
    opened.run("window.copied = null")
    opened.run(f"{near}.querySelector('.copy-png').click()")
    opened.until("return document.querySelector('#status').textContent === 'PNG copied'")
    opened.run(f"{read}'image/png').then(createImageBitmap) }})")
    size = opened.until("return window.copied && [copied.width, copied.height]")
    box = opened.run(f"const box = {own}.getBoundingClientRect(); return [box.width, box.height]")
    assert size == [math.ceil(2 * side) for side in box]
    # The first query attends only to the first key: its cell has the darkest colour.
    pixel = (
        "const made = document.createElement('canvas'); made.width = copied.width;"
        "made.height = copied.height; const paint = made.getContext('2d');"
        f"paint.drawImage(copied, 0, 0); const whole = {own}.getBoundingClientRect();"
        f"const box = {own}.querySelector('td').getBoundingClientRect();"
        "const [x, y] = [box.left - whole.left, box.top - whole.top];"
        "return [...paint.getImageData(2 * x + 9, 2 * y + 9, 1, 1).data]"
    )
    colour = opened.run(f"return getComputedStyle({own}.querySelector('td')).backgroundColor")
    channels = [
        255 * float(one) for one in re.findall(r"[\d.]+", colour.removeprefix("color(srgb"))
    ]
    np.testing.assert_allclose(opened.run(pixel)[:3], channels[:3], atol=2)


def test_a_dark_page_in_one_column_of_a_telephone(opened):
    light = opened.run("return getComputedStyle(document.body).backgroundColor")
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    opened.emulate("Emulation.setEmulatedMedia", features=[dark])
    phone = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    opened.emulate("Emulation.setDeviceMetricsOverride", **phone)
    look(opened, TEXT)
    assert light == "rgb(255, 255, 255)"
    assert opened.run("return getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    lefts = (
        "return [...document.querySelectorAll('section')].map(s => s.getBoundingClientRect().left)"
    )
    assert len(set(opened.run(lefts))) == 1
    assert opened.run("return document.documentElement.scrollWidth") == 375


def test_arrow_keys_move_between_tokens(opened):
    look(opened, TEXT)
    opened.run("document.querySelector('section .token').focus()")
    opened.press(RIGHT, RIGHT, LEFT)
    row = "[...document.querySelector('section .tokens').children]"
    assert opened.run(f"return {row}.indexOf(document.activeElement)") == 1
    opened.press(ENTER)
    assert opened.run("return document.activeElement.getAttribute('aria-pressed')") == "true"


def test_a_text_that_is_too_long_is_one_line(opened):
    opened.run("document.querySelector('#text').value = 'x'.repeat(200)")
    opened.press(ENTER, holding=CONTROL)
    line = opened.until("return document.querySelector('#status.error')?.textContent")
    assert "this model is shown 1 to 64" in line
