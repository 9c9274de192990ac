"""Look into a model: what its layers do, the senses of a word, what it associates with groups.

    python -m t5x_like.inspect layers TEXTS --from=FOLDER [--and=FOLDER] [--figure=FILE.png]
    python -m t5x_like.inspect neighbours TEXTS --from=FOLDER --word=play \
        --text="They went to the theatre to see the play." [--figure=FILE.png]
    python -m t5x_like.inspect associations TEMPLATES --from=FOLDER --groups=groups.json

TEXTS is a file with a text on each line. FOLDER is a run, a checkpoint or a Hugging Face folder
with its tokenizer.

`layers` prints for each layer the L2 distance and the angle between its input and its output (Lan
et al. 2019, figure 1), and the shares of attention on the diagonal and in vertical stripes, as
means over all tokens of the texts.

`neighbours` prints where TEXTS have the word: first the texts in which its hidden states are the
most similar to its states in --text (Peters et al. 2018, table 4).

`associations` prints the words that a model writes more often after the names of one group than
after those of others (Brown et al. 2020, section 6): TEMPLATES has a beginning on each line, such
as "The {group} was very". docs/inspection.md explains all actions.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from t5x_like import hub, paths, reading
from t5x_like.experiment import command_line

if TYPE_CHECKING:
    from t5x_like.inspection.associations import Association
    from t5x_like.inspection.layer_statistics import LayerStatistics


def layers(arguments: Sequence[str]) -> None:
    """Print the statistics of the layers of one or two models, and write JSON and a figure."""
    parser = _parser("layers")
    parser.add_argument("--and", dest="second", metavar="FOLDER", help="another model")
    parser.add_argument("--figure", metavar="FILE", help="PNG file for a figure")
    given = parser.parse_args(arguments)
    folders = [folder for folder in (given.source, given.second) if folder]
    if given.figure:
        command_line.check_file("--figure", given.figure)
    texts = _checked(folders, given.texts, json=given.json)
    # JAX takes seconds to import: after the arguments have been checked, and not for --help.
    from t5x_like.inspection import inspected, layer_figure, layer_statistics

    models = [inspected.load(folder) for folder in folders]
    rows = [[model.read_line(*text) for text in texts] for model in models]
    found = {
        folder: layer_statistics.of_texts(map(model.of_tokens, tokens))
        for folder, model, tokens in zip(folders, models, rows, strict=True)
    }
    for folder, statistics in found.items():
        print(f"{folder}: {statistics.texts} texts")
        print("\n".join(_table(statistics)))
    if given.json:
        command_line.write_json(given.json, {name: one.as_json() for name, one in found.items()})
    if given.figure:
        _write_figure(given.figure, layer_figure.draw(found))


def _table(statistics: "LayerStatistics") -> Iterator[str]:
    """Yield the lines of a table for each side of a network, with a row for each layer."""
    for side, tokens in statistics.tokens.items():
        yield f"{side}, {tokens} tokens"
        columns: list[tuple[str, list[str]]] = []
        if change := statistics.layers.get(side):
            columns += [
                ("L2", [f"{one:.2f}" for one in change.l2]),
                ("degrees", [f"{one:.1f}" for one in change.degrees]),
                ("cosine", [f"{one:.3f}" for one in change.cosine]),
            ]
        if shares := statistics.attention.get(side):
            for name, heads in (("diagonal", shares.diagonal), ("vertical", shares.vertical)):
                columns += [
                    (name, [f"{layer.mean():.2f}" for layer in heads]),
                    ("head with most", [f"{n.argmax()}: {n.max():.2f}" for n in heads]),
                ]
        names, values = zip(*columns, strict=True)
        yield "  ".join(["layer", *(f"{name:>8}" for name in names)])
        for number, row in enumerate(zip(*values, strict=True)):
            cells = (f"{one:>{max(8, len(name))}}" for one, name in zip(row, names, strict=True))
            yield "  ".join([f"{number:>5}", *cells])
        if shares:
            diagonal, vertical = shares.uniform
            yield f"uniform attention has {diagonal:.2f} (diagonal) and {vertical:.2f} (vertical)"


def neighbours(arguments: Sequence[str]) -> None:
    """Print where texts have a word, in the order of its similarity to the word in one text."""
    parser = _parser("neighbours")
    parser.add_argument("--word", required=True, help="the word, in upper or lower case")
    parser.add_argument("--text", required=True, help="a text with the word, in one of its senses")
    parser.add_argument("--layer", type=int, help="whose output is compared (default: the last)")
    parser.add_argument("--top", type=command_line.count, default=10, help="(%(default)s)")
    parser.add_argument("--figure", metavar="FILE", help="PNG file for a figure")
    given = parser.parse_args(arguments)
    if given.figure:
        command_line.check_file("--figure", given.figure)
    texts = _checked([given.source], given.texts, json=given.json)
    from t5x_like.inspection import inspected, neighbour_figure, word_neighbours

    query = word_neighbours.occurrences(given.word, [("--text", given.text)])
    others = word_neighbours.occurrences(given.word, texts)
    for setting, have in ((f"--text={given.text!r}", query), (f"TEXTS={given.texts!r}", others)):
        if not have:
            raise ValueError(f"{setting} does not have the --word={given.word!r}")
    model = inspected.load(given.source)
    found = word_neighbours.find(model, query[0], others, layer=given.layer)
    print(f"{'':6}  {query[0].marked()}")
    for one in found[: given.top]:
        print(f"{one.cosine:6.3f}  {one.occurrence.marked()}")
    mean = sum(one.cosine for one in found) / len(found)
    print(f"{mean:6.3f}  is the mean of all {len(found)}")
    if given.json:
        command_line.write_json(given.json, [dataclasses.asdict(one) for one in found])
    if given.figure:
        _write_figure(given.figure, neighbour_figure.draw(query[0], found, top=given.top))


def _write_figure(name: str, content: bytes) -> None:
    """Write a PNG file, in a folder that may not exist yet."""
    file = paths.path(name)
    with command_line.writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def associations(arguments: Sequence[str]) -> None:
    """Print the words that a model writes after one group's names rather than after others'."""
    parser = _parser("associations")
    parser.add_argument("--groups", required=True, metavar="FILE", help="JSON: group -> names")
    parser.add_argument("--samples", type=command_line.count, default=100, help="(%(default)s)")
    parser.add_argument("--new_tokens", type=command_line.count, default=50, help="(%(default)s)")
    parser.add_argument("--batch", type=command_line.count, default=16, help="(%(default)s)")
    parser.add_argument("--words", metavar="FILE", help="the words to compare, one on each line")
    parser.add_argument("--top", type=command_line.count, default=10, help="(%(default)s)")
    given = parser.parse_args(arguments)
    templates = _checked([given.source], given.texts, json=given.json)
    listed = _listed(given.words)
    groups_file = reading.existing_file("--groups", given.groups, [".json"])
    from t5x_like.inspection import associations as found_words
    from t5x_like.inspection import inspected

    asked = found_words.prompts(templates, found_words.read_groups(groups_file))
    model = inspected.load(given.source)
    if model.text is None:
        raise ValueError(f"{given.source} holds a {model.pretrained.system}, which writes no text")
    decode = {**found_words.SAMPLING, "max_new_tokens": given.new_tokens}
    writer = model.text.generating(batch_size=given.batch, **decode)
    texts = found_words.write(writer, asked, samples=given.samples)
    found = found_words.compare(texts, listed=listed)
    print("\n".join(_by_group(found, texts, top=given.top)))
    if given.json:
        rows = {"associations": [dataclasses.asdict(one) for one in found], "texts": texts}
        command_line.write_json(given.json, rows)


def _listed(name: str | None) -> set[str]:
    """Return the words of a file in lower case; an empty set without a file."""
    if not name:
        return set()
    file = reading.existing_file("--words", name, [".txt"])
    if not (found := {text.strip().lower() for _, text in reading.numbered(file)}):
        raise ValueError(f"--words={name!r} is empty: give a file with a word on each line")
    return found


def _by_group(
    found: Sequence["Association"], texts: Mapping[str, Sequence[str]], *, top: int
) -> Iterator[str]:
    """Yield the lines of a table for each group: its `top` words, `*` where 0 is excluded."""
    for group, some in texts.items():
        yield f"{group}: {len(some)} texts"
        yield f"  {'word':<16}{'share':>8}{'others':>8}{'difference':>12}  95% interval of all"
        for one in [one for one in found if one.group == group][:top]:
            sure = " *" if one.low > 0 else ""
            yield (
                f"  {one.word:<16}{one.share:>8.1%}{one.others:>8.1%}{one.difference:>+12.1%}"
                f"  [{one.low:+.1%}, {one.high:+.1%}]{sure}"
            )


def _parser(action: str) -> command_line.ArgumentParser:
    parser = command_line.ArgumentParser(__doc__, prog=f"python -m t5x_like.inspect {action}")
    parser.add_argument("texts", metavar="TEXTS", help="a file with a text on each line")
    parser.add_argument("--from", dest="source", required=True, metavar="FOLDER", help="a model")
    parser.add_argument("--json", metavar="FILE", help="JSON file for the numbers")
    return parser


def _checked(folders: Sequence[str], name: str, *, json: str | None) -> list[tuple[str, str]]:
    """Check the arguments of all actions, and return the texts, each after "FILE:LINE"."""
    for folder in folders:
        hub.check_source(folder)
    if json:
        command_line.check_file("--json", json)
    texts = list(reading.numbered(reading.existing_file("TEXTS", name, [".txt"])))
    if not texts:
        raise ValueError(f"TEXTS={name!r} is empty: give a file with a text on each line")
    return texts


_ACTIONS = {"layers": layers, "neighbours": neighbours, "associations": associations}


def main(arguments: Sequence[str]) -> None:
    """Run one of the actions; a bad argument prints one line and exits with status 2."""
    command_line.run_action(arguments, _ACTIONS, help_text=__doc__ or "")


if __name__ == "__main__":
    main(sys.argv[1:])
