"""The loop of research with a scripted model: queries, results in the prompt, its end."""

from t5x_like.batches.dialog_rows import Call
from t5x_like.inference.dialog_model import research


def scripted(*texts):
    """A model that writes these texts one after the other, and the prompts that it got."""
    left, prompts = list(texts), []

    def write(asked):
        prompts.append(list(asked))
        return [left.pop(0) for _ in asked]

    return write, prompts


def tools(query):
    return [f"{query}?", "x"] if query != "nothing" else []


def test_results_are_appended_to_the_prompt_until_the_model_writes_to_the_user():
    write, prompts = scripted("TS, a b", " TS, nothing", "User, it is b")
    [found] = research([["hi", "ho", "what"]], ["a guess"], write=write, tools=tools, calls=4)
    assert found.text == "it is b"
    assert found.calls == [Call("a b", ["a b?", "x"]), Call("nothing", [])]
    begin = "hi TURN ho TURN what BASE a guess"
    assert prompts == [
        [f"{begin} RESEARCH"],
        [f"{begin} RESEARCH TS, a b RESULT a b? | x RESEARCH"],
        [f"{begin} RESEARCH TS, a b RESULT a b? | x RESEARCH TS, nothing RESULT RESEARCH"],
    ]


def test_calls_are_limited_and_the_last_text_may_still_be_a_reply():
    write, prompts = scripted(*["TS, a"] * 4, "User, done")
    [found] = research([["hi"]], ["base"], write=write, tools=tools, calls=4)
    assert (found.text, len(found.calls), len(prompts)) == ("done", 4, 5)
    write, prompts = scripted(*["TS, a"] * 9)
    [found] = research([["hi"]], ["base"], write=write, tools=tools, calls=4)
    assert (found.text, found.reply, len(found.calls), len(prompts)) == ("base", None, 4, 5)


def test_a_text_for_nobody_leaves_the_base_reply():
    for text in ("what", "", "User,", "TS,"):
        [found] = research([["hi"]], ["base"], write=scripted(text)[0], tools=tools, calls=4)
        assert (found.text, found.reply, found.calls) == ("base", None, [])


def test_several_dialogs_go_on_together_until_each_has_ended():
    write, prompts = scripted("User, one", "TS, q", "User, two")
    found = research([["a"], ["b"]], ["x", "y"], write=write, tools=tools, calls=4)
    assert [one.text for one in found] == ["one", "two"]
    assert [len(one) for one in prompts] == [2, 1]
