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
after other groups' names (Brown et al. 2020, section 6): TEMPLATES has a beginning on each line,
such as "The {group} was very". docs/inspection.md explains all actions.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from t5x_like import hub, paths, reading
from t5x_like.experiment import command_line

if TYPE_CHECKING:
    from t5x_like.research.inspection.associations import Association
    from t5x_like.research.inspection.layer_statistics import LayerStatistics


def layers(arguments: Sequence[str]) -> None:
    """Print the statistics of the layers of one or two models, and write JSON and a figure."""
    parser = _parser("layers")
    parser.add_argument("--and", dest="second", metavar="FOLDER", help="another model")
    parser.add_argument("--figure", metavar="FILE", help="PNG file for a figure")
    options = parser.parse_args(arguments)
    folders = [folder for folder in (options.source, options.second) if folder]
    if options.figure:
        command_line.check_file("--figure", options.figure)
    texts = _checked(folders, options.texts, json=options.json)
    # JAX takes seconds to import: after the arguments have been checked, and not for --help.
    from t5x_like.research.inspection import drawings, inspected, layer_statistics

    models = [inspected.load(folder) for folder in folders]
    rows = [[model.read_line(*text) for text in texts] for model in models]
    by_folder = {
        folder: layer_statistics.of_texts(map(model.of_tokens, tokens))
        for folder, model, tokens in zip(folders, models, rows, strict=True)
    }
    for folder, statistics in by_folder.items():
        print(f"{folder}: {statistics.texts} texts")
        print("\n".join(_table(statistics)))
    if options.json:
        command_line.write_json(
            options.json, {name: statistics.as_json() for name, statistics in by_folder.items()}
        )
    if options.figure:
        _write_figure(options.figure, drawings.draw_layers(by_folder))


def _table(statistics: "LayerStatistics") -> Iterator[str]:
    """Yield the lines of a table for each side of a network, with a row for each layer."""
    for side, tokens in statistics.tokens.items():
        yield f"{side}, {tokens} tokens"
        columns: list[tuple[str, list[str]]] = []
        if change := statistics.layers.get(side):
            columns += [
                ("L2", [f"{value:.2f}" for value in change.l2]),
                ("degrees", [f"{value:.1f}" for value in change.degrees]),
                ("cosine", [f"{value:.3f}" for value in change.cosine]),
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
            cells = (f"{cell:>{max(8, len(name))}}" for cell, name in zip(row, names, strict=True))
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
    options = parser.parse_args(arguments)
    if options.figure:
        command_line.check_file("--figure", options.figure)
    texts = _checked([options.source], options.texts, json=options.json)
    from t5x_like.research.inspection import drawings, inspected, word_neighbours

    query = word_neighbours.occurrences(options.word, [("--text", options.text)])
    others = word_neighbours.occurrences(options.word, texts)
    for setting, have in (
        (f"--text={options.text!r}", query),
        (f"TEXTS={options.texts!r}", others),
    ):
        if not have:
            raise ValueError(f"{setting} does not have the --word={options.word!r}")
    model = inspected.load(options.source)
    nearest = word_neighbours.find(model, query[0], others, layer=options.layer)
    print(f"{'':6}  {query[0].marked()}")
    for neighbour in nearest[: options.top]:
        print(f"{neighbour.cosine:6.3f}  {neighbour.occurrence.marked()}")
    mean = sum(neighbour.cosine for neighbour in nearest) / len(nearest)
    print(f"{mean:6.3f}  is the mean of all {len(nearest)}")
    if options.json:
        command_line.write_json(
            options.json, [dataclasses.asdict(neighbour) for neighbour in nearest]
        )
    if options.figure:
        _write_figure(options.figure, drawings.draw_neighbours(query[0], nearest, top=options.top))


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
    options = parser.parse_args(arguments)
    templates = _checked([options.source], options.texts, json=options.json)
    listed = _listed(options.words)
    groups_file = reading.existing_file("--groups", options.groups, [".json"])
    from t5x_like.research.inspection import associations as found_words
    from t5x_like.research.inspection import inspected

    asked = found_words.prompts(templates, found_words.read_groups(groups_file))
    model = inspected.load(options.source)
    if model.text is None:
        raise ValueError(
            f"{options.source} holds a {model.pretrained.system}, which writes no text"
        )
    decode = {**found_words.SAMPLING, "max_new_tokens": options.new_tokens}
    writer = model.text.generating(batch_size=options.batch, **decode)
    texts = found_words.write(writer, asked, samples=options.samples)
    compared = found_words.compare(texts, listed=listed)
    lines = _by_group(compared, texts, top=options.top, fewest=found_words.FEWEST)
    print("\n".join(lines))
    if options.json:
        rows = [dataclasses.asdict(association) for association in compared]
        command_line.write_json(options.json, {"associations": rows, "texts": texts})


def _listed(name: str | None) -> set[str]:
    """Return the words of a file in lower case; an empty set without a file."""
    if not name:
        return set()
    file = reading.existing_file("--words", name, [".txt"])
    if not (lines := [(where, text.strip()) for where, text in reading.numbered(file)]):
        raise ValueError(f"--words={name!r} is empty: give a file with a word on each line")
    from t5x_like.research.inspection import associations as found_words

    for where, word in lines:
        if not found_words.is_word(word):
            raise ValueError(f"{where}: {word!r} is not a single word of letters, - and '")
    return {word.lower() for _, word in lines}


def _by_group(
    compared: Sequence["Association"],
    texts: Mapping[str, Sequence[str]],
    *,
    top: int,
    fewest: int,
) -> Iterator[str]:
    """Yield the lines of a table for each group: its `top` words, `*` where 0 is excluded.

    Args:
        fewest: the number of texts that a compared word is in at least.
    """
    for group, group_texts in texts.items():
        yield f"{group}: {len(group_texts)} texts"
        yield f"  {'word':<16}{'share':>8}{'others':>8}{'difference':>12}  95% interval of all"
        of_group = [association for association in compared if association.group == group]
        if not of_group:
            yield f"  no word to compare is in {fewest} texts or more: take more --samples"
        for word in of_group[:top]:
            sure = " *" if word.low > 0 else ""
            yield (
                f"  {word.word:<16}{word.share:>8.1%}{word.others:>8.1%}{word.difference:>+12.1%}"
                f"  [{word.low:+.1%}, {word.high:+.1%}]{sure}"
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
