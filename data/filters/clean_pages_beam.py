r"""Make C4 from raw pages on a runner of Apache Beam, as T5 did: for more than one machine.

    pip install -e '.[c4,beam]' && python -m nltk.downloader punkt_tab
    python -m data.filters.clean_pages_beam --input "crawl/*.warc.wet.gz" --output c4 \
        --bad_words en --beam_pipeline_options "runner=DirectRunner,direct_num_workers=8"

Without options it runs on this machine. On Google's Dataflow (`pip install 'apache-beam[gcp]'`):

    python -m data.filters.clean_pages_beam --input "gs://BUCKET/crawl/*.warc.wet.gz" \
        --output gs://BUCKET/c4 --bad_words en --beam_pipeline_options \
        "runner=DataflowRunner,project=P,region=R,temp_location=gs://BUCKET/tmp,sdk_container_image=I"

The image I of the workers needs a clone on its PYTHONPATH, the extras c4, beam and gcs, and NLTK's
model. Options are written as for `tfds build`, NAME=VALUE with commas between them. The extra needs
older packages than `make` installs: use an environment of its own.

The input, the rules and their functions are the same as in data/filters/clean_pages.py, so that the
same pages stay and the counts are equal. What differs: which pages are in which file,
OUTPUT/pages-*.jsonl.gz, and their order, depend on the runner; the counts are also in
OUTPUT/counts.json; and a failed run is continued only if the runner does so.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from data.filters import c4_rules, clean_pages, web_archives
from data.filters.clean_pages import Plan
from t5x_like import paths
from t5x_like.config import one_line_errors
from t5x_like.names import choose, hint

if TYPE_CHECKING:
    import apache_beam

# The index of a page's input file, and its index there.
Where = tuple[int, int]

_COUNTS = "counts"  # the second output of each step
_PAGES = "pages"  # how the names of the files of pages begin
_bad_words = functools.cache(c4_rules.bad_words_pattern)  # once a process


def cleaned(
    plan: Plan, pipeline: "apache_beam.Pipeline"
) -> tuple["apache_beam.PCollection", "apache_beam.PCollection"]:
    """Add the rules to a pipeline.

    Returns:
        The rows that C4 has of the pages, and one dictionary {what is counted: number}.
    """
    import apache_beam as beam

    def step(name: str, function: Callable[..., Iterator[Any]]) -> Any:
        counting = beam.FlatMap(_counted, functools.partial(function, plan))
        return name >> counting.with_outputs(_COUNTS, main="rows")

    files = pipeline | beam.Create(range(len(plan.files))) | beam.Reshuffle()
    read = files | step("read", _read)
    newest = read.rows | "by address" >> beam.GroupByKey() | step("newest", _newest)
    clean = newest.rows | step("clean", _clean)
    # The least item of each key: the hash of its page's address is the lowest.
    parts = clean.rows | "parts" >> beam.FlatMap(functools.partial(_parts, plan))
    firsts = parts | beam.CombinePerKey(min) | beam.Map(_first)
    joined = {"rows": clean.rows, "firsts": firsts} | beam.CoGroupByKey()
    finished = joined | step("finish", _finish)
    counts = (
        [result[_COUNTS] for result in (read, newest, clean, finished)]
        | beam.Flatten()
        | beam.CombinePerKey(sum)
        | beam.combiners.ToDict()
    )
    return finished.rows, counts


def _counted(element: Any, function: Callable[[Any, c4_rules.Counts], Iterator[Any]]) -> Any:
    """Yield the results of function(element, counts), and then what it counted."""
    import apache_beam

    counts = c4_rules.Counts()
    yield from function(element, counts)
    for counted in counts.items():
        yield apache_beam.pvalue.TaggedOutput(_COUNTS, counted)


def _read(plan: Plan, number: int, counts: c4_rules.Counts) -> Iterator[Any]:
    """Yield (address, (rank, where, row)) for the pages of a file."""
    for index, page in enumerate(web_archives.pages(plan.files[number], text=plan.text)):
        if item := clean_pages.address(page, index, counts):
            yield _digits(item.key), (_digits(item.rank), (number, index), dict(page.row))


def _newest(
    plan: Plan, pages: tuple[str, Iterable[Any]], counts: c4_rules.Counts
) -> Iterator[tuple[Where, dict[str, Any]]]:
    """Yield (where, row) for the newest page of an address."""
    of_address = list(pages[1])
    counts[clean_pages.OLD] += len(of_address) - 1
    _, where, row = min(of_address, key=lambda page: page[:2])
    yield where, row


def _clean(
    plan: Plan, page: tuple[Where, dict[str, Any]], counts: c4_rules.Counts
) -> Iterator[tuple[Where, dict[str, Any]]]:
    where, row = page
    text = c4_rules.clean(row[plan.text], counts)
    if text is not None:
        yield where, {**row, plan.text: text}


def _parts(plan: Plan, page: tuple[Where, dict[str, Any]]) -> Iterator[Any]:
    """Yield (hash, (rank, where, index)) for the parts of a page that may be copies."""
    (number, index), row = page
    for item in clean_pages.parts(plan, row["url"], row[plan.text], index):
        yield _digits(item.key), (_digits(item.rank), (number, index), item.part)


def _first(part: tuple[str, Any]) -> tuple[Where, int]:
    _, (_, where, index) = part
    return where, index


def _finish(
    plan: Plan, joined: tuple[Where, Mapping[str, Sequence[Any]]], counts: c4_rules.Counts
) -> Iterator[str]:
    """Yield the row of a page as JSON, if it stays."""
    row = joined[1]["rows"][0]
    text, pattern = row[plan.text], _bad_words(tuple(plan.bad_words))
    number = sum(1 for _ in c4_rules.PARTS[plan.duplicates](text))
    copies = set(range(number)) - set(joined[1]["firsts"])
    if text := clean_pages.finished(plan, text, copies, pattern, counts):
        yield json.dumps({**row, plan.text: text}, ensure_ascii=False)


def _digits(number: int) -> str:
    """Return 64 bits as text of the same order: Beam's keys are integers of 63 bits at most."""
    return f"{number:016x}"


def run(plan: Plan, output: str, options: Any) -> dict[str, int]:
    """Clean the pages of files on a runner.

    Args:
        plan: the files and settings; its `output` is not used.
        output: the folder, on this machine or in a bucket.
        options: Beam's PipelineOptions.

    Returns:
        {what is counted: number of pages or lines}, in the order of the rules.

    Raises:
        ValueError: a setting or a row is bad, or the folder has pages or counts already.
    """
    import apache_beam as beam

    choose("--duplicates", plan.duplicates, c4_rules.PARTS)
    c4_rules.check_models(plan.language)
    folder = paths.path(output)
    _check_new(folder)
    with beam.Pipeline(options=options) as pipeline:
        rows, counts = cleaned(plan, pipeline)
        write = beam.io.WriteToText(f"{folder}/{_PAGES}", file_name_suffix=".jsonl.gz")
        _ = rows | "write pages" >> write
        write = beam.io.WriteToText(f"{folder}/counts", ".json", shard_name_template="")
        _ = counts | beam.Map(json.dumps) | "write counts" >> write
    counted = json.loads((folder / "counts.json").read_text())
    return {rule: counted.get(rule, 0) for rule in clean_pages.rules(plan.duplicates)}


def _check_new(folder: paths.Path) -> None:
    """Check that no file of another run would stay among the new ones.

    Raises:
        ValueError: the path is a file, or the folder has pages or counts.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output={str(folder)!r} is a file: give a folder")
    names = sorted(file.name for file in folder.iterdir()) if folder.exists() else []
    if old := next((n for n in names if n == "counts.json" or n.startswith(f"{_PAGES}-")), None):
        raise ValueError(f"{folder / old} exists already: give another --output")


def _options(text: str) -> "apache_beam.options.pipeline_options.PipelineOptions":
    """Parse Beam's options, NAME=VALUE,NAME,...

    Raises:
        ValueError: an option does not exist.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    options = PipelineOptions([f"--{option}" for option in text.split(",") if option])
    known = options.get_all_options()
    for name in options.get_all_options(retain_unknown_options=True):
        if name not in known:
            raise ValueError(f"--beam_pipeline_options: there is no {name!r}.{hint(name, known)}")
    return options


def _find(patterns: Sequence[str]) -> list[str]:
    """Return the files that match, on this machine or in buckets, sorted.

    Raises:
        ValueError: a pattern matches no file, or a file of another format.
    """
    from apache_beam.io.filesystems import FileSystems

    found: set[str] = set()
    for pattern, match in zip(patterns, FileSystems.match([*patterns]), strict=True):
        if not match.metadata_list:
            raise ValueError(f"--input={pattern!r} matches no file")
        found.update(file.path for file in match.metadata_list)
    for path in found:
        if not path.endswith(clean_pages.SUFFIXES):
            suffixes = ", ".join(clean_pages.SUFFIXES)
            raise ValueError(f"--input: {path} has none of the suffixes {suffixes}")
    return sorted(found)


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = clean_pages.parser("data.filters.clean_pages_beam", __doc__)
    parser.add_argument("--beam_pipeline_options", default="", metavar="NAME=VALUE,...")
    given = parser.parse_args(arguments)
    with one_line_errors():
        try:
            import apache_beam  # noqa: F401 - whether it is installed
        except ImportError as error:
            raise ValueError(
                "Apache Beam is missing: pip install -e '.[c4,beam]', in an environment of its own"
            ) from error
        options = _options(given.beam_pipeline_options)
        plan = clean_pages.plan(given, files=_find(given.input))
        clean_pages.print_counts(run(plan, given.output, options))


if __name__ == "__main__":
    # By its name, so that workers import these functions instead of getting them as code.
    from data.filters import clean_pages_beam

    clean_pages_beam.main(sys.argv[1:])
