r"""Make C4 from the raw pages of a web crawl, as T5 did (Raffel et al. 2020, section 2.2).

    pip install -e '.[c4]' && python -m nltk.downloader punkt_tab
    python -m data.filters.clean_pages --input "crawl/*.warc.wet.gz" --output c4 \
        --bad_words en --processes 8

The input is WET files of Common Crawl (.warc.wet or .wet, compressed or not), which have the text
of pages and made C4; WARC files (.warc), which have the pages in HTML (data/filters/html_pages.py
extracts their text, and responses that cannot be read are counted); or JSON Lines with the strings
`url`, `text` and optionally `timestamp`, as C4's `en.noclean`. In the order of c4/en:3.1.0 of
TensorFlow Datasets:

1. Pages without an address or text, and pages of more than 190,000 characters, are dropped.
2. Of the pages of one address, the newest stays. Addresses are compared without https://, www.,
   tracking parameters and the last slash.
3. Lines and pages are dropped by rules 1 to 3 of data/filters/c4_rules.py: end marks, 5 words,
   JavaScript, policies; lorem ipsum, braces, 3 sentences.
4. A line that occurs again, in upper or lower case, stays once: on the page whose address has the
   lowest MD5. Then a page of fewer than 3 sentences is dropped. The paper instead describes spans
   of three sentences, --duplicates=spans; the code that made C4 compares lines.
5. Pages that langdetect does not find to be English with a probability of 0.99, and pages with a
   word of --bad_words (a file with a word on each line: T5 took LDNOOBW's list `en`), are dropped.
   Without --bad_words, no page is dropped for its words.

Each file of the input gives a file of JSON Lines with a name like its own, and the number of lines
and pages that each rule dropped is printed. Which pages and lines stay does not depend on the
number of processes, nor on the order of files and pages, unless an address has two pages of one
date: then the first stays. If the command is interrupted, the same command continues; until its end
its files are in OUTPUT/unfinished.

Addresses and lines are compared by the first 64 bits of their MD5, in sorted files that are merged
in parts: a process takes 1.1 GB, and some 100 bytes for each repeated line of the file that it is
working on, whatever the size of the input. Among 10 billion different lines, fewer than three are
expected to be lost because of equal hashes.
"""

import argparse
import functools
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.filters import c4_rules, html_pages, json_lines, sorted_copies, web_archives
from data.filters.sorted_copies import Item
from t5x_like import paths, reading
from t5x_like.batches import worker_processes
from t5x_like.batches.worker_processes import ProcessMap
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser, writing
from t5x_like.names import choose

READ = "pages read"
EMPTY = "pages without an address or text"
OLD = "pages of which there is a newer copy"
COPIED = "{} that occur elsewhere"
LEFT_EMPTY = "pages of such {} only"
FEW_LEFT = "pages of fewer than 3 sentences without them"
KEPT = "pages kept"

SUFFIXES = (*web_archives.WET_SUFFIXES, *json_lines.SUFFIXES)

_PLAN = "plan.json"
_NEWEST = (1 << 64) - 1
_ENDINGS = re.compile(r"(\.warc)?(\.wet|\.warc)(?=\.\w+$|$)")


class Plan(NamedTuple):
    """What a run does; it can be sent to another process.

    Attributes:
        files: the input.
        output: the folder.
        text: the field with the text, of rows of JSON Lines.
        language: see `c4_rules.language_rule`.
        bad_words: the words.
        duplicates: one of `c4_rules.PARTS`.
    """

    files: Sequence[str]
    output: Path
    text: str = "text"
    language: str = "en"
    bad_words: Sequence[str] = ()
    duplicates: str = "lines"

    @property
    def folder(self) -> Path:
        """The folder of unfinished work."""
        return self.output / "unfinished"

    def of(self, number: int) -> Path:
        """Return the folder of an input file."""
        return self.folder / f"{number:05}"

    def all_of(self, stage: str) -> list[list[Path]]:
        """Return the files of items that a stage wrote, for each input file."""
        return [sorted(self.of(n).glob(f"{stage}-*.npy")) for n in range(len(self.files))]

    def copies(self, stage: str) -> list[Path]:
        """Return the files of copies among the items of a stage."""
        return sorted(self.folder.glob(f"{stage}-copies-*.npy"))


def output_name(path: str) -> str:
    """Return the name of the output of an input file: x.warc.wet.gz becomes x.jsonl.gz."""
    name = Path(path).name
    return _ENDINGS.sub(".jsonl", name) if name.endswith(web_archives.WET_SUFFIXES) else name


def find_addresses(plan: Plan, number: int) -> c4_rules.Counts:
    """Stage 1 of an input file: collect the addresses of its pages."""
    counts = c4_rules.Counts()
    with sorted_copies.Runs(plan.of(number), "addresses") as runs:
        for index, page in enumerate(web_archives.pages(plan.files[number], text=plan.text)):
            if item := address(page, index, counts):
                runs.add(item)
    return counts


def address(page: web_archives.Page, index: int, counts: c4_rules.Counts) -> Item | None:
    """Count a page, and return its address as an item; None if the page is dropped.

    Args:
        page: the page.
        index: its index in its input file.
        counts: is added to.
    """
    counts[READ] += 1
    if rule := _first_rule(page):
        counts[rule] += 1
        return None
    digits = re.sub(r"\D", "", page.timestamp)[:14]
    rank = _NEWEST - int(digits.ljust(14, "0"))
    return Item(c4_rules.hashed(c4_rules.normalized_url(page.url)), rank, index, 0)


def _first_rule(page: web_archives.Page) -> str:
    if page.problem:
        return page.problem
    if not page.url or not page.text.strip():
        return EMPTY
    return c4_rules.TOO_LONG if len(page.text) > c4_rules.MOST_CHARACTERS else ""


def clean_file(plan: Plan, number: int) -> c4_rules.Counts:
    """Stage 2 of an input file: clean its pages, and collect the hashes of their lines."""
    counts = c4_rules.Counts()
    old = sorted_copies.copies_of(plan.copies("addresses"), number)
    with (
        sorted_copies.Runs(plan.of(number), "parts") as runs,
        _writer(plan.of(number) / "cleaned.jsonl.zst") as file,
    ):
        for index, page in enumerate(web_archives.pages(plan.files[number], text=plan.text)):
            if index in old:
                counts[OLD] += 1
                continue
            cleaned = None if _first_rule(page) else c4_rules.clean(page.text, counts)
            if cleaned is None:
                continue
            for item in parts(plan, page.url, cleaned, index):
                runs.add(item)
            _write_row(file, {"index": index, "row": {**page.row, plan.text: cleaned}})
    return counts


def parts(plan: Plan, url: str, text: str, index: int) -> Iterator[Item]:
    """Yield the parts of a cleaned page that may be copies.

    Args:
        plan: which parts.
        url: the address of the page.
        text: its cleaned text.
        index: its index in its input file.
    """
    rank = c4_rules.hashed(url)
    for number, part in enumerate(c4_rules.PARTS[plan.duplicates](text)):
        yield Item(c4_rules.hashed(part.text), rank, index, number)


def finish_file(plan: Plan, number: int) -> c4_rules.Counts:
    """Stage 3 of an input file: remove copies, and apply the rules about language and words."""
    counts = c4_rules.Counts()
    copies = sorted_copies.copies_of(plan.copies("parts"), number)
    pattern = c4_rules.bad_words_pattern(plan.bad_words)
    with _writer(plan.of(number) / output_name(plan.files[number])) as file:
        for _, cleaned in reading.json_lines(plan.of(number) / "cleaned.jsonl.zst"):
            row, own = cleaned["row"], copies.get(cleaned["index"], set())
            if text := finished(plan, row[plan.text], own, pattern, counts):
                _write_row(file, {**row, plan.text: text})
    return counts


def finished(
    plan: Plan,
    text: str,
    copies: set[int],
    bad_words: re.Pattern[str] | None,
    counts: c4_rules.Counts,
) -> str:
    """Return the text that C4 has of a page; empty if the page is dropped.

    Args:
        plan: the language, and what copies are.
        text: the cleaned page.
        copies: the indices of its parts that are copies.
        bad_words: the pattern of bad words.
        counts: is added to.
    """
    text = _without_copies(plan, text, copies, counts)
    if not text:
        return ""
    if rule := c4_rules.page_rule(text, language=plan.language, bad_words=bad_words):
        counts[rule] += 1
        return ""
    counts[KEPT] += 1
    return text


def _without_copies(plan: Plan, text: str, copies: set[int], counts: c4_rules.Counts) -> str:
    """Return a page without the parts that are copies; empty if the page is dropped."""
    counts[COPIED.format(plan.duplicates)] += len(copies)
    numbered = enumerate(c4_rules.PARTS[plan.duplicates](text)) if copies else ()
    text = c4_rules.without(text, [part for index, part in numbered if index in copies])
    # Sentences of all lines together can be fewer than those of each line: a line may end in ".
    few = len(c4_rules.sentences(text)) < c4_rules.LEAST_SENTENCES
    if few:
        counts[FEW_LEFT if text else LEFT_EMPTY.format(plan.duplicates)] += 1
    return "" if few else text


def _writer(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(reading.create(str(path)), encoding="utf-8", newline="\n")


def _write_row(file: io.TextIOWrapper, row: Any) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")


STAGES: dict[str, Callable[[Plan, int], c4_rules.Counts]] = {
    "addresses": find_addresses,
    "parts": clean_file,
    "finished": finish_file,
}
LAST = "finished"  # the stage without items


def clean_pages(
    plan: Plan, *, processes: int = 1, report: Callable[[str], Any] = lambda line: None
) -> dict[str, int]:
    """Clean the pages of files, or continue with it.

    Args:
        plan: the files and settings.
        processes: the number of processes.
        report: called with lines about the progress.

    Returns:
        {what is counted: number of pages or lines}, in the order of the rules.

    Raises:
        ValueError: a setting or a row is bad, a model is missing, or the folder has other content.
        OSError: the folder cannot be written, or a process was killed.
    """
    check(plan, processes)
    with writing(plan.output):
        _begin(plan)
    try:
        with worker_processes.pool(processes) as results:
            for stage in STAGES:
                _do_all(plan, stage, results, report)
        if _fingerprints(plan) != json.loads((plan.folder / _PLAN).read_text())["files"]:
            raise ValueError("the files of --input were changed meanwhile: start again")
    except ValueError:  # about the input: another input must begin anew
        shutil.rmtree(plan.folder)
        if not any(plan.output.iterdir()):
            plan.output.rmdir()
        raise
    with writing(plan.output):
        return _end(plan)


def check(plan: Plan, processes: int) -> None:
    """Check settings before any work.

    Raises:
        ValueError: see `clean_pages`.
    """
    choose("--duplicates", plan.duplicates, c4_rules.PARTS)
    if processes < 1:
        raise ValueError(f"--processes={processes} must be 1 or more")
    names = [output_name(path) for path in plan.files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two files would be written to {twice}: clean them into two folders")
    begun = plan.folder / _PLAN
    if begun.exists():
        if json.loads(begun.read_text()) != _identity(plan):
            raise ValueError(
                f"{plan.folder} is of other files or settings: continue with them, or delete it"
            )
    elif there := next((name for name in names if (plan.output / name).exists()), None):
        raise ValueError(f"{plan.output / there} exists already: give another --output")
    c4_rules.check_models(plan.language)


def _identity(plan: Plan) -> dict[str, Any]:
    """Return what decides the output, as JSON has it."""
    settings = {name: value for name, value in plan._asdict().items() if name != "output"}
    return {**settings, "bad_words": [*plan.bad_words], "files": _fingerprints(plan)}


def _fingerprints(plan: Plan) -> list[list[Any]]:
    return [[path, *(paths.fingerprint(path) or ())] for path in plan.files]


def _begin(plan: Plan) -> None:
    identity = json.dumps(_identity(plan))
    if not (plan.folder / _PLAN).exists():  # left by a run that was killed while it removed them
        shutil.rmtree(plan.folder, ignore_errors=True)
    for number in range(len(plan.files)):
        plan.of(number).mkdir(parents=True, exist_ok=True)
    paths.write_whole(plan.folder / _PLAN, identity)


def _do_all(plan: Plan, stage: str, results: ProcessMap, report: Callable[[str], Any]) -> None:
    """Do a stage of all input files, and find the copies among its items."""
    files = range(len(plan.files))
    missing = [number for number in files if not (plan.of(number) / f"{stage}.json").exists()]
    finished = len(files) - len(missing)
    for number, _ in enumerate(results(functools.partial(_do, plan, stage), missing), 1):
        report(f"{stage}: {finished + number:,} of {len(files):,} files\n")
    if stage != LAST:
        ranges = enumerate(sorted_copies.ranges(plan.all_of(stage)))
        left = [one for one in ranges if not _copies_file(plan, stage, one[0]).exists()]
        for _ in results(functools.partial(_merge, plan, stage), left):
            pass


def _do(plan: Plan, stage: str, number: int) -> None:
    """Do a stage of an input file; it is done when its counts are there."""
    with writing(plan.output):
        counts = STAGES[stage](plan, number)
        paths.write_whole(plan.of(number) / f"{stage}.json", json.dumps(counts))


def _merge(plan: Plan, stage: str, numbered: tuple[int, tuple[int, int]]) -> None:
    """Find the copies of a numbered range of hashes."""
    with writing(plan.output):
        file = _copies_file(plan, stage, numbered[0])
        sorted_copies.write_copies(file, plan.all_of(stage), numbered[1])


def _copies_file(plan: Plan, stage: str, number: int) -> Path:
    return plan.folder / f"{stage}-copies-{number:05}.npy"


def _end(plan: Plan) -> dict[str, int]:
    """Give the finished files their names; return the counts of all files and stages."""
    counts = dict.fromkeys(rules(plan.duplicates), 0)
    for number, path in enumerate(plan.files):
        for stage in STAGES:
            own = json.loads((plan.of(number) / f"{stage}.json").read_text())
            for rule, dropped in own.items():
                counts[rule] += dropped
        finished = plan.of(number) / output_name(path)
        if finished.exists():  # else it was moved before this run was killed
            finished.replace(plan.output / finished.name)
    shutil.rmtree(plan.folder)
    return counts


def rules(duplicates: str) -> list[str]:
    """Return what is counted, in the order of the rules."""
    return [
        READ,
        *html_pages.PROBLEMS,
        *(EMPTY, c4_rules.TOO_LONG, OLD),
        *c4_rules.CLEANING,
        *(COPIED.format(duplicates), LEFT_EMPTY.format(duplicates), FEW_LEFT),
        *(c4_rules.UNCERTAIN_LANGUAGE, c4_rules.OTHER_LANGUAGE, c4_rules.BAD_WORDS, KEPT),
    ]


def parser(module: str, description: str | None) -> ArgumentParser:
    """Return the parser of a command that applies the rules."""
    made = json_lines.parser(module, description)
    made.add_argument("--language", default="en", help="langdetect's code, or any (en)")
    made.add_argument("--bad_words", metavar="FILE", help="a word on each line")
    made.add_argument("--duplicates", default="lines", help="lines or spans (lines)")
    return made


def plan(given: argparse.Namespace, *, files: Sequence[str]) -> Plan:
    """Return the plan of the arguments of `parser`.

    Raises:
        ValueError: the file of bad words is not there.
    """
    words: list[str] = []
    if given.bad_words:
        words = [*reading.lines(reading.existing_file("--bad_words", given.bad_words, ("",)))]
    return Plan(
        files=files,
        output=Path(given.output).expanduser(),
        text=given.text,
        language=given.language,
        bad_words=words,
        duplicates=given.duplicates,
    )


def print_counts(counts: Mapping[str, int]) -> None:
    """Print what was counted, a line each."""
    width = len(f"{max(counts.values()):,}")
    sys.stdout.writelines(f"{count:{width},} {rule}\n" for rule, count in counts.items())


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    arguments_of = parser("data.filters.clean_pages", __doc__)
    arguments_of.add_argument("--processes", type=int, default=1, metavar="N")
    given = arguments_of.parse_args(arguments)
    with one_line_errors():
        files = json_lines.find("--input", given.input, suffixes=SUFFIXES)
        counts = clean_pages(
            plan(given, files=files), processes=given.processes, report=sys.stdout.write
        )
        print_counts(counts)


if __name__ == "__main__":
    main(sys.argv[1:])
