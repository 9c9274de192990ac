r"""Filter dialogs by a model that rates responses, as LaMDA did (Thoppilan et al. 2022, 6.1).

    python -m data.filters.dialog_filter --input "forums/*.jsonl.gz" --output filtered \
        --run runs/lamda_dialogs --least sensible=0.8 specific=0.5 --unsafe_above 0.2

Of the 2.5 million turns of its pretraining dialogs the paper kept 800,000 that its discriminators
rated safe and of high quality; the thresholds are not given. A row has `context`, a list of turns,
and `response`, the next turn. It is kept if P(unsafe) is at most --unsafe_above and each attribute
in --least has at least that probability. It keeps all its fields, and gets `probabilities`; train
on the files with data/dialog_files.py, which reads rows without ratings as responses to generate.

--run is a run of configs/lamda_dialogs.py. --rows rows are rated together, with rows of similar
length in each batch of the run's data.batch_size. A file appears when it is complete; after an
interruption the same command continues with the missing files.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from data.filters import json_lines
from t5x_like.batches.dialog_rows import ATTRIBUTES
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser
from t5x_like.inference.dialog_model import Dialog, Rater
from t5x_like.names import choose

Rate = Callable[[Sequence[Dialog]], Sequence[Mapping[str, float]]]


def filter_files(
    files: Sequence[str],
    output: str,
    *,
    rate: Rate,
    least: Mapping[str, float],
    unsafe_above: float,
    rows: int = 1024,
) -> dict[str, int]:
    """Filter files into a folder; files that already exist there are not changed.

    Args:
        files: the files of dialogs.
        output: the folder.
        rate: dialogs -> the probabilities of their attributes.
        least: {attribute: minimum probability}.
        unsafe_above: dialogs with a larger P(unsafe) are dropped.
        rows: the number of rows rated together.

    Returns:
        Counts of the rows `read` and `kept`, and `there`, the files that already existed.

    Raises:
        ValueError: two files have one name, or a row is bad.
    """
    counts = {"read": 0, "kept": 0, "there": 0}
    names = [Path(file).name for file in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two files are named {twice}: filter them into folders of their own")
    for file in files:
        if (Path(output).expanduser() / Path(file).name).exists():
            counts["there"] += 1
            continue
        with json_lines.Writer(output, [file]) as writer:
            for batch in _batches(json_lines.rows([file]), rows):
                rated = rate([_dialog(row) for row in batch])
                for row, own in zip(batch, rated, strict=True):
                    counts["read"] += 1
                    if own["unsafe"] <= unsafe_above and all(own[n] >= p for n, p in least.items()):
                        counts["kept"] += 1
                        writer.write(file, {**row.row, "probabilities": dict(own)})
    return counts


def _batches(rows: Iterable[json_lines.Row], size: int) -> Iterator[list[json_lines.Row]]:
    iterator = iter(rows)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def _dialog(row: json_lines.Row) -> Dialog:
    context, response = row.row.get("context"), row.row.get("response")
    if (
        not isinstance(context, list)
        or not context
        or not all(isinstance(one, str) for one in context)
    ):
        raise ValueError(f"{row.where}: context={context!r:.80} is not a list of turns")
    if not isinstance(response, str):
        raise ValueError(f"{row.where}: response={response!r:.80} is not a string")
    return Dialog(context, response)


def _thresholds(texts: Sequence[str]) -> dict[str, float]:
    """Parse the thresholds of --least.

    Raises:
        ValueError: a threshold is not NAME=PROBABILITY.
    """
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        choose("--least", name, dict.fromkeys(one for one in ATTRIBUTES if one != "unsafe"))
        found[name] = _probability(f"--least {name}", value)
    return found


def _probability(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError(f"{flag}={text!r} must be a probability, from 0 to 1")
    return value


def _rater(run: str) -> Rater:
    """Load the discriminators of a run."""
    # Imported here, so that --help does not need to wait seconds for them.
    from t5x_like import config
    from t5x_like.experiment import completion
    from t5x_like.experiment.run import of_config
    from t5x_like.inference import text_model
    from t5x_like.pretrained import from_pretrained

    path = Path(run).expanduser() / "config.json"
    if not path.is_file():
        raise ValueError(f"--run={run!r} is not the folder of a run: it has no {path.name}")
    settings = config.load(path)
    settings.workdir = str(path.parent)
    of_run = completion.complete(of_config(settings))
    model = from_pretrained(completion.model_folder(of_run.settings, checkpoint=None))
    [part] = of_run.parts
    return Rater(text_model.build(model, part))


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = ArgumentParser(__doc__, prog="python -m data.filters.dialog_filter")
    parser.add_argument("--input", nargs="+", required=True, metavar="FILES", help="or patterns")
    parser.add_argument("--output", required=True, metavar="FOLDER")
    parser.add_argument("--run", required=True, metavar="FOLDER", help="of a dialog model")
    parser.add_argument(
        "--least", nargs="*", default=["sensible=0.5"], metavar="NAME=P", help="(sensible=0.5)"
    )
    parser.add_argument("--unsafe_above", default="0.5", metavar="P", help="(0.5)")
    parser.add_argument("--rows", type=int, default=1024, help="rated together (1024)")
    given = parser.parse_args(arguments)
    with one_line_errors():
        if given.rows < 1:
            raise ValueError(f"--rows={given.rows} must be 1 or more")
        least = _thresholds(given.least)
        unsafe_above = _probability("--unsafe_above", given.unsafe_above)
        files = json_lines.find("--input", given.input)
        counts = filter_files(
            files,
            given.output,
            rate=_rater(given.run),
            least=least,
            unsafe_above=unsafe_above,
            rows=given.rows,
        )
        sys.stdout.write(
            f"kept {counts['kept']:,} of {counts['read']:,} dialogs; {counts['there']} of "
            f"{len(files)} files were there already\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
